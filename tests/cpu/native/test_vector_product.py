"""Products of a few rows against NumPy: orders of the matrix, any address, epilogues, guarded memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cpu.native.epilogues import KINDS, make_ending, rounding_of_sums, strides_of
from tests.cpu.native.harness import Guarded, forms, guarded, instruction_sets, require, run
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.open_launch import OpenLaunch
from vkml.cpu.native.open_vector_product import open_vector_product
from vkml.cpu.native.partial_sums import sum_of_parts
from vkml.cpu.native.vector_product import MOST_ROWS, fits, partial_products, pieces_of_inner, vector_product

Array = np.ndarray[Any, Any]
ODD = ("1 byte off", "2 bytes off", "3 bytes off", "columns 3 bytes off")
ORDERS = ("rows", "columns", "padded rows", "padded columns", *ODD)


def right_side(random: np.random.Generator, inner: int, columns: int, order: str) -> tuple[Guarded, Array]:
    """A matrix [inner, columns] in guarded memory."""
    shape = (columns, inner) if "columns" in order else (inner, columns)
    if order in ODD:
        # Weights are read where a file has them. The guard begins right behind, at no multiple of four.
        off = int(order.split()[-3])
        memory = Guarded(4 * inner * columns + off, np.uint8, at_start=bool(random.integers(2)))
        values: Array = np.ndarray(shape, np.float32, memory.array, offset=off)
        values[...] = random.standard_normal(shape)
        return memory, values.T if "columns" in order else values
    room = 5 if order.startswith("padded") else 0
    memory, whole = guarded(random.standard_normal((shape[0], shape[1] + room)).astype(np.float32))
    view = whole[:, room:]
    return memory, view.T if order.endswith("columns") else view


def one_of_a_batch(threads: int, a: Any, b: Any, epilogue: Any, **arguments: Any) -> OpenLaunch | None:
    """The open form of `vector_product`."""
    return open_vector_product(batch=1, a=(0, *a), b=(0, *b), epilogue=with_batch(epilogue), **arguments)


def with_batch(epilogue: Epilogue) -> Epilogue:
    leaves, results = (
        tuple(replace(access, strides=(0, *access.strides)) for access in each)
        for each in (epilogue.leaves, epilogue.results)
    )
    return replace(epilogue, leaves=leaves, results=results)


def check(
    instructions: InstructionSet,
    random: np.random.Generator,
    *,
    rows: int,
    inner: int,
    columns: int,
    order: str = "rows",
    spread: int = 1,
    kind: str = "identity",
    threads: int = 2,
) -> None:
    memory, whole = guarded(random.standard_normal((rows, inner * spread)).astype(np.float32))
    a = whole[:, spread - 1 :: spread]
    a[...] /= np.float32(inner**0.5)
    b_memory, b = right_side(random, inner, columns, order)
    ending = make_ending(kind, (rows, columns), random)
    step_m, step_k = strides_of(a)
    step_b, step_n = strides_of(b)
    launches = forms(
        vector_product,
        one_of_a_batch,
        instructions,
        rows=rows,
        inner=inner,
        columns=columns,
        a=(step_m, step_k),
        b=(step_b, step_n),
        epilogue=ending.epilogue,
        threads=threads,
    )
    sums = a.astype(np.float64) @ b.astype(np.float64)
    for launch in launches:
        ending.check_within(launch, [a, b], sums, rounding_of_sums(a, b))
    memory.check()
    b_memory.check()


@instruction_sets
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(16))
def test_random_products(instructions: InstructionSet, order: str, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)
    sizes = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1000]
    check(
        instructions,
        random,
        rows=1 + seed % MOST_ROWS,
        inner=int(random.choice(sizes)),
        columns=int(random.choice(sizes)),
        order=order,
        spread=int(random.integers(1, 3)),
        kind=KINDS[seed % len(KINDS)],
        threads=int(random.integers(1, 17)),
    )


@instruction_sets
@pytest.mark.parametrize("order", ORDERS[:5])
@pytest.mark.parametrize(
    ("inner", "columns"), [(2048, 1000), (1280, 1000), (4096, 300), (50, 5000), (5000, 3)]
)
def test_large_matrices(instructions: InstructionSet, order: str, inner: int, columns: int) -> None:
    require(instructions)
    random = np.random.default_rng(inner)
    check(instructions, random, rows=1, inner=inner, columns=columns, order=order, kind="bias_relu")


@instruction_sets
@pytest.mark.parametrize("steps", [(3, 1), (3, 3), (3, 0), (1, 7)])
def test_one_column_of_any_strides(instructions: InstructionSet, steps: tuple[int, int]) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    inner = 29
    memory, whole = guarded(random.standard_normal(inner * steps[0] - steps[0] + 1).astype(np.float32))
    b = whole[:: steps[0]]
    a = random.standard_normal((2, inner)).astype(np.float32)
    ending = make_ending("bias_relu", (2, 1), random)
    launch = vector_product(
        instructions,
        rows=2,
        inner=inner,
        columns=1,
        a=(inner, 1),
        b=steps,
        epilogue=ending.epilogue,
        threads=2,
    )
    assert fits(m=2, k=2000, n=1, b_strides=steps, is_constant=False)
    ending.check(launch, [a, b], (a.astype(np.float64) @ b.astype(np.float64))[:, None], rtol=1e-4, atol=1e-5)
    memory.check()


@instruction_sets
@pytest.mark.parametrize("order", ORDERS)
def test_nan_and_infinity_stay_in_their_columns(instructions: InstructionSet, order: str) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    a = random.standard_normal((3, 21)).astype(np.float32)
    memory, b = right_side(random, 21, 37, order)
    a[2, 20], b[4, 36], b[0, 0] = np.nan, -np.inf, np.nan
    ending = make_ending("identity", (3, 37), random)
    step_k, step_n = strides_of(b)
    launch = vector_product(
        instructions,
        rows=3,
        inner=21,
        columns=37,
        a=(21, 1),
        b=(step_k, step_n),
        epilogue=ending.epilogue,
        threads=2,
    )
    with np.errstate(invalid="ignore"):
        sums = a.astype(np.float64) @ b.astype(np.float64)
    ending.check(launch, [a, b], sums, rtol=1e-4, atol=1e-5)
    memory.check()


@instruction_sets
@pytest.mark.parametrize("order", ORDERS[:5])
@pytest.mark.parametrize("seed", range(24))
def test_parts_of_k(instructions: InstructionSet, order: str, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)
    rows, pieces = 1 + seed % MOST_ROWS, int(random.integers(2, 9))
    inner, columns = int(random.integers(1, 400)), int(random.choice([1, 3, 16, 40, 64, 333, 3000]))
    memory, a = guarded(random.standard_normal((rows, inner)).astype(np.float32) / np.float32(inner**0.5))
    b_memory, b = right_side(random, inner, columns, order)
    parts_memory, parts = guarded(np.full((pieces, rows, columns), np.nan, np.float32))
    launch = partial_products(
        instructions,
        rows=rows,
        inner=inner,
        columns=columns,
        a=(inner, 1),
        b=strides_of(b)[:2],  # type: ignore[arg-type]
        pieces=pieces,
    )
    run(launch, [a, b, parts])
    sums = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(parts.sum(0), sums, rtol=1e-4, atol=2e-5)
    kind = KINDS[seed % len(KINDS)]
    ending = make_ending(kind, (rows, columns), random)
    launch = sum_of_parts(
        instructions,
        pieces=pieces,
        rows=rows,
        columns=columns,
        epilogue=ending.epilogue,
        threads=int(random.integers(1, 17)),
    )
    ending.check(launch, [parts], sums, rtol=1e-4, atol=0.1 if kind == "long" else 2e-5)
    for entry in (memory, b_memory, parts_memory):
        entry.check()


def test_k_is_split_where_columns_are_few_for_the_threads() -> None:
    def split(inner: int, columns: int, b: tuple[int, int], threads: int) -> int:
        return pieces_of_inner(rows=1, inner=inner, columns=columns, b=b, threads=threads)

    assert split(4096, 4096, (4096, 1), 2) > 1
    assert split(4096, 4096, (4096, 1), 1) == 1
    assert split(4096, 1 << 16, (1 << 16, 1), 2) == 1
    assert split(4096, 4096, (1, 4096), 2) == 1
    assert split(100, 100, (100, 1), 2) == 1
