"""Schedules up and down, with momentum the other way round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vkml.optim.lr_scheduler.base import LRScheduler, checked, for_groups, function_state, set_value
from vkml.optim.optimizer import Optimizer


class _WithMomentum(LRScheduler):
    """Sets momentum, or the first of Adam's betas, too."""

    use_beta1: bool

    def _begin_momentum(self, base: Any, most: Any, is_start: bool) -> tuple[list[Any], list[Any]]:
        """The least and the greatest of each group; at the start the greatest is set."""
        optimizer = self.optimizer
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self.use_beta1 = "betas" in optimizer.defaults
        optimizer.varying.add("betas" if self.use_beta1 else "momentum")
        bases = for_groups("base_momentum", optimizer, base)
        mosts = for_groups("max_momentum", optimizer, most)
        if is_start:
            self._set_momentum(mosts)
            for group, low, high in zip(optimizer.param_groups, bases, mosts, strict=True):
                group["max_momentum"], group["base_momentum"] = high, low
        return bases, mosts

    def _set_momentum(self, values: Sequence[Any]) -> None:
        for group, value in zip(self.optimizer.param_groups, values, strict=True):
            if self.use_beta1:
                group["betas"] = (value, *group["betas"][1:])
            else:
                group["momentum"] = value


class CyclicLR(_WithMomentum):
    """Evenly up and down between two rates (Smith, 2017).

    Args:
        optimizer: whose learning rates it sets.
        base_lr: the lowest rate; one for all groups, or one a group, as all that follow.
        max_lr: the highest rate.
        step_size_up: steps up.
        step_size_down: steps down; as many where left out.
        mode: "triangular"; "triangular2", where each cycle is half as high as the one before; "exp_range",
            where heights fall with gamma to the power of the step.
        gamma: of "exp_range".
        scale_fn: heights, by the cycle's number or the step's, in place of a mode.
        scale_mode: "cycle" or "iterations": by what number.
        cycle_momentum: whether momentum goes the other way round.
        base_momentum: the lowest momentum.
        max_momentum: the highest momentum.
        last_epoch: see `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, base_lr: float | list[float], max_lr: float | list[float],
        step_size_up: int = 2000, step_size_down: int | None = None, mode: str = "triangular",
        gamma: float = 1.0, scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle",
        cycle_momentum: bool = True, base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.optimizer = checked(optimizer)
        bases = for_groups("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for value, group in zip(bases, optimizer.param_groups, strict=True):
                set_value(group, "lr", value)
        self.max_lrs = for_groups("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(f"mode {mode!r} is invalid and scale_fn is None")
        self.mode, self.gamma, self._scale_fn_custom = mode, gamma, scale_fn
        self.scale_mode = scale_mode
        if scale_fn is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.base_momentums, self.max_momentums = self._begin_momentum(
                base_momentum, max_momentum, last_epoch == -1
            )
        super().__init__(optimizer, last_epoch)
        self.base_lrs = bases

    def scale_fn(self, x: float) -> float:
        """The share of its height that a cycle has.

        Args:
            x: the number of the cycle, or of the step, as `scale_mode` says.
        """
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return float(1 / 2.0 ** (x - 1) if self.mode == "triangular2" else self.gamma**x)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        share = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            pairs = zip(self.base_momentums, self.max_momentums, strict=True)
            self._set_momentum([most - (most - base) * height * share for base, most in pairs])
        pairs = zip(self.base_lrs, self.max_lrs, strict=True)
        return [base + (most - base) * height * share for base, most in pairs]

    def state_dict(self) -> dict[str, Any]:
        """All that it goes by, but for the optimizer, and a function that is no object with attributes."""
        state = super().state_dict()
        function = self._scale_fn_custom
        return {**state, "_scale_fn_custom": None if function is None else function_state(function)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        found = dict(state_dict)
        state = found.pop("_scale_fn_custom")
        super().load_state_dict(found)
        if state is not None and self._scale_fn_custom is not None:
            self._scale_fn_custom.__dict__.update(state)


def cosine(start: Any, end: Any, share: float) -> Any:
    """Down half a cosine from one number to another."""
    return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)


def line(start: Any, end: Any, share: float) -> Any:
    """Evenly from one number to another."""
    return (end - start) * share + start


class OneCycleLR(_WithMomentum):
    """Up to the highest rate, then down below the first (Smith and Topin, 2018).

    Args:
        optimizer: whose learning rates it sets.
        max_lr: the highest rate; one for all groups, or one a group.
        total_steps: of the whole cycle.
        epochs: with `steps_per_epoch`, in place of it.
        steps_per_epoch: with `epochs`.
        pct_start: share of the cycle that goes up.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: whether momentum goes the other way round.
        base_momentum: the lowest momentum.
        max_momentum: the highest momentum.
        div_factor: the highest rate over the first.
        final_div_factor: the first rate over the last.
        three_phase: whether it goes down to the first rate before it goes to the last.
        last_epoch: see `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | list[float], total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85, max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0, final_div_factor: float = 1e4, three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.optimizer = checked(optimizer)
        self.total_steps = _total(total_steps, epochs, steps_per_epoch)
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self._schedule_phases = _phases(pct_start, self.total_steps, three_phase)
        self._anneal_func_type = anneal_strategy
        mosts = for_groups("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for group, most in zip(optimizer.param_groups, mosts, strict=True):
                group["initial_lr"], group["max_lr"] = most / div_factor, most
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._begin_momentum(base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self.last_epoch > self.total_steps:
            raise ValueError(
                f"Tried to step {self.last_epoch} times. The specified number of total steps is "
                f"{self.total_steps}"
            )
        start: float = 0
        for phase in self._schedule_phases:
            end = phase["end_step"]
            if self.last_epoch <= end:
                break
            if phase is not self._schedule_phases[-1]:
                start = end
        share = (self.last_epoch - start) / (end - start)
        act = cosine if self._anneal_func_type == "cos" else line
        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            self._set_momentum(
                [act(group[phase["start_momentum"]], group[phase["end_momentum"]], share) for group in groups]
            )
        return [act(group[phase["start_lr"]], group[phase["end_lr"]], share) for group in groups]


def _total(total: int | None, epochs: int | None, steps: int | None) -> int:
    if total is not None:
        if not isinstance(total, int) or total <= 0:
            raise ValueError(f"Expected positive integer total_steps, but got {total}")
        return total
    if epochs is None or steps is None:
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    if not isinstance(epochs, int) or epochs <= 0:
        raise ValueError(f"Expected positive integer epochs, but got {epochs}")
    if not isinstance(steps, int) or steps <= 0:
        raise ValueError(f"Expected positive integer steps_per_epoch, but got {steps}")
    return epochs * steps


def _phases(share: float, steps: int, has_three: bool) -> list[dict[str, Any]]:
    """Where each phase ends, and the settings of groups that it goes between."""

    def phase(end: float, rates: str, momentum: str) -> dict[str, Any]:
        names = [f"{word}_lr" for word in rates.split()] + [f"{word}_momentum" for word in momentum.split()]
        keys = ("start_lr", "end_lr", "start_momentum", "end_momentum")
        return {"end_step": end, **dict(zip(keys, names, strict=True))}

    up = phase(float(share * steps) - 1, "initial max", "max base")
    if not has_three:
        return [up, phase(steps - 1, "max min", "base max")]
    down = phase(float(2 * share * steps) - 2, "max initial", "base max")
    return [up, down, phase(steps - 1, "initial min", "max max")]
