"""Functions of elements that ONNX has no operator for, written as scalar forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from vkml.ir import DType, dtypes, scalar
from vkml.ir.gradients import expression
from vkml.ir.scalar import Scalar, absolute, compare, constant, maximum, minimum, unary, view, where
from vkml.tensors import elementwise as basic
from vkml.tensors.complex import of_parts
from vkml.tensors.elementwise import abs as abs_of
from vkml.tensors.elementwise import add, div, eq, isnan, logical_and, logical_or, mul, sub
from vkml.tensors.operands import BOOL, Operand, check_broadcast, floating, value_as, wrap
from vkml.tensors.promotion import category, get_default_dtype, result_type
from vkml.tensors.type_information import finfo
from vkml.tracing import EMITTER, Traced

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

Unary: TypeAlias = "Callable[[Tensor], Tensor]"
Binary: TypeAlias = "Callable[[Operand, Operand], Tensor]"
_AS_FLOATS = "integers become floats of the default type"


def of_one(name: str, form: Callable[[Scalar], Scalar], doc: str) -> Unary:
    def act(x: Tensor) -> Tensor:
        value = floating(x)
        made = form(scalar.argument(0, value.type.dtype))
        return wrap(expression(EMITTER, made, [value], value.type.dtype))

    act.__name__ = name
    act.__doc__ = f"{doc}\n\nArgs:\n    x: real numbers of any shape; {_AS_FLOATS}.\n"
    return act


def _of_values(form: Scalar, values: list[Traced], dtype: DType) -> Tensor:
    return wrap(expression(EMITTER, form, values, dtype))


def _of_two(
    name: str,
    form: Callable[[Scalar, Scalar], Scalar],
    doc: str,
    *,
    of: str = "floats",
    to: DType | None = None,
) -> Binary:
    """A function of two operands of one type.

    Args:
        name: of the function.
        form: of their elements.
        doc: its docstring.
        of: "floats" converts integers, "integers" refuses others, "numbers" takes any.
        to: the type of the result; the operands' where left out.
    """

    def act(x: Operand, other: Operand) -> Tensor:
        kind = result_type(x, other)
        if kind.is_complex:
            raise RuntimeError(f"{name} is not defined for {kind.numpy_name}")
        if of == "integers" and not kind.is_integer:
            raise RuntimeError(f"{name} is not defined for {kind.numpy_name}")
        if of == "floats" and not kind.is_float:
            kind = get_default_dtype()
        values = [value_as(operand, kind) for operand in (x, other)]
        check_broadcast(values[0].dims, values[1].dims)
        made = form(scalar.argument(0, kind), scalar.argument(1, kind))
        return _of_values(made, values, to or kind)

    kinds = {
        "floats": f"real numbers: a tensor or a number; {_AS_FLOATS}",
        "integers": "integers: a tensor or a number",
        "numbers": "real numbers: a tensor or a number",
    }
    act.__name__ = name
    act.__doc__ = f"{doc}\n\nArgs:\n    x: {kinds[of]}.\n    other: likewise; broadcast with `x`.\n"
    return act


# -- forms -----------------------------------------------------------------------------------------------


def _bits(x: Scalar) -> Scalar:
    return view(x, dtypes.INT64 if x.dtype == dtypes.FLOAT64 else dtypes.INT32)


def _is_negative(x: Scalar) -> Scalar:
    """Of the sign's bit: true of -0."""
    if x.dtype.is_float:
        return _bits(x) < 0
    return constant(False, BOOL) if x.dtype.kind in "bu" else x < 0


def _is_equal(x: Scalar, y: Scalar | float) -> Scalar:
    return compare("equal", x, y)


def _signed(size: Scalar | float, sign: Scalar) -> Scalar:
    return where(_is_negative(sign), constant(-size, sign.dtype) if isinstance(size, float) else -size, size)


def _atan2(y: Scalar, x: Scalar) -> Scalar:
    """By the quotient that is at most 1, so that its derivative is finite wherever the function has one."""
    are_infinite = _is_equal(absolute(x), math.inf) & _is_equal(absolute(y), math.inf)
    diagonal = where(_is_negative(x), 3 * math.pi / 4, constant(math.pi / 4, x.dtype))
    are_zero = _is_equal(x, 0.0) & _is_equal(y, 0.0)
    turned = where(_is_negative(x), _signed(math.pi, y), constant(0.0, x.dtype))
    flat = where(_is_negative(x), unary("arctan", y / x) + turned, unary("arctan", y / x))
    steep = _signed(math.pi / 2, y) - unary("arctan", x / y)
    found = where(absolute(y) > absolute(x), steep, flat)
    found = where(are_zero, where(_is_negative(x), turned, y), found)
    return where(are_infinite, _signed(diagonal, y), found)


