"""Checkpoints: a training that goes on from one ends with the weights of one that was not stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from tests.patience import patience
from tests.robustness.processes import ROOT
from tests.training.problems import classes, perceptron, weights
from vkml import nn, optim
from vkml.errors import InvalidArgument, InvalidCheckpoint, NoSuchFile
from vkml.training import Callback, Checkpoint, EarlyStopping, History, LRSchedule, Trainer
from vkml.training.checkpoint import checkpoints_in


class Stopping(Callback):
    """Stops behind a step."""

    def __init__(self, step: int | None) -> None:
        self._step = step

    def on_step_end(self, trainer: Trainer, loss: float) -> None:
        if trainer.step == self._step:
            trainer.stop("asked for")


def trained(
    folder: Path, device: str, stop: int | None = None, resume: Any = None, **named: Any
) -> tuple[History, Any]:
    """History and weights of a training with all that has state; 5 steps an epoch, 3 epochs."""
    vkml.manual_seed(7)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
    )  # fmt: skip
    optimizer = optim.AdamW(model.to(device).parameters(), lr=0.01)
    history = vkml.fit(
        model, classes(50), "cross_entropy", optimizer, 3, metrics=["accuracy", "f1"], batch_size=8,
        validation=0.2, clip_norm=1.0, device=device, progress=False, resume=resume,
        callbacks=[
            Checkpoint(folder, every_steps=2), EarlyStopping(patience=9, restore_best=False), Stopping(stop),
            LRSchedule(optim.lr_scheduler.CosineAnnealingLR(optimizer, 15), every="step"),
        ],
        **named,
    )  # fmt: skip
    return history, weights(model)


TIMES = ("seconds", "samples_per_second")


def same_rows(one: History, other: History) -> None:
    for left, right in zip(one, other, strict=True):
        assert {k: v for k, v in left.items() if k not in TIMES} == {
            k: v for k, v in right.items() if k not in TIMES
        }


@pytest.mark.parametrize("stop", [3, 5, 7])
def test_resumed_is_as_uninterrupted(device_name: str, tmp_path: Path, stop: int) -> None:
    """Bit for bit, rows too: stopped within the first epoch, at its last batch, in the second one."""
    wanted, whole = trained(tmp_path / "whole", device_name)
    part, half = trained(tmp_path / "part", device_name, stop)
    assert part.stopped == "asked for" and not np.array_equal(half, whole)
    found, rest = trained(tmp_path / "part", device_name, resume=True)
    np.testing.assert_array_equal(rest, whole)
    assert len(found) == 3
    same_rows(found, wanted)


def test_half_precision_and_accumulation_go_on_too(tmp_path: Path) -> None:
    named = {"precision": "float16", "accumulate": 2}
    _, whole = trained(tmp_path / "whole", "cpu", **named)
    trained(tmp_path / "part", "cpu", 5, **named)
    _, rest = trained(tmp_path / "part", "cpu", resume=tmp_path / "part", **named)
    np.testing.assert_array_equal(rest, whole)


def test_loaders_go_on_within_an_epoch(tmp_path: Path) -> None:
    """Those without a state are gone through again; orders are drawn from vkml's generator."""

    class Loader:
        def __iter__(self) -> Any:
            x, y = classes(30)
            order = vkml.randperm(30).numpy()
            for at in range(0, 30, 6):
                yield x[order[at : at + 6]], y[order[at : at + 6]]

    class WithState(Loader):
        """Goes on by itself."""

        def __init__(self) -> None:
            self._done, self._order, self._waiting = 0, [0], None

        def state_dict(self) -> dict[str, Any]:
            return {"done": self._done, "order": self._order}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self._waiting = state

        def __iter__(self) -> Any:
            x, y = classes(30)
            self._done, self._order = 0, vkml.randperm(30).tolist()
            if self._waiting is not None:
                state, self._waiting = self._waiting, None
                if state["done"] < 5:
                    self._done, self._order = state["done"], state["order"]
            while self._done < 5:
                chosen = self._order[6 * self._done : 6 * self._done + 6]
                self._done += 1
                yield x[chosen], y[chosen]

    def Loaded() -> vkml.data.DataLoader[Any]:
        data = vkml.data.TensorDataset(*(vkml.tensor(part) for part in classes(30)))
        return vkml.data.DataLoader(data, 6, shuffle=True, num_workers=2)

    for loader in (Loader, WithState, Loaded):
        found = []
        for name, stop in (("whole", None), ("part", 8), ("part", None)):
            vkml.manual_seed(1)
            model = perceptron(dropout=0.2)
            folder = tmp_path / loader.__name__ / name
            vkml.fit(
                model, loader(), "cross_entropy", epochs=3, progress=False, resume=True,
                callbacks=[Checkpoint(folder), Stopping(stop)],
            )  # fmt: skip
            found.append(weights(model))
        np.testing.assert_array_equal(found[2], found[0])


