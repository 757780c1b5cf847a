"""Normalisations as modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from vkml.ir import DType, dtypes
from vkml.nn import functional, init
from vkml.nn.module import Module, Parameter
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.backward import compute_later
from vkml.tensors.creation import empty, ones, zeros


class _NormBase(Module):
    """What normalisations of channels by batches and by instances share."""

    axes: ClassVar[tuple[int, ...]]
    """How many axes an input may have."""
    num_batches_tracked: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(
        self, num_features: int, eps: float, momentum: float | None, affine: bool, track_running_stats: bool,
        device: Any, dtype: DType | None, bias: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        weight = Parameter(empty(num_features, device=device, dtype=dtype)) if affine else None
        addend = Parameter(empty(num_features, device=device, dtype=dtype)) if affine and bias else None
        self.register_parameter("weight", weight)
        self.register_parameter("bias", addend)
        tracks = track_running_stats
        self.register_buffer(
            "running_mean", zeros(num_features, device=device, dtype=dtype) if tracks else None
        )
        self.register_buffer(
            "running_var", ones(num_features, device=device, dtype=dtype) if tracks else None
        )
        count = zeros((), device=device, dtype=dtypes.INT64) if tracks else None
        self.register_buffer("num_batches_tracked", count)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Mean 0, variance 1, of no batches."""
        for stored, value in ((self.running_mean, 0), (self.running_var, 1), (self.num_batches_tracked, 0)):
            if stored is not None:
                stored.fill_(value)

    def reset_parameters(self) -> None:
        """Factors 1, addends 0, and no statistics."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _check_axes(self, input: Tensor) -> None:
        if input.ndim not in self.axes:
            wanted = " or ".join(f"{axes}D" for axes in self.axes)
            raise ValueError(f"expected {wanted} input (got {input.ndim}D input)")

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_NormBase):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: DType | None = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_axes(input)
        share = self._share_of_batch()
        is_stored = not self.training or self.track_running_stats
        mean, variance = (self.running_mean, self.running_var) if is_stored else (None, None)
        by_batch = self.training or (self.running_mean is None and self.running_var is None)
        return functional.batch_norm(input, mean, variance, self.weight, self.bias, by_batch, share, self.eps)

    def _share_of_batch(self) -> float | Tensor:
        """Counts a batch, in training; the share of its statistics in the running ones."""
        share: float | Tensor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            with no_grad():
                count = self.num_batches_tracked.add_(1)
                compute_later(count.value)
                if self.momentum is None:  # the mean over all batches
                    share = op.div(1.0, count.to(dtypes.FLOAT32))
        return share


class _InstanceNorm(_NormBase):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: DType | None = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_axes(input)
        is_single = input.ndim == self.axes[0]
        channels = input.shape[0 if is_single else 1]
        if channels != self.num_features and self.affine:
            raise ValueError(
                f"expected {self.num_features} channels, but the input {list(input.shape)} has {channels}"
            )
        made = functional.instance_norm(
            input.unsqueeze(0) if is_single else input, self.running_mean, self.running_var, self.weight,
            self.bias, self.training or not self.track_running_stats, self.momentum or 0.0, self.eps,
        )  # fmt: skip
        return made.squeeze(0) if is_single else made


class BatchNorm1d(_BatchNorm):
    """Each channel standardised over its batch, of inputs of 2 or 3 axes; see `functional.batch_norm`.

    Args:
        num_features: channels.
        eps: what is added to variances.
        momentum: share of a batch's statistics in the running ones; None for their mean over all batches.
        affine: whether factors and addends are learned.
        track_running_stats: whether there are running statistics, which `eval` uses.
        device: of parameters and buffers.
        dtype: of parameters and buffers.
        bias: whether there are addends.
    """

    axes = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Each channel standardised over its batch, of inputs of 4 axes; see `functional.batch_norm`.

    Args:
        num_features: channels.
        eps: what is added to variances.
        momentum: share of a batch's statistics in the running ones; None for their mean over all batches.
        affine: whether factors and addends are learned.
        track_running_stats: whether there are running statistics, which `eval` uses.
        device: of parameters and buffers.
        dtype: of parameters and buffers.
        bias: whether there are addends.
    """

    axes = (4,)


class BatchNorm3d(_BatchNorm):
    """Each channel standardised over its batch, of inputs of 5 axes; see `functional.batch_norm`.

    Args:
        num_features: channels.
        eps: what is added to variances.
        momentum: share of a batch's statistics in the running ones; None for their mean over all batches.
        affine: whether factors and addends are learned.
        track_running_stats: whether there are running statistics, which `eval` uses.
        device: of parameters and buffers.
        dtype: of parameters and buffers.
        bias: whether there are addends.
    """

    axes = (5,)


class InstanceNorm1d(_InstanceNorm):
    """Each channel of each sample standardised over one spatial axis; arguments as of `BatchNorm1d`."""

    axes = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Each channel of each sample standardised over two spatial axes; arguments as of `BatchNorm2d`."""

    axes = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Each channel of each sample standardised over three spatial axes; arguments as of `BatchNorm3d`."""

    axes = (4, 5)


class GroupNorm(Module):
    """Groups of channels of each sample standardised; see `functional.group_norm`.

    Args:
        num_groups: how many; they divide the channels.
        num_channels: channels.
        eps: what is added to variances.
        affine: whether factors and addends are learned.
        device: of the parameters.
        dtype: of the parameters.
        bias: whether there are addends.

    Raises:
        ValueError: channels do not divide into groups.
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
        dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        weight = Parameter(empty(num_channels, device=device, dtype=dtype)) if affine else None
        addend = Parameter(empty(num_channels, device=device, dtype=dtype)) if affine and bias else None
        self.register_parameter("weight", weight)
        self.register_parameter("bias", addend)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Factors 1, addends 0."""
        _reset(self)

    def forward(self, input: Tensor) -> Tensor:
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


def _reset(module: Module) -> None:
    if module.weight is not None:
        init.ones_(module.weight)
    if module.bias is not None:
        init.zeros_(module.bias)


class LayerNorm(Module):
    """Trailing axes standardised; see `functional.layer_norm`.

    Args:
        normalized_shape: sizes of the trailing axes.
        eps: what is added to variances.
        elementwise_affine: whether factors and addends are learned.
        bias: whether there are addends.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        dims = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = dims, eps, elementwise_affine
        weight = Parameter(empty(*dims, device=device, dtype=dtype)) if elementwise_affine else None
        addend = Parameter(empty(*dims, device=device, dtype=dtype)) if elementwise_affine and bias else None
        self.register_parameter("weight", weight)
        self.register_parameter("bias", addend)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Factors 1, addends 0."""
        _reset(self)

    def forward(self, input: Tensor) -> Tensor:
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """Trailing axes over the root of their mean square; see `functional.rms_norm`.

    Args:
        normalized_shape: sizes of the trailing axes.
        eps: what is added to mean squares; the type's smallest step at 1 where left out.
        elementwise_affine: whether factors are learned.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None,
        elementwise_affine: bool = True, device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        dims = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = dims, eps, elementwise_affine
        weight = Parameter(empty(*dims, device=device, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Factors 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LocalResponseNorm(Module):
    """x over a power of squares of neighbouring channels; see `functional.local_response_norm`."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return functional.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
