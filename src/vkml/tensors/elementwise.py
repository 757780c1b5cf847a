"""Operations on tensors, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vkml.ir import DType, dtypes, scalar
from vkml.ir.gradients import converted, expression
from vkml.tensors import tensor as core
from vkml.tensors.operands import BOOL, Operand, floating, of_complex, pair, value_as, wrap
from vkml.tensors.promotion import get_default_dtype, result_type
from vkml.tracing import EMITTER, apply, constant, number

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

Unary: TypeAlias = "Callable[[Tensor], Tensor]"
Binary: TypeAlias = "Callable[[Operand, Operand], Tensor]"
F = TypeVar("F")


def add(x: Operand, other: Operand, *, alpha: float = 1) -> Tensor:
    """`x` + `alpha` `other`.

    Args:
        x: a tensor or a number.
        other: likewise; broadcast with `x`.
        alpha: a factor of `other`.

    Returns:
        The shape that both are broadcast to, in the type that theirs are promoted to.

    Raises:
        RuntimeError: the shapes do not fit each other.
    """
    if alpha != 1:
        other = mul(other, alpha)
    kind = result_type(x, other)
    return pair("Or", x, other, BOOL) if kind == BOOL else pair("Add", x, other, kind)


def sub(x: Operand, other: Operand, *, alpha: float = 1) -> Tensor:
    """`x` - `alpha` `other`.

    Args:
        x: a tensor or a number; not of bools.
        other: likewise; broadcast with `x`.
        alpha: a factor of `other`.

    Returns:
        The shape that both are broadcast to, in the type that theirs are promoted to.

    Raises:
        RuntimeError: the shapes do not fit each other, or both are bools.
    """
    if result_type(x, other) == BOOL:
        raise RuntimeError("bools are not subtracted: use ^ or logical_not()")
    return pair("Sub", x, mul(other, alpha) if alpha != 1 else other)


def mul(x: Operand, other: Operand) -> Tensor:
    """The product, element by element.

    Args:
        x: a tensor or a number; of two bools the product is `logical_and`.
        other: likewise; broadcast with `x`.
    """
    kind = result_type(x, other)
    return pair("And", x, other, BOOL) if kind == BOOL else pair("Mul", x, other, kind)


def div(x: Operand, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """The quotient, of floats; rounded down or toward 0 where that is asked for.

    Args:
        x: a tensor or a number.
        other: likewise; broadcast with `x`.
        rounding_mode: "floor" rounds down, "trunc" toward 0; None: the quotient as it is.

    Returns:
        Floats, of integers in the default type; where it is rounded, the type that theirs are promoted to.

    Raises:
        RuntimeError: another rounding mode, or one for complex numbers.
    """
    kind = result_type(x, other)
    if rounding_mode is None:
        return pair("Div", x, other, kind if kind.is_inexact else get_default_dtype())
    if kind.is_complex:
        raise RuntimeError("quotients of complex numbers are not rounded")
    if rounding_mode not in ("floor", "trunc"):
        raise RuntimeError(f"rounding_mode is None, 'trunc' or 'floor', not {rounding_mode!r}")
    if kind.is_float:
        quotient = pair("Div", x, other, kind)
        return floor(quotient) if rounding_mode == "floor" else trunc(quotient)
    if rounding_mode == "trunc":
        return pair("Div", x, other, kind)
    return sub(pair("Div", x, other, kind), _is_short(x, other, kind))


def _is_short(x: Operand, y: Operand, kind: DType) -> Tensor:
    """1 where a quotient that is rounded toward 0 is greater than the one rounded down."""
    rest = pair("Mod", x, y, kind, fmod=1)
    # Not by the sign of their product, which may wrap round.
    is_other = ne(pair("Less", rest, 0, kind), pair("Less", y, 0, kind))
    return logical_and(ne(rest, 0), is_other).to(kind)


def floor_divide(x: Operand, other: Operand) -> Tensor:
    """The quotient rounded down.

    Args:
        x: a tensor or a number.
        other: likewise; broadcast with `x`.
    """
    return div(x, other, rounding_mode="floor")


def remainder(x: Operand, other: Operand) -> Tensor:
    """What is left by `floor_divide`, with the sign of `other`.

    Args:
        x: a tensor or a number; integers or floats.
        other: likewise; broadcast with `x`.
    """
    kind = result_type(x, other)
    return (
        sub(x, mul(floor_divide(x, other), other)) if kind.is_float else pair("Mod", x, other, kind, fmod=0)
    )


def fmod(x: Operand, other: Operand) -> Tensor:
    """What is left by the quotient rounded toward 0, with the sign of `x`.

    Args:
        x: a tensor or a number; integers or floats.
        other: likewise; broadcast with `x`.
    """
    return pair("Mod", x, other, fmod=1)


def pow(x: Operand, exponent: Operand) -> Tensor:
    """`x` to the power of `exponent`.

    Args:
        x: a tensor or a number.
        exponent: likewise; broadcast with `x`.

    Raises:
        RuntimeError: integers, and `exponent` is a number below 0.
    """
    kind = result_type(x, exponent)
    if isinstance(exponent, core.Tensor):
        return pair("Pow", x, exponent, kind)
    if kind.is_integer and not isinstance(exponent, complex) and exponent < 0:
        raise RuntimeError("integers to negative powers of integers are no integers")
    # Part of the structure: short powers are products.
    return wrap(apply("Pow", value_as(x, kind), constant(exponent, kind)))


def square(x: Tensor) -> Tensor:
    """x².

    Args:
        x: numbers of any type and shape.
    """
    return mul(x, x)


def maximum(x: Tensor, other: Tensor) -> Tensor:
    """The greater of two, element by element; NaN where either is.

    Args:
        x: integers or floats.
        other: likewise; broadcast with `x`.
    """
    return pair("Max", x, other)


def minimum(x: Tensor, other: Tensor) -> Tensor:
    """The smaller of two, element by element; NaN where either is.

    Args:
        x: integers or floats.
        other: likewise; broadcast with `x`.
    """
    return pair("Min", x, other)


def clamp(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """`x` limited to [min, max].

    Args:
        x: integers or floats.
        min: a number, or a tensor that is broadcast with `x`; None: no bound.
        max: likewise; where it is below `min`, the result is `max`.

    Raises:
        RuntimeError: there is no bound.
    """
    if min is None and max is None:
        raise RuntimeError("clamp needs min or max, or both")
    kind = result_type(x, *(bound for bound in (min, max) if bound is not None))
    if isinstance(min, core.Tensor) or isinstance(max, core.Tensor):
        found = x.to(kind)
        if min is not None:
            found = pair("Max", found, min, kind)
        return pair("Min", found, max, kind) if max is not None else found
    low, high = (None if bound is None else value_as(bound, kind) for bound in (min, max))
    if kind.is_float:  # without a bound ONNX limits infinity
        low = number(-math.inf, kind) if low is None else low
        high = number(math.inf, kind) if high is None else high
    return wrap(apply("Clip", value_as(x, kind), low, high))


def where(condition: Tensor, input: Operand, other: Operand) -> Tensor:
    """`input` where the condition is true, `other` elsewhere.

    Args:
        condition: bools, or numbers, of which 0 is false.
        input: a tensor or a number; broadcast with the condition.
        other: likewise.
    """
    kind = result_type(input, other)
    chosen = converted(EMITTER, condition.value, BOOL)
    return wrap(apply("Where", chosen, value_as(input, kind), value_as(other, kind)))


def lerp(x: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """`x` + `weight` (`end` - `x`).

    Args:
        x: floats.
        end: floats; broadcast with `x`.
        weight: 0 for `x`, 1 for `end`; a number or a tensor that is broadcast with both.
    """
    return add(x, mul(sub(end, x), weight))


def _named(function: F, name: str, doc: str) -> F:
    """A function that a factory has made, called as programs call it."""
    made: Any = function
    made.__name__ = made.__qualname__ = name
    made.__doc__ = doc
    return function


def _of(doc: str, operands: str, result: str = "") -> str:
    """A docstring with sections: what the operands are, a line each, and what is made of them."""
    sections = [doc, "Args:\n    " + operands.replace("\n", "\n    ")]
    return "\n\n".join([*sections, f"Returns:\n    {result}"] if result else sections) + "\n"


_TWO = "x: {}.\nother: likewise; broadcast with `x`."
_WHOLE = "numbers of any shape; integers become floats of the default type"


def _compared(name: str, op: str, doc: str) -> Binary:
    def compare(x: Operand, other: Operand) -> Tensor:
        kind = result_type(x, other)
        if op != "Equal":
            if kind.is_complex:
                raise RuntimeError(f"{op}: complex numbers have no order")
            if kind == BOOL:
                kind = dtypes.INT32
        return pair(op, x, other, kind)

    return _named(compare, name, _of(doc, _TWO.format("a tensor or a number"), "Bools."))


eq: Binary = _compared("eq", "Equal", "Where two are equal.")
lt: Binary = _compared("lt", "Less", "Where `x` is less than `other`.")
le: Binary = _compared("le", "LessOrEqual", "Where `x` is less than `other`, or equal.")
gt: Binary = _compared("gt", "Greater", "Where `x` is greater than `other`.")
ge: Binary = _compared("ge", "GreaterOrEqual", "Where `x` is greater than `other`, or equal.")


def ne(x: Operand, other: Operand) -> Tensor:
    """Where two differ.

    Args:
        x: a tensor or a number.
        other: likewise; broadcast with `x`.

    Returns:
        Bools.
    """
    return logical_not(eq(x, other))


def logical_not(x: Tensor) -> Tensor:
    """Where elements are 0.

    Args:
        x: numbers of any type and shape.

    Returns:
        Bools.
    """
    return wrap(apply("Not", converted(EMITTER, x.value, BOOL)))


def _logical(name: str, op: str, doc: str) -> Callable[[Tensor, Tensor], Tensor]:
    def act(x: Tensor, other: Tensor) -> Tensor:
        return pair(op, x, other, BOOL)

    return _named(act, name, _of(doc, _TWO.format("numbers or bools, of which 0 is false"), "Bools."))


logical_and: Callable[[Tensor, Tensor], Tensor] = _logical("logical_and", "And", "Where neither is 0.")
logical_or: Callable[[Tensor, Tensor], Tensor] = _logical(
    "logical_or", "Or", "Where one, or both, are not 0."
)
logical_xor: Callable[[Tensor, Tensor], Tensor] = _logical(
    "logical_xor", "Xor", "Where one of them is 0, and one not."
)


def _bits(name: str, op: str, of_bools: str) -> Binary:
    def act(x: Operand, other: Operand) -> Tensor:
        kind = result_type(x, other)
        if kind.is_inexact:
            raise RuntimeError(f"{op} is not defined for {kind.numpy_name}")
        return pair(of_bools if kind == BOOL else op, x, other, kind)

    doc = f"{of_bools} of the bits of integers, or of bools."
    return _named(act, name, _of(doc, _TWO.format("integers or bools: a tensor or a number")))


bitwise_and: Binary = _bits("bitwise_and", "BitwiseAnd", "And")
bitwise_or: Binary = _bits("bitwise_or", "BitwiseOr", "Or")
bitwise_xor: Binary = _bits("bitwise_xor", "BitwiseXor", "Xor")


def bitwise_not(x: Tensor) -> Tensor:
    """Every bit the other way round; bools likewise.

    Args:
        x: integers or bools, of any shape.
    """
    return logical_not(x) if x.dtype == BOOL else wrap(apply("BitwiseNot", x.value))


def _unary(name: str, op: str, doc: str, result: str = "", *, keeps_type: bool = False) -> Unary:
    def act(x: Tensor) -> Tensor:
        return wrap(apply(op, x.value if keeps_type else floating(x)))

    operand = "real numbers, of any shape" if keeps_type else _WHOLE
    return _named(act, name, _of(doc, f"x: {operand}.", result))


def abs(x: Tensor) -> Tensor:
    """|x|; of complex numbers their magnitude.

    Args:
        x: numbers of any type and shape.

    Returns:
        The same shape and type; floats of complex numbers.
    """
    return of_complex("Magnitude", x) if x.dtype.is_complex else wrap(apply("Abs", x.value))


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; of complex numbers x / |x|.

    Args:
        x: numbers of any type and shape.

    Returns:
        The same shape and type.
    """
    return of_complex("Sgn", x) if x.dtype.is_complex else wrap(apply("Sign", x.value))


