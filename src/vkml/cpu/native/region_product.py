"""Convolutions of whose results many read few taps: the others lie in the padding, whose zeros add nothing.

Index space: (batch…, y, x, column) as in `product.py`. The results are cut into rectangles, regions, of which
each has the same taps of the window inside the image; where both axes are cut nothing beside it is read.
Tiles are blocks of some lines by some places, of few sizes: each is code of its own, and a region is made up
of grids of equal blocks. A chunk says which block, which taps, and how many blocks.

Of windows whose dilation is about the image's size, as those of DeepLab, this is a half to a ninth of all
products: 960 → 256 channels over two images of 16², 3 × 3 at dilation 12, 10.4 ms → 2.7 (Zen 4, two cores).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.cpu.native.assembler import R8, R9, R10, R11, R12, R13, RAX, RDX, RSI, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.outer_products import add_outer_products
from vkml.cpu.native.product import (
    ADDS,
    LINE_BYTES,
    SECONDS_PER_FLOP,
    SETS,
    WAYS,
    Terms,
    most_rows,
    tile_cost,
    tile_of,
)
from vkml.cpu.native.tiles import TileCode, TileShape, chunk_table, lanes_of, tile_shape
from vkml.dataclasses import dataclass

Array = np.ndarray[Any, Any]
Block = tuple[int, int]
"""Lines, and places of a line."""
MOST_SPANS = 9
"""Of an axis: with more of them blocks are small."""
MOST_SHARE = 0.9
"""Of the time of all products: lines in one piece, and taps that follow one another, save something, too."""
BLOCK_SHARE = 0.004
"""Of all time, that a block has to save to be code of its own."""
GROUP_LENGTH = 512
"""Of k, over which taps are added up before their sum is added to that of others: errors grow with it."""
TAP_BYTES = 24
"""In the list of taps."""
NEAR_BYTES, FAR_BYTES = 512 * 1024, 24
"""Of a panel's taps, that the second-level cache keeps; and that come from beyond it in a cycle."""


