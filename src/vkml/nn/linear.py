"""Layers of products, and of shapes between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vkml.ir import DType
from vkml.nn import functional, init
from vkml.nn.module import Module, Parameter
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import empty
from vkml.tensors.operands import axis_of


class Linear(Module):
    """x Wᵀ + b.

    Args:
        in_features: of the last axis of x.
        out_features: of the last axis of the result.
        bias: whether there is b.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Evenly from ±1 / √in_features, as PyTorch begins."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return op.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


class Bilinear(Module):
    """x₁ᵀ W x₂ + b for each output.

    Args:
        in1_features: of the last axis of x₁.
        in2_features: of the last axis of x₂.
        out_features: of the last axis of the result.
        bias: whether there is b.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(empty(out_features, in1_features, in2_features, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Evenly from ±1 / √in1_features, as PyTorch begins."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return functional.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


class Flatten(Module):
    """A range of axes as one.

    Args:
        start_dim: the first axis of the range.
        end_dim: the last one.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return op.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One axis as several, of sizes of which one may be -1.

    Args:
        dim: the axis.
        unflattened_size: sizes; their product is the axis's.
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        axis = axis_of(self.dim, input.ndim)
        sizes = list(self.unflattened_size)
        known = math.prod(size for size in sizes if size != -1)
        if sizes.count(-1) > 1 or (-1 in sizes and (not known or input.shape[axis] % known)):
            raise RuntimeError(
                f"unflatten: an axis of {input.shape[axis]} elements is not of the sizes {sizes}"
            )
        sizes = [input.shape[axis] // known if size == -1 else size for size in sizes]
        if math.prod(sizes) != input.shape[axis]:
            raise RuntimeError(
                f"unflatten: an axis of {input.shape[axis]} elements is not of the sizes {sizes}"
            )
        return op.reshape(input, *input.shape[:axis], *sizes, *input.shape[axis + 1 :])

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
