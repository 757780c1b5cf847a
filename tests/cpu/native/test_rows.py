"""Softmax, normalisation and reduction of rows against NumPy: lengths, layouts, extremes, guarded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.cpu.native.epilogues import KINDS, make_ending, strides_of
from tests.cpu.native.harness import Guarded, forms, guarded, instruction_sets, require, run
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue
from vkml.cpu.native.rows import (
    normalise,
    open_normalise,
    open_reduce_rows,
    open_softmax,
    reduce_rows,
    softmax,
)

Array = np.ndarray[Any, Any]
LENGTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 197, 768, 1000, 4097]


def soft(x: Array, is_logarithm: bool) -> Array:
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        raised = np.exp(x - x.max(-1, keepdims=True))
        if is_logarithm:
            return x - x.max(-1, keepdims=True) - np.log(raised.sum(-1, keepdims=True))
        return raised / raised.sum(-1, keepdims=True)


def normal(x: Array, epsilon: float, is_centred: bool, scale: Array | None, bias: Array | None) -> Array:
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        if is_centred:
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return x * (1 if scale is None else scale) + (0 if bias is None else bias)


def strided(random: np.random.Generator, shape: Sequence[int]) -> tuple[Guarded, Array]:
    """A view whose leading axes lie in any order, some rows apart."""
    lead = len(shape) - 1
    order = [*random.permutation(lead), lead]
    whole = [shape[axis] + int(random.integers(3)) * int(random.random() < 0.4) for axis in order]
    memory, array = guarded(
        random.standard_normal(whole).astype(np.float32), at_start=bool(random.integers(2))
    )
    part = array[tuple(slice(extent - shape[axis], None) for extent, axis in zip(whole, order, strict=True))]
    return memory, part.transpose(np.argsort(order))


def check_softmax(
    instructions: InstructionSet,
    x: Array,
    *,
    is_logarithm: bool,
    kind: str = "identity",
    threads: int = 2,
    rtol: float = 1e-6,
) -> None:
    ending = make_ending(kind, x.shape, np.random.default_rng(7))
    launches = forms(
        softmax,
        open_softmax,
        instructions,
        shape=x.shape,
        strides=strides_of(x),
        is_logarithm=is_logarithm,
        epilogue=ending.epilogue,
        threads=threads,
    )
    expected = soft(x, is_logarithm)
    # Differences from the greatest element are rounded: results below e⁻¹⁰⁴ are zero anyway.
    rtol += 104 * 2.0**-24
    atol = {True: 1e-5, False: 1e-38 if kind == "identity" else 1e-6}[is_logarithm]
    for launch in launches:
        ending.check(launch, [x], expected, rtol=rtol, atol=atol)


@instruction_sets
@pytest.mark.parametrize("is_logarithm", [False, True])
@pytest.mark.parametrize("columns", [*LENGTHS, 50257])
def test_softmax_of_every_length(instructions: InstructionSet, is_logarithm: bool, columns: int) -> None:
    require(instructions)
    random = np.random.default_rng(columns)
    memory, x = strided(random, (2, 3, columns))
    x *= 5
    check_softmax(instructions, x, is_logarithm=is_logarithm)
    memory.check()


@instruction_sets
@pytest.mark.parametrize("seed", range(24))
def test_softmax_layouts_and_epilogues(instructions: InstructionSet, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)
    shape = [int(size) for size in random.integers(1, 9, int(random.integers(0, 4)))]
    memory, x = strided(random, [*shape, int(random.integers(1, 90))])
    kind = KINDS[seed % len(KINDS)]
    check_softmax(
        instructions, x, is_logarithm=kind != "long" and seed % 2 == 1, kind=kind,
        threads=int(random.integers(1, 9)), rtol=1e-5,
    )  # fmt: skip
    memory.check()


@instruction_sets
@pytest.mark.parametrize("is_logarithm", [False, True])
@pytest.mark.parametrize("columns", [1, 3, 8, 16, 19, 64, 70, 200])
def test_softmax_of_extremes(instructions: InstructionSet, is_logarithm: bool, columns: int) -> None:
    require(instructions)
    random = np.random.default_rng(columns)
    rows = [random.standard_normal(columns).astype(np.float32) for _ in range(9 + columns)]
    rows[0][:] = -np.inf
    rows[1][0] = np.inf
    rows[2][:] = 3e38
    rows[3][:] = -3e38
    rows[4][-1] = -np.inf
    rows[5][columns // 2] = 1e30
    rows[6][:] = 0
    rows[7] *= 40
    rows[8][columns // 2] = -3e38
    for place in range(columns):
        rows[9 + place][place] = np.nan
    memory, x = guarded(np.stack(rows))
    check_softmax(instructions, x, is_logarithm=is_logarithm)
    memory.check()


def check_normalise(
    instructions: InstructionSet,
    x: Array,
    *,
    is_centred: bool,
    scale: Array | None = None,
    bias: Array | None = None,
    epsilon: float = 1e-5,
    kind: str = "identity",
    threads: int = 2,
    atol: float = 3e-6,
) -> None:
    factors = [array for array in (scale, bias) if array is not None]
    held = [guarded(np.ascontiguousarray(array)) for array in factors]
    views = [np.broadcast_to(array, x.shape) for _, array in held]
    ending = make_ending(kind, x.shape, np.random.default_rng(7))
    launches = forms(
        normalise,
        open_normalise,
        instructions,
        keeps_columns=True,
        shape=x.shape,
        strides=strides_of(x),
        is_centred=is_centred,
        epsilon=epsilon,
        scale=None if scale is None else strides_of(views[0]),
        bias=None if bias is None else strides_of(views[-1]),
        epilogue=ending.epilogue,
        threads=threads,
    )
    expected = normal(x, epsilon, is_centred, scale, bias)
    for launch in launches:
        ending.check(launch, [x, *views], expected, rtol=2e-5 if kind == "identity" else 1e-4, atol=atol)
    for memory, _ in held:
        memory.check()


@instruction_sets
@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("columns", LENGTHS)
def test_normalisation_of_every_length(instructions: InstructionSet, is_centred: bool, columns: int) -> None:
    require(instructions)
    random = np.random.default_rng(columns)
    memory, x = strided(random, (3, 4, columns))
    scale, bias = random.standard_normal((2, columns)).astype(np.float32)
    check_normalise(instructions, x, is_centred=is_centred, scale=scale, bias=bias)
    memory.check()


@instruction_sets
@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_normalisation_layouts_and_epilogues(
    instructions: InstructionSet, is_centred: bool, seed: int
) -> None:
    require(instructions)
    random = np.random.default_rng(seed)
    shape = [int(size) for size in random.integers(1, 9, int(random.integers(0, 4)))]
    columns = int(random.integers(1, 90))
    memory, x = strided(random, [*shape, columns])
    extents: list[tuple[int, ...]] = [
        (1,),
        (columns,),
        (*shape[:1], *(1 for _ in shape[1:]), columns),
        x.shape,
    ]
    scale, bias = (
        random.standard_normal(extents[int(random.integers(4))]).astype(np.float32) for _ in range(2)
    )
    kind = KINDS[seed % len(KINDS)]
    check_normalise(
        instructions,
        x,
        is_centred=is_centred,
        scale=scale if seed % 4 else None,
        bias=bias if seed % 4 > 1 else None,
        epsilon=float(random.choice([1e-12, 1e-5, 0.1])) if columns > 4 else 0.1,
        kind=kind,
        threads=int(random.integers(1, 9)),
        # "long" is (45 x)²: an error of 1e-6 in an x near 3 becomes 1.2e-2.
        atol=2e-2 if kind == "long" else 1e-5,
    )
    memory.check()


@instruction_sets
@pytest.mark.parametrize("columns", [16, 19, 300, 768])
def test_normalisation_far_from_zero(instructions: InstructionSet, columns: int) -> None:
    """The variance is that of differences from the mean: sums of squares would lose all digits here."""
    require(instructions)
    random = np.random.default_rng(0)
    x = (random.standard_normal((5, columns)) + 1e4).astype(np.float32)
    # The mean itself is right to half a unit of 1e4, 5e-4.
    check_normalise(instructions, x, is_centred=True, atol=3e-3)
    check_normalise(instructions, np.full_like(x, 3.0), is_centred=True)


@instruction_sets
@pytest.mark.parametrize("is_centred", [False, True])
def test_normalisation_of_extremes(instructions: InstructionSet, is_centred: bool) -> None:
    require(instructions)
    for columns in (3, 16, 37):
        rows = np.random.default_rng(0).standard_normal((3 + columns, columns)).astype(np.float32)
        rows[0, -1], rows[1, 0], rows[2] = np.inf, -np.inf, 0
        rows[np.arange(3, 3 + columns), np.arange(columns)] = np.nan
        check_normalise(instructions, rows, is_centred=is_centred)


def test_a_bias_needs_a_scale() -> None:
    ending = make_ending("identity", (2, 3), np.random.default_rng(0))
    with pytest.raises(ValueError, match="without a scale"):
        normalise(InstructionSet.AVX2, shape=(2, 3), strides=(3, 1), is_centred=True, epsilon=0.0, scale=None,
                  bias=(0, 1), epilogue=ending.epilogue, threads=1)  # fmt: skip


FOLDS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda x: x.sum(-1, keepdims=True),
    "sum_square": lambda x: (x * x).sum(-1, keepdims=True),
    "l1": lambda x: np.abs(x).sum(-1, keepdims=True),
    "max": lambda x: x.max(-1, keepdims=True),
    "min": lambda x: x.min(-1, keepdims=True),
    "prod": lambda x: x.prod(-1, keepdims=True),
}


def check_reduction(
    instructions: InstructionSet,
    x: Array,
    fold: str,
    *,
    kind: str = "identity",
    threads: int = 2,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """Sums are right to a millionth of what the sum of absolute values is: `atol` is in these units."""
    ending = make_ending(kind, (*x.shape[:-1], 1), np.random.default_rng(7))
    launches = forms(
        reduce_rows,
        open_reduce_rows,
        instructions,
        kind=fold,
        shape=x.shape,
        strides=strides_of(x),
        epilogue=ending.epilogue,
        threads=threads,
    )
    with np.errstate(all="ignore"):
        expected = FOLDS[fold](x.astype(np.float64))
    for launch in launches:
        ending.check(launch, [x], expected, rtol=rtol, atol=atol)


@instruction_sets
@pytest.mark.parametrize("columns", LENGTHS)
def test_reductions_of_every_length(instructions: InstructionSet, columns: int) -> None:
    require(instructions)
    for fold in FOLDS:
        random = np.random.default_rng(columns)
        memory, x = strided(random, (3, 4, columns))
        if fold == "prod":
            # Factors near one, both signs: each rounding adds half a unit.
            x[...] = np.where(x < 0, -1, 1) * (1 + 0.01 * x)
        rtol = {"max": 0.0, "min": 0.0, "prod": columns * 2.0**-24}.get(fold, 1e-6)
        check_reduction(instructions, x, fold, rtol=rtol, atol=1e-6 * columns if fold == "sum" else 0.0)
        memory.check()


@instruction_sets
@pytest.mark.parametrize("columns", LENGTHS)
@pytest.mark.parametrize("fold", ["argmax", "argmin"])
def test_first_extremes(instructions: InstructionSet, columns: int, fold: str) -> None:
    """Of equal numbers the first, of any with NaN the first NaN; rows of nothing but infinities, too."""
    require(instructions)
    random = np.random.default_rng(columns)
    memory, x = strided(random, (5, 4, columns))
    x[...] = np.rint(2 * x)
    x[0] = np.inf if fold == "argmin" else -np.inf
    x[1, 0, columns // 2 :] = np.nan
    x[2, 1, -1] = np.nan
    made, numbers = guarded(np.zeros(x.shape[:-1], np.float32))
    launches = forms(
        reduce_rows,
        open_reduce_rows,
        instructions,
        kind=fold,
        shape=x.shape,
        strides=strides_of(x),
        epilogue=Epilogue(IDENTITY, (), (Access((*strides_of(numbers), 1)),)),
        threads=2,
    )
    for launch in launches:
        numbers[...] = -1
        run(launch, [x, numbers])
        np.testing.assert_array_equal(numbers, (np.argmax if fold == "argmax" else np.argmin)(x, -1))
    memory.check()
    made.check()


@instruction_sets
@pytest.mark.parametrize("seed", range(12))
def test_reductions_of_layouts_and_epilogues(instructions: InstructionSet, seed: int) -> None:
    require(instructions)
    for fold in FOLDS:
        random = np.random.default_rng(seed)
        shape = [int(size) for size in random.integers(1, 9, int(random.integers(0, 4)))]
        memory, x = strided(random, [*shape, int(random.integers(1, 90))])
        kind = KINDS[seed % len(KINDS)]
        # "long" squares 45 times the value.
        check_reduction(
            instructions,
            x,
            fold,
            kind=kind,
            threads=int(random.integers(1, 9)),
            rtol=2e-5,
            atol=0.1 if kind == "long" else 3e-5,
        )
        memory.check()


@instruction_sets
@pytest.mark.parametrize("columns", [1, 3, 8, 16, 19, 64, 70, 200, 5000])
def test_reductions_of_extremes(instructions: InstructionSet, columns: int) -> None:
    require(instructions)
    for fold in FOLDS:
        places = sorted({*range(min(columns, 70)), columns - 1, columns // 2})
        rows = np.ones((8 + len(places), columns), np.float32)
        rows[0, -1], rows[1, 0], rows[2, columns // 2] = np.inf, -np.inf, np.inf
        rows[3], rows[4], rows[5] = np.inf, -np.inf, -0.0
        rows[6, 0], rows[6, -1] = np.inf, -np.inf
        rows[7] = 0
        rows[8 + np.arange(len(places)), places] = np.nan
        memory, x = guarded(rows)
        check_reduction(instructions, x, fold)
        memory.check()


@instruction_sets
@pytest.mark.parametrize("fold", ["sum", "sum_square", "l1"])
@pytest.mark.parametrize("values", ["equal", "uniform", "normal", "far from zero"])
def test_long_sums_are_precise(instructions: InstructionSet, fold: str, values: str) -> None:
    """A million equal numbers in one running sum for each lane are wrong by 2e-4."""
    require(instructions)
    random = np.random.default_rng(0)
    for columns in (10_000, 1_000_003):
        x = {
            "equal": lambda size: np.full(size, 0.1),
            "uniform": random.random,
            "normal": random.standard_normal,
            "far from zero": lambda size: 1e4 + random.standard_normal(size),
        }[values]((1, columns)).astype(np.float32)
        scale = FOLDS["l1" if fold == "sum" else fold](x.astype(np.float64)).item()
        check_reduction(instructions, x, fold, atol=1e-6 * scale)


@instruction_sets
@pytest.mark.parametrize("is_logarithm", [False, True])
def test_long_rows_of_softmax(instructions: InstructionSet, is_logarithm: bool) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    for x in (random.random((2, 300_001)), np.zeros((1, 300_001))):
        check_softmax(instructions, x.astype(np.float32), is_logarithm=is_logarithm)


@instruction_sets
def test_long_rows_of_normalisation(instructions: InstructionSet) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    x = (random.standard_normal((2, 300_001)) + 3).astype(np.float32)
    for is_centred in (False, True):
        check_normalise(instructions, x, is_centred=is_centred)
