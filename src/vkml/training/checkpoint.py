"""Checkpoints of trainings: all that one needs to go on as if it had never stopped."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkml.errors import InvalidArgument, InvalidCheckpoint, NoSuchFile
from vkml.saving import load, save
from vkml.training.callbacks import Callback, is_better, monitored
from vkml.training.history import Row, is_greater_better

if TYPE_CHECKING:
    from vkml.training.trainer import Trainer

BEST = "best.safetensors"
_NAME = re.compile(r"epoch-(\d+)(?:-step-(\d+))?\.safetensors")


class Checkpoint(Callback):
    """Writes checkpoints into a folder: the best one, and the last few.

    A checkpoint has the model, the optimizer, schedules, the state of random generators and of the data, the
    history and what callbacks remember. `vkml.fit(..., resume=...)` goes on from it: the weights it ends with
    are, bit for bit, those of a training that was not stopped. Files appear whole or not at all, and the ones
    before are removed only then, so that at any moment there is one that loads.

    Args:
        folder: is made where there is none.
        monitor: the column to go by for the best; ``"val_loss"`` where left out, ``"loss"`` without
            validation.
        mode: "min" or "max"; by the column's name where left out.
        keep_last: how many of the last are kept beside the best.
        every: epochs from one to the next.
        every_steps: steps from one to the next within epochs, besides; none where left out.

    Raises:
        ImportError: the package `safetensors` is not installed.
    """

    def __init__(
        self, folder: str | os.PathLike[str], monitor: str | None = None, mode: str | None = None,
        keep_last: int = 2, every: int = 1, every_steps: int | None = None,
    ) -> None:  # fmt: skip
        for name, number in (("keep_last", keep_last), ("every", every), ("every_steps", every_steps)):
            if number is not None and number < 1:
                raise InvalidArgument(f"{name} is {number}: it is 1 or more")
        is_greater_better("", mode)
        self.folder = Path(folder)
        self._monitor, self._mode, self._keep = monitor, mode, keep_last
        self._every, self._every_steps = every, every_steps
        self._best = math.nan

    @property
    def best(self) -> Path:
        """The file of the best epoch."""
        return self.folder / BEST

    def on_train_begin(self, trainer: Trainer) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not trainer.is_resumed and checkpoints_in(self.folder):
            raise InvalidArgument(
                f"{str(self.folder)!r} has checkpoints of another training: go on from them by resume=True, "
                "or remove them"
            )

    def on_update_end(self, trainer: Trainer) -> None:
        if self._every_steps and trainer.updates % self._every_steps == 0:
            self._write(trainer)

    def on_epoch_end(self, trainer: Trainer, row: Row) -> None:
        name, value = monitored(row, self._monitor)
        if is_better(value, self._best, name, self._mode):
            self._best = value
            save(trainer.state_dict(), self.best)
        if trainer.epoch % self._every == 0 or trainer.epoch == trainer.epochs:
            self._write(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        if trainer.is_within_epoch:
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        within = f"-step-{trainer.step:08d}" if trainer.is_within_epoch else ""
        epoch = trainer.epoch - 1 if within else trainer.epoch
        save(trainer.state_dict(), self.folder / f"epoch-{epoch:05d}{within}.safetensors")
        for old in checkpoints_in(self.folder)[: -self._keep]:
            old.unlink(missing_ok=True)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best = state["best"]


def checkpoints_in(folder: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints of a folder but for the best, the oldest first."""
    found = []
    for path in Path(folder).glob("epoch-*.safetensors"):
        matched = _NAME.fullmatch(path.name)
        if matched:
            found.append((int(matched[1]), int(matched[2] or 0), path))
    return [path for *_, path in sorted(found)]


def read_checkpoint(place: str | os.PathLike[str]) -> dict[str, Any]:
    """What a checkpoint holds.

    Args:
        place: the file, or a folder, of which the last is read.

    Raises:
        NoSuchFile: there is none.
        InvalidCheckpoint: it is damaged, or no checkpoint of a training; where there is one before it, the
            message names that.
    """
    path, before = Path(place), None
    if path.is_dir():
        found = checkpoints_in(path)
        if not found:
            raise NoSuchFile(f"there is no checkpoint in {str(path)!r}")
        path, before = found[-1], found[-2] if len(found) > 1 else None
    try:
        state = load(path)
        if not isinstance(state, dict) or not isinstance(state.get("training"), dict):
            raise InvalidCheckpoint(f"{str(path)!r} holds tensors, and no checkpoint of vkml.fit")
    except InvalidCheckpoint as problem:
        hint = f"; resume={str(before)!r} goes on from the one before" if before else ""
        raise InvalidCheckpoint(f"{problem}{hint}") from None
    return state
