"""A training loop leaves nothing behind, captured and eager."""

from __future__ import annotations

import json

import pytest

from tests.robustness.processes import run_python

TRAINING = """
    import json
    from dataclasses import asdict
    from benchmarks.endless import endless

    print(json.dumps([asdict(part) for part in endless("{device}", "{way}", {steps})]))
"""
SETTLED = 3
"""Parts behind which everything is there that is kept."""


@pytest.mark.parametrize(("way", "steps"), [("jit", 2000), ("eager", 1500)])
def test_an_endless_loop_leaves_nothing_behind(either_device_name: str, way: str, steps: int) -> None:
    # The validation layer remembers what it has seen; glibc takes fresh arenas at random.
    environment = {"VKML_VALIDATE": "", "MALLOC_ARENA_MAX": "1"}
    code = TRAINING.format(device=either_device_name, way=way, steps=steps)
    # Not quiet on every device: what it has no types for runs on the CPU, of which a warning tells.
    done = run_python(code, **environment)
    assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout)
    assert [part["steps"] for part in parts] == [steps // 10 * number for number in range(1, 11)]
    first, last = parts[SETTLED], parts[-1]
    later = last["steps"] - first["steps"]
    # An object a step, or 2 KiB of memory a step, would be found.
    assert last["objects"] - first["objects"] < later / 4, parts
    assert last["host_bytes"] - first["host_bytes"] < 2048 * later, parts
    assert last["device_bytes"] == first["device_bytes"], parts
    assert last["loss"] < 0.7 * parts[0]["loss"], "it does not train"
