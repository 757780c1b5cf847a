"""Gathered blocks against NumPy: sizes, types of indices, bad indices, guarded memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.cpu.native.harness import forms, guarded, instruction_sets, require, run
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.gather import gather, open_gather

Array = np.ndarray[Any, Any]
ERROR = 77


def check(instructions: InstructionSet, data: Array, indices: Array, *, threads: int = 2) -> None:
    """data [outer, size, …], indices of one axis or [outer, count]; bad ones leave their block as it is."""
    outer, size = data.shape[:2]
    is_aligned, count = indices.ndim == 2, indices.shape[-1]
    room = np.zeros((outer, count, *data.shape[2:]), data.dtype)
    memories = [guarded(array) for array in (data, indices, room, np.zeros(1, np.uint32))]
    launches = forms(
        gather,
        open_gather,
        instructions,
        outer=outer,
        size=size,
        count=count,
        block_bytes=data.itemsize * int(np.prod(data.shape[2:])),
        is_wide=indices.dtype == np.int64,
        is_aligned=is_aligned,
        error_code=ERROR,
        threads=threads,
    )
    is_good = (indices >= -size) & (indices < size)
    result, status = memories[2][1], memories[3][1]
    untouched = np.frombuffer(b"\x5a" * result.nbytes, result.dtype).reshape(result.shape)
    expected = untouched.copy()
    if is_aligned:
        places = np.arange(outer)[:, None].repeat(count, 1)
        expected[is_good] = data[places[is_good], indices[is_good]]
    else:
        expected[:, is_good] = data[:, indices[is_good]]
    for launch, serial in itertools.product(launches, (True, False)):
        result[...] = untouched
        status[...] = 0
        run(launch, [array for _, array in memories], serial=serial, parallel=not serial)
        np.testing.assert_array_equal(result.view(np.uint8), expected.view(np.uint8))
        assert status[0] == (0 if is_good.all() else ERROR)
        for memory, _ in memories:
            memory.check()


@instruction_sets
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seed", range(30))
def test_random_blocks(instructions: InstructionSet, dtype: Any, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)
    block = int(random.choice([1, 2, 3, 4, 7, 8, 15, 16, 17, 33, 64, 100, 127, 128, 129, 144, 145, 300, 768]))
    outer, size, count = (int(number) for number in random.integers(1, 20, 3))
    data = random.standard_normal((outer, size, block)).astype(np.float32)
    indices = random.integers(-size, size, count).astype(dtype)
    check(instructions, data, indices, threads=int(random.integers(1, 9)))


@instruction_sets
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seed", range(20))
def test_indices_of_their_own_for_each_place(instructions: InstructionSet, dtype: Any, seed: int) -> None:
    """Many leading places, or many indices, so that chunks end within both; bad ones among them."""
    require(instructions)
    random = np.random.default_rng(seed)
    block = int(random.choice([1, 2, 3, 16, 33]))
    outer, size, count = (int(number) for number in random.integers(1, 20, 3))
    if seed % 3 == 0:
        outer, count = (3, 20_000) if seed % 2 else (20_000, 1)
    data = random.standard_normal((outer, size, block)).astype(np.float32)
    indices = random.integers(-size, size + (seed % 2), (outer, count)).astype(dtype)
    check(instructions, data, indices, threads=int(random.integers(1, 9)))


@instruction_sets
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_bad_indices_are_reported(instructions: InstructionSet, dtype: Any) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    data = random.standard_normal((3, 10, 5)).astype(np.float32)
    limits = np.iinfo(dtype)
    for bad in (10, -11, 11, 1 << 20, limits.max, limits.min, limits.min + 10, limits.max - 10):
        check(instructions, data, np.array([1, bad, -10, 9], dtype))
    if dtype == np.int64:
        # Their low halves are good indices.
        for bad in (1 << 32, (1 << 32) + 3, -(1 << 32), 1 << 40, -(1 << 40), (1 << 63) - 8):
            check(instructions, data, np.array([bad, 2], dtype))


@instruction_sets
@pytest.mark.parametrize("block", [*range(1, 70), 127, 129, 255, 513, 600, 1025])
def test_blocks_of_any_bytes(instructions: InstructionSet, block: int) -> None:
    require(instructions)
    random = np.random.default_rng(block)
    data = random.integers(0, 256, (2, 9, block)).astype(np.uint8)
    check(instructions, data, random.integers(-9, 9, 7))


@instruction_sets
def test_many_indices_share_threads(instructions: InstructionSet) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    for block in (1, 96, 768):
        data = random.standard_normal((1, 1000, block)).astype(np.float32)
        check(instructions, data, random.integers(-1000, 1000, 5000), threads=4)


@instruction_sets
@pytest.mark.parametrize("first", range(1, 251, 25))
def test_every_block_of_up_to_a_thousand_bytes(instructions: InstructionSet, first: int) -> None:
    require(instructions)
    random = np.random.default_rng(first)
    for block in range(first, first + 25):
        data = random.integers(0, 1 << 32, (2, 3, block), np.uint32)
        check(instructions, data, np.array([2, -3, 1, 0, -1], [np.int32, np.int64][block % 2]))


@instruction_sets
def test_blocks_are_bytes(instructions: InstructionSet) -> None:
    """Patterns of NaN stay as they are; elements may have any size."""
    require(instructions)
    random = np.random.default_rng(0)
    indices = np.array([1, 0, -1, 4])
    for dtype in (np.uint8, np.float16, np.int64):
        data = random.integers(0, 256, (2, 5, 40), np.uint8).view(dtype)
        check(instructions, data, indices)
    check(instructions, np.full((1, 5, 40), 0x7F800001, np.uint32).view(np.float32), indices)
