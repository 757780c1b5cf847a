"""Mapped memory: zeroed, writable, and never shared with a forked child."""

from __future__ import annotations

import os

import pytest

from tests.robustness.processes import output_of
from vkml.cpu.mapping import map_memory

FORKED = """
    from tests.robustness.forks import in_children
    from vkml.cpu.mapping import map_memory

    memory = map_memory(8192)

    def write(number):
        memory[:4] = b"mine"

    in_children(2, write)
    print(bytes(memory[:4]))
"""


def test_it_is_zeroed_and_writable() -> None:
    memory = map_memory(5000)
    assert len(memory) == 5000 and not any(memory[:])
    memory[4999:] = b"x"
    assert memory[4999] == ord("x")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_writes_into_its_own() -> None:
    assert output_of(FORKED) == r"b'\x00\x00\x00\x00'" + "\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_run_leaves_nothing_shared() -> None:
    """Whatever maps memory: no anonymous page of a process that has run a model is shared with children."""
    code = """
        import numpy as np, vkml
        from tests.robustness.models import convolution
        with vkml.InferenceSession(convolution(), devices="cpu") as session:
            session.run(None, {"x": np.ones((1, 2, 6, 6), np.float32)})
            with open("/proc/self/maps") as maps:
                print([line for line in maps if line.split()[1][3] == "s" and "zero" in line])
    """
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("no /proc on this system")
    assert output_of(code) == "[]\n"
