"""Block programs, partitions, buffers, row functions and products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vkml.cpu.blas import borrowed_threads, can_multiply_unaligned, multiply
from vkml.cpu.blocks import BlockProgram, Chain, choose, partition, refine
from vkml.cpu.buffers import LEAST_BYTES, BufferPool
from vkml.cpu.products import blas_ready, product
from vkml.cpu.rows import log_softmax_rows, normalise_rows, normalise_rows_by_mean_square, softmax_rows
from vkml.cpu.scratch import release_scratch, scratch

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("seed", range(30))
def test_a_partition_covers_every_element_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(0, 5)))
    elements = int(rng.integers(1, 200))
    counts = np.zeros(shape, int)
    for index in partition(shape, elements):
        counts[index] += 1
        assert math.prod(counts[index].shape) <= elements
        for piece in refine(index, shape, 7):
            counts[piece] += 10
    assert (counts == 11).all()


def evaluate(chain: Chain, operands: list[Array]) -> dict[int, Array]:
    """The chain on whole arrays."""
    values = dict(zip(chain.operands, operands, strict=True)) | dict(chain.constants)
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    for step in chain.steps:
        out = np.empty(shape, chain.dtypes[step.output])
        step.function(*(values[value] for value in step.inputs), out=out)
        values[step.output] = out
    return values


@pytest.mark.parametrize("seed", range(40))
def test_random_chains(seed: int) -> None:
    """Memory assignment never overwrites a value that is still needed, whatever lives how long."""
    rng = np.random.default_rng(seed)
    chain = Chain()
    shapes: list[tuple[int, ...]] = [(4, 6, 5), (1, 6, 5), (4, 1, 1), (4, 6, 5)]
    for _ in shapes:
        chain.operand(np.float32)
    values = [*chain.operands, chain.constant(np.array(0.5, np.float32))]
    functions = [np.add, np.subtract, np.maximum]
    for _ in range(int(rng.integers(1, 12))):
        first, second = (int(v) for v in rng.choice(values, 2))
        values.append(chain.step(functions[rng.integers(3)], first, second, dtype=np.float32))
    if rng.integers(2):
        flags = chain.step(np.greater, values[-1], values[0], dtype=np.bool_)
        values.append(chain.step(choose, flags, values[-1], values[1], dtype=np.float32, in_place=False))
    made = [step.output for step in chain.steps]
    outputs = [int(v) for v in rng.choice(made, min(len(made), int(rng.integers(1, 4))), replace=False)]
    resident = chain.operands[0] if rng.integers(2) else None
    if resident is not None and rng.integers(2):
        outputs[-1] = resident
    operands = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    expected = evaluate(chain, operands)
    program = BlockProgram(chain, outputs, [np.float32] * len(outputs), resident)
    found = [np.full((4, 6, 5), np.nan, np.float32) for _ in outputs]
    if program.resident_output is not None:
        found[program.resident_output][...] = operands[0]
        operands[0] = found[program.resident_output]
    for index in partition((4, 6, 5), int(rng.integers(1, 130))):
        program.run(index, operands, found)
    for value, array in zip(outputs, found, strict=True):
        np.testing.assert_array_equal(array, np.broadcast_to(expected[value], (4, 6, 5)))


def test_outputs_that_trade_places() -> None:
    """The resident value is wanted as the second output while the first is of its type too."""
    chain = Chain()
    x = chain.operand(np.float32)
    double = chain.step(np.add, x, x, dtype=np.float32)
    program = BlockProgram(chain, [double, x], [np.float32, np.float32], x)
    assert program.resident_output == 1
    outputs = [np.empty(3, np.float32), np.array([1, 2, 3], np.float32)]
    program.run((), [outputs[1]], outputs)
    np.testing.assert_array_equal(outputs, [[2, 4, 6], [1, 2, 3]])


def test_a_result_of_another_type_is_converted() -> None:
    chain = Chain()
    x = chain.operand(np.float32)
    program = BlockProgram(chain, [chain.step(np.add, x, x, dtype=np.float32)], [np.float16])
    out = np.empty(4, np.float16)
    program.run((), [np.arange(4, dtype=np.float32)], [out])
    np.testing.assert_array_equal(out, np.array([0, 2, 4, 6], np.float16))


def test_buffers_return_when_the_last_view_is_gone() -> None:
    pool = BufferPool()
    array = pool.empty((300, 300), np.float32)
    address, view = array.ctypes.data, array[10:, ::2].T
    del array
    other = pool.empty((300, 300), np.float32)
    assert other.ctypes.data != address
    del view
    assert pool.empty((299, 301), np.float32).ctypes.data == address


def test_small_arrays_are_plain() -> None:
    array = BufferPool().empty((4,), np.float64)
    assert array.nbytes < LEAST_BYTES
    assert array.base is None


def test_scratch_is_reused_and_grows() -> None:
    release_scratch()
    first = scratch("test", (10,))
    assert scratch("test", (10,)) is first
    grown = scratch("test", (100,))
    grown[...] = 1
    assert scratch("test", (10,)).ctypes.data == grown.ctypes.data
    assert scratch("other", (10,)).ctypes.data != grown.ctypes.data
    release_scratch()


@pytest.mark.parametrize("shape", [(7, 33), (2, 3, 5), (4, 1)])
def test_row_functions(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(shape) * 5).astype(np.float32)
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    soft = powers / powers.sum(-1, keepdims=True)
    centred = wide - wide.mean(-1, keepdims=True)
    cases = [
        (softmax_rows, soft),
        (log_softmax_rows, np.log(soft)),
        (
            lambda x, out: normalise_rows(x, 1e-5, out),
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5),
        ),
        (
            lambda x, out: normalise_rows_by_mean_square(x, 1e-5, out),
            wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5),
        ),
    ]
    for function, expected in cases:
        out = np.empty_like(x)
        function(x, out)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=2e-6)
        same = x.copy()
        function(same, same)
        np.testing.assert_array_equal(same, out)


def unaligned(array: Array) -> Array:
    """A copy that begins at an odd address."""
    room = np.empty(array.nbytes + 1, np.uint8)
    room[1:] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return room[1:].view(array.dtype).reshape(array.shape)


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("part", [slice(None), slice(3, 9)])
def test_products_with_unaligned_matrices(rows: int, transposed: bool, part: slice) -> None:
    rng = np.random.default_rng(rows)
    a = rng.standard_normal((rows, 13), dtype=np.float32)
    b = unaligned(rng.standard_normal((11, 13) if transposed else (13, 11), dtype=np.float32))
    matrix = (b.T if transposed else b)[:, part]
    assert not matrix.flags.aligned
    whole = np.full((rows, 11), np.nan, np.float32)
    product(a, matrix, whole[:, part])
    expected = a.astype(np.float64) @ matrix.astype(np.float64)
    np.testing.assert_allclose(whole[:, part], expected, rtol=1e-5, atol=1e-6)
    if part.stop:
        assert np.isnan(whole[:, 9:]).all() and np.isnan(whole[:, :3]).all()


@pytest.mark.skipif(not can_multiply_unaligned(), reason="NumPy's BLAS is not OpenBLAS on x86-64")
def test_multiply_agrees_with_numpy() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((5, 7), dtype=np.float32), rng.standard_normal((7, 3), dtype=np.float32)
    out = np.empty((5, 3), np.float32)
    with borrowed_threads():
        multiply(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-6, atol=1e-6)


def test_matrices_that_blas_refuses_are_copied() -> None:
    base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    assert blas_ready(base) is base
    assert np.shares_memory(blas_ready(base.transpose(0, 2, 1)), base)
    strided = base[:, :, ::2]
    assert blas_ready(strided).flags.c_contiguous
    overlapping = np.lib.stride_tricks.as_strided(base, (4, 5), (4, 4))
    np.testing.assert_array_equal(blas_ready(overlapping), overlapping)
