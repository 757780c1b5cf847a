"""Operators that choose or mark elements by value: OneHot, NonZero, TopK, Compress, Unique."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.errors import ShapeError
from vkml.ir.dtypes import BOOL, FLOAT16, INT32, INT64, NUMBERS
from vkml.ir.gradients import Emitter, T, padded, reshaped, sliced, summed, zeros
from vkml.ir.graph import Constant, Node
from vkml.ir.lowering import BodyWriter, Lowering, V, all_given, known
from vkml.ir.operator import INT, Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import (
    contiguous,
    integers,
    list_value,
    normalise_axis,
    present,
    require_dtype,
    require_rank,
    required,
)
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.top_places import top_places
from vkml.ops.upgrading import attributes_to_inputs, renew


@operator()
class OneHot(Operator):
    """Indices as vectors that are on at the index and off elsewhere; one out of range is off all along."""

    inputs = (3, 3)
    attributes = {"axis": -1}
    value_inputs = (1,)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        indices, depth, values = (required(node, inputs, index) for index in range(3))
        require_dtype(node, indices, NUMBERS, "indices")
        require_dtype(node, depth, NUMBERS, "depth")
        if depth.type.elements != 1 or values.dims != (2,):
            raise ShapeError(
                f"{node.label}: depth must be one number and values two, their shapes are {list(depth.dims)} "
                f"and {list(values.dims)}"
            )
        axis = normalise_axis(node, node.attributes["axis"], indices.rank + 1)
        before, after = indices.dims[:axis], indices.dims[axis:]
        if depth.value is None:
            return [TensorType(values.dtype, (*before, None, *after))]
        size = int(depth.value.reshape(()))
        if size < 1:
            raise ShapeError(f"{node.label}: depth is {size}; it must be positive")
        return [check_size(node, values.dtype, (*before, size, *after))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        indices, depth, values = (present(inputs, index) for index in range(3))
        size = int(depth.reshape(()))
        axis = normalise_axis(node, node.attributes["axis"], indices.ndim + 1)
        with np.errstate(invalid="ignore"):
            found = np.expand_dims(indices.astype(np.int64), axis)
            if indices.dtype.kind not in "iu":
                found[np.isnan(np.expand_dims(indices, axis))] = size  # no class
        classes = np.arange(size).reshape(-1, *(1,) * (indices.ndim - axis))
        hot = np.where(found < 0, found + size, found) == classes
        return [np.where(hot, values[1], values[0]).astype(values.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        indices, depth, values = all_given(inputs)
        rank = len(indices.shape) + 1
        axis = normalise_axis(node, node.attributes["axis"], rank)
        size = int(known(build, depth).reshape(()))
        found = build.reshape(indices, (*indices.shape[:axis], 1, *indices.shape[axis:]))
        # Beyond 32 bits no index is one of a class, nor is infinity: it must not wrap onto one.
        places = np.arange(size, dtype=np.int32).reshape(-1, *(1,) * (rank - axis - 1))
        classes = build.constant(Constant(INT32, places.shape, places), "classes")
        off, on = (build.reshape(values.slice([i], [1], [1]), ()) for i in (0, 1))

        def write(body: BodyWriter, index: str, place: str, off: str, on: str) -> str:
            there = ""
            if indices.dtype.is_float:  # NaN is less than nothing
                bound = 2.0**30 if indices.dtype != FLOAT16 else math.inf
                there = body("Less", body("Abs", index), body.constant(bound, index))
            elif indices.dtype.bits > 16:
                low = body.constant(-(2**30) if indices.dtype.kind != "u" else 0, index)
                index = body("Min", body("Max", index, low), body.constant(2**30, index))
            whole = body.cast(index, INT32)
            if there:
                whole = body("Where", there, whole, body.constant(size, whole))
            zero = body.constant(0, whole)
            wrapped = body(
                "Where", body("Less", whole, zero), body("Add", whole, body.constant(size, whole)), whole
            )
            return str(body("Where", body("Equal", wrapped, place), on, off))

        output = build.output(build.result())
        return [build.compute(write, [found, classes, off, on], output, label="one_hot")]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        indices, depth, values = (present(inputs, at) for at in range(3))
        cotangent, type_ = present(cotangents, 0), build.type_of(values)
        both = build.constant([False, True], BOOL)
        hot = build.apply("OneHot", indices, depth, both, axis=node.attributes["axis"])
        zero = build.constant(0, type_.dtype)
        parts = [build.apply("Where", hot, zero, cotangent), build.apply("Where", hot, cotangent, zero)]
        axes = range(len(build.type_of(cotangent).dims))
        totals = [reshaped(build, summed(build, part, axes), [1]) for part in parts]
        return [None, None, build.apply("Concat", *totals, axis=0)]


@operator()
class NonZero(Operator):
    """Coordinates of the elements that are not zero, one column each, in row-major order."""

    sizing_inputs = (0,)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        count = None if x.value is None else int(np.count_nonzero(x.value))
        return [TensorType(INT64, (x.rank, count))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        if x.ndim == 0:
            return [np.zeros((0, int(np.count_nonzero(x))), dtype=np.int64)]
        return [np.array(np.nonzero(x), dtype=np.int64)]


@operator()
class TopK(Operator):
    """The k greatest or least elements along an axis and their places; of equals, the first wins."""

    inputs = (2, 2)
    outputs = (1, 2)
    written_outputs = 2
    attributes = {"axis": -1, "largest": 1, "sorted": 1}
    value_inputs = (1,)
    attribute_types = {"k": INT}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 10:
            return node
        k = node.attributes.get("k")
        return attributes_to_inputs(
            renew(node, attributes={} if k is None else {"k": (k,)}), [("k", 1, INT64)]
        )

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, k = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, NUMBERS, "the input")
        require_rank(node, x, 1)
        axis = normalise_axis(node, node.attributes["axis"], x.rank)
        if k.type.elements != 1:
            raise ShapeError(f"{node.label}: k must be one integer, its shape is {list(k.dims)}")
        value = list_value(node, k, "k")
        if value is not None and not 0 <= value[0] <= x.dims[axis]:
            raise ShapeError(f"{node.label}: k is {value[0]}, axis {axis} has {x.dims[axis]} elements")
        shape = (*x.dims[:axis], None if value is None else value[0], *x.dims[axis + 1 :])
        return [TensorType(x.dtype, shape), TensorType(INT64, shape)][: len(node.outputs)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, k = present(inputs, 0), integers(present(inputs, 1))[0]
        axis = normalise_axis(node, node.attributes["axis"], x.ndim)
        size = x.shape[axis]
        if not 0 <= k <= size:
            raise ShapeError(f"{node.label}: k is {k}, axis {axis} has {size} elements")
        rows = np.moveaxis(widened(x), axis, -1)
        places = np.moveaxis(top_places(rows, k, bool(node.attributes["largest"])), -1, axis)
        places = contiguous(places.astype(np.int64, copy=False))
        return [np.take_along_axis(x, places, axis=axis), places][: len(node.outputs)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, counts = all_given(inputs)
        axis = normalise_axis(node, node.attributes["axis"], len(x.shape))
        k = integers(known(build, counts))[0]
        shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
        values, places = (
            build.output(TensorType(dtype, shape), at)
            if at < len(node.outputs) and node.outputs[at]
            else None
            for at, dtype in enumerate((x.dtype, INT64))
        )
        largest = bool(node.attributes["largest"])
        build.top_k(x, axis, k, is_largest=largest, values=values, places=places)
        return [values, places][: len(node.outputs)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        [cotangent, *_] = cotangents
        if cotangent is None:
            return [None]
        x, k, axis = present(inputs, 0), present(inputs, 1), node.attributes["axis"]
        if len(outputs) > 1:
            places = outputs[1]
        else:
            attributes = {key: node.attributes[key] for key in ("axis", "largest", "sorted")}
            places = build.apply_all("TopK", [x, k], 2, **attributes)[1]
        nothing = zeros(build, build.type_of(x))
        return [build.apply("ScatterElements", nothing, places, cotangent, axis=axis)]


@operator()
class Compress(Operator):
    """Slices along an axis (of the flattened tensor without one) where a condition holds."""

    inputs = (2, 2)
    attributes = {"axis": None}
    sizing_inputs = (1,)
    attribute_types = {"axis": INT}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, condition = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, condition, (BOOL,), "the condition")
        require_rank(node, condition, 1, 1, "the condition")
        stated = node.attributes["axis"]
        axis = None if stated is None else normalise_axis(node, stated, x.rank)
        length = x.type.elements if axis is None else x.dims[axis]
        count = None
        if condition.value is not None:
            # A condition longer than the axis is cut off, as ONNX Runtime does.
            count = int(np.count_nonzero(condition.value[:length]))
        shape = (count,) if axis is None else (*x.dims[:axis], count, *x.dims[axis + 1 :])
        return [TensorType(x.dtype, shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, condition = present(inputs, 0), present(inputs, 1)
        axis = node.attributes["axis"]
        length = x.size if axis is None else x.shape[axis]
        return [np.compress(condition[:length], x, axis=axis)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, condition = present(inputs, 0), present(inputs, 1)
        type_, stated = build.type_of(x), node.attributes["axis"]
        dims = (type_.elements,) if stated is None else type_.dims
        axis = 0 if stated is None else normalise_axis(node, stated, len(dims))
        count = build.type_of(outputs[0]).dims[axis]
        if 0 in (count, type_.elements):
            return [zeros(build, type_)]
        given = build.type_of(condition).dims[0]
        kept = sliced(build, condition, 0, 0, min(given, dims[axis]))
        kept = padded(build, kept, [0], [max(dims[axis] - given, 0)])
        # What lies in front of an element among those that are kept is its place in the output.
        places = build.apply(
            "CumSum", build.apply("Cast", kept, to=INT32.code), build.constant(0, INT64), exclusive=1
        )
        places = build.apply("Min", places, build.constant(count - 1, INT32))
        spread = build.apply("Gather", present(cotangents, 0), places, axis=axis)
        mask = reshaped(build, kept, [dims[axis], *(1,) * (len(dims) - axis - 1)])
        found = build.apply("Where", mask, spread, build.constant(0, type_.dtype))
        return [reshaped(build, found, type_.dims)]


@operator()
class Unique(Operator):
    """The distinct elements (or slices along an axis), with first places, inverse places and counts."""

    outputs = (1, 4)
    attributes = {"axis": None, "sorted": 1}
    sizing_inputs = (0,)
    attribute_types = {"axis": INT}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        stated = node.attributes["axis"]
        axis = None if stated is None else normalise_axis(node, stated, x.rank)
        length = x.type.elements if axis is None else x.dims[axis]
        if x.value is not None:
            made = self.evaluate(node, [x.value])
            return [static(x.dtype if place == 0 else INT64, array.shape) for place, array in enumerate(made)]
        shape = (None,) if axis is None else (*x.dims[:axis], None, *x.dims[axis + 1 :])
        places = TensorType(INT64, (None,))
        return [TensorType(x.dtype, shape), places, static(INT64, (length,)), places][: len(node.outputs)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, axis = present(inputs, 0), node.attributes["axis"]
        # NumPy compares slices of numbers and of texts of one length, not of objects.
        comparable = x.astype(np.str_) if x.dtype == object and axis is not None else widened(x)
        values, first, inverse, counts = np.unique(
            comparable, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
        values, inverse = values.astype(x.dtype, copy=False), inverse.reshape(-1)
        if not node.attributes["sorted"]:
            # NumPy sorts; the order of first appearance is the order of first places.
            order = np.argsort(first, kind="stable")
            rank = np.empty_like(order)
            rank[order] = np.arange(order.size)
            values, first = values.take(order, axis=axis or 0), first[order]
            inverse, counts = rank[inverse], counts[order]
        made = [values, *(part.astype(np.int64, copy=False) for part in (first, inverse, counts))]
        return made[: len(node.outputs)]
