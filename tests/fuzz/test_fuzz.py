"""Fixed seeds of the fuzzer on every device; `python -m tests.fuzz` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import Campaign
from tests.fuzz.mutate import official, official_case
from vkml.cpu.native.executable import instruction_set

SEED = 20261121
CASES = {"cpu": 120, "lavapipe": 15, "swiftshader": 12}
"""Cases of each part; a device that is compiled for takes a second a case, the CPU a twentieth."""
PARTS: list[dict[str, str]] = [{}, {"VKML_NATIVE": "avx2"}]
"""Environments: the processor's own instructions, and those that most processors have."""


@pytest.mark.parametrize("part", range(len(PARTS)))
def test_fixed_seeds(device_name: str, part: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    label = next((label for label in CASES if label in request.node.callspec.id), "lavapipe")
    count = CASES[label]
    with Campaign(device_name, SEED, tmp_path, environment=PARTS[part], seconds=15) as campaign:
        report = campaign.run(count, first=part * count)
    assert not report.found, "\n".join(
        f"{found.finding}\n  {found.origin}" for found in report.found.values()
    )
    assert report.cases == count
    # A fuzzer that compares nothing finds nothing.
    counts = report.counts
    assert counts["compared"] > 3 * count and counts["onnxruntime ran"] > count / 3
    instructions = instruction_set()
    if device_name == "cpu" and instructions is not None:
        assert counts[f"{PARTS[part].get('VKML_NATIVE', instructions.value)} steps"] > count / 2


def test_official_cases_are_there() -> None:
    assert len(official()) > 1000
    assert official_case(0).proto() is not None
