"""Heavy operators on the CPU: which kernel, in which blocks. One anchor class a kind of kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.cpu.blocks import Index, partition
from vkml.cpu.convolution import (
    LEAST_FILTERS,
    LEAST_ROWS,
    ColumnConvolution,
    Convolution,
    DepthwiseConvolution,
    PlaneConvolution,
    PointwiseConvolution,
)
from vkml.cpu.pooling import Pooling, mean_over_places
from vkml.cpu.products import product
from vkml.cpu.rows import log_softmax_rows, normalise_rows, normalise_rows_by_mean_square, softmax_rows
from vkml.cpu.winograd import WinogradConvolution
from vkml.ir import Constant, Node, TensorType
from vkml.ops.conv import ConvGeometry, conv_geometry
from vkml.ops.matmul import matmul_geometry
from vkml.ops.norm import row_geometry
from vkml.ops.pool import pool_geometry, window_counts
from vkml.ops.softmax import softmax_geometry

Array = np.ndarray[Any, Any]
Block = Callable[[Index, Array], None]
"""Computes one block into the part of the target that the index covers."""

SECONDS_PER_FLOP = 1 / 90e9
"""Of one core in a matrix product: 70 to 110 GFLOP/s measured with AVX2, twice that with AVX-512."""
SECONDS_PER_PASS = 0.12e-9
"""Of one core for one addition of an element in cache."""


class Anchor:
    """A heavy node whose result is made block by block.

    Attributes:
        memory: shape of the result as it lies in memory.
        channels_last: whether that is [N, *spatial, C] for a result [N, C, *spatial].
        needs_rows: whether blocks need the result seen as [rows, columns].
        seconds: estimated time on one core.
        uses_blas: whether blocks call BLAS, which then must not spread over threads itself.
        inputs: values that `start` receives, in order.
        scale: a value to multiply the result with, broadcast to it.
        shift: a value to add to the result then, broadcast to it; one a channel for channels-last results.
    """

    channels_last = False
    needs_rows = False
    uses_blas = False

    def __init__(self, node: Node, types: Mapping[str, TensorType]) -> None:
        result = types[node.outputs[0]]
        self.dtype = _compute_dtype(result)
        self.memory: tuple[int, ...] = result.dims
        self.seconds = 0.0
        self.inputs: tuple[str, ...] = node.inputs[:1]
        self.scale: str | None = None
        self.shift: str | None = None

    def partition(self, threads: int) -> list[Index] | None:
        """Blocks of the result for that many threads; None where `start` does all of it."""
        raise NotImplementedError

    def start(self, arrays: Sequence[Array], target: Array, whole: bool) -> Block | None:
        """Prepares the inputs and returns what does a block; with `whole` does all and returns None."""
        raise NotImplementedError


def find_anchor(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant], is_strict: bool = False
) -> Anchor | None:
    """The anchor of a node, None where no kernel is faster than the operator's `evaluate`.

    Args:
        node: normalised.
        types: of its values.
        constants: values that are known.
        is_strict: whether a convolution must add up the products that it states (no Winograd).
    """
    make = _ANCHORS.get(node.op) if not node.domain else None
    if make is None or any(node.outputs[1:]):
        return None
    known = [types[name] for name in (*node.inputs, *node.outputs) if name]
    if any(not t.dtype.is_native or t.elements == 0 for t in known):
        return None
    if types[node.outputs[0]].dtype.storage not in (np.float16, np.float32, np.float64):
        return None
    return _conv(node, types, constants, is_strict) if make is _conv else make(node, types, constants)


def _compute_dtype(type_: TensorType) -> np.dtype[Any]:
    return np.dtype(np.float64 if type_.dtype.storage == np.float64 else np.float32)


def _last(array: Array) -> Array:
    """A [N, C, *spatial] array seen as [N, *spatial, C]."""
    return array.transpose(0, *range(2, array.ndim), 1)


# --- convolution -----------------------------------------------------------------------------------------


class ConvolutionAnchor(Anchor):
    """Conv with any of the convolution kernels."""

    channels_last = True
    uses_blas = True

    def __init__(
        self,
        node: Node,
        types: Mapping[str, TensorType],
        make: Callable[[Array], Convolution],
        weight: Array | None,
    ) -> None:
        super().__init__(node, types)
        dims = types[node.outputs[0]].dims
        self.memory = (dims[0], *dims[2:], dims[1])
        self.make = make
        self.kernel = None if weight is None else make(weight.astype(self.dtype, copy=False))
        self.inputs = node.inputs[:1] if weight is not None else node.inputs[:2]
        self.shift = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] else None
        model = self.kernel or make(np.zeros(types[node.inputs[1]].dims, self.dtype))
        self.model = model
        self.seconds = dims[0] * model.flops * SECONDS_PER_FLOP
        if isinstance(model, DepthwiseConvolution):
            self.uses_blas = False
            self.seconds = dims[0] * model.flops / 2 * 1.5 * SECONDS_PER_PASS

    def partition(self, threads: int) -> list[Index]:
        middle = (slice(None),) * (len(self.memory) - 3)
        everything = (0, self.memory[-1])
        indices: list[Index] = []
        for n in range(self.memory[0]):
            for start, stop, left, right in self.model.partition(threads):
                rest = () if (left, right) == everything else (*middle, slice(left, right))
                indices.append((n, slice(start, stop), *rest))
        return indices

    def start(self, arrays: Sequence[Array], target: Array, whole: bool) -> Block:
        kernel = self.kernel or self.make(arrays[1].astype(self.dtype, copy=False))
        x = arrays[0].astype(self.dtype, copy=False)
        prepared = kernel.prepare(_last(x) if kernel.wants_channels_last else x)
        block, filters = kernel.block, self.memory[-1]

        def do(index: Index, part: Array) -> None:
            n, rows, *rest = index
            left, right = (rest[-1].start, rest[-1].stop) if rest else (0, filters)  # type: ignore[union-attr]
            block(prepared[n], (rows.start, rows.stop, left, right), part)  # type: ignore[union-attr]

        return do


WINOGRAD_LEAST_CHANNELS = 16
WINOGRAD_LEAST_TILES = 32
"""With fewer tiles an image, products have so few rows that reading the larger weights takes over."""
WINOGRAD_MOST_BYTES = 2**27
"""Transformed weights above this use the smaller tile: 1.8 instead of 4 times the original's size."""


