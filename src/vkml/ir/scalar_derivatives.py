"""Derivatives of scalar forms, as scalar forms.

A derivative is taken forwards, from the arguments to the result: where a form selects (`where`, minimum,
maximum), its derivative selects between the derivatives of what it selects between. What the other one would
have contributed, often infinity or NaN, is never multiplied by 0.

At kinks the derivative is what PyTorch's is: 0 for relu, the absolute value and sign at 0, the mean of both
sides for minimum and maximum of equal values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from vkml.ir import scalar
from vkml.ir.scalar import Number, Scalar, compare, constant, convert, ordered, unary, where

Partials = Callable[..., "Sequence[Scalar | Number]"]
_ROUNDED = frozenset(("floor", "ceil", "rint", "trunc", "sign"))


def derivative(form: Scalar, position: int) -> Scalar | None:
    """The derivative of a form by one of its arguments, in the arguments' terms.

    Args:
        form: of a floating-point type.
        position: of the argument, which is of such a type, too.

    Returns:
        A form of the same type; None where the argument does not change the form's value, or only by steps.
    """
    found: dict[Scalar, Scalar | None] = {}
    for part in ordered([form]):
        found[part] = _derivative(part, position, found)
    return found[form]


def times(slope: Scalar, factor: Scalar) -> Scalar:
    """A derivative times a number of its type, which meets nothing where the derivative selects 0.

    Infinity and NaN stay out of derivatives that do not depend on them.
    """
    if slope.operation == "where":
        condition, yes, no = slope.inputs
        return where(condition, times(yes, factor), times(no, factor))
    if slope.is_constant and slope.value in (0.0, 1.0):
        return slope if slope.value == 0.0 else factor
    return factor * slope


def _derivative(part: Scalar, position: int, found: Mapping[Scalar, Scalar | None]) -> Scalar | None:
    if not part.dtype.is_inexact:
        return None
    if part.operation == "argument":
        return constant(1.0, part.dtype) if part.value == position else None
    if part.operation == "where":
        condition, yes, no = part.inputs
        return _selected(condition, found[yes], found[no])
    inner = [found[entry] for entry in part.inputs]
    if all(entry is None for entry in inner) or part.operation in _ROUNDED or part.operation == "view":
        return None
    if part.operation == "convert":
        [within] = inner
        return None if within is None else convert(within, part.dtype)
    if part.operation == "relu":
        return _selected(part.inputs[0] > 0, inner[0], None)
    if part.operation in ("minimum", "maximum"):
        x, y = part.inputs
        first, second = (x, y) if part.operation == "maximum" else (y, x)
        half = _sum([_scaled(entry, 0.5) for entry in inner])
        rest = _selected(compare("less", first, second), inner[1], half)
        return _selected(compare("greater", first, second), inner[0], rest)
    write = _PARTIALS[part.operation]
    partials = write(*part.inputs, part)
    return _sum([_scaled(within, by) for within, by in zip(inner, partials, strict=True)])


def _selected(condition: Scalar, yes: Scalar | None, no: Scalar | None) -> Scalar | None:
    if yes is no:
        return yes
    if yes is None:
        assert no is not None
        return where(condition, 0.0, no)
    return where(condition, yes, 0.0 if no is None else no)


def _scaled(x: Scalar | None, by: Scalar | Number) -> Scalar | None:
    """The product, where it is no trivial one; None stands for 0."""
    if x is None or _is(by, 0.0):
        return None
    if _is(by, 1.0):
        return x
    if _is(x, 1.0):
        return by if isinstance(by, Scalar) else constant(by, x.dtype)
    if _is(by, -1.0):
        return -x
    return x * by


def _is(x: Scalar | Number, number: float) -> bool:
    return x.is_constant and x.value == number if isinstance(x, Scalar) else x == number


def _sum(parts: Sequence[Scalar | None]) -> Scalar | None:
    total: Scalar | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def _power(x: Scalar, y: Scalar, result: Scalar) -> tuple[Scalar, Scalar]:
    """Exponents of 0 do not raise 0 to the power of -1, nor is the logarithm of 0 taken for nothing."""
    less = y - 1
    if x.dtype.is_complex:
        is_base, is_exponent = compare("equal", x, 0.0), compare("equal", y, 0.0)
        by_base = where(is_exponent, 0.0, y * scalar.power(x, less))
        return by_base, where(is_base, 0.0, result * unary("log", x))
    by_base = where(compare("equal", y, 0.0), 0.0, y * scalar.power(x, less))
    is_nothing = compare("equal", x, 0.0) & compare("greater_equal", y, 0.0)
    return by_base, where(is_nothing, 0.0, result * unary("log", x))


_PARTIALS: Mapping[str, Partials] = {
    "add": lambda x, y, r: (1.0, 1.0),
    "subtract": lambda x, y, r: (1.0, -1.0),
    "multiply": lambda x, y, r: (y, x),
    "divide": lambda x, y, r: (1 / y, -(r / y)),
    "negative": lambda x, r: (-1.0,),
    "absolute": lambda x, r: (unary("sign", x),),
    "fmod": lambda x, y, r: (1.0, -unary("trunc", x / y)),
    "mod": lambda x, y, r: (1.0, -unary("floor", x / y)),
    "power": _power,
    "fma": lambda x, y, z, r: (y, x, 1.0),
    "sqrt": lambda x, r: (0.5 / r,),
    "exp": lambda x, r: (r,),
    "expm1": lambda x, r: (r + 1,),
    "log": lambda x, r: (1 / x,),
    "log1p": lambda x, r: (1 / (x + 1),),
    "sin": lambda x, r: (unary("cos", x),),
    "cos": lambda x, r: (-unary("sin", x),),
    "tan": lambda x, r: (r * r + 1,),
    "arcsin": lambda x, r: (1 / unary("sqrt", 1 - x * x),),
    "arccos": lambda x, r: (-1 / unary("sqrt", 1 - x * x),),
    "arctan": lambda x, r: (1 / (x * x + 1),),
    "sinh": lambda x, r: (unary("cosh", x),),
    "cosh": lambda x, r: (unary("sinh", x),),
    "tanh": lambda x, r: (1 - r * r,),
    "arcsinh": lambda x, r: (1 / unary("sqrt", x * x + 1),),
    "arccosh": lambda x, r: (1 / unary("sqrt", x * x - 1),),
    "arctanh": lambda x, r: (1 / (1 - x * x),),
    "erf": lambda x, r: (unary("exp", -(x * x)) * (2 / math.sqrt(math.pi)),),
    "sigmoid": lambda x, r: (r * (1 - r),),
    "round_to_half": lambda x, r: (1.0,),
}
