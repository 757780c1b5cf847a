"""Folds over windows against NumPy: geometries, batches, NaN, both instruction sets, guarded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cpu.native.epilogues import KINDS, make_ending, strides_of
from tests.cpu.native.harness import guarded, instruction_sets, require
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.windows import MOST_WRITTEN_OUT, windows

Array = np.ndarray[Any, Any]
FOLDS = {"max": np.max, "min": np.min, "sum": np.sum}


def seen_windows(x: Array, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]) -> Array:
    """[images, y, x, channels, places] of a channels-last image."""
    parts = [
        x[
            :,
            y : y + (size[0] - 1) * stride[0] + 1 : stride[0],
            z : z + (size[1] - 1) * stride[1] + 1 : stride[1],
        ]
        for y in range(kernel[0])
        for z in range(kernel[1])
    ]
    return np.stack(parts, -1)


def check(
    instructions: InstructionSet,
    random: np.random.Generator,
    *,
    fold: str,
    images: int,
    size: tuple[int, int],
    channels: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    kind: str = "identity",
    has_nan: bool = False,
    threads: int = 2,
) -> None:
    padded = [(size[i] - 1) * stride[i] + kernel[i] for i in range(2)]
    extra = int(random.integers(2)) * 3
    values = random.standard_normal((images, *padded, channels + extra)).astype(np.float32)
    if has_nan:
        values[random.random(values.shape) < 0.02] = np.nan
        values[random.random(values.shape) < 0.02] = -np.inf
    memory, whole = guarded(values)
    x = whole[..., :channels] if random.integers(2) else whole[..., extra:]
    ending = make_ending(kind, (images, *size, channels), random)
    step_n, step_y, step_x, _ = strides_of(x)
    launch = windows(
        instructions,
        kind=fold,
        batch=(images,),
        height=size[0],
        width=size[1],
        columns=channels,
        taps=tuple(y * step_y + z * step_x for y in range(kernel[0]) for z in range(kernel[1])),
        a=(step_n, stride[0] * step_y, stride[1] * step_x),
        epilogue=ending.epilogue,
        threads=threads,
    )
    with np.errstate(invalid="ignore"):
        expected = FOLDS[fold](seen_windows(x, size, kernel, stride).astype(np.float64), axis=-1)
    if fold != "sum" and kind == "identity":
        ending.check(launch, [x, x], expected, rtol=0)
    else:
        # As `rounding_of_sums`; extremes are exact.
        squares = np.square(seen_windows(x, size, kernel, stride).astype(np.float64)).sum(-1)
        error = 6 * 2.0**-24 * ((kernel[0] * kernel[1]) ** 0.5 + 2) * np.sqrt(squares)
        ending.check_within(launch, [x, x], expected, error if fold == "sum" else np.zeros_like(error))
    memory.check()


@instruction_sets
@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("seed", range(24))
def test_random_geometries(instructions: InstructionSet, fold: str, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(random.integers(low, high))

    check(
        instructions,
        random,
        fold=fold,
        images=draw(1, 4),
        size=(draw(1, 15), draw(1, 20)),
        channels=draw(1, 70),
        kernel=(draw(1, 5), draw(1, 5)),
        stride=(draw(1, 4), draw(1, 4)),
        kind=KINDS[seed % len(KINDS)],
        has_nan=seed % 3 == 0 and KINDS[seed % len(KINDS)] != "bias_relu",
        threads=draw(1, 17),
    )


@instruction_sets
@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("channels", [1, 15, 64, 200, 1000])
@pytest.mark.parametrize("kernel", [(7, 7), (MOST_WRITTEN_OUT, 1), (9, 11), (1, 400)], ids=str)
def test_one_window_of_an_image(
    instructions: InstructionSet, fold: str, channels: int, kernel: tuple[int, int]
) -> None:
    require(instructions)
    random = np.random.default_rng(channels)
    check(
        instructions,
        random,
        fold=fold,
        images=2,
        size=(1, 1),
        channels=channels,
        kernel=kernel,
        stride=(1, 1),
        kind="scalar",
        has_nan=True,
    )


@instruction_sets
@pytest.mark.parametrize("fold", ["max", "min"])
def test_every_place_passes_nan_on(instructions: InstructionSet, fold: str) -> None:
    require(instructions)
    # One NaN in each of nine channels' windows, at each of the nine places.
    x = np.ones((1, 3, 3, 9), np.float32)
    x.reshape(9, 9)[np.arange(9), np.arange(9)] = np.nan
    random = np.random.default_rng(0)
    ending = make_ending("identity", (1, 1, 1, 9), random)
    launch = windows(
        instructions,
        kind=fold,
        batch=(1,),
        height=1,
        width=1,
        columns=9,
        taps=tuple(range(0, 81, 9)),
        a=(81, 27, 9),
        epilogue=ending.epilogue,
        threads=2,
    )
    ending.check(launch, [x, x], np.full((1, 1, 1, 9), np.nan), rtol=0)


@instruction_sets
def test_batches_of_several_axes(instructions: InstructionSet) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    memory, x = guarded(random.standard_normal((3, 2, 5, 4, 6, 21)).astype(np.float32))
    # Kept: axes 1, 0, 4, 2 and, along lanes, 5; folded: 3.
    view = x.transpose(1, 0, 4, 2, 5, 3)
    steps = strides_of(view)
    ending = make_ending("bias_relu", view.shape[:-1], random)
    launch = windows(
        instructions,
        kind="sum",
        batch=view.shape[:2],
        height=view.shape[2],
        width=view.shape[3],
        columns=21,
        taps=tuple(range(0, 4 * steps[-1], steps[-1])),
        a=steps[:4],
        epilogue=ending.epilogue,
        threads=2,
    )
    ending.check(launch, [x, x], view.astype(np.float64).sum(-1), rtol=1e-5, atol=1e-5)
    memory.check()


@instruction_sets
@pytest.mark.parametrize("columns", range(1, 101))
def test_every_number_of_channels(instructions: InstructionSet, columns: int) -> None:
    require(instructions)
    random = np.random.default_rng(columns)
    fold = list(FOLDS)[columns % 3]
    size = (1, 1) if columns % 2 else (2, 1 + columns % 19)
    check(
        instructions,
        random,
        fold=fold,
        images=1,
        size=size,
        channels=columns,
        kernel=(2, 2),
        stride=(1, 2),
        kind=KINDS[columns % len(KINDS)],
    )


@instruction_sets
@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("count", [9, 1024])
@pytest.mark.parametrize("width", [1, 11])
def test_infinities(instructions: InstructionSet, fold: str, count: int, width: int) -> None:
    """Windows of one infinity, of nothing else, of both signs, with NaN; written out and in a loop."""
    require(instructions)
    x = np.ones((count, width, 70), np.float32)
    x[-1, :, 0], x[0, :, 1], x[:, :, 2], x[:, :, 3] = np.inf, -np.inf, np.inf, -np.inf
    x[0, :, 4], x[-1, :, 4], x[0, :, 5], x[1, :, 5] = np.inf, -np.inf, np.nan, np.inf
    x[0, :, 6], x[1, :, 6], x[:, :, 69] = np.inf, np.nan, np.nan
    memory, held = guarded(x)
    ending = make_ending("identity", (1, 1, width, 70), np.random.default_rng(0))
    launch = windows(
        instructions,
        kind=fold,
        batch=(1,),
        height=1,
        width=width,
        columns=70,
        taps=tuple(range(0, count * width * 70, width * 70)),
        a=(0, 0, 70),
        epilogue=ending.epilogue,
        threads=2,
    )
    with np.errstate(invalid="ignore"):
        expected = FOLDS[fold](x.astype(np.float64), axis=0)
    ending.check(launch, [held, held], expected[None, None], rtol=0)
    memory.check()


@instruction_sets
@pytest.mark.parametrize("value", [0.1, 1000.1])
def test_sum_of_many_places(instructions: InstructionSet, value: float) -> None:
    """One running sum of 1024 equal numbers, the worst there are: 1024 halves of a unit at most."""
    require(instructions)
    memory, x = guarded(np.full((1024, 20), value, np.float32))
    ending = make_ending("identity", (1, 1, 1, 20), np.random.default_rng(0))
    launch = windows(
        instructions,
        kind="sum",
        batch=(1,),
        height=1,
        width=1,
        columns=20,
        taps=tuple(range(0, 1024 * 20, 20)),
        a=(0, 0, 0),
        epilogue=ending.epilogue,
        threads=2,
    )
    expected = x.astype(np.float64).sum(0)[None, None, None]
    ending.check(launch, [x, x], expected, rtol=1024 * 2.0**-24)
    memory.check()
