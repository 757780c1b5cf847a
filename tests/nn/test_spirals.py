"""The example of training, as a reader runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.patience import patience

ROOT = Path(__file__).parents[2]


def test_spirals_are_told_apart(either_device_name: str) -> None:
    words = [sys.executable, "examples/training/spirals.py", "--device", either_device_name, "--steps", "500"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=patience(120), check=False)
    # What it prints as errors may be that a device without 64-bit integers leaves some to the CPU.
    assert done.returncode == 0, done.stderr
    found = re.search(r"([0-9.]+) % of 2000 points", done.stdout)
    assert found is not None and float(found[1]) > 90, done.stdout
