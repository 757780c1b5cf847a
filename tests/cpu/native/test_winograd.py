"""Winograd's convolution against NumPy: geometries, epilogues, both instruction sets, guarded memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cpu.native.epilogues import KINDS, make_ending, strides_of
from tests.cpu.native.harness import guarded, instruction_sets, require
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.winograd import Plan, pack, plan, winograd

Array = np.ndarray[Any, Any]


def reference(x: Array, weight: Array, height: int, width: int, dilations: tuple[int, int] = (1, 1)) -> Array:
    total = np.zeros((x.shape[0], height, width, weight.shape[0]))
    for y in range(3):
        for x_ in range(3):
            top, left = y * dilations[0], x_ * dilations[1]
            part = x[:, top : top + height, left : left + width].astype(np.float64)
            total += part @ weight[:, :, y, x_].T.astype(np.float64)
    return total


def check(
    instructions: InstructionSet,
    random: np.random.Generator,
    arrangement: Plan,
    *,
    images: int,
    height: int,
    width: int,
    channels: int,
    filters: int,
    kind: str = "identity",
    dilations: tuple[int, int] = (1, 1),
) -> None:
    extra = int(random.integers(2)) * 3
    memory, whole = guarded(
        random.standard_normal(
            (images, height + 2 * dilations[0], width + 2 * dilations[1], channels + extra)
        ).astype(np.float32),
        at_start=bool(random.integers(2)),
    )
    x = whole[..., extra:]
    weight = random.standard_normal((filters, channels, 3, 3)).astype(np.float32)
    weight /= np.float32(3 * channels**0.5)
    packed_memory, packed = guarded(pack(instructions, weight, arrangement))
    ending = make_ending(kind, (images, height, width, filters), random)
    launch = winograd(
        instructions,
        batch=(images,),
        height=height,
        width=width,
        channels=channels,
        filters=filters,
        a=strides_of(x)[:3],  # type: ignore[arg-type]
        arrangement=arrangement,
        epilogue=ending.epilogue,
        dilations=dilations,
    )
    # Results are of the order of one, errors of 2e-6 of the largest; "long" makes (45 x)² of them.
    atol = 0.3 if kind == "long" else 4e-5
    wanted = reference(x, weight, height, width, dilations)
    ending.check(launch, [x, packed], wanted, rtol=1e-4, atol=atol)
    memory.check()
    packed_memory.check()


@instruction_sets
@pytest.mark.parametrize("seed", range(60))
def test_random_geometries(instructions: InstructionSet, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(random.integers(low, high))

    is_wide = instructions is InstructionSet.AVX512
    vectors = draw(1, 4)
    most = (31 - vectors) // vectors if is_wide else (15 - vectors) // vectors
    tiles = draw(1, 20)
    arrangement = Plan(tiles, draw(1, min(most, tiles) + 1), vectors, draw(1, 4), 0.0)
    check(
        instructions,
        random,
        arrangement,
        images=draw(1, 3),
        height=draw(4, 20),
        width=draw(4, 20),
        channels=draw(1, 70),
        filters=draw(1, 100),
        kind=KINDS[seed % len(KINDS)],
    )


@instruction_sets
@pytest.mark.parametrize("seed", range(30))
def test_planes(instructions: InstructionSet, seed: int) -> None:
    """Windows over several planes of an image, with some of the planes that there are weights of."""
    require(instructions)
    random = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(random.integers(low, high))

    images, depth, height, width = draw(1, 3), draw(1, 4), draw(4, 12), draw(4, 12)
    channels, filters, planes, stride, dilation = draw(1, 40), draw(1, 40), draw(1, 4), draw(1, 3), draw(1, 3)
    before, behind = draw(0, 2), draw(0, 2)
    whole = (depth - 1) * stride + (planes - 1) * dilation + 1
    memory, x = guarded(
        random.standard_normal((images, whole, height + 2, width + 2, channels)).astype(np.float32),
        at_start=bool(seed % 2),
    )
    every = random.standard_normal((before + planes + behind, filters, channels, 3, 3)).astype(np.float32)
    every /= np.float32(3 * (planes * channels) ** 0.5)
    arrangement = Plan(draw(1, 9), 1, draw(1, 3), draw(1, 3), 0.0)
    packed = pack(instructions, every.swapaxes(0, 1).reshape(filters, -1, 3, 3), arrangement)
    lanes = 16 if instructions is InstructionSet.AVX512 else 8
    # Up to the last element that is read; what is packed behind it is beyond the guard.
    first, unread = (count * channels * arrangement.vectors * lanes for count in (before, behind))
    packed_memory, read = guarded(packed[first : len(packed) - unread])
    ending = make_ending(KINDS[seed % len(KINDS)], (images, depth, height, width, filters), random)
    step_n, step_z, step_y, step_x, _ = strides_of(x)
    launch = winograd(
        instructions,
        batch=(images, depth),
        height=height,
        width=width,
        channels=channels,
        filters=filters,
        a=(step_n, stride * step_z, step_y, step_x),
        arrangement=arrangement,
        epilogue=ending.epilogue,
        planes=planes,
        plane_step=dilation * step_z,
        packed_planes=len(every),
    )
    wanted = sum(
        np.stack(
            [
                reference(x[:, z * stride + at * dilation], every[before + at], height, width)
                for z in range(depth)
            ],
            1,
        )
        for at in range(planes)
    )
    ending.check(
        launch, [x, read], wanted, rtol=1e-4, atol=0.3 if KINDS[seed % len(KINDS)] == "long" else 4e-5
    )
    memory.check()
    packed_memory.check()


@instruction_sets
@pytest.mark.parametrize("dilations", [(2, 2), (4, 4), (1, 3), (5, 1), (3, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_dilations(instructions: InstructionSet, dilations: tuple[int, int], kind: str) -> None:
    """Results of each rest are tiles of their own; sizes that dilations divide, and others."""
    require(instructions)
    random = np.random.default_rng(sum(dilations))
    for more in (0, 1, 7):
        check(
            instructions,
            random,
            Plan(5, 3, 2, 1, 0.0),
            images=2,
            height=4 * dilations[0] + more,
            width=4 * dilations[1] + more % 3,
            channels=20,
            filters=37,
            kind=kind,
            dilations=dilations,
        )


@instruction_sets
@pytest.mark.parametrize(
    ("size", "channels", "filters"),
    [(56, 64, 64), (28, 128, 128), (14, 256, 256), (30, 24, 40), (64, 32, 100)],
)
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_plans(instructions: InstructionSet, size: int, channels: int, filters: int, threads: int) -> None:
    require(instructions)
    arrangement = plan(
        instructions, images=1, height=size, width=size, channels=channels, filters=filters, threads=threads
    )
    if arrangement is None:  # few tiles for many threads: adding up directly is faster
        assert threads == 16
        return
    check(
        instructions,
        np.random.default_rng(size),
        arrangement,
        images=1,
        height=size,
        width=size,
        channels=channels,
        filters=filters,
        kind="bias_relu",
    )


@instruction_sets
def test_errors_are_a_few_units_of_the_largest_result(instructions: InstructionSet) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 18, 18, 256)).astype(np.float32)
    weight = random.standard_normal((64, 256, 3, 3)).astype(np.float32)
    arrangement = Plan(16, 4, 2, 2, 0.0)
    ending = make_ending("identity", (1, 16, 16, 64), random)
    launch = winograd(
        instructions,
        batch=(1,),
        height=16,
        width=16,
        channels=256,
        filters=64,
        a=strides_of(x)[:3],  # type: ignore[arg-type]
        arrangement=arrangement,
        epilogue=ending.epilogue,
    )
    wanted = reference(x, weight, 16, 16)
    atol = 4e-6 * float(np.abs(wanted).max())
    ending.check(launch, [x, pack(instructions, weight, arrangement)], wanted, rtol=0, atol=atol)


@instruction_sets
def test_nan_stays_in_its_tiles(instructions: InstructionSet) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 14, 14, 20)).astype(np.float32)
    x[0, 10, 10, 7] = np.nan
    weight = random.standard_normal((20, 20, 3, 3)).astype(np.float32)
    arrangement = Plan(3, 3, 1, 1, 0.0)
    ending = make_ending("identity", (1, 12, 12, 20), random)
    launch = winograd(
        instructions,
        batch=(1,),
        height=12,
        width=12,
        channels=20,
        filters=20,
        a=strides_of(x)[:3],  # type: ignore[arg-type]
        arrangement=arrangement,
        epilogue=ending.epilogue,
    )
    wanted = reference(x, weight, 12, 12)
    # The tile's third input along each axis reaches all its results.
    wanted[0, 8:, 8:] = np.nan
    ending.check(launch, [x, pack(instructions, weight, replace(arrangement, seconds=1.0))], wanted,
                 rtol=1e-4, atol=1e-3)  # fmt: skip


def test_few_tiles_or_channels_have_no_plan() -> None:
    def find(size: int, channels: int, dilation: int = 1, share: float = 1.0) -> Plan | None:
        return plan(
            InstructionSet.AVX2,
            images=1,
            height=size,
            width=size,
            channels=channels,
            filters=64,
            threads=2,
            dilations=(dilation, dilation),
            share=share,
        )

    assert find(7, 512) is None
    assert find(3, 64) is None
    assert find(56, 3) is None
    assert find(56, 64) is not None
    # Of each rest there are as many results as a tile has, or none is.
    assert find(56, 64, 14) is not None
    assert find(55, 64, 14) is None
    # Where adding up directly leaves out what lies in the padding it is faster.
    assert find(56, 64, 14, 0.1) is None
