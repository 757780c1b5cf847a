"""Layers of one product or one table."""

from __future__ import annotations

import math
from typing import Any

from vkml.ir import DType
from vkml.nn import functional, init
from vkml.nn.module import Module, Parameter
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import empty


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
        self.bias = Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
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


class Embedding(Module):
    """Rows of a table by number.

    Args:
        num_embeddings: rows.
        embedding_dim: features of a row.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normally, of mean 0 and standard deviation 1."""
        init.normal_(self.weight)

    def forward(self, indices: Tensor) -> Tensor:
        return functional.embedding(indices, self.weight)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


class Flatten(Module):
    """A range of axes as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return op.flatten(x, self.start_dim, self.end_dim)
