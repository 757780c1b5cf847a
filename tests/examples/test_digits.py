"""The digits example: its stated accuracy, its pictures, its training."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import vkml
import vkml.onnx

FOLDER = Path(__file__).parent.parent.parent / "examples" / "digits"
MODEL = FOLDER / "digits.onnx"


@pytest.fixture(scope="module")
def training() -> ModuleType:
    """The training script as a module."""
    specification = importlib.util.spec_from_file_location("digits_train", FOLDER / "train.py")
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules["digits_train"] = module
    specification.loader.exec_module(module)
    return module


def test_accuracy_is_what_the_readme_states(training: ModuleType, device_name: str) -> None:
    stated = re.search(r"\*\*([\d.]+) % on the test set\*\*", (FOLDER / "README.md").read_text())
    assert stated
    _, test = training.split_digits()
    with vkml.InferenceSession(MODEL, devices=device_name) as session:
        (given,) = session.run(None, {"image": test.images})
    assert round(100 * training.accuracy(given, test.digits), 1) == float(stated[1])


def test_session_agrees_with_the_training_script(training: ModuleType, device_name: str) -> None:
    graph = vkml.onnx.load_graph(MODEL)
    parameters = {name: np.array(constant.array) for name, constant in graph.constants.items()}
    _, test = training.split_digits()
    with vkml.InferenceSession(MODEL, devices=device_name, precision="highest") as session:
        (given,) = session.run(None, {"image": test.images[:50]})
    assert given == pytest.approx(training.probabilities(parameters, test.images[:50]), rel=1e-4, abs=1e-6)


def test_gradients_agree_with_differences(training: ModuleType) -> None:
    generator = np.random.default_rng(3)
    parameters = {
        name: value.astype(np.float64) for name, value in training.initial_parameters(generator).items()
    }
    images, digits = generator.random((4, 1, 8, 8)), np.array([1, 7, 0, 3])
    found, _ = training.gradients(parameters, images, digits)
    for name in parameters:
        place = tuple(generator.integers(0, size) for size in parameters[name].shape)
        step = 1e-4
        losses = []
        for sign in (1, -1):
            moved = {key: value.copy() for key, value in parameters.items()}
            moved[name][place] += sign * step
            losses.append(training.gradients(moved, images, digits)[1])
        assert found[name][place] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-3, abs=1e-5)


def test_training_learns_and_repeats(training: ModuleType) -> None:
    train, test = training.split_digits()
    few = training.Split(train.images[:400], train.digits[:400])
    first, second = (training.train(few, epochs=15, seed=5) for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert training.accuracy(training.probabilities(first, test.images), test.digits) > 0.85


def test_written_graph_is_valid_onnx() -> None:
    import onnx

    onnx.checker.check_model(str(MODEL), full_check=True)


def test_classify_names_every_digit() -> None:
    pictures = sorted(FOLDER.glob("*.png"))
    assert [path.name for path in pictures] == [
        *(f"{digit}.png" for digit in range(5)),
        "5-large.png",
        *(f"{digit}.png" for digit in range(5, 10)),
    ]
    command = [sys.executable, str(FOLDER / "classify.py"), "--device", "cpu", *map(str, pictures)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, last = done.stdout.splitlines()
    for path, line in zip(pictures, lines, strict=True):
        assert line.startswith(path.name) and f"is a {path.name[0]} " in line
    assert "on cpu" in last and "µs" in last
    assert "digits.onnx is loaded on cpu" in done.stderr and "the first run" in done.stderr


def test_classify_says_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "classify.py"), str(tmp_path / "nothing.png")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "nothing.png" in done.stderr and "Traceback" not in done.stderr
