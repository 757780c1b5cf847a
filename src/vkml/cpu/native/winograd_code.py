"""The kernel of Winograd's convolution: inputs are transformed, multiplied by 36 matrices, transformed back.

A row of its table: byte offset of the weights, panels, whole vectors of filters, whether filters remain,
tiles; then for each tile the byte offset of its inputs, rows and columns of its results to skip, and the byte
offset of its first element in each leaf and result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkml.cpu.native.assembler import (
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    RAX,
    RBP,
    RBX,
    RCX,
    RDI,
    RDX,
    RSI,
    Mem,
)
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kernel import Kernel
from vkml.cpu.native.outer_products import add_outer_products, float_products
from vkml.cpu.native.tail import finish_vector, fits_in
from vkml.cpu.native.tiles import MASK
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

TILE = 4
"""Results of a tile along each axis."""
SIDE = 6
PLACES = SIDE * SIDE
NEAR, FAR = 0.75, 1.5
"""Where polynomials are taken, besides 0 and infinity: at these and at what they are negative."""
HEADER = 5
_ENTRY_SKIPS = (8, 16)
_OFFSETS, _PANELS, _VECTORS, _HAS_REST, _TILES = (8 * i for i in range(HEADER))


@dataclass(frozen=True)
class WinogradShape:
    """All that the code depends on; strides in bytes."""

    instructions: InstructionSet
    tiles: int
    """Of a chunk."""
    rows: int
    """Tiles that are multiplied at once."""
    vectors: int
    """Of a panel."""
    panels: int
    """Of a chunk at most."""
    channels: int
    rest: int
    """Lanes of the last vector of filters; 0: all."""
    a: tuple[int, int]
    """(y, x) steps of A."""
    steps: tuple[tuple[int, int], ...]
    """(y, x) steps of each leaf and result."""
    epilogue: Epilogue
    planes: int
    """Of a window."""
    plane_step: int
    """Of A, from one plane of a window to the next."""
    packed_planes: int
    """That there are weights of."""

    @property
    def inner(self) -> int:
        """Channels of all planes."""
        return self.planes * self.channels


class WinogradCode:
    """Writes the kernel of a shape.

    Scratch memory: pointers of operands, one tile halfway, transformed inputs [place][tile][channel], their
    products [place][tile][filter].
    """

    def __init__(self, shape: WinogradShape) -> None:
        self.shape = shape
        self.code = VectorCode(shape.instructions)
        code = self.code
        self.entry = 8 * (3 + len(shape.steps))
        self.pointers = 0
        self.half = -(-8 * (len(shape.steps) + 2) // 64) * 64
        self.line = self.half + PLACES * code.bytes
        """Results of a line of a tile, where the epilogue leaves no registers for them."""
        # No multiples of large powers of two, lest what is used together meets in one set of the cache.
        # The last vector of a plane may be partial, but is stored as a whole.
        last = -(-shape.channels // code.width) * code.bytes
        self.input_step = _spread(4 * (shape.inner - shape.channels) + last)
        self.input_place = _spread(shape.tiles * self.input_step)
        self.sum_step = _spread(shape.panels * shape.vectors * code.bytes)
        self.sum_place = _spread(shape.tiles * self.sum_step)
        self.inputs = self.line + TILE * code.bytes
        self.sums = self.inputs + PLACES * self.input_place

    def kernel(self) -> Kernel:
        self._transform_inputs()
        self._multiply()
        self._transform_results()
        self.code.ret()
        return Kernel("winograd", self.code.finish(), self.sums + PLACES * self.sum_place)

    # -- inputs ----------------------------------------------------------------------------------------------

    def _transform_inputs(self) -> None:
        code, shape = self.code, self.shape
        mask = MASK if code.has_avx512 else code.registers - 1
        if shape.channels % code.width:
            code.set_mask(mask, shape.channels % code.width)
        self._load_factors(6, (NEAR, FAR, NEAR**2, FAR**2, (NEAR * FAR) ** 2, NEAR**2 + FAR**2))
        code.lea(R9, Mem(RSI, 8 * HEADER))
        code.lea(R10, Mem(RDX, self.inputs))
        code.mov(RBX, Mem(RSI, _TILES))
        with code.loop(RBX):
            code.mov(R11, Mem(RDI))
            code.add(R11, Mem(R9))
            code.mov(R12, R10)
            if shape.planes == 1:
                self._transform_plane(mask)
            else:
                with code.loop(R13, shape.planes):
                    done = self._transform_plane(mask)
                    code.add_immediate(R11, shape.plane_step - done)
                    code.add_immediate(R12, 4 * shape.channels - done)
            code.add_immediate(R9, self.entry)
            code.add_immediate(R10, self.input_step)

    def _transform_plane(self, mask: int) -> int:
        """All channels of a plane at R11, to R12; how many bytes both have moved on by."""
        code = self.code
        full, rest = divmod(self.shape.channels, code.width)
        if full:
            with code.loop(RCX, full):
                self._transform_input(None)
                code.add_immediate(R11, code.bytes)
                code.add_immediate(R12, code.bytes)
        if rest:
            self._transform_input(mask)
        return full * code.bytes

    def _load_factors(self, first: int, factors: Sequence[float]) -> None:
        for at, factor in enumerate(factors):
            self.code.load(first + at, self.code.constant(factor))

    def _transform_input(self, mask: int | None) -> None:
        """One vector of channels of a tile at R11, to R12."""
        code = self.code
        step_y, step_x = self.shape.a
        for x in range(SIDE):
            for y in range(SIDE):
                code.load(y, Mem(R11, y * step_y + x * step_x), mask)
            self._spread_six(lambda y, register, x=x: code.store(self._halfway(y, x), register))  # type: ignore[misc]
        for y in range(SIDE):
            for x in range(SIDE):
                code.load(x, self._halfway(y, x))
            self._spread_six(
                lambda x, register, y=y: code.store(  # type: ignore[misc]
                    Mem(R12, (y * SIDE + x) * self.input_place), register
                )
            )

    def _halfway(self, y: int, x: int) -> Mem:
        return Mem(RDX, self.half + (y * SIDE + x) * self.code.bytes)

    def _spread_six(self, store: Callable[[int, int], None]) -> None:
        """Transforms registers 0–5 along one axis; 6–11 hold the factors, 12 and 13 may change."""
        code = self.code
        near, far, near2, far2, product, total = range(6, 12)
        even, odd = 12, 13
        for at, (point, other) in ((1, (near, far2)), (3, (far, near2))):
            # Even and odd parts of the polynomial without the two points: their sum and difference.
            code.copy(even, 4)
            code.vector("fnmadd231ps", even, other, 2)
            code.copy(odd, 3)
            code.vector("fnmadd231ps", odd, other, 1)
            code.mul_vector(odd, odd, point)
            code.add_vector(14, even, odd)
            store(at, 14)
            code.sub_vector(even, even, odd)
            store(at + 1, even)
        for low, at in ((0, 0), (1, 5)):
            code.vector("fnmadd231ps", low + 4, total, low + 2)
            code.multiply_add(low + 4, product, low)
            store(at, low + 4)

    # -- products --------------------------------------------------------------------------------------------

    def _multiply(self) -> None:
        """R8: inputs of a place, R9: a panel, R12: sums of a place, R14: of a panel there."""
        code, shape = self.code, self.shape
        code.lea(R8, Mem(RDX, self.inputs))
        code.mov(R9, Mem(RDI, 8))
        code.add(R9, Mem(RSI, _OFFSETS))
        code.lea(R12, Mem(RDX, self.sums))
        panel = shape.vectors * code.bytes
        times, rest = divmod(shape.tiles, shape.rows)
        with code.loop(RBX, PLACES):
            code.mov(R14, R12)
            code.mov(R15, Mem(RSI, _PANELS))
            with code.loop(R15):
                code.mov(R13, R8)
                code.mov(RAX, R14)
                with code.loop(RBP, times):
                    self._multiply_rows(shape.rows)
                    code.add_immediate(R13, shape.rows * self.input_step)
                    code.add_immediate(RAX, shape.rows * self.sum_step)
                if rest:
                    self._multiply_rows(rest)
                code.add_immediate(R9, shape.packed_planes * shape.channels * panel)
                code.add_immediate(R14, panel)
            code.add_immediate(R8, self.input_place)
            code.add_immediate(R12, self.sum_place)

    def _multiply_rows(self, rows: int) -> None:
        """Tiles at R13 times the panel at R9, to RAX."""
        code, shape = self.code, self.shape
        sums = [[row * shape.vectors + v for v in range(shape.vectors)] for row in range(rows)]
        for registers in sums:
            for register in registers:
                code.zero(register)
        code.mov(R10, R13)
        code.mov(R11, R9)
        add_outer_products(
            code,
            float_products,
            sums,
            inner=shape.inner,
            rows=[row * self.input_step for row in range(rows)],
            k_step=4,
            panel_step=shape.vectors * code.bytes,
        )
        for row, registers in enumerate(sums):
            for v, register in enumerate(registers):
                code.store(Mem(RAX, row * self.sum_step + v * code.bytes), register)

    # -- results ---------------------------------------------------------------------------------------------

    def _transform_results(self) -> None:
        code, shape = self.code, self.shape
        mask = MASK if code.has_avx512 else code.registers - 1
        accesses = (*shape.epilogue.leaves, *shape.epilogue.results)
        # As many registers as the other instruction set has for a mask are kept free with both.
        is_direct = fits_in(code, shape.epilogue, code.registers - TILE - 1)
        if shape.rest:
            code.set_mask(mask, shape.rest)
        code.lea(R9, Mem(RSI, 8 * HEADER))
        code.lea(R12, Mem(RDX, self.sums))
        code.mov(RBX, Mem(RSI, _TILES))
        with code.loop(RBX):
            for operand in range(len(accesses)):
                code.mov(RAX, Mem(RDI, 8 * (2 + operand)))
                code.add(RAX, Mem(R9, 8 * (3 + operand)))
                code.mov(Mem(RDX, self.pointers + 8 * operand), RAX)
            code.mov(R14, R12)
            none = code.label()
            code.mov(RCX, Mem(RSI, _VECTORS))
            code.test(RCX, RCX)
            code.jump_if("z", none)
            with code.loop(RCX):
                self._transform_result(None, is_direct)
                for operand, access in enumerate(accesses):
                    step = code.bytes if access.strides[-1] else 0
                    self._advance(operand, step - TILE * shape.steps[operand][0])
                code.add_immediate(R14, code.bytes)
            code.place(none)
            if shape.rest:
                done = code.label()
                code.mov(RAX, Mem(RSI, _HAS_REST))
                code.test(RAX, RAX)
                code.jump_if("z", done)
                self._transform_result(mask, is_direct)
                code.place(done)
            code.add_immediate(R9, self.entry)
            code.add_immediate(R12, self.sum_step)

    def _advance(self, operand: int, step: int) -> None:
        if step:
            self.code.mov(RAX, Mem(RDX, self.pointers + 8 * operand))
            self.code.add_immediate(RAX, step)
            self.code.mov(Mem(RDX, self.pointers + 8 * operand), RAX)

    def _transform_result(self, mask: int | None, is_direct: bool) -> None:
        """One vector of filters of a tile at R14; pointers of operands move on by four lines."""
        code, shape = self.code, self.shape
        factors = (NEAR, FAR, NEAR**2, FAR**2, NEAR**3, FAR**3)
        self._load_factors(6, factors)
        for x in range(SIDE):
            for y in range(SIDE):
                code.load(y, Mem(R14, (y * SIDE + x) * self.sum_place))
            for y, register in enumerate(self._gather_four()):
                code.store(self._halfway(y, x), register)
        # Lines of results in a loop: R10 walks the halves, R11 counts.
        code.lea(R10, Mem(RDX, self.half))
        code.move_immediate(R11, 0)
        again = code.here()
        skip = code.label()
        code.cmp(R11, Mem(R9, _ENTRY_SKIPS[0]))
        code.jump_if("l", skip)
        for x in range(SIDE):
            code.load(x, Mem(R10, x * code.bytes))
        self._load_factors(6, factors)
        values = self._gather_four()
        top = code.registers - 1
        if not is_direct:
            for x, value in enumerate(values):
                code.store(Mem(RDX, self.line + x * code.bytes), value)
        for x, value in enumerate(values):
            self._finish(x, value, values, top, mask, is_direct)
        code.place(skip)
        for operand, (step, _) in enumerate(shape.steps):
            self._advance(operand, step)
        code.add_immediate(R10, SIDE * code.bytes)
        code.add_immediate(R11, 1)
        code.cmp_immediate(R11, TILE)
        code.jump_if("l", again)

    def _finish(
        self, x: int, value: int, values: Sequence[int], top: int, mask: int | None, is_direct: bool
    ) -> None:
        code, shape = self.code, self.shape
        absent = code.label()
        code.mov(RAX, Mem(R9, _ENTRY_SKIPS[1]))
        code.cmp_immediate(RAX, x)
        code.jump_if("g", absent)

        def place(operand: int) -> Mem:
            code.mov(R15, Mem(RDX, self.pointers + 8 * operand))
            return Mem(R15, x * shape.steps[operand][1])

        if is_direct:
            free = [register for register in range(top) if register not in values]
            finish_vector(code, shape.epilogue, value, free, place, mask)
        else:
            code.load(0, Mem(RDX, self.line + x * code.bytes))
            finish_vector(code, shape.epilogue, 0, list(range(1, top)), place, mask)
        code.place(absent)

    def _gather_four(self) -> tuple[int, ...]:
        """Four results from registers 0–5 along one axis; 6–11 hold the factors, 12 to 14 may change."""
        code = self.code
        near, far, near2, far2, near3, far3 = range(6, 12)
        second, third = 13, 14
        for plus, minus in ((1, 2), (3, 4)):
            code.copy(12, plus)
            code.add_vector(plus, plus, minus)
            code.sub_vector(minus, 12, minus)
        code.add_vector(0, 0, 1)
        code.add_vector(0, 0, 3)
        code.mul_vector(second, near, 2)
        code.multiply_add(second, far, 4)
        code.mul_vector(third, near2, 1)
        code.multiply_add(third, far2, 3)
        code.multiply_add(5, near3, 2)
        code.multiply_add(5, far3, 4)
        return 0, second, third, 5


def _spread(step: int) -> int:
    """At least so many bytes, an odd number of cache lines."""
    return 64 * (-(-step // 64) | 1)