def _hypot(x: Scalar, y: Scalar) -> Scalar:
    long, short = maximum(absolute(x), absolute(y)), minimum(absolute(x), absolute(y))
    ratio = short / long
    found = long * unary("sqrt", ratio * ratio + 1)
    is_infinite = _is_equal(absolute(x), math.inf) | _is_equal(absolute(y), math.inf)
    return where(is_infinite, math.inf, where(_is_equal(long, 0.0), 0.0 * long, found))


def _logaddexp(x: Scalar, y: Scalar) -> Scalar:
    apart = where(_is_equal(x, y), 0.0, absolute(x - y))
    return maximum(x, y) + unary("log1p", unary("exp", -apart))


def _sinc(x: Scalar) -> Scalar:
    turned = x * math.pi
    return where(_is_equal(x, 0.0), 1.0, unary("sin", turned) / turned)


def _xlogy(x: Scalar, y: Scalar) -> Scalar:
    is_zero = _is_equal(x, 0.0) & ~scalar.test("isnan", y)
    return where(is_zero, 0.0, x * unary("log", y))


def _nextafter(x: Scalar, y: Scalar) -> Scalar:
    bits = _bits(x)
    least = view(constant(1, bits.dtype), x.dtype)
    step = where((y > x) ^ (x < 0), constant(1, bits.dtype), -1)
    found = where(_is_equal(x, 0.0), _signed(least, y), view(bits + step, x.dtype))
    is_nan = scalar.test("isnan", x) | scalar.test("isnan", y)
    return where(is_nan, x + y, where(_is_equal(x, y), y, found))


def _remaining(pick: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Scalar, Scalar], Scalar]:
    """Of two numbers, one of which may be NaN."""

    def form(x: Scalar, other: Scalar) -> Scalar:
        if not x.dtype.is_float:
            return pick(x, other)
        return where(scalar.test("isnan", x), other, where(scalar.test("isnan", other), x, pick(x, other)))

    return form


_ERFINV_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_ERFINV_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
               0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def _erfinv(x: Scalar) -> Scalar:
    """M. Giles, "Approximating the erfinv function", 2010; then two steps of Newton's method."""
    w = -unary("log", (1 - x) * (1 + x))

    def polynomial(at: Scalar, coefficients: tuple[float, ...]) -> Scalar:
        found = constant(coefficients[0], x.dtype)
        for coefficient in coefficients[1:]:
            found = found * at + coefficient
        return found

    near, far = polynomial(w - 2.5, _ERFINV_NEAR), polynomial(unary("sqrt", w) - 3, _ERFINV_FAR)
    found = where(w < 5, near, far) * x
    if x.dtype == dtypes.FLOAT64:
        for _ in range(2):
            slope = unary("exp", -found * found) * (2 / math.sqrt(math.pi))
            found = found - (unary("erf", found) - x) / slope
    return where(_is_equal(absolute(x), 1.0), x * math.inf, found)


# -- functions ---------------------------------------------------------------------------------------------

exp2: Unary = of_one("exp2", lambda x: scalar.power(constant(2, x.dtype), x), "2ˣ.")
sinc: Unary = of_one("sinc", _sinc, "sin πx / πx, 1 at 0.")
deg2rad: Unary = of_one("deg2rad", lambda x: x * (math.pi / 180), "Degrees as radians.")
rad2deg: Unary = of_one("rad2deg", lambda x: x * (180 / math.pi), "Radians as degrees.")
frac: Unary = of_one("frac", lambda x: x - unary("trunc", x), "What is behind the point, with the sign.")
erfinv: Unary = of_one("erfinv", _erfinv, "The inverse of erf.")
atan2: Binary = _of_two(
    "atan2", _atan2, "The angle, from -π to π, of the point whose height is `x` and whose breadth is `other`."
)
hypot: Binary = _of_two("hypot", _hypot, "√(x² + y²), without overflow between.")
logaddexp: Binary = _of_two("logaddexp", _logaddexp, "log(eˣ + eʸ), without overflow between.")
copysign: Binary = _of_two("copysign", lambda x, y: _signed(absolute(x), y), "|x| with the sign of y.")
xlogy: Binary = _of_two("xlogy", _xlogy, "x log y; 0 where x is.")
nextafter: Binary = _of_two("nextafter", _nextafter, "The next number of the type from x towards y.")
fmax: Binary = _of_two("fmax", _remaining(maximum), "The greater; the other where one is NaN.", of="numbers")
fmin: Binary = _of_two("fmin", _remaining(minimum), "The smaller; the other where one is NaN.", of="numbers")
bitwise_left_shift: Binary = _of_two(
    "bitwise_left_shift", lambda x, y: scalar.binary("left_shift", x, y), "x · 2ʸ of integers.", of="integers"
)
bitwise_right_shift: Binary = _of_two(
    "bitwise_right_shift",
    lambda x, y: scalar.binary("right_shift", x, y),
    "x / 2ʸ of integers, rounded down.",
    of="integers",
)


