"""Normalisation along an axis: Softmax, LogSoftmax, Hardmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.errors import NotDifferentiable
from vkml.ir import scalar
from vkml.ir.dtypes import FLOAT32, FLOATS, INT32, INT64
from vkml.ir.gradients import Emitter, T, pointwise, summed, widened
from vkml.ir.graph import Constant, Node
from vkml.ir.lowering import Lowering, V, given
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.scalar import Scalar, arithmetic_type
from vkml.ir.types import Known, TensorType
from vkml.ops import pointwise as elements
from vkml.ops.broadcasting import require_types
from vkml.ops.checks import normalise_axis, present, required
from vkml.ops.upgrading import renew


def softmax_geometry(node: Node, shape: Sequence[int]) -> tuple[int, int, int]:
    """The input as [outer, length, inner]: softmax runs along the middle one.

    Before opset 13 all axes from `axis` on counted as one (internal attribute `is_flattened`).
    """
    rank = len(shape)
    if node.attributes["is_flattened"]:
        axis = normalise_axis(node, node.attributes["axis"], rank, extra=1)
        return math.prod(shape[:axis]), math.prod(shape[axis:]), 1
    axis = normalise_axis(node, node.attributes["axis"], max(rank, 1))
    return math.prod(shape[:axis]), shape[axis] if rank else 1, math.prod(shape[axis + 1 :])


@operator("Softmax", "LogSoftmax", "Hardmax")
class Softmax(Operator):
    """e^x over the sum of e^x along an axis; its logarithm; or 1 at the first maximum and 0 elsewhere."""

    attributes = {"axis": -1, "is_flattened": 0}
    internal_attributes = frozenset({"is_flattened"})

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.is_anchor = name != "Hardmax"

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 13:
            return node
        axis = int(node.attributes.get("axis", 1))
        # The last axis alone is the same in both meanings; the new one has faster kernels everywhere.
        return renew(node, attributes={"axis": axis, "is_flattened": int(axis != -1)})

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        data = required(node, inputs, 0)
        require_types(node, [data], FLOATS)
        softmax_geometry(node, data.dims)
        return [data.type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        data = present(inputs, 0)
        outer, length, inner = softmax_geometry(node, data.shape)
        if data.size == 0:
            return [data.copy()]
        shape = (outer, length) if inner == 1 else (outer, length, inner)
        compute = {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}[self.name]
        with np.errstate(all="ignore"):
            return [
                compute(elements.widened(data).reshape(shape))
                .reshape(data.shape)
                .astype(data.dtype, copy=False)
            ]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        rank, is_flattened = len(x.shape), node.attributes["is_flattened"]
        axis = normalise_axis(node, node.attributes["axis"], rank, extra=int(is_flattened)) if rank else 0
        lanes = softmax_geometry(node, x.shape)
        if self.name == "Hardmax":
            return [_lower_hardmax(build, x, lanes, range(axis, rank if is_flattened else axis + 1))]
        if lanes[-1] == 1:
            return build.softmax(x, rank - axis, is_logarithm=self.name == "LogSoftmax")
        order = [a for a in range(rank) if a != axis] + [axis]
        return build.softmax_along(x, order, is_logarithm=self.name == "LogSoftmax")

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x = present(inputs, 0)
        type_ = build.type_of(x)
        axes = _axes(node, type_.rank)
        if self.name == "Hardmax" or type_.elements == 0 or not axes:
            return None
        if type_.dtype.bits < FLOAT32.bits:
            return None  # a device that stores these has a kernel, and another converts none
        stated = build.constant(list(axes), INT64)
        below = build.apply("Sub", x, build.apply("ReduceMax", x, stated, keepdims=1))
        powers = build.apply("Exp", below)
        total = summed(build, powers, axes, keep=True)
        if self.name == "Softmax":
            made = build.apply("Div", powers, total)
        else:
            made = build.apply("Sub", below, build.apply("Log", total))
        return [made]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        if self.name == "Hardmax":
            raise NotDifferentiable("Hardmax has no gradient by any of its inputs")
        made, cotangent = outputs[0], widened(build, present(cotangents, 0))
        type_, wide = build.type_of(made), build.type_of(cotangent).dtype
        axes = _axes(node, type_.rank)
        if self.name == "Softmax":
            weighed = pointwise(build, lambda y, x: y * x, made, cotangent, dtype=wide)
            total = summed(build, weighed, axes, keep=True)

            def form(y: Scalar, incoming: Scalar, total: Scalar) -> Scalar:
                return y * (incoming - total)
        else:
            total = summed(build, cotangent, axes, keep=True)

            def form(y: Scalar, incoming: Scalar, total: Scalar) -> Scalar:
                return incoming - scalar.unary("exp", y) * total

        return [pointwise(build, form, made, cotangent, total)]


def _axes(node: Node, rank: int) -> range:
    """The axes along which elements share a sum."""
    is_flattened = node.attributes["is_flattened"]
    axis = normalise_axis(node, node.attributes["axis"], max(rank, 1), extra=int(is_flattened))
    return range(axis, rank if is_flattened else min(axis + 1, rank))


def softmax(x: Array) -> Array:
    """Softmax along axis 1."""
    value = x - x.max(axis=1, keepdims=True)
    np.exp(value, out=value)
    value /= value.sum(axis=1, keepdims=True)
    return np.asarray(value)


def log_softmax(x: Array) -> Array:
    """The logarithm of `softmax`, without its underflow."""
    value = x - x.max(axis=1, keepdims=True)
    value -= np.log(np.exp(value).sum(axis=1, keepdims=True))
    return np.asarray(value)


def hardmax(x: Array) -> Array:
    """1 at the first maximum along axis 1, 0 elsewhere."""
    value = np.zeros_like(x)
    np.put_along_axis(value, np.expand_dims(x.argmax(axis=1), 1), 1, axis=1)
    return value


def _lower_hardmax(build: Lowering[V], x: V, lanes: tuple[int, int, int], axes: Sequence[int]) -> V:
    """The place of the first maximum, compared with every place along the axes, which count as one."""
    outer, length, inner = lanes
    with build.step(TensorType(INT32, (outer, 1, inner))):
        [best] = build.arg_reduce(build.reshape(x, lanes), 1, is_max=True, takes_last=False)
    places = np.arange(length, dtype=np.int32).reshape(-1, 1)
    every = build.constant(Constant(INT32, places.shape, places), "places")
    # The result may lie inside a Concat's, where strides do not let it be seen as lanes.
    best = build.reshape(best, tuple(1 if axis in axes else size for axis, size in enumerate(x.shape)))
    every = build.reshape(every, tuple(size if axis in axes else 1 for axis, size in enumerate(x.shape)))
    wide = arithmetic_type(x.dtype)
    return build.compute(
        lambda body, best, place: body.cast(body("Equal", best, place), wide),
        [best, every],
        build.output(build.result()),
        label="hardmax",
    )
