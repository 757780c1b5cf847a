"""Products of bytes against NumPy: with and without an instruction for them, guarded memory, largest sums."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cpu.native.epilogues import strides_of
from tests.cpu.native.harness import guarded, instruction_sets, require, run
from vkml.cpu.native.executable import InstructionSet, has_byte_dots
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue
from vkml.cpu.native.product import Terms, pack_bytes, panel_width, product


@instruction_sets
@pytest.mark.parametrize("terms", [Terms.DOTS, Terms.PAIRS])
@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(1, 4, 1), (3, 8, 16), (5, 12, 17), (23, 64, 70), (64, 100, 33)]
)
def test_products(instructions: InstructionSet, terms: Terms, rows: int, inner: int, columns: int) -> None:
    require(instructions)
    if terms is Terms.DOTS and not has_byte_dots(instructions):
        pytest.skip("no VNNI")
    random = np.random.default_rng(rows)
    a = random.integers(0, 256, (rows, inner)).astype(np.uint8)
    b = random.integers(-128, 128, (inner, columns)).astype(np.int8)
    a[0], b[:, 0] = 255, -128  # two such products leave 16 bits
    width = panel_width(instructions, columns=columns, rows=rows, row_bytes=inner, terms=terms)
    memory, words = guarded(a.view(np.int32))
    packed_memory, packed = guarded(pack_bytes(b, width))
    result_memory, result = guarded(np.zeros((rows, columns), np.int32))
    launch = product(
        instructions,
        batch=(),
        height=1,
        width=rows,
        columns=columns,
        inner=inner // 4,
        taps=(0,),
        a=(0, *strides_of(words)),
        b=(),
        panel=width,
        epilogue=Epilogue(IDENTITY, (), (Access((0, columns, 1), "int32"),)),
        threads=2,
        terms=terms,
    )
    run(launch, [words, packed, result])
    np.testing.assert_array_equal(result, a.astype(np.int64) @ b.astype(np.int64))
    for each in (memory, packed_memory, result_memory):
        each.check()
