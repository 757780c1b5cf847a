"""Products of quantised rows with matrices of few bits, against NumPy: both kernels, guarded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cpu.native.epilogues import make_ending
from tests.cpu.native.harness import guarded, require, run
from vkml.cpu.native.block_dots import HEADER, STEP, block_dots, byte_order, padded_row, quantize_rows
from vkml.cpu.native.block_product import BlockFormat, pack_codes, pack_columns
from vkml.cpu.native.executable import InstructionSet, has_byte_dots
from vkml.cpu.native.tiles import lanes_of

Array = np.ndarray[Any, Any]
SET = InstructionSet.AVX512


@pytest.fixture(autouse=True)
def _needs() -> None:
    require(SET)
    if not has_byte_dots(SET):
        pytest.skip("no VNNI")


def blocks_of(inner: int, block: int) -> list[tuple[int, int, int]]:
    """Of each block: its first number, how many it has, and where it lies in a quantised row."""
    made, place = [], 0
    for first in range(0, inner, block):
        count = min(block, inner - first)
        made.append((first, count, place))
        place += -(-count // STEP) * STEP + HEADER
    return made


def quantized(a: Array, block: int, bits: int, spread: int = 0) -> tuple[Array, Array]:
    """What the kernel makes of rows, and the numbers that this stands for."""
    rows, inner = a.shape
    memory, whole = guarded(np.concatenate([a, np.full((rows, spread), 7, np.float32)], 1))
    made_memory, made = guarded(np.zeros((rows, padded_row(inner, block)), np.int8))
    launch = quantize_rows(
        SET, bits=bits, block=block, rows=rows, inner=inner, row_step=inner + spread, threads=2
    )
    run(launch, [whole, made])
    for each in (memory, made_memory):
        each.check()
    order, numbers = byte_order(bits), np.zeros_like(a)
    for first, count, place in blocks_of(inner, block):
        size = -(-count // STEP) * STEP
        header = np.ascontiguousarray(made[:, place + size : place + size + 12])
        scale, total = header.view(np.float32)[:, 0], header.view(np.float32)[:, 2]
        codes = np.zeros((rows, size), np.int8)
        for start in range(0, size, STEP):
            codes[:, start + order] = made[:, place + start : place + start + STEP]
        assert not codes[:, count:].any()
        with np.errstate(invalid="ignore"):
            numbers[:, first : first + count] = codes[:, :count] * scale[:, None]
            if np.isfinite(scale).all():
                np.testing.assert_array_equal(total, codes.sum(1, dtype=np.int32))
                beginning = header.view(np.int32)[:, 1]
                np.testing.assert_array_equal(beginning, -(1 << bits - 1) * total.astype(np.int32))
    return made, numbers


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("rows", "inner", "block"), [(1, 16, 16), (3, 100, 32), (7, 256, 64), (5, 289, 256)])
def test_rows_are_rounded_to_a_step_of_their_block(bits: int, rows: int, inner: int, block: int) -> None:
    a = np.random.default_rng(inner).standard_normal((rows, inner)).astype(np.float32)
    a[:, : min(inner, block)] *= 1000
    a[0, :5] = 0
    _, numbers = quantized(a, block, bits, spread=3)
    for first, count, _ in blocks_of(inner, block):
        part = a[:, first : first + count]
        step = np.abs(part).max(1, keepdims=True) / 127
        error = np.abs(numbers[:, first : first + count] - part)
        assert (error <= 0.5001 * step).all()


def test_what_is_not_finite_stays_so() -> None:
    a = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    a[0, 3], a[1, 40], a[2, :32] = np.nan, np.inf, 0
    _, numbers = quantized(a, 32, 4)
    assert not np.isfinite(numbers[0, :32]).any() and np.isfinite(numbers[0, 32:]).all()
    assert not np.isfinite(numbers[1, 32:]).any() and np.isfinite(numbers[1, :32]).all()
    assert not numbers[2, :32].any() and np.isfinite(numbers[2:]).all()


@pytest.mark.parametrize("zero", ["", "int8", "float32"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("rows", "inner", "columns", "block", "scale"),
    [
        (1, 32, 16, 32, "float32"),
        (12, 64, 40, 16, "float32"),
        (13, 200, 33, 64, "float16"),
        (29, 272, 7, 256, "float32"),
        (40, 56, 90, 32, "float32"),
    ],
)
def test_products(zero: str, bits: int, rows: int, inner: int, columns: int, block: int, scale: str) -> None:
    random = np.random.default_rng(rows + bits)
    form, lanes, blocks = BlockFormat(bits, block, scale, zero), lanes_of(SET), -(-inner // block)
    made, numbers = quantized(random.standard_normal((rows, inner)).astype(np.float32), block, bits)
    codes = random.integers(0, 256, (columns, blocks * block * bits // 8), np.uint8)
    fields = (codes[..., None] >> np.arange(0, 8, bits)) & ((1 << bits) - 1)
    matrix = fields.reshape(columns, -1)[:, :inner].astype(np.float64) - (1 << bits - 1)
    scales = (random.random((columns, blocks)) / 2**bits).astype(scale)
    given = [pack_codes(codes, bits, inner, lanes), pack_columns(scales, lanes)]
    if zero:
        zeros = random.integers(-(1 << bits - 1), 1 << bits - 1, scales.shape).astype(zero)
        given.append(pack_columns(zeros, lanes))
        matrix -= np.repeat(zeros.astype(np.float64), block, 1)[:, :inner]
    matrix *= np.repeat(scales.astype(np.float64), block, 1)[:, :inner]
    memories, operands = zip(*(guarded(np.ascontiguousarray(each)) for each in given), strict=True)
    for kind in ("identity", "bias_relu", "two_results"):
        ending = make_ending(kind, (rows, columns), random)
        launch = block_dots(
            SET, form=form, rows=rows, inner=inner, columns=columns, epilogue=ending.epilogue, threads=3
        )
        sums = numbers.astype(np.float64) @ matrix.T
        # Sums of a block are exact; each of them is rounded a few times.
        error = 6 * 2.0**-23 * (np.abs(numbers).astype(np.float64) @ np.abs(matrix.T))
        ending.check_within(launch, [made, *operands], sums, error)
    for memory in memories:
        memory.check()