def neg(x: Tensor) -> Tensor:
    """-x; of unsigned integers modulo 2 to the power of their bits.

    Args:
        x: numbers of any shape.

    Raises:
        RuntimeError: they are bools.
    """
    if x.dtype == BOOL:
        raise RuntimeError("bools have no sign: use logical_not")
    return sub(sub(x, x), x) if x.dtype.kind == "u" else wrap(apply("Neg", x.value))


relu: Unary = _unary("relu", "Relu", "The larger of 0 and each element.", keeps_type=True)
exp: Unary = _unary("exp", "Exp", "e to the power of each element.")
log: Unary = _unary("log", "Log", "The natural logarithm; NaN of negative numbers.")
sqrt: Unary = _unary("sqrt", "Sqrt", "The square root; NaN of negative numbers.")
reciprocal: Unary = _unary("reciprocal", "Reciprocal", "1 / x.")
sin: Unary = _unary("sin", "Sin", "The sine of angles in radians.")
cos: Unary = _unary("cos", "Cos", "The cosine of angles in radians.")
tan: Unary = _unary("tan", "Tan", "The tangent of angles in radians.")
asin: Unary = _unary("asin", "Asin", "The angle, in radians, of a sine.")
acos: Unary = _unary("acos", "Acos", "The angle, in radians, of a cosine.")
atan: Unary = _unary("atan", "Atan", "The angle, in radians, of a tangent.")
sinh: Unary = _unary("sinh", "Sinh", "The hyperbolic sine.")
cosh: Unary = _unary("cosh", "Cosh", "The hyperbolic cosine.")
tanh: Unary = _unary("tanh", "Tanh", "The hyperbolic tangent.")
asinh: Unary = _unary("asinh", "Asinh", "The inverse of the hyperbolic sine.")
acosh: Unary = _unary("acosh", "Acosh", "The inverse of the hyperbolic cosine.")
atanh: Unary = _unary("atanh", "Atanh", "The inverse of the hyperbolic tangent.")
erf: Unary = _unary("erf", "Erf", "The error function: twice the integral of exp(-t²) from 0 to x, over √π.")


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)).

    Args:
        x: numbers; integers become floats of the default type.
    """
    if x.dtype.is_complex:
        return reciprocal(add(exp(neg(x)), 1))
    return wrap(apply("Sigmoid", floating(x)))


isnan: Unary = _unary("isnan", "IsNaN", "Where elements are NaN.", "Bools.")
isinf: Unary = _unary("isinf", "IsInf", "Where elements are infinite, of either sign.", "Bools.")


def _rounded(name: str, op: str, doc: str) -> Unary:
    def act(x: Tensor) -> Tensor:
        if x.dtype.is_complex:
            raise RuntimeError(f"{op} is not defined for {x.dtype.numpy_name}")
        return wrap(apply(op, x.value)) if x.dtype.is_float else x.clone()

    return _named(act, name, _of(doc, "x: real numbers of any shape."))


floor: Unary = _rounded(
    "floor", "Floor", "The greatest whole number that is not above; integers as they are."
)
ceil: Unary = _rounded("ceil", "Ceil", "The least whole number that is not below; integers as they are.")


def round(x: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest whole number, the even one of two; or with so many decimals.

    Args:
        x: real numbers; integers come back as they are. Of complex ones both parts are rounded.
        decimals: how many; below 0: to tens, hundreds and so on.
    """
    if x.dtype.is_complex and not decimals:
        return of_complex("RoundParts", x)
    if not x.dtype.is_float:
        return x.clone()
    if not decimals:
        return wrap(apply("Round", x.value))
    scale = 10.0 ** max(decimals, -decimals)
    if decimals > 0:
        return div(wrap(apply("Round", mul(x, scale).value)), scale)
    return mul(wrap(apply("Round", div(x, scale).value)), scale)


