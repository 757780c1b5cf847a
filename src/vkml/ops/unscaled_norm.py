"""Normalisations without scale and shift: LRN, LpNormalization, MeanVarianceNormalization."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import FLOATS, DType
from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Node
from vkml.ir.lowering import BodyWriter, Lowering, V, given
from vkml.ir.operator import INT, REQUIRED, Array, Operator, operator
from vkml.ir.scalar import arithmetic_type
from vkml.ir.types import Known, TensorType, static
from vkml.ir.windows import Windows
from vkml.ops.checks import normalise_axes, normalise_axis, present, require_dtype, require_rank, required
from vkml.ops.moments import mean_along
from vkml.ops.norm_gradients import local_response_gradient, lp_gradient, mean_variance_gradient
from vkml.ops.pointwise import widened


def _wide(dtype: DType) -> DType:
    """The type in which intermediate results are kept, so that float16 rounds once."""
    return arithmetic_type(dtype)


@operator()
class LRN(Operator):
    """Divides each element by a power of the sum of squares over neighbouring channels."""

    attributes = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0, "size": REQUIRED}
    attribute_types = {"size": INT}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 2)
        if node.attributes["size"] < 1:
            raise InvalidGraph(f"{node.label}: size is {node.attributes['size']}; it must be positive")
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        size, channels = int(node.attributes["size"]), x.shape[1]
        wide = widened(x)
        squares = np.square(wide)
        # Neighbours c - floor((size-1)/2) … c + ceil((size-1)/2), cut at the first and last channel.
        total = np.zeros_like(wide)
        for shift in range(max(-((size - 1) // 2), 1 - channels), min(size // 2, channels - 1) + 1):
            target = slice(max(-shift, 0), channels - max(shift, 0))
            total[:, target] += squares[:, max(shift, 0) : channels + min(shift, 0)]
        base = node.attributes["bias"] + node.attributes["alpha"] / size * total
        return [(wide / base ** node.attributes["beta"]).astype(x.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, size = given(inputs, 0), int(node.attributes["size"])
        wide = _wide(x.dtype)
        # The channels as the first spatial axis of a pool.
        volume = build.reshape(x, (x.shape[0], 1, x.shape[1], math.prod(x.shape[2:]), 1))
        with build.step(static(wide, volume.shape)):
            spatial, ones = volume.shape[2:], (1, 1, 1)
            before, after = ((size - 1) // 2, 0, 0), (size // 2, 0, 0)
            windows = Windows(spatial, (size, 1, 1), ones, ones, before, after, spatial)
            [total] = build.pool(volume, "squares", windows)

        def write(body: BodyWriter, x: str, total: str) -> str:
            share = body.constant(node.attributes["alpha"] / size, total)
            base = body("Add", body("Mul", total, share), body.constant(node.attributes["bias"], total))
            return str(body("Div", x, body("Pow", base, body.constant(node.attributes["beta"], base))))

        return [
            build.compute(
                write, [x, build.reshape(total, x.shape)], build.output(build.result()), label="lrn"
            )
        ]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        size, *numbers = (node.attributes[key] for key in ("size", "alpha", "beta", "bias"))
        return [
            local_response_gradient(build, present(inputs, 0), present(cotangents, 0), int(size), *numbers)
        ]


@operator()
class LpNormalization(Operator):
    """Divides by the 1- or 2-norm along an axis; rows of zeros stay zero."""

    attributes = {"axis": -1, "p": 2}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        normalise_axis(node, node.attributes["axis"], x.rank)
        if node.attributes["p"] not in (1, 2):
            raise InvalidGraph(f"{node.label}: p is {node.attributes['p']}; it must be 1 or 2")
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, axis = present(inputs, 0), node.attributes["axis"]
        wide = widened(x)
        if node.attributes["p"] == 1:
            norm = np.abs(wide).sum(axis=axis, keepdims=True)
        else:
            norm = np.sqrt(np.square(wide).sum(axis=axis, keepdims=True))
        result = np.divide(wide, norm, out=np.zeros_like(wide), where=norm != 0)
        return [result.astype(x.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        axis = normalise_axis(node, node.attributes["axis"], len(x.shape))
        kept = tuple(1 if a == axis else size for a, size in enumerate(x.shape))
        with build.step(static(_wide(x.dtype), kept)):
            [norm] = build.norm(x, (axis,), float(node.attributes["p"]))

        def write(body: BodyWriter, x: str, norm: str) -> str:
            zero = body.constant(0, norm)
            return str(body("Where", body("Equal", norm, zero), zero, body("Div", x, norm)))

        return [build.compute(write, [x, norm], build.output(build.result()), label="lp_normalization")]

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
        axis = normalise_axis(node, node.attributes["axis"], build.type_of(x).rank)
        return [lp_gradient(build, x, present(cotangents, 0), axis, node.attributes["p"])]


@operator()
class MeanVarianceNormalization(Operator):
    """Normalises over axes to mean 0 and variance 1."""

    attributes = {"axes": (0, 2, 3)}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        normalise_axes(node, node.attributes["axes"], x.rank)
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        axes = normalise_axes(node, node.attributes["axes"], x.ndim)
        wide = widened(x)
        with np.errstate(all="ignore"):
            centred = wide - mean_along(wide, axes)
            deviation = np.sqrt(mean_along(np.square(centred), axes))
            # The function body in the specification adds this to the deviation.
            result = centred / (deviation + wide.dtype.type(1e-9))
        return [result.astype(x.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        axes = normalise_axes(node, node.attributes["axes"], len(x.shape))
        order = [a for a in range(len(x.shape)) if a not in axes] + sorted(axes)
        return build.standardise_along(x, order, len(axes))

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
        axes = normalise_axes(node, node.attributes["axes"], build.type_of(x).rank)
        return [mean_variance_gradient(build, x, present(cotangents, 0), axes, 1e-9)]
