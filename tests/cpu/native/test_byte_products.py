"""Products of bytes against NumPy: with and without an instruction for them, guarded memory, largest sums."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.cpu.native.epilogues import strides_of
from tests.cpu.native.harness import guarded, instruction_sets, require, run
from vkml.cpu.native.executable import InstructionSet, has_byte_dots
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue, Expression, Step
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


# what is stored, what is read, and whether these are bytes or halves of words
NARROW = [
    ("uint8", "int8"),
    ("int8", "uint8"),
    ("float16", "float16"),
    ("uint16", "bool"),
    ("bfloat16", "int16"),
]


@instruction_sets
@pytest.mark.parametrize(("stored", "read"), NARROW)
@pytest.mark.parametrize("columns", [1, 16, 21, 40])
def test_narrow_results_and_operands(
    instructions: InstructionSet, stored: str, read: str, columns: int
) -> None:
    """What comes behind a product is read, and written, in fewer than four bytes an element."""
    require(instructions)
    rows, inner = 29, 8
    random = np.random.default_rng(columns)
    a = random.integers(0, 4, (rows, inner)).astype(np.uint8)
    b = random.integers(-3, 4, (inner, columns)).astype(np.int8)
    kinds = {name: np.dtype(getattr(ml_dtypes, name, None) or name) for name in (stored, read)}
    least, most = (0, 2) if read == "bool" else (-5, 6) if kinds[read].kind != "u" else (0, 11)
    whole = random.integers(least, most, (rows, columns)).astype(kinds[read])
    line = random.integers(least, most, columns).astype(kinds[read])
    width = panel_width(instructions, columns=columns, rows=rows, row_bytes=inner, terms=Terms.PAIRS)
    memory, words = guarded(a.view(np.int32))
    packed_memory, packed = guarded(pack_bytes(b, width))
    whole_memory, of_all = guarded(whole)
    line_memory, of_line = guarded(line)
    result_memory, result = guarded(np.zeros((rows, columns), kinds[stored]))
    kind = "float32" if read in ("float16", "bfloat16") else read if read == "bool" else "int32"
    as_floats = tuple(Step("to_float32", (at,), dtype=kind) for at in (1, 2) if kind != "float32")
    first, second = (3, 4) if as_floats else (1, 2)
    at = 3 + len(as_floats)
    steps = (
        *as_floats,
        Step("to_float32", (0,), dtype="int32"),
        Step("add", (at, first)),
        Step("add", (at + 1, second)),
    )
    if kinds[stored].kind in "iu":
        wrap = Step(f"wrap_{stored}", (at + 3,), dtype="int32")
        steps = (*steps, Step("to_int32", (at + 2,)), wrap)
    leaves = (Access((0, columns, 1), read), Access((0, 0, 1), read))
    ending = Epilogue(Expression(3, steps, (2 + len(steps),)), leaves, (Access((0, columns, 1), stored),))
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
        epilogue=ending,
        threads=2,
        terms=Terms.PAIRS,
    )
    run(launch, [words, packed, of_all, of_line, result])
    expected = a.astype(np.int64) @ b.astype(np.int64) + whole.astype(np.int64) + line.astype(np.int64)
    np.testing.assert_array_equal(result, expected.astype(kinds[stored]))
    for each in (memory, packed_memory, whole_memory, line_memory, result_memory):
        each.check()
