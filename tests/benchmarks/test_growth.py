"""Lengths never seen before leave nothing behind, through the host and with values on the device."""

from __future__ import annotations

import json

import pytest

from benchmarks.growth import Assembler, counting
from tests.robustness.processes import run_python

GROWING = """
    import json
    from dataclasses import asdict
    from benchmarks.growth import grow
    from benchmarks.models import gpt_with_past

    graph = gpt_with_past(blocks=1, width=16, heads=1, vocabulary=50, longest=1024)
    print(json.dumps(asdict(grow(graph, "{device}", 40, 200, {is_bound}))))
"""
FLAT = 5 << 20


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_growing_past_leaves_nothing_behind(device_name: str, is_bound: bool) -> None:
    # The validation layer remembers what it has seen; glibc takes fresh arenas at random.
    environment = {"VKML_VALIDATE": "", "MALLOC_ARENA_MAX": "1"}
    # Not quiet on every device: what it has no types for runs on the CPU, of which a warning tells.
    done = run_python(GROWING.format(device=device_name, is_bound=is_bound), **environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["lengths"] == 161
    assert not any(found["made"].values()), found
    assert found["host_bytes"] < FLAT and found["device_bytes"] < FLAT, found
    assert found["made"].get("pipelines") == (None if device_name == "cpu" else 0), "nothing was counted"
    assert "plans" in found["made"]


def test_what_is_made_is_counted() -> None:
    with counting() as made:
        Assembler(has_avx512=False).finish()
    Assembler(has_avx512=False).finish()
    assert made == {"kernels": 1}
