"""Element types: ONNX's codes, their storage in NumPy, their widths.

NumPy has no bfloat16, float8, 4-bit or 2-bit types; `ml_dtypes` adds them. An array holds one element of them
in a byte or more; only files and devices pack several into one (see `vkml.ir.packing`).
"""

from __future__ import annotations

import functools
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from vkml import errors
from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph
from vkml.ir.lazy import lazy


@dataclass(frozen=True, eq=False)
class DType:
    """One element type of ONNX; there is one object of each."""

    name: str
    """The name ONNX Runtime prints between the brackets of ``tensor(float)``: ``float``."""
    code: int
    """Value of ``TensorProto.DataType``."""
    bits: int
    kind: str
    """'f' float, 'i' signed, 'u' unsigned, 'b' bool, 'c' complex, 's' string."""
    numpy_name: str
    """Name of its `storage`."""
    is_native: bool
    """Whether it is one of NumPy's own types (false for bfloat16, float8 and smaller)."""

    @lazy
    def storage(self) -> np.dtype[Any]:
        """NumPy dtype of the array that carries it, one element of the array an element."""
        if self.is_native or self.bits == 0:
            return np.dtype(self.numpy_name)
        import ml_dtypes  # takes 10 ms, and few models have such types

        foreign: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.numpy_name))
        return foreign

    @property
    def is_packed(self) -> bool:
        """Whether several elements share a byte in files and on devices; in arrays none do."""
        return 0 < self.bits < 8

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_floating_point(self) -> bool:
        """`is_float`, by PyTorch's name."""
        return self.is_float

    @property
    def is_signed(self) -> bool:
        """Whether it has numbers below 0."""
        return self.kind in "ifc"

    @property
    def itemsize(self) -> int:
        """Bytes of an element of an array."""
        return (self.bits + 7) // 8 or self.storage.itemsize

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def is_inexact(self) -> bool:
        """Whether its numbers are rounded: floats and complex numbers, which gradients flow through."""
        return self.kind in "fc"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    def bytes_for(self, elements: int) -> int:
        """Bytes that `elements` elements take in files and on devices, packed where the type is."""
        return (elements * self.bits + 7) // 8

    def __repr__(self) -> str:
        return self.name


def _make(name: str, code: int, bits: int, kind: str, numpy_type: type) -> DType:
    return DType(name, code, bits, kind, np.dtype(numpy_type).name, bits > 0)


def _make_foreign(name: str, code: int, bits: int, kind: str, ml_dtypes_name: str = "") -> DType:
    return DType(name, code, bits, kind, ml_dtypes_name or name, is_native=False)


FLOAT32 = _make("float", 1, 32, "f", np.float32)
UINT8 = _make("uint8", 2, 8, "u", np.uint8)
INT8 = _make("int8", 3, 8, "i", np.int8)
UINT16 = _make("uint16", 4, 16, "u", np.uint16)
INT16 = _make("int16", 5, 16, "i", np.int16)
INT32 = _make("int32", 6, 32, "i", np.int32)
INT64 = _make("int64", 7, 64, "i", np.int64)
STRING = _make("string", 8, 64, "s", np.object_)
BOOL = _make("bool", 9, 8, "b", np.bool_)
FLOAT16 = _make("float16", 10, 16, "f", np.float16)
FLOAT64 = _make("double", 11, 64, "f", np.float64)
UINT32 = _make("uint32", 12, 32, "u", np.uint32)
UINT64 = _make("uint64", 13, 64, "u", np.uint64)
COMPLEX64 = _make("complex64", 14, 64, "c", np.complex64)
COMPLEX128 = _make("complex128", 15, 128, "c", np.complex128)
BFLOAT16 = _make_foreign("bfloat16", 16, 16, "f")
FLOAT8E4M3FN = _make_foreign("float8e4m3fn", 17, 8, "f", "float8_e4m3fn")
FLOAT8E4M3FNUZ = _make_foreign("float8e4m3fnuz", 18, 8, "f", "float8_e4m3fnuz")
FLOAT8E5M2 = _make_foreign("float8e5m2", 19, 8, "f", "float8_e5m2")
FLOAT8E5M2FNUZ = _make_foreign("float8e5m2fnuz", 20, 8, "f", "float8_e5m2fnuz")
UINT4 = _make_foreign("uint4", 21, 4, "u")
INT4 = _make_foreign("int4", 22, 4, "i")
FLOAT4E2M1 = _make_foreign("float4e2m1", 23, 4, "f", "float4_e2m1fn")
FLOAT8E8M0 = _make_foreign("float8e8m0", 24, 8, "f", "float8_e8m0fnu")
UINT2 = _make_foreign("uint2", 25, 2, "u")
INT2 = _make_foreign("int2", 26, 2, "i")

