"""Operations on tensors, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

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


def add(x: Operand, y: Operand, *, alpha: float = 1) -> Tensor:
    """`x` + `alpha` `y`."""
    if alpha != 1:
        y = mul(y, alpha)
    kind = result_type(x, y)
    return pair("Or", x, y, BOOL) if kind == BOOL else pair("Add", x, y, kind)


def sub(x: Operand, y: Operand, *, alpha: float = 1) -> Tensor:
    """`x` - `alpha` `y`."""
    if result_type(x, y) == BOOL:
        raise RuntimeError("bools are not subtracted: use ^ or logical_not()")
    return pair("Sub", x, mul(y, alpha) if alpha != 1 else y)


def mul(x: Operand, y: Operand) -> Tensor:
    """The product, element by element."""
    kind = result_type(x, y)
    return pair("And", x, y, BOOL) if kind == BOOL else pair("Mul", x, y, kind)


def div(x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """The quotient, of floats; rounded down or toward 0 where that is asked for."""
    kind = result_type(x, y)
    if rounding_mode is None:
        return pair("Div", x, y, kind if kind.is_inexact else get_default_dtype())
    if kind.is_complex:
        raise RuntimeError("quotients of complex numbers are not rounded")
    if rounding_mode not in ("floor", "trunc"):
        raise RuntimeError(f"rounding_mode is None, 'trunc' or 'floor', not {rounding_mode!r}")
    if kind.is_float:
        quotient = pair("Div", x, y, kind)
        return floor(quotient) if rounding_mode == "floor" else trunc(quotient)
    if rounding_mode == "trunc":
        return pair("Div", x, y, kind)
    return sub(pair("Div", x, y, kind), _is_short(x, y, kind))


def _is_short(x: Operand, y: Operand, kind: DType) -> Tensor:
    """1 where a quotient that is rounded toward 0 is greater than the one rounded down."""
    rest = pair("Mod", x, y, kind, fmod=1)
    # Not by the sign of their product, which may wrap round.
    is_other = ne(pair("Less", rest, 0, kind), pair("Less", y, 0, kind))
    return logical_and(ne(rest, 0), is_other).to(kind)


def floor_divide(x: Operand, y: Operand) -> Tensor:
    """The quotient rounded down."""
    return div(x, y, rounding_mode="floor")


def remainder(x: Operand, y: Operand) -> Tensor:
    """What is left by `floor_divide`, with the sign of `y`."""
    kind = result_type(x, y)
    return sub(x, mul(floor_divide(x, y), y)) if kind.is_float else pair("Mod", x, y, kind, fmod=0)


def fmod(x: Operand, y: Operand) -> Tensor:
    """What is left by the quotient rounded toward 0, with the sign of `x`."""
    return pair("Mod", x, y, fmod=1)


def pow(x: Operand, y: Operand) -> Tensor:
    """`x` to the power of `y`."""
    kind = result_type(x, y)
    if isinstance(y, core.Tensor):
        return pair("Pow", x, y, kind)
    if kind.is_integer and not isinstance(y, complex) and y < 0:
        raise RuntimeError("integers to negative powers of integers are no integers")
    # Part of the structure: short powers are products.
    return wrap(apply("Pow", value_as(x, kind), constant(y, kind)))


def square(x: Tensor) -> Tensor:
    """x²."""
    return mul(x, x)


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """The greater of two, element by element; NaN where either is."""
    return pair("Max", x, y)


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """The smaller of two, element by element; NaN where either is."""
    return pair("Min", x, y)


def clamp(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """`x` limited to [min, max]."""
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


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """`x` where the condition is true, `y` elsewhere."""
    kind = result_type(x, y)
    return wrap(
        apply("Where", converted(EMITTER, condition.value, BOOL), value_as(x, kind), value_as(y, kind))
    )


def lerp(x: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """`x` + `weight` (`end` - `x`)."""
    return add(x, mul(sub(end, x), weight))


def _compared(op: str) -> Callable[[Operand, Operand], Tensor]:
    def compare(x: Operand, y: Operand) -> Tensor:
        kind = result_type(x, y)
        if op != "Equal":
            if kind.is_complex:
                raise RuntimeError(f"{op}: complex numbers have no order")
            if kind == BOOL:
                kind = dtypes.INT32
        return pair(op, x, y, kind)

    compare.__doc__ = f"{op}, element by element: bools."
    return compare


eq: Binary = _compared("Equal")
lt: Binary = _compared("Less")
le: Binary = _compared("LessOrEqual")
gt: Binary = _compared("Greater")
ge: Binary = _compared("GreaterOrEqual")


def ne(x: Operand, y: Operand) -> Tensor:
    """Where two differ."""
    return logical_not(eq(x, y))


def logical_not(x: Tensor) -> Tensor:
    """Where elements are 0."""
    return wrap(apply("Not", converted(EMITTER, x.value, BOOL)))


def _logical(op: str) -> Callable[[Tensor, Tensor], Tensor]:
    def act(x: Tensor, y: Tensor) -> Tensor:
        return pair(op, x, y, BOOL)

    act.__doc__ = f"{op} of what is not 0."
    return act


logical_and: Callable[[Tensor, Tensor], Tensor] = _logical("And")
logical_or: Callable[[Tensor, Tensor], Tensor] = _logical("Or")
logical_xor: Callable[[Tensor, Tensor], Tensor] = _logical("Xor")


def _bits(op: str, of_bools: str) -> Callable[[Operand, Operand], Tensor]:
    def act(x: Operand, y: Operand) -> Tensor:
        kind = result_type(x, y)
        if kind.is_inexact:
            raise RuntimeError(f"{op} is not defined for {kind.numpy_name}")
        return pair(of_bools if kind == BOOL else op, x, y, kind)

    act.__doc__ = f"{op} of integers; logical of bools."
    return act


bitwise_and: Binary = _bits("BitwiseAnd", "And")
bitwise_or: Binary = _bits("BitwiseOr", "Or")
bitwise_xor: Binary = _bits("BitwiseXor", "Xor")


def bitwise_not(x: Tensor) -> Tensor:
    """Every bit the other way round; bools likewise."""
    return logical_not(x) if x.dtype == BOOL else wrap(apply("BitwiseNot", x.value))


def _unary(op: str, *, keeps_type: bool = False, **attributes: Any) -> Callable[[Tensor], Tensor]:
    def act(x: Tensor) -> Tensor:
        return wrap(apply(op, x.value if keeps_type else floating(x), **attributes))

    act.__doc__ = f"ONNX's {op}, element by element."
    return act


def abs(x: Tensor) -> Tensor:
    """|x|; of complex numbers their magnitude."""
    return of_complex("Magnitude", x) if x.dtype.is_complex else wrap(apply("Abs", x.value))


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; of complex numbers x / |x|."""
    return of_complex("Sgn", x) if x.dtype.is_complex else wrap(apply("Sign", x.value))


