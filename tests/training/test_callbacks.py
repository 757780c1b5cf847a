"""Callbacks: when they are called, when training ends early, what they write."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from tests.training.problems import classes, line, perceptron, weights
from vkml import nn
from vkml.errors import InvalidArgument, NoSuchFile
from vkml.training import Callback, CSVLogger, EarlyStopping, History, LearningCurve, TensorBoard, Trainer


class Noted(Callback):
    """Notes each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_train_begin(self, trainer: Trainer) -> None:
        self.calls.append("begin")

    def on_epoch_begin(self, trainer: Trainer) -> None:
        self.calls.append(f"epoch {trainer.epoch}")

    def on_step_end(self, trainer: Trainer, loss: float) -> None:
        assert loss > 0
        self.calls.append(f"step {trainer.step}")

    def on_update_end(self, trainer: Trainer) -> None:
        self.calls.append(f"update {trainer.updates}")

    def on_epoch_end(self, trainer: Trainer, row: dict[str, Any]) -> None:
        assert trainer.history.epochs[-1] is row
        row["own"] = float(trainer.epoch)
        self.calls.append(f"epoch {trainer.epoch} ends")

    def on_train_end(self, trainer: Trainer) -> None:
        self.calls.append("end")


def test_when_they_are_called() -> None:
    noted = Noted()
    history = vkml.fit(
        perceptron(), classes(30), "cross_entropy", epochs=2, batch_size=10, accumulate=2, callbacks=[noted],
        progress=False,
    )  # fmt: skip
    assert noted.calls == [
        "begin",
        "epoch 1", "step 1", "update 1", "step 2", "step 3", "update 2", "epoch 1 ends",
        "epoch 2", "step 4", "update 3", "step 5", "step 6", "update 4", "epoch 2 ends",
        "end",
    ]  # fmt: skip
    assert history["own"] == [1.0, 2.0]


class Worsening(Callback):
    """Has the validation's loss be best in an epoch, and notes the weights of it."""

    def __init__(self, best: int) -> None:
        self._best = best
        self.weights: Any = None

    def on_epoch_end(self, trainer: Trainer, row: dict[str, Any]) -> None:
        row["val_loss"] = abs(trainer.epoch - self._best) + 1.0
        if trainer.epoch == self._best:
            self.weights = weights(trainer.model)


@pytest.mark.parametrize("restore_best", [True, False])
def test_early_stopping(device_name: str, restore_best: bool) -> None:
    model, worsening = perceptron(), Worsening(3)
    stopping = EarlyStopping(patience=2, restore_best=restore_best)
    history = vkml.fit(
        model, classes(20), "cross_entropy", "sgd", 20, lr=0.1, callbacks=[worsening, stopping],
        progress=False, device=device_name,
    )  # fmt: skip
    assert len(history) == 6 and stopping.best_epoch == 3
    assert history.stopped is not None and "epoch 3" in history.stopped
    assert np.array_equal(weights(model), worsening.weights) is restore_best


def test_the_best_is_given_back_though_nothing_ended_early() -> None:
    model, worsening = perceptron(), Worsening(2)
    history = vkml.fit(
        model, classes(20), "cross_entropy", "sgd", 4, lr=0.1, progress=False,
        callbacks=[worsening, EarlyStopping(patience=9)],
    )  # fmt: skip
    assert history.stopped is None
    np.testing.assert_array_equal(weights(model), worsening.weights)


def test_accuracies_grow_and_what_is_not_there_is_named() -> None:
    stopping = EarlyStopping("accuracy", patience=0, min_delta=2.0)
    history = vkml.fit(
        perceptron(),
        classes(20),
        "cross_entropy",
        epochs=5,
        metrics="accuracy",
        callbacks=stopping,
        progress=False,
    )
    assert len(history) == 2
    with pytest.raises(InvalidArgument, match=r"'val_accuracy'.*validation="):
        vkml.fit(
            perceptron(),
            classes(20),
            "cross_entropy",
            callbacks=EarlyStopping("val_accuracy"),
            progress=False,
        )
    with pytest.raises(ValueError, match="mode"):
        EarlyStopping(mode="least")


