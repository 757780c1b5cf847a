"""Weighted sums of lines against NumPy: sizes, taps, strides, infinities, guarded memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cpu.native.epilogues import strides_of
from tests.cpu.native.harness import guarded, instruction_sets, require, run
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.resample import resample, table_of

COLUMNS = (1, 3, 8, 16, 21, 64, 65, 79, 130, 200)
TAPS = (1, 2, 3, 4, 7)


@instruction_sets
@pytest.mark.parametrize("columns", COLUMNS)
def test_lines_are_sums(instructions: InstructionSet, columns: int) -> None:
    require(instructions)
    random = np.random.default_rng(columns)
    for taps in TAPS:
        outer = tuple(map(int, random.integers(1, 6, int(random.integers(0, 3)))))
        size, lines = (int(each) for each in random.integers(1, 40, 2))
        places = random.integers(0, size, (lines, taps))
        weights = random.standard_normal((lines, taps)).astype(np.float32)
        values = random.standard_normal((*outer, size, columns)).astype(np.float32)
        values[random.random(values.shape) < 0.02] = np.inf
        memories = [
            guarded(array, at_start=bool(random.integers(2)))
            for array in (
                values,
                table_of(places, weights, 4 * columns),
                np.zeros((*outer, lines, columns), "f4"),
            )
        ]
        (_, x), (_, table), (_, result) = memories
        launch = resample(
            instructions,
            outer=outer,
            lines=lines,
            columns=columns,
            taps=taps,
            x=strides_of(x)[: len(outer)],
            result=strides_of(result)[:-1],
            threads=2,
        )
        run(launch, [x, table, result])
        with np.errstate(invalid="ignore"):
            parts = np.take(x.astype(np.float64), places, axis=len(outer)) * weights[..., None]
            expected, scale = parts.sum(-2), np.abs(parts).sum(-2)
        found = np.isfinite(expected)
        np.testing.assert_array_equal(result[~found], expected[~found].astype(np.float32))
        assert (np.abs(result[found] - expected[found]) <= taps * 2.0**-24 * scale[found]).all()
        for memory, _ in memories:
            memory.check()
