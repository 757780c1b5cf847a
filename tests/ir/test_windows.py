"""Windows: how far they reach, and the same windows over other numbers of axes."""

from __future__ import annotations

import itertools

from vkml.ir.windows import Windows


def made(size: int, kernel: int, stride: int, dilation: int, begin: int, end: int) -> Windows:
    output = (size + begin + end - (kernel - 1) * dilation - 1) // stride + 1
    return Windows((size,), (kernel,), (stride,), (dilation,), (begin,), (end,), (output,))


def test_reach_is_the_last_element_read() -> None:
    tried = 0
    for size, kernel, stride, dilation, begin, end in itertools.product(
        (5, 8), (1, 3), (1, 2, 3), (1, 2), (0, 2), (0, 1)
    ):
        windows = made(size, kernel, stride, dilation, begin, end)
        read = [
            at * stride + tap * dilation - begin for at in range(windows.output[0]) for tap in range(kernel)
        ]
        assert windows.reach_end == (max(read) - size + 1,), windows
        assert windows.reach_end[0] <= end
        tried += 1
    assert tried == 96


def test_axes_of_size_1_are_put_before_and_taken_away() -> None:
    line = made(8, 3, 2, 1, 1, 0)
    volume = line.over(3)
    assert volume.spatial == (1, 1, 8) and volume.kernel == (1, 1, 3) and volume.strides == (1, 1, 2)
    assert volume.pads_begin == (0, 0, 1) and volume.pads_end == (0, 0, 0) and volume.output == (1, 1, 4)
    assert volume.reach_end == (0, 0, *line.reach_end) and volume.taps == line.taps
    assert volume.over(1) == line and volume.over(2).over(3) == volume and line.over(1) == line
    assert made(8, 1, 1, 1, 0, 0).over(3).is_pointwise and not volume.is_pointwise
