"""Ctrl-C: ends a long run quietly, and leaves a session that can go on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import vkml
from tests.robustness.models import model, node, product, value

ROOT = Path(__file__).parents[2]


SIZE = 160


def heavy() -> bytes:
    """Products that keep a device busy for some milliseconds."""
    names = [f"h{index}" for index in range(6)]
    nodes = [node("MatMul", [a, "w"], [b]) for a, b in zip(["x", *names], [*names, "y"], strict=True)]
    square = np.eye(SIZE, dtype=np.float32)
    return model(nodes, [value("x", (SIZE, SIZE))], [value("y", (SIZE, SIZE))], {"w": square})


@pytest.mark.parametrize("command", ["run", "bench"])
def test_command_line(device_name: str, command: str, tmp_path: Path) -> None:
    path = tmp_path / "heavy.onnx"
    path.write_bytes(heavy())
    words = ["run", "--random", "--repeat", "1000000"] if command == "run" else ["bench", "--seconds", "1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vkml", *words, str(path), "--device", device_name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    out = error = ""
    try:
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        try:
            out, error = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            # Python drops an interrupt that meets a finalizer; a person presses the keys again.
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 130, (out, error)
    assert "Traceback" not in error and "internal error" not in error


class Interrupter:
    """Raises KeyboardInterrupt in this thread after a delay, and again where one was lost in a finalizer."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.is_armed = True

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, self.delay, 0.2)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return kind is KeyboardInterrupt

    def _interrupt(self, *_: object) -> None:
        if self.is_armed:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_session_goes_on(device_name: str) -> None:
    """An interrupt in the middle of a run; then the session runs again, and closes."""
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
    with vkml.InferenceSession(heavy(), devices=device_name, precision="highest") as session:
        (expected,) = session.run(None, {"x": x})
        for delay in (0.001, 0.002, 0.003, 0.005, 0.01):
            with Interrupter(delay):
                while True:
                    session.run(None, {"x": x})
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_while_planning(device_name: str) -> None:
    with vkml.InferenceSession(product(), devices=device_name) as session:
        for delay in (0.0003, 0.0005, 0.001, 0.002, 0.003):
            with Interrupter(delay):
                for rows in itertools.count(1):
                    session.run(None, {"x": np.ones((rows % 40, 4), np.float32)})
            assert session.run(None, {"x": np.ones((3, 4), np.float32)})[0].shape == (3, 3)
