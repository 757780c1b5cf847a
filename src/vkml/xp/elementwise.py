"""Functions of the array API, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkml.ir import DType, dtypes, scalar
from vkml.ir.gradients import expression
from vkml.ir.scalar import Scalar
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.operands import check_broadcast
from vkml.tracing import EMITTER
from vkml.xp.array import Array, alike, as_array

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "clip",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "divide",
    "equal",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "pow",
    "real",
    "reciprocal",
    "remainder",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "trunc",
]  # fmt: skip
_SHORT = {
    dtypes.INT8: dtypes.INT32, dtypes.INT16: dtypes.INT32, dtypes.UINT8: dtypes.INT32,
    dtypes.UINT16: dtypes.INT32, dtypes.UINT32: dtypes.INT64, dtypes.UINT64: dtypes.INT64,
}  # fmt: skip
"""In which what is written for int32 and int64 is computed: integers wrap round, so low bits are right."""


def _require(name: str, x: Tensor, kinds: str) -> None:
    """Raises a TypeError where elements are not of kinds: b, i, u, f, c."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} takes arrays, not {type(x).__name__}")
    if x.dtype.kind not in kinds:
        raise TypeError(f"{name} is not defined for {x.dtype.numpy_name}")


_DOCUMENTED = """`{name}` of the Python array API standard.

Args:
    {operands}

Raises:
    TypeError: elements are of other types.
"""


def _named(kinds: str) -> str:
    """What types of some kinds are called together."""
    if set(kinds) >= set("iufc"):
        return "bools or numbers" if "b" in kinds else "numbers"
    names = {"b": "bools", "i": "integers", "f": "floats", "c": "complex numbers"}
    return " or ".join(name for kind, name in names.items() if kind in kinds)


def _one(name: str, function: Callable[[Tensor], Tensor], kinds: str = "fc", *, keeps: str = "") -> Any:
    """A function of one array.

    Args:
        name: the standard's.
        function: of tensors.
        kinds: of elements that it takes.
        keeps: kinds of elements that it leaves as they are.
    """

    def act(x: Any, /) -> Array:
        _require(name, x, kinds + keeps)
        return as_array(x.clone() if x.dtype.kind in keeps else function(x))

    act.__name__ = name
    act.__doc__ = _DOCUMENTED.format(name=name, operands=f"x: {_named(kinds + keeps)} of any shape.")
    return act


def _two(
    name: str,
    function: Callable[[Any, Any], Tensor],
    kinds: str,
    *,
    wide: bool = False,
    of_bools: DType | None = None,
) -> Any:
    """A function of two arrays, or of one and a number, of a common type.

    Args:
        name: the standard's.
        function: of two tensors of one type.
        kinds: of elements that it takes.
        wide: whether integers are computed as int32 or int64 and converted back.
        of_bools: the type in which bools are computed, where they are not as they come.
    """

    def act(x1: Any, x2: Any, /) -> Array:
        a, b = alike(x1, x2)
        _require(name, a, kinds)
        kind = a.dtype
        inner = _SHORT.get(kind) if wide else of_bools if kind == dtypes.BOOL else None
        if inner is None:
            return as_array(function(a, b))
        found = function(a.to(inner), b.to(inner))
        return as_array(found.to(kind) if wide else found)

    act.__name__ = name
    operands = f"x1: an array of {_named(kinds)}, or a number.\n    x2: likewise; broadcast with `x1`."
    act.__doc__ = _DOCUMENTED.format(name=name, operands=operands)
    return act


def _is_infinite_or_nan(x: Scalar) -> Scalar:
    return scalar.test("isnan", x) | scalar.test("isposinf", x) | scalar.test("isneginf", x)


def _with_sign(x: Scalar, sign: Scalar) -> Scalar:
    """x, and where it is 0 with the sign of another."""
    is_below = scalar.view(sign, dtypes.INT64 if sign.dtype == dtypes.FLOAT64 else dtypes.INT32) < 0
    zero = scalar.where(is_below, scalar.constant(-0.0, x.dtype), 0.0)
    return scalar.where(scalar.compare("equal", x, 0.0), zero, x)


def _remainder_form(x: Scalar, y: Scalar) -> Scalar:
    """With the sign of the divisor, also where it is 0."""
    rest = scalar.binary("fmod", x, y)
    is_other = (rest < 0.0) ^ (y < 0.0)
    is_moved = is_other & ~scalar.compare("equal", rest, 0.0)
    return _with_sign(scalar.where(is_moved, rest + y, rest), y)


def _floor_divided_form(x: Scalar, y: Scalar) -> Scalar:
    """As Python's: by the remainder, so that no quotient is rounded up to the next whole number."""
    exact, rest = x / y, _remainder_form(x, y)
    whole = x - rest
    # Which may be too large a number, though its quotient is none.
    quotient = scalar.where(_is_infinite_or_nan(whole), exact - rest / y, whole / y)
    quotient = scalar.unary("rint", quotient)
    plain = _is_infinite_or_nan(exact) | _is_infinite_or_nan(y)
    return scalar.where(plain, scalar.unary("floor", exact), _with_sign(quotient, exact))


