"""Scalar forms: what a pointwise operator does to one element, as a typed expression tree.

An operator states its form once (`Operator.scalar`); kernels' source, machine code, NumPy's evaluation and
derivatives are made from it. Operations have the names of NumPy's functions and mean what these do, but for
what `OPERATIONS` says.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from vkml.dataclasses import dataclass
from vkml.errors import OperandError
from vkml.forks import renew_in_child
from vkml.ir import dtypes
from vkml.ir.dtypes import BOOL, FLOAT32, FLOAT64, DType

Number = int | float | bool

_ARITHMETIC = "add subtract multiply divide negative absolute sign minimum maximum fmod mod power relu"
_OF_FLOATS = (
    "fma sqrt floor ceil rint trunc exp expm1 log log1p sin cos tan arcsin arccos arctan sinh cosh tanh "
    "arcsinh arccosh arctanh erf sigmoid round_to_half"
)
_TESTS = "equal not_equal less less_equal greater greater_equal isnan isposinf isneginf"
_BITS = "bitwise_and bitwise_or bitwise_xor invert left_shift right_shift"

_OF_REALS = frozenset(
    [
        "absolute",
        "sign",
        "minimum",
        "maximum",
        "fmod",
        "mod",
        "relu",
        "fma",
        "floor",
        "ceil",
        "rint",
        "trunc",
        "erf",
        "sigmoid",
        "round_to_half",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
        "view",
    ]
)
OPERATIONS = frozenset(
    f"constant argument where convert view {_ARITHMETIC} {_OF_FLOATS} {_TESTS} {_BITS}".split()
)
"""All operations. Every one is exact in its type or rounds once to it; integers wrap round.

* minimum, maximum and relu give NaN where an input is NaN. relu is maximum(x, 0).
* divide of integers truncates toward 0, and by 0 gives 0; fmod (sign of the dividend) and mod (sign of the
  divisor) of an integer by 0 give 0. power of integers takes an int32 or int64 exponent; negative ones
  truncate.
* fma(a, b, c) is a b + c rounded once. sigmoid(x) is 1 / (1 + exp(-x)).
* left_shift and right_shift by less than 0 or by the type's width or more leave copies of the sign bit, or 0.
* where takes a bool, the value where it is true and the value where it is false.
* convert changes the type: floats to integers lose their fraction and keep their low bits (what does not fit
  64 bits is any number), integers wrap, bool is 0 and 1, and what is not 0 is true.
* view has the same bits as another type of as many.
* Of complex numbers there are those that have a derivative, equal, and tests of what is finite; only NumPy
  computes with them.
