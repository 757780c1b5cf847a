"""Batch normalisation by the statistics of all devices' samples."""

from __future__ import annotations

import functools
from typing import Any

from vkml.ir import DType, dtypes
from vkml.nn.functional.norm import move_statistics
from vkml.nn.module import Module
from vkml.nn.normalization import _BatchNorm
from vkml.nn.parallel.lockstep import exchanged, own_number
from vkml.nn.parallel.scatter_gather import sent
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad


class SyncBatchNorm(_BatchNorm):
    """Each channel standardised over the whole batch, of which a replica of `DataParallel` has a part.

    Means and squared distances from them are combined as Chan et al. (1979) do, so that nothing great is
    subtracted; gradients flow back to all devices. By itself it is a BatchNorm of inputs of any axes.

    Args:
        num_features: channels.
        eps: what is added to variances.
        momentum: share of a batch's statistics in the running ones; None for their mean over all batches.
        affine: whether factors and addends are learned.
        track_running_stats: whether there are running statistics, which `eval` uses.
        process_group: PyTorch's: must be None.
        device: of parameters and buffers.
        dtype: of parameters and buffers.

    Shape:
        [batch, channels, ...], and the same.

    Raises:
        ValueError: an input has fewer than two axes, a channel one value only, or there is a process group.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: None = None, device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        if process_group is not None:
            raise ValueError("a process_group is of several processes: DataParallel has one for all devices")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def _check_axes(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")

    def forward(self, input: Tensor) -> Tensor:
        self._check_axes(input)
        by_batch = self.training or self.running_mean is None or self.running_var is None
        if not by_batch:
            return super().forward(input)
        wide = input if input.dtype.bits >= dtypes.FLOAT32.bits else input.float()
        axes = [axis for axis in range(input.ndim) if axis != 1]
        own_mean = op.mean(wide, axes, keepdim=True)
        apart = wide - own_mean
        own = own_mean, op.sum(apart * apart, axes, keepdim=True), input.numel() // max(input.shape[1], 1)
        found = exchanged(own)
        if len(found) == 1:
            return super().forward(input)
        parts = [
            own if at == own_number() else (sent(mean, input.device), sent(squares, input.device), count)
            for at, (mean, squares, count) in enumerate(found)
        ]
        count = sum(part[2] for part in parts)
        if count == 1:
            raise ValueError("Expected more than 1 value per channel when training, over all devices")
        mean = functools.reduce(op.add, [part[0] * (part[2] / count) for part in parts])
        squares = functools.reduce(op.add, [part[1] + (part[0] - mean) ** 2 * part[2] for part in parts])
        if self.training and self.track_running_stats:
            with no_grad():
                share = self._share_of_batch()
                for stored, now in ((self.running_mean, mean), (self.running_var, squares / (count - 1))):
                    move_statistics(stored, now.detach().reshape(-1), share)
        made = (wide - mean) * (squares / count + self.eps).rsqrt()
        shape = [-1, *[1] * (input.ndim - 2)]
        if self.weight is not None:
            made = made * self.weight.reshape(shape)
        if self.bias is not None:
            made = made + self.bias.reshape(shape)
        return made.to(input.dtype)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: None = None) -> Module:
        """A module with the BatchNorms in it, or itself, in the place of which are `SyncBatchNorm`s.

        They share parameters, buffers and mode.

        Args:
            module: changed, unless it is a BatchNorm itself.
            process_group: PyTorch's: must be None.
        """
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            made = cls(
                module.num_features, module.eps, module.momentum, False, False, process_group
            )  # fmt: skip
            made.affine, made.track_running_stats = module.affine, module.track_running_stats
            made._parameters.update(module._parameters)
            made._buffers.update(module._buffers)
            made.training = module.training
            return made
        for name, child in list(module.named_children()):
            changed = cls.convert_sync_batchnorm(child, process_group)
            if changed is not child:
                setattr(module, name, changed)
        return module
