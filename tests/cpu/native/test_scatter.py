"""Scattered rows against NumPy: sizes, reductions, tuples, bad indices, guarded memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.cpu.native.harness import guarded, instruction_sets, require, run
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.scatter import scatter

FUNCTIONS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
ERROR = 77


@instruction_sets
@pytest.mark.parametrize("reduction", ["none", *FUNCTIONS])
@pytest.mark.parametrize("columns", [1, 7, 16, 64, 75, 200])
def test_rows(instructions: InstructionSet, reduction: str, columns: int) -> None:
    """Rows come in their order, whatever their indices; those with a bad one change nothing."""
    require(instructions)
    random = np.random.default_rng(columns)
    for outer, axes, is_bad in itertools.product((1, 3), (1, 2), (False, True)):
        sizes = tuple(map(int, random.integers(1, 6, axes)))
        count = int(random.integers(1, 40))
        dtype = np.int64 if columns == 16 and reduction == "none" else np.float32
        wide = np.int64 if random.integers(2) else np.int32
        x = np.rint(3 * random.standard_normal((outer, *sizes, columns))).astype(dtype)
        updates = np.rint(2 * random.standard_normal((outer, count, columns))).astype(dtype)
        if dtype == np.float32:
            updates[random.random(updates.shape) < 0.02] = np.nan
        indices = np.stack([random.integers(-size, size, (outer, count)) for size in sizes], -1).astype(wide)
        if is_bad:
            indices[:, 0, -1], indices[:, -1, 0] = sizes[-1], -sizes[0] - 1
        memories = [guarded(array) for array in (indices, updates, x, np.zeros(1, np.uint32))]
        strides = [step // x.itemsize for step in x.strides]
        launch = scatter(
            instructions,
            outer=(outer,),
            count=count,
            columns=columns,
            sizes=sizes,
            steps=tuple(strides[1:-1]),
            indices=(count * axes, axes),
            updates=(count * columns, columns),
            result=(strides[0],),
            words=x.itemsize // 4,
            is_wide=wide == np.int64,
            reduction=reduction,
            error_code=ERROR,
            threads=2,
        )
        expected = x.copy()
        limits = np.array(sizes)
        for o, i in itertools.product(range(outer), range(count)):
            if (indices[o, i] >= -limits).all() and (indices[o, i] < limits).all():
                place = (o, *indices[o, i])
                old = expected[place]
                new = updates[o, i] if reduction == "none" else FUNCTIONS[reduction](old, updates[o, i])
                expected[place] = new
        result, status = memories[2][1], memories[3][1]
        for is_serial in (True, False):
            result[...], status[...] = x, 0
            arrays = [memory[1] for memory in memories]
            run(launch, [*arrays[:2], result, result, status], serial=is_serial, parallel=not is_serial)
            np.testing.assert_array_equal(result, expected)
            assert status[0] == ERROR * is_bad
        for memory, _ in memories:
            memory.check()