def logaddexp2(x: Operand, other: Operand) -> Tensor:
    """log2(2ˣ + 2ʸ).

    Args:
        x: a tensor or a number; integers become floats of the default type.
        other: likewise; broadcast with `x`.
    """
    kind = result_type(x, other)
    kind = kind if kind.is_float else get_default_dtype()
    a, b = (mul(wrap(value_as(one, kind)), math.log(2)) for one in (x, other))
    return div(logaddexp(a, b), math.log(2))


def signbit(x: Tensor) -> Tensor:
    """Where a number is negative, -0 among them.

    Args:
        x: real numbers of any shape.

    Returns:
        Bools.
    """
    if x.dtype == BOOL or x.dtype.kind == "u":
        return basic.ne(x, x)
    return _of_values(_is_negative(scalar.argument(0, x.dtype)), [x.value], BOOL)


def positive(x: Tensor) -> Tensor:
    """The numbers themselves.

    Args:
        x: numbers of any shape.

    Raises:
        RuntimeError: they are bools.
    """
    if x.dtype == BOOL:
        raise RuntimeError("bools have no sign")
    return x


def isposinf(x: Tensor) -> Tensor:
    """Where elements are ∞.

    Args:
        x: real numbers of any shape.

    Returns:
        Bools; false of all integers.
    """
    return eq(x, math.inf) if x.dtype.is_float else basic.ne(x, x)


def isneginf(x: Tensor) -> Tensor:
    """Where elements are -∞.

    Args:
        x: real numbers of any shape.

    Returns:
        Bools; false of all integers.
    """
    return eq(x, -math.inf) if x.dtype.is_float else basic.ne(x, x)


