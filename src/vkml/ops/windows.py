"""Sliding windows over spatial axes: the arithmetic that convolutions and pools share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.graph import Node
from vkml.ir.operator import INTS, Array
from vkml.ir.windows import Windows
from vkml.ops.limits import check_padding

WINDOW_ATTRIBUTES = {"dilations": INTS, "kernel_shape": INTS, "pads": INTS, "strides": INTS}
AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def spatial_attribute(node: Node, key: str, rank: int, default: int, least: int) -> tuple[int, ...]:
    """An attribute with one integer a spatial axis, or its default; checks length and lower bound."""
    value = node.attributes[key]
    if value is None:
        return (default,) * rank
    found = tuple(int(element) for element in value)
    if len(found) != rank:
        raise ShapeError(
            f"{node.label}: {key} {list(found)} has {len(found)} entries for {rank} spatial axes"
        )
    if any(not least <= element < 2**31 for element in found):
        raise InvalidGraph(f"{node.label}: {key} {list(found)} must lie in {least} … {2**31 - 1}")
    return found


def auto_pad_mode(node: Node) -> str:
    """The node's auto_pad, checked."""
    mode: str = node.attributes["auto_pad"] or "NOTSET"
    if mode not in AUTO_PADS:
        raise InvalidGraph(f"{node.label}: auto_pad {mode!r} is not one of {', '.join(AUTO_PADS)}")
    return mode


def explicit_pads(node: Node, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The `pads` attribute as (begins, ends); negative pads, which mean nothing here, are refused."""
    value = node.attributes["pads"]
    found = (0,) * (2 * rank) if value is None else tuple(int(element) for element in value)
    if len(found) != 2 * rank:
        raise ShapeError(f"{node.label}: pads {list(found)} has {len(found)} entries for {rank} spatial axes")
    if any(not 0 <= element < 2**31 for element in found):
        raise InvalidGraph(f"{node.label}: pads {list(found)} must not be negative")
    return found[:rank], found[rank:]


def resolve_windows(
    node: Node, spatial: Sequence[int], kernel: Sequence[int], *, ceil_mode: bool = False
) -> Windows:
    """Resolves strides, dilations, pads and auto_pad of a node into windows.

    Args:
        node: Carries `strides`, `dilations`, `pads` and `auto_pad` (None where absent).
        spatial: Sizes of the input's spatial axes.
        kernel: Taps along each.
        ceil_mode: Whether a last window that only partly lies inside counts. One that would start in the
            padding behind the input never does (ONNX clarified this for all opsets).

    Raises:
        ShapeError: A window is larger than its padded axis, or attribute lengths are wrong.
    """
    rank = len(spatial)
    if any(k < 1 for k in kernel):
        raise ShapeError(f"{node.label}: kernel {list(kernel)} must be positive")
    strides = spatial_attribute(node, "strides", rank, 1, 1)
    dilations = spatial_attribute(node, "dilations", rank, 1, 1)
    mode = auto_pad_mode(node)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    output: list[int] = []
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        begins, ends = [], []
        for size, extent, stride in zip(spatial, extents, strides, strict=True):
            count = -(-size // stride)
            total = max((count - 1) * stride + extent - size, 0)
            small, large = total // 2, total - total // 2
            begins.append(small if mode == "SAME_UPPER" else large)
            ends.append(large if mode == "SAME_UPPER" else small)
            output.append(count)
    else:
        pads = explicit_pads(node, rank) if mode == "NOTSET" else ((0,) * rank, (0,) * rank)
        begins, ends = list(pads[0]), list(pads[1])
        for axis, (size, extent, stride) in enumerate(zip(spatial, extents, strides, strict=True)):
            span = size + begins[axis] + ends[axis] - extent
            count = -(-span // stride) + 1 if ceil_mode else span // stride + 1
            # Counted up, windows larger than their axis may be one all the same, or none; never fewer.
            if count < 0 or (span < 0 and not ceil_mode):
                raise ShapeError(
                    f"{node.label}: a window of {extent} "
                    f"(kernel {list(kernel)}, dilations {list(dilations)}) is larger than "
                    f"spatial axis {axis} of size {size} with pads {begins[axis]} and {ends[axis]}"
                )
            if ceil_mode and (count - 1) * stride >= size + begins[axis]:
                count -= 1
            output.append(count)
    return Windows(
        tuple(spatial), tuple(kernel), strides, dilations, tuple(begins), tuple(ends), tuple(output)
    )


def check_window_padding(node: Node, windows: Windows, planes_in: int, planes_out: int) -> None:
    """Raises `ShapeError` where the padded input is out of all proportion to input and output.

    Args:
        node: The node, for the message.
        windows: Its windows.
        planes_in: Samples times channels of the input.
        planes_out: Samples times channels of the output.
    """
    # An empty batch must not hide huge pads: NumPy refuses such shapes even without elements.
    padded = max(planes_in, 1)
    for size, extent, stride, count in zip(
        windows.spatial, windows.extents, windows.strides, windows.output, strict=True
    ):
        padded *= max(size, (count - 1) * stride + extent)
    elements = planes_in * math.prod(windows.spatial) + planes_out * math.prod(windows.output)
    check_padding(node, elements, padded)


def pad_for_windows(array: Array, windows: Windows, fill: float) -> Array:
    """`array` [N, C, *spatial] padded so that every window lies inside it.

    With ceil_mode a window may reach beyond the stated padding; with large strides, last elements go unused.
    """
    widths = [(0, 0), (0, 0)]
    for begin, end, reach in zip(windows.pads_begin, windows.pads_end, windows.reach_end, strict=True):
        widths.append((begin, max(end, reach, 0)))
    if not any(begin or end for begin, end in widths):
        return array
    return np.pad(array, widths, constant_values=np.asarray(fill, dtype=array.dtype))


def tap_views(padded: Array, windows: Windows) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each kernel tap, the view [N, C, *output] of the padded input that it reads in every window."""
    for tap in itertools.product(*(range(k) for k in windows.kernel)):
        slices = [slice(None), slice(None)]
        for place, dilation, stride, count in zip(
            tap, windows.dilations, windows.strides, windows.output, strict=True
        ):
            start = place * dilation
            slices.append(slice(start, start + (count - 1) * stride + 1 if count else start, stride))
        yield tap, padded[tuple(slices)]


def window_view(padded: Array, windows: Windows) -> Array:
    """A read-only view [N, C, *output, *kernel] of the padded input, without a copy."""
    rank = len(windows.kernel)
    steps = padded.strides[2:]
    strides = (
        *padded.strides[:2],
        *(step * stride for step, stride in zip(steps, windows.strides, strict=True)),
        *(step * dilation for step, dilation in zip(steps, windows.dilations, strict=True)),
    )
    assert padded.ndim == rank + 2
    shape = (*padded.shape[:2], *windows.output, *windows.kernel)
    return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)
