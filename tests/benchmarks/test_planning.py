"""The benchmark of planning measures what planning consists of."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.planning import MODELS, PHASES


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_models_have_about_so_many_nodes(kind: str) -> None:
    for wanted in (100, 1000):
        assert 0.9 * wanted <= len(MODELS[kind](wanted).nodes) <= 1.1 * wanted


def test_every_phase_is_seen(device_name: str) -> None:
    """A function that was renamed would have its time counted as another phase's."""
    command = ["--device", device_name, "--sessions", "1", "--only", "convolutions", "12"]
    made = subprocess.run(
        [sys.executable, "-m", "benchmarks.planning", *command], capture_output=True, text=True, check=True
    )
    figures = json.loads(made.stdout)
    assert set(PHASES) <= set(figures["process"]) and set(PHASES) <= set(figures["session"])
    assert figures["process"]["wall"] > 0
