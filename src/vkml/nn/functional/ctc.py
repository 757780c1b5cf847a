"""The loss of sequences that are not aligned with their targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.nn.functional.arguments import require_floats
from vkml.nn.functional.padding import pad
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import arange, as_tensor, full

_NEVER = -1e30
"""The logarithm of what cannot be: finite, so that differences of two are numbers."""


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """The negative logarithm of the probability of targets, summed over all alignments (Graves et al., 2006).

    A step of the recurrence is recorded for each step of the input.

    Args:
        log_probs: logarithms of probabilities, [steps, batch, classes] or [steps, classes].
        targets: classes other than the blank, [batch, most of a target], or [sum of all targets' lengths].
        input_lengths: [batch], up to the number of steps.
        target_lengths: [batch].
        blank: the class that stands for none.
        reduction: "mean" (of losses over their target's length), "sum" or "none".
        zero_infinity: whether losses of targets that are too long are 0, and have no gradient.

    Returns:
        the loss; infinite where no alignment exists.

    Raises:
        RuntimeError: shapes do not fit.
        ValueError: the reduction does not exist.
    """
    require_floats(log_probs, "ctc_loss")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r}")
    is_single = log_probs.ndim == 2
    if log_probs.ndim not in (2, 3) or not log_probs.shape[0]:
        raise RuntimeError(f"ctc_loss takes [steps, batch, classes], not the shape {list(log_probs.shape)}")
    logs = op.unsqueeze(log_probs, 1) if is_single else log_probs
    steps, batch, classes = logs.shape
    if not 0 <= blank < classes:
        raise RuntimeError(f"ctc_loss: blank {blank} must be one of {classes} classes")
    lengths, sizes = (_lengths(x, batch, logs.device) for x in (input_lengths, target_lengths))
    padded = _padded(targets, target_lengths, batch, is_single)
    states, may_skip = _states(padded, blank)
    places = op.broadcast_to(op.unsqueeze(states, 0), (steps, *states.shape))
    offered = op.gather(logs, 2, places)
    at = arange(states.shape[1], device=logs.device)
    last = op.unsqueeze(op.mul(sizes, 2), 1)
    begins = op.logical_and(op.le(at, 1), op.le(at, last))
    known = op.where(begins, offered[0], _NEVER)
    for step in range(1, steps):
        before = op.where(may_skip, _moved(known, 2), _NEVER)
        total = _sum_of_exponentials([known, _moved(known, 1), before])
        is_there = op.unsqueeze(op.lt(step, lengths), 1)
        known = op.where(is_there, op.add(total, offered[step]), known)
    is_end = op.logical_or(op.eq(at, last), op.eq(at, op.sub(last, 1)))
    loss = op.neg(op.logsumexp(op.where(is_end, known, _NEVER), 1))
    is_impossible = op.gt(loss, -_NEVER / 2)
    loss = op.where(is_impossible, 0.0 if zero_infinity else float("inf"), loss)
    if reduction == "mean":
        return op.mean(op.div(loss, op.clamp(sizes, min=1).to(loss.dtype)))
    if reduction == "sum":
        return op.sum(loss)
    return op.squeeze(loss, 0) if is_single else loss


def _lengths(given: Any, batch: int, device: str) -> Tensor:
    found = op.reshape(as_tensor(given, device=device), -1)
    if found.shape[0] != batch:
        raise RuntimeError(f"ctc_loss: {found.shape[0]} lengths for a batch of {batch}")
    return found


def _padded(targets: Tensor, target_lengths: Any, batch: int, is_single: bool) -> Tensor:
    """Targets as [batch, most of a target]; those one behind the other are taken apart."""
    if targets.ndim == 2 and targets.shape[0] == batch:
        return targets
    if targets.ndim != 1:
        raise RuntimeError(f"ctc_loss: targets {list(targets.shape)} for a batch of {batch}")
    if is_single:
        return op.unsqueeze(targets, 0)
    sizes = np.asarray(target_lengths.tolist() if isinstance(target_lengths, Tensor) else target_lengths)
    if sizes.sum() != targets.shape[0]:
        raise RuntimeError(f"ctc_loss: {targets.shape[0]} targets for lengths whose sum is {sizes.sum()}")
    if not sizes.sum():
        return op.reshape(targets, batch, 0)
    begins = np.cumsum(sizes) - sizes
    places = np.minimum(begins[:, None] + np.arange(sizes.max()), len(targets) - 1)
    return op.reshape(
        op.index_select(targets, 0, as_tensor(places.reshape(-1), device=targets.device)), *places.shape
    )


def _states(targets: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """Targets with blanks between and around, and where the blank before may be left out."""
    batch, most = targets.shape
    blanks = op.add(op.mul(targets, 0), blank)
    pairs = op.reshape(op.stack([blanks, targets], 2), batch, 2 * most)
    states = op.cat([pairs, _columns(targets, blank, 1)], 1)
    earlier = op.cat([_columns(targets, -1, 2), states[:, : max(2 * most - 1, 0)]], 1)[:, : 2 * most + 1]
    return states, op.logical_and(op.ne(states, blank), op.ne(states, earlier))


def _columns(like: Tensor, value: int, count: int) -> Tensor:
    return full((like.shape[0], count), value, dtype=like.dtype, device=like.device)


def _moved(known: Tensor, by: int) -> Tensor:
    """Each state's value at the one so many behind it."""
    return pad(known, [by, -by], value=_NEVER)


def _sum_of_exponentials(parts: Sequence[Tensor]) -> Tensor:
    """log Σ exp of three, element by element."""
    return op.logsumexp(op.stack(parts, 0), 0)