@dataclass(frozen=True)
class Span:
    """Results along an axis, from `start` to before `stop`, that read taps from `first` to before `last`."""

    start: int
    stop: int
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def taps(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Plan:
    """How the results are cut: a function of the shape alone, so that packing and code agree.

    Attributes:
        y: spans of lines; one, of all results and taps, where lines are read beside the image.
        x: spans of places, likewise.
        vectors: of a panel.
        blocks: of each region, y by y, x by x.
        share: of the time that all taps of all results take, estimated.
    """

    y: tuple[Span, ...]
    x: tuple[Span, ...]
    vectors: int
    blocks: tuple[Block, ...]
    share: float


def plan(
    instructions: InstructionSet,
    *,
    y: Sequence[Span],
    x: Sequence[Span],
    columns: int,
    inner: int,
    steps: tuple[int, int],
    terms: Terms = Terms.FLOATS,
) -> Plan | None:
    """How to cut a convolution; None where to compute all taps takes about as long.

    Args:
        instructions: the set that code may use.
        y: what results read along y.
        x: and along x.
        columns: of the result.
        inner: length of k.
        steps: bytes from what one line of A reads to the next, and one place.
        terms: what is multiplied.
    """
    return _plan(instructions, tuple(y), tuple(x), columns, inner, steps, terms)


@functools.lru_cache(maxsize=1024)
def _plan(
    instructions: InstructionSet,
    y: tuple[Span, ...],
    x: tuple[Span, ...],
    columns: int,
    inner: int,
    steps: tuple[int, int],
    terms: Terms,
) -> Plan | None:
    whole_y, whole_x = _whole(y), _whole(x)
    everything = _products(whole_y) * _products(whole_x)
    if not everything:
        return None
    ways = [
        (_products(spans_y) * _products(spans_x) / everything, spans_y, spans_x)
        for spans_y, spans_x in ((y, x), (y, whole_x), (whole_y, x))
        if 1 < max(len(spans_y), len(spans_x)) <= MOST_SPANS
    ]
    if not ways or min(share for share, *_ in ways) >= MOST_SHARE:
        return None
    lanes = lanes_of(instructions)
    whole = -(-columns // lanes)
    rows, vectors = tile_of(instructions, columns=columns, rows=whole_x[0].size, row_bytes=steps[1])
    all_taps = everything * _Panel(instructions, columns, vectors, steps, terms, 0).time((1, rows), 1) / rows
    best: Plan | None = None
    least = MOST_SHARE * all_taps
    for share, spans_y, spans_x in sorted(ways, key=lambda way: way[0]):
        # One vector is loaded for each product.
        for vectors in range(min(2, whole), min(4, whole) + 1):
            if share < least / all_taps:
                tap_bytes = 4 * inner * vectors * lanes
                panel = _Panel(instructions, columns, vectors, steps, terms, tap_bytes)
                blocks, time = _blocks(panel, spans_y, spans_x, all_taps)
                if time < least:
                    best, least = Plan(spans_y, spans_x, vectors, blocks, time / all_taps), time
    return best


def _whole(spans: Sequence[Span]) -> tuple[Span, ...]:
    """One span of all results and all taps."""
    first, last = min(span.first for span in spans), max(span.last for span in spans)
    return (Span(0, spans[-1].stop, first, last),)


def _products(spans: Sequence[Span]) -> int:
    return sum(span.size * span.taps for span in spans)


@dataclass(frozen=True)
class _Panel:
    """What the time of a block hangs on.

    Attributes:
        instructions: the set that code may use.
        columns: of the result.
        vectors: of a panel.
        steps: bytes between lines and between places of A.
        terms: what is multiplied.
        tap_bytes: of a panel, for each tap.
    """

    instructions: InstructionSet
    columns: int
    vectors: int
    steps: tuple[int, int]
    terms: Terms
    tap_bytes: int

    @property
    def most_rows(self) -> int:
        """Of a block, all of whose sums are in registers."""
        return most_rows(self.instructions, self.vectors, self.terms)

    def time(self, block: Block, taps: int) -> float:
        """Cycles of a block for one k of each tap and all columns."""
        lanes, rows = lanes_of(self.instructions), block[0] * block[1]
        panels, narrow = divmod(-(-self.columns // lanes), self.vectors)
        held = rows if _fits_cache(block, self.steps) else 0
        least = 0.0
        if taps * self.tap_bytes > NEAR_BYTES:
            least = 4 * lanes * self.vectors / FAR_BYTES
        cycles = panels * max(tile_cost(rows, self.vectors, held), least)
        if narrow:
            cycles += max(tile_cost(rows, narrow, held), least * narrow / self.vectors)
        return taps * cycles


@functools.lru_cache(maxsize=4096)
def _fits_cache(block: Block, steps: tuple[int, int]) -> bool:
    """Whether the rows of a block can be read side by side; see `product.rows_held`."""
    if steps[0] % LINE_BYTES or steps[1] % LINE_BYTES:
        return True
    rows = [line * steps[0] + place * steps[1] for line in range(block[0]) for place in range(block[1])]
    return max(Counter(row // LINE_BYTES % SETS for row in rows).values()) <= WAYS - 2


def _blocks(
    panel: _Panel, y: Sequence[Span], x: Sequence[Span], all_taps: float
) -> tuple[tuple[Block, ...], float]:
    """The block of each region, and the time that all take."""
    blocks: list[Block] = []
    total, known = 0.0, set[Block]()
    for span_y in y:
        for span_x in x:
            taps = max(span_y.taps * span_x.taps, 1)
            best, best_time, grids = (1, 1), math.inf, set[Block]()
            for block in _blocks_for(span_y.size, span_x.size, panel.most_rows):
                parts = {
                    part: count_y * count_x
                    for part, _, _, count_y, count_x in _grids(span_y.size, span_x.size, block)
                }
                time = sum(count * panel.time(part, taps) for part, count in parts.items())
                time += len(parts.keys() - known) * BLOCK_SHARE * all_taps
                if time < best_time:
                    best, best_time, grids = block, time, set(parts)
            known |= grids
            blocks.append(best)
            # Weights are read for each region.
            total += max(best_time, taps * 4 * panel.columns / FAR_BYTES)
    return tuple(blocks), total


@functools.lru_cache(maxsize=1024)
def _blocks_for(height: int, width: int, most: int) -> tuple[Block, ...]:
    """Blocks of at most so many rows, that cut a region evenly; small ones only of small regions."""
    lines = {-(-height // count) for count in range(1, height + 1)}
    places = {-(-width // count) for count in range(1, width + 1)}
    least = min(most, height * width) / 2
    return tuple((y, x) for y in sorted(lines) for x in sorted(places) if least <= y * x <= most) or ((1, 1),)


def _grids(height: int, width: int, block: Block) -> Iterator[tuple[Block, int, int, int, int]]:
    """A region as grids of equal blocks: the block, where the grid begins, and how many there are."""
    for lines, y, count_y in _parts(height, block[0]):
        for places, x, count_x in _parts(width, block[1]):
            yield (lines, places), y, x, count_y, count_x


def _parts(size: int, step: int) -> Iterator[tuple[int, int, int]]:
    count, rest = divmod(size, step)
    if count:
        yield step, 0, count
    if rest:
        yield rest, size - rest, 1


def region_product(
    instructions: InstructionSet,
    *,
    batch: tuple[int, ...],
    arrangement: Plan,
    columns: int,
    inner: int,
    kernel: tuple[int, int],
    taps: tuple[int, ...],
    a: tuple[int, ...],
    b: tuple[int, ...],
    epilogue: Epilogue,
    threads: int,
    terms: Terms = Terms.FLOATS,
) -> Launch:
    """Sums over the taps of each region and k, then an epilogue.

    Args:
        instructions: the set that code may use.
        batch: leading axes.
        arrangement: from `plan`.
        columns: of the result.
        inner: length of k.
        kernel: taps along y and x.
        taps: element offsets in A of what the first result reads, which may lie outside of the image.
        a: element strides of A: batch…, y, x, k; A begins at its first place.
        b: element strides of packed B along the batch axes; 0 where it is shared.
        epilogue: over (batch…, y, x, column), float32; leaves walk columns by 0 or 1, results by 1.
        threads: that will share the work.
        terms: what elements of A and B are; see `product.product`.

    Returns:
        A launch of A, B (`product.pack` for so many vectors), the leaves, the results.
    """
    panel = arrangement.vectors * lanes_of(instructions)
    operands = [(*a[:-1], 0), *(access.strides for access in (*epilogue.leaves, *epilogue.results))]
    itemsizes = [4, *(access.itemsize for access in (*epilogue.leaves, *epilogue.results))]
    rank = len(batch)
    shape = tile_shape(
        instructions,
        tile_rows=1,
        width=1,
        columns=columns,
        panel=panel,
        taps=(),
        operands=[strides[rank : rank + 2] for strides in operands],
        epilogue=epilogue,
    )
    row_seconds = 2.0 * panel * inner * SECONDS_PER_FLOP
    regions = sorted(
        zip(itertools.product(arrangement.y, arrangement.x), arrangement.blocks, strict=True),
        key=lambda region: -region[0][0].taps * region[0][1].taps,
    )
    rows = _products(arrangement.y) * _products(arrangement.x)
    seconds = row_seconds * -(-columns // panel) * math.prod(batch) * rows
    # Sums of integers are exact.
    group = max(1, GROUP_LENGTH // inner) if terms is Terms.FLOATS else len(taps)
    blocks: list[Block] = []
    tables: list[Array] = []
    lists: list[int] = []
    places: dict[tuple[int, ...], int] = {}
    for (span_y, span_x), block in regions:
        read = tuple(
            at_y * kernel[1] + at_x
            for at_y in range(span_y.first, span_y.last)
            for at_x in range(span_x.first, span_x.last)
        )
        if read not in places:
            places[read] = 8 * len(lists)
            for at, tap in enumerate(read, 1):
                is_end = at == len(read) or at % group == 0
                lists += [4 * taps[tap], 4 * tap * inner * panel, int(is_end)]
        for part, y, x, count_y, count_x in _grids(span_y.size, span_x.size, block):
            if part not in blocks:
                blocks.append(part)
            lines, width = part
            table = chunk_table(
                replace(shape, rows=width),
                batch=batch,
                height=count_y,
                width=count_x * width,
                columns=columns,
                panel=panel,
                operands=[
                    (*strides[:rank], lines * strides[rank], *strides[rank + 1 :]) for strides in operands
                ],
                panel_floats=len(taps) * inner * panel,
                b=b,
                row_seconds=lines * max(len(read), 1) * row_seconds,
                row_bytes=4 * lines * max(a[-1] * inner, abs(a[-2]), 1),
                threads=threads,
                seconds=seconds,
            )
            starts = [
                itemsize * ((span_y.start + y) * strides[rank] + (span_x.start + x) * strides[rank + 1])
                for itemsize, strides in zip(itemsizes, operands, strict=True)
            ]
            table[:, : len(operands) + 1] += np.array([starts[0], 0, *starts[1:]])
            # What is left of a line, which there is not here, makes room for which code it is.
            at = len(operands) + 3
            table[:, at] = 2 * blocks.index(part) + table[:, at + 1]
            table[:, at + 1] = places[read]
            tables.append(np.insert(table, at + 2, len(read), axis=1))
    has_groups = max(map(len, places)) > group
    code = _kernel(shape, tuple(blocks), tuple(lists), has_groups, inner, 4 * a[-1], 4 * panel, terms)
    return Launch(code, np.ascontiguousarray(np.concatenate(tables)), seconds + 1e-7)


@kept_kernel(256)
def _kernel(
    shape: TileShape,
    blocks: tuple[Block, ...],
    taps: tuple[int, ...],
    has_groups: bool,
    inner: int,
    k_step: int,
    b_step: int,
    terms: Terms,
) -> Kernel:
    return _RegionCode(shape, blocks, taps, has_groups, inner, k_step, b_step, terms).kernel()


class _RegionCode(TileCode):
    """Blocks as sums of outer products, each chunk's over taps of its own.

    A row of its table goes on behind the number of blocks of a line: which code (twice the block's number,
    one more for the last panel where it is narrower), where in `taps` its own begin, how many they are.

    Args:
        shape: of tiles, whose rows do not matter.
        blocks: that there are.
        taps: offsets in A and in B, and whether a group of taps ends here, in turns.
        has_groups: whether any tap before its region's last ends a group.
        inner: length of k.
        k_step: bytes from float to float of a row.
        b_step: bytes of the panel for each k.
        terms: what is multiplied.
    """

    label = "region product"

    def __init__(
        self,
        shape: TileShape,
        blocks: tuple[Block, ...],
        taps: tuple[int, ...],
        has_groups: bool,
        inner: int,
        k_step: int,
        b_step: int,
        terms: Terms,
    ) -> None:
        super().__init__(shape)
        self.blocks, self.taps, self.has_groups = blocks, taps, has_groups
        self.inner, self.k_step, self.b_step, self.terms = inner, k_step, b_step, terms
        self._code_column, self._taps_column, self._count_column = (
            8 * (self.operands + 3 + at) for at in range(3)
        )

    def kernel(self) -> Kernel:
        code, shape = self.code, self.shape
        self._begin()
        panels: list[tuple[int, int, int | None]] = []
        if shape.has_full_panels:
            panels.append((0, shape.vectors, None))
        if shape.tail_vectors:
            panels.append((1, shape.tail_vectors, shape.tail_lanes or None))
        ways = [(2 * at + more, block, vectors, lanes)
                for at, block in enumerate(self.blocks) for more, vectors, lanes in panels]  # fmt: skip
        labels = [code.label() for _ in ways]
        code.mov(RAX, Mem(RSI, self._code_column))
        for (number, *_), label in zip(ways[1:], labels[1:], strict=True):
            code.cmp_immediate(RAX, number)
            code.jump_if("z", label)
        for (_, (lines, places), vectors, lanes), label in zip(ways, labels, strict=True):
            code.place(label)
            self._panel(vectors, lanes, lines, places)
        most = max(lines * places for lines, places in self.blocks)
        kept = most * shape.vectors * code.bytes if self.has_groups else 0
        return Kernel(self.label, code.finish(), max(self._scratch_bytes(most), self._spill + kept))

    def accumulate(self, sums: list[list[int]], places: Sequence[int], lanes: int | None) -> None:
        code = self.code
        registers = [register for row in sums for register in row]
        kept = [Mem(RDX, self._spill + register * code.bytes) for register in registers]
        done = code.label()
        code.mov(R13, Mem(RSI, self._count_column))
        code.lea(R12, code.data(np.array(self.taps, np.int64).tobytes()))
        code.add(R12, Mem(RSI, self._taps_column))
        code.test(R13, R13)
        code.jump_if("z", done)
        if self.has_groups:
            for register, place in zip(registers, kept, strict=True):
                code.store(place, register)
        tap = code.here()
        code.mov(R10, Mem(R12))
        code.add(R10, R8)
        code.mov(R11, Mem(R12, 8))
        code.add(R11, R9)
        add_outer_products(
            code,
            ADDS[self.terms],
            sums,
            inner=self.inner,
            rows=places,
            k_step=self.k_step,
            panel_step=self.b_step,
            last_bits=256 if code.has_avx512 and lanes is not None and lanes <= 8 else 0,
        )
        code.add_immediate(R12, TAP_BYTES)
        code.decrement(R13)
        if self.has_groups:
            # The sums of a group are added to those of the ones before.
            code.mov(RAX, Mem(R12, -8))
            code.test(RAX, RAX)
            code.jump_if("z", tap)
            for register, place in zip(registers, kept, strict=True):
                code.add_vector(register, register, place)
                code.store(place, register)
            code.test(R13, R13)
            code.jump_if("z", done)
            for register in registers:
                code.zero(register)
            code.jump(tap)
        else:
            code.jump_if("nz", tap)
        code.place(done)
