"""Long rows, cut into parts that threads reduce side by side: whole programs against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import vkml.lowering.cpu
from tests.cpu.native.harness import instruction_sets, require
from tests.vulkan_cases import Cases, Fixed
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.rows import LEAST_CUT, cut_of_rows


def test_rows_are_cut_where_that_pays() -> None:
    assert cut_of_rows(1, 1000, 2) == 0
    assert cut_of_rows(100, 1 << 20, 2) == 0
    assert cut_of_rows(1, 1 << 24, 1) == 0
    for rows, columns, threads in ((1, LEAST_CUT * 3 + 5, 2), (1, 1 << 24, 16), (3, 1 << 20, 4)):
        length = cut_of_rows(rows, columns, threads)
        assert length % 64 == 0
        assert 2 <= columns // length <= 4 * threads + 1


@instruction_sets
@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "SumSquare", "L1", "L2", "Prod"])
def test_cut_rows(instructions: InstructionSet, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(instructions)
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: instructions)
    cases = Cases(len(op))
    for shape, axes in (
        ((1, 300_001), [1]),
        ((1 << 18,), [0]),
        ((3, 7, 29_999), [1, 2]),
        ((2, 1 << 17, 1), [1]),
    ):
        for keeps in (0, 1):
            x = cases.array("float32", shape)
            if op == "Prod":
                x = np.exp(x / 100).astype(np.float32)
            # Sums of a million numbers of both signs: relative to what they could be, 1e-7.
            atol = 2e-2 if op == "Sum" else 1e-6
            # Each of the factors is rounded in: NumPy is off by as much.
            rtol = 1e-4 if op == "Prod" else None
            cases.add(f"Reduce{op}", x, Fixed(np.array(axes, np.int64)), keepdims=keeps, atol=atol, rtol=rtol)
    cases.check("cpu")
