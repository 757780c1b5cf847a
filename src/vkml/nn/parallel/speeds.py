"""How fast devices are at a module's work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from vkml.nn.module import Module
from vkml.tensors import Tensor
from vkml.tensors.autograd import no_grad
from vkml.tensors.backward import compute
from vkml.tensors.generator import fork_rng

_WARM_UP, _TIMES = 2, 3


def measured_shares(
    modules: Sequence[Callable[[], Module]],
    parts: Sequence[Any],
    devices: Sequence[str],
    samples: Sequence[int],
) -> list[float]:
    """The parts of a batch with which devices would be done at the same time, by forward passes of each.

    Nothing of the modules changes, nor do generators.

    Args:
        modules: what makes each device's module for one call, with tensors of its own.
        parts: positional and named arguments for each, on the device.
        devices: their names.
        samples: of each part.

    Returns:
        Numbers whose sum is 1.
    """
    rates = []
    with no_grad(), fork_rng(devices):
        for make, (given, named), count in zip(modules, parts, samples, strict=True):
            taken = []
            for _ in range(_WARM_UP + _TIMES):
                start = time.perf_counter()
                compute(tensors_in(make()(*given, **named)))
                taken.append(time.perf_counter() - start)
            rates.append(count / max(min(taken[_WARM_UP:]), 1e-9))
    return [rate / sum(rates) for rate in rates]


def tensors_in(made: Any) -> list[Tensor]:
    """All tensors in something nested."""
    if isinstance(made, Tensor):
        return [made]
    items = made.values() if isinstance(made, dict) else made
    return [x for item in items for x in tensors_in(item)] if isinstance(made, list | tuple | dict) else []
