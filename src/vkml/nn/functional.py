"""Layers and losses as functions of tensors, as in `torch.nn.functional`."""

from __future__ import annotations

from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tracing import apply

linear, relu, sigmoid, tanh = op.linear, op.relu, op.sigmoid, op.tanh
softmax, log_softmax = op.softmax, op.log_softmax


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x Φ(x), Φ being the normal distribution's; by tanh where `approximate` says so."""
    return Tensor(apply("Gelu", x.value, approximate=approximate))


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return Tensor(apply("Swish", x.value))


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x, times a slope where it is negative."""
    return Tensor(apply("LeakyRelu", x.value, alpha=float(negative_slope)))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x, and α (eˣ - 1) where it is negative."""
    return Tensor(apply("Elu", x.value, alpha=float(alpha)))


def softplus(x: Tensor) -> Tensor:
    """log (1 + eˣ)."""
    return Tensor(apply("Softplus", x.value))


def hardswish(x: Tensor) -> Tensor:
    """x min(max(x / 6 + 1/2, 0), 1)."""
    return Tensor(apply("HardSwish", x.value))


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """Rows of a table.

    Args:
        indices: of any shape.
        weight: [rows, features].
    """
    return Tensor(apply("Gather", weight.value, indices.value, axis=0))


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return op.mean(loss)
    if reduction == "sum":
        return op.sum(loss)
    if reduction == "none":
        return loss
    raise ValueError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r}")


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squared difference."""
    off = op.sub(input, target)
    return _reduced(op.mul(off, off), reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The size of the difference."""
    return _reduced(op.abs(op.sub(input, target)), reduction)


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """-(t log σ(x) + (1 - t) log(1 - σ(x))), without overflow."""
    rest = softplus(op.neg(op.abs(input)))
    return _reduced(op.add(op.sub(op.relu(input), op.mul(input, target)), rest), reduction)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The negative of the target's entry.

    Args:
        input: logarithms of probabilities, [batch, classes, ...].
        target: classes, [batch, ...].
        weight: [classes]; the mean is weighted by it.
        ignore_index: a target that does not count.
        reduction: "mean", "sum" or "none".
    """
    _check_classes(input, target)
    counts = op.ne(target, ignore_index)
    there = op.where(counts, target, 0)
    picked = op.squeeze(op.gather(input, 1, op.unsqueeze(there, 1)), 1)
    factor = (
        op.to_float(counts, input.dtype)
        if weight is None
        else op.mul(
            op.index_select(weight, 0, op.reshape(there, -1)).reshape(*there.shape),
            op.to_float(counts, input.dtype),
        )
    )
    loss = op.neg(op.mul(picked, factor))
    return op.div(op.sum(loss), op.sum(factor)) if reduction == "mean" else _reduced(loss, reduction)


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The cross entropy of classes, or of probabilities of classes, and logits.

    Args:
        input: logits, [batch, classes, ...].
        target: classes, [batch, ...], or probabilities of the input's shape.
        weight: [classes].
        ignore_index: a class that does not count.
        reduction: "mean", "sum" or "none".
        label_smoothing: share of the target that all classes have evenly.
    """
    logs = op.log_softmax(input, 1 if input.ndim > 1 else 0)
    if target.dtype.is_float:
        even = label_smoothing / input.shape[1]
        wanted = op.add(op.mul(target, 1 - label_smoothing), even) if label_smoothing else target
        loss = op.neg(op.sum(op.mul(logs, wanted), 1))
        return op.div(op.sum(loss), loss.numel()) if reduction == "mean" else _reduced(loss, reduction)
    found = nll_loss(logs, target, weight, ignore_index, reduction)
    if not label_smoothing:
        return found
    if weight is not None or reduction == "none":
        raise NotImplementedError("label smoothing with weights, or without a reduction")
    counts = op.to_float(op.ne(target, ignore_index), input.dtype)
    spread = op.neg(op.sum(op.mul(op.mean(logs, 1), counts)))
    if reduction == "mean":
        spread = op.div(spread, op.sum(counts))
    return op.add(op.mul(found, 1 - label_smoothing), op.mul(spread, label_smoothing))


def _check_classes(input: Tensor, target: Tensor) -> None:
    wanted = (input.shape[0], *input.shape[2:])
    if input.ndim < 2 or tuple(target.shape) != wanted:
        raise ValueError(
            f"for an input of shape {list(input.shape)} the target has the shape {list(wanted)}, "
            f"not {list(target.shape)}"
        )
