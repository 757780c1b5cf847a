"""Losses of margins: between examples, and between classes."""

from __future__ import annotations

from collections.abc import Callable

from vkml.ir import scalar
from vkml.ir.scalar import Scalar
from vkml.nn.functional.activation import logsigmoid
from vkml.nn.functional.arguments import require_floats
from vkml.nn.functional.distance import pairwise_distance
from vkml.nn.functional.reduction import reduced, require_shape, weighted, written
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import arange


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, *, reduction: str = "mean"
) -> Tensor:
    """x where the target is 1, max(0, margin - x) where it is -1.

    Args:
        input: of any shape, distances as a rule.
        target: of its shape, or one that is broadcast with it.
        margin: up to which what is not alike costs.
        reduction: "mean", "sum" or "none".
    """
    require_floats(input, "hinge_embedding_loss")

    def form(x: Scalar, t: Scalar) -> Scalar:
        away = scalar.maximum(margin - x, 0.0)
        # As PyTorch adds them up: what is neither 1 nor -1 is in both.
        far = scalar.where(scalar.compare("equal", t, 1.0), 0.0, away)
        return far + scalar.where(scalar.compare("equal", t, -1.0), 0.0, x)

    return reduced(written(form, input, target), reduction)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, *, reduction: str = "mean"
) -> Tensor:
    """max(0, -t (x₁ - x₂) + margin), t being 1 where x₁ is to be the greater, else -1.

    Args:
        input1: x₁, of any shape.
        input2: x₂; broadcast with it.
        target: t; broadcast with both.
        margin: by how much one is to be the greater.
        reduction: "mean", "sum" or "none".

    Raises:
        RuntimeError: the inputs have not as many axes as each other.
    """
    if not input1.ndim == input2.ndim == target.ndim:
        raise RuntimeError(
            f"margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"{list(input1.shape)}, {list(input2.shape)}, {list(target.shape)}"
        )
    require_floats(input1, "margin_ranking_loss")

    def form(x: Scalar, y: Scalar, t: Scalar) -> Scalar:
        return scalar.relu(margin - t * (x - y))

    return reduced(written(form, input1, input2, target), reduction)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, *, reduction: str = "mean"
) -> Tensor:
    """1 - cos(x₁, x₂) where the target is 1, max(0, cos(x₁, x₂) - margin) where it is -1.

    Args:
        input1: [batch, features] or [features].
        input2: likewise.
        target: [batch] or [].
        margin: from [-1, 1].
        reduction: "mean", "sum" or "none".

    Raises:
        RuntimeError: shapes do not fit.
    """
    if input1.ndim not in (1, 2) or input1.shape != input2.shape or target.ndim != input1.ndim - 1:
        raise RuntimeError(
            "cosine_embedding_loss takes inputs [batch, features] and a target [batch], or both without "
            "a batch, "
            f"not {list(input1.shape)}, {list(input2.shape)} and {list(target.shape)}"
        )
    smallest = 1e-12
    product = op.sum(op.mul(input1, input2), -1)
    squares = [op.add(op.sum(op.mul(x, x), -1), smallest) for x in (input1, input2)]
    cosine = op.div(product, op.sqrt(op.mul(*squares)))

    def form(cosine: Scalar, t: Scalar) -> Scalar:
        near = scalar.where(scalar.compare("equal", t, 1.0), 1.0 - cosine, 0.0)
        return near + scalar.where(scalar.compare("equal", t, -1.0), scalar.relu(cosine - margin), 0.0)

    return reduced(written(form, cosine, target), reduction)


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, *, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """max(0, |a - p| - |a - n| + margin) (Balntas et al., 2016).

    Args:
        anchor: [batch, features] or [features].
        positive: what is to be near.
        negative: what is to be far.
        margin: how much farther, at least.
        p: of the norm.
        eps: added to differences.
        swap: whether the positive's distance from the negative counts where it is smaller than the anchor's.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: the margin is not positive.
        RuntimeError: the inputs have not as many axes as each other.
    """

    def distance(x: Tensor, y: Tensor) -> Tensor:
        return pairwise_distance(x, y, p, eps)

    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=distance, margin=margin, swap=swap, reduction=reduction
    )


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0,
    swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`triplet_margin_loss` by any distance; `pairwise_distance` where none is named.

    Args:
        anchor: what the others are compared with.
        positive: what is to be near it.
        negative: what is to be far from it.
        distance_function: of two of them.
        margin: by how much the one is to be nearer than the other.
        swap: whether the smaller of the other's distances from both counts.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: the margin is not above 0.
        RuntimeError: the three have not as many axes as each other.
    """
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of "
            "dimensions, but got: "
            f"anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        )
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = op.minimum(far, distance(positive, negative))
    return reduced(op.relu(op.add(op.sub(near, far), margin)), reduction)


def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, *,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Σ max(0, margin - x[t] + x[i])ᵖ / classes over all classes i but t.

    Args:
        input: [batch, classes] or [classes].
        target: classes, [batch] or [].
        p: 1 or 2.
        margin: between the class and others.
        weight: [classes], factors by the target's class.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: p is something else.
        RuntimeError: shapes do not fit.
    """
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    x, t = (input, target) if input.ndim == 2 else (op.reshape(input, 1, -1), op.reshape(target, -1))
    if x.ndim != 2 or t.shape != (x.shape[0],) or target.ndim > 1:
        raise RuntimeError(
            "multi_margin_loss takes [batch, classes] and [batch], or [classes] and [], not "
            f"{list(input.shape)} and "
            f"{list(target.shape)}"
        )
    if weight is not None and weight.shape != (x.shape[1],):
        raise RuntimeError(f"inconsistent weight size, expected {x.shape[1]} but got {list(weight.shape)}")
    require_floats(input, "multi_margin_loss")
    places = op.unsqueeze(t, 1)
    short = op.relu(op.add(op.sub(x, op.gather(x, 1, places)), margin))
    each = short if p == 1 else op.mul(short, short)
    if weight is not None:
        each = op.mul(each, op.unsqueeze(op.index_select(weight, 0, t), 1))
    others = op.ne(arange(x.shape[1], device=x.device), places)
    loss = op.div(op.sum(op.where(others, each, 0.0), 1), x.shape[1])
    return op.reshape(reduced(loss, reduction), *(target.shape if reduction == "none" else ()))


