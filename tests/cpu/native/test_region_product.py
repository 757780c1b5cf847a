"""Convolutions in regions against NumPy: geometries, blocks, epilogues, guarded memory without a border."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.cpu.native.epilogues import KINDS, make_ending, strides_of
from tests.cpu.native.harness import guarded, instruction_sets, require, run
from vkml.cpu.native.executable import InstructionSet, has_byte_dots
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue
from vkml.cpu.native.product import Terms, most_rows, pack, pack_bytes
from vkml.cpu.native.region_product import GROUP_LENGTH, Plan, Span, plan, region_product
from vkml.cpu.native.tiles import lanes_of
from vkml.ir.windows import Windows

Array = np.ndarray[Any, Any]


def spans_of(windows: Windows, axis: int) -> tuple[Span, ...]:
    """Result by result and tap by tap."""
    found: list[Span] = []
    for at in range(windows.output[axis]):
        begin = at * windows.strides[axis] - windows.pads_begin[axis]
        places = [begin + tap * windows.dilations[axis] for tap in range(windows.kernel[axis])]
        live = [tap for tap, place in enumerate(places) if 0 <= place < windows.spatial[axis]]
        first, last = (live[0], live[-1] + 1) if live else (0, 0)
        if found and (found[-1].first, found[-1].last) == (first, last):
            found[-1] = Span(found[-1].start, at + 1, first, last)
        else:
            found.append(Span(at, at + 1, first, last))
    return tuple(found)


def square(size: int, dilation: int, kernel: int = 3) -> Windows:
    """Windows whose results are as many as the places of an image."""
    pads = (dilation * (kernel // 2),) * 2
    return Windows((size,) * 2, (kernel,) * 2, (1, 1), (dilation,) * 2, pads, pads, (size,) * 2)


def reference(x: Array, weight: Array, windows: Windows) -> tuple[Array, Array]:
    """Sums [images, groups, y, x, filter] of x [images, y, x, groups, channel], and of squares of products.

    Args:
        x: the image.
        weight: [groups, y, x, channel, filter].
        windows: whose taps outside of the image are left out.
    """
    (images, *size, groups, _), filters = x.shape, weight.shape[-1]
    sums, squares = np.zeros((2, images, groups, *windows.output, filters))
    steps = list(zip(windows.strides, windows.dilations, windows.pads_begin, strict=True))
    for tap in np.ndindex(*windows.kernel):
        places = [
            np.arange(count) * stride + at * dilation - pad
            for count, at, (stride, dilation, pad) in zip(windows.output, tap, steps, strict=True)
        ]
        for y, x_ in itertools.product(range(windows.output[0]), range(windows.output[1])):
            at_y, at_x = int(places[0][y]), int(places[1][x_])
            if 0 <= at_y < size[0] and 0 <= at_x < size[1]:
                part = x[:, at_y, at_x].astype(np.float64).swapaxes(0, 1)
                factor = weight[:, tap[0], tap[1]].astype(np.float64)
                sums[:, :, y, x_] += (part @ factor).swapaxes(0, 1)
                squares[:, :, y, x_] += (np.square(part) @ np.square(factor)).swapaxes(0, 1)
    return sums, squares


def taps_of(x: Array, windows: Windows) -> tuple[int, ...]:
    step_y, step_x = strides_of(x)[1:3]
    (top, left), (dilation_y, dilation_x) = windows.pads_begin, windows.dilations
    return tuple(
        (y * dilation_y - top) * step_y + (x_ * dilation_x - left) * step_x
        for y, x_ in np.ndindex(*windows.kernel)
    )


def check(
    instructions: InstructionSet,
    random: np.random.Generator,
    windows: Windows,
    arrangement: Plan,
    *,
    images: int,
    channels: int,
    filters: int,
    groups: int = 1,
    kind: str = "identity",
    threads: int = 2,
) -> None:
    """A convolution over images with nothing round them."""
    extra = int(random.integers(2)) * 3
    memory, whole = guarded(
        random.standard_normal((images, *windows.spatial, groups * channels + extra)).astype(np.float32),
        at_start=bool(random.integers(2)),
    )
    x = whole[..., extra:]
    depth = channels * windows.taps
    weight = random.standard_normal((groups, *windows.kernel, channels, filters)).astype(np.float32)
    weight /= np.float32(depth**0.5)
    panel = arrangement.vectors * lanes_of(instructions)
    packed_memory, packed = guarded(np.stack([pack(part.reshape(depth, filters), panel) for part in weight]))
    ending = make_ending(kind, (images, groups, *windows.output, filters), random)
    step_n, step_y, step_x, _ = strides_of(x)
    launch = region_product(
        instructions,
        batch=(images, groups),
        arrangement=arrangement,
        columns=filters,
        inner=channels,
        kernel=(windows.kernel[0], windows.kernel[1]),
        taps=taps_of(x, windows),
        a=(step_n, channels, windows.strides[0] * step_y, windows.strides[1] * step_x, 1),
        b=(0, packed.strides[0] // 4),
        epilogue=ending.epilogue,
        threads=threads,
    )
    parts = np.ascontiguousarray(x).reshape(*x.shape[:3], groups, channels)
    sums, squares = reference(parts, weight, windows)
    # As `rounding_of_sums`.
    ending.check_within(launch, [x, packed], sums, 6 * 2.0**-24 * (depth**0.5 + 2) * np.sqrt(squares))
    memory.check()
    packed_memory.check()


def any_blocks(
    random: np.random.Generator, y: Sequence[Span], x: Sequence[Span], most: int
) -> tuple[tuple[int, int], ...]:
    """A block for each region, of at most so many rows."""
    blocks = []
    for span_y, span_x in itertools.product(y, x):
        lines = int(random.integers(1, min(most, span_y.size) + 1))
        blocks.append((lines, int(random.integers(1, min(most // lines, span_x.size) + 1))))
    return tuple(blocks)


@instruction_sets
@pytest.mark.parametrize("seed", range(80))
def test_random_geometries(instructions: InstructionSet, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(random.integers(low, high))

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(low, high), draw(low, high)

    spatial, kernel = pair(1, 14), pair(1, 5)
    strides, dilations, begin, end = pair(1, 4), pair(1, 9), pair(0, 14), pair(0, 14)
    output = tuple(
        (size + before + behind - (taps - 1) * dilation - 1) // stride + 1
        for size, before, behind, taps, dilation, stride in zip(
            spatial, begin, end, kernel, dilations, strides, strict=True
        )
    )
    # Windows that do not fit are made to: more places, all in the padding.
    output = tuple(max(count, 1) for count in output)
    windows = Windows(spatial, kernel, strides, dilations, begin, end, output)
    y, x = spans_of(windows, 0), spans_of(windows, 1)
    filters = draw(1, 100)
    vectors = draw(1, min(4, -(-filters // lanes_of(instructions))) + 1)
    blocks = any_blocks(random, y, x, most_rows(instructions, vectors, Terms.FLOATS))
    check(
        instructions,
        random,
        windows,
        Plan(y, x, vectors, blocks, 0.5),
        images=draw(1, 3),
        channels=draw(1, 30),
        filters=filters,
        groups=draw(1, 4) if seed % 3 == 0 else 1,
        kind=KINDS[seed % len(KINDS)],
        threads=draw(1, 17),
    )


@instruction_sets
@pytest.mark.parametrize("kind", ["bias_relu", "long"])
def test_many_channels_are_added_up_in_groups(instructions: InstructionSet, kind: str) -> None:
    """Sums of a group wait in scratch memory, where long epilogues put theirs, too; errors are small."""
    require(instructions)
    random = np.random.default_rng(0)
    windows, channels = square(7, 3), GROUP_LENGTH // 2 + 1
    arrangement = plan(
        instructions,
        y=spans_of(windows, 0),
        x=spans_of(windows, 1),
        columns=40,
        inner=channels,
        steps=(7 * 4 * channels, 4 * channels),
    )
    assert arrangement is not None
    check(instructions, random, windows, arrangement, images=2, channels=channels, filters=40, kind=kind)


@instruction_sets
@pytest.mark.parametrize("terms", [Terms.DOTS, Terms.PAIRS])
def test_bytes_are_exact(instructions: InstructionSet, terms: Terms) -> None:
    require(instructions)
    if terms is Terms.DOTS and not has_byte_dots(instructions):
        pytest.skip("no VNNI")
    random = np.random.default_rng(0)
    windows, words, filters = square(9, 5), 5, 37
    x = random.integers(0, 256, (2, 9, 9, 4 * words)).astype(np.uint8)
    weight = random.integers(-128, 128, (1, 3, 3, 4 * words, filters)).astype(np.int8)
    x[0], weight[..., 0] = 255, -128
    vectors = min(3, -(-filters // lanes_of(instructions)))
    y, x_spans = spans_of(windows, 0), spans_of(windows, 1)
    blocks = any_blocks(random, y, x_spans, most_rows(instructions, vectors, terms))
    memory, image = guarded(x.view(np.int32))
    panel = vectors * lanes_of(instructions)
    packed_memory, packed = guarded(pack_bytes(weight.reshape(-1, filters), panel))
    result_memory, result = guarded(np.zeros((2, 9, 9, filters), np.int32))
    launch = region_product(
        instructions,
        batch=(2,),
        arrangement=Plan(y, x_spans, vectors, blocks, 0.5),
        columns=filters,
        inner=words,
        kernel=(3, 3),
        taps=taps_of(image, windows),
        a=strides_of(image),
        b=(0,),
        epilogue=Epilogue(IDENTITY, (), (Access(strides_of(result), "int32"),)),
        threads=2,
        terms=terms,
    )
    run(launch, [image, packed, result])
    sums, _ = reference(x[:, :, :, None], weight, windows)
    np.testing.assert_array_equal(result, sums[:, 0])
    for each in (memory, packed_memory, result_memory):
        each.check()


def find(size: int, dilation: int, channels: int = 256, kernel: int = 3) -> Plan | None:
    windows = square(size, dilation, kernel)
    return plan(
        InstructionSet.AVX512,
        y=spans_of(windows, 0),
        x=spans_of(windows, 1),
        columns=256,
        inner=channels,
        steps=(4 * size * channels, 4 * channels),
    )


@pytest.mark.parametrize(("size", "dilation", "share"), [(16, 12, 0.25), (65, 36, 0.398), (33, 18, 0.405)])
def test_plans_leave_out_what_lies_in_the_padding(size: int, dilation: int, share: float) -> None:
    found = find(size, dilation)
    assert found is not None and share <= found.share < 1.1 * share
    assert len(found.y) == len(found.x) == 3


def test_little_padding_is_not_cut_off() -> None:
    assert find(32, 1) is None
    assert find(32, 2) is None
    # One result a region: weights would be read four times for each.
    assert find(3, 2, 512) is None
    # Nothing to compute at all.
    nothing = (Span(0, 4, 0, 0),)
    assert plan(InstructionSet.AVX2, y=nothing, x=nothing, columns=8, inner=8, steps=(128, 32)) is None


@pytest.mark.parametrize("size", [8, 12, 16, 24, 33, 48, 65])
@pytest.mark.parametrize("kernel", [3, 5])
def test_blocks_fit_into_registers(size: int, kernel: int) -> None:
    for instructions, dilation in itertools.product(InstructionSet, range(2, size)):
        windows = square(size, dilation, kernel)
        y, x = spans_of(windows, 0), spans_of(windows, 1)
        found = plan(instructions, y=y, x=x, columns=96, inner=64, steps=(256 * size, 256))
        if found is not None:
            most = most_rows(instructions, found.vectors, Terms.FLOATS)
            assert len(found.blocks) == len(found.y) * len(found.x)
            assert all(lines * places <= most for lines, places in found.blocks)
            for spans in (found.y, found.x):
                assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
                assert spans[-1].stop == size
