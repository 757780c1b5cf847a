"""What all schedulers of learning rates share."""

from __future__ import annotations

import contextlib
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from vkml.optim.optimizer import Optimizer
from vkml.tensors import Tensor

Rate: TypeAlias = "float | Tensor"
Act = Callable[[int], float]

_ORDER = "https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate"


class LRScheduler:
    """Base of schedulers: `get_lr` says what learning rates a step sets.

    A learning rate that is a tensor is filled with the new number; one that is a number is replaced. Either
    way functions that `vkml.jit` captured go on with it, and are not captured again.

    Args:
        optimizer: whose learning rates it sets.
        last_epoch: the number of the last step when it goes on from there, -1 when it begins.
    """

    _get_lr_called_within_step = False
    _is_initial = False
    _step_count: int

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = checked(optimizer)
        optimizer.varying.add("lr")
        for at, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", copied(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{at}] when resuming scheduler with "
                    "last_epoch >= 0: load the optimizer's state first, or begin with last_epoch=-1"
                )
        self.base_lrs: list[Any] = values_of(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        _attach(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that it goes by, but for the optimizer."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` gave.

        Args:
            state_dict: what `state_dict` gave.
        """
        self.__dict__.update(state_dict)

    # -- steps ----------------------------------------------------------------------------------------------

    def get_last_lr(self) -> list[Any]:
        """The learning rates that the last step set, one a group."""
        return self._last_lr

    def get_lr(self) -> list[Any]:
        """The learning rates of the step at hand, one a group."""
        raise NotImplementedError

    def step(self, epoch: int | None = None) -> None:
        """Sets the next learning rates; to be called after the optimizer's step.

        Args:
            epoch: the step to go to, which PyTorch deprecates.
        """
        if self._step_count == 1:
            _warn_of_order(self.optimizer)
        self._step_count += 1
        if epoch is not None:
            warn_of_epoch()
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        with self._stepping():
            if epoch is None:
                self.last_epoch += 1
                values = self.get_lr()
            else:
                self.last_epoch = epoch
                closed = getattr(self, "_get_closed_form_lr", None)
                values = self.get_lr() if closed is None else closed()
        self._set(values)

    def _set(self, values: Sequence[Any]) -> None:
        for group, value in zip(self.optimizer.param_groups, values, strict=True):
            set_value(group, "lr", value)
        self._last_lr: list[Any] = values_of(self.optimizer, "lr")

    @contextlib.contextmanager
    def _stepping(self) -> Iterator[None]:
        self._get_lr_called_within_step = True
        try:
            yield
        finally:
            self._get_lr_called_within_step = False

    def _warn_outside(self) -> None:
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use `get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )

    def _rates(self) -> list[Any]:
        """The learning rates as they are."""
        return values_of(self.optimizer, "lr")

    def _times(self, factor: float) -> list[Any]:
        """The learning rates times a factor."""
        return [group["lr"] * factor for group in self.optimizer.param_groups]


def _attach(optimizer: Optimizer) -> None:
    """Has the order of steps watched from now on."""
    if not getattr(optimizer, "_is_scheduled", False):
        optimizer._is_scheduled = True  # type: ignore[attr-defined]
        optimizer._opt_called = False
        optimizer._scheduled_step = _function(optimizer.step)  # type: ignore[attr-defined]


def _function(method: Any) -> Any:
    return getattr(method, "__func__", method)


def _warn_of_order(optimizer: Optimizer) -> None:
    if _function(optimizer.step) is not optimizer._scheduled_step:  # type: ignore[attr-defined]
        warnings.warn(
            "Seems like `optimizer.step()` has been overridden after learning rate scheduler "
            "initialization. Please, make sure to call `optimizer.step()` before `lr_scheduler.step()`. "
            f"See more details at {_ORDER}",
            UserWarning,
            stacklevel=3,
        )
    elif not optimizer._opt_called:
        warnings.warn(
            "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in the opposite "
            "order: `optimizer.step()` before `lr_scheduler.step()`. Otherwise the first value of the "
            f"learning rate schedule is skipped. See more details at {_ORDER}",
            UserWarning,
            stacklevel=3,
        )


def warn_of_epoch() -> None:
    """Says that steps are not to be told their number."""
    warnings.warn(
        "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where possible. "
        "Please use `scheduler.step()` to step the scheduler.",
        UserWarning,
        stacklevel=3,
    )


def checked(optimizer: Any) -> Optimizer:
    """An optimizer.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
    return optimizer


def copied(value: Any) -> Any:
    """A number, or a tensor's copy."""
    return value.clone() if isinstance(value, Tensor) else value


def values_of(optimizer: Optimizer, name: str) -> list[Any]:
    """A setting of every group."""
    return [copied(group[name]) for group in optimizer.param_groups]


def set_value(group: dict[str, Any], name: str, value: Any) -> None:
    """Sets a number of a group, within the tensor where it is one."""
    if isinstance(group[name], Tensor):
        group[name].fill_(float(value))
    else:
        group[name] = value


def for_groups(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """A value a group, of one for all or of as many.

    Raises:
        ValueError: there are others.
    """
    groups = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [copied(value) for _ in range(groups)]
    if len(value) != groups:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups: it has {len(value)} values, there "
            f"are {groups} groups"
        )
    return [copied(one) for one in value]


def function_state(function: Any) -> dict[str, Any] | None:
    """What is saved of a function: nothing of plain ones, the attributes of objects."""
    return None if isinstance(function, types.FunctionType) else dict(function.__dict__)
