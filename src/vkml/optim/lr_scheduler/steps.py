"""Schedules by the number of the step: factors, milestones, ramps."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from vkml.optim.lr_scheduler.base import Act, LRScheduler, function_state
from vkml.optim.optimizer import Optimizer


class _ByFunctions(LRScheduler):
    """Rates by a function a group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Act | list[Act], last_epoch: int = -1) -> None:
        groups = len(optimizer.param_groups)
        if not isinstance(lr_lambda, list | tuple):
            self.lr_lambdas: list[Any] = [lr_lambda] * groups
        elif len(lr_lambda) != groups:
            raise ValueError(f"Expected {groups} lr_lambdas, but got {len(lr_lambda)}")
        else:
            self.lr_lambdas = list(lr_lambda)
        for function in self.lr_lambdas:
            if not callable(function):
                raise TypeError(f"lr_lambda should be a function, but got {type(function).__name__}")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """All that it goes by, but for the optimizer, and functions that are no objects with attributes."""
        state = super().state_dict()
        return {**state, "lr_lambdas": [function_state(function) for function in self.lr_lambdas]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        found = dict(state_dict)
        for function, state in zip(self.lr_lambdas, found.pop("lr_lambdas"), strict=True):
            if state is not None:
                function.__dict__.update(state)
        super().load_state_dict(found)


class LambdaLR(_ByFunctions):
    """The initial rate times a function of the step's number.

    Args:
        optimizer: whose learning rates it sets.
        lr_lambda: from the step's number to the factor; one for all groups, or one a group.
        last_epoch: see `LRScheduler`.
    """

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        return [
            base * function(self.last_epoch)
            for function, base in zip(self.lr_lambdas, self.base_lrs, strict=True)
        ]


class MultiplicativeLR(_ByFunctions):
    """Multiplies the rate before by a function of the step's number.

    Args:
        optimizer: whose learning rates it sets.
        lr_lambda: from the step's number to the factor; one for all groups, or one a group.
        last_epoch: see `LRScheduler`.
    """

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self._is_initial:
            return self._rates()
        return [
            group["lr"] * function(self.last_epoch)
            for function, group in zip(self.lr_lambdas, self.optimizer.param_groups, strict=True)
        ]


class StepLR(LRScheduler):
    """Multiplies the rate by gamma every `step_size` steps.

    Args:
        optimizer: whose learning rates it sets.
        step_size: how many steps a rate lasts.
        gamma: the factor.
        last_epoch: see `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self.last_epoch == 0 or self.last_epoch % self.step_size:
            return self._rates()
        return self._times(self.gamma)

    def _get_closed_form_lr(self) -> list[Any]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """Multiplies the rate by gamma at each of some steps.

    Args:
        optimizer: whose learning rates it sets.
        milestones: numbers of steps.
        gamma: the factor.
        last_epoch: see `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.milestones = Counter(self.milestones)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self.last_epoch not in self.milestones:
            return self._rates()
        return self._times(self.gamma ** self.milestones[self.last_epoch])

    def _get_closed_form_lr(self) -> list[Any]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """Multiplies the rate by a factor until step `total_iters`.

    Args:
        optimizer: whose learning rates it sets.
        factor: in [0, 1].
        total_iters: how many steps it lasts.
        last_epoch: see `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise ValueError(f"Constant multiplicative factor expected to be between 0 and 1, not {factor}")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self.last_epoch == 0:
            return self._times(self.factor)
        return self._times(1.0 / self.factor) if self.last_epoch == self.total_iters else self._rates()

    def _get_closed_form_lr(self) -> list[Any]:
        is_over = self.last_epoch >= self.total_iters
        return [base * (self.factor + is_over * (1 - self.factor)) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """Multiplies the rate by a factor that goes linearly from one to another.

    Args:
        optimizer: whose learning rates it sets.
        start_factor: in (0, 1].
        end_factor: in [0, 1].
        total_iters: after how many steps it is reached.
        last_epoch: see `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0,
        total_iters: int = 5, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if not 0 < start_factor <= 1:
            raise ValueError(
                f"Starting multiplicative factor expected to be greater than 0 and less or equal to 1, not "
                f"{start_factor}"
            )
        if not 0 <= end_factor <= 1:
            raise ValueError(f"Ending multiplicative factor expected to be between 0 and 1, not {end_factor}")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self.last_epoch == 0:
            return self._times(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._rates()
        span = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * span
        return self._times(1.0 + span / before)

    def _get_closed_form_lr(self) -> list[Any]:
        span = self.end_factor - self.start_factor
        reached = min(self.total_iters, self.last_epoch)
        return [base * (self.start_factor + span * reached / self.total_iters) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Multiplies the rate by gamma every step.

    Args:
        optimizer: whose learning rates it sets.
        gamma: the factor.
        last_epoch: see `LRScheduler`.
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        return self._rates() if self._is_initial else self._times(self.gamma)

    def _get_closed_form_lr(self) -> list[Any]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """A power of the share of steps that is left.

    Args:
        optimizer: whose learning rates it sets.
        total_iters: after how many steps it is 0.
        power: the exponent.
        last_epoch: see `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._rates()
        left, before = (1.0 - step / self.total_iters for step in (self.last_epoch, self.last_epoch - 1))
        return self._times((left / before) ** self.power)

    def _get_closed_form_lr(self) -> list[Any]:
        left = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * left**self.power for base in self.base_lrs]
