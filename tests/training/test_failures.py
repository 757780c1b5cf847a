"""Trainings that cannot go on: what is said, and that the next one can."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest

import vkml
from tests.patience import patience
from tests.robustness.processes import ROOT
from tests.training.problems import classes, line, perceptron, weights
from vkml import nn
from vkml.errors import AnomalyFound, OutOfMemory
from vkml.training import Callback, Trainer


class Root(nn.Module):
    """Takes the root of a layer's result, which is NaN once that is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        with vkml.no_grad():
            self.layer.weight.fill_(0.0)
            self.layer.bias.fill_(1.0)

    def forward(self, x: vkml.Tensor) -> vkml.Tensor:
        made: vkml.Tensor = self.layer(x).sqrt()
        return made


@pytest.mark.parametrize("jit", [True, False])
def test_a_loss_that_is_nan_names_step_and_operator(device_name: str, jit: bool) -> None:
    """The model stays as it was before that step."""
    states = []

    class Noted(Callback):
        def on_step_end(self, trainer: Trainer, loss: float) -> None:
            states.append(weights(trainer.model))

    x, y = line(64)
    model = Root()
    with pytest.raises(
        AnomalyFound, match=r"the loss is NaN in step \d of epoch \d+: Sqrt makes NaN.*test_failures"
    ):
        vkml.fit(
            model, (x, y - 5), "mse", "sgd", 30, lr=0.02, batch_size=32, device=device_name, progress=False,
            jit=jit, callbacks=Noted(), seed=0,
        )  # fmt: skip
    assert len(states) >= 3  # the step was captured by then
    np.testing.assert_array_equal(weights(model), states[-1])


def test_what_is_wrong_with_batches_and_parameters_is_said() -> None:
    x, y = line(8)
    x[3, 1] = np.nan
    with pytest.raises(AnomalyFound, match="inputs hold NaN"):
        vkml.fit(nn.Linear(4, 1), (x, y), "mse", progress=False)
    x, y = line(8)
    y[0] = np.inf
    with pytest.raises(AnomalyFound, match=r"loss is inf.*target hold NaN or infinity"):
        vkml.fit(nn.Linear(4, 1), (x, y), "mse", progress=False)

    class Edge(nn.Module):
        """Whose gradient at 0 is NaN, its value is not."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(vkml.zeros(1))

        def forward(self, x: vkml.Tensor) -> vkml.Tensor:
            return x[:, :1] + (self.scale * self.scale).sqrt() * 0

    x, y = line(8)
    with pytest.raises(AnomalyFound, match=r"step 2 of epoch 1: scale of the model.*detect_anomaly"):
        vkml.fit(Edge(), (x, y), "mse", batch_size=4, progress=False)
    with pytest.raises(AnomalyFound, match=r"gradient of Sqrt is NaN.*step 1 of epoch 1"):
        vkml.fit(Edge(), (x, y), "mse", batch_size=4, progress=False, detect_anomaly=True)


INTERRUPTED = """
    import os, signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import numpy as np, vkml
    from tests.training.problems import classes, perceptron, weights

    class Asking(vkml.training.Callback):
        def on_step_end(self, trainer, loss):
            if trainer.step == 7:
                os.kill(os.getpid(), signal.SIGINT)

    folder = sys.argv[1]
    def trained(asking, name):
        model = perceptron(dropout=0.2)
        history = vkml.fit(
            model, classes(50), "cross_entropy", epochs=3, batch_size=10, seed=0, resume=True,
            callbacks=[vkml.training.Checkpoint(f"{folder}/{name}"), *asking],
        )
        return history, weights(model)
    history, _ = trained([Asking()], "part")
    print(len(history), history.is_interrupted, history.stopped)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    history, rest = trained([vkml.training.Callback()], "part")
    _, whole = trained([vkml.training.Callback()], "whole")
    print(len(history), history.is_interrupted, bool((rest == whole).all()))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are Unix's")
def test_an_interrupt_ends_it_after_the_step_and_a_checkpoint_goes_on(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(tmp_path)], capture_output=True, text=True,
        cwd=ROOT, timeout=patience(120), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 True Ctrl-C in epoch 2, after 2 steps of it", "3 False True",
    ]  # fmt: skip
    assert "stopped: Ctrl-C in epoch 2" in done.stderr


def test_threads_leave_interrupts_alone() -> None:
    found: list[Any] = []
    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(
        target=lambda: found.append(
            vkml.fit(perceptron(), classes(8), "cross_entropy", epochs=1, progress=False)
        )
    )
    thread.start()
    thread.join(patience(60))
    assert len(found[0]) == 1 and signal.getsignal(signal.SIGINT) is handler


def test_memory_stays_flat() -> None:
    """Thousands of steps leave nothing behind."""
    import resource

    model = perceptron()
    data = [classes(16)] * 200

    def grown() -> float:
        vkml.fit(model, data, "cross_entropy", epochs=2, metrics=["accuracy", "f1"], progress=False)
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    grown()
    first = grown()
    last = max(grown() for _ in range(3))
    assert last - first < 4096  # KiB


def test_memory_that_is_short_is_named_and_free_again(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is too large takes nothing with it: the next smaller one trains."""
    from vkml.engine.ort_value import device_of
    from vkml.vulkan.memory import Allocator

    device = device_of(vulkan_device_name)
    assert device is not None
    model = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 64), nn.Tanh(), nn.Linear(64, 1))
    gc.collect()

    def fitted(samples: int) -> Any:
        data = np.ones((samples, 64), np.float32), np.zeros((samples, 1), np.float32)
        return vkml.fit(
            model, data, "mse", epochs=3, batch_size=samples, device=vulkan_device_name, progress=False
        )

    fitted(8)
    before = device.allocated_bytes
    room = before + (24 << 20)
    monkeypatch.setattr(Allocator, "free_bytes", lambda self, *_: max(0, room - self.allocated_bytes))
    with pytest.raises(
        OutOfMemory, match=r"step 1 of epoch 1, a batch of 4096.*smaller batch than 4096"
    ) as told:
        fitted(4096)
    assert told.value.__context__ is None or told.value.__context__.__traceback__ is None
    del told
    gc.collect()
    assert device.allocated_bytes <= before + (1 << 20)
    assert len(fitted(64)) == 3
