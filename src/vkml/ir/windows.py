"""Windows that slide over spatial axes: the geometry of convolutions and pools."""

from __future__ import annotations

import math
from dataclasses import fields

from vkml.dataclasses import dataclass


@dataclass(frozen=True)
class Windows:
    """Where windows lie over the spatial axes; every tuple has one entry a spatial axis."""

    spatial: tuple[int, ...]
    """Sizes of the input."""
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    output: tuple[int, ...]
    """Windows along each axis."""

    @property
    def extents(self) -> tuple[int, ...]:
        """What one window spans, dilation included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def reach_end(self) -> tuple[int, ...]:
        """Elements behind the input that the last windows read; negative where they leave some unread."""
        return tuple(
            (count - 1) * stride + extent - begin - size
            for count, stride, extent, begin, size in zip(
                self.output, self.strides, self.extents, self.pads_begin, self.spatial, strict=True
            )
        )

    def count_with(self, axis: int, pad_end: int) -> int:
        """Windows along an axis with so many elements behind the input."""
        room = self.pads_begin[axis] + self.spatial[axis] + pad_end - self.extents[axis]
        return room // self.strides[axis] + 1

    def over(self, rank: int) -> Windows:
        """The same windows over so many axes: the last ones, or all, with axes of size 1 put before them."""

        def fitted(field: str) -> tuple[int, ...]:
            missing = (0 if field.startswith("pads") else 1,) * rank
            return (*missing, *getattr(self, field))[-rank:]

        return Windows(*(fitted(field.name) for field in fields(Windows)))

    def live_taps(self, axis: int) -> tuple[int, int]:
        """Taps along an axis, from one to before another, that any window has inside of the input.

        One where there are none.
        """
        taps = range(self.kernel[axis])
        first = next((tap for tap in taps if self._is_live(axis, tap)), None)
        if first is None:
            return 0, 1
        return first, 1 + next(tap for tap in reversed(taps) if self._is_live(axis, tap))

    def _is_live(self, axis: int, tap: int) -> bool:
        stride, before = self.strides[axis], self.pads_begin[axis] - tap * self.dilations[axis]
        window = max(-(-before // stride), 0)
        return window < self.output[axis] and window * stride - before < self.spatial[axis]

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def is_pointwise(self) -> bool:
        """Whether each window is exactly the input element at the output's own place."""
        ones = (1,) * len(self.kernel)
        unpadded = not any(self.pads_begin) and not any(self.pads_end)
        return self.kernel == ones and self.strides == ones and unpadded
