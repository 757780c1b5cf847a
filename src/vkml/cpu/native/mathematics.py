"""Code for the exponential, the logarithm, and functions made like them, over vectors.

Every emitter is called `f(code, target, source, spare)`: `target` may be `source`, otherwise the source stays
as it was; `spare` holds `SPARE` registers that it may change, with AVX-512 also the mask register 7.

Coefficients: least squares at 2,000 Chebyshev nodes, reweighted until the relative error of the result is
level (Lawson's iteration), the lowest coefficients rounded to float32 first and the others fitted again.
"""

from __future__ import annotations

from collections.abc import Sequence

from vkml.cpu.native.vectors import VectorCode

SPARE = 3
"""Registers that a function needs besides its target and source."""
MASK = 7
"""The mask register that the functions change (AVX-512)."""

_ONE_BITS, _SIGN_BITS, VALUE_BITS = 0x3F800000, 0x80000000, 0x7FFFFFFF
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.6931471824645996, -1.9046542121259336e-09
_EXP = (1.3819672e-3, 8.3686924e-3, 4.1668281e-2, 1.6666521e-1, 4.9999994e-1)
"""(eʳ - 1 - r) / r² for |r| ≤ 0.347, highest power first; relative error of eʳ 3.1e-9."""
_POWER = (1.3413660e-3, 9.6716629e-3, 5.5502817e-2, 2.4022239e-1, 6.9314724e-1, 1.0)
"""2ʳ for |r| ≤ 1/2; relative error 9.5e-8."""
_LOG = (3.7609156e-2, -9.1069505e-2, 1.1697143e-1, -1.2728377e-1, 1.4276786e-1,
        -1.6655317e-1, 1.9999579e-1, -2.5000164e-1, 3.3333340e-1, -0.5)  # fmt: skip
"""(log(1 + f) - f) / f² for -1/4 ≤ f ≤ 1/2; relative error of log(1 + f) 9.2e-10."""
_LOG_LN2_HIGH, _LOG_LN2_LOW = 0.693145751953125, 1.4286068202862268e-06
"""The high part has 15 bits: its products with exponents are exact. The low part is positive: ∞ stays ∞."""
_ERF_LIMIT = 0.93
_ERF_SMALL = (-0.0005960111157037318, 0.004987468011677265, -0.026763053610920906, 0.11281733959913254,
              -0.37612488865852356, 0.12837915122509003)  # fmt: skip
"""erf(x) / x - 1 in x² for |x| ≤ 0.93; relative error 1.8e-8."""
_ERF_LARGE = (0.000308226008201018, -0.004634156357496977, 0.033010222017765045, -0.15184034407138824,
              -0.9171631932258606, -1.628097414970398)  # fmt: skip
"""log2(1 - erf(x)) / x for 0.93 ≤ x ≤ 3.95; error relative to erf 2.9e-9."""
TO_NEAREST = 8


def exp(code: VectorCode, target: int, source: int, spare: Sequence[int]) -> None:
    """e to the power; ∞ beyond 88.72, denormals are rounded right."""
    reduced, exponent, value = spare[:3]
    # Comparisons with NaN give the second operand, so that a limit as the first lets NaN through.
    code.load(reduced, code.constant(89.0))
    code.vector("minps", reduced, reduced, source)
    code.load(exponent, code.constant(-104.0))
    code.vector("maxps", reduced, exponent, reduced)
    _reduce(code, reduced, exponent)
    polynomial(code, value, reduced, (*_EXP, 1.0, 1.0))
    _scale(code, target, value, exponent, reduced)


def expm1(code: VectorCode, target: int, source: int, spare: Sequence[int]) -> None:
    """e to the power, less 1, precise near zero; that of -0 is -0."""
    reduced, exponent, value = spare[:3]
    code.load(reduced, code.constant(89.0))
    code.vector("minps", reduced, reduced, source)
    code.load(exponent, code.constant(-30.0))
    code.vector("maxps", reduced, exponent, reduced)
    _reduce(code, reduced, exponent)
    _exp_less_one(code, reduced, exponent, value, 0.5)
    code.load(reduced, code.bits(_SIGN_BITS))
    code.vector("andps", reduced, reduced, source)
    code.vector("addps", target, value, value)
    code.vector("orps", target, target, reduced)


def _exp_less_one(code: VectorCode, reduced: int, exponent: int, value: int, part: float) -> None:
    """value = part (2ⁿ eʳ - 1); part is 1 or, where 2ⁿ may be too large, 1/2; changes all."""
    # With p = eʳ - 1 and s = part 2ⁿ: s p + (s - part), where the difference is exact or nearly s.
    polynomial(code, value, reduced, _EXP)
    code.vector("mulps", value, value, reduced)
    code.vector("fmadd213ps", value, reduced, reduced)
    if code.has_avx512:
        code.load(reduced, code.constant(part))
        code.vector("scalefps", reduced, reduced, exponent)
    else:
        code.unary("cvtps2dq", reduced, exponent)
        code.shift("pslld", reduced, reduced, 23)
        code.vector("paddd", reduced, reduced, code.constant(part))
    code.vector("subps", exponent, reduced, code.constant(part))
    code.vector("fmadd213ps", value, reduced, exponent)


