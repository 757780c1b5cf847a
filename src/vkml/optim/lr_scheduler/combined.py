"""Schedules made of others: one after another, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from vkml.optim.lr_scheduler.base import LRScheduler, set_value, values_of
from vkml.optim.lr_scheduler.plateau import ReduceLROnPlateau
from vkml.optim.optimizer import Optimizer


class _Combined(LRScheduler):
    """Schedules within a schedule."""

    _schedulers: Sequence[LRScheduler]

    def _check(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> None:
        name = type(self).__name__
        if not schedulers:
            raise ValueError(f"{name} expects at least one scheduler, but got no scheduler.")
        for at, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(f"{name} at index {at} should have `optimizer` as its attribute.")
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau`, whose step takes a metric, but got one at "
                    f"index {at}"
                )
            if scheduler.optimizer is not (optimizer or schedulers[0].optimizer):
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer, the one at index {at} "
                    "has another"
                )

    def state_dict(self) -> dict[str, Any]:
        """All that it goes by, with the states of the schedulers in it."""
        state = super().state_dict()
        return {**state, "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        found = dict(state_dict)
        states = found.pop("_schedulers")
        super().load_state_dict(found)
        for scheduler, state in zip(self._schedulers, states, strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_Combined):
    """One schedule after another.

    Args:
        optimizer: whose learning rates they set.
        schedulers: of this optimizer.
        milestones: the numbers of steps at which the second begins, the third, …
        last_epoch: see `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self._check(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"Sequential Schedulers expects number of schedulers provided to be one more than the number "
                f"of milestone points, but got {len(schedulers)} schedulers and {len(milestones)} milestones"
            )
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # Each has set its own first rates: all of that is taken back, and done by the one that is first.
        for group in optimizer.param_groups:
            set_value(group, "lr", group["initial_lr"])
        self.recursive_undo()
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def recursive_undo(self, sched: LRScheduler | None = None) -> None:
        """Takes the first step of schedulers back.

        Args:
            sched: of which one, and of those in it; None: of all.
        """
        found = self if sched is None else sched
        if hasattr(found, "_schedulers"):
            for scheduler in found._schedulers:
                self.recursive_undo(scheduler)
        elif hasattr(found, "last_epoch"):
            found.last_epoch -= 1

    def step(self, epoch: int | None = None) -> None:
        """Has the schedule whose turn it is set the next learning rates.

        Args:
            epoch: has to be None.

        Raises:
            TypeError: it is a number.
        """
        if epoch is not None:
            raise TypeError("SequentialLR.step() takes no epoch")
        self.last_epoch += 1
        at = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[at]
        if at > 0 and self._milestones[at - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Combined):
    """Schedules that all change the rate, each what the one before has left.

    Args:
        schedulers: of one optimizer.
        optimizer: that one; the first one's where left out.
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self._check(schedulers, optimizer)
        self._schedulers = schedulers
        self.optimizer = optimizer or schedulers[0].optimizer
        self._last_lr = values_of(self.optimizer, "lr")

    def step(self, epoch: int | None = None) -> None:
        """Has each schedule change the learning rates.

        Args:
            epoch: has to be None.

        Raises:
            TypeError: it is a number.
        """
        if epoch is not None:
            raise TypeError("ChainedScheduler.step() takes no epoch")
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = values_of(self.optimizer, "lr")
