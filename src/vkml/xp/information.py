"""What the namespace can do: `__array_namespace_info__`."""

from __future__ import annotations

from typing import Any

from vkml.ir import DType, dtypes
from vkml.tensors.promotion import default_complex, get_default_dtype

_KINDS = {
    "bool": (dtypes.BOOL,),
    "signed integer": dtypes.SIGNED,
    "unsigned integer": dtypes.UNSIGNED,
    "integral": (*dtypes.SIGNED, *dtypes.UNSIGNED),
    "real floating": (dtypes.FLOAT32, dtypes.FLOAT64),
    "complex floating": dtypes.COMPLEXES,
    "numeric": (*dtypes.SIGNED, *dtypes.UNSIGNED, dtypes.FLOAT32, dtypes.FLOAT64, *dtypes.COMPLEXES),
}


class Information:
    """See the section "Inspection" of the standard."""

    def capabilities(self) -> dict[str, Any]:
        """Bools index, sizes may depend on data, and shapes have up to 64 axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """The device of arrays for which none is stated."""
        return "cpu"

    def devices(self) -> list[str]:
        """The names of all devices."""
        import vkml

        return [device.name for device in vkml.devices()]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The types of arrays for which none is stated."""
        return {
            "real floating": get_default_dtype(), "complex floating": default_complex(),
            "integral": dtypes.INT64, "indexing": dtypes.INT64,
        }  # fmt: skip

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Types by name, of a kind, or of several."""
        if kind is None:
            found = (*_KINDS["bool"], *_KINDS["numeric"])
        else:
            kinds = kind if isinstance(kind, tuple) else (kind,)
            unknown = [one for one in kinds if one not in _KINDS]
            if unknown:
                raise ValueError(f"{unknown[0]!r} is no kind of types: {', '.join(_KINDS)}")
            found = tuple(one for name in kinds for one in _KINDS[name])
        return {one.numpy_name: one for one in found}


def __array_namespace_info__() -> Information:
    """What devices, types and capabilities the namespace has."""
    return Information()