def nan_to_num(
    x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Numbers in the places of NaN and of infinities, by default 0 and the type's ends.

    Args:
        x: numbers of any shape; integers come back as they are, of complex ones each part counts.
        nan: in the place of NaN.
        posinf: in the place of ∞; None: the greatest number of the type.
        neginf: in the place of -∞; None: the least number of the type.
    """
    if x.dtype.is_complex:
        return of_parts(lambda part: nan_to_num(part, nan, posinf, neginf), x)
    if not x.dtype.is_float:
        return x.clone()
    most = float(finfo(x.dtype).max)
    found = basic.where(isnan(x), nan, x)
    found = basic.where(eq(found, math.inf), most if posinf is None else posinf, found)
    return basic.where(eq(found, -math.inf), -most if neginf is None else neginf, found)


def isclose(
    x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Where |x - y| ≤ atol + rtol |y|, or both are the same infinity, or, where asked for, NaN.

    Args:
        x: numbers.
        other: of the same type; broadcast with `x`.
        rtol: the relative tolerance.
        atol: the absolute tolerance.
        equal_nan: whether NaN is close to NaN.

    Returns:
        Bools.

    Raises:
        RuntimeError: the types differ.
    """
    if x.dtype != other.dtype:
        raise RuntimeError(f"isclose of {x.dtype.numpy_name} and {other.dtype.numpy_name}")
    same = eq(x, other)
    if not x.dtype.is_float:
        if not rtol and not atol:
            return same
        x, other = x.to(dtypes.FLOAT64), other.to(dtypes.FLOAT64)
    apart = abs_of(sub(x, other))
    near = basic.le(apart, add(mul(abs_of(other), rtol), atol))
    found = logical_or(same, logical_and(near, basic.isfinite(apart)))
    return logical_or(found, logical_and(isnan(x), isnan(other))) if equal_nan else found


def allclose(
    x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether `isclose` everywhere.

    Args:
        x: numbers.
        other: of the same type; broadcast with `x`.
        rtol: the relative tolerance; see `isclose`.
        atol: the absolute tolerance.
        equal_nan: whether NaN is close to NaN.

    Raises:
        RuntimeError: the types differ.
    """
    return bool(isclose(x, other, rtol, atol, equal_nan).all())


def equal(x: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and elements.

    Args:
        x: a tensor.
        other: another one.
    """
    return x.shape == other.shape and bool(eq(x, other).all())


def heaviside(x: Tensor, values: Tensor) -> Tensor:
    """0 below 0, 1 above, an element of `values` at 0.

    Args:
        x: real numbers of any shape.
        values: what stands at 0; broadcast with `x`.
    """
    return basic.where(eq(x, 0), values, basic.where(basic.gt(x, 0), 1, 0).to(x.dtype))


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), of x limited to [eps, 1 - eps] where that is given.

    Args:
        x: floats of [0, 1].
        eps: how far from 0 and 1 they are kept; None: at 0 and 1 the result is infinite.
    """
    within = x if eps is None else basic.clamp(x, eps, 1 - eps)
    return basic.log(div(within, sub(1, within)))


def addcmul(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """`x` + `value` · `tensor1` · `tensor2`.

    Args:
        x: numbers.
        tensor1: broadcast with `x`.
        tensor2: broadcast with `x`.
        value: a factor of the second summand.
    """
    return add(x, mul(tensor1, tensor2), alpha=value)


def addcdiv(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """`x` + `value` · `tensor1` / `tensor2`.

    Args:
        x: numbers.
        tensor1: broadcast with `x`.
        tensor2: broadcast with `x`.
        value: a factor of the second summand.
    """
    return add(x, div(tensor1, tensor2), alpha=value)


def float_power(x: Operand, exponent: Operand) -> Tensor:
    """`x` to the power of `exponent`, in float64.

    Args:
        x: a tensor or a number.
        exponent: likewise; broadcast with `x`.
    """
    kind = dtypes.FLOAT64
    return basic.pow(wrap(value_as(x, kind)), wrap(value_as(exponent, kind)))


def true_divide(x: Operand, other: Operand) -> Tensor:
    """The quotient, of floats.

    Args:
        x: a tensor or a number.
        other: likewise; broadcast with `x`.
    """
    return div(x, other)


def clamp_min(x: Tensor, min: Any) -> Tensor:
    """`x`, at least `min`.

    Args:
        x: integers or floats.
        min: a number, or a tensor that is broadcast with `x`.
    """
    return basic.clamp(x, min)


def clamp_max(x: Tensor, max: Any) -> Tensor:
    """`x`, at most `max`.

    Args:
        x: integers or floats.
        max: a number, or a tensor that is broadcast with `x`.
    """
    return basic.clamp(x, None, max)


def ldexp(x: Tensor, other: Operand) -> Tensor:
    """x · 2 to the power of the other.

    Args:
        x: floats.
        other: the exponents: a number, or a tensor that is broadcast with `x`.
    """
    return mul(x, basic.pow(wrap(value_as(2, get_default_dtype())), other))


def gcd(x: Operand, other: Operand) -> Tensor:
    """The greatest common divisor of integers; computed on the CPU.

    Args:
        x: a tensor of integers, or an integer.
        other: likewise; broadcast with `x`.

    Raises:
        RuntimeError: they are no integers.
    """
    return _common("gcd", x, other)


def lcm(x: Operand, other: Operand) -> Tensor:
    """The least common multiple of integers; computed on the CPU.

    Args:
        x: a tensor of integers, or an integer.
        other: likewise; broadcast with `x`.

    Raises:
        RuntimeError: they are no integers.
    """
    return _common("lcm", x, other)


def _common(function: str, x: Operand, y: Operand) -> Tensor:
    from vkml.tracing import apply

    kind = result_type(x, y)
    if not kind.is_integer:
        raise RuntimeError(f"{function} is not defined for {kind.numpy_name}")
    values = [value_as(operand, kind) for operand in (x, y)]
    check_broadcast(values[0].dims, values[1].dims)
    return wrap(apply("CommonDivisor", *values, domain="vkml", function=function))


def dist(x: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference.

    Args:
        x: numbers; integers become floats of the default type.
        other: broadcast with `x`.
        p: which norm; see `norm`.

    Returns:
        One number, without axes.
    """
    from vkml.tensors.reductions import norm

    return norm(sub(x, other), p)


def can_cast(from_: DType, to: DType) -> bool:
    """Whether numbers of a type become another's without leaving their category.

    Args:
        from_: the type that numbers have.
        to: the one that they are to have.
    """
    return category(from_) <= category(to) and not (from_.kind == "i" and to.kind == "u")


def is_floating_point(x: Tensor) -> bool:
    """Whether elements are floats.

    Args:
        x: any.
    """
    return x.dtype.is_float


def is_nonzero(x: Tensor) -> bool:
    """Whether the only element is not 0.

    Args:
        x: of one element.

    Raises:
        RuntimeError: it has more, or none.
    """
    return bool(x)


def rsub(x: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
    """`other` - `alpha` `x`.

    Args:
        x: numbers.
        other: a tensor or a number; broadcast with `x`.
        alpha: a factor of `x`.
    """
    return add(mul(x, -alpha), other)
