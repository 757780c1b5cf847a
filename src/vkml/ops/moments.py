"""Moments: the mean and the variance that a normalisation and its gradient have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vkml.ir.dtypes import FLOATS
from vkml.ir.gradients import Emitter, T, converted, expanded, pointwise, reciprocal
from vkml.ir.graph import Constant, Node
from vkml.ir.lowering import Lowering, V, given
from vkml.ir.operator import INTS, REQUIRED, Array, Operator, operator
from vkml.ir.scalar import Scalar, arithmetic_type
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import normalise_axes, optional, present, require_dtype, required
from vkml.ops.norm_gradients import total_of
from vkml.ops.pointwise import widened


def mean_along(x: Array, axes: tuple[int, ...]) -> Array:
    """The mean over `axes`, which stay; of no elements it is NaN, of which numpy.mean warns."""
    count = math.prod(x.shape[axis] for axis in axes)
    return np.asarray(np.add.reduce(x, axis=axes, keepdims=True) / x.dtype.type(count))


@operator("Moments")
class Moments(Operator):
    """Mean and variance over the attribute ``axes``, which stay with a size of 1; vkml makes it, no file.

    The variance is the mean square of what elements differ from the mean. Both have the type in which
    elements are computed.
    """

    domain = "vkml"
    inputs = (1, 1)
    outputs = (2, 2)
    attributes = {"axes": REQUIRED}
    attribute_types = {"axes": INTS}
    reduction = "Moments"

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        axes = normalise_axes(node, node.attributes["axes"], x.rank)
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(x.dims))
        return [TensorType(arithmetic_type(x.dtype), kept)] * 2

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, axes = widened(present(inputs, 0)), tuple(node.attributes["axes"])
        with np.errstate(all="ignore"):
            mean = mean_along(x, axes)
            return [mean, mean_along(np.square(x - mean), axes)]

    def reduced_axes(
        self, node: Node, rank: int, constants: Mapping[str, Constant]
    ) -> tuple[int, ...] | None:
        return tuple(sorted(axis % rank for axis in node.attributes["axes"])) or None

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        axes = self.reduced_axes(node, len(x.shape), {})
        return None if axes is None or 0 in x.shape else build.moments(x, axes)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x = present(inputs, 0)
        type_ = build.type_of(x)
        count = max(1, math.prod(type_.dims[axis] for axis in node.attributes["axes"]))
        incoming, share = (optional(cotangents, at) for at in range(2))
        parts: list[T | None] = [None, None]
        part = reciprocal(build, count, type_.dtype)
        if incoming is not None:
            each = pointwise(build, lambda incoming, part: incoming * part, incoming, part)
            parts[0] = expanded(build, each, type_.dims)
        if share is not None:

            def form(share: Scalar, x: Scalar, mean: Scalar, part: Scalar) -> Scalar:
                return share * (x - mean) * (part * 2)

            parts[1] = pointwise(build, form, share, x, outputs[0], part)
        return [converted(build, total_of(build, parts), type_.dtype)]
