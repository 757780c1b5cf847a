"""Products and convolutions against NumPy: geometries, strides, epilogues, NaN, guarded memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cpu.native.epilogues import KINDS, make_ending, rounding_of_sums, strides_of
from tests.cpu.native.harness import Guarded, bound, guarded, instruction_sets, require
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Access
from vkml.cpu.native.open_product import open_product
from vkml.cpu.native.product import _merge_taps, pack, panel_width, product
from vkml.cpu.native.tiles import lanes_of
from vkml.ir.size import Sizes

Array = np.ndarray[Any, Any]
ORDERS = ("rows", "columns", "padded", "spread", "backwards", "one row", "one column")


def left_side(random: np.random.Generator, shape: tuple[int, ...], order: str) -> tuple[Guarded, Array]:
    """Values [..., rows, k] in guarded memory.

    Args:
        random: makes the values.
        shape: of the result.
        order: "rows", "columns" (each column in one piece), "padded" (room between rows), "spread" (between
            floats), "backwards" (rows from the last to the first), "one row" (for all rows), "one column".
    """
    at_start = bool(random.integers(2))
    *outer, rows, k = shape
    if order == "columns":
        memory, whole = guarded(
            random.standard_normal((*outer, k, rows)).astype(np.float32), at_start=at_start
        )
        return memory, np.swapaxes(whole, -1, -2)
    if order == "padded":
        memory, whole = guarded(
            random.standard_normal((*outer, rows, k + 3)).astype(np.float32), at_start=at_start
        )
        return memory, whole[..., 3:]
    if order == "spread":
        memory, whole = guarded(
            random.standard_normal((*outer, rows, 2 * k)).astype(np.float32), at_start=at_start
        )
        return memory, whole[..., 1::2]
    stored = {"one row": (*outer, 1, k), "one column": (*outer, rows, 1)}.get(order, shape)
    memory, whole = guarded(random.standard_normal(stored).astype(np.float32), at_start=at_start)
    return memory, whole[..., ::-1, :] if order == "backwards" else np.broadcast_to(whole, shape)


def check_product(
    instructions: InstructionSet,
    random: np.random.Generator,
    *,
    batch: tuple[int, ...],
    rows: int,
    inner: int,
    columns: int,
    shared: Sequence[bool] = (),
    order: str = "rows",
    kind: str = "identity",
    threads: int = 2,
) -> None:
    """A stack of matrix products; B is the same along the batch axes that `shared` names."""
    memory, a = left_side(random, (*batch, rows, inner), order)
    own = tuple(1 if share else size for size, share in itertools.zip_longest(batch, shared, fillvalue=False))
    b = random.standard_normal((*own, inner, columns)).astype(np.float32) / np.float32(inner**0.5)
    row_bytes = abs(a.strides[-2])
    width = panel_width(instructions, columns=columns, rows=rows, row_bytes=row_bytes)
    packed = np.stack([pack(part, width) for part in b.reshape(-1, inner, columns)])
    packed_memory, packed = guarded(
        packed.reshape(*own, *packed.shape[1:]), at_start=bool(random.integers(2))
    )
    steps = strides_of(np.broadcast_to(packed, (*batch, *packed.shape[len(batch) :])))[: len(batch)]
    ending = make_ending(kind, (*batch, 1, rows, columns), random)
    launch = product(
        instructions,
        batch=batch,
        height=1,
        width=rows,
        columns=columns,
        inner=inner,
        taps=(0,),
        a=(*strides_of(a)[:-2], 0, *strides_of(a)[-2:]),
        b=steps,
        panel=width,
        epilogue=ending.epilogue,
        threads=threads,
    )
    sums = (a.astype(np.float64) @ b.astype(np.float64))[..., None, :, :]
    ending.check_within(launch, [a, packed], sums, rounding_of_sums(a, b)[..., None, :, :])
    memory.check()
    packed_memory.check()


@instruction_sets
@pytest.mark.parametrize("seed", range(60))
def test_random_products(instructions: InstructionSet, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)
    sizes = [1, 2, 3, 5, 7, 8, 9, 14, 15, 16, 17, 24, 31, 32, 33, 47, 64, 65, 100, 197]
    rank = int(random.integers(0, 3))
    check_product(
        instructions,
        random,
        batch=tuple(int(size) for size in random.integers(1, 4, rank)),
        rows=int(random.choice(sizes)),
        inner=int(random.choice(sizes)),
        columns=int(random.choice(sizes)),
        shared=[bool(share) for share in random.integers(0, 2, rank)],
        order=ORDERS[seed % len(ORDERS)],
        kind=KINDS[seed % len(KINDS)],
        threads=int(random.integers(1, 17)),
    )


@instruction_sets
@pytest.mark.parametrize("columns", range(1, 101))
def test_every_number_of_columns(instructions: InstructionSet, columns: int) -> None:
    require(instructions)
    check_product(
        instructions,
        np.random.default_rng(columns),
        batch=(),
        rows=1 + columns % 13,
        inner=1 + columns % 11,
        columns=columns,
        kind=KINDS[columns % len(KINDS)],
    )


@instruction_sets
@pytest.mark.parametrize("rows", [*range(1, 61), 196, 3136])
def test_every_number_of_rows(instructions: InstructionSet, rows: int) -> None:
    require(instructions)
    check_product(
        instructions,
        np.random.default_rng(rows),
        batch=(2,),
        rows=rows,
        inner=13,
        columns=70,
        kind=KINDS[rows % len(KINDS)],
    )


@instruction_sets
@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(128, 768, 768), (128, 3072, 768), (197, 768, 500), (49, 2048, 512)]
)
def test_large_products(instructions: InstructionSet, rows: int, inner: int, columns: int) -> None:
    """Rows in blocks of their own, and rows a power of two apart."""
    require(instructions)
    check_product(
        instructions,
        np.random.default_rng(inner),
        batch=(),
        rows=rows,
        inner=inner,
        columns=columns,
        kind="bias_relu",
    )


def check_convolution(
    instructions: InstructionSet,
    random: np.random.Generator,
    *,
    images: int,
    size: tuple[int, int],
    channels: int,
    filters: int,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    dilation: int = 1,
    groups: int = 1,
    kind: str = "identity",
    threads: int = 2,
) -> None:
    """A convolution over channels-last images that have room for every window."""
    padded = [(size[i] - 1) * stride[i] + (kernel[i] - 1) * dilation + 1 for i in range(2)]
    # Channels may be a part of more.
    extra = int(random.integers(2)) * 3
    memory, whole = guarded(
        random.standard_normal((images, *padded, groups * channels + extra)).astype(np.float32)
    )
    x = whole[..., extra:]
    depth = kernel[0] * kernel[1] * channels
    weight = random.standard_normal((groups, depth, filters)).astype(np.float32) / np.float32(depth**0.5)
    is_plain = kernel == (1, 1) and stride == (1, 1)
    width = panel_width(
        instructions,
        columns=filters,
        rows=size[0] * size[1] if is_plain else size[1],
        row_bytes=stride[1] * x.strides[2],
    )
    packed_memory, packed = guarded(np.stack([pack(part, width) for part in weight]))
    ending = make_ending(kind, (images, groups, *size, filters), random)
    step_n, step_y, step_x, _ = strides_of(x)
    launch = product(
        instructions,
        batch=(images, groups),
        height=size[0],
        width=size[1],
        columns=filters,
        inner=channels,
        taps=tuple(
            y * dilation * step_y + x_ * dilation * step_x
            for y in range(kernel[0])
            for x_ in range(kernel[1])
        ),
        a=(step_n, channels, stride[0] * step_y, stride[1] * step_x, 1),
        b=(0, packed.strides[0] // 4),
        panel=width,
        epilogue=ending.epilogue,
        threads=threads,
    )
    sums, squares = np.zeros((2, images, groups, *size, filters))
    parts = x.reshape(images, *padded, groups, channels) if not extra else None
    for y, x_ in itertools.product(range(kernel[0]), range(kernel[1])):
        top, left, tap = y * dilation, x_ * dilation, (y * kernel[1] + x_) * channels
        for group in range(groups):
            place = slice(group * channels, (group + 1) * channels)
            source = x[..., place] if parts is None else parts[..., group, :]
            part = source[
                :,
                top : top + (size[0] - 1) * stride[0] + 1 : stride[0],
                left : left + (size[1] - 1) * stride[1] + 1 : stride[1],
            ]
            factor = weight[group, tap : tap + channels].astype(np.float64)
            sums[:, group] += part.astype(np.float64) @ factor
            squares[:, group] += np.square(part.astype(np.float64)) @ np.square(factor)
    # As `rounding_of_sums`.
    error = 6 * 2.0**-24 * (depth**0.5 + 2) * np.sqrt(squares)
    ending.check_within(launch, [x, packed], sums, error)
    memory.check()
    packed_memory.check()


@instruction_sets
@pytest.mark.parametrize("seed", range(60))
def test_random_convolutions(instructions: InstructionSet, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(random.integers(low, high))

    check_convolution(
        instructions,
        random,
        images=draw(1, 3),
        size=(draw(1, 12), draw(1, 40)),
        channels=draw(1, 30),
        filters=draw(1, 80),
        kernel=(draw(1, 5), draw(1, 5)),
        stride=(draw(1, 3), draw(1, 3)),
        dilation=draw(1, 3),
        groups=draw(1, 4) if seed % 3 == 0 else 1,
        kind=KINDS[seed % len(KINDS)],
        threads=draw(1, 17),
    )


@instruction_sets
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"),
    [
        ((50, 1), (3, 1), (1, 1), 1),
        ((9, 1), (1, 1), (1, 1), 1),
        ((1, 50), (1, 5), (1, 2), 1),
        ((6, 7), (3, 3), (1, 1), 2),
        ((5, 40), (2, 7), (2, 1), 1),
        ((1, 1), (7, 7), (1, 1), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("channels", [1, 2])
def test_thin_images(
    instructions: InstructionSet,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: int,
    channels: int,
) -> None:
    """One float a tap: those of a line follow one another and merge, unless they are dilated."""
    require(instructions)
    for kind in KINDS:
        check_convolution(
            instructions,
            np.random.default_rng(channels),
            images=2,
            size=size,
            channels=channels,
            filters=37,
            kernel=kernel,
            stride=stride,
            dilation=dilation,
            groups=3 if kind == "residual" else 1,
            kind=kind,
        )


def test_neighbouring_taps_are_one_run() -> None:
    # Windows of 3 by 5 over lines of 40 floats: each line of a window is one run.
    taps = tuple(40 * y + 4 * x for y in range(3) for x in range(5))
    assert _merge_taps(taps, 4, 1) == ((0, 40, 80), 20)
    assert _merge_taps(taps, 2, 2) == ((0, 40, 80), 10)
    # Whole lines follow one another, too.
    assert _merge_taps(tuple(range(0, 60, 4)), 4, 1) == ((0,), 60)
    # Channels of a group, or with places between: nothing merges.
    for inner, step in ((3, 1), (4, 2)):
        assert _merge_taps(taps, inner, step) == (taps, inner)
    assert _merge_taps((0, 8, 4), 4, 1) == ((0, 8, 4), 4)
    assert _merge_taps((7,), 4, 1) == ((7,), 4)


@instruction_sets
@pytest.mark.parametrize(
    ("size", "channels", "filters", "kernel", "stride"),
    [
        (56, 64, 64, 1, 1),
        (14, 1024, 256, 1, 1),
        (7, 2048, 512, 1, 1),
        (28, 128, 128, 3, 1),
        (7, 512, 512, 3, 1),
        (112, 3, 64, 7, 2),
        (112, 16, 96, 1, 1),
        (28, 5, 20, 5, 1),
    ],
)
def test_layers_of_networks(
    instructions: InstructionSet, size: int, channels: int, filters: int, kernel: int, stride: int
) -> None:
    require(instructions)
    check_convolution(
        instructions,
        np.random.default_rng(size),
        images=1,
        size=(size, size),
        channels=channels,
        filters=filters,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        kind="bias_relu",
    )


@instruction_sets
def test_nan_and_infinity_stay_in_their_rows_and_columns(instructions: InstructionSet) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    memory, a = guarded(random.standard_normal((20, 9)).astype(np.float32))
    b = random.standard_normal((9, 37)).astype(np.float32)
    a[3, 8], a[19, 0], b[4, 36] = np.nan, np.inf, -np.inf
    width = panel_width(instructions, columns=37, rows=20, row_bytes=36)
    ending = make_ending("identity", (1, 20, 37), random)
    launch = product(
        instructions,
        batch=(),
        height=1,
        width=20,
        columns=37,
        inner=9,
        taps=(0,),
        a=(0, 9, 1),
        b=(),
        panel=width,
        epilogue=ending.epilogue,
        threads=2,
    )
    with np.errstate(invalid="ignore"):
        sums = (a.astype(np.float64) @ b.astype(np.float64))[None]
    ending.check(launch, [a, pack(b, width)], sums, rtol=1e-4, atol=1e-5)
    memory.check()


@pytest.mark.parametrize(("inner", "columns", "width"), [(1, 1, 8), (5, 64, 32), (7, 33, 16), (3, 100, 48)])
def test_panels_hold_columns_and_zeros(inner: int, columns: int, width: int) -> None:
    matrix = np.random.default_rng(0).standard_normal((inner, columns)).astype(np.float32)
    for source in (matrix, np.asfortranarray(matrix), matrix[::-1, ::-1]):
        packed = pack(source, width)
        assert packed.shape == (-(-columns // width), inner, width)
        flat = packed.transpose(1, 0, 2).reshape(inner, -1)
        np.testing.assert_array_equal(flat[:, :columns], source)
        assert not flat[:, columns:].any()


@instruction_sets
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_random_products_of_open_sizes(instructions: InstructionSet, seed: int, is_packed: bool) -> None:
    """Some sizes and steps are open, others known; B is packed, or read where it lies."""
    require(instructions)
    random = np.random.default_rng(seed)
    counts = [1, 2, 3, 5, 7, 8, 9, 14, 15, 16, 17, 24, 31, 32, 33, 47, 64, 65, 100]
    rows, inner, columns = (int(random.choice(counts)) for _ in range(3))
    batch = int(random.integers(1, 4))
    memory, a = left_side(random, (batch, rows, inner), ORDERS[seed % len(ORDERS)])
    b = random.standard_normal((batch, inner, columns)).astype(np.float32) / np.float32(inner**0.5)
    lanes = lanes_of(instructions)
    has_open_columns = bool(random.integers(2))
    width = lanes if has_open_columns else lanes * int(random.integers(1, 5))
    kind = KINDS[seed % len(KINDS)]
    ending = make_ending(kind, (batch, rows, columns), random)
    if is_packed:
        laid = np.stack([pack(part, width) for part in b])
        b_memory, placed = guarded(laid, at_start=bool(random.integers(2)))
        b_steps = strides_of(placed)[:3]
    else:
        room = int(random.integers(3))
        b_memory, whole = guarded(np.zeros((batch, inner, columns + room), np.float32))
        placed = whole[..., room:]
        placed[...] = b
        step_b, step_k, _ = strides_of(placed)
        b_steps = (step_b, width, step_k)
    sizes = Sizes()

    def perhaps(value: int, is_open: bool | None = None) -> Any:
        if value <= 0 or not (bool(random.integers(2)) if is_open is None else is_open):
            return value
        return sizes.symbol(f"s{len(sizes.examples)}", value, least=1)

    def steps(access: Access) -> Access:
        return replace(access, strides=(*map(perhaps, access.strides[:-1]), access.strides[-1]))

    with sizes.deciding():
        step_a, step_m, step_k = strides_of(a)
        made = open_product(
            instructions,
            batch=perhaps(batch),
            rows=perhaps(rows),
            columns=perhaps(columns, has_open_columns),
            inner=perhaps(inner),
            a=(perhaps(step_a), perhaps(step_m), perhaps(step_k)),
            b=(perhaps(b_steps[0]), perhaps(b_steps[1]), perhaps(b_steps[2])),
            panel=width,
            is_packed=is_packed,
            epilogue=replace(
                ending.epilogue,
                leaves=tuple(map(steps, ending.epilogue.leaves)),
                results=tuple(map(steps, ending.epilogue.results)),
            ),
        )
    assert made is not None
    sums = a.astype(np.float64) @ b.astype(np.float64)
    for chunks in (1, 3):
        launch = bound(made, sizes.examples, chunks)
        ending.check_within(launch, [a, placed], sums, rounding_of_sums(a, b))
    memory.check()
    b_memory.check()
