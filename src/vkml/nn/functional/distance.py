"""Distances and angles between vectors."""

from __future__ import annotations

from vkml.tensors import Tensor
from vkml.tensors import operations as op


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x₁ - x₂ + ε along the last axis.

    Args:
        x1: floats [..., features].
        x2: likewise; broadcast with `x1`.
        p: which norm; see `vkml.norm`.
        eps: ε, which keeps gradients finite at 0.
        keepdim: whether the axis stays, with one element.

    Returns:
        [...].
    """
    return op.norm(op.add(op.sub(x1, x2), eps), p, -1, keepdim)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x₁ · x₂ / (|x₁| |x₂|) along an axis, no length being smaller than `eps`.

    Args:
        x1: floats.
        x2: likewise; broadcast with `x1`.
        dim: the axis.
        eps: the least length that is divided by.

    Returns:
        Without the axis.
    """
    lengths = [op.clamp(op.norm(x, 2, dim, True), min=eps) for x in (x1, x2)]
    return op.sum(op.mul(op.div(x1, lengths[0]), op.div(x2, lengths[1])), dim)
