"""Operators that reorder or mask elements: DepthToSpace, SpaceToDepth, ReverseSequence, Trilu."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError
from vkml.ir.dtypes import INT32, INT64
from vkml.ir.gradients import Emitter, T, expanded, reshaped
from vkml.ir.graph import Constant, Node
from vkml.ir.lowering import BodyWriter, Lowering, V, given
from vkml.ir.operator import INT, REQUIRED, Array, Operator, operator
from vkml.ir.size import Size
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import (
    contiguous,
    optional,
    present,
    require_dtype,
    require_rank,
    required,
)
from vkml.ops.index_gradients import not_negative
from vkml.ops.limits import check_size


def _block_size(node: Node, x: Known) -> int:
    require_rank(node, x, 4, 4)
    block = int(node.attributes["blocksize"])
    if block < 1:
        raise InvalidGraph(f"{node.label}: blocksize is {block}; it must be positive")
    return block


@operator()
class DepthToSpace(Operator):
    """Moves blocks of channels into the plane: [N, C, H, W] → [N, C/b², H·b, W·b]."""

    attributes = {"blocksize": REQUIRED, "mode": "DCR"}
    attribute_types = {"blocksize": INT}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        block = _block_size(node, x)
        _check_mode(node)
        batch, channels, height, width = x.dims
        if channels % (block * block):
            raise ShapeError(
                f"{node.label}: {channels} channels do not divide by blocksize² = {block * block}"
            )
        return [check_size(node, x.dtype, (batch, channels // block**2, height * block, width * block))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, block = present(inputs, 0), int(node.attributes["blocksize"])
        batch, channels, height, width = x.shape
        depth = channels // block**2
        if node.attributes["mode"] == "DCR":
            blocks = x.reshape(batch, block, block, depth, height, width).transpose(0, 3, 4, 1, 5, 2)
        else:
            blocks = x.reshape(batch, depth, block, block, height, width).transpose(0, 1, 4, 2, 5, 3)
        return [contiguous(blocks).reshape(batch, depth, height * block, width * block)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, block = given(inputs, 0), int(node.attributes["blocksize"])
        batch, channels, height, width = x.shape
        depth = channels // block**2
        if node.attributes["mode"] == "DCR":
            split, order = (batch, block, block, depth, height, width), (0, 3, 4, 1, 5, 2)
        else:
            split, order = (batch, depth, block, block, height, width), (0, 1, 4, 2, 5, 3)
        return [build.reshape(build.reshape(x, split).transpose(order), build.result().dims)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        block, mode = node.attributes["blocksize"], node.attributes["mode"]
        return [build.apply("SpaceToDepth", present(cotangents, 0), blocksize=block, mode=mode)]


@operator()
class SpaceToDepth(Operator):
    """Moves blocks of the plane into channels: [N, C, H, W] → [N, C·b², H/b, W/b]."""

    attributes = {"blocksize": REQUIRED, "mode": "DCR"}
    attribute_types = {"blocksize": INT}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        block = _block_size(node, x)
        _check_mode(node)
        batch, channels, height, width = x.dims
        if height % block or width % block:
            raise ShapeError(
                f"{node.label}: a plane of {height}×{width} does not divide by blocksize {block}"
            )
        return [check_size(node, x.dtype, (batch, channels * block**2, height // block, width // block))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, block = present(inputs, 0), int(node.attributes["blocksize"])
        batch, channels, height, width = x.shape
        rows, columns = height // block, width // block
        blocks = x.reshape(batch, channels, rows, block, columns, block).transpose(_blocks_order(node))
        return [contiguous(blocks).reshape(batch, channels * block**2, rows, columns)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, block = given(inputs, 0), int(node.attributes["blocksize"])
        batch, channels, height, width = x.shape
        split = (batch, channels, height // block, block, width // block, block)
        return [build.reshape(build.reshape(x, split).transpose(_blocks_order(node)), build.result().dims)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        block, mode = node.attributes["blocksize"], node.attributes["mode"]
        return [build.apply("DepthToSpace", present(cotangents, 0), blocksize=block, mode=mode)]


def _blocks_order(node: Node) -> tuple[int, ...]:
    """SpaceToDepth's order of the axes batch, channel, row, row of a block, column, column of a block."""
    return (0, 3, 5, 1, 2, 4) if node.attributes["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)


def _check_mode(node: Node) -> None:
    if node.attributes["mode"] not in ("DCR", "CRD"):
        raise InvalidGraph(f"{node.label}: mode {node.attributes['mode']!r} is neither DCR nor CRD")


@operator()
class Trilu(Operator):
    """Keeps one triangle of the last two axes and zeroes the other."""

    inputs = (1, 2)
    attributes = {"upper": 1}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, k = required(node, inputs, 0), optional(inputs, 1)
        require_rank(node, x, 2)
        if k is not None and k.type.elements != 1:
            raise ShapeError(f"{node.label}: k must be a scalar, its shape is {list(k.dims)}")
        if k is not None:
            require_dtype(node, k, (INT64,), "k")
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, k = present(inputs, 0), optional(inputs, 1)
        rows, columns = x.shape[-2:]
        # Clamped: a hostile k near the ends of int64 would overflow the comparison.
        diagonal = 0 if k is None else max(min(int(k.reshape(())), columns), -rows)
        distance = np.arange(columns)[None, :] - np.arange(rows)[:, None]
        keep = distance >= diagonal if node.attributes["upper"] else distance <= diagonal
        return [np.where(keep, x, np.zeros((), dtype=x.dtype))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, k = given(inputs, 0), optional(inputs, 1)
        found = None if k is None else build.contents(k)
        if k is not None and found is None:
            return None
        rows, columns = x.shape[-2:]
        stated = 0 if found is None else int(found.reshape(()))
        diagonal = max(min(stated, columns), -rows)
        # An element stays where its column lies right (or left) of its row's place on the diagonal.
        edges = np.arange(rows, dtype=np.int32).reshape(-1, 1) + np.int32(diagonal)
        places = np.arange(columns, dtype=np.int32)
        comparison = "GreaterOrEqual" if node.attributes["upper"] else "LessOrEqual"

        def write(body: BodyWriter, x: str, place: str, edge: str) -> str:
            return str(body("Where", body(comparison, place, edge), x, body.constant(0, x)))

        tables = [
            build.constant(Constant(INT32, table.shape, table), name)
            for table, name in ((places, "columns"), (edges, "diagonal"))
        ]
        return [build.compute(write, [x, *tables], build.output(build.result()), label="trilu")]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, k = present(inputs, 0), optional(inputs, 1)
        dims = build.type_of(x).dims
        if any(isinstance(size, Size) for size in dims[-2:]):
            return None
        distance = np.arange(dims[-1])[None, :] - np.arange(dims[-2])[:, None]
        comparison = "GreaterOrEqual" if node.attributes["upper"] else "LessOrEqual"
        diagonal = build.constant(0, INT64) if k is None else reshaped(build, k, ())
        keep = build.apply(comparison, build.constant(distance, INT64), diagonal)
        return [build.apply("Where", keep, x, build.constant(0, build.type_of(x).dtype))]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [build.apply("Trilu", present(cotangents, 0), *inputs[1:], upper=node.attributes["upper"])]


@operator()
class ReverseSequence(Operator):
    """Reverses the first elements of each sequence in a batch, as many as its length says."""

    inputs = (2, 2)
    attributes = {"batch_axis": 1, "time_axis": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, lengths = required(node, inputs, 0), required(node, inputs, 1)
        require_rank(node, x, 2)
        require_dtype(node, lengths, (INT64,), "sequence_lens")
        batch, time = node.attributes["batch_axis"], node.attributes["time_axis"]
        if {batch, time} != {0, 1}:
            raise InvalidGraph(
                f"{node.label}: batch_axis {batch} and time_axis {time} must be 0 and 1 in some order"
            )
        if lengths.dims != (x.dims[batch],):
            raise ShapeError(
                f"{node.label}: sequence_lens has shape {list(lengths.dims)}, not [{x.dims[batch]}]"
            )
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, lengths = present(inputs, 0), present(inputs, 1)
        if not x.size:
            return [x.copy()]  # nothing is moved, as in a session: no length is looked at
        batch_first = node.attributes["batch_axis"] == 0
        steps = x.shape[1 if batch_first else 0]
        wrong = np.flatnonzero((lengths < 0) | (lengths > steps))
        if wrong.size:
            raise IndexOutOfRange(
                f"{node.label}: sequence length {int(lengths[wrong[0]])} of sequence {int(wrong[0])} "
                f"is outside 0 … {steps}"
            )
        time = np.arange(steps)[None, :]
        source = np.where(time < lengths[:, None], lengths[:, None] - 1 - time, time)
        rows = np.arange(lengths.size)[:, None]
        if batch_first:
            return [x[rows, source]]
        return [x[source.T, rows.T]]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, lengths = present(inputs, 0), present(inputs, 1)
        type_ = build.type_of(x)
        if type_.is_open:
            return None
        if not type_.elements:
            return [build.apply("Identity", x)]
        time, batch = node.attributes["time_axis"], node.attributes["batch_axis"]
        steps, ones = type_.dims[time], [1] * (type_.rank - 2)
        along, count = [1, 1, *ones], [1, 1, *ones]
        along[time], count[batch] = steps, type_.dims[batch]
        place = build.constant(np.arange(steps).reshape(along), INT64)
        length = reshaped(build, not_negative(build, lengths, steps + 1), count)
        last = build.apply("Sub", build.apply("Sub", length, build.constant(1, INT64)), place)
        # What is longer than there are steps begins outside, which is reported.
        source = build.apply("Where", build.apply("Less", place, length), last, place)
        return [build.apply("GatherElements", x, expanded(build, source, type_.dims), axis=time)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        batch, time = node.attributes["batch_axis"], node.attributes["time_axis"]
        lengths = present(inputs, 1)
        return [
            build.apply("ReverseSequence", present(cotangents, 0), lengths, batch_axis=batch, time_axis=time)
        ]
