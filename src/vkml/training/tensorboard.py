"""Logs for TensorBoard."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vkml.training.callbacks import Callback
from vkml.training.history import Row

if TYPE_CHECKING:
    from vkml.training.trainer import Trainer


class TensorBoard(Callback):
    """Writes event files that TensorBoard shows: `tensorboard --logdir FOLDER`.

    Loss and metrics of training and validation are in one chart each: ``loss/train``, ``loss/val``.

    Args:
        folder: is made where there is none.
        every_steps: steps from one ``step/loss`` to the next; 0 for none.

    Raises:
        ImportError: the package `tensorboardX` is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], every_steps: int = 10) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "event files need the package 'tensorboardX': pip install 'vkml[train]'"
            ) from error
        self._open, self._folder, self._every = SummaryWriter, os.fspath(folder), every_steps
        self._writer: Any = None

    def on_train_begin(self, trainer: Trainer) -> None:
        # What a run that was killed wrote behind the checkpoint is not shown.
        self._writer = self._open(self._folder, purge_step=trainer.step + 1 if trainer.is_resumed else None)

    def on_step_end(self, trainer: Trainer, loss: float) -> None:
        if self._every and trainer.step % self._every == 0:
            self._writer.add_scalar("step/loss", loss, trainer.step)

    def on_epoch_end(self, trainer: Trainer, row: Row) -> None:
        for name, value in row.items():
            if not isinstance(value, float):
                continue
            if name.startswith("val_"):
                tag = f"{name.removeprefix('val_')}/val"
            elif name in ("lr", "seconds", "samples_per_second"):
                tag = f"epoch/{name}"
            else:
                tag = f"{name}/train"
            self._writer.add_scalar(tag, value, trainer.step)
        self._writer.flush()

    def on_train_end(self, trainer: Trainer) -> None:
        self._writer.close()