def choose_convolution(
    geometry: ConvGeometry, dtype: np.dtype[Any], constant_weight: bool, is_strict: bool = False
) -> Callable[[Array], Convolution]:
    """The convolution kernel for a geometry: weight → prepared kernel. `is_strict`: no Winograd."""
    rank, inner = len(geometry.kernel), geometry.channels // geometry.group
    if geometry.is_depthwise and rank == 2 and geometry.filters == geometry.channels:
        return lambda weight: DepthwiseConvolution(weight, geometry)
    if (
        geometry.group == 1
        and geometry.taps == 1
        and not any(geometry.pads_begin)
        and not any(geometry.pads_end)
    ):
        return lambda weight: PointwiseConvolution(weight, geometry)
    run = inner * geometry.kernel[-1]
    if geometry.group == 1 and inner <= PlaneConvolution.MAX_CHANNELS and run < geometry.output[-1]:
        return lambda weight: PlaneConvolution(weight, geometry)
    may_transform = constant_weight and dtype == np.float32 and not is_strict
    tile = _winograd_tile(geometry) if may_transform else None
    if tile is not None:
        return lambda weight: WinogradConvolution(weight, geometry, tile)
    return lambda weight: ColumnConvolution(weight, geometry, geometry.group)


def _winograd_tile(geometry: ConvGeometry) -> int | None:
    fits = (
        geometry.kernel == (3, 3)
        and geometry.strides == (1, 1)
        and geometry.dilations == (1, 1)
        and geometry.group == 1
        and min(geometry.channels, geometry.filters) >= WINOGRAD_LEAST_CHANNELS
    )
    if not fits:
        return None
    large = 36 * 4 * geometry.channels * geometry.filters
    tiles = {tile: math.prod(-(-size // tile) for size in geometry.output) for tile in (4, 2)}
    if large <= WINOGRAD_MOST_BYTES and tiles[4] >= WINOGRAD_LEAST_TILES:
        return 4
    return 2 if tiles[2] >= WINOGRAD_LEAST_TILES else None


def _conv(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant], is_strict: bool = False
) -> Anchor:
    geometry = conv_geometry(node, types[node.inputs[0]].dims, types[node.inputs[1]].dims)
    constant = constants.get(node.inputs[1])
    dtype = _compute_dtype(types[node.outputs[0]])
    make = choose_convolution(geometry, dtype, constant is not None, is_strict)
    return ConvolutionAnchor(node, types, make, None if constant is None else constant.array)


# --- pooling ---------------------------------------------------------------------------------------------


class PoolingAnchor(Anchor):
    """MaxPool and AveragePool."""

    channels_last = True

    def __init__(self, node: Node, types: Mapping[str, TensorType]) -> None:
        super().__init__(node, types)
        geometry = pool_geometry(node, types[node.inputs[0]].dims)
        average = node.op == "AveragePool"
        counts = (
            window_counts(geometry, include_padding=bool(node.attributes["count_include_pad"]))
            if average
            else None
        )
        self.kernel = Pooling(geometry, average, counts, self.dtype)
        dims = types[node.outputs[0]].dims
        self.memory = (dims[0], *dims[2:], dims[1])
        self.seconds = types[node.outputs[0]].elements * geometry.taps * 1.5 * SECONDS_PER_PASS

    def partition(self, threads: int) -> list[Index]:
        rows, count = self.kernel.rows_per_block(threads, self.memory[-1]), self.memory[1]
        return [
            (n, slice(start, min(start + rows, count)))
            for n in range(self.memory[0])
            for start in range(0, count, rows)
        ]

    def start(self, arrays: Sequence[Array], target: Array, whole: bool) -> Block:
        x = _last(arrays[0].astype(self.dtype, copy=False))

        def do(index: Index, part: Array) -> None:
            n, rows = index
            self.kernel.block(x[n], rows.start, rows.stop, part)  # type: ignore[union-attr]

        return do


def _pool(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]) -> Anchor:
    return PoolingAnchor(node, types)


class GlobalAverageAnchor(Anchor):
    """GlobalAveragePool, of x in whatever memory order."""

    channels_last = True

    def __init__(self, node: Node, types: Mapping[str, TensorType]) -> None:
        super().__init__(node, types)
        dims = types[node.outputs[0]].dims
        self.memory = (dims[0], *dims[2:], dims[1])

    def partition(self, threads: int) -> None:
        return None

    def start(self, arrays: Sequence[Array], target: Array, whole: bool) -> None:
        x = arrays[0].astype(self.dtype, copy=False)
        places = math.prod(x.shape[2:])
        mean_over_places(_last(x).reshape(x.shape[0], places, x.shape[1]), target.reshape(x.shape[:2]))


def _global_average(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]) -> Anchor:
    return GlobalAverageAnchor(node, types)


