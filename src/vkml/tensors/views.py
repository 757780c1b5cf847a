"""Views: tensors that show a part of another one's elements, or all in another order, and write through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vkml.errors import InvalidArgument
from vkml.ir.dtypes import INT64
from vkml.ir.gradients import expanded, reshaped, transposed
from vkml.tracing import EMITTER, Traced, apply, constant


class View(Protocol):
    """From a tensor's value to that of its view, and back."""

    def read(self, base: Traced) -> Traced:
        """What the view shows of a value."""

    def write(self, base: Traced, part: Traced) -> Traced:
        """The value of which the view shows `part`, and which is `base` elsewhere."""


@dataclass(frozen=True)
class Reshaped:
    """All elements under another shape."""

    dims: tuple[int, ...]

    def read(self, base: Traced) -> Traced:
        return reshaped(EMITTER, base, self.dims)

    def write(self, base: Traced, part: Traced) -> Traced:
        return reshaped(EMITTER, part, base.dims)


@dataclass(frozen=True)
class Permuted:
    """The axes in another order."""

    order: tuple[int, ...]

    def read(self, base: Traced) -> Traced:
        return transposed(EMITTER, base, self.order)

    def write(self, base: Traced, part: Traced) -> Traced:
        return transposed(EMITTER, part, sorted(range(len(self.order)), key=self.order.__getitem__))


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


@dataclass(frozen=True)
class Sliced:
    """A range of each axis: (start, stop, step) with a step above 0 and 0 ≤ start ≤ stop ≤ size."""

    ranges: tuple[tuple[int, int, int], ...]

    def read(self, base: Traced) -> Traced:
        axes = [
            at
            for at, (found, size) in enumerate(zip(self.ranges, base.dims, strict=True))
            if found != (0, size, 1)
        ]
        return _sliced(base, axes, [self.ranges[at] for at in axes])

    def write(self, base: Traced, part: Traced) -> Traced:
        return _replaced(base, part, self.ranges, 0)


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
