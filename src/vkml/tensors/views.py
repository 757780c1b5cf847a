"""Views: tensors that show a part of another one's elements, or all in another order, and write through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument
from vkml.ir.dtypes import INT64
from vkml.ir.gradients import expanded, reshaped, transposed
from vkml.tensors.capture import is_capturing
from vkml.tracing import EMITTER, Traced, apply, constant, value_of
from vkml.tracing.value import Kind, mode, tracking

MOST_AT_HAND = 1 << 14
"""Bytes of elements on the host of which parts are copied at once: planning an index takes a millisecond."""


Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]


class View(Protocol):
    """From a tensor's value to that of its view, and back."""

    def read(self, base: Traced) -> Traced:
        """What the view shows of a value."""

    def write(self, base: Traced, part: Traced) -> Traced:
        """The value of which the view shows `part`, and which is `base` elsewhere."""

    def strides(self, dims: Dims, strides: Dims) -> Dims:
        """How far apart neighbours along its axes are, from the sizes and strides of what it is a view of."""


def contiguous_strides(dims: Dims) -> Dims:
    """Of elements in the order of the axes."""
    return tuple([math.prod(dims[axis + 1 :]) for axis in range(len(dims))])


def reshaped_strides(dims: Dims, strides: Dims, shape: Dims) -> Dims | None:
    """Strides under another shape, which has as many elements; None where no strides reach them in order.

    Args:
        dims: sizes.
        strides: of them.
        shape: the other one.
    """
    if 0 in dims:
        return contiguous_strides(shape)
    # Axes of one element are anywhere; runs of others that lie as one axis would are divided anew.
    runs: list[list[int]] = []
    for size, stride in zip(dims, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    found = []
    left = 1
    stride = 1
    for size in reversed(shape):
        if size == 1:
            found.append(stride)
            continue
        if left == 1:
            left, stride = runs.pop()
        if left % size:
            return None
        found.append(stride)
        left //= size
        stride *= size
    return tuple(reversed(found))


@dataclass(frozen=True)
class Reshaped:
    """All elements under another shape."""

    dims: tuple[int, ...]

    def read(self, base: Traced) -> Traced:
        elements = _at_hand(base)
        if elements is not None and base.dims != self.dims:
            return value_of(elements.reshape(self.dims).copy())
        return reshaped(EMITTER, base, self.dims)

    def write(self, base: Traced, part: Traced) -> Traced:
        elements = _at_hand(part)
        if elements is not None and base.dims != part.dims:
            return value_of(elements.reshape(base.dims).copy())
        return reshaped(EMITTER, part, base.dims)

    def strides(self, dims: Dims, strides: Dims) -> Dims:
        return reshaped_strides(dims, strides, self.dims) or contiguous_strides(self.dims)


@dataclass(frozen=True)
class Untracked:
    """All elements, without what they were made of."""

    def read(self, base: Traced) -> Traced:
        return untracked(base)

    def write(self, base: Traced, part: Traced) -> Traced:
        return part

    def strides(self, dims: Dims, strides: Dims) -> Dims:
        return strides


def untracked(value: Traced) -> Traced:
    """The same elements without a history for gradients; in a capture still made of what is captured."""
    if value.data is not None and not is_capturing():
        return Traced(value.type, value.device, value.data)
    with tracking(False):
        return apply("Identity", value)


@dataclass(frozen=True)
class Permuted:
    """The axes in another order."""

    order: tuple[int, ...]

    def read(self, base: Traced) -> Traced:
        return transposed(EMITTER, base, self.order)

    def write(self, base: Traced, part: Traced) -> Traced:
        return transposed(EMITTER, part, sorted(range(len(self.order)), key=self.order.__getitem__))

    def strides(self, dims: Dims, strides: Dims) -> Dims:
        return tuple([strides[axis] for axis in self.order])


@dataclass(frozen=True)
class Expanded:
    """Elements repeated along axes of one."""

    dims: tuple[int, ...]

    def read(self, base: Traced) -> Traced:
        return expanded(EMITTER, base, self.dims)

    def write(self, base: Traced, part: Traced) -> Traced:
        raise InvalidArgument(
            "more than one element of an expanded tensor is the same: clone() it before writing into it"
        )

    def strides(self, dims: Dims, strides: Dims) -> Dims:
        more = len(self.dims) - len(dims)
        pairs = zip(dims, strides, self.dims[more:], strict=True)
        return (*[0] * more, *[stride if own == size else 0 for own, stride, size in pairs])


@dataclass(frozen=True)
class Sliced:
    """A range of each axis: (start, stop, step) with a step above 0 and 0 ≤ start ≤ stop ≤ size."""

    ranges: tuple[tuple[int, int, int], ...]

    def read(self, base: Traced) -> Traced:
        elements = _at_hand(base)
        if elements is not None:
            return value_of(elements[self._slices].copy())
        axes = [
            at
            for at, (found, size) in enumerate(zip(self.ranges, base.dims, strict=True))
            if found != (0, size, 1)
        ]
        return _sliced(base, axes, [self.ranges[at] for at in axes])

    def write(self, base: Traced, part: Traced) -> Traced:
        before, after = _at_hand(base), _at_hand(part)
        if before is not None and after is not None:
            whole = before.copy()
            whole[self._slices] = after
            return value_of(whole)
        return _replaced(base, part, self.ranges, 0)

    def strides(self, dims: Dims, strides: Dims) -> Dims:
        return tuple([step * stride for (_, _, step), stride in zip(self.ranges, strides, strict=True)])

    @property
    def _slices(self) -> tuple[slice, ...]:
        return tuple([slice(*one) for one in self.ranges])


@dataclass(frozen=True)
class Diagonal:
    """Elements of the last two axes along a diagonal.

    Attributes:
        start: the place of the first in the rows laid end to end.
        length: how many there are.
    """

    start: int
    length: int

    def read(self, base: Traced) -> Traced:
        rows, part = self._parts(base.dims)
        return part.read(rows.read(base))

    def write(self, base: Traced, part: Traced) -> Traced:
        rows, cut = self._parts(base.dims)
        return rows.write(base, cut.write(rows.read(base), part))

    def strides(self, dims: Dims, strides: Dims) -> Dims:
        return (*strides[:-2], strides[-2] + strides[-1])

    def _parts(self, dims: Dims) -> tuple[Reshaped, Sliced]:
        """The rows end to end, and the range of these that the diagonal is."""
        *rest, rows, columns = dims
        stop = self.start + (self.length - 1) * (columns + 1) + 1 if self.length else self.start
        ranges = [(0, size, 1) for size in rest]
        return Reshaped((*rest, rows * columns)), Sliced((*ranges, (self.start, stop, columns + 1)))


def _at_hand(value: Traced) -> Array | None:
    """The elements of a value of which a part needs no operator.

    They are few and known on the host, and nothing that is recorded has to know of the index: no gradient, no
    capture. As an operator each index would be a plan of its own.
    """
    data = value.data
    if (
        not isinstance(data, np.ndarray)
        or value.device is not None
        or value.kind is Kind.CONSTANT
        or (value.tracks and mode.tracks)
        or data.nbytes > MOST_AT_HAND
        or is_capturing()
    ):
        return None
    return data


def _sliced(base: Traced, axes: Sequence[int], ranges: Sequence[tuple[int, int, int]]) -> Traced:
    if not axes:
        return base
    starts, stops, steps = (constant(numbers, INT64) for numbers in zip(*ranges, strict=True))
    return apply("Slice", base, starts, stops, constant(axes, INT64), steps)


def _replaced(base: Traced, part: Traced, ranges: Sequence[tuple[int, int, int]], axis: int) -> Traced:
    """`base` with `part` at ranges of its axes from `axis` on; both have the same sizes before."""
    while axis < len(ranges) and ranges[axis] == (0, base.dims[axis], 1):
        axis += 1
    if axis == len(ranges):
        return part
    start, stop, step = ranges[axis]
    if not part.dims[axis]:
        return base
    within = _replaced(_sliced(base, [axis], [ranges[axis]]), part, ranges, axis + 1)
    if step != 1:
        return _interleaved(base, within, axis, range(start, stop, step))
    before, after = [(0, start, 1)], [(stop, base.dims[axis], 1)]
    pieces = [within]
    if start:
        pieces.insert(0, _sliced(base, [axis], before))
    if stop < base.dims[axis]:
        pieces.append(_sliced(base, [axis], after))
    return apply("Concat", *pieces, axis=axis) if len(pieces) > 1 else within


def _interleaved(base: Traced, part: Traced, axis: int, places: range) -> Traced:
    """`base` with `part` at single places of an axis."""
    size = base.dims[axis]
    both = apply("Concat", base, part, axis=axis)
    order = list(range(size))
    for at, place in enumerate(places):
        order[place] = size + at
    return apply("Gather", both, constant(order, INT64), axis=axis)


@dataclass(frozen=True)
class PartOfComplex:
    """The real or the imaginary parts of complex numbers."""

    is_real: bool

    def read(self, base: Traced) -> Traced:
        return apply("Real" if self.is_real else "Imag", base, domain="vkml")

    def write(self, base: Traced, part: Traced) -> Traced:
        other = apply("Imag" if self.is_real else "Real", base, domain="vkml")
        return apply("Complex", *((part, other) if self.is_real else (other, part)), domain="vkml")

    def strides(self, dims: Dims, strides: Dims) -> Dims:
        return tuple([2 * stride for stride in strides])


@dataclass(frozen=True)
class Parts:
    """Both parts of complex numbers along a last axis of two."""

    def read(self, base: Traced) -> Traced:
        parts = [apply(name, base, domain="vkml") for name in ("Real", "Imag")]
        along = [reshaped(EMITTER, part, (*base.dims, 1)) for part in parts]
        return apply("Concat", *along, axis=len(base.dims))

    def write(self, base: Traced, part: Traced) -> Traced:
        return _joined(part)

    def strides(self, dims: Dims, strides: Dims) -> Dims:
        return (*[2 * stride for stride in strides], 1)


@dataclass(frozen=True)
class Joined:
    """Complex numbers of the two elements along the last axis."""

    def read(self, base: Traced) -> Traced:
        return _joined(base)

    def write(self, base: Traced, part: Traced) -> Traced:
        return Parts().read(part)

    def strides(self, dims: Dims, strides: Dims) -> Dims:
        return tuple([stride // 2 for stride in strides[:-1]])


def _joined(parts: Traced) -> Traced:
    """Complex numbers of parts [..., 2]."""
    axis = len(parts.dims) - 1
    each = [apply("Gather", parts, constant(at, INT64), axis=axis) for at in (0, 1)]
    return apply("Complex", *each, domain="vkml")
