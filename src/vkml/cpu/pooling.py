"""Pooling over channels-last memory: shifted maxima and sums of whole rows."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from vkml.cpu.convolution import Windowed

Array = np.ndarray[Any, Any]
Slices = tuple[slice, ...]


class Pooling:
    """Maximum or mean over windows; x is [N, *spatial, C], the result [N, *output, C].

    Args:
        windows: where the windows lie.
        average: mean instead of maximum.
        counts: of a mean, how many elements each window divides by, shape `output`.
        dtype: what is computed in.
    """

    def __init__(
        self, windows: Windowed, average: bool, counts: Array | None = None, dtype: Any = np.float32
    ) -> None:
        self.windows = windows
        self.combine = np.add if average else np.maximum
        self.fill = 0.0 if average else -math.inf
        self.scale = None if counts is None else (1.0 / counts).astype(dtype)[..., None]
        self._plans: dict[tuple[int, int], list[tuple[Slices, Slices]]] = {}
        self.taps = list(itertools.product(*(range(k) for k in windows.kernel)))

    def rows_per_block(self, threads: int, channels: int) -> int:
        """Rows of the first spatial output axis that one block should have."""
        row = math.prod(self.windows.output[1:]) * channels
        return max(1, min(65536 // max(1, row), -(-self.windows.output[0] // threads)))

    def block(self, x: Array, start: int, stop: int, target: Array) -> None:
        """Rows `start` to `stop` of one image x [*spatial, C] into target [stop - start, *output[1:], C]."""
        plan = self._plans.get((start, stop))
        if plan is None:
            reached = (self._reach(tap, start, stop) for tap in self.taps)
            plan = self._plans[start, stop] = [found for found in reached if found is not None]
        target[...] = self.fill
        for places, sources in plan:
            part = target[places]
            self.combine(part, x[sources], out=part)
        if self.scale is not None:
            np.multiply(target, self.scale[start:stop], target)

    def _reach(self, tap: tuple[int, ...], start: int, stop: int) -> tuple[Slices, Slices] | None:
        """Which outputs of the block a tap reaches inside the input, and the inputs it reads there."""
        windows, places, sources = self.windows, [], []
        for axis, k in enumerate(tap):
            low, high = (start, stop) if axis == 0 else (0, windows.output[axis])
            stride = windows.strides[axis]
            shift = k * windows.dilations[axis] - windows.pads_begin[axis]
            first = max(low, -(shift // stride))
            last = min(high, (windows.spatial[axis] - 1 - shift) // stride + 1)
            if last <= first:
                return None
            places.append(slice(first - low, last - low))
            sources.append(slice(first * stride + shift, (last - 1) * stride + shift + 1, stride))
        return tuple(places), tuple(sources)


def mean_over_places(x: Array, out: Array) -> None:
    """Mean of x [N, places, C] into out [N, C], as a matrix product with a row of 1 / places."""
    places = x.shape[1]
    weights = np.full((1, places), 1.0 / places, x.dtype)
    np.matmul(weights, x, out=out[:, None])
