"""Windows of channels-last images: their greatest elements, their sums; lanes lie along channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.cpu.native.assembler import R8, R10, R12, R13, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.operations import operation
from vkml.cpu.native.tiles import MASK, TileCode, TileShape, chunk_table, lanes_of, tile_shape

SECONDS_PER_VECTOR = {"max": 1e-9, "min": 1e-9, "sum": 0.4e-9}
"""Of one vector taken in: extremes look for NaN, too."""
MOST_WRITTEN_OUT = 64
"""Places of a window for which the code has no loop."""
_START = {"max": -np.inf, "min": np.inf, "sum": 0.0}


def windows(
    instructions: InstructionSet,
    *,
    kind: str,
    batch: tuple[int, ...],
    height: int,
    width: int,
    columns: int,
    taps: tuple[int, ...],
    a: tuple[int, ...],
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """Folds the places of a window, all of which exist, then an epilogue.

    Args:
        instructions: the set that code may use.
        kind: "max", "min" or "sum".
        batch: leading axes.
        height: of the result.
        width: of the result.
        columns: neighbours in A and in the results: channels.
        taps: element offsets of the window's places in A.
        a: element strides of A: batch…, y, x.
        epilogue: over (batch…, y, x, column), float32.
        threads: that will share the work.

    Returns:
        A launch of A, A again (it has no second operand), the leaves, the results.
    """
    lanes = lanes_of(instructions)
    operands = [(*a, 1), *(access.strides for access in (*epilogue.leaves, *epilogue.results))]
    rank = len(batch)
    # A panel is a whole cache line at least: with half of one every line would be read twice.
    panel = min(16, -(-columns // lanes) * lanes)
    if width == 1 and columns >= 4 * lanes:
        panel = 4 * lanes
    tile_rows = min(8 * lanes // panel if panel <= 16 else 1, width)
    tile_rows = -(-width // -(-width // tile_rows))
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
    seconds = len(taps) * SECONDS_PER_VECTOR[kind] * (panel // lanes)
    table = chunk_table(
        shape,
        batch=batch,
        height=height,
        width=width,
        columns=columns,
        panel=panel,
        operands=operands,
        panel_floats=0,
        b=(0,) * rank,
        row_seconds=seconds,
        row_bytes=4 * panel,
        threads=threads,
    )
    total = int(np.prod(batch)) * height * width * -(-columns // panel)
    return Launch(_kernel(shape, kind), table, total * seconds + 1e-7)


@kept_kernel(512)
def _kernel(shape: TileShape, kind: str) -> Kernel:
    return _WindowCode(shape, kind).kernel()


class _WindowCode(TileCode):
    """Tiles of places of one or a few vectors of channels."""

    label = "windows"

    def __init__(self, shape: TileShape, kind: str) -> None:
        super().__init__(shape)
        self.kind = kind

    def accumulate(self, sums: list[list[int]], places: Sequence[int], lanes: int | None) -> None:
        code, taps = self.code, self.shape.taps
        used = len(sums) * len(sums[0])
        mask: int | None = None
        spare = list(range(used, code.registers))
        if lanes is not None:
            mask = MASK if code.has_avx512 else spare.pop()
            if not code.has_avx512:
                code.set_mask(mask, lanes)
        start = _START[self.kind]
        if start:
            for registers in sums:
                for register in registers:
                    code.load(register, code.constant(start))
        if len(taps) <= MOST_WRITTEN_OUT:
            for tap in taps:
                self._fold(sums, R8, tap, places, spare, mask)
            return
        code.lea(R12, code.data(np.array(taps, np.int64).tobytes()))
        code.move_immediate(R13, len(taps))
        again = code.here()
        code.mov(R10, Mem(R12))
        code.add(R10, R8)
        self._fold(sums, R10, 0, places, spare, mask)
        code.add_immediate(R12, 8)
        code.decrement(R13)
        code.jump_if("nz", again)

    def _fold(
        self,
        sums: list[list[int]],
        base: int,
        offset: int,
        places: Sequence[int],
        spare: list[int],
        mask: int | None,
    ) -> None:
        code = self.code
        for row, registers in zip(places, sums, strict=True):
            for v, register in enumerate(registers):
                place = Mem(base, offset + row + v * code.bytes)
                is_partial = mask is not None and v == len(registers) - 1
                if self.kind == "sum" and not is_partial:
                    code.add_vector(register, register, place)
                    continue
                code.load(spare[0], place, mask if is_partial else None)
                if self.kind == "sum":
                    code.add_vector(register, register, spare[0])
                else:
                    operation(f"{self.kind}imum").emit(code, register, [register, spare[0]], spare[1:])
