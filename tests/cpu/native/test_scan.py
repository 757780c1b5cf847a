"""Running sums of lines against NumPy: types, directions, widths, guarded memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.cpu.native.harness import guarded, instruction_sets, require, run
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.scan import SUMMED, running_sum


@instruction_sets
@pytest.mark.parametrize("dtype", SUMMED)
@pytest.mark.parametrize("columns", [1, 3, 4, 7, 8, 9, 16, 21, 40])
def test_running_sums(instructions: InstructionSet, dtype: str, columns: int) -> None:
    require(instructions)
    random = np.random.default_rng(columns)
    for is_exclusive, is_reverse in itertools.product((False, True), (False, True)):
        outer, lines = (int(each) for each in random.integers(1, 30, 2))
        values = (1000 * random.standard_normal((outer, lines, columns))).astype(dtype)
        if dtype != "float32":
            values[0, 0] = np.iinfo(dtype).max  # sums wrap
        memory, x = guarded(values, at_start=bool(random.integers(2)))
        room, result = guarded(np.zeros_like(values), at_start=bool(random.integers(2)))
        step = -columns if is_reverse else columns
        launch = running_sum(
            instructions,
            outer=(outer,),
            lines=lines,
            columns=columns,
            x=(lines * columns, step),
            result=(lines * columns, step),
            dtype=dtype,
            is_exclusive=is_exclusive,
            threads=2,
        )
        run(launch, [x, result])
        line = x[:, ::-1] if is_reverse else x
        with np.errstate(over="ignore"):
            wide = np.float64 if dtype == "float32" else dtype
            sums = np.cumsum(line, 1, dtype=wide)
        expected = np.zeros_like(sums)
        expected[:, is_exclusive:] = sums[:, : lines - is_exclusive]
        np.testing.assert_array_equal(result, (expected[:, ::-1] if is_reverse else expected).astype(dtype))
        memory.check()
        room.check()
