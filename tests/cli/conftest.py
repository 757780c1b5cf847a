"""What the command line's tests share: a small model, and running a command in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml.onnx
from vkml.cli import main
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Outcome]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs ``vkml`` with the given words; returns its exit code and what it printed."""
    # `main` sets it for --debug; this way it is taken back.
    monkeypatch.setenv("VKML_DEBUG", "")

    def run(*words: object) -> Outcome:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ending:
            main([str(word) for word in words])
        captured = capfd.readouterr()
        code = ending.value.code
        assert isinstance(code, int)
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def scale_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scores = image (batch, 1, 4, 4), flat, times a fixed matrix (16, 3); doubled = image · 2."""
    sketch = Sketch("scale")
    image = sketch.input("image", ("batch", 1, 4, 4))
    flat = sketch.node("Flatten", image, axis=1)
    scores = sketch.node("MatMul", flat, sketch.constant(matrix()))
    sketch.output(scores, "scores", ("batch", 3), dtypes.FLOAT32)
    doubled = sketch.node("Mul", image, sketch.constant(np.float32(2)))
    sketch.output(doubled, "doubled/image", ("batch", 1, 4, 4), dtypes.FLOAT32)
    path = tmp_path_factory.mktemp("models") / "scale.onnx"
    vkml.onnx.save_graph(sketch.finish(), path)
    return path


@pytest.fixture(scope="session")
def sum_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """total = a (2, n) + b (n), both int64."""
    sketch = Sketch("sum")
    a, b = sketch.input("a", (2, "n"), dtypes.INT64), sketch.input("b", ("n",), dtypes.INT64)
    sketch.output(sketch.node("Add", a, b), "total", (2, "n"), dtypes.INT64)
    path = tmp_path_factory.mktemp("models") / "sum.onnx"
    vkml.onnx.save_graph(sketch.finish(), path)
    return path


def matrix() -> np.ndarray[Any, Any]:
    return np.linspace(-1, 1, 48, dtype=np.float32).reshape(16, 3)
