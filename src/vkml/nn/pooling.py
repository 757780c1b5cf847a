"""Pooling as modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from vkml.nn import functional
from vkml.nn.functional.adaptive import Target
from vkml.nn.functional.arguments import Sizes, sizes
from vkml.nn.module import Module
from vkml.tensors import Tensor


class _MaxPool(Module):
    function: ClassVar[Callable[..., Any]]

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        return type(self).function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class _MaxUnpool(Module):
    function: ClassVar[Callable[..., Tensor]]
    rank: ClassVar[int]

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        super().__init__()
        self.kernel_size = sizes(kernel_size, self.rank, "kernel_size")
        self.stride = self.kernel_size if stride is None else sizes(stride, self.rank, "stride")
        self.padding = sizes(padding, self.rank, "padding")

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return type(self).function(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(Module):
    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
            self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(Module):
    """The mean of each window over one spatial axis; see `functional.avg_pool1d`."""

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = sizes(kernel_size, 1, "kernel_size")
        self.stride = self.kernel_size if stride is None else sizes(stride, 1, "stride")
        self.padding = sizes(padding, 1, "padding")
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return functional.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _LPPool(Module):
    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size, self.stride = norm_type, kernel_size, stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(
            input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode
        )

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class _AdaptiveAvgPool(Module):
    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, output_size: Target) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _AdaptiveMaxPool(Module):
    function: ClassVar[Callable[..., Any]]

    def __init__(self, output_size: Target, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: Tensor) -> Any:
        return type(self).function(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class MaxPool1d(_MaxPool):
    """The greatest element of each window; see `functional.max_pool1d`."""

    function = staticmethod(functional.max_pool1d)


class MaxPool2d(_MaxPool):
    """The greatest element of each window; see `functional.max_pool2d`."""

    function = staticmethod(functional.max_pool2d)


class MaxPool3d(_MaxPool):
    """The greatest element of each window; see `functional.max_pool3d`."""

    function = staticmethod(functional.max_pool3d)


class MaxUnpool1d(_MaxUnpool):
    """What a pooling has found back in its places; see `functional.max_unpool1d`."""

    function = staticmethod(functional.max_unpool1d)
    rank = 1


class MaxUnpool2d(_MaxUnpool):
    """What a pooling has found back in its places; see `functional.max_unpool2d`."""

    function = staticmethod(functional.max_unpool2d)
    rank = 2


class MaxUnpool3d(_MaxUnpool):
    """What a pooling has found back in its places; see `functional.max_unpool3d`."""

    function = staticmethod(functional.max_unpool3d)
    rank = 3


class AvgPool2d(_AvgPool):
    """The mean of each window; see `functional.avg_pool2d`."""

    function = staticmethod(functional.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window; see `functional.avg_pool3d`."""

    function = staticmethod(functional.avg_pool3d)


class LPPool1d(_LPPool):
    """(Σ xᵖ)¹ᐟᵖ of each window; see `functional.lp_pool1d`."""

    function = staticmethod(functional.lp_pool1d)


class LPPool2d(_LPPool):
    """(Σ xᵖ)¹ᐟᵖ of each window; see `functional.lp_pool2d`."""

    function = staticmethod(functional.lp_pool2d)


class LPPool3d(_LPPool):
    """(Σ xᵖ)¹ᐟᵖ of each window; see `functional.lp_pool3d`."""

    function = staticmethod(functional.lp_pool3d)


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means of windows, as many as a given size has; see `functional.adaptive_avg_pool1d`."""

    function = staticmethod(functional.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means of windows, as many as a given size has; see `functional.adaptive_avg_pool2d`."""

    function = staticmethod(functional.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means of windows, as many as a given size has; see `functional.adaptive_avg_pool3d`."""

    function = staticmethod(functional.adaptive_avg_pool3d)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Greatest elements of windows, as many as a given size has; see `functional.adaptive_max_pool1d`."""

    function = staticmethod(functional.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Greatest elements of windows, as many as a given size has; see `functional.adaptive_max_pool2d`."""

    function = staticmethod(functional.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Greatest elements of windows, as many as a given size has; see `functional.adaptive_max_pool3d`."""

    function = staticmethod(functional.adaptive_max_pool3d)
