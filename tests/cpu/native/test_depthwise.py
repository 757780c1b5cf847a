"""Depthwise convolutions against NumPy: geometries, epilogues, both instruction sets, guarded memory."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.cpu.native.epilogues import KINDS, make_ending, strides_of
from tests.cpu.native.harness import guarded, instruction_sets, require, run
from vkml.cpu.native.depthwise import MOST_BYTE_TAPS, depthwise, pack_depthwise
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue, Expression, Step

Array = np.ndarray[Any, Any]


def reference(
    x: Array, weight: Array, size: tuple[int, int], stride: tuple[int, int], dilation: int
) -> Array:
    total = np.zeros((x.shape[0], *size, x.shape[3]))
    for y in range(weight.shape[2]):
        for x_ in range(weight.shape[3]):
            top, left = y * dilation, x_ * dilation
            part = x[
                :,
                top : top + (size[0] - 1) * stride[0] + 1 : stride[0],
                left : left + (size[1] - 1) * stride[1] + 1 : stride[1],
            ]
            total += part.astype(np.float64) * weight[:, 0, y, x_].astype(np.float64)
    return total


def check(
    instructions: InstructionSet,
    random: np.random.Generator,
    *,
    images: int,
    size: tuple[int, int],
    channels: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: int = 1,
    kind: str = "identity",
    threads: int = 2,
) -> None:
    padded = [(size[i] - 1) * stride[i] + (kernel[i] - 1) * dilation + 1 for i in range(2)]
    # Channels of A may be a part of more.
    extra = int(random.integers(2)) * 3
    memory, whole = guarded(random.standard_normal((images, *padded, channels + extra)).astype(np.float32))
    x = whole[..., extra:]
    weight = random.standard_normal((channels, 1, *kernel)).astype(np.float32)
    _, packed = guarded(pack_depthwise(instructions, weight))
    ending = make_ending(kind, (images, *size, channels), random)
    step_n, step_y, step_x, _ = strides_of(x)
    launch = depthwise(
        instructions,
        batch=(images,),
        height=size[0],
        width=size[1],
        channels=channels,
        taps=tuple(
            y * dilation * step_y + x_ * dilation * step_x
            for y in range(kernel[0])
            for x_ in range(kernel[1])
        ),
        a=(step_n, stride[0] * step_y, stride[1] * step_x),
        epilogue=ending.epilogue,
        threads=threads,
    )
    expected = reference(x, weight, size, stride, dilation)
    # As `rounding_of_sums`.
    squares = reference(np.square(x), np.square(weight), size, stride, dilation)
    error = 6 * 2.0**-24 * ((kernel[0] * kernel[1]) ** 0.5 + 2) * np.sqrt(squares)
    ending.check_within(launch, [x, packed], expected, error)
    memory.check()


@instruction_sets
@pytest.mark.parametrize("seed", range(40))
def test_random_geometries(instructions: InstructionSet, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(random.integers(low, high))

    check(
        instructions,
        random,
        images=draw(1, 4),
        size=(draw(1, 15), draw(1, 30)),
        channels=draw(1, 70),
        kernel=(draw(1, 6), draw(1, 6)),
        stride=(draw(1, 4), draw(1, 4)),
        dilation=draw(1, 3),
        kind=KINDS[seed % len(KINDS)],
        threads=draw(1, 17),
    )


@instruction_sets
@pytest.mark.parametrize(
    ("size", "channels", "stride"), [(112, 32, 1), (56, 96, 2), (28, 144, 2), (14, 576, 1), (7, 960, 1)]
)
def test_layers_of_mobilenet(instructions: InstructionSet, size: int, channels: int, stride: int) -> None:
    require(instructions)
    check(
        instructions,
        np.random.default_rng(size),
        images=1,
        size=(size, size),
        channels=channels,
        kernel=(3, 3),
        stride=(stride, stride),
        kind="bias_relu",
    )


@instruction_sets
def test_nan_and_infinity_pass(instructions: InstructionSet) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    memory, x = guarded(random.standard_normal((1, 6, 7, 19)).astype(np.float32))
    x[0, 2, 3, 18], x[0, 0, 0, 0], x[0, 5, 6, 4] = np.nan, np.inf, -np.inf
    weight = np.ones((19, 1, 3, 3), np.float32)
    ending = make_ending("identity", (1, 4, 5, 19), random)
    step_n, step_y, step_x, _ = strides_of(x)
    launch = depthwise(
        instructions,
        batch=(1,),
        height=4,
        width=5,
        channels=19,
        taps=tuple(y * step_y + x_ * step_x for y in range(3) for x_ in range(3)),
        a=(step_n, step_y, step_x),
        epilogue=ending.epilogue,
        threads=2,
    )
    ending.check(launch, [x, pack_depthwise(instructions, weight)], reference(x, weight, (4, 5), (1, 1), 1),
                 rtol=1e-4, atol=1e-5)  # fmt: skip
    memory.check()


@instruction_sets
@pytest.mark.parametrize("channels", range(1, 101))
def test_every_number_of_channels(instructions: InstructionSet, channels: int) -> None:
    require(instructions)
    check(
        instructions,
        np.random.default_rng(channels),
        images=1,
        size=(2, 1 + channels % 23),
        channels=channels,
        kernel=(2, 3),
        stride=(1, 1 + channels % 2),
        kind=KINDS[channels % len(KINDS)],
    )


@instruction_sets
@pytest.mark.parametrize("kernel", [(7, 7), (31, 1), (1, 31), (1, 1), (13, 13)], ids=str)
@pytest.mark.parametrize("channels", [5, 40])
def test_large_windows(instructions: InstructionSet, kernel: tuple[int, int], channels: int) -> None:
    require(instructions)
    for kind in ("bias_relu", "gelu"):
        check(
            instructions,
            np.random.default_rng(channels),
            images=1,
            size=(3, 15),
            channels=channels,
            kernel=kernel,
            stride=(1, 1),
            kind=kind,
        )


@instruction_sets
@pytest.mark.parametrize("width", range(1, 61))
def test_every_width(instructions: InstructionSet, width: int) -> None:
    require(instructions)
    check(
        instructions,
        np.random.default_rng(width),
        images=1,
        size=(2, width),
        channels=19,
        kernel=(3, 3),
        stride=(1, 1 + width % 2),
        kind=KINDS[width % len(KINDS)],
    )


@instruction_sets
@pytest.mark.parametrize("channels", [5, 16, 43])
def test_more_operands_than_pointers(instructions: InstructionSet, channels: int) -> None:
    require(instructions)
    random = np.random.default_rng(channels)
    shape, count = (2, 3, 17, channels), 9
    kinds = ((1, 1, 1, channels), (1, 1, 1, 1), shape)
    memories = [
        guarded(random.standard_normal(kinds[number % 3]).astype(np.float32)) for number in range(count)
    ]
    leaves = [np.broadcast_to(array, shape) for _, array in memories]
    steps = [Step("add", (0, 1))]
    for operand in range(2, count + 1):
        steps.append(Step("add", (count + len(steps), operand)))
    memory, result = guarded(np.zeros(shape, np.float32))
    x = random.standard_normal(shape).astype(np.float32)
    launch = depthwise(
        instructions,
        batch=(2,),
        height=3,
        width=17,
        channels=channels,
        taps=(0,),
        a=(51 * channels, 17 * channels, channels),
        epilogue=Epilogue(
            Expression(count + 1, tuple(steps), (count + len(steps),)),
            tuple(Access(strides_of(leaf)) for leaf in leaves),
            (Access(strides_of(result)),),
        ),
        threads=2,
    )
    packed = pack_depthwise(instructions, np.ones((channels, 1, 1, 1), np.float32))
    run(launch, [x, packed, *leaves, result])
    np.testing.assert_allclose(result, x + np.sum(leaves, axis=0), rtol=1e-5, atol=1e-5)
    for entry in (memory, *(entry for entry, _ in memories)):
        entry.check()


# what is stored, and what is added to the sums
NARROW = [
    ("int32", ""),
    ("uint8", "uint8"),
    ("int8", "float16"),
    ("float16", "int8"),
    ("bfloat16", "int16"),
    ("bool", "bool"),
]


@instruction_sets
@pytest.mark.parametrize(("stored", "added"), NARROW)
@pytest.mark.parametrize("channels", [3, 16, 21, 70])
def test_bytes(instructions: InstructionSet, stored: str, added: str, channels: int) -> None:
    """Sums are exact int32, and what comes behind them is read and written in few bytes, too."""
    require(instructions)
    random = np.random.default_rng(channels)
    size, kernel = (5, 9), (19, 27) if not added else (3, 3)
    inside = (2 * size[0] + kernel[0] - 2, size[1] + kernel[1] - 1)
    weight = random.integers(-3, 4, (channels, 1, *kernel)).astype(np.int8)
    whole = random.integers(0, 3, (2, *inside, channels)).astype(np.uint8)
    if not added:
        assert math.prod(kernel) == MOST_BYTE_TAPS - 1
        whole[0], weight[0] = 255, -128  # a sum of all bits that float32 has
        whole[:, ::2], weight[1] = 255, 127
    memory, x = guarded(whole)
    packed_memory, packed = guarded(pack_depthwise(instructions, weight))
    kinds = {name: np.dtype(getattr(ml_dtypes, name, None) or name) for name in (stored, added or "int8")}
    result_memory, result = guarded(np.zeros((2, *size, channels), kinds[stored]))
    least, most = (0, 2) if added == "bool" else (0, 9)
    leaf_memory, leaf = guarded(random.integers(least, most, result.shape).astype(kinds[added or "int8"]))
    line_memory, line = guarded(random.integers(least, most, channels).astype(kinds[added or "int8"]))
    expected = reference(x, weight, size, (2, 1), 1)
    expression, leaves, accesses = IDENTITY, list[Array](), list[Access]()
    strides = strides_of(result)
    if added:
        kind = "float32" if added == "float16" else added if added == "bool" else "int32"
        steps = [Step("to_float32", (at,), dtype=kind) for at in (1, 2) if kind != "float32"]
        first, second = (3, 4) if steps else (1, 2)
        at = 3 + len(steps)
        steps += [Step("to_float32", (0,), dtype="int32"), Step("add", (at, first))]
        steps += [Step("add", (at + 1, second))]
        if stored == "bool":
            steps += [Step("constant", number=4.0), Step("less", (at + 2, at + 3))]
        elif kinds[stored].kind in "iu":
            steps += [Step("to_int32", (at + 2,)), Step(f"wrap_{stored}", (at + 3,), dtype="int32")]
        expression, leaves = Expression(3, tuple(steps), (2 + len(steps),)), [leaf, line]
        accesses = [Access(strides, added), Access((0, 0, 0, 1), added)]
        expected = expected + leaf.astype(np.float64) + line.astype(np.float64)
    step_n, step_y, step_x, _ = strides_of(x)
    launch = depthwise(
        instructions,
        batch=(2,),
        height=size[0],
        width=size[1],
        channels=channels,
        taps=tuple(y * step_y + x_ * step_x for y in range(kernel[0]) for x_ in range(kernel[1])),
        a=(step_n, 2 * step_y, step_x),
        epilogue=Epilogue(expression, tuple(accesses), (Access(strides, stored),)),
        threads=3,
        dtype="uint8",
    )
    run(launch, [x, packed, *leaves, result])
    wanted = expected < 4 if stored == "bool" else expected.astype(np.int64).astype(kinds[stored])
    np.testing.assert_array_equal(result, wanted)
    for each in (memory, packed_memory, result_memory, leaf_memory, line_memory):
        each.check()
