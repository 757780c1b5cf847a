"""Matrix products and convolutions: rows of floats, read anywhere, times packed panels of columns.

Index space: (batch…, y, x, column); each result is the sum over taps and k of A at (y, x, tap, k) times B at
(tap, k, column). A product of matrices has one y and one tap; a convolution over channels-last images with
zeros round them has a tap for each place of its window. Vectors lie along columns: B is packed in panels of a
few vectors, [panel][tap][k][lanes], and A is read float by float, so that it may have any strides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from vkml.cpu.native.assembler import R8, R9, R10, R11, R12, R13, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.outer_products import (
    PAIR_REGISTERS,
    add_outer_products,
    byte_dots,
    byte_pairs,
    float_products,
)
from vkml.cpu.native.tiles import TileCode, TileShape, chunk_table, lanes_of, tile_shape

Array = np.ndarray[Any, Any]
SECONDS_PER_FLOP = 1 / 100e9


class Terms(Enum):
    """What A and B hold, 32 bits an element, and how products of it are added up.""" ""

    FLOATS = "floats"
    """float32, rounded once with the sum."""
    DOTS = "dots"
    """Four unsigned bytes of A times four signed ones of B, to int32, by one instruction (VNNI)."""
    PAIRS = "pairs"
    """The same where there is no such instruction: products of 16-bit halves."""


ADDS = {Terms.FLOATS: float_products, Terms.DOTS: byte_dots, Terms.PAIRS: byte_pairs}
"""How products are added up."""


def panel_width(
    instructions: InstructionSet, *, columns: int, rows: int, row_bytes: int, terms: Terms = Terms.FLOATS
) -> int:
    """Columns of a packed panel for a product.

    Args:
        instructions: the set that code may use.
        columns: of the result.
        rows: of a line of A.
        row_bytes: from one row of A to the next.
        terms: what is multiplied.
    """
    return _tile(instructions, columns, rows, row_bytes, 0, terms)[1] * lanes_of(instructions)


def tile_of(instructions: InstructionSet, *, columns: int, rows: int, row_bytes: int) -> tuple[int, int]:
    """Rows and vectors of the tiles that `product` would take; arguments as for `panel_width`."""
    return _tile(instructions, columns, rows, row_bytes)


@functools.lru_cache(maxsize=4096)
def _tile(
    instructions: InstructionSet,
    columns: int,
    rows: int,
    row_bytes: int,
    vectors: int = 0,
    terms: Terms = Terms.FLOATS,
) -> tuple[int, int]:
    """Rows and vectors of a tile: what a model of the inner loop says is fastest."""
    lanes = lanes_of(instructions)
    best, best_cost = (1, 1), math.inf
    whole = -(-columns // lanes)
    held = rows_held(row_bytes)
    for count in (vectors,) if vectors else range(1, min(4, whole) + 1):
        for height in range(1, min(most_rows(instructions, count, terms), max(rows, 1)) + 1):
            panels, narrow = divmod(whole, count)
            cost = panels * _line_cost(rows, height, count, held)
            if narrow:
                cost += _line_cost(rows, height, narrow, held)
            if cost < best_cost * 0.995:
                best, best_cost = (height, count), cost
    return best


def most_rows(instructions: InstructionSet, vectors: int, terms: Terms) -> int:
    """Of a tile of so many vectors, all of whose sums are in registers."""
    registers = 32 if instructions is InstructionSet.AVX512 else 16
    spare = PAIR_REGISTERS if terms is Terms.PAIRS else vectors + 1
    return min((registers - spare) // vectors, 24)


WAYS, SETS, LINE_BYTES = 8, 64, 64
"""Of the first-level cache: 32 KiB."""


def rows_held(row_bytes: int) -> int:
    """How many rows a tile may read that many bytes apart before they drive one another from the cache.

    Rows 4096 bytes apart share one set of eight lines: a tile of 20 of them ran at a sixth of its speed.
    """
    if row_bytes % LINE_BYTES:
        return WAYS * SETS
    return (WAYS - 2) * SETS // math.gcd(row_bytes // LINE_BYTES, SETS)


def _line_cost(rows: int, height: int, vectors: int, held: int) -> float:
    full, rest = divmod(rows, height)
    cost = full * tile_cost(height, vectors, held)
    return cost + (tile_cost(rest, vectors, held) if rest else 0.0)


def tile_cost(height: int, vectors: int, held: int) -> float:
    """Cycles for one k: multiply-adds, loads, or the sums' latency; a little for a tile's start and end."""
    sums = height * vectors
    loads = height * (1 if height <= held else 4) + vectors
    # Of two loads a cycle 1.8 were seen (AVX2, tiles of one vector: 96 GFLOP/s where 6 x 2 reach 114).
    return max(sums / 2, loads / 1.8, 4.0) + sums * 0.02 + 0.3


def pack(matrix: Array, width: int) -> Array:
    """A matrix [k, columns] in panels [panel][k][width], the last filled up with zeros."""
    inner, columns = matrix.shape
    panels = -(-columns // width)
    packed = np.zeros((panels, inner, width), np.float32)
    full = columns // width
    if full:
        packed[:full] = matrix[:, : full * width].reshape(inner, full, width).transpose(1, 0, 2)
    if full < panels:
        packed[full, :, : columns - full * width] = matrix[:, full * width :]
    return packed


def pack_bytes(matrix: Array, width: int) -> Array:
    """A matrix of int8 [k, columns] in panels [panel][k / 4][width][4], filled up with zeros, as int32."""
    inner, columns = matrix.shape
    words, panels = -(-inner // 4), -(-columns // width)
    whole = np.zeros((4 * words, panels * width), np.int8)
    whole[:inner, :columns] = matrix
    packed = whole.reshape(words, 4, panels, width).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(packed).reshape(panels, words, 4 * width).view(np.int32)


def product(
    instructions: InstructionSet,
    *,
    batch: tuple[int, ...],
    height: int,
    width: int,
    columns: int,
    inner: int,
    taps: tuple[int, ...],
    a: tuple[int, ...],
    b: tuple[int, ...],
    panel: int,
    epilogue: Epilogue,
    threads: int,
    panel_floats: int = 0,
    terms: Terms = Terms.FLOATS,
    rows_of_b: tuple[int, tuple[int, ...]] | None = None,
) -> Launch:
    """Sums over taps and k, then an epilogue.

    Args:
        instructions: the set that code may use.
        batch: leading axes.
        height: lines (y).
        width: places of a line (x).
        columns: of the result.
        inner: length of k.
        taps: element offsets in A.
        a: element strides of A: batch…, y, x, k.
        b: element strides of packed B along the batch axes; 0 where it is shared.
        panel: columns of a panel of B.
        epilogue: over (batch…, y, x, column), float32; leaves walk columns by 0 or 1, results by 1.
        threads: that will share the work.
        panel_floats: from one panel of B to the next; 0: as many as these taps have.
        terms: what elements of A and B are. All sizes and strides count elements; sums of integers are int32.
        rows_of_b: of a B that is not packed, columns side by side: elements from one k to the next, and the
            offset of each tap. The last panel may then be narrower by whole vectors alone, and
            `panel_floats` says how far apart panels are.

    Returns:
        A launch of A, B, the leaves, the results.
    """
    b_step, b_taps = rows_of_b or (panel, ())
    if rows_of_b is None:
        taps, inner = _merge_taps(taps, inner, a[-1])
    operands = [a[:-1], *(access.strides for access in (*epilogue.leaves, *epilogue.results))]
    rank = len(batch)
    if height > 1 and all(strides[rank] == width * strides[rank + 1] for strides in operands):
        height, width = 1, height * width
    vectors = panel // lanes_of(instructions)
    tile_rows, _ = _tile(instructions, columns, width, 4 * abs(a[-2]), vectors, terms)
    shape = tile_shape(
        instructions,
        tile_rows=tile_rows,
        width=width,
        columns=columns,
        panel=panel,
        taps=taps,
        operands=[strides[rank : rank + 2] for strides in operands],
        epilogue=epilogue,
    )
    depth = len(taps) * inner
    table = chunk_table(
        shape,
        batch=batch,
        height=height,
        width=width,
        columns=columns,
        panel=panel,
        operands=[(*a[:-1], 0), *operands[1:]],
        panel_floats=panel_floats or panel * depth,
        b=b,
        row_seconds=2.0 * panel * depth * SECONDS_PER_FLOP,
        row_bytes=4 * max(a[-1] * inner, abs(a[-2]), 1),
        threads=threads,
    )
    flops = 2.0 * math.prod(batch) * height * width * columns * depth
    kernel = _kernel(shape, inner, 4 * a[-1], terms, 4 * b_step, tuple(4 * tap for tap in b_taps))
    return Launch(kernel, table, flops * SECONDS_PER_FLOP + 1e-7)


def _merge_taps(taps: tuple[int, ...], inner: int, step: int) -> tuple[tuple[int, ...], int]:
    """Neighbouring taps whose floats follow one another in A are one longer run."""
    for run in range(len(taps), 1, -1):
        if len(taps) % run == 0 and all(
            taps[at] == taps[at - at % run] + (at % run) * inner * step for at in range(len(taps))
        ):
            return taps[::run], inner * run
    return taps, inner


@kept_kernel(1024)
def _kernel(
    shape: TileShape, inner: int, k_step: int, terms: Terms, b_step: int, b_taps: tuple[int, ...]
) -> Kernel:
    return _ProductCode(shape, inner, k_step, terms, b_step, b_taps).kernel()


class _ProductCode(TileCode):
    """Tiles as sums of outer products: a float of each row times a row of the panel.

    Steps and offsets are in bytes; without offsets in B, what the taps meet follows one another.
    """

    label = "product"

    def __init__(
        self, shape: TileShape, inner: int, k_step: int, terms: Terms, b_step: int, b_taps: tuple[int, ...]
    ) -> None:
        super().__init__(shape)
        self.inner, self.k_step, self.terms = inner, k_step, terms
        self.b_step, self.b_taps = b_step, b_taps

    def accumulate(self, sums: list[list[int]], places: Sequence[int], lanes: int | None) -> None:
        code, taps = self.code, self.shape.taps
        code.mov(R11, R9)
        if len(taps) > 1:
            lists = [taps, self.b_taps] if self.b_taps else [taps]
            code.lea(R12, code.data(np.stack(lists, axis=1).astype(np.int64).tobytes()))
            code.move_immediate(R13, len(taps))
            tap = code.here()
            code.mov(R10, Mem(R12))
            code.add(R10, R8)
            if self.b_taps:
                code.mov(R11, Mem(R12, 8))
                code.add(R11, R9)
            self._add(sums, places, lanes)
            code.add_immediate(R12, 8 * len(lists))
            code.decrement(R13)
            code.jump_if("nz", tap)
        else:
            code.lea(R10, Mem(R8, taps[0]))
            self._add(sums, places, lanes)

    def _add(self, sums: list[list[int]], places: Sequence[int], lanes: int | None) -> None:
        """Adds the products of one tap."""
        # Half a vector costs half as much (a Zen 4 does 512 bits in two turns): 96 → 24 channels went at 84
        # GFLOP/s with whole ones, at 101 so.
        is_half = self.code.has_avx512 and lanes is not None and lanes <= 8
        add_outer_products(
            self.code,
            ADDS[self.terms],
            sums,
            inner=self.inner,
            rows=places,
            k_step=self.k_step,
            panel_step=self.b_step,
            last_bits=256 if is_half else 0,
        )
