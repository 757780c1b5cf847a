"""Two checkouts compared: each process imports its own vkml, and a model's failure ends with its message."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import vkml
from benchmarks.checkout import Checkout
from benchmarks.compare import compare
from tests.robustness.models import model, node, value

HERE = Path(vkml.__file__).parents[2]


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A second checkout, whose sums are all one too many."""
    shutil.copytree(HERE / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    package = tmp_path / "src" / "vkml" / "engine" / "session.py"
    package.write_text(
        package.read_text()
        + "\n_run = InferenceSession.run\n"
        + "InferenceSession.run = lambda self, names, feed: [y + 1 for y in _run(self, names, feed)]\n"
    )
    return tmp_path


def test_each_runs_its_own_code(other: Path, tmp_path: Path) -> None:
    path = tmp_path / "add.onnx"
    path.write_bytes(model([node("Add", ["x", "x"], ["y"])], [value("x", (4,))], [value("y", (4,))], {}))
    ours, theirs = Checkout(HERE, "cpu", "high"), Checkout(other, "cpu", "high")
    try:
        assert (ours.source, theirs.source) == (HERE / "src" / "vkml", other / "src" / "vkml")
        feed = {"x": np.ones(4, np.float32)}
        assert ours.load(str(path), feed)[1][0].tolist() == [2] * 4
        assert theirs.load(str(path), feed)[1][0].tolist() == [3] * 4
        found = compare(str(path), [ours], [theirs], 0.01)
        assert found["difference"] > 0 and min(found["runs"]) > 0 and min(found["median"]) > 0
    finally:
        ours.close()
        theirs.close()


def test_a_failure_is_told(tmp_path: Path) -> None:
    checkout = Checkout(HERE, "cpu", "high")
    try:
        with pytest.raises(SystemExit, match="no model file"):
            checkout.load(str(tmp_path / "missing.onnx"), {})
    finally:
        checkout.close()