def _of_floats(
    form: Callable[[Scalar, Scalar], Scalar], of_integers: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of two tensors of one type: of floats by a form, one node for all of its steps."""

    def act(x: Tensor, y: Tensor) -> Tensor:
        if not x.dtype.is_float:
            return of_integers(x, y)
        check_broadcast(x.shape, y.shape)
        made = form(scalar.argument(0, x.dtype), scalar.argument(1, x.dtype))
        return Tensor(expression(EMITTER, made, [x.value, y.value], x.dtype))

    return act


abs = _one("abs", op.abs, "ifc", keeps="u")
acos = _one("acos", op.acos)
acosh = _one("acosh", op.acosh)
add = _two("add", op.add, "iufc")
asin = _one("asin", op.asin)
asinh = _one("asinh", op.asinh)
atan = _one("atan", op.atan)
atan2 = _two("atan2", op.atan2, "f")
atanh = _one("atanh", op.atanh)
bitwise_and = _two("bitwise_and", op.bitwise_and, "biu")
bitwise_left_shift = _two("bitwise_left_shift", op.bitwise_left_shift, "iu")
bitwise_invert = _one("bitwise_invert", op.bitwise_not, "biu")
bitwise_or = _two("bitwise_or", op.bitwise_or, "biu")
bitwise_right_shift = _two("bitwise_right_shift", op.bitwise_right_shift, "iu")
bitwise_xor = _two("bitwise_xor", op.bitwise_xor, "biu")
ceil = _one("ceil", op.ceil, "f", keeps="iu")
conj = _one("conj", op.conj, "c", keeps="iuf")
copysign = _two("copysign", op.copysign, "f")
cos = _one("cos", op.cos)
cosh = _one("cosh", op.cosh)
divide = _two("divide", op.div, "fc")
equal = _two("equal", op.eq, "biufc")
exp = _one("exp", op.exp)
expm1 = _one("expm1", op.expm1)
floor = _one("floor", op.floor, "f", keeps="iu")
floor_divide = _two("floor_divide", _of_floats(_floor_divided_form, op.floor_divide), "iuf")
greater = _two("greater", op.gt, "iuf")
greater_equal = _two("greater_equal", op.ge, "iuf")
hypot = _two("hypot", op.hypot, "f")
imag = _one("imag", op.imag, "c")
isfinite = _one("isfinite", lambda x: op.isfinite(x) if x.dtype.is_inexact else op.eq(x, x), "biufc")
isinf = _one("isinf", lambda x: op.isinf(x) if x.dtype.is_inexact else op.ne(x, x), "biufc")
isnan = _one("isnan", lambda x: op.isnan(x) if x.dtype.is_inexact else op.ne(x, x), "biufc")
less = _two("less", op.lt, "iuf")
less_equal = _two("less_equal", op.le, "iuf")
log = _one("log", op.log)
log1p = _one("log1p", op.log1p)
log2 = _one("log2", op.log2)
log10 = _one("log10", op.log10)
logaddexp = _two("logaddexp", op.logaddexp, "f")
logical_and = _two("logical_and", op.logical_and, "b")
logical_not = _one("logical_not", op.logical_not, "b")
logical_or = _two("logical_or", op.logical_or, "b")
logical_xor = _two("logical_xor", op.logical_xor, "b")
maximum = _two("maximum", op.maximum, "iuf")
minimum = _two("minimum", op.minimum, "iuf")
multiply = _two("multiply", op.mul, "iufc")
negative = _one("negative", op.neg, "iufc")
nextafter = _two("nextafter", op.nextafter, "f")
not_equal = _two("not_equal", op.ne, "biufc")
positive = _one("positive", op.positive, keeps="iufc")
pow = _two("pow", op.pow, "iufc", wide=True)
real = _one("real", op.real, "c", keeps="iuf")
reciprocal = _one("reciprocal", op.reciprocal)
remainder = _two("remainder", _of_floats(_remainder_form, op.remainder), "iuf")
round = _one("round", op.round, "fc", keeps="iu")
sign = _one("sign", op.sign, "iufc")
signbit = _one("signbit", op.signbit, "f")
sin = _one("sin", op.sin)
sinh = _one("sinh", op.sinh)
square = _one("square", op.square, "iufc")
sqrt = _one("sqrt", op.sqrt)
subtract = _two("subtract", op.sub, "iufc")
tan = _one("tan", op.tan)
tanh = _one("tanh", op.tanh)
trunc = _one("trunc", op.trunc, "f", keeps="iu")


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """`clip` of the Python array API standard; the result has the type of `x`.

    Args:
        x: integers or floats of any shape.
        min: the lower bound: a number, or an array that is broadcast with `x`.
        max: the upper bound, likewise.

    Raises:
        TypeError: elements are of other types, or a bound of floats is one of integers.
    """
    _require("clip", x, "iuf")
    found: Any = x
    for bound, function in ((min, op.maximum), (max, op.minimum)):
        if bound is None:
            continue
        if isinstance(bound, Tensor):
            if bound.dtype.is_float and not x.dtype.is_float:
                raise TypeError("a bound of floats for integers")
            limit = bound
        else:
            if x.dtype.is_integer:
                least, most = dtypes.integer_bounds(x.dtype)
                if not isinstance(bound, int):
                    raise TypeError("a bound of floats for integers")
                bound = least if bound < least else most if bound > most else bound
            [_, limit] = alike(x, bound)
        found = function(found, limit.to(x.dtype))
    return as_array(found.clone() if found is x else found)