* round_to_half makes float32 of a float, a number that float16 has.
* bitwise_and, bitwise_or, bitwise_xor and invert of bools are the logical ones.
"""


@dataclass(frozen=True, eq=False)
class Scalar:
    """One value of an expression tree. Equal trees are the same object: nothing is in a tree twice.

    Floats of 16 bits and fewer are computed in float32: no scalar has these types.
    """

    operation: str
    """One of `OPERATIONS`."""
    dtype: DType
    inputs: tuple[Scalar, ...] = ()
    value: Number = 0
    """The number of a constant, the position of an argument. Constants of complex types have a complex one,
    which nothing but NumPy's evaluation looks at."""

    def __add__(self, other: Scalar | Number) -> Scalar:
        return binary("add", self, other)

    def __radd__(self, other: Number) -> Scalar:
        return binary("add", other, self)

    def __sub__(self, other: Scalar | Number) -> Scalar:
        return binary("subtract", self, other)

    def __rsub__(self, other: Number) -> Scalar:
        return binary("subtract", other, self)

    def __mul__(self, other: Scalar | Number) -> Scalar:
        return binary("multiply", self, other)

    def __rmul__(self, other: Number) -> Scalar:
        return binary("multiply", other, self)

    def __truediv__(self, other: Scalar | Number) -> Scalar:
        return binary("divide", self, other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return binary("divide", other, self)

    def __neg__(self) -> Scalar:
        return unary("negative", self)

    def __lt__(self, other: Scalar | Number) -> Scalar:
        return compare("less", self, other)

    def __le__(self, other: Scalar | Number) -> Scalar:
        return compare("less_equal", self, other)

    def __gt__(self, other: Scalar | Number) -> Scalar:
        return compare("greater", self, other)

    def __ge__(self, other: Scalar | Number) -> Scalar:
        return compare("greater_equal", self, other)

    def __and__(self, other: Scalar | Number) -> Scalar:
        return binary("bitwise_and", self, other)

    def __or__(self, other: Scalar | Number) -> Scalar:
        return binary("bitwise_or", self, other)

    def __xor__(self, other: Scalar | Number) -> Scalar:
        return binary("bitwise_xor", self, other)

    def __invert__(self) -> Scalar:
        return unary("invert", self)

    @property
    def is_constant(self) -> bool:
        return self.operation == "constant"

    def __repr__(self) -> str:
        if self.operation == "constant":
            return f"{self.value!r}"
        if self.operation == "argument":
            return f"x{self.value}"
        kind = f"<{self.dtype}>" if self.operation == "convert" else ""
        return f"{self.operation}{kind}({', '.join(map(repr, self.inputs))})"


_known: weakref.WeakValueDictionary[tuple[object, ...], Scalar] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


renew_in_child(_renew)


def make(operation: str, dtype: DType, inputs: Sequence[Scalar] = (), value: Number | complex = 0) -> Scalar:
    """The one scalar of an operation on these inputs.

    Raises:
        OperandError: they are complex numbers, for which there is no such operation.
    """
    assert operation in OPERATIONS, operation
    # 0.0 is not -0.0, and NaN is itself.
    spelling: object = value
    if isinstance(value, float):
        spelling = value.hex()
    elif isinstance(value, complex):
        spelling = value.real.hex(), value.imag.hex()
    key = (operation, dtype, tuple(map(id, inputs)), type(value), spelling)
    with _lock:
        found = _known.get(key)
        if found is None:
            if operation in _OF_REALS and inputs[0].dtype.is_complex:
                raise OperandError(f"{operation} is not defined for {inputs[0].dtype.numpy_name}")
            # A signal handler may have made it meanwhile.
            found = _known.setdefault(key, Scalar(operation, dtype, tuple(inputs), cast(Number, value)))
        return found


def arithmetic_type(dtype: DType) -> DType:
    """The type that elements of `dtype` are computed in."""
    return FLOAT32 if dtype.is_float and dtype != FLOAT64 else dtype


def argument(position: int, dtype: DType) -> Scalar:
    """The operand at that position, whose elements are of `dtype`."""
    return make("argument", arithmetic_type(dtype), value=position)


def constant(value: Number | complex, dtype: DType) -> Scalar:
    """A number, rounded or wrapped to the type that `dtype` is computed in."""
    kind = arithmetic_type(dtype)
    if kind.is_integer:
        assert not isinstance(value, complex), "a complex number among integers"
        return make("constant", kind, value=_wrapped(int(value), kind))
    return make("constant", kind, value=kind.storage.type(value).item())


def _wrapped(value: int, dtype: DType) -> int:
    low = value & ((1 << dtype.bits) - 1)
    return low - (1 << dtype.bits) if dtype.kind == "i" and low >> (dtype.bits - 1) else low


def unary(operation: str, x: Scalar) -> Scalar:
    """An operation whose result has its input's type."""
    return make(operation, x.dtype, (x,))


def binary(operation: str, x: Scalar | Number, y: Scalar | Number) -> Scalar:
    """An operation of two inputs of one type, also its result's. Plain numbers take the other's type."""
    a, b = _alike(operation, x, y)
    return make(operation, a.dtype, (a, b))


def compare(operation: str, x: Scalar | Number, y: Scalar | Number) -> Scalar:
    """A test of two values of one type."""
    return make(operation, BOOL, _alike(operation, x, y))


def test(operation: str, x: Scalar) -> Scalar:
    """A test of one value: isnan, isposinf, isneginf."""
    return make(operation, BOOL, (x,))


def where(condition: Scalar, x: Scalar | Number, y: Scalar | Number) -> Scalar:
    """`x` where the condition is true, `y` elsewhere."""
    assert condition.dtype == BOOL, condition
    a, b = _alike("where", x, y)
    return make("where", a.dtype, (condition, a, b))


def fma(x: Scalar, y: Scalar | Number, z: Scalar | Number) -> Scalar:
    """x y + z, rounded once."""
    y, z = (_alike("fma", x, other)[1] for other in (y, z))
    return make("fma", x.dtype, (x, y, z))


def power(x: Scalar, y: Scalar | Number) -> Scalar:
    """`x` to the power of `y`: of the same type, or an int32 or int64 exponent of an integer."""
    if isinstance(y, Scalar) and x.dtype.is_integer:
        assert y.dtype in (dtypes.INT32, dtypes.INT64), y
        return make("power", x.dtype, (x, y))
    return binary("power", x, y)


def convert(x: Scalar, dtype: DType) -> Scalar:
    """`x` in the type that `dtype` is computed in."""
    kind = arithmetic_type(dtype)
    return x if x.dtype == kind else make("convert", kind, (x,))


def view(x: Scalar, dtype: DType) -> Scalar:
    """The bits of `x` as a number of another type of the same width."""
    assert x.dtype.bits == dtype.bits, (x, dtype)
    return make("view", dtype, (x,))


def round_to_half(x: Scalar) -> Scalar:
    """The nearest number that float16 has, as float32."""
    return make("round_to_half", FLOAT32, (x,))


def relu(x: Scalar) -> Scalar:
    return unary("relu", x)


def absolute(x: Scalar) -> Scalar:
    return unary("absolute", x)


def minimum(x: Scalar | Number, y: Scalar | Number) -> Scalar:
    return binary("minimum", x, y)


def maximum(x: Scalar | Number, y: Scalar | Number) -> Scalar:
    return binary("maximum", x, y)


def _alike(operation: str, x: Scalar | Number, y: Scalar | Number) -> tuple[Scalar, Scalar]:
    if not isinstance(x, Scalar):
        assert isinstance(y, Scalar)
        x = constant(x, y.dtype)
    if not isinstance(y, Scalar):
        y = constant(y, x.dtype)
    if x.dtype != y.dtype:
        raise TypeError(f"{operation} of {x.dtype} and {y.dtype}: convert one of the two")
    return x, y


def ordered(results: Iterable[Scalar]) -> list[Scalar]:
    """Every scalar that the results are made of, each once, inputs before what is made of them."""
    order: list[Scalar] = []
    seen: set[int] = set()
    for result in results:
        stack = [(result, False)]
        while stack:
            scalar, is_ready = stack.pop()
            if is_ready:
                order.append(scalar)
            elif id(scalar) not in seen:
                seen.add(id(scalar))
                stack.append((scalar, True))
                stack += [(entry, False) for entry in reversed(scalar.inputs) if id(entry) not in seen]
    return order


def substituted(form: Scalar, instead: Callable[[Scalar], Scalar | None]) -> Scalar:
    """A form with others in the places of some scalars.

    Args:
        form: any.
        instead: gives what takes a scalar's place, None where it stays.
    """
    found: dict[Scalar, Scalar] = {}
    for part in ordered([form]):
        other = instead(part)
        if other is None:
            inputs = tuple(found[entry] for entry in part.inputs)
            other = part if inputs == part.inputs else make(part.operation, part.dtype, inputs, part.value)
        found[part] = other
    return found[form]
