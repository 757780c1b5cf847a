"""Optimizers of ai.onnx.preview.training: one step of Adagrad, Adam or Momentum for several tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir import scalar
from vkml.ir.dtypes import FLOAT32, FLOAT64, INT64
from vkml.ir.gradients import Emitter, T, converted, expression, reshaped
from vkml.ir.graph import Node
from vkml.ir.operator import FLOAT, MANY, REQUIRED, STRING, Array, Operator, operator
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, required


class _Step(Operator):
    """A step of an optimizer.

    Inputs are the learning rate, the number of the step, then all tensors, all their gradients, all of the
    first kind of state, and so on; outputs the new tensors, then their new states.
    """

    domain = "ai.onnx.preview.training"
    inputs = (3, MANY)
    outputs = (1, MANY)
    states: int = 1
    """Tensors that it keeps of each."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        rate, number = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, rate, (FLOAT32, FLOAT64), "the learning rate")
        require_dtype(node, number, (INT64,), "the number of the step")
        known = [required(node, inputs, at) for at in range(2, len(inputs))]
        count, rest = divmod(len(known), 2 + self.states)
        if rest or len(node.outputs) > count * (1 + self.states):
            raise InvalidGraph(
                f"{node.label}: it has {len(known)} tensors and {len(node.outputs)} outputs; there must be "
                f"{2 + self.states} for each that is optimized, and {1 + self.states} outputs"
            )
        for at, each in enumerate(known):
            require_dtype(node, each, (FLOAT32, FLOAT64), f"input {2 + at}")
            if each.type != known[at % count].type:
                raise InvalidGraph(
                    f"{node.label}: input {2 + at} is {each.type}, what is optimized {known[at % count].type}"
                )
        return [known[at % count].type for at in range(count * (1 + self.states))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        rate, number = float(present(inputs, 0).reshape(())), int(present(inputs, 1).reshape(()))
        arrays = [present(inputs, at) for at in range(2, len(inputs))]
        count = len(arrays) // (2 + self.states)
        made: list[list[Array]] = []
        with np.errstate(all="ignore"):
            for at in range(count):
                x, gradient, *states = arrays[at::count]
                decay = x.dtype.type(node.attributes["norm_coefficient"])
                made.append(self.step(node, rate, number, x, decay * x + gradient, states))
        return [np.asarray(each[kind]) for kind in range(1 + self.states) for each in made]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        rate, number, *values = (present(inputs, at) for at in range(len(inputs)))
        count = len(values) // (2 + self.states)
        made: list[list[T]] = []
        for at in range(count):
            x, *others = values[at::count]
            dtype = build.type_of(x).dtype
            numbers = [converted(build, reshaped(build, each, []), dtype) for each in (rate, number)]
            given = [*numbers, x, *others]
            of_rate, of_number, of_x, gradient, *states = (
                scalar.argument(place, dtype) for place in range(len(given))
            )
            gradient = node.attributes["norm_coefficient"] * of_x + gradient
            forms = self.forms(node, of_rate, of_number, of_x, gradient, states)
            made.append([expression(build, form, given, dtype) for form in forms])
        return [each[kind] for kind in range(1 + self.states) for each in made][: len(node.outputs)]

    def forms(
        self, node: Node, rate: Scalar, number: Scalar, x: Scalar, gradient: Scalar, states: Sequence[Scalar]
    ) -> list[Scalar]:
        """As `step`, of elements."""
        raise NotImplementedError(self.name)

    def step(
        self, node: Node, rate: float, number: int, x: Array, gradient: Array, states: Sequence[Array]
    ) -> list[Any]:
        """What becomes of one tensor and its states.

        Args:
            node: normalised.
            rate: the learning rate.
            number: of the step.
            x: the tensor.
            gradient: its gradient, that of the penalty on its size included.
            states: that belong to it.
        """
        raise NotImplementedError(self.name)


@operator()
class Adagrad(_Step):
    """A step divided by the root of all squared gradients so far (J. Duchi et al., 2011)."""

    attributes = {"decay_factor": 0.0, "epsilon": 1e-6, "norm_coefficient": 0.0}

    def step(
        self, node: Node, rate: float, number: int, x: Array, gradient: Array, states: Sequence[Array]
    ) -> list[Any]:
        [squares] = states
        squares = squares + gradient * gradient
        slowed = x.dtype.type(rate / (1 + number * node.attributes["decay_factor"]))
        return [
            x - slowed * gradient / (np.sqrt(squares) + x.dtype.type(node.attributes["epsilon"])),
            squares,
        ]

    def forms(
        self, node: Node, rate: Scalar, number: Scalar, x: Scalar, gradient: Scalar, states: Sequence[Scalar]
    ) -> list[Scalar]:
        squares = states[0] + gradient * gradient
        slowed = rate / (1 + number * node.attributes["decay_factor"])
        root = scalar.unary("sqrt", squares)
        return [x - slowed * gradient / (root + node.attributes["epsilon"]), squares]


@operator()
class Adam(_Step):
    """A step by running means of gradients and of their squares (D. Kingma, J. Ba, 2015)."""

    states = 2
    attributes = {
        "alpha": 0.9,
        "beta": 0.999,
        "epsilon": 1e-6,
        "norm_coefficient": 0.0,
        "norm_coefficient_post": 0.0,
    }

    def step(
        self, node: Node, rate: float, number: int, x: Array, gradient: Array, states: Sequence[Array]
    ) -> list[Any]:
        given, kind = node.attributes, x.dtype.type
        alpha, beta = given["alpha"], given["beta"]
        mean = kind(alpha) * states[0] + kind(1 - alpha) * gradient
        square = kind(beta) * states[1] + kind(1 - beta) * gradient * gradient
        if number > 0:
            rate *= np.sqrt(1 - beta**number) / (1 - alpha**number)
        made = x - kind(rate) * mean / (np.sqrt(square) + kind(given["epsilon"]))
        return [kind(1 - given["norm_coefficient_post"]) * made, mean, square]

    def forms(
        self, node: Node, rate: Scalar, number: Scalar, x: Scalar, gradient: Scalar, states: Sequence[Scalar]
    ) -> list[Scalar]:
        given = node.attributes
        alpha, beta = given["alpha"], given["beta"]
        mean = alpha * states[0] + (1 - alpha) * gradient
        square = beta * states[1] + (1 - beta) * gradient * gradient
        corrected = rate * scalar.unary("sqrt", _less_power(beta, number)) / _less_power(alpha, number)
        rate = scalar.where(number > 0, corrected, rate)
        made = x - rate * mean / (scalar.unary("sqrt", square) + given["epsilon"])
        return [(1 - given["norm_coefficient_post"]) * made, mean, square]


def _less_power(base: float, exponent: Scalar) -> Scalar:
    """1 - base ** exponent, which for a base near 1 a difference would round."""
    if base <= 0:
        return 1 - scalar.power(scalar.constant(base, exponent.dtype), exponent)
    return -scalar.unary("expm1", exponent * math.log(base))


@operator()
class Momentum(_Step):
    """A step along a running sum of gradients, by Nesterov's rule if asked for."""

    attributes = dict.fromkeys(("alpha", "beta", "mode", "norm_coefficient"), REQUIRED)
    attribute_types = {**dict.fromkeys(("alpha", "beta", "norm_coefficient"), FLOAT), "mode": STRING}

    def check(self, node: Node) -> None:
        if node.attributes["mode"] not in ("standard", "nesterov"):
            raise InvalidGraph(
                f"{node.label}: mode must be standard or nesterov, not {node.attributes['mode']!r}"
            )

    def step(
        self, node: Node, rate: float, number: int, x: Array, gradient: Array, states: Sequence[Array]
    ) -> list[Any]:
        given, kind = node.attributes, x.dtype.type
        alpha, beta = kind(given["alpha"]), kind(given["beta"] if number > 0 else 1)
        momentum = alpha * states[0] + beta * gradient
        direction = gradient + alpha * momentum if given["mode"] == "nesterov" else momentum
        return [x - kind(rate) * direction, momentum]

    def forms(
        self, node: Node, rate: Scalar, number: Scalar, x: Scalar, gradient: Scalar, states: Sequence[Scalar]
    ) -> list[Scalar]:
        given = node.attributes
        alpha = given["alpha"]
        momentum = alpha * states[0] + scalar.where(number > 0, given["beta"] * gradient, gradient)
        direction = gradient + alpha * momentum if given["mode"] == "nesterov" else momentum
        return [x - rate * direction, momentum]
