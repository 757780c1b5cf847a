"""Types of kernels' values."""

from __future__ import annotations

import functools
import re
from dataclasses import field

from vkml.dataclasses import dataclass
from vkml.kernels.slang.errors import Unsupported


@dataclass(frozen=True, eq=False)
class Type:
    """Any type; equal ones are the same object."""


@dataclass(frozen=True, eq=False)
class Scalar(Type):
    name: str
    kind: str
    """f, i, u, b or e."""
    bits: int


@dataclass(frozen=True, eq=False)
class Vector(Type):
    element: Scalar
    count: int


@dataclass(frozen=True, eq=False)
class Array(Type):
    element: Type
    count: int


@dataclass(frozen=True, eq=False)
class Pointer(Type):
    """To device memory."""

    element: Type


@dataclass(frozen=True, eq=False)
class Record(Type):
    """A struct."""

    name: str
    fields: dict[str, Type] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Fragment(Type):
    """A cooperative matrix of a subgroup."""

    element: Scalar
    rows: int
    columns: int
    use: int
    """0: A, 1: B, 2: accumulator."""


@dataclass(frozen=True, eq=False)
class Void(Type):
    pass


VOID = Void()
BOOL = Scalar("bool", "b", 1)
FLOAT, HALF, DOUBLE = Scalar("float", "f", 32), Scalar("half", "f", 16), Scalar("double", "f", 64)
BFLOAT16 = Scalar("BFloat16", "e", 16)
"""Of fragments alone: nothing is computed in it."""
INT, UINT = Scalar("int", "i", 32), Scalar("uint", "u", 32)
INT8, UINT8 = Scalar("int8_t", "i", 8), Scalar("uint8_t", "u", 8)
INT16, UINT16 = Scalar("int16_t", "i", 16), Scalar("uint16_t", "u", 16)
INT64, UINT64 = Scalar("int64_t", "i", 64), Scalar("uint64_t", "u", 64)
SCALARS = {
    scalar.name: scalar
    for scalar in (BOOL, FLOAT, HALF, DOUBLE, BFLOAT16, INT, UINT, INT8, UINT8, INT16, UINT16, INT64, UINT64)
}

_VECTOR = re.compile(r"(bool|float|half|double|int|uint)([234])")


@functools.cache
def vector(element: Scalar, count: int) -> Type:
    """A vector; of one element it is the element's type."""
    return Vector(element, count) if count > 1 else element


@functools.cache
def array(element: Type, count: int) -> Array:
    return Array(element, count)


@functools.cache
def pointer(element: Type) -> Pointer:
    return Pointer(element)


@functools.cache
def fragment(element: Scalar, rows: int, columns: int, use: int) -> Fragment:
    return Fragment(element, rows, columns, use)


@functools.cache
def builtin(name: str) -> Type | None:
    """The type that a name stands for in any source."""
    if name == "void":
        return VOID
    match = _VECTOR.fullmatch(name)
    if match:
        return vector(SCALARS[match.group(1)], int(match.group(2)))
    return SCALARS.get(name)


def element_of(type_: Type) -> Scalar | None:
    """The scalar of a scalar or a vector, None for other types."""
    if isinstance(type_, Scalar):
        return type_
    return type_.element if isinstance(type_, Vector) else None


def like(type_: Type, element: Scalar) -> Type:
    """A type of as many elements as another has."""
    return vector(element, type_.count) if isinstance(type_, Vector) else element


def integer(bits: int, *, is_signed: bool) -> Scalar:
    """The integers of a width."""
    found = {8: (UINT8, INT8), 16: (UINT16, INT16), 32: (UINT, INT), 64: (UINT64, INT64)}
    return found[bits][is_signed]


def size_of(type_: Type) -> int:
    """Bytes of an element in memory."""
    if isinstance(type_, Record):
        return offsets(type_)[1]
    if isinstance(type_, Scalar):
        return max(type_.bits // 8, 1)
    if isinstance(type_, Vector):
        return type_.count * size_of(type_.element)
    if not isinstance(type_, Pointer):
        raise Unsupported(f"{type_} in device memory")
    return 8


def alignment_of(type_: Type) -> int:
    """What an element's address is a multiple of."""
    if isinstance(type_, Record):
        return max(alignment_of(member) for member in type_.fields.values())
    return size_of(type_)


def offsets(record: Record) -> tuple[list[int], int]:
    """Where a struct's members lie in memory, and its size."""
    found = []
    end = 0
    for member in record.fields.values():
        end += -end % alignment_of(member)
        found.append(end)
        end += size_of(member)
    return found, end + -end % alignment_of(record)
