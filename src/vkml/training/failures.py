"""What is said of trainings that cannot go on: losses that are no numbers, memory that is not there."""

from __future__ import annotations

import gc
import math
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from vkml import nn
from vkml.errors import AnomalyFound, OutOfMemory
from vkml.tensors import Tensor
from vkml.tensors.anomaly import set_detect_anomaly
from vkml.training.batches import leaves_of


def explain_loss(
    loss: float, where: str, model: nn.Module, batch: tuple[Any, Any], look: Callable[[Any, Any], None]
) -> AnomalyFound:
    """An error that says where a loss that is no number comes from, as far as that can be found.

    Args:
        loss: it.
        where: step and epoch.
        model: as it was when the loss was computed.
        batch: inputs and target that it was computed of.
        look: computes gradients of them again.
    """
    what = "NaN" if math.isnan(loss) else str(loss)
    for leaves, name in ((leaves_of(batch[0]), "inputs"), (leaves_of(batch[1]), "target")):
        if any(_is_broken(leaf) for leaf in leaves):
            return AnomalyFound(f"the loss is {what} in {where}: the batch's {name} hold NaN or infinity")
    broken = [name for name, parameter in model.named_parameters() if _is_broken(parameter)]
    if broken:
        names = ", ".join(broken[:3]) + (f" and {len(broken) - 3} more" if len(broken) > 3 else "")
        return AnomalyFound(
            f"the loss is {what} in {where}: {names} of the model hold NaN or infinity since a step before. "
            "vkml.fit(..., detect_anomaly=True) stops in that step and names the operator; a lower learning "
            "rate or clip_norm=1.0 may prevent it"
        )
    try:
        with set_detect_anomaly(True):
            look(*batch)
    except AnomalyFound as found:
        return AnomalyFound(f"the loss is {what} in {where}: {found}")
    return AnomalyFound(
        f"the loss is {what} in {where}, and not when the batch is computed again: either random numbers "
        "(dropout) decide, or numbers are near the end of their range; a lower learning rate may prevent it"
    )


def _is_broken(leaf: Any) -> bool:
    array = np.asarray(leaf.detach().numpy() if isinstance(leaf, Tensor) else leaf)
    return array.dtype.kind not in "iub" and not bool(np.isfinite(array.astype(np.float64)).all())


def explain_memory(error: BaseException, where: str, samples: int) -> OutOfMemory:
    """An error that says what to do where memory is short.

    Args:
        error: what was raised; what its frames hold is let go of.
        where: step and epoch.
        samples: of the batch.
    """
    text = str(error) or type(error).__name__
    release(error)
    advice = (
        f"a smaller batch than {samples}, with accumulate= so many times as it is smaller, computes the same"
        if samples > 1
        else "a smaller model or precision='bfloat16' takes less, another device may have more"
    )
    return OutOfMemory(
        f"out of memory in {where}, a batch of {samples}: {text}. What it took is free again: {advice}"
    )


def release(error: BaseException) -> None:
    """Lets go of what the frames of an error and of those before it hold: tensors, arenas."""
    waiting, seen = [error], set()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue  # errors may be one another's context in a circle
        seen.add(id(found))
        traceback.clear_frames(found.__traceback__)
        found.__traceback__ = None
        waiting += [other for other in (found.__cause__, found.__context__) if other is not None]
    gc.collect()