def multilabel_margin_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Σ max(0, 1 - x[t] + x[i]) / classes over all targets t and all classes i that are none.

    Args:
        input: [batch, classes] or [classes].
        target: of its shape: classes, up to the first -1.
        reduction: "mean", "sum" or "none".

    Raises:
        RuntimeError: shapes do not fit.
    """
    if input.ndim not in (1, 2) or target.shape != input.shape:
        raise RuntimeError(
            "multilabel_margin_loss takes input and target of one shape of one or two axes, not "
            f"{list(input.shape)} "
            f"and {list(target.shape)}"
        )
    require_floats(input, "multilabel_margin_loss")
    x, t = (input, target) if input.ndim == 2 else (op.unsqueeze(input, 0), op.unsqueeze(target, 0))
    classes = x.shape[1]
    counts = op.eq(op.cumsum(op.lt(t, 0).to(target.dtype), 1), 0)
    there = op.where(counts, t, 0)
    # [batch, targets, classes]: which class a target is.
    same = op.logical_and(
        op.eq(op.unsqueeze(there, 2), arange(classes, device=x.device)), op.unsqueeze(counts, 2)
    )
    is_target = op.any(same, 1)
    short = op.relu(op.add(op.sub(op.unsqueeze(x, 1), op.unsqueeze(op.gather(x, 1, there), 2)), 1.0))
    pairs = op.logical_and(op.unsqueeze(counts, 2), op.unsqueeze(op.logical_not(is_target), 1))
    loss = op.div(op.sum(op.where(pairs, short, 0.0), (1, 2)), classes)
    return op.reshape(reduced(loss, reduction), *(input.shape[:-1] if reduction == "none" else ()))


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """The mean over classes of the cross entropies of two classes each and logits.

    Args:
        input: logits, [batch, classes] or [classes].
        target: of their shape, 0 or 1.
        weight: [classes], factors.
        reduction: "mean", "sum" or "none".
    """
    require_floats(input, "multilabel_soft_margin_loss")
    require_shape(target, input.shape, "multilabel_soft_margin_loss", RuntimeError)
    there = op.mul(target, logsigmoid(input))
    rest = op.mul(op.sub(1, target), logsigmoid(op.neg(input)))
    loss = weighted(op.neg(op.add(there, rest)), weight)
    return reduced(op.mean(loss, -1), reduction)
