"""Losses of classes and logarithms of their probabilities."""

from __future__ import annotations

from vkml.errors import OperandError
from vkml.ir import DType
from vkml.ir.dtypes import INT32, INT64
from vkml.nn.functional.arguments import require_floats
from vkml.nn.functional.reduction import reduced
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tracing import apply


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The negative of the target's entry.

    Args:
        input: logarithms of probabilities, [batch, classes, ...] or [classes].
        target: classes, [batch, ...] or [].
        weight: [classes]; the mean is weighted by it.
        ignore_index: a target that does not count.
        reduction: "mean", "sum" or "none".
    """
    _check_weight(weight, input.shape[1 if input.ndim > 1 else 0])
    return _of_classes(input, target, weight, ignore_index, reduction, 0.0)


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The cross entropy of classes, or of probabilities of classes, and logits.

    Args:
        input: logits, [batch, classes, ...] or [classes].
        target: classes, [batch, ...] or [], or probabilities of the input's shape.
        weight: [classes].
        ignore_index: a class that does not count.
        reduction: "mean", "sum" or "none".
        label_smoothing: share of the target that all classes have evenly.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is {label_smoothing}, it must lie in [0, 1]")
    axis = 1 if input.ndim > 1 else 0
    _check_weight(weight, input.shape[axis])
    if not target.dtype.is_float:
        if not label_smoothing:
            return _of_scores(input, target, weight, ignore_index, reduction)
        logs = op.log_softmax(input, axis)
        return _of_classes(logs, target, weight, ignore_index, reduction, label_smoothing)
    if target.shape != input.shape:
        raise OperandError(
            f"probabilities have the input's shape {list(input.shape)}, not {list(target.shape)}"
        )
    logs = op.log_softmax(input, axis)
    wanted = op.add(op.mul(target, 1 - label_smoothing), label_smoothing / input.shape[axis])
    loss = op.neg(op.sum(op.mul(_weighted(logs, weight), wanted), axis))
    if reduction != "mean":
        return reduced(loss, reduction)
    return op.mean(loss)  # over the batch and all places, weighted or not


def _weighted(logs: Tensor, weight: Tensor | None) -> Tensor:
    """Entries of classes times the weights of these."""
    if weight is None:
        return logs
    return op.mul(logs, op.reshape(weight, -1, *[1] * (logs.ndim - 2)) if logs.ndim > 1 else weight)


def _of_scores(
    input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """The cross entropy of classes and logits, in one step for each row of logits."""
    require_floats(input, "cross_entropy")
    if input.ndim == 1:
        found = _of_scores(op.unsqueeze(input, 0), op.unsqueeze(target, 0), weight, ignore_index, reduction)
        return op.squeeze(found, 0) if reduction == "none" else found
    _check_classes(input, target)
    labels = _labels(target)

    def loss(reduction: str) -> Tensor:
        values = input.value, labels.value
        return Tensor(
            apply("SoftmaxCrossEntropyLoss", *values, reduction=reduction, ignore_index=ignore_index)
        )

    if weight is None:
        if reduction not in ("none", "sum", "mean"):
            raise ValueError(f"{reduction} is not a valid value for reduction")
        return loss(reduction)
    losses = loss("none")
    factor = _factor(labels, weight, ignore_index, losses.dtype)
    if reduction == "mean":
        factor = op.div(factor, op.sum(factor))
    return reduced(op.mul(losses, factor), "sum" if reduction == "mean" else reduction)


def _factor(target: Tensor, weight: Tensor | None, ignore_index: int, dtype: DType) -> Tensor:
    """What the loss of each target is multiplied with."""
    counts = op.ne(target, ignore_index)
    factor = counts.to(dtype)
    if weight is None:
        return factor
    there = op.where(counts, target, 0)
    picked = op.reshape(op.index_select(weight, 0, op.reshape(there, -1)), *there.shape)
    return op.mul(picked, factor)


def _of_classes(
    logs: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, smoothing: float
) -> Tensor:
    """The loss of classes; a share of it of all classes evenly (Szegedy et al., 2016)."""
    if logs.ndim == 1:
        logs, target = op.unsqueeze(logs, 0), op.unsqueeze(target, 0)
        found = _of_classes(logs, target, weight, ignore_index, reduction, smoothing)
        return op.squeeze(found, 0) if reduction == "none" else found
    _check_classes(logs, target)
    target = _labels(target)
    counts = op.ne(target, ignore_index)
    there = op.where(counts, target, 0)
    there = op.where(
        op.lt(there, 0), logs.shape[1], there
    )  # which is reported, and does not count from the end
    picked = op.squeeze(op.gather(logs, 1, op.unsqueeze(there, 1)), 1)
    factor = _factor(target, weight, ignore_index, logs.dtype)
    # By shares, not of the sum: so the gradient needs the classes alone, and waits for no sum of the logits.
    total = op.sum(factor) if reduction == "mean" else None
    loss = op.neg(op.mul(picked, factor if total is None else op.div(factor, total)))
    if smoothing:
        even = op.neg(op.sum(_weighted(logs, weight), 1)) * (smoothing / logs.shape[1])
        even = op.where(counts, even if total is None else op.div(even, total), 0.0)
        loss = op.add(op.mul(loss, 1 - smoothing), even)
    return reduced(loss, "sum" if reduction == "mean" else reduction)


def _labels(target: Tensor) -> Tensor:
    """Classes in a type that has numbers for all of them.

    Raises:
        RuntimeError: they are no integers.
    """
    if not target.dtype.is_integer:
        raise OperandError(f"classes are integers, as of int64, not of {target.dtype.numpy_name}")
    return target if target.dtype in (INT32, INT64) else target.to(INT64)


def _check_weight(weight: Tensor | None, classes: int) -> None:
    if weight is not None and tuple(weight.shape) != (classes,):
        raise RuntimeError(f"there is a weight for each of the {classes} classes, not {list(weight.shape)}")


def _check_classes(input: Tensor, target: Tensor) -> None:
    wanted = (input.shape[0], *input.shape[2:])
    if tuple(target.shape) != wanted:
        raise ValueError(
            f"for an input of shape {list(input.shape)} the target has the shape {list(wanted)}, "
            f"not {list(target.shape)}"
        )
