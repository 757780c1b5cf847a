"""Convolutions that are part of another launch."""

from __future__ import annotations

from vkml.dataclasses import dataclass
from vkml.ir import TensorType
from vkml.ir.windows import Windows
from vkml.kernels.epilogue import Epilogue
from vkml.kernels.views import View


@dataclass(frozen=True)
class Link:
    """A convolution that nobody writes, for what reads it computes it; or that which does."""

    x: View
    weight: View
    bias: View | None
    windows: Windows
    """Over depth, height and width."""
    group: int
    epilogue: Epilogue | None = None
    """Of one that nobody writes, the bias included."""

    @property
    def filters(self) -> int:
        return self.weight.shape[0]

    @property
    def is_of_points(self) -> bool:
        """Whether it is a product over channels."""
        return self.group == 1 and self.windows.is_pointwise

    @property
    def is_of_channels(self) -> bool:
        """Whether each filter has a channel of its own."""
        return self.group == self.x.shape[1] == self.filters and self.weight.shape[1] == 1

    def bias_of(self, result: TensorType) -> View | None:
        """The bias seen in the shape of the result."""
        if self.bias is None:
            return None
        strides = (0, self.bias.strides[0], *(0,) * (result.rank - 2))
        return View(self.bias.buffer, self.bias.dtype, result.dims, strides, self.bias.offset)