def sigmoid(code: VectorCode, target: int, source: int, spare: Sequence[int]) -> None:
    """1 / (1 + e⁻ˣ); for x < 0 as eˣ / (1 + eˣ), which is precise down to denormals."""
    reduced, exponent, value = spare[:3]
    code.load(reduced, code.bits(_SIGN_BITS))
    code.vector("orps", reduced, reduced, source)
    code.load(exponent, code.constant(-104.0))
    code.vector("maxps", reduced, exponent, reduced)
    _reduce(code, reduced, exponent)
    polynomial(code, value, reduced, (*_EXP, 1.0, 1.0))
    _scale(code, value, value, exponent, reduced)
    code.load(reduced, code.bits(_ONE_BITS))
    code.vector("addps", exponent, value, reduced)
    if code.has_avx512:
        code.vector_to_mask(MASK, source)
        code.blend(reduced, reduced, value, MASK)
    else:
        code.blend(reduced, reduced, value, source)
    code.vector("divps", target, reduced, exponent)


def tanh(code: VectorCode, target: int, source: int, spare: Sequence[int]) -> None:
    """(e²ˣ - 1) / (e²ˣ - 1 + 2) of |x|, with e²ˣ - 1 worked out as one value; then the sign."""
    reduced, exponent, value = spare[:3]
    code.load(reduced, code.bits(VALUE_BITS))
    code.vector("andps", reduced, reduced, source)
    # From 9.02 on the result rounds to 1.
    code.load(exponent, code.constant(10.0))
    code.vector("minps", reduced, exponent, reduced)
    code.vector("addps", reduced, reduced, reduced)
    _reduce(code, reduced, exponent)
    _exp_less_one(code, reduced, exponent, value, 1.0)
    code.vector("addps", exponent, value, code.constant(2.0))
    code.vector("divps", value, value, exponent)
    _with_sign(code, target, value, source, reduced)


def erf(code: VectorCode, target: int, source: int, spare: Sequence[int]) -> None:
    """The error function: a polynomial near zero; further out 1 - 2^q(|x|)."""
    small, power, value = spare[:3]
    code.load(value, code.bits(VALUE_BITS))
    code.vector("andps", value, value, source)
    # From 3.92 on the result rounds to 1.
    code.load(power, code.constant(4.0))
    code.vector("minps", value, power, value)
    polynomial(code, small, value, _ERF_LARGE)
    code.vector("mulps", small, small, value)
    code.unary_immediate("roundps", power, small, TO_NEAREST)
    code.vector("subps", small, small, power)
    polynomial(code, value, small, _POWER)
    _scale_small(code, value, power, small)
    code.load(power, code.bits(_ONE_BITS))
    code.vector("subps", value, power, value)
    _with_sign(code, value, value, source, small)
    code.vector("mulps", power, source, source)
    polynomial(code, small, power, _ERF_SMALL)
    code.vector("fmadd213ps", small, source, source)
    code.vector("andps", power, source, code.bits(VALUE_BITS))
    # Greater than, quiet: NaN takes the small branch, which passes it on.
    mask = MASK if code.has_avx512 else power
    code.compare(mask, power, code.constant(_ERF_LIMIT), 0x1E)
    code.blend(target, small, value, mask)


