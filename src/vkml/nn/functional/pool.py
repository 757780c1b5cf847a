"""Pooling over sliding windows: greatest elements, averages, norms, and back from greatest elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vkml.ir import Node
from vkml.ir.gradients import zeros
from vkml.nn.functional.arguments import Sizes, batched, require_floats, sizes
from vkml.ops.pool import window_counts
from vkml.ops.windows import resolve_windows
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tracing import EMITTER, apply, apply_all, constant
from vkml.tracing.value import tensor_type


def _windows(
    name: str, rank: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes,
    ceil_mode: bool,
) -> dict[str, Any]:  # fmt: skip
    """The attributes of ONNX's pooling operators.

    Raises:
        RuntimeError: numbers are not positive, or there is more padding than half of the kernel.
    """
    kernel = sizes(kernel_size, rank, "kernel_size")
    steps = kernel if stride is None or stride == () else sizes(stride, rank, "stride")
    pads, gaps = sizes(padding, rank, "padding"), sizes(dilation, rank, "dilation")
    if min(kernel) < 1 or min(steps) < 1 or min(gaps) < 1:
        raise RuntimeError(
            f"{name}: kernel_size {list(kernel)}, stride {list(steps)} and dilation {list(gaps)} must be "
            "greater than zero"
        )
    for pad, taps, gap in zip(pads, kernel, gaps, strict=True):
        if not 0 <= pad <= ((taps - 1) * gap + 1) // 2:
            raise RuntimeError(
                f"{name}: padding {list(pads)} should be at most half of effective kernel size, that of "
                f"kernel_size {list(kernel)} with dilation {list(gaps)}, and not negative"
            )
    return {
        "kernel_shape": kernel, "strides": steps, "pads": (*pads, *pads), "dilations": gaps,
        "ceil_mode": int(ceil_mode),
    }  # fmt: skip


def _max_pool(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes, ceil_mode: bool,
    return_indices: bool, rank: int,
) -> Any:  # fmt: skip
    name = f"max_pool{rank}d"
    x, is_single = batched(x, rank, name)
    require_floats(x, name)
    windows = _windows(name, rank, kernel_size, stride, padding, dilation, ceil_mode)
    if not return_indices:
        made = Tensor(apply("MaxPool", x.value, **windows))
        return made.squeeze(0) if is_single else made
    values, places = map(Tensor, apply_all("MaxPool", [x.value], 2, **windows))
    # ONNX counts through all planes, PyTorch within each.
    places = op.remainder(places, math.prod(x.shape[2:]))
    return (values.squeeze(0), places.squeeze(0)) if is_single else (values, places)


def max_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """The greatest element of each window over one spatial axis; see `max_pool2d`."""
    return _max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, 1)


def max_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """The greatest element of each window over two spatial axes.

    Args:
        input: [batch, channels, *spatial], or without a batch.
        kernel_size: of the windows.
        stride: distance of windows; the kernel's sizes where it is left out.
        padding: of -∞ on both sides.
        dilation: distance of a window's elements.
        ceil_mode: whether a last window that lies only partly inside counts.
        return_indices: whether the places of the elements in their plane come, too.

    Returns:
        the elements; with `return_indices` a pair of these and their places.

    Raises:
        RuntimeError: shapes do not fit.
    """
    return _max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, 2)


def max_pool3d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """The greatest element of each window over three spatial axes; see `max_pool2d`."""
    return _max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, 3)


def _max_unpool(
    x: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes,
    output_size: Sequence[int] | None, rank: int,
) -> Tensor:  # fmt: skip
    name = f"max_unpool{rank}d"
    if indices.shape != x.shape:
        raise RuntimeError(
            f"{name}: the indices have the shape {list(indices.shape)}, the input {list(x.shape)}"
        )
    x, is_single = batched(x, rank, name)
    kernel, pads = sizes(kernel_size, rank, "kernel_size"), sizes(padding, rank, "padding")
    steps = kernel if stride is None or stride == () else sizes(stride, rank, "stride")
    usual = [
        (size - 1) * step - 2 * pad + taps
        for size, step, pad, taps in zip(x.shape[2:], steps, pads, kernel, strict=True)
    ]
    wanted = usual if output_size is None else list(output_size)[-rank:]
    if any(abs(one - other) >= step for one, other, step in zip(wanted, usual, steps, strict=True)):
        raise ValueError(
            f"{name}: output_size {wanted} is no size that pools to {list(x.shape[2:])}: {usual} is one"
        )
    rows = x.shape[0] * x.shape[1]
    flat, places = op.reshape(x, rows, -1), op.reshape(indices, rows, -1)
    empty = zeros(EMITTER, tensor_type(x.dtype, (rows, math.prod(wanted))))
    made = Tensor(apply("ScatterElements", empty, places.value, flat.value, axis=1))
    shape = ([] if is_single else [x.shape[0]]) + [x.shape[1], *wanted]
    return op.reshape(made, *shape)


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """What `max_pool1d` has found back in its places; see `max_unpool2d`."""
    return _max_unpool(input, indices, kernel_size, stride, padding, output_size, 1)


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """What `max_pool2d` has found back in its places, zeros elsewhere.

    Args:
        input: [batch, channels, *spatial], or without a batch.
        indices: of its shape: places in planes of the result.
        kernel_size: of the windows that the elements come from.
        stride: their distance.
        padding: of the image that they were in.
        output_size: of the result, as several sizes pool to the input's.

    Raises:
        RuntimeError: shapes do not fit.
        ValueError: `output_size` does not pool to the input's sizes.
    """
    return _max_unpool(input, indices, kernel_size, stride, padding, output_size, 2)


def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """What `max_pool3d` has found back in its places; see `max_unpool2d`."""
    return _max_unpool(input, indices, kernel_size, stride, padding, output_size, 3)


def _avg_pool(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None, rank: int,
) -> Tensor:  # fmt: skip
    name = f"avg_pool{rank}d"
    x, is_single = batched(x, rank, name)
    require_floats(x, name)
    windows = _windows(name, rank, kernel_size, stride, padding, 1, ceil_mode)
    made = Tensor(apply("AveragePool", x.value, count_include_pad=int(count_include_pad), **windows))
    if divisor_override is not None:
        if not divisor_override:
            raise RuntimeError(f"{name}: divisor must be not zero")
        node = Node("AveragePool", ("x",), ("y",), {"auto_pad": "NOTSET", **windows}, name)
        geometry = resolve_windows(node, x.shape[2:], windows["kernel_shape"], ceil_mode=ceil_mode)
        counts = window_counts(geometry, include_padding=count_include_pad)
        made = op.mul(made, _numbers(counts / divisor_override, x))
    return made.squeeze(0) if is_single else made


def _numbers(array: Any, like: Tensor) -> Tensor | float:
    """Numbers of the structure: one where all are the same."""
    same = array.size and (array == array.flat[0]).all()
    return float(array.flat[0]) if same else Tensor(constant(array, like.dtype))


def avg_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """The mean of each window over one spatial axis; see `avg_pool2d`."""
    return _avg_pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad, None, 1)


def avg_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each window over two spatial axes.

    Args:
        input: [batch, channels, *spatial], or without a batch.
        kernel_size: of the windows.
        stride: distance of windows; the kernel's sizes where it is left out.
        padding: of zeros on both sides.
        ceil_mode: whether a last window that lies only partly inside counts.
        count_include_pad: whether padding counts among a window's elements.
        divisor_override: by what sums are divided instead of by the number of elements.

    Raises:
        RuntimeError: shapes do not fit.
    """
    return _avg_pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 2)


def avg_pool3d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each window over three spatial axes; see `avg_pool2d`."""
    return _avg_pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 3)


def _lp_pool(
    x: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None, ceil_mode: bool, rank: int
) -> Tensor:
    mean = _avg_pool(op.pow(x, norm_type), kernel_size, stride, 0, ceil_mode, True, None, rank)
    total = op.mul(mean, math.prod(sizes(kernel_size, rank, "kernel_size")))
    # As PyTorch writes it: sums of odd powers may be negative, which then are 0.
    return op.pow(op.relu(total), 1.0 / norm_type)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ xᵖ)¹ᐟᵖ of each window over one spatial axis; see `lp_pool2d`."""
    return _lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 1)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ xᵖ)¹ᐟᵖ of each window over two spatial axes.

    Args:
        input: [batch, channels, *spatial], or without a batch.
        norm_type: p.
        kernel_size: of the windows.
        stride: distance of windows; the kernel's sizes where it is left out.
        ceil_mode: whether a last window that lies only partly inside counts.
    """
    return _lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 2)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ xᵖ)¹ᐟᵖ of each window over three spatial axes; see `lp_pool2d`."""
    return _lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 3)