def test_stop_within_an_epoch() -> None:
    class Stopping(Callback):
        def on_step_end(self, trainer: Trainer, loss: float) -> None:
            if trainer.step == 5:
                trainer.stop("enough")

    noted = Noted()
    history = vkml.fit(
        perceptron(),
        classes(32),
        "cross_entropy",
        batch_size=8,
        callbacks=[Stopping(), noted],
        progress=False,
    )
    assert len(history) == 1 and history.stopped == "enough" and not history.is_interrupted
    assert noted.calls[-1] == "end" and "step 5" in noted.calls and "step 6" not in noted.calls


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("of a training before\n")
    history = vkml.fit(
        perceptron(), classes(20), "cross_entropy", epochs=3, metrics="accuracy", callbacks=CSVLogger(path),
        progress=False,
    )  # fmt: skip
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(value) for name, value in row.items()} for row in rows] == history.epochs
    history.to_csv(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == path.read_text()
    with pytest.raises(NoSuchFile, match="nowhere"):
        vkml.fit(
            perceptron(), classes(20), "cross_entropy", callbacks=CSVLogger(tmp_path / "nowhere" / "a.csv"),
            progress=False,
        )  # fmt: skip


def test_history_reads_columns_and_the_best() -> None:
    history = History(
        [{"epoch": 1, "loss": 2.0, "r2": 0.1}, {"epoch": 2, "loss": 1.0}, {"epoch": 3, "loss": 1.5}]
    )
    assert history["loss"] == [2.0, 1.0, 1.5] and history["r2"] == [0.1, None, None]
    assert history.best("loss")["epoch"] == 2 and history.best("r2")["epoch"] == 1
    assert history.best("loss", "max")["epoch"] == 1
    assert [row["epoch"] for row in history] == [1, 2, 3]
    for wrong in (lambda: history["f1"], lambda: history.best("val_loss")):
        with pytest.raises(KeyError, match="loss"):
            wrong()
    assert "3 epochs" in repr(history) and "loss=1.5" in repr(history)
    json.dumps(history.epochs)


def test_tensorboard(tmp_path: Path) -> None:
    """Event files are records with checksums, which the package's own reader checks."""
    crc32c = pytest.importorskip("tensorboardX.crc32c").crc32c
    from tensorboardX.proto.event_pb2 import Event

    history = vkml.fit(
        nn.Linear(4, 1), line(40), "mse", epochs=2, batch_size=8, validation=line(8), progress=False,
        callbacks=TensorBoard(tmp_path / "logs", every_steps=5),
    )  # fmt: skip
    (path,) = (tmp_path / "logs").glob("events.out.tfevents.*")
    raw, found = path.read_bytes(), []

    def masked(data: bytes) -> bytes:
        value = crc32c(data)
        return int(((value >> 15 | value << 17) + 0xA282EAD8) % (1 << 32)).to_bytes(4, "little")

    while raw:
        length = int.from_bytes(raw[:8], "little")
        assert (
            masked(raw[:8]) == raw[8:12] and masked(raw[12 : 12 + length]) == raw[12 + length : 16 + length]
        )
        event = Event.FromString(raw[12 : 12 + length])
        found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        raw = raw[16 + length :]
    by_tag = {(tag, step): value for tag, step, value in found}
    for at, step in enumerate((5, 10)):
        assert by_tag["loss/train", step] == pytest.approx(history["loss"][at])
        assert by_tag["loss/val", step] == pytest.approx(history["val_loss"][at])
        assert by_tag["epoch/lr", step] == pytest.approx(history["lr"][at])
        assert by_tag["step/loss", step] > 0


def test_learning_curves(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "curve.png"
    history = vkml.fit(
        perceptron(), classes(64), "cross_entropy", epochs=3, metrics=["accuracy", "f1"], validation=0.25,
        callbacks=LearningCurve(path), progress=False,
    )  # fmt: skip
    with Image.open(path) as picture:
        width, height = picture.size
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert width > 2 * height
    assert {(0x1F, 0x5F, 0xA8), (0xD1, 0x60, 0x0F)} <= colours  # training and validation
    history.plot(tmp_path / "curve.svg")
    assert "val" in (tmp_path / "curve.svg").read_text()
    with pytest.raises(InvalidArgument, match=r"curve\.xyz"):
        history.plot(tmp_path / "curve.xyz")
    with pytest.raises(InvalidArgument, match="no epoch"):
        History().plot(path)
    with pytest.raises(NoSuchFile, match="nowhere"):
        history.plot(tmp_path / "nowhere" / "curve.png")