def test_a_folder_keeps_the_last_few_and_the_best(tmp_path: Path) -> None:
    class Best(Callback):
        def on_epoch_end(self, trainer: Trainer, row: dict[str, Any]) -> None:
            row["val_loss"] = float(abs(trainer.epoch - 2))
            if trainer.epoch == 2:
                self.weights = weights(trainer.model)

    best, model = Best(), perceptron()
    kept = Checkpoint(tmp_path / "kept", keep_last=2)
    vkml.fit(model, classes(20), "cross_entropy", epochs=5, callbacks=[kept, best], progress=False)
    assert [path.name for path in checkpoints_in(tmp_path / "kept")] == [
        "epoch-00004.safetensors", "epoch-00005.safetensors",
    ]  # fmt: skip
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        "epoch-00004.safetensors", "epoch-00005.safetensors", "best.safetensors",
    }  # fmt: skip
    other = perceptron()
    other.load_state_dict(vkml.load(kept.best)["model"])
    np.testing.assert_array_equal(weights(other), best.weights)


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    model = perceptron()
    vkml.fit(model, classes(20), "cross_entropy", epochs=2, callbacks=Checkpoint(tmp_path), progress=False)
    again = perceptron()
    history = vkml.fit(
        again,
        classes(20),
        "cross_entropy",
        epochs=2,
        callbacks=Checkpoint(tmp_path),
        resume=True,
        progress=False,
    )
    assert len(history) == 2
    np.testing.assert_array_equal(weights(again), weights(model))
    with pytest.raises(InvalidArgument, match="another training"):
        vkml.fit(perceptron(), classes(20), "cross_entropy", callbacks=Checkpoint(tmp_path), progress=False)


def test_damaged_checkpoints_are_refused_and_the_one_before_loads(tmp_path: Path) -> None:
    data = classes(20)
    vkml.fit(perceptron(), data, "cross_entropy", epochs=3, callbacks=Checkpoint(tmp_path), progress=False)
    before, last = checkpoints_in(tmp_path)
    last.write_bytes(last.read_bytes()[:-100])
    named = {"callbacks": Checkpoint(tmp_path), "epochs": 3, "progress": False}
    with pytest.raises(InvalidCheckpoint, match=rf"{last.name}.*{before.name}"):
        vkml.fit(perceptron(), data, "cross_entropy", resume=True, **named)
    assert len(vkml.fit(perceptron(), data, "cross_entropy", resume=before, **named)) == 3
    with pytest.raises(NoSuchFile, match="no checkpoint in"):
        vkml.fit(perceptron(), data, "cross_entropy", resume=tmp_path.parent, progress=False)
    with pytest.raises(InvalidCheckpoint, match="another training"):
        vkml.fit(perceptron(4), data, "cross_entropy", resume=before, **named)
    vkml.save({"w": vkml.ones(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"no checkpoint of vkml\.fit"):
        vkml.fit(perceptron(), data, "cross_entropy", resume=tmp_path / "weights.safetensors", progress=False)


TRAINING = """
    import sys
    from pathlib import Path
    import vkml
    from tests.training.test_checkpoint import trained

    class Slow(vkml.training.Callback):
        def on_step_end(self, trainer, loss):
            print("step", trainer.step, flush=True)
            if trainer.step == int(sys.argv[3]):
                sys.stdin.read()

    import tests.training.test_checkpoint as module
    module.Stopping = lambda step: Slow()
    _, weights = trained(Path(sys.argv[1]), sys.argv[2], resume=True)
    print(weights.tobytes().hex())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_killed_and_resumed(tmp_path: Path) -> None:
    """Ended by the system within an epoch: what a new process ends with is what it would have ended with."""

    def start(folder: str, step: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(TRAINING), str(tmp_path / folder), "cpu", str(step)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    killed = start("part", 9)
    assert killed.stdout is not None
    for said in killed.stdout:
        if said.strip() == "step 9":
            break
    killed.kill()
    killed.communicate(timeout=patience(60))
    found = []
    for folder in ("whole", "part"):
        process = start(folder, -1)
        out, _ = process.communicate(timeout=patience(120))
        assert process.returncode == 0
        found.append(out.split()[-1])
    assert found[0] == found[1]
