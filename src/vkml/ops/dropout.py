"""Dropout: the identity in inference, random zeros in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vkml.errors import NotDifferentiable, ShapeError
from vkml.ir import scalar
from vkml.ir.dtypes import BOOL, FLOAT8S, FLOAT32, FLOATS, DType
from vkml.ir.gradients import Emitter, T, arguments, converted, expression, reshaped
from vkml.ir.graph import Node
from vkml.ir.operator import FLOAT, INT, INTS, OPTIONAL, Array, Operator, operator
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType, static
from vkml.ops.broadcasting import require_types
from vkml.ops.checks import optional, present, require_dtype, required
from vkml.ops.random import random_uniform
from vkml.ops.random_numbers import wide_type
from vkml.ops.stepwise import evaluate_steps
from vkml.ops.upgrading import NEWEST, fresh_name, renew

_DRAWN = frozenset(dtype.storage.type for dtype in FLOATS)


@operator()
class Dropout(Operator):
    """Drops elements with probability `ratio` (second input) where `training_mode` (third input) is true.

    Models of opsets below 12 run as in inference, also where opset 1 or 6 left `is_test` at its default of 0.
    """

    inputs = (1, 3)
    outputs = (1, 2)
    attributes = {"seed": OPTIONAL}
    is_deterministic = False
    attribute_types = {"consumed_inputs": INTS, "is_test": INT, "ratio": FLOAT, "seed": INT}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        newest = renew(node, drop=("is_test", "consumed_inputs", "ratio")) if node.version < 12 else node
        has_mask = any(node.outputs[1:])
        if len(node.inputs) < 3 and not has_mask:
            return renew(
                newest, op="Identity", inputs=node.inputs[:1], outputs=node.outputs[:1], drop=("seed",)
            )
        if not has_mask or node.version >= 10:
            return newest
        # The mask had the type of the data.
        mask = fresh_name(node, "mask")
        return [
            renew(newest, outputs=(node.outputs[0], mask)),
            Node("CastLike", (mask, node.inputs[0]), node.outputs[1:2], version=NEWEST),
        ]

    def is_identity(self, node: Node) -> bool:
        return not any(node.outputs[1:]) and len(node.inputs) < 3

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        data = required(node, inputs, 0)
        require_types(node, [data], (*FLOATS, *FLOAT8S))
        checks: tuple[tuple[int, tuple[DType, ...], str], ...] = (
            (1, (*FLOATS, *FLOAT8S), "the ratio"),
            (2, (BOOL,), "training_mode"),
        )
        for index, allowed, what in checks:
            found = optional(inputs, index)
            if found is None:
                continue
            require_dtype(node, found, allowed, what)
            if found.type.elements != 1:
                raise ShapeError(f"{node.label}: {what} must be a scalar, its shape is {list(found.dims)}")
        return [data.type, static(BOOL, data.dims)][: max(len(node.outputs), 1)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        data = present(inputs, 0)
        ratio, training = optional(inputs, 1), optional(inputs, 2)
        rate = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
        if training is None or not training.reshape(-1)[0] or rate == 0:
            return [data, np.ones(data.shape, np.bool_)]
        seed = node.attributes["seed"]
        if seed is None and data.dtype.type in _DRAWN:
            return evaluate_steps(replace(node, outputs=("y", "mask")), inputs)
        # The generator that ONNX's own reference uses, so that a seed means the same draws.
        generator = np.random.RandomState(None if seed is None else abs(int(seed)) % 2**32)
        mask = np.asarray(generator.uniform(0, 1, data.shape) >= rate)
        with np.errstate(all="ignore"):
            kept = data.astype(np.float64) * mask / (1 - rate) if rate < 1 else np.zeros(data.shape)
            return [np.asarray(kept).astype(data.dtype), mask]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, ratio, training = present(inputs, 0), optional(inputs, 1), optional(inputs, 2)
        type_ = build.type_of(x)
        if type_.is_open or type_.dtype not in FLOATS:
            return None
        rate = None if ratio is None else build.elements_of(ratio)
        whole = [build.apply("Identity", x), build.constant(np.ones(type_.dims), BOOL)][: len(node.outputs)]
        if training is None or (ratio is not None and rate is not None and not rate.reshape(-1)[0]):
            return whole
        if node.attributes["seed"] is not None:
            return None  # the draws of ONNX's reference, which `evaluate` makes
        wide, drawn = wide_type(type_.dtype), random_uniform(build, node, type_.dims, type_.dtype)
        rated = (
            build.constant(0.5, wide) if ratio is None else converted(build, reshaped(build, ratio, ()), wide)
        )
        is_on = reshaped(build, training, ())
        mask = build.apply("Or", build.apply("GreaterOrEqual", drawn, rated), build.apply("Not", is_on))
        one, zero = build.constant(1, wide), build.constant(0, wide)
        kept = build.apply("Where", is_on, build.apply("Sub", one, rated), one)
        value = build.apply("Where", mask, build.apply("Div", converted(build, x, wide), kept), zero)
        return [converted(build, value, type_.dtype), mask][: len(node.outputs)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        """What was kept passes; the mask, which says what that was, must be an output."""
        incoming, (ratio, training) = present(cotangents, 0), (optional(inputs, 1), optional(inputs, 2))
        made: list[T | None] = [None] * len(inputs)
        elements = None if training is None else build.elements_of(training)
        if training is None or (elements is not None and not elements.reshape(-1)[0]):
            made[0] = incoming
            return made
        if len(outputs) < 2:
            raise NotDifferentiable(
                "what Dropout has dropped is not known without its second output, the mask"
            )
        rate = build.constant(0.5, FLOAT32) if ratio is None else ratio

        def form(incoming: Scalar, kept: Scalar, rate: Scalar, is_training: Scalar) -> Scalar:
            rate = scalar.convert(rate, incoming.dtype)
            dropped = scalar.where(kept, incoming / (1 - rate), 0.0)
            return scalar.where(is_training, dropped, incoming)

        values = [incoming, outputs[1], reshaped(build, rate, ()), reshaped(build, training, ())]
        given = [element for element in arguments(build, values) if element is not None]
        made[0] = expression(build, form(*given), values, build.type_of(incoming).dtype)
        return made
