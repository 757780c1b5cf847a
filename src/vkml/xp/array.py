"""`Array`: a tensor whose operators and properties are those of the Python array API standard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from vkml.errors import InvalidArgument
from vkml.ir import DType, dtypes
from vkml.tensors import Tensor
from vkml.tensors.promotion import category, default_complex, get_default_dtype, promote_types
from vkml.tracing import Traced
from vkml.tracing.value import next_serial

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
_SUPPORTED = frozenset(
    (
        dtypes.BOOL,
        dtypes.FLOAT32,
        dtypes.FLOAT64,
        dtypes.FLOAT16,
        dtypes.BFLOAT16,
        *dtypes.INTEGERS,
        *dtypes.COMPLEXES,
    )
)


def _namespace() -> Any:
    import vkml.xp

    return vkml.xp


def _operator(name: str, *, is_reflected: bool = False) -> Callable[..., Any]:
    """An operator of two operands, by the function that does it."""

    def act(self: Any, other: Any, /) -> Any:
        if not isinstance(other, Tensor | bool | int | float | complex | np.generic):
            return NotImplemented
        function = getattr(_namespace(), name)
        return function(other, self) if is_reflected else function(self, other)

    act.__name__ = name
    return act


def _in_place(name: str) -> Callable[..., Any]:
    def act(self: Any, other: Any, /) -> Any:
        if not isinstance(other, Tensor | bool | int | float | complex | np.generic):
            return NotImplemented
        start = next_serial()
        made = getattr(_namespace(), name)(self, other)
        if made.shape != self.shape:
            raise InvalidArgument(f"a result of shape {list(made.shape)} does not fit {list(self.shape)}")
        return self._become(made, start)

    act.__name__ = name
    return act


class Array(Tensor):
    """A tensor as `vkml.xp` makes it: with the operators of the Python array API standard.

    They differ from a tensor's in how types are joined: here arrays without axes count like others, integers
    are not converted to floats, and numbers of the program take the array's type. Everything that takes
    tensors takes arrays.
    """

    __slots__ = ()

    def __init__(self, value: Traced, base: Any = None, view: Any = None) -> None:
        super().__init__(value, base, view)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        if api_version not in (None, *VERSIONS):
            raise ValueError(f"the versions of the array API are {', '.join(VERSIONS)}, not {api_version!r}")
        found: ModuleType = _namespace()
        return found

    @property
    def size(self) -> int:  # type: ignore[override]
        """How many elements it has."""
        return self.numel()

    @property
    def T(self) -> Array:
        """A matrix with rows and columns exchanged."""
        if self.ndim != 2:
            raise ValueError(f"T is of a matrix, not of {self.ndim} axes")
        return as_array(super().T)

    @property
    def mT(self) -> Array:
        """The last two axes exchanged."""
        if self.ndim < 2:
            raise ValueError(f"mT is of matrices, not of {self.ndim} axes")
        return as_array(super().mT)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """On another device; itself where it is there already.

        Args:
            device: its name.
            stream: None: there are none.
        """
        if stream is not None:
            raise ValueError("vkml has no streams that a caller names")
        moved = self.to(device=device)
        return self if moved is self else as_array(moved)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return super().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __getitem__(self, key: Any, /) -> Array:
        plain, axes = _forward(key, self.shape)
        found = super().__getitem__(plain)
        return _namespace().flip(found, axis=axes) if axes else as_array(found)

    def __setitem__(self, key: Any, value: Any, /) -> None:
        if isinstance(value, Tensor) and category(value.dtype) > category(self.dtype):
            raise TypeError(f"{value.dtype.numpy_name} does not fit {self.dtype.numpy_name}")
        plain, axes = _forward(key, self.shape)
        if axes and isinstance(value, Tensor):
            space = _namespace()
            shape = super().__getitem__(plain).shape
            value = space.flip(space.broadcast_to(value, shape), axis=axes)
        super().__setitem__(plain, value)

    __add__, __radd__ = _operator("add"), _operator("add", is_reflected=True)
    __sub__, __rsub__ = _operator("subtract"), _operator("subtract", is_reflected=True)
    __mul__, __rmul__ = _operator("multiply"), _operator("multiply", is_reflected=True)
    __truediv__, __rtruediv__ = _operator("divide"), _operator("divide", is_reflected=True)
    __floordiv__, __rfloordiv__ = _operator("floor_divide"), _operator("floor_divide", is_reflected=True)
    __mod__, __rmod__ = _operator("remainder"), _operator("remainder", is_reflected=True)
    __pow__, __rpow__ = _operator("pow"), _operator("pow", is_reflected=True)
    __matmul__, __rmatmul__ = _operator("matmul"), _operator("matmul", is_reflected=True)
    __and__, __rand__ = _operator("bitwise_and"), _operator("bitwise_and", is_reflected=True)
    __or__, __ror__ = _operator("bitwise_or"), _operator("bitwise_or", is_reflected=True)
    __xor__, __rxor__ = _operator("bitwise_xor"), _operator("bitwise_xor", is_reflected=True)
    __lshift__ = _operator("bitwise_left_shift")
    __rlshift__ = _operator("bitwise_left_shift", is_reflected=True)
    __rshift__ = _operator("bitwise_right_shift")
    __rrshift__ = _operator("bitwise_right_shift", is_reflected=True)
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __eq__, __ne__ = _operator("equal"), _operator("not_equal")
    __hash__ = object.__hash__
    __iadd__, __isub__, __imul__ = _in_place("add"), _in_place("subtract"), _in_place("multiply")
    __itruediv__, __ifloordiv__ = _in_place("divide"), _in_place("floor_divide")
    __imod__, __ipow__, __imatmul__ = _in_place("remainder"), _in_place("pow"), _in_place("matmul")
    __iand__, __ior__, __ixor__ = _in_place("bitwise_and"), _in_place("bitwise_or"), _in_place("bitwise_xor")
    __ilshift__, __irshift__ = _in_place("bitwise_left_shift"), _in_place("bitwise_right_shift")

    def __neg__(self) -> Array:
        return _namespace().negative(self)  # type: ignore[no-any-return]

    def __pos__(self) -> Array:
        return _namespace().positive(self)  # type: ignore[no-any-return]

    def __abs__(self) -> Array:
        return _namespace().abs(self)  # type: ignore[no-any-return]

    def __invert__(self) -> Array:
        return _namespace().bitwise_invert(self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return self._text("Array")


def _forward(key: Any, shape: Sequence[int]) -> tuple[Any, tuple[int, ...]]:
    """An index with ranges in ascending order, and the axes of what it selects that are to be turned."""
    entries = key if isinstance(key, tuple) else (key,)
    if not any(isinstance(entry, slice) and entry.step is not None and entry.step < 0 for entry in entries):
        return key, ()
    taken = sum(
        entry.ndim if isinstance(entry, Tensor) and entry.dtype == dtypes.BOOL else 1
        for entry in entries
        if entry is not None and entry is not Ellipsis
    )
    found: list[Any] = []
    turned: list[int] = []
    axis = place = 0
    for entry in entries:
        if entry is Ellipsis:
            axis, place = axis + len(shape) - taken, place + len(shape) - taken
        elif entry is None:
            place += 1
        elif isinstance(entry, slice):
            if entry.step is not None and entry.step < 0:
                steps = range(*entry.indices(shape[axis]))
                entry = slice(steps[-1], steps[0] + 1, -entry.step) if steps else slice(0, 0)
                turned.append(place)
            axis, place = axis + 1, place + 1
        else:
            axis += 1
        found.append(entry)
    return tuple(found), tuple(turned)


def as_array(x: Tensor) -> Array:
    """The elements of a tensor as an array; itself where it is one."""
    return x if isinstance(x, Array) else Array(x.value)


def of_type(dtype: DType | None, otherwise: DType) -> DType:
    """A type that was asked for.

    Raises:
        TypeError: it is none of arrays'.
    """
    if dtype is None:
        return otherwise
    if dtype not in _SUPPORTED:
        raise TypeError(f"a dtype is one of vkml.xp's, not {dtype!r}")
    return dtype


def joined_type(one: DType, other: DType) -> DType:
    """The type that two are computed in.

    Raises:
        TypeError: the standard has none: int64 with uint64.
    """
    if {one, other} in ({dtypes.UINT64, kind} for kind in dtypes.SIGNED):
        raise TypeError(f"{one.numpy_name} and {other.numpy_name} have no common type")
    return promote_types(one, other)


def scalar_type(value: Any, dtype: DType) -> DType:
    """The type of a number of the program beside arrays of a type.

    Raises:
        TypeError: the array's type does not hold numbers of this kind.
    """
    if isinstance(value, bool):
        if dtype != dtypes.BOOL:
            return dtype
    elif isinstance(value, int):
        if dtype == dtypes.BOOL:
            raise TypeError("an integer beside an array of bools")
        if dtype.is_integer:
            least, most = dtypes.integer_bounds(dtype)
            if not least <= value <= most:
                raise OverflowError(f"{value} does not fit {dtype.numpy_name}")
    elif isinstance(value, float) and not dtype.is_inexact:
        return get_default_dtype()
    elif isinstance(value, complex):
        return dtypes.complex_of(dtype) if dtype.is_inexact else default_complex()
    return dtype


def alike(*operands: Any) -> list[Tensor]:
    """Arrays and numbers of the program as tensors of one type."""
    kinds = [operand.dtype for operand in operands if isinstance(operand, Tensor)]
    if not kinds:
        raise TypeError("at least one array is needed")
    kind = kinds[0]
    for other in kinds[1:]:
        kind = joined_type(kind, other)
    for operand in operands:
        if not isinstance(operand, Tensor):
            kind = scalar_type(operand, kind)
    return [typed(operand, kind) for operand in operands]


def typed(operand: Any, kind: DType) -> Tensor:
    """An array or a number of the program in a type."""
    from vkml.tensors.operands import value_as

    return operand.to(kind) if isinstance(operand, Tensor) else Tensor(value_as(operand, kind))
