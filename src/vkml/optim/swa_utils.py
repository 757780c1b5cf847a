"""Averages of models: over steps, or exponential ones, as in `torch.optim.swa_utils`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

from vkml.nn.module import Module
from vkml.optim.lr_scheduler.base import LRScheduler, for_groups
from vkml.optim.optimizer import Optimizer
from vkml.tensors import Tensor
from vkml.tensors.autograd import no_grad
from vkml.tensors.backward import compute
from vkml.tensors.creation import as_tensor, tensor
from vkml.tensors.operations import where

Average = Callable[[Tensor, Tensor, Tensor], Tensor]
AverageAll = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None]


def _share(decay: float) -> float:
    if not 0 <= decay <= 1:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")
    return decay


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """An exponential average: of what was, `decay` is kept.

    Args:
        decay: from 0 to 1.

    Raises:
        ValueError: it is something else.
    """
    _share(decay)

    def ema_update(ema_param: Tensor, current_param: Tensor, num_averaged: Tensor) -> Tensor:
        return ema_param * decay + current_param * (1 - decay)

    return ema_update


def get_swa_avg_fn() -> Average:
    """The mean of all."""

    def swa_update(averaged_param: Tensor, current_param: Tensor, num_averaged: Tensor) -> Tensor:
        count = (
            (num_averaged + 1).to(current_param.dtype) if current_param.dtype.is_float else num_averaged + 1
        )
        return averaged_param + (current_param - averaged_param) / count

    return swa_update


def _all(average: Average) -> AverageAll:
    def update(averaged: Sequence[Tensor], current: Sequence[Tensor], num_averaged: Tensor) -> None:
        for mean, now in zip(averaged, current, strict=True):
            made = average(mean, now, num_averaged)
            mean.copy_(made)

    return update


def get_ema_multi_avg_fn(decay: float = 0.999) -> AverageAll:
    """`get_ema_avg_fn` of all parameters at once, in place.

    Args:
        decay: from 0 to 1.

    Raises:
        ValueError: it is something else.
    """
    return _all(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> AverageAll:
    """`get_swa_avg_fn` of all parameters at once, in place."""
    return _all(get_swa_avg_fn())


class AveragedModel(Module):
    """A model whose parameters are averages of another's.

    Args:
        model: it is copied.
        device: of the copy.
        avg_fn: the average, of the one so far, a parameter and how many are in it; the mean where left out.
        multi_avg_fn: writes all averages in place, in place of `avg_fn`.
        use_buffers: whether buffers are averaged, too, and not copied.

    Example:
        >>> import vkml
        >>> model = vkml.nn.Linear(2, 1)
        >>> averaged = vkml.optim.swa_utils.AveragedModel(
        ...     model, multi_avg_fn=vkml.optim.swa_utils.get_ema_multi_avg_fn(0.99))
        >>> averaged.update_parameters(model)
        >>> averaged.n_averaged.item()
        1
    """

    n_averaged: Tensor

    def __init__(
        self, model: Module, device: Any = None, avg_fn: Average | None = None,
        multi_avg_fn: AverageAll | None = None, use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("only one of avg_fn and multi_avg_fn should be provided")
        self.module = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        first = next(itertools.chain(self.module.parameters(), self.module.buffers()), None)
        place = device if first is None else first.device
        self.register_buffer("n_averaged", tensor(0, device=place))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.module(*arguments, **named)

    def update_parameters(self, model: Module) -> None:
        """Takes a model's parameters into the averages; the first time they are copied.

        Nothing is looked at on the host: it can be part of what `vkml.jit` captures.

        Args:
            model: of the same parameters.
        """
        means, others = list(self.module.parameters()), list(self.module.buffers())
        values, more = list(model.parameters()), list(model.buffers())
        if self.use_buffers:
            means, values, others, more = [*means, *others], [*values, *more], [], []  # type: ignore[list-item]
        with no_grad():
            current = [value.detach().to(mean.device) for mean, value in zip(means, values, strict=True)]
            # What an average makes of the first time does not count; it is computed all the same.
            made: list[Tensor] = [mean.detach().clone() for mean in means]
            if self.multi_avg_fn is not None or self.avg_fn is None:
                act = self.multi_avg_fn or get_swa_multi_avg_fn()
                act(made, current, self.n_averaged)
            else:
                for found, now in zip(made, current, strict=True):
                    found.copy_(self.avg_fn(found, now, self.n_averaged))
            is_first = self.n_averaged == 0
            for mean, found, now in zip(means, made, current, strict=True):
                mean.copy_(where(is_first, now, found))
            for buffer, value in zip(others, more, strict=True):
                buffer.copy_(value.detach().to(buffer.device))
            self.n_averaged.add_(1)
            compute([*means, *others, self.n_averaged])


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Computes the running statistics of normalisation anew, over all of some data.

    Args:
        loader: batches, or sequences whose first element is one.
        model: called with each batch.
        device: where batches go first.
    """
    momenta = {
        module: module.momentum for module in model.modules() if hasattr(module, "reset_running_stats")
    }
    if not momenta:
        return
    was_training = model.training
    model.train()
    for module in momenta:
        module.reset_running_stats()
        module.momentum = None  # the mean of all batches
    for batch in loader:
        given = as_tensor(batch[0] if isinstance(batch, list | tuple) else batch)
        model(given if device is None else given.to(device))
    for module, momentum in momenta.items():
        module.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """From the rate at hand to that of averaging, which stays.

    Args:
        optimizer: whose learning rates it sets.
        swa_lr: the rate that stays; one for all groups, or one a group.
        anneal_epochs: how many steps it takes there.
        anneal_strategy: "cos" or "linear".
        last_epoch: see `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, swa_lr: float | list[float], anneal_epochs: int = 10,
        anneal_strategy: str = "cos", last_epoch: int = -1,
    ) -> None:  # fmt: skip
        for group, value in zip(optimizer.param_groups, for_groups("swa_lr", optimizer, swa_lr), strict=True):
            group["swa_lr"] = value
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        at = max(0, min(1, step / max(1, self.anneal_epochs)))
        return at if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * at)) / 2

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        found = []
        for group in self.optimizer.param_groups:
            rate, last = group["lr"], group["swa_lr"]
            start = last if before == 1 else (rate - before * last) / (1 - before)
            found.append(last * now + start * (1 - now))
        return found
