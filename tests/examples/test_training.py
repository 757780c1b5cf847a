"""The examples of training, as a reader runs them, only shorter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patience

FOLDER = Path(__file__).parents[2] / "examples" / "training"
LONGEST = 80
"""Lines of an example."""


def _printed(name: str, device: str, *words: str) -> str:
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--device", device, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(180), check=False)
    # What it prints as errors may be that a device without 64-bit integers leaves some to the CPU.
    assert done.returncode == 0, done.stderr
    return done.stdout


def _numbers(pattern: str, printed: str) -> list[float]:
    found = [float(each) for each in re.findall(pattern, printed)]
    assert found, printed
    return found


def test_they_are_short() -> None:
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST, path.name


@pytest.mark.parametrize(("name", "epochs", "least"), [("mlp", 5, 90), ("cnn", 2, 90)])
def test_digits(name: str, epochs: int, least: float, either_device_name: str) -> None:
    printed = _printed(name, either_device_name, "--epochs", str(epochs), "--seed", "1")
    assert _numbers(r"([\d.]+) % of the test set right", printed)[-1] >= least


def test_transformer(either_device_name: str) -> None:
    printed = _printed("transformer", either_device_name, "--steps", "6")
    assert _numbers(r"step 6: loss ([\d.]+)", printed)[0] < 4.2
    assert printed.splitlines()[-1].startswith(("'", '"')) and len(printed.splitlines()[-1]) >= 100


def test_lora(either_device_name: str) -> None:
    printed = _printed("lora", either_device_name, "--steps", "200")
    first, before, after, without = _numbers(r": ([\d.]+) %", printed)
    assert first > 85 and after > before + 35 and without == first, printed


def test_an_imported_model(either_device_name: str) -> None:
    printed = _printed("finetune_onnx", either_device_name, "--epochs", "3")
    before, *_, after = _numbers(r"([\d.]+) % (?:of the test set )?right", printed)
    assert before < 20 and after > 50, printed
