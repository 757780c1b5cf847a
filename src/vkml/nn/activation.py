"""Activations as modules."""

from __future__ import annotations

from vkml.nn import functional
from vkml.nn.module import Module
from vkml.tensors import Tensor
from vkml.tensors import operations as op


class Identity(Module):
    """What it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return op.relu(x)


class Sigmoid(Module):
    """1 / (1 + e⁻ˣ)."""

    def forward(self, x: Tensor) -> Tensor:
        return op.sigmoid(x)


class Tanh(Module):
    """tanh x."""

    def forward(self, x: Tensor) -> Tensor:
        return op.tanh(x)


class SiLU(Module):
    """x sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(x)


class Softplus(Module):
    """log (1 + eˣ)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.softplus(x)


class Hardswish(Module):
    """x min(max(x / 6 + 1/2, 0), 1)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.hardswish(x)


class GELU(Module):
    """x Φ(x)."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x, self.approximate)


class LeakyReLU(Module):
    """x, times a slope where it is negative."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(x, self.negative_slope)


class ELU(Module):
    """x, and α (eˣ - 1) where it is negative."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return functional.elu(x, self.alpha)


class Softmax(Module):
    """exp x / Σ exp x along an axis."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return op.softmax(x, self.dim)


class LogSoftmax(Softmax):
    """The logarithm of softmax."""

    def forward(self, x: Tensor) -> Tensor:
        return op.log_softmax(x, self.dim)
