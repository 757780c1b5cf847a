"""Schedules that follow a cosine, once or with warm restarts."""

from __future__ import annotations

import math
from typing import Any

from vkml.optim.lr_scheduler.base import LRScheduler
from vkml.optim.optimizer import Optimizer


class CosineAnnealingLR(LRScheduler):
    """Down half a cosine, and up again (Loshchilov and Hutter, 2017, without restarts).

    Args:
        optimizer: whose learning rates it sets.
        T_max: how many steps it takes to the lowest.
        eta_min: the lowest rate.
        last_epoch: see `LRScheduler`.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        at, most, least = self.last_epoch, self.T_max, self.eta_min
        if self._is_initial:
            return self._rates()
        if self._step_count == 1 and at > 0:
            return [
                least + (base - least) * (1 + math.cos(at * math.pi / most)) / 2 for base in self.base_lrs
            ]
        pairs = list(zip(self.base_lrs, self.optimizer.param_groups, strict=True))
        if (at - 1 - most) % (2 * most) == 0:
            return [
                group["lr"] + (base - least) * (1 - math.cos(math.pi / most)) / 2 for base, group in pairs
            ]
        now, before = (1 + math.cos(math.pi * step / most) for step in (at, at - 1))
        return [now / before * (group["lr"] - least) + least for _, group in pairs]

    def _get_closed_form_lr(self) -> list[Any]:
        wave = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        return [self.eta_min + (base - self.eta_min) * wave / 2 for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Down half a cosine, again and again, each time longer (SGDR; Loshchilov and Hutter, 2017).

    Args:
        optimizer: whose learning rates it sets.
        T_0: steps of the first run.
        T_mult: by what the next is longer.
        eta_min: the lowest rate.
        last_epoch: see `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        if not isinstance(T_0, int) or T_0 <= 0:
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        if not isinstance(eta_min, float | int):
            raise ValueError(f"Expected float or int eta_min, but got {eta_min} of type {type(eta_min)}")
        self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = T_0, T_0, T_mult, eta_min, last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        return [
            self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
            for base in self.base_lrs
        ]

    def step(self, epoch: float | None = None) -> None:
        """Sets the next learning rates.

        Args:
            epoch: where to go, which may lie between two steps, as `epoch + batch / batches` does.
        """
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        else:
            self._go_to(epoch)
        self.last_epoch = math.floor(epoch)
        with self._stepping():
            values = self.get_lr()
        self._set(values)

    def _go_to(self, epoch: Any) -> None:
        if epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        if epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            runs = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**runs - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**runs