def log(code: VectorCode, target: int, source: int, spare: Sequence[int]) -> None:
    """The natural logarithm: -∞ at zero, NaN below; denormals are right."""
    fraction, exponent, value = spare[:3]
    one = code.bits(_ONE_BITS)
    # x = 2ᵉ m with 3/4 ≤ m < 3/2, f = m - 1.
    if code.has_avx512:
        code.unary("getexpps", exponent, source)
        code.unary_immediate("getmantps", fraction, source, 0b1011)
        code.compare(MASK, fraction, one, 0x11)
        code.vector("addps", exponent, exponent, one, mask=MASK)
    else:
        code.load(value, code.constant(2.0**-126))
        code.compare(value, source, value, 0x11)
        code.vector("mulps", fraction, source, code.constant(2.0**23))
        code.blend(fraction, source, fraction, value)
        code.vector("andps", value, value, code.constant(23.0))
        code.vector("psubd", exponent, fraction, code.bits(0x3F400000))
        code.shift("psrad", exponent, exponent, 23)
        code.unary("cvtdq2ps", exponent, exponent)
        code.vector("subps", value, exponent, value)
        code.unary("cvtps2dq", exponent, exponent)
        code.shift("pslld", exponent, exponent, 23)
        code.vector("psubd", fraction, fraction, exponent)
        code.copy(exponent, value)
    code.vector("subps", fraction, fraction, one)
    polynomial(code, value, fraction, _LOG)
    code.vector("mulps", value, value, fraction)
    code.vector("fmadd213ps", value, fraction, fraction)
    code.vector("fmadd231ps", value, exponent, code.constant(_LOG_LN2_LOW))
    if code.has_avx512:
        code.vector("fmadd231ps", value, exponent, code.constant(_LOG_LN2_HIGH))
        code.copy(target, value)
        return
    code.vector("fmadd231ps", value, exponent, code.constant(_LOG_LN2_HIGH))
    code.zero(fraction)
    code.compare(exponent, source, fraction, 0)
    code.blend(value, value, code.constant(float("-inf")), exponent)
    # Not less than ∞: ∞ and NaN are their own logarithms.
    code.compare(exponent, source, code.constant(float("inf")), 5)
    code.blend(value, value, source, exponent)
    code.compare(fraction, source, fraction, 0x11)
    code.vector("orps", target, value, fraction)


def log1p(code: VectorCode, target: int, source: int, spare: Sequence[int]) -> None:
    """The logarithm of 1 + x, precise near zero, -0 of -0; needs two spare registers more than others."""
    total, rest = spare[3:5]
    one = code.bits(_ONE_BITS)
    # With u = 1 + x as rounded: log u + (x - (u - 1)) / u. What was rounded off is exact below 2²⁴; beyond it
    # does not matter. The divisor is kept from zero, as u is at x = -1.
    code.vector("addps", total, source, one)
    code.vector("subps", rest, total, one)
    code.vector("subps", rest, source, rest)
    code.load(spare[0], code.constant(2.0**-24))
    code.vector("maxps", spare[0], spare[0], total)
    code.vector("divps", rest, rest, spare[0])
    mask = MASK if code.has_avx512 else spare[0]
    code.compare(mask, source, code.constant(2.0**24), 0x11)
    if code.has_avx512:
        code.zero(spare[0])
        code.blend(rest, spare[0], rest, mask)
    else:
        code.vector("andps", rest, rest, mask)
    log(code, total, total, spare)
    code.load(spare[0], code.bits(_SIGN_BITS))
    code.vector("andps", spare[0], spare[0], source)
    code.vector("addps", target, total, rest)
    code.vector("orps", target, target, spare[0])


def _reduce(code: VectorCode, value: int, exponent: int) -> None:
    """Splits x into n ln 2 + r: `exponent` becomes n, `value` r."""
    code.vector("mulps", exponent, value, code.constant(_LOG2_E))
    code.unary_immediate("roundps", exponent, exponent, TO_NEAREST)
    code.vector("fnmadd231ps", value, exponent, code.constant(_LN2_HIGH))
    code.vector("fnmadd231ps", value, exponent, code.constant(_LN2_LOW))


def polynomial(code: VectorCode, target: int, variable: int, coefficients: Sequence[float]) -> None:
    """Horner's rule, the highest power first; target and variable differ."""
    code.load(target, code.constant(coefficients[0]))
    for coefficient in coefficients[1:]:
        code.vector("fmadd213ps", target, variable, code.constant(coefficient))


def _scale(code: VectorCode, target: int, value: int, exponent: int, spare: int) -> None:
    """target = value 2ⁿ for -150 ≤ n ≤ 128, rounded once; changes `exponent` and `spare`."""
    if code.has_avx512:
        code.vector("scalefps", target, value, exponent)
        return
    # Two factors, as 2ⁿ itself may be out of range.
    code.unary("cvtps2dq", exponent, exponent)
    code.shift("psrad", spare, exponent, 1)
    code.vector("psubd", exponent, exponent, spare)
    for half in (spare, exponent):
        code.shift("pslld", half, half, 23)
        code.vector("paddd", half, half, code.bits(_ONE_BITS))
        code.vector("mulps", target, value, half)
        value = target


def _scale_small(code: VectorCode, value: int, exponent: int, spare: int) -> None:
    """value *= 2ⁿ where that is no denormal; changes `spare`."""
    if code.has_avx512:
        code.vector("scalefps", value, value, exponent)
        return
    code.unary("cvtps2dq", spare, exponent)
    code.shift("pslld", spare, spare, 23)
    code.vector("paddd", value, value, spare)


def _with_sign(code: VectorCode, target: int, value: int, source: int, spare: int) -> None:
    """target = a value ≥ 0 with the sign of the source; changes `spare`."""
    code.load(spare, code.bits(_SIGN_BITS))
    code.vector("andps", spare, spare, source)
    code.vector("orps", target, value, spare)
