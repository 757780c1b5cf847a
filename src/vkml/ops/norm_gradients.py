"""Gradients of normalisations.

Statistics are computed again rather than kept: they are two reductions, and derivatives of higher order
follow. All is computed in the widest type of what is given, at least in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic

import numpy as np

from vkml.ir import scalar
from vkml.ir.dtypes import INT64, DType
from vkml.ir.gradients import (
    Emitter,
    T,
    converted,
    expanded,
    pointwise,
    reciprocal,
    reshaped,
    sum_to,
    summed,
    widened,
)
from vkml.ir.scalar import Scalar, arithmetic_type, compare, where
from vkml.ops.checks import optional, present


def widest(build: Emitter[T], *values: T | None) -> DType:
    """The widest of the types in which elements of values are computed."""
    types = [arithmetic_type(build.type_of(value).dtype) for value in values if value is not None]
    return max(types, key=lambda dtype: dtype.bits)


def mean_over(build: Emitter[T], x: T, axes: Sequence[int]) -> T:
    """The mean over axes, which stay with a size of 1."""
    return build.apply("ReduceMean", x, build.constant(list(axes), INT64), noop_with_empty_axes=1)


def stored(build: Emitter[T], x: T, like: T) -> T:
    """`x` under the shape and in the type of another value."""
    type_ = build.type_of(like)
    return reshaped(build, converted(build, x, type_.dtype), type_.dims)


class Standardised(Generic[T]):
    """x less its mean over axes (or less nothing), over the root of the mean square of that plus epsilon.

    Args:
        build: the emitter.
        x: in the type to compute in.
        axes: that statistics are taken over.
        epsilon: what is added to the mean square.
        is_centred: whether the mean is subtracted.
    """

    def __init__(
        self, build: Emitter[T], x: T, axes: Sequence[int], epsilon: float, is_centred: bool = True
    ) -> None:
        self._build = build
        self.type = build.type_of(x)
        self.axes = tuple(axes)
        count = max(1, math.prod(self.type.dims[axis] for axis in axes))
        self._share = reciprocal(build, count, self.type.dtype)
        """What each of the elements that meet in a mean counts; 1 where there are none."""
        self._mean: list[T] = []
        """The one, where it is subtracted."""
        if is_centred:
            mean, square = build.apply_all("Moments", [x], 2, domain="vkml", axes=self.axes)
            self._mean.append(mean)
        else:
            square = mean_over(build, build.apply("Mul", x, x), axes)
        self.x, self.inverse = x, inverse_root(build, square, epsilon)

    def _made(self, form: Callable[..., Scalar], *values: T) -> T:
        """A form of values, the result being of x's type.

        It takes what is centred, the inverse deviation, the share of an element in a mean, and the values.
        """

        def centring(*elements: Scalar) -> Scalar:
            *given, share, inverse, x = elements[: len(values) + 3]
            centred = x - elements[-1] if self._mean else x
            return form(centred, inverse, share, *given)

        given = (*values, self._share, self.inverse, self.x, *self._mean)
        return pointwise(self._build, centring, *given, dtype=self.type.dtype)

    def sums(self, incoming: T) -> tuple[T, T]:
        """The sums over the axes, which stay, of a cotangent and of its product with the normalised value."""
        build = self._build
        along = self._made(lambda centred, inverse, _, incoming: incoming * (centred * inverse), incoming)
        total, product = (summed(build, value, self.axes, keep=True) for value in (incoming, along))
        return total, product

    def by_normal(self, incoming: T, total: T, product: T, factor: T | None = None) -> T:
        """The cotangent of x from that of the normalised value.

        Args:
            incoming: that cotangent, or what times `factor` is that.
            total: its `sums`, ...
            product: ... both of them.
            factor: one number for all of what meets in a mean.
        """
        is_centred = bool(self._mean)

        def form(
            centred: Scalar, inverse: Scalar, share: Scalar, incoming: Scalar, product: Scalar, *more: Scalar
        ) -> Scalar:
            rest = list(more)
            if is_centred:
                incoming = incoming - rest.pop() * share
            made = incoming - centred * inverse * (product * share)
            return made * (inverse * rest[0] if rest else inverse)

        values = [incoming, product, *([] if factor is None else [factor]), *([total] if is_centred else [])]
        return self._made(form, *values)

    def by_mean(self, incoming: T) -> T:
        """The cotangent of x from that of the means."""
        each = pointwise(
            self._build, lambda x, share: x * share, incoming, self._share, dtype=self.type.dtype
        )
        return expanded(self._build, each, self.type.dims)

    def by_mean_square(self, incoming: T) -> T:
        """The cotangent of x from that of the means of squares."""
        return self._made(lambda centred, _, share, incoming: incoming * centred * (share * 2), incoming)

    def by_inverse(self, incoming: T) -> T:
        """The cotangent of x from that of the inverse deviations."""

        def form(centred: Scalar, inverse: Scalar, share: Scalar, incoming: Scalar) -> Scalar:
            return incoming * (centred * inverse) * inverse * inverse * -share

        return self._made(form, incoming)

    def by_affine(
        self, incoming: T, vectors: Sequence[T | None], lanes: Sequence[Sequence[int]], needed: Sequence[bool]
    ) -> list[T | None]:
        """The cotangents of x, and of the factor and the addend of the normalised value.

        Args:
            incoming: the cotangent of the result.
            vectors: factor and addend; None where one is absent.
            lanes: the shapes under which they broadcast to x.
            needed: which of the three are wanted.
        """
        build = self._build
        made: list[T | None] = [None, None, None]
        scale, bias = vectors
        assert scale is not None
        factor = reshaped(build, converted(build, scale, self.type.dtype), lanes[0])
        if all(self._is_one_along_axes(lane) for lane in lanes):
            # A factor for all that meets in a mean: of the sums that x takes, the others are sums.
            total, product = self.sums(incoming)
            if needed[0]:
                made[0] = self.by_normal(incoming, total, product, factor)
        else:
            if needed[0]:
                scaled = build.apply("Mul", incoming, factor)
                made[0] = self.by_normal(scaled, *self.sums(scaled))
            total = incoming
            product = self._made(
                lambda centred, inverse, _, incoming: incoming * (centred * inverse), incoming
            )
        if needed[1]:
            made[1] = stored(build, sum_to(build, product, lanes[0]), scale)
        if bias is not None and needed[2]:
            made[2] = stored(build, sum_to(build, total, lanes[1]), bias)
        return made

    def _is_one_along_axes(self, lanes: Sequence[int]) -> bool:
        """Whether what broadcasts so has one element along all of the axes."""
        first = self.type.rank - len(lanes)
        return all(axis < first or lanes[axis - first] == 1 for axis in self.axes)


def affine_vjp(
    build: Emitter[T], inputs: Sequence[T | None], cotangents: Sequence[T | None], needed: Sequence[bool], *,
    view: Sequence[int], axes: Sequence[int], lanes: Sequence[Sequence[int]], epsilon: float,
    is_centred: bool = True,
) -> list[T | None]:  # fmt: skip
    """The product of an operator that standardises, multiplies and adds.

    Args:
        build: the emitter.
        inputs: x, scale and, perhaps, bias.
        cotangents: of the result, and of the means and inverse deviations where these are outputs, too.
        needed: of each input, whether its cotangent is wanted.
        view: the shape that x is standardised under.
        axes: of the view, that statistics are taken over.
        lanes: the shapes under which scale and bias broadcast to the view.
        epsilon: what is added to the mean square.
        is_centred: whether the mean is subtracted.
    """
    x, scale, bias = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
    wide = widest(build, x, scale, bias)
    found = Standardised(build, reshaped(build, converted(build, x, wide), view), axes, epsilon, is_centred)
    made: list[T | None] = [None, None, None]
    outgoing, mean, inverse = (optional(cotangents, at) for at in range(3))
    if outgoing is not None:
        incoming = reshaped(build, converted(build, outgoing, wide), view)
        made = found.by_affine(incoming, [scale, bias], lanes, [*needed, False])
    if needed[0]:
        parts = [
            made[0],
            None if mean is None else found.by_mean(mean),
            None if inverse is None else found.by_inverse(inverse),
        ]
        made[0] = stored(build, total_of(build, parts), x)
    return made[: len(inputs)]


def batch_vjp(
    build: Emitter[T], inputs: Sequence[T | None], cotangents: Sequence[T | None], needed: Sequence[bool], *,
    epsilon: float, momentum: float,
) -> list[T | None]:  # fmt: skip
    """The product of a batch normalisation by the batch's own statistics, which are mixed into running ones.

    Args:
        build: the emitter.
        inputs: x, scale, bias, running mean and variance.
        cotangents: of the result, and of the new running mean and variance.
        needed: of each input, whether its cotangent is wanted.
        epsilon: what is added to the variance.
        momentum: the part of the old statistics in the new ones.
    """
    x, *vectors = (present(inputs, at) for at in range(5))
    dims = build.type_of(x).dims
    lanes = channel_lanes(dims)
    wide = widest(build, *inputs)
    axes = [axis for axis in range(len(dims)) if axis != 1]
    found = Standardised(build, converted(build, x, wide), axes, epsilon)
    made: list[T | None] = [None, None, None]
    outgoing, mean, variance = (optional(cotangents, at) for at in range(3))
    if outgoing is not None:
        made = found.by_affine(converted(build, outgoing, wide), vectors[:2], [lanes, lanes], needed)
    parts = [made[0]]
    for at, incoming, by in ((3, mean, found.by_mean), (4, variance, found.by_mean_square)):
        made.append(None)
        if incoming is None:
            continue
        if needed[at]:
            made[at] = pointwise(build, lambda x: x * momentum, incoming)
        if needed[0]:
            part = pointwise(build, lambda x: x * (1 - momentum), incoming, dtype=wide)
            parts.append(by(reshaped(build, part, lanes)))
    if needed[0]:
        made[0] = stored(build, total_of(build, parts), x)
    return made


def inverse_root(build: Emitter[T], square: T, epsilon: float) -> T:
    """1 over the root of a number plus epsilon."""
    return pointwise(build, lambda square: 1 / scalar.unary("sqrt", square + epsilon), square)


def total_of(build: Emitter[T], parts: Sequence[T | None]) -> T:
    """The sum of those that there are."""
    there = [part for part in parts if part is not None]
    return there[0] if len(there) == 1 else build.apply("Sum", *there)


def by_statistics(
    build: Emitter[T], inputs: Sequence[T], cotangent: T, epsilon: float, needed: Sequence[bool]
) -> list[T | None]:
    """The cotangents of a batch normalisation by given statistics.

    Args:
        build: the emitter.
        inputs: x, scale, bias, mean, variance.
        cotangent: of the result.
        epsilon: what is added to the variance.
        needed: of each input, whether its cotangent is wanted.
    """
    wide = widest(build, *inputs)
    dims = build.type_of(inputs[0]).dims
    lanes = channel_lanes(dims)
    incoming, x = (converted(build, value, wide) for value in (cotangent, inputs[0]))
    scale, _, mean, variance = (reshaped(build, converted(build, v, wide), lanes) for v in inputs[1:])
    inverse = inverse_root(build, variance, epsilon)
    made: list[T | None] = [None] * 5
    if needed[0]:
        made[0] = pointwise(
            build, lambda incoming, scale, inverse: incoming * (scale * inverse), incoming, scale, inverse
        )
    if needed[1] or needed[4]:
        along = sum_to(
            build,
            pointwise(build, lambda incoming, x, mean: incoming * (x - mean), incoming, x, mean),
            lanes,
        )
        if needed[1]:
            made[1] = build.apply("Mul", along, inverse)
        if needed[4]:

            def by_variance(along: Scalar, scale: Scalar, inverse: Scalar) -> Scalar:
                return along * scale * inverse * inverse * inverse * -0.5

            made[4] = pointwise(build, by_variance, along, scale, inverse)
    if needed[2] or needed[3]:
        made[2] = total = sum_to(build, incoming, lanes)
        made[3] = pointwise(build, lambda x, scale, inverse: -(x * scale * inverse), total, scale, inverse)
    return [
        stored(build, value, like) if value is not None and is_needed else None
        for value, like, is_needed in zip(made, inputs, needed, strict=True)
    ]


def channel_lanes(dims: Sequence[int]) -> tuple[int, ...]:
    """The shape under which a vector meets axis 1 of a tensor of a shape; of rank 1 there is one channel."""
    return (dims[1], *(1,) * (len(dims) - 2)) if len(dims) > 1 else (1,)


def lp_gradient(build: Emitter[T], x: T, cotangent: T, axis: int, p: int) -> T:
    """The cotangent of what is divided by its p-norm along an axis; 0 where that is 0.

    Args:
        build: the emitter.
        x: of any floating-point type.
        cotangent: of the result.
        axis: counted from the front.
        p: 1 or 2.
    """
    wide, along = widened(build, x), build.constant([axis], INT64)
    norm = build.apply(f"ReduceL{p}", wide, along)

    def divided(x: Scalar, norm: Scalar) -> Scalar:
        return where(compare("equal", norm, 0.0), 0.0, x / norm)

    incoming = widened(build, cotangent)
    normal = pointwise(build, divided, wide, norm)
    share = summed(build, build.apply("Mul", incoming, normal), [axis], keep=True)

    def form(incoming: Scalar, direction: Scalar, share: Scalar, norm: Scalar) -> Scalar:
        sign = scalar.unary("sign", direction) if p == 1 else direction
        return divided(incoming - sign * share, norm)

    return stored(build, pointwise(build, form, incoming, wide if p == 1 else normal, share, norm), x)


def mean_variance_gradient(build: Emitter[T], x: T, cotangent: T, axes: Sequence[int], epsilon: float) -> T:
    """The cotangent of what is centred and divided by its deviation plus epsilon; 0 where all are equal.

    Args:
        build: the emitter.
        x: of any floating-point type.
        cotangent: of the result.
        axes: that statistics are taken over.
        epsilon: what is added to the deviation.
    """
    wide, incoming = widened(build, x), widened(build, cotangent)
    centred = build.apply("Sub", wide, mean_over(build, wide, axes))
    deviation = build.apply("Sqrt", mean_over(build, build.apply("Mul", centred, centred), axes))
    along = mean_over(build, build.apply("Mul", incoming, centred), axes)

    def form(incoming: Scalar, centred: Scalar, along: Scalar, deviation: Scalar) -> Scalar:
        inverse = 1 / (deviation + epsilon)
        return where(
            compare("equal", deviation, 0.0),
            0.0,
            inverse * (incoming - centred * (along * inverse / deviation)),
        )

    each = pointwise(build, form, incoming, centred, along, deviation)
    return stored(build, build.apply("Sub", each, mean_over(build, each, axes)), x)


def local_response_gradient(
    build: Emitter[T], x: T, cotangent: T, size: int, alpha: float, beta: float, bias: float
) -> T:
    """The cotangent of what is divided by a power of a sum of squares over neighbouring channels.

    Args:
        build: the emitter.
        x: of any floating-point type, [batch, channels, …].
        cotangent: of the result.
        size: channels in a sum.
        alpha: times the mean of squares, were all of the channels there, …
        beta: … the exponent …
        bias: … and what is added to the base.
    """
    wide, incoming = widened(build, x), widened(build, cotangent)
    before, after = (size - 1) // 2, size // 2
    factor = alpha / size
    squares = build.apply("Mul", wide, wide)
    base = pointwise(
        build, lambda total: total * factor + bias, _channel_sums(build, squares, size, before, after)
    )

    def shared(incoming: Scalar, x: Scalar, base: Scalar) -> Scalar:
        return incoming * x * scalar.power(base, -beta - 1)

    # An element is a neighbour of those whose neighbour it is: windows the other way round.
    share = _channel_sums(build, pointwise(build, shared, incoming, wide, base), size, after, before)

    def form(incoming: Scalar, x: Scalar, base: Scalar, share: Scalar) -> Scalar:
        return incoming * scalar.power(base, -beta) - x * share * (2 * beta * factor)

    return stored(build, pointwise(build, form, incoming, wide, base, share), x)


def _channel_sums(build: Emitter[T], x: T, size: int, before: int, after: int) -> T:
    """At each channel the sum of so many before it, itself, and so many after it."""
    type_ = build.type_of(x)
    batch, channels = type_.dims[:2]
    volume = reshaped(build, x, (batch, 1, channels, math.prod(type_.dims[2:])))
    ones = build.constant(np.ones((1, 1, size, 1)), type_.dtype)
    return reshaped(build, build.apply("Conv", volume, ones, pads=(before, 0, after, 0)), type_.dims)
