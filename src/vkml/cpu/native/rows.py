"""Rows of neighbouring floats: softmax, normalisation, reduction."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from vkml.cpu.native import mathematics
from vkml.cpu.native.assembler import RCX, RDX, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue, emit
from vkml.cpu.native.floats import PREDICATES
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.open_launch import OpenLaunch
from vkml.cpu.native.operation import Operation
from vkml.cpu.native.operations import operation
from vkml.cpu.native.row_code import POINTERS, RowCode, RowShape, open_row_launch, row_launch
from vkml.ir.size import Size

MOST_NUMBERED = 1 << 24
"""Columns whose numbers are float32 without loss."""
LEAST_CUT = 1 << 16
"""Elements, 3 µs of work, of a part of a row at least: the second launch takes about 1 µs."""

_FOUND = 3
"""A mask register that neither lanes' ends nor operations take."""


def softmax(
    instructions: InstructionSet,
    *,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    is_logarithm: bool,
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """Softmax (or its logarithm) of rows, then an epilogue.

    Args:
        instructions: the set that code may use.
        shape: leading axes and columns.
        strides: elements, of x; 1 along the columns.
        is_logarithm: whether the logarithm is wanted.
        epilogue: over `shape`, float32.
        threads: that will share the work.

    Returns:
        A launch of x, the leaves, the results.
    """
    return row_launch(
        instructions,
        "log_softmax" if is_logarithm else "softmax",
        shape=shape,
        inputs=(strides,),
        epilogue=epilogue,
        threads=threads,
        seconds_per_vector=5.6e-9,
        make=_softmax_kernel,
    )


def normalise(
    instructions: InstructionSet,
    *,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    is_centred: bool,
    epsilon: float,
    scale: tuple[int, ...] | None,
    bias: tuple[int, ...] | None,
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """Rows of mean 0 and variance 1 (not centred: of mean square 1), scaled and shifted, then an epilogue.

    Args:
        instructions: the set that code may use.
        shape: leading axes and columns.
        strides: elements, of x; 1 along the columns.
        is_centred: whether the mean is taken away.
        epsilon: added to the variance.
        scale: element strides of the factor, None for none; 0 or 1 along the columns.
        bias: likewise of the addend, which needs a factor.
        epilogue: over `shape`, float32.
        threads: that will share the work.

    Returns:
        A launch of x, the scale, the bias, the leaves, the results.
    """
    given = [strides, *(entry for entry in (scale, bias) if entry is not None)]
    if bias is not None and scale is None:
        raise ValueError("a bias without a scale")
    return row_launch(
        instructions,
        "layer_norm" if is_centred else "rms_norm",
        shape=shape,
        inputs=tuple(given),
        epilogue=epilogue,
        threads=threads,
        seconds_per_vector=2.6e-9 if is_centred else 1.8e-9,
        make=_normalisation_kernel,
        epsilon=epsilon,
    )


def reduce_rows(
    instructions: InstructionSet,
    *,
    kind: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """Rows folded to one number each, then an epilogue of that number.

    Args:
        instructions: the set that code may use.
        kind: "sum", "sum_square", "l1", "max", "min", "prod"; "argmax", "argmin": the number of the first
            column that is the extreme, or NaN, of `MOST_NUMBERED` at most.
        shape: leading axes and columns.
        strides: elements, of x; 1 along the columns.
        epilogue: over the leading axes and one column, float32.
        threads: that will share the work.

    Returns:
        A launch of x, the leaves, the results.
    """
    return row_launch(
        instructions,
        kind,
        shape=shape,
        inputs=(strides,),
        epilogue=epilogue,
        threads=threads,
        seconds_per_vector=0.8e-9,
        make=_reduction_kernel,
    )


def open_softmax(
    instructions: InstructionSet,
    *,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    is_logarithm: bool,
    epilogue: Epilogue,
    threads: int,
) -> OpenLaunch | None:
    """As `softmax`, for any values of sizes that are open in its arguments."""
    return open_row_launch(
        instructions,
        "log_softmax" if is_logarithm else "softmax",
        shape=shape,
        inputs=(strides,),
        epilogue=epilogue,
        seconds_per_vector=5.6e-9,
        make=_softmax_kernel,
        # The exponentials, in whole vectors.
        scratch_bytes=0 if is_logarithm else 4 * shape[-1] + 128,
    )


def open_normalise(
    instructions: InstructionSet,
    *,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    is_centred: bool,
    epsilon: float,
    scale: tuple[int, ...] | None,
    bias: tuple[int, ...] | None,
    epilogue: Epilogue,
    threads: int,
) -> OpenLaunch | None:
    """As `normalise`, for any values of sizes that are open in its arguments; not of the columns."""
    if isinstance(shape[-1], Size):
        return None
    given = [strides, *(entry for entry in (scale, bias) if entry is not None)]
    return open_row_launch(
        instructions,
        "layer_norm" if is_centred else "rms_norm",
        shape=shape,
        inputs=tuple(given),
        epilogue=epilogue,
        seconds_per_vector=2.6e-9 if is_centred else 1.8e-9,
        make=_normalisation_kernel,
        epsilon=epsilon,
    )


def open_reduce_rows(
    instructions: InstructionSet,
    *,
    kind: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    epilogue: Epilogue,
    threads: int,
) -> OpenLaunch | None:
    """As `reduce_rows`, for any values of sizes that are open in its arguments."""
    return open_row_launch(
        instructions,
        kind,
        shape=shape,
        inputs=(strides,),
        epilogue=epilogue,
        seconds_per_vector=0.8e-9,
        make=_reduction_kernel,
    )


def cut_of_rows(rows: int, columns: int, threads: int) -> int:
    """Columns of the parts into which long rows, if few, are cut so that threads share them; 0: none.

    The parts are reduced first, then what came of them: squares and absolute values as sums.
    """
    parts = min(-(-4 * threads // max(rows, 1)), rows * columns // LEAST_CUT)
    return columns // parts // 64 * 64 if rows < 4 * threads and threads > 1 and parts > 1 else 0


@kept_kernel(512)
def _softmax_kernel(shape: RowShape) -> Kernel:
    return _SoftmaxCode(shape).kernel()


class _SoftmaxCode(RowCode):
    """The greatest element, the exponentials and their sum, the quotients."""

    def scratch_bytes(self) -> int:
        # The exponentials.
        return (self.full + 1) * self.code.bytes if self.rows.kind == "softmax" else 0

    def row(self) -> None:
        code = self.code
        is_logarithm = self.rows.kind == "log_softmax"
        greatest, total, spare = 0, 1, 2
        code.load(greatest, code.constant(-np.inf))

        def widen(displacement: int, mask: int | None) -> None:
            self.masked(3, self.row_of(0, displacement), mask, -np.inf)
            # NaN comes back by the exponentials.
            code.vector("maxps", greatest, greatest, 3)

        self.each(widen, 4)
        code.reduce_lanes("maxps", greatest, spare)
        sums, block = (7, 8), 9
        for register in (total, block, *sums):
            code.zero(register)
        turn = itertools.count()
        put_aside = self.put_aside(sums, block, total)

        def raise_up(displacement: int, mask: int | None) -> None:
            code.load(3, self.row_of(0, displacement), mask)
            code.sub_vector(3, 3, greatest)
            mathematics.exp(code, 3, 3, list(range(4, 4 + mathematics.SPARE)))
            if mask is not None:
                code.zero(4)
                code.blend(3, 4, 3, mask)
            if not is_logarithm:
                code.store(Mem(RDX, displacement, RCX), 3)
            register = sums[next(turn) % 2]
            code.add_vector(register, register, 3)

        self.each(raise_up, 2, put_aside)
        for part in put_aside:
            part()
        code.reduce_lanes("addps", total, spare)
        free = list(range(3, self.top))
        if is_logarithm:
            mathematics.log(code, total, total, list(range(3, 3 + mathematics.SPARE)))

            def finish(displacement: int, mask: int | None) -> None:
                code.load(2, self.row_of(0, displacement), mask)
                code.sub_vector(2, 2, greatest)
                code.sub_vector(2, 2, total)
                self.store(2, displacement, mask, free)
        else:
            code.load(2, code.constant(1.0))
            code.vector("divps", total, 2, total)

            def finish(displacement: int, mask: int | None) -> None:
                code.mul_vector(2, total, Mem(RDX, displacement, RCX))
                self.store(2, displacement, mask, free)

        self.each(finish, 2)


@kept_kernel(512)
def _normalisation_kernel(shape: RowShape) -> Kernel:
    return _NormalisationCode(shape).kernel()


class _NormalisationCode(RowCode):
    """The mean, the squares of differences from it, the quotients."""

    @property
    def count(self) -> int:
        """How many columns there are, which must be known."""
        assert isinstance(self.rows.columns, int)
        return self.rows.columns

    def row(self) -> None:
        code, rows = self.code, self.rows
        is_centred = rows.kind == "layer_norm"
        mean, inverse = 0, 1
        code.zero(mean)
        if is_centred:
            self.sum(mean, self.plain)
            code.mul_vector(mean, mean, code.constant(1.0 / self.count))

        def square(register: int, displacement: int, mask: int | None) -> None:
            code.load(6, self.row_of(0, displacement), mask)
            if is_centred:
                code.sub_vector(6, 6, mean)
                if mask is not None:
                    code.zero(7)
                    code.blend(6, 7, 6, mask)
            code.multiply_add(register, 6, 6)

        self.sum(inverse, square)
        code.mul_vector(inverse, inverse, code.constant(1.0 / self.count))
        code.add_vector(inverse, inverse, code.constant(rows.epsilon))
        code.unary("sqrtps", inverse, inverse)
        code.load(2, code.constant(1.0))
        code.vector("divps", inverse, 2, inverse)
        free = list(range(3, self.top))

        def finish(displacement: int, mask: int | None) -> None:
            code.load(2, self.row_of(0, displacement), mask)
            if is_centred:
                code.sub_vector(2, 2, mean)
            code.mul_vector(2, 2, inverse)
            factors = [self._factor(1 + number, displacement, mask) for number in range(len(rows.factors))]
            if len(factors) == 2:
                code.vector("fmadd213ps", 2, *factors)
            elif factors:
                code.mul_vector(2, 2, factors[0])
            self.store(2, displacement, mask, free)

        self.each(finish, 2)

    def _factor(self, operand: int, displacement: int, mask: int | None) -> int:
        """The scale in register 3 or the bias in register 4."""
        code, rows = self.code, self.rows
        if rows.factors[operand - 1] or rows.has_one_column:
            code.load(2 + operand, self.row_of(operand, displacement), mask)
        else:
            code.broadcast(2 + operand, Mem(POINTERS[operand]))
        return 2 + operand


@kept_kernel(512)
def _reduction_kernel(shape: RowShape) -> Kernel:
    return _ReductionCode(shape).kernel()


class _ReductionCode(RowCode):
    """One number of a row, and the epilogue of that number."""

    def row(self) -> None:
        code, rows = self.code, self.rows
        kind = rows.kind
        if kind in ("sum", "sum_square", "l1"):

            def add(register: int, displacement: int, mask: int | None) -> None:
                code.load(6, self.row_of(0, displacement), mask)
                if kind == "sum_square":
                    code.multiply_add(register, 6, 6)
                else:
                    code.vector("andps", 6, 6, code.bits(0x7FFFFFFF))
                    code.add_vector(register, register, 6)

            self.sum(0, self.plain if kind == "sum" else add)
        else:
            folded = kind.removeprefix("arg")
            fold_by = operation({"max": "maximum", "min": "minimum", "prod": "multiply"}[folded])
            start = {"max": -np.inf, "min": np.inf, "prod": 1.0}[folded]
            spare = list(range(8, self.top - 1))
            code.load(0, code.constant(start))

            def fold(displacement: int, mask: int | None) -> None:
                self.masked(6, self.row_of(0, displacement), mask, start)
                fold_by.emit(code, 0, [0, 6], spare)

            self.each(fold, 2)
            self._fold_lanes(fold_by, spare)
            if folded != kind:
                self._find(start)
        # The number is in every lane; one is stored.
        first = len(rows.steps) - len(rows.epilogue.leaves) - len(rows.epilogue.results)

        def single(operand: int) -> Mem:
            return Mem(POINTERS[first + operand])

        made = emit(
            code,
            rows.epilogue.expression,
            bound={0: 0},
            load=lambda operand, target: code.broadcast(target, single(operand - 1)),
            free=list(range(1, self.top)),
        )
        for number, register in enumerate(made):
            code.store_float(single(len(rows.epilogue.leaves) + number), register)

    def _find(self, start: float) -> None:
        """Leaves the number of the first column that is what register 0 holds, or NaN, in its place."""
        code = self.code
        extreme, first, number, found, spare = 0, 1, 2, 6, 7
        mask = _FOUND if code.has_avx512 else 3
        code.load(first, code.constant(np.inf))
        code.load(number, code.data(np.arange(code.width, dtype=np.float32).tobytes()))

        def look(displacement: int, lanes: int | None) -> None:
            # Columns that are not there may be as great, but have greater numbers.
            self.masked(found, self.row_of(0, displacement), lanes, start)
            code.load(spare, code.constant(np.inf))
            for other, predicate in ((extreme, PREDICATES["equal"]), (found, PREDICATES["isnan"])):
                code.compare(mask, found, other, predicate)
                code.blend(spare, spare, number, mask)
            code.vector("minps", first, first, spare)
            code.add_vector(number, number, code.constant(float(code.width)))

        self.each(look)
        code.copy(extreme, first)
        code.reduce_lanes("minps", extreme, spare)

    def _fold_lanes(self, fold_by: Operation, spare: Sequence[int]) -> None:
        """As `VectorCode.reduce_lanes` for register 0, by an operation that passes NaN on."""
        code = self.code
        if code.has_avx512:
            code.immediate("shuff32x4", 6, 0, 0, 0x4E)
            fold_by.emit(code, 0, [0, 6], spare)
            code.immediate("shuff32x4", 6, 0, 0, 0xB1)
        else:
            code.immediate("perm2f128", 6, 0, 0, 0x01)
        fold_by.emit(code, 0, [0, 6], spare)
        for pattern in (0x4E, 0xB1):
            code.unary_immediate("permilps", 6, 0, pattern)
            fold_by.emit(code, 0, [0, 6], spare)
