"""Convolutions and transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.nn.functional.arguments import Sizes, batched, require_alike, require_floats, sizes
from vkml.tensors import Tensor
from vkml.tracing import apply


def same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[list[int], list[int]]:
    """Padding in front and behind that keeps the sizes of axes; of an odd sum more lies behind."""
    whole = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [total // 2 for total in whole], [total - total // 2 for total in whole]


def _convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes | str, dilation: Sizes,
    groups: int, rank: int,
) -> Tensor:  # fmt: skip
    name = f"conv{rank}d"
    x, is_single = batched(x, rank, name)
    _check(x, weight, bias, rank, groups, name)
    steps, gaps = sizes(stride, rank, "stride"), sizes(dilation, rank, "dilation")
    kernel = weight.shape[2:]
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise RuntimeError(f"{name}: padding is 'valid', 'same' or integers, not {padding!r}")
        if padding == "same" and any(step != 1 for step in steps):
            raise RuntimeError(f"{name}: padding='same' is not supported for strided convolutions")
        begins, ends = same_padding(kernel, gaps) if padding == "same" else ([0] * rank, [0] * rank)
    else:
        begins = ends = list(sizes(padding, rank, "padding"))
    _check_numbers(name, steps, (*begins, *ends), gaps)
    if weight.shape[1] * groups != x.shape[1]:
        raise RuntimeError(
            f"{name}: a weight of shape {list(weight.shape)} with groups={groups} takes "
            f"{weight.shape[1] * groups} channels, the input {list(x.shape)} has {x.shape[1]}"
        )
    if weight.shape[0] % groups:
        raise RuntimeError(f"{name}: {weight.shape[0]} filters do not divide into {groups} groups")
    for size, begin, end, taps, gap in zip(x.shape[2:], begins, ends, kernel, gaps, strict=True):
        if size + begin + end < gap * (taps - 1) + 1:
            raise RuntimeError(
                f"{name}: the kernel {list(kernel)} with dilation {list(gaps)} is larger than the input "
                f"{list(x.shape)} with its padding"
            )
    given = [x.value, weight.value, *([] if bias is None else [bias.value])]
    made = apply(
        "Conv", *given, kernel_shape=tuple(kernel), strides=steps, dilations=gaps, group=groups,
        pads=(*begins, *ends),
    )  # fmt: skip
    return Tensor(made).squeeze(0) if is_single else Tensor(made)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, rank: int, groups: int, name: str) -> None:
    require_floats(x, name)
    require_alike(x, weight, f"{name}: the weight")
    require_alike(x, bias, f"{name}: the bias")
    if weight.ndim != rank + 2:
        raise RuntimeError(f"{name}: the weight has {rank + 2} axes, not the shape {list(weight.shape)}")
    if groups < 1:
        raise RuntimeError(f"{name}: groups must be positive, not {groups}")


def _check_numbers(name: str, steps: Sequence[int], pads: Sequence[int], gaps: Sequence[int]) -> None:
    if min(steps) < 1 or min(gaps) < 1 or min(pads) < 0:
        raise RuntimeError(
            f"{name}: stride {list(steps)} and dilation {list(gaps)} must be positive, padding {list(pads)} "
            "not negative"
        )


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The convolution over one spatial axis; see `conv2d`."""
    return _convolved(input, weight, bias, stride, padding, dilation, groups, 1)


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The convolution of [batch, channels, *spatial] over two spatial axes.

    Args:
        input: [batch, channels, *spatial], or without a batch.
        weight: [filters, channels / groups, *kernel].
        bias: [filters].
        stride: for all spatial axes, or for each.
        padding: of zeros on both sides; "valid" for none, "same" for as much as keeps the sizes.
        dilation: distance of the kernel's elements.
        groups: parts of the channels that have filters of their own.

    Raises:
        RuntimeError: shapes or types do not fit, or the kernel is larger than what it moves over.
    """
    return _convolved(input, weight, bias, stride, padding, dilation, groups, 2)


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The convolution over three spatial axes; see `conv2d`."""
    return _convolved(input, weight, bias, stride, padding, dilation, groups, 3)


def _transposed(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes, output_padding: Sizes,
    groups: int, dilation: Sizes, rank: int,
) -> Tensor:  # fmt: skip
    name = f"conv_transpose{rank}d"
    x, is_single = batched(x, rank, name)
    _check(x, weight, bias, rank, groups, name)
    steps, gaps = sizes(stride, rank, "stride"), sizes(dilation, rank, "dilation")
    pads, more = sizes(padding, rank, "padding"), sizes(output_padding, rank, "output_padding")
    _check_numbers(name, steps, pads, gaps)
    if any(not 0 <= one < max(step, gap) for one, step, gap in zip(more, steps, gaps, strict=True)):
        raise RuntimeError(
            f"{name}: output_padding {list(more)} must be smaller than either stride {list(steps)} or "
            f"dilation {list(gaps)}"
        )
    if weight.shape[0] != x.shape[1] or x.shape[1] % groups:
        raise RuntimeError(
            f"{name}: a weight of shape {list(weight.shape)} with groups={groups} does not take the "
            f"{x.shape[1]} channels of an input {list(x.shape)}"
        )
    kernel = weight.shape[2:]
    made_sizes = [
        (size - 1) * step - 2 * pad + gap * (taps - 1) + one + 1
        for size, step, pad, gap, taps, one in zip(x.shape[2:], steps, pads, gaps, kernel, more, strict=True)
    ]
    if math.prod(x.shape) and min(made_sizes) < 1:
        raise RuntimeError(
            f"{name}: the output of an input {list(x.shape)} would have the sizes {made_sizes}, which is "
            "too small"
        )
    given = [x.value, weight.value, *([] if bias is None else [bias.value])]
    made = apply(
        "ConvTranspose", *given, kernel_shape=tuple(kernel), strides=steps, dilations=gaps, group=groups,
        pads=(*pads, *pads), output_padding=more,
    )  # fmt: skip
    return Tensor(made).squeeze(0) if is_single else Tensor(made)


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """The transposed convolution over one spatial axis; see `conv_transpose2d`."""
    return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation, 1)


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """The gradient of a convolution by its image, as an operation: each element adds its kernel.

    Args:
        input: [batch, channels, *spatial] with two spatial axes, or without a batch.
        weight: [channels, filters / groups, *kernel].
        bias: [filters].
        stride: distance of the places that elements add their kernels at.
        padding: what is cut from both sides.
        output_padding: what the last side is longer by; less than stride or dilation.
        groups: parts of the channels that have filters of their own.
        dilation: distance of the kernel's elements.

    Raises:
        RuntimeError: shapes or types do not fit.
    """
    return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation, 2)


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """The transposed convolution over three spatial axes; see `conv_transpose2d`."""
    return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation, 3)
