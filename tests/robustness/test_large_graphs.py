"""Loading is linear in the file: four times the nodes take four times as long, and 100,000 some seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patience
from tests.robustness.large import CASES

LIMIT = 20.0
"""Seconds of processor time for 100,000 nodes or inputs: twice what is promised, which is for a machine with
nothing else to do; beside others the same work takes up to twice the processor time."""


def seconds(case: str, device: str, *counts: int) -> list[float]:
    """What `tests.robustness.large` prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.robustness.large", case, device, *map(str, counts)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "VKML_VALIDATE": "0"},  # the layer looks at each of 100,000 dispatches
        capture_output=True,
        text=True,
        timeout=patience(600),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("kind", ["cpu", "vulkan"])
def test_four_times_the_graph_takes_four_times_as_long(
    vulkan_device_names: tuple[str, ...], kind: str, case: str
) -> None:
    if kind == "vulkan" and not vulkan_device_names:
        pytest.skip("no Vulkan device to test on")
    device = "cpu" if kind == "cpu" else vulkan_device_names[0]  # planning is the same on all of them
    small, large = seconds(case, device, 5000, 20000)
    assert large < 8 * small + 0.2


@pytest.mark.parametrize(
    "case", ["bodies", "chain", "concatenation", "consumers", "initializers", "sum_of_inputs"]
)
def test_a_hundred_thousand_load_in_seconds(case: str) -> None:
    count = 500_000 if case == "sum_of_inputs" else 100_000  # which makes of five an input
    [found] = seconds(case, "cpu", count)
    assert found < LIMIT