# --- products --------------------------------------------------------------------------------------------


class RowsByMatrixAnchor(Anchor):
    """Rows of any number of leading axes times one matrix (MatMul with a 2-D right side, Gemm)."""

    uses_blas = True

    def __init__(
        self,
        node: Node,
        types: Mapping[str, TensorType],
        constant: Array | None,
        transpose: tuple[bool, bool] = (False, False),
    ) -> None:
        super().__init__(node, types)
        self.needs_rows = True
        self.transpose = transpose
        matrix = types[node.inputs[1]].dims
        self.inner = matrix[1] if transpose[1] else matrix[0]
        self.columns = self.memory[-1]
        self.rows = math.prod(self.memory[:-1])
        self.matrix = None
        if constant is not None:
            self.matrix = constant.astype(self.dtype, copy=False)
            self.matrix = self.matrix.T if transpose[1] else self.matrix
        self.inputs = node.inputs[:1] if constant is not None else node.inputs[:2]
        self.seconds = 2.0 * self.rows * self.inner * self.columns * SECONDS_PER_FLOP

    def partition(self, threads: int) -> list[Index] | None:
        if threads == 1:
            return None
        if self.rows < 2 * LEAST_ROWS:
            # Few rows: each thread takes some columns, so that the matrix is read and packed once.
            width = max(LEAST_FILTERS, -(-self.columns // (threads * 16)) * 16)
            starts = range(0, self.columns, width)
            return [(slice(None), slice(start, min(start + width, self.columns))) for start in starts]
        rows = -(-self.rows // threads)
        most = max(LEAST_ROWS, 2**21 // self.columns)
        rows = -(-self.rows // (threads * -(-rows // most)))
        return [(slice(start, min(start + rows, self.rows)),) for start in range(0, self.rows, rows)]

    def start(self, arrays: Sequence[Array], target: Array, whole: bool) -> Block | None:
        a = arrays[0].astype(self.dtype, copy=False)
        a = a.T if self.transpose[0] else a.reshape(self.rows, self.inner)
        matrix = self.matrix
        if matrix is None:
            matrix = arrays[1].astype(self.dtype, copy=False)
            matrix = matrix.T if self.transpose[1] else matrix
        if whole:
            product(a, matrix, target.reshape(self.rows, self.columns))
            return None

        def do(index: Index, part: Array) -> None:
            if len(index) == 1:
                product(a[index], matrix, part)
            else:
                product(a, matrix[:, index[1]], part)

        return do


class StackAnchor(Anchor):
    """A stack of products with both sides of their own, as in attention."""

    uses_blas = True

    def __init__(self, node: Node, types: Mapping[str, TensorType]) -> None:
        super().__init__(node, types)
        a, b = types[node.inputs[0]].dims, types[node.inputs[1]].dims
        self.inputs = node.inputs[:2]
        geometry = matmul_geometry(node, a, b)
        self.is_stack = len(a) > 1 and len(b) > 1 and len(geometry.batch) > 0
        self.rank = len(geometry.batch)
        self.seconds = (
            2.0 * math.prod(geometry.batch) * geometry.m * geometry.n * geometry.k * SECONDS_PER_FLOP
        )

    def partition(self, threads: int) -> list[Index] | None:
        if not self.is_stack or threads == 1:
            return None
        stack = self.memory[: self.rank]
        each = math.prod(self.memory[self.rank :])
        pieces = max(65536 // each, 1)
        return partition(stack, max(1, min(pieces, -(-math.prod(stack) // threads))))

    def start(self, arrays: Sequence[Array], target: Array, whole: bool) -> Block | None:
        a, b = (array.astype(self.dtype, copy=False) for array in arrays)
        if whole:
            product(a, b, target)
            return None
        shape = self.memory[: self.rank]
        a = np.broadcast_to(a, (*shape, *a.shape[-2:]))
        b = np.broadcast_to(b, (*shape, *b.shape[-2:]))

        def do(index: Index, part: Array) -> None:
            product(a[index], b[index], part)

        return do


def _matmul(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]) -> Anchor:
    a, b = types[node.inputs[0]].dims, types[node.inputs[1]].dims
    if len(b) == 2 and len(a) >= 2:
        constant = constants.get(node.inputs[1])
        return RowsByMatrixAnchor(node, types, None if constant is None else constant.array)
    return StackAnchor(node, types)


class GemmAnchor(RowsByMatrixAnchor):
    """Gemm with alpha and beta of 1; others are left to `evaluate`."""

    def __init__(self, node: Node, types: Mapping[str, TensorType], constant: Array | None) -> None:
        attributes = node.attributes
        super().__init__(node, types, constant, (bool(attributes["transA"]), bool(attributes["transB"])))
        self.shift = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] else None


def _gemm(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]) -> Anchor | None:
    has_shift = len(node.inputs) > 2 and bool(node.inputs[2])
    if node.attributes["alpha"] != 1 or (has_shift and node.attributes["beta"] != 1):
        return None
    constant = constants.get(node.inputs[1])
    return GemmAnchor(node, types, None if constant is None else constant.array)


# --- rows ------------------------------------------------------------------------------------------------


class RowsAnchor(Anchor):
    """A function of each row along the last axis."""

    def __init__(
        self,
        node: Node,
        types: Mapping[str, TensorType],
        function: Callable[[Array, Array], None],
        passes: float,
    ) -> None:
        super().__init__(node, types)
        self.needs_rows = True
        self.function = function
        self.rows = math.prod(self.memory[:-1])
        self.seconds = math.prod(self.memory) * passes * SECONDS_PER_PASS

    def partition(self, threads: int) -> list[Index]:
        rows = max(1, min(32768 // self.memory[-1], -(-self.rows // threads)))
        return [(slice(start, min(start + rows, self.rows)),) for start in range(0, self.rows, rows)]

    def start(self, arrays: Sequence[Array], target: Array, whole: bool) -> Block | None:
        x = arrays[0].astype(self.dtype, copy=False).reshape(self.rows, self.memory[-1])
        function = self.function
        if whole:
            function(x, target.reshape(x.shape))
            return None

        def do(index: Index, part: Array) -> None:
            function(x[index], part)

        return do


def _softmax(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]) -> Anchor | None:
    shape = types[node.outputs[0]].dims
    if not shape or softmax_geometry(node, shape)[1:] != (shape[-1], 1):
        return None
    return RowsAnchor(node, types, softmax_rows if node.op == "Softmax" else log_softmax_rows, 8)


def _normalisation(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]
) -> Anchor | None:
    rank = types[node.outputs[0]].rank
    geometry = row_geometry(node, types[node.inputs[0]].dims)
    if geometry.axis != rank - 1 or types[node.inputs[0]].dtype != types[node.outputs[0]].dtype:
        return None
    normalise = normalise_rows if node.op == "LayerNormalization" else normalise_rows_by_mean_square
    epsilon = float(node.attributes["epsilon"])
    anchor = RowsAnchor(node, types, lambda x, out: normalise(x, epsilon, out), 5)
    anchor.scale = node.inputs[1]
    anchor.shift = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] else None
    return anchor


_ANCHORS: dict[str, Callable[[Node, Mapping[str, TensorType], Mapping[str, Constant]], Anchor | None]] = {
    "AveragePool": _pool,
    "Conv": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "LayerNormalization": _normalisation,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "MaxPool": _pool,
    "RMSNormalization": _normalisation,
    "Softmax": _softmax,
}
