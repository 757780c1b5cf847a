"""``vkml tune``: what it writes and prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vkml
from tests.cli.conftest import Command
from vkml.engine import tuning
from vkml.engine.sketch import Sketch
from vkml.engine.trial_timing import TrialProgram
from vkml.engine.tuning_file import read_file, setup_of
from vkml.onnx import save_graph
from vkml.vulkan import find_device


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A product of one row, for which there are several numbers of lanes; there is time to measure it."""
    monkeypatch.setattr(tuning, "clock", lambda: 0.0)
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path / "cache"))
    sketch = Sketch("product")
    weights = sketch.constant(np.ones((256, 200), np.float32))
    path = tmp_path / "product.onnx"
    save_graph(sketch.finish(sketch.node("MatMul", sketch.input("x", (1, 256)), weights)), path)
    return path


def test_the_file_is_what_sessions_go_by(
    command: Command,
    model: Path,
    vulkan_device_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with vkml.InferenceSession(model, devices=vulkan_device_name) as session:
        by_rules = [step.variant for step in session.report().steps]
    seen: list[str] = []

    def timed(program: TrialProgram) -> float:
        """All but the rule's choice, which is the first, are fast."""
        seen.append(program.label)
        return 2e-3 if program.label == seen[0] else 1e-3

    monkeypatch.setattr(tuning, "timed", timed)
    path = tmp_path / "tuning.json"
    words = ["tune", model, "-d", vulkan_device_name, "-o", path, "--effort", "quick"]
    [made] = command(*words, "--json").json
    assert made["device"] == vulkan_device_name and made["launches"] == made["measured"] == 1
    assert made["by_rules"] > 0 and made["as_measured"] > 0
    [change] = made["changed"]
    assert change["rule"] == seen[0] != change["pick"] and change["count"] == 1
    assert change["rule_microseconds"] == pytest.approx(2000) and change["microseconds"] == pytest.approx(
        1000
    )
    [(setup, found)] = read_file(path).items()
    assert setup == setup_of(find_device(vulkan_device_name, True))
    assert [each.pick for each in found.values()] == [change["pick"]]
    options = vkml.SessionOptions()
    options.tuning_file = path
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path / "another"))
    with vkml.InferenceSession(model, options, devices=vulkan_device_name) as session:
        assert [step.variant for step in session.report().steps] != by_rules
    text = command(*words).out
    assert f"product on {vulkan_device_name}: 1 of 1 launch measured, 1 pick other than by rules" in text
    assert change["pick"] in text and f"written to {path}" in text


def test_there_is_nothing_to_tune_on_the_cpu(command: Command, model: Path) -> None:
    done = command("tune", model, "-d", "cpu")
    assert done.code == 2 and "kernels of GPUs" in done.err


def test_a_file_that_cannot_be_written_is_named(
    command: Command, model: Path, vulkan_device_name: str, tmp_path: Path
) -> None:
    done = command("tune", model, "-d", vulkan_device_name, "-o", tmp_path / "none" / "tuning.json")
    assert done.code == 2 and "tuning.json" in done.err and "cannot be written" in done.err
