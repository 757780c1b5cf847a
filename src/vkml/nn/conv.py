"""Convolutions as modules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from vkml.ir import DType
from vkml.nn import functional, init
from vkml.nn.functional.arguments import Sizes, sizes
from vkml.nn.functional.conv import same_padding
from vkml.nn.module import Module, Parameter
from vkml.tensors import Tensor
from vkml.tensors.creation import empty

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """What convolutions and transposed ones share."""

    rank: ClassVar[int]
    is_transposed: ClassVar[bool] = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes, padding: Sizes | str,
        dilation: Sizes, output_padding: Sizes, groups: int, bias: bool, padding_mode: str, device: Any,
        dtype: DType | None,
    ) -> None:  # fmt: skip
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError(f"in_channels must be divisible by groups, {in_channels} is not by {groups}")
        if out_channels % groups:
            raise ValueError(f"out_channels must be divisible by groups, {out_channels} is not by {groups}")
        if padding_mode not in PADDING_MODES:
            raise ValueError(f"padding_mode must be one of {list(PADDING_MODES)}, but got {padding_mode!r}")
        rank = self.rank
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = sizes(kernel_size, rank, "kernel_size"), sizes(stride, rank, "stride")
        self.dilation = sizes(dilation, rank, "dilation")
        self.output_padding = sizes(output_padding, rank, "output_padding")
        self.padding: str | tuple[int, ...]
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {padding!r}, should be one of 'same' or 'valid'")
            if padding == "same" and any(step != 1 for step in self.stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
            self.padding = padding
        else:
            self.padding = sizes(padding, rank, "padding")
        self.padding_mode = padding_mode
        one, other = (in_channels, out_channels) if self.is_transposed else (out_channels, in_channels)
        self.weight = Parameter(empty(one, other // groups, *self.kernel_size, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Evenly from ±1 / √(inputs of an output), as PyTorch begins."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            inputs = math.prod(self.weight.shape[1:])
            bound = 1 / math.sqrt(inputs) if inputs else 0
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}", f"{self.out_channels}", f"kernel_size={self.kernel_size}",
            f"stride={self.stride}",
        ]  # fmt: skip
        rank = self.rank
        if self.padding != (0,) * rank:
            parts.append(f"padding={self.padding}")
        if self.dilation != (1,) * rank:
            parts.append(f"dilation={self.dilation}")
        if self.output_padding != (0,) * rank:
            parts.append(f"output_padding={self.output_padding}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)


class _Conv(_ConvNd):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
        padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias, padding_mode,
            device, dtype,
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[self.rank - 1]
        padding: Sizes | str = self.padding
        if self.padding_mode != "zeros" and padding != "valid":
            input = functional.pad(input, self._around(), self.padding_mode)
            padding = 0
        return convolve(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _around(self) -> list[int]:
        """Padding as `functional.pad` takes it: of the last axis first."""
        if isinstance(self.padding, str):
            begins, ends = same_padding(self.kernel_size, self.dilation)
        else:
            begins, ends = list(self.padding), list(self.padding)
        return [one for pair in zip(begins[::-1], ends[::-1], strict=True) for one in pair]


class _ConvTranspose(_ConvNd):
    is_transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0,
        output_padding: Sizes = 0, groups: int = 1, bias: bool = True, dilation: Sizes = 1,
        padding_mode: str = "zeros", device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The transposed convolution.

        Args:
            input: [batch, in_channels, *spatial], or without a batch.
            output_size: of the spatial axes, or of all; instead of `output_padding`.

        Raises:
            ValueError: such a size cannot be had.
        """
        transpose = (
            functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d
        )[self.rank - 1]  # fmt: skip
        more = self.output_padding if output_size is None else self._padding_for(input, output_size)
        assert not isinstance(self.padding, str)
        return transpose(
            input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation
        )

    def _padding_for(self, input: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        wanted = list(output_size)[-self.rank :]
        assert not isinstance(self.padding, str)
        found = []
        for at, size in enumerate(input.shape[-self.rank :]):
            taps = self.dilation[at] * (self.kernel_size[at] - 1) + 1
            least = (size - 1) * self.stride[at] - 2 * self.padding[at] + taps
            if len(wanted) != self.rank or not least <= wanted[at] < least + self.stride[at]:
                raise ValueError(
                    f"requested an output size of {list(output_size)}, but valid sizes along axis {at} "
                    "range from "
                    f"{least} to {least + self.stride[at] - 1}"
                )
            found.append(wanted[at] - least)
        return tuple(found)


class Conv1d(_Conv):
    """The convolution over one spatial axis.

    Args:
        in_channels: of the input, [batch, in_channels, *spatial].
        out_channels: of the result.
        kernel_size: for all spatial axes, or for each.
        stride: distance of the places that the kernel is at.
        padding: on both sides; "valid" for none, "same" for as much as keeps the sizes.
        dilation: distance of the kernel's elements.
        groups: parts of the channels that have filters of their own.
        bias: whether something is added to each channel.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: channels do not divide into groups, or a padding does not exist.
    """

    rank = 1


class Conv2d(_Conv):
    """The convolution over two spatial axes.

    Args:
        in_channels: of the input, [batch, in_channels, *spatial].
        out_channels: of the result.
        kernel_size: for all spatial axes, or for each.
        stride: distance of the places that the kernel is at.
        padding: on both sides; "valid" for none, "same" for as much as keeps the sizes.
        dilation: distance of the kernel's elements.
        groups: parts of the channels that have filters of their own.
        bias: whether something is added to each channel.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: channels do not divide into groups, or a padding does not exist.
    """

    rank = 2


class Conv3d(_Conv):
    """The convolution over three spatial axes.

    Args:
        in_channels: of the input, [batch, in_channels, *spatial].
        out_channels: of the result.
        kernel_size: for all spatial axes, or for each.
        stride: distance of the places that the kernel is at.
        padding: on both sides; "valid" for none, "same" for as much as keeps the sizes.
        dilation: distance of the kernel's elements.
        groups: parts of the channels that have filters of their own.
        bias: whether something is added to each channel.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: channels do not divide into groups, or a padding does not exist.
    """

    rank = 3


class ConvTranspose1d(_ConvTranspose):
    """The transposed convolution over one spatial axis; see `functional.conv_transpose1d`.

    Arguments as for `Conv1d`; `output_padding` is what the result gets behind besides.
    """

    rank = 1


class ConvTranspose2d(_ConvTranspose):
    """The transposed convolution over two spatial axes; see `functional.conv_transpose2d`.

    Arguments as for `Conv2d`; `output_padding` is what the result gets behind besides.
    """

    rank = 2


class ConvTranspose3d(_ConvTranspose):
    """The transposed convolution over three spatial axes; see `functional.conv_transpose3d`.

    Arguments as for `Conv3d`; `output_padding` is what the result gets behind besides.
    """

    rank = 3
