"""A schedule by what comes out of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vkml.optim.lr_scheduler.base import LRScheduler, checked, set_value, values_of, warn_of_epoch
from vkml.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """Multiplies the rate by a factor when a metric has stopped improving.

    Args:
        optimizer: whose learning rates it sets.
        mode: "min" or "max": which way the metric improves.
        factor: below 1.
        patience: how many steps without improvement are borne.
        threshold: what counts as improvement.
        threshold_mode: "rel", of the best so far, or "abs".
        cooldown: steps after a reduction that do not count.
        min_lr: the lowest rate; one for all groups, or one a group.
        eps: the least change that is made.
    """

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0,
        min_lr: float | list[float] = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        self.factor = factor
        self.optimizer = checked(optimizer)
        optimizer.varying.add("lr")
        groups = len(optimizer.param_groups)
        self.default_min_lr: float | None = None
        if isinstance(min_lr, list | tuple):
            if len(min_lr) != groups:
                raise ValueError(f"expected {groups} min_lrs, got {len(min_lr)}")
            self.min_lrs = list(min_lr)
        else:
            self.default_min_lr, self.min_lrs = min_lr, [min_lr] * groups
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.patience, self.cooldown, self.eps = patience, cooldown, eps
        self.last_epoch = 0
        self._last_lr = values_of(optimizer, "lr")
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self._reset()

    def _reset(self) -> None:
        """Forgets what came out so far."""
        self.best, self.cooldown_counter, self.num_bad_epochs = self.mode_worse, 0, 0

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Notes a metric, and sets learning rates where it is time.

        Args:
            metrics: a number, or what `float` takes.
            epoch: the step's number, which PyTorch deprecates.
        """
        current = float(metrics)
        if epoch is None:
            epoch = self.last_epoch + 1
        else:
            warn_of_epoch()
        self.last_epoch = epoch
        if self._is_better(current, self.best):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce_lr(epoch)
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = values_of(self.optimizer, "lr")

    def _reduce_lr(self, epoch: int) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"The number of param groups in the `optimizer` ({len(groups)}) differs from when "
                    f"`ReduceLROnPlateau` was initialized ({len(self.min_lrs)}): set `min_lrs`"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, least in zip(groups, self.min_lrs, strict=True):
            before = float(group["lr"])
            now = max(before * self.factor, least)
            if before - now > self.eps:
                set_value(group, "lr", now)

    @property
    def in_cooldown(self) -> bool:
        """Whether steps do not count yet."""
        return self.cooldown_counter > 0

    def _is_better(self, now: float, best: float) -> bool:
        if self.threshold_mode == "rel":
            if self.mode == "min":
                return now < best * (1.0 - self.threshold)
            return now > best * (self.threshold + 1.0)
        return now < best - self.threshold if self.mode == "min" else now > best + self.threshold

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.mode_worse = math.inf if self.mode == "min" else -math.inf