def neg(x: Tensor) -> Tensor:
    """-x; of unsigned integers modulo 2 to the power of their bits."""
    if x.dtype == BOOL:
        raise RuntimeError("bools have no sign: use logical_not")
    return sub(sub(x, x), x) if x.dtype.kind == "u" else wrap(apply("Neg", x.value))


relu: Unary = _unary("Relu", keeps_type=True)
exp: Unary = _unary("Exp")
log: Unary = _unary("Log")
sqrt: Unary = _unary("Sqrt")
reciprocal: Unary = _unary("Reciprocal")
sin: Unary = _unary("Sin")
cos: Unary = _unary("Cos")
tan: Unary = _unary("Tan")
asin: Unary = _unary("Asin")
acos: Unary = _unary("Acos")
atan: Unary = _unary("Atan")
sinh: Unary = _unary("Sinh")
cosh: Unary = _unary("Cosh")
tanh: Unary = _unary("Tanh")
asinh: Unary = _unary("Asinh")
acosh: Unary = _unary("Acosh")
atanh: Unary = _unary("Atanh")
erf: Unary = _unary("Erf")
sigmoid: Unary = _unary("Sigmoid")
isnan: Unary = _unary("IsNaN")
isinf: Unary = _unary("IsInf")


def _rounded(op: str) -> Unary:
    def act(x: Tensor) -> Tensor:
        if x.dtype.is_complex:
            raise RuntimeError(f"{op} is not defined for {x.dtype.numpy_name}")
        return wrap(apply(op, x.value)) if x.dtype.is_float else x.clone()

    act.__doc__ = f"ONNX's {op}, element by element; integers stay as they are."
    return act


floor: Unary = _rounded("Floor")
ceil: Unary = _rounded("Ceil")


def round(x: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest whole number, the even one of two; or with so many decimals."""
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


def _written(operation: str) -> Callable[[Tensor], Tensor]:
    """A function that ONNX has no operator for."""

    def act(x: Tensor) -> Tensor:
        value = floating(x)
        form = scalar.unary(operation, scalar.argument(0, value.type.dtype))
        return wrap(expression(EMITTER, form, [value], value.type.dtype))

    act.__doc__ = f"{operation}, element by element."
    return act


expm1: Unary = _written("expm1")
log1p: Unary = _written("log1p")


def trunc(x: Tensor) -> Tensor:
    """Without the fraction."""
    return floor(x) if not x.dtype.is_float else where(lt(x, 0), ceil(x), floor(x))


def rsqrt(x: Tensor) -> Tensor:
    """1 / √x."""
    return reciprocal(sqrt(x))


def _scaled(x: Tensor, factor: float) -> Tensor:
    """The product with a real number: of complex ones each part's, for infinity times 0i would be NaN."""
    if not x.dtype.is_complex:
        return mul(x, factor)
    parts = [mul(of_complex(part, x), factor).value for part in ("Real", "Imag")]
    return wrap(apply("Complex", *parts, domain="vkml"))


def log2(x: Tensor) -> Tensor:
    """The logarithm to the base of 2."""
    return _scaled(log(x), 1 / math.log(2))


def log10(x: Tensor) -> Tensor:
    """The logarithm to the base of 10."""
    return _scaled(log(x), 1 / math.log(10))


def isfinite(x: Tensor) -> Tensor:
    """Where elements are neither infinite nor NaN."""
    return logical_not(logical_or(isnan(x), isinf(x)))
