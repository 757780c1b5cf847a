"""Products with matrices of few bits against NumPy: formats, odd sizes, epilogues, guarded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cpu.native.epilogues import KINDS, make_ending, rounding_of_sums, strides_of
from tests.cpu.native.harness import guarded, instruction_sets, require
from vkml.cpu.native.block_product import (
    BITS,
    BlockFormat,
    block_product,
    most_rows,
    pack_codes,
    pack_columns,
)
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue
from vkml.cpu.native.kernel import Kernel
from vkml.cpu.native.tiles import lanes_of

Array = np.ndarray[Any, Any]
ZEROS = ("", "int8", "float32")


def check(
    instructions: InstructionSet,
    random: np.random.Generator,
    form: BlockFormat,
    *,
    rows: int,
    inner: int,
    columns: int,
    spread: int = 1,
    kind: str = "identity",
    threads: int = 2,
) -> None:
    lanes, blocks = lanes_of(instructions), -(-inner // form.block)
    memories = []

    def kept(values: Array) -> Array:
        memory, array = guarded(np.ascontiguousarray(values), at_start=bool(random.integers(2)))
        memories.append(memory)
        return array

    codes = random.integers(0, 256, (columns, blocks * form.block * form.bits // 8), np.uint8)
    fields = (codes[..., None] >> np.arange(0, 8, form.bits)) & ((1 << form.bits) - 1)
    numbers = fields.reshape(columns, -1)[:, :inner].astype(np.float64) - (1 << form.bits - 1)
    scales = (random.random((columns, blocks)) / 2**form.bits).astype(form.scale)
    operands = [kept(pack_codes(codes, form.bits, inner, lanes)), kept(pack_columns(scales, lanes))]
    per_number = np.repeat(scales.astype(np.float64), form.block, 1)[:, :inner]
    if form.zero:
        zeros = random.integers(-(1 << form.bits - 1), 1 << form.bits - 1, scales.shape).astype(form.zero)
        operands.append(kept(pack_columns(zeros, lanes)))
        numbers -= np.repeat(zeros.astype(np.float64), form.block, 1)[:, :inner]
    a = kept(random.standard_normal((rows, inner * spread)).astype(np.float32))[:, spread - 1 :: spread]
    matrix = (numbers * per_number).T
    step_m, step_k = strides_of(a)
    ending = make_ending(kind, (rows, columns), random)
    launch = block_product(
        instructions,
        form=form,
        rows=rows,
        inner=inner,
        columns=columns,
        a=(step_m, step_k),
        epilogue=ending.epilogue,
        threads=threads,
    )
    sums = a.astype(np.float64) @ matrix
    ending.check_within(launch, [a, *operands], sums, rounding_of_sums(a, matrix))
    for memory in memories:
        memory.check()


@instruction_sets
@pytest.mark.parametrize("seed", range(24))
def test_random_products(instructions: InstructionSet, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)
    bits = BITS[seed % len(BITS)]
    scale = str(random.choice(["float32", "float16"]))
    check(
        instructions,
        random,
        BlockFormat(bits, int(random.choice([16, 32, 48, 128])), scale, ZEROS[seed // 3 % 3]),
        rows=int(random.choice([1, 2, 3, 5, 8, 13, 14, 25, 60])),
        inner=int(random.choice([1, 7, 16, 31, 33, 64, 100, 500])),
        columns=int(random.choice([1, 7, 8, 16, 17, 33, 100])),
        spread=int(random.integers(1, 3)),
        kind=KINDS[seed % len(KINDS)],
        threads=int(random.integers(1, 5)),
    )


@instruction_sets
def test_every_number_of_rows(instructions: InstructionSet) -> None:
    """Each has its own way to share registers, up to two groups of which one is smaller."""
    require(instructions)
    random = np.random.default_rng(0)
    for rows in range(1, most_rows(instructions) + 3):
        check(instructions, random, BlockFormat(4, 16, "float32", "int8"), rows=rows, inner=40, columns=19)


@instruction_sets
def test_scales_of_bfloat16(instructions: InstructionSet) -> None:
    require(instructions)
    form = BlockFormat(8, 64, "bfloat16", "bfloat16")
    check(instructions, np.random.default_rng(0), form, rows=2, inner=200, columns=20)


@instruction_sets
def test_strips_share_the_columns(instructions: InstructionSet) -> None:
    require(instructions)
    form = BlockFormat(4, 32, "float32")
    check(
        instructions,
        np.random.default_rng(0),
        form,
        rows=2,
        inner=1024,
        columns=1030,
        kind="bias_relu",
        threads=4,
    )


@instruction_sets
def test_numbers_of_rows_share_kernels(instructions: InstructionSet) -> None:
    """A prompt of another length is another table, not another kernel, but for the rows that remain."""
    group = most_rows(instructions)
    epilogue = Epilogue(IDENTITY, (), (Access((64, 1)),))

    def kernel(rows: int) -> Kernel:
        form = BlockFormat(4, 32, "float32")
        launch = block_product(
            instructions, form=form, rows=rows, inner=64, columns=64, a=(64, 1), epilogue=epilogue, threads=2
        )
        return launch.kernel

    assert kernel(group + 3) is kernel(5 * group + 3)
    assert kernel(2 * group) is kernel(group) is not kernel(3)
