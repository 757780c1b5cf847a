"""Callbacks: what happens beside a training, before and after epochs and steps."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml import optim
from vkml.errors import InvalidArgument
from vkml.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau
from vkml.tensors import Tensor
from vkml.training.history import Row, is_greater_better, opened_for_text

if TYPE_CHECKING:
    from vkml.training.trainer import Trainer


class Callback:
    """Base of callbacks: each method is called where its name says, with the `Trainer`, and does nothing.

    A trainer has ``model``, ``optimizer``, ``history``, ``epoch`` (from 1), ``step`` (of all epochs, from 1
    behind the first), ``epochs``, ``device``, and `stop`, which ends the training behind the epoch or step.

    Example:
        >>> import numpy as np, vkml
        >>> class Shown(vkml.training.Callback):
        ...     def on_epoch_end(self, trainer, row):
        ...         print("epoch", row["epoch"], "of", trainer.epochs)
        >>> data = np.ones((4, 1), np.float32), np.ones((4, 1), np.float32)
        >>> _ = vkml.fit(vkml.nn.Linear(1, 1), data, "mse", epochs=2, callbacks=Shown(), progress=False)
        epoch 1 of 2
        epoch 2 of 2
    """

    def on_train_begin(self, trainer: Trainer) -> None:
        """Before the first epoch, and behind what a checkpoint restored.

        Args:
            trainer: the training.
        """

    def on_epoch_begin(self, trainer: Trainer) -> None:
        """Before an epoch.

        Args:
            trainer: the training.
        """

    def on_step_end(self, trainer: Trainer, loss: float) -> None:
        """After a batch of training.

        Args:
            trainer: the training.
            loss: the batch's.
        """

    def on_update_end(self, trainer: Trainer) -> None:
        """After a step of the optimizer, of which there are fewer than batches with ``accumulate=``.

        Args:
            trainer: the training.
        """

    def on_epoch_end(self, trainer: Trainer, row: Row) -> None:
        """After an epoch and its validation; what is added to `row` becomes part of the history.

        Args:
            trainer: the training.
            row: losses and metrics of the epoch by name.
        """

    def on_train_end(self, trainer: Trainer) -> None:
        """After the last epoch, also where Ctrl-C or `stop` ended it, and not after an error.

        Args:
            trainer: the training.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it: what `vkml.save` takes."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave.

        Args:
            state: what `state_dict` gave.
        """


def monitored(row: Row, monitor: str | None) -> tuple[str, float]:
    """The column of a row that says how good an epoch was, and its number.

    Args:
        row: it.
        monitor: the column's name; ``"val_loss"`` where left out, ``"loss"`` without validation.

    Raises:
        InvalidArgument: there is no such column.
    """
    name = monitor or ("val_loss" if "val_loss" in row else "loss")
    found = row.get(name)
    if not isinstance(found, int | float):
        hint = "; give vkml.fit validation=" if name.startswith("val_") else ""
        raise InvalidArgument(f"there is no column {name!r} to go by, of {', '.join(row)}{hint}")
    return name, float(found)


def is_better(value: float, best: float, name: str, mode: str | None, min_delta: float = 0.0) -> bool:
    """Whether a number is an improvement on the best so far, which is NaN before the first."""
    if math.isnan(best):
        return not math.isnan(value)
    return value > best + min_delta if is_greater_better(name, mode) else value < best - min_delta


class EarlyStopping(Callback):
    """Ends a training that has stopped to improve.

    Args:
        monitor: the column to go by; ``"val_loss"`` where left out, ``"loss"`` without validation.
        patience: how many epochs without improvement are borne.
        min_delta: what counts as improvement.
        mode: "min" or "max"; by the column's name where left out.
        restore_best: whether the model gets back what it was after its best epoch, however it ended.
    """

    def __init__(
        self, monitor: str | None = None, patience: int = 5, min_delta: float = 0.0, mode: str | None = None,
        restore_best: bool = True,
    ) -> None:  # fmt: skip
        is_greater_better("", mode)
        self._monitor, self._patience, self._min_delta, self._mode = monitor, patience, min_delta, mode
        self._restore_best = restore_best
        self._best, self._best_epoch, self._waited = math.nan, 0, 0
        self._kept: dict[str, Any] = {}

    @property
    def best_epoch(self) -> int:
        """The number of the best epoch so far, 0 before the first."""
        return self._best_epoch

    def on_epoch_end(self, trainer: Trainer, row: Row) -> None:
        name, value = monitored(row, self._monitor)
        if is_better(value, self._best, name, self._mode, self._min_delta):
            self._best, self._best_epoch, self._waited = value, trainer.epoch, 0
            if self._restore_best:
                self._kept = host_copy(trainer.model.state_dict())
            return
        self._waited += 1
        if self._waited > self._patience:
            trainer.stop(
                f"{name} has not improved for {self._waited} epochs: it was best, {self._best:.4g}, in epoch "
                f"{self._best_epoch}"
            )

    def on_train_end(self, trainer: Trainer) -> None:
        if self._kept:
            trainer.model.load_state_dict(self._kept)

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self._best, "best_epoch": self._best_epoch, "waited": self._waited, "kept": self._kept,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._best_epoch, self._waited = state["best"], state["best_epoch"], state["waited"]
        self._kept = dict(state["kept"])


def host_copy(state: dict[str, Any]) -> dict[str, Any]:
    """A state with copies of its tensors as arrays of the host."""
    return {
        name: np.array(value.detach().numpy()) if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


class LRSchedule(Callback):
    """Has a scheduler of `vkml.optim.lr_scheduler` set learning rates.

    Args:
        scheduler: it, or a function that makes one of the optimizer.
        every: "epoch" or "step"; that of a step for `OneCycleLR` and `CyclicLR`, which count batches, and
            of an epoch for others, where left out.
        monitor: of `ReduceLROnPlateau`, the column to go by.
    """

    def __init__(self, scheduler: Any, every: str | None = None, monitor: str | None = None) -> None:
        if every not in (None, "epoch", "step"):
            raise InvalidArgument(f"a schedule steps every 'epoch' or 'step', not {every!r}")
        self._scheduler, self._every, self._monitor = scheduler, every, monitor

    @property
    def scheduler(self) -> Any:
        """The scheduler, once training has begun."""
        return self._scheduler

    def prepare(self, optimizer: optim.Optimizer) -> None:
        """Makes the scheduler, before anything is captured or restored.

        Args:
            optimizer: whose learning rates it changes.
        """
        if not isinstance(self._scheduler, LRScheduler):
            self._scheduler = self._scheduler(optimizer)
        if not isinstance(self._scheduler, LRScheduler):
            raise InvalidArgument(
                f"a schedule is one of vkml.optim.lr_scheduler's, not {type(self._scheduler).__name__}"
            )
        if self._scheduler.optimizer is not optimizer:
            raise InvalidArgument("the schedule is of another optimizer than the one that trains")
        if self._every is None:
            self._every = "step" if isinstance(self._scheduler, OneCycleLR | CyclicLR) else "epoch"

    def on_update_end(self, trainer: Trainer) -> None:
        if self._every == "step":
            self._scheduler.step()

    def on_epoch_end(self, trainer: Trainer, row: Row) -> None:
        if self._every != "epoch":
            return
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(monitored(row, self._monitor)[1])
        else:
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = self._scheduler.state_dict()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state)


class CSVLogger(Callback):
    """Writes the history into a table of comma-separated values, a line after each epoch.

    Args:
        path: of the file, which is replaced; a training that is resumed writes the epochs before, too.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._columns: list[str] = []

    def on_train_begin(self, trainer: Trainer) -> None:
        if trainer.history.epochs:
            self._write_all(trainer)
        else:
            opened_for_text(self._path).close()
            self._columns = []

    def on_epoch_end(self, trainer: Trainer, row: Row) -> None:
        if not self._columns or not set(row) <= set(self._columns):
            self._write_all(trainer)
            return
        with opened_for_text(self._path, "a") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _write_all(self, trainer: Trainer) -> None:
        trainer.history.to_csv(self._path)
        self._columns = trainer.history.columns()


class LearningCurve(Callback):
    """Draws loss and metrics over the epochs into a picture, anew after each epoch.

    Args:
        path: of the file, ``.png`` or another ending that matplotlib knows.

    Raises:
        ImportError: the package `matplotlib` is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from vkml.training.plotting import require_package

        require_package()
        self._path = path

    def on_epoch_end(self, trainer: Trainer, row: Row) -> None:
        trainer.history.plot(self._path)