def _written(operation: str, doc: str) -> Unary:
    """A function that ONNX has no operator for."""

    def act(x: Tensor) -> Tensor:
        value = floating(x)
        form = scalar.unary(operation, scalar.argument(0, value.type.dtype))
        return wrap(expression(EMITTER, form, [value], value.type.dtype))

    return _named(act, operation, _of(doc, f"x: {_WHOLE}."))


expm1: Unary = _written("expm1", "exp(x) - 1, exact near 0.")
log1p: Unary = _written("log1p", "log(1 + x), exact near 0.")


def trunc(x: Tensor) -> Tensor:
    """Whole numbers: what is behind the point is cut off, toward 0.

    Args:
        x: real numbers of any shape; integers come back as they are.
    """
    return floor(x) if not x.dtype.is_float else where(lt(x, 0), ceil(x), floor(x))


def rsqrt(x: Tensor) -> Tensor:
    """1 / √x.

    Args:
        x: numbers of any shape; integers become floats of the default type.
    """
    return reciprocal(sqrt(x))


def _scaled(x: Tensor, factor: float) -> Tensor:
    """The product with a real number: of complex ones each part's, for infinity times 0i would be NaN."""
    if not x.dtype.is_complex:
        return mul(x, factor)
    parts = [mul(of_complex(part, x), factor).value for part in ("Real", "Imag")]
    return wrap(apply("Complex", *parts, domain="vkml"))


def log2(x: Tensor) -> Tensor:
    """The logarithm to the base of 2.

    Args:
        x: numbers of any shape; integers become floats of the default type.
    """
    return _scaled(log(x), 1 / math.log(2))


def log10(x: Tensor) -> Tensor:
    """The logarithm to the base of 10.

    Args:
        x: numbers of any shape; integers become floats of the default type.
    """
    return _scaled(log(x), 1 / math.log(10))


def isfinite(x: Tensor) -> Tensor:
    """Where elements are neither infinite nor NaN.

    Args:
        x: real numbers of any shape.

    Returns:
        Bools.
    """
    return logical_not(logical_or(isnan(x), isinf(x)))