ALL: tuple[DType, ...] = tuple(value for value in list(globals().values()) if isinstance(value, DType))
UNDEFINED = _make("undefined", 0, 0, "?", np.object_)
"""Element type of a value whose type is left to inference (ONNX's code 0)."""
_BY_CODE = {dtype.code: dtype for dtype in ALL}
_NOT_YET = {27: "float6e2m3", 28: "float6e3m2"}
"""Element types of ONNX that vkml does not have."""
_BY_NUMPY = {dtype.storage: dtype for dtype in ALL if dtype.is_native}

FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
"""Floats that operators compute with; those of 16 bits as float32, rounded once."""
FLOAT8S = (FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ)
SIGNED = (INT8, INT16, INT32, INT64)
UNSIGNED = (UINT8, UINT16, UINT32, UINT64)
INTEGERS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTEGERS
COMPLEXES = (COMPLEX64, COMPLEX128)
"""Numbers that NumPy computes with on the CPU; no kernel does."""


def from_code(code: int) -> DType:
    """The element type that ONNX numbers `code`.

    Raises:
        InvalidGraph: there is none.
        NotImplemented: vkml does not have it.
    """
    found = _BY_CODE.get(code)
    if found is not None:
        return found
    if code in _NOT_YET:
        raise errors.NotImplemented(f"the element type {_NOT_YET[code]} is not supported")
    raise InvalidGraph(f"element type {code} is not one that ONNX defines (known: 1 to {max(_NOT_YET)})")


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """As `numpy.dtype`, which knows names of `ml_dtypes`' types only once that is loaded."""
    if isinstance(dtype, str):
        with suppress(TypeError):
            return np.dtype(dtype)
        import_module("ml_dtypes")
    found: np.dtype[Any] = np.dtype(dtype)
    return found


def from_numpy(dtype: Any) -> DType:
    """The element type whose elements arrays of a NumPy `dtype` hold."""
    dtype = numpy_dtype(dtype)
    native = dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype
    found = _BY_NUMPY.get(native)
    if found is None and dtype.isbuiltin == 2:
        found = _foreign_by_numpy().get(native)
    if found is None:
        if dtype.kind in "US":
            return STRING
        raise InvalidGraph(f"NumPy type {dtype} has no ONNX element type")
    return found


@functools.cache
def _foreign_by_numpy() -> dict[np.dtype[Any], DType]:
    return {dtype.storage: dtype for dtype in ALL if not dtype.is_native}


def finfo(dtype: DType) -> Any:
    """As `numpy.finfo`, of the floats that `ml_dtypes` adds, too."""
    if dtype.is_native:
        return np.finfo(dtype.storage)
    import ml_dtypes

    return ml_dtypes.finfo(dtype.storage)  # type: ignore[no-untyped-call]


def complex_of(dtype: DType) -> DType:
    """The complex type whose parts hold a float type's numbers; itself where it is complex."""
    return COMPLEX128 if dtype in (FLOAT64, COMPLEX128) else COMPLEX64


def real_of(dtype: DType) -> DType:
    """The type of a complex type's parts; itself where it is not complex."""
    return FLOAT64 if dtype == COMPLEX128 else FLOAT32 if dtype == COMPLEX64 else dtype


def can_hold(dtype: DType, array: np.ndarray[Any, Any]) -> bool:
    """Whether a type has every number of an array, a float but for its rounding.

    Args:
        dtype: the type.
        array: floats, integers or bools.
    """
    if array.size == 0:
        return True
    if dtype.is_float:
        with np.errstate(all="ignore"):
            made = array.astype(dtype.storage)
            # What is finite, infinite or NaN stays so; a type that has only finite numbers has a largest one.
            is_kept = (np.isfinite(made) == np.isfinite(array)) & (np.isnan(made) == np.isnan(array))
            return bool((is_kept & ((dtype is not FLOAT4E2M1) | (np.abs(array) <= 6))).all())
    if array.dtype.kind == "f" and not (np.isfinite(array) & (np.trunc(array) == array)).all():
        return False
    # As Python's integers: NumPy's comparisons may round.
    least, most = (0, 1) if dtype is BOOL else integer_bounds(dtype)
    return least <= int(array.min()) and int(array.max()) <= most


def integer_bounds(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    least = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
    return least, least + (1 << dtype.bits) - 1
