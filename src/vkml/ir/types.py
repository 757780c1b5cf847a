"""What is known of a value before it exists: a tensor's element type and shape, what a sequence holds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph
from vkml.ir.described import described
from vkml.ir.dtypes import UNDEFINED, DType
from vkml.ir.lazy import lazy
from vkml.ir.size import Size, plain

Dim = int | str | None
"""A size, the name of a symbolic size, or None where the model does not even name it. While a plan is made,
an integer may be a `Size`, an expression of sizes that stay open; for the type checker these are integers."""


class ValueType:
    """What a value is: a `TensorType`, a `SequenceType`, an `OptionalType` or a `MapType`."""

    @property
    def tensor(self) -> TensorType:
        """Itself, where it is a tensor's type.

        Raises:
            InvalidGraph: it is none.
        """
        raise InvalidGraph(f"a tensor is needed where there is {self}")

    @property
    def is_container(self) -> bool:
        """Whether values are no tensors: sequences are lists, optionals None or a value, maps dicts."""
        return True

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of it, not even the element type."""
        return False


@dataclass(frozen=True)
class SequenceType(ValueType):
    """A list of values of one type; their shapes may differ where `element` leaves sizes open."""

    element: ValueType

    def __str__(self) -> str:
        return f"sequence({self.element})"


@dataclass(frozen=True)
class OptionalType(ValueType):
    """A value of a type, or nothing."""

    element: ValueType

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True)
class MapType(ValueType):
    """A dictionary from integers or strings to numbers or strings: a `MapValue`."""

    key: DType
    element: DType

    def __str__(self) -> str:
        return f"map({self.key.name}, {self.element.name})"


class MapValue(dict[Any, Any]):
    """A dictionary that knows the types of its keys and values, also where it has none."""

    def __init__(self, type_: MapType, items: Iterable[tuple[Any, Any]]) -> None:
        super().__init__(items)
        self.type = type_


@dataclass(frozen=True)
class TensorType(ValueType):
    """Element type and shape; `shape` None where even the rank is unknown."""

    dtype: DType
    shape: tuple[Dim, ...] | None

    @property
    def tensor(self) -> TensorType:
        return self

    @property
    def is_container(self) -> bool:
        return False

    @property
    def is_unknown(self) -> bool:
        return self.dtype == UNDEFINED

    @lazy
    def is_static(self) -> bool:
        """Whether the sizes can be computed with: they are numbers, or expressions of open ones."""
        if self.shape is None:
            return False
        for dim in self.shape:  # noqa: SIM110  all() takes thrice as long
            if not isinstance(dim, int | Size):
                return False
        return True

    @lazy
    def is_open(self) -> bool:
        """Whether a size is an expression of sizes that planning leaves open."""
        return self.shape is not None and any(isinstance(dim, Size) for dim in self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape as integers, among which there may be `Size`s; only for a static type."""
        assert self.shape is not None and self.is_static, self
        return self.shape  # type: ignore[return-value]

    @property
    def rank(self) -> int:
        assert self.shape is not None, self
        return len(self.shape)

    @lazy
    def elements(self) -> int:
        return math.prod(self.dims)

    @lazy
    def bytes(self) -> int:
        """What it takes in files and on devices."""
        return self.dtype.bytes_for(self.elements)

    @lazy
    def strides(self) -> tuple[int, ...]:
        """Of its elements in a row-major array, in elements."""
        return contiguous_strides(self.dims)

    @lazy
    def key(self) -> Hashable:
        """Equal for equal types, and found in a dictionary without a call to Python."""
        return self.dtype, self.shape

    @property
    def host_bytes(self) -> int:
        """What a NumPy array of it takes, where no two elements share a byte."""
        return self.elements * self.dtype.itemsize

    def admits_shape_of(self, found: TensorType) -> bool:
        """Whether a value of the type `found` may have this shape; open sizes admit any."""
        if self.shape is None or found.shape is None:
            return True
        return len(self.shape) == len(found.shape) and all(
            not isinstance(a, int) or not isinstance(b, int) or a == b
            for a, b in zip(self.shape, found.shape, strict=True)
        )

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype.name}[?]"
        return f"{self.dtype.name}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


UNKNOWN = TensorType(UNDEFINED, None)
"""Type of a value of which nothing is known before inference."""


@described
class Known:
    """An operator's input as shape inference sees it: its type, and its value where that is a constant."""

    stated: ValueType
    value: np.ndarray[Any, Any] | None = None

    @property
    def type(self) -> TensorType:
        """The type of a tensor; `InvalidGraph` where the input is none."""
        return self.stated.tensor

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def dims(self) -> tuple[int, ...]:
        return self.type.dims

    @property
    def rank(self) -> int:
        return self.type.rank


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def static(dtype: DType, shape: Sequence[int]) -> TensorType:
    """A static type, from any sequence of integers (NumPy integers become Python's)."""
    return TensorType(dtype, tuple(plain(d) for d in shape))
