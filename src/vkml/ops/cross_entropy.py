"""Losses of classes: how little probability the right ones have been given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError
from vkml.ir import scalar
from vkml.ir.dtypes import FLOAT32, FLOATS, INT32, INT64, DType
from vkml.ir.gradients import (
    Emitter,
    T,
    converted,
    expanded,
    pointwise,
    reshaped,
    summed,
    widened,
)
from vkml.ir.graph import Node
from vkml.ir.lowering import BodyWriter, CannotLower, Lowering, V, given
from vkml.ir.operator import INT, Array, Operator, operator
from vkml.ir.scalar import Scalar, arithmetic_type
from vkml.ir.types import Known, TensorType, static
from vkml.ops import pointwise as elements
from vkml.ops.checks import optional, present, require_dtype, required
from vkml.ops.softmax import log_softmax
from vkml.ops.stepwise import evaluate_steps

_EXACT_CLASSES = 1 << 24
"""Up to here float32 has every class as a number."""


class _ClassLoss(Operator):
    """What losses of classes have in common: scores are [batch, classes, ...], labels [batch, ...]."""

    inputs = (2, 3)
    attributes = {"reduction": "mean", "ignore_index": None}
    attribute_types = {"ignore_index": INT}

    def check(self, node: Node) -> None:
        if node.attributes["reduction"] not in ("none", "sum", "mean"):
            raise InvalidGraph(f"{node.label}: reduction is {node.attributes['reduction']!r}")

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        scores, labels = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, scores, FLOATS, "the scores")
        require_dtype(node, labels, (INT32, INT64), "the labels")
        if scores.rank < 2:
            raise ShapeError(f"{node.label}: scores are [batch, classes, ...], not {list(scores.dims)}")
        wanted = (scores.dims[0], *scores.dims[2:])
        if labels.dims != wanted:
            raise ShapeError(f"{node.label}: labels must be {list(wanted)}, they are {list(labels.dims)}")
        weights = optional(inputs, 2)
        if weights is not None and (weights.dtype, weights.dims) != (scores.dtype, scores.dims[1:2]):
            raise ShapeError(f"{node.label}: there must be a weight of the scores' type for each class")
        loss = static(scores.dtype, wanted if node.attributes["reduction"] == "none" else ())
        return [loss, scores.type][: len(node.outputs)]


@operator()
class NegativeLogLikelihoodLoss(_ClassLoss):
    """-logs[label], weighted by class; none, the sum or the weighted mean of them.

    Labels that equal `ignore_index` do not count.
    """

    is_stepwise = True

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        logs, labels, weights = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        type_, row = build.type_of(logs), build.type_of(labels).dims
        wide, code = arithmetic_type(type_.dtype), build.type_of(labels).dtype
        ignored = _ignored(node)
        if ignored is not None and not -(2 ** (code.bits - 1)) <= ignored < 2 ** (code.bits - 1):
            ignored = None  # no label can be it
        there, is_out = labels, None
        if ignored is not None:
            is_out = build.apply("Equal", labels, build.constant(ignored, code))
            there = build.apply("Where", is_out, build.constant(0, code), labels)
        # Counted from the end, a label would be a class: it is none.
        is_negative = build.apply("Less", there, build.constant(0, code))
        place = build.apply("Where", is_negative, build.constant(type_.dims[1], code), there)
        place = reshaped(build, place, (row[0], 1, *row[1:]))
        losses = reshaped(build, build.apply("GatherElements", logs, place, axis=1), row)
        losses = build.apply("Neg", widened(build, losses))
        factor = _factor(build, labels, weights, ignored, wide)
        if weights is not None:
            weight = build.apply("Gather", widened(build, weights), there, axis=0)
            losses = build.apply("Mul", losses, weight)
        if is_out is not None:
            losses = build.apply("Where", is_out, build.constant(0, wide), losses)
        if node.attributes["reduction"] != "none":
            losses = summed(build, losses, range(len(row)))
        if node.attributes["reduction"] == "mean":
            losses = build.apply("Div", losses, _total(build, factor, wide, row))
        return [converted(build, losses, type_.dtype)]


@operator()
class SoftmaxCrossEntropyLoss(_ClassLoss):
    """-log softmax(scores)[label], weighted by class; none, the sum or the weighted mean of them.

    Labels that equal `ignore_index` do not count. The second output is log softmax(scores) along the classes.
    """

    outputs = (1, 2)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        scores, labels, weights = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        wide = elements.widened(scores)
        counts = labels != _ignored(node) if _ignored(node) is not None else np.ones(labels.shape, bool)
        there = np.where(counts, labels, 0)
        if not ((there >= 0) & (there < scores.shape[1])).all():
            raise IndexOutOfRange(f"{node.label}: a label is none of the {scores.shape[1]} classes")
        with np.errstate(all="ignore"):
            logs = wide
            if scores.size:
                flat = wide.reshape(*scores.shape[:2], -1)
                logs = log_softmax(flat).reshape(scores.shape)
            factor = counts.astype(wide.dtype)
            if weights is not None:
                factor *= elements.widened(weights)[there]
            picked = np.take_along_axis(logs, np.expand_dims(there, 1), 1).squeeze(1)
            losses = np.where(counts, -picked * factor, 0)
            if node.attributes["reduction"] != "none":
                total = factor.sum() if node.attributes["reduction"] == "mean" else 1
                losses = losses.sum() / total
        made = [np.asarray(losses).astype(scores.dtype), logs.astype(scores.dtype, copy=False)]
        return made[: len(node.outputs)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None] | None:
        scores, labels, weights = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        dtype = build.type_of(scores).dtype
        logs = build.apply("LogSoftmax", widened(build, scores), axis=1)
        weights = None if weights is None else widened(build, weights)
        loss = build.apply("NegativeLogLikelihoodLoss", logs, labels, weights, **node.attributes)
        return [converted(build, loss, dtype), converted(build, logs, dtype)][: len(node.outputs)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        if any(view is not None for view in inputs[2:]) or any(node.outputs[1:]):
            raise CannotLower("a weighted loss, or one that gives probabilities, has no kernel")
        scores, labels, ignored = given(inputs, 0), given(inputs, 1), _ignored(node)
        rank, reduction = len(scores.shape), node.attributes["reduction"]
        rows = scores.transpose([at for at in range(rank) if at != 1] + [1])
        if reduction == "none":
            return build.cross_entropy(rows, labels, ignored)
        if 0 in labels.shape:
            return None
        wide, axes = arithmetic_type(scores.dtype), range(len(labels.shape))
        with build.step(TensorType(wide, labels.shape)):
            [losses] = build.cross_entropy(rows, labels, ignored)
        if reduction == "sum" or ignored is None:
            return build.reduce("Sum" if reduction == "sum" else "Mean", losses, axes)

        def count(body: BodyWriter, label: str) -> str:
            is_out = body("Equal", label, body.constant(ignored, label))
            return body.cast(body("Not", is_out), wide)

        counts = build.compute(count, [labels], build.scratch(losses.type))
        with build.step(TensorType(wide, ())):
            [number] = build.reduce("Sum", counts, axes)
        with build.step(TensorType(wide, ())):
            [total] = build.reduce("Sum", losses, axes)
        return [
            build.compute(
                lambda body, total, number: body("Div", total, number),
                [total, number],
                build.output(build.result()),
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
        scores, labels, weights = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        found: T | None = None
        of_weights: T | None = None
        if cotangents[0] is not None:
            loss = outputs[0], cotangents[0]
            if needed[0]:
                found = self._scores_gradient(build, node, scores, labels, weights, cotangents[0])
            if weights is not None and needed[2]:
                of_weights = self._weights_gradient(build, node, scores, labels, weights, *loss)
        logs = cotangents[1] if len(cotangents) > 1 and needed[0] else None
        if logs is not None:
            whole = summed(build, widened(build, logs), [1], keep=True)
            made, incoming = outputs[1], widened(build, logs)
            more = pointwise(
                build,
                lambda y, incoming, whole: incoming - scalar.unary("exp", y) * whole,
                made,
                incoming,
                whole,
                dtype=build.type_of(scores).dtype,
            )
            found = more if found is None else build.apply("Add", found, more)
        return [found, None, of_weights][: len(inputs)]

    def _scores_gradient(
        self, build: Emitter[T], node: Node, scores: T, labels: T, weights: T | None, cotangent: T
    ) -> T:
        """(softmax - 1 at the label) times what comes to each loss."""
        type_ = build.type_of(scores)
        wide = arithmetic_type(type_.dtype)
        classes, ignored = type_.dims[1], _ignored(node)
        row = build.type_of(labels).dims
        number = FLOAT32 if max(classes, abs(ignored or 0)) <= _EXACT_CLASSES else INT64
        incoming = converted(build, cotangent, wide)
        factor = None if weights is None else _factor(build, labels, weights, ignored, wide)
        if node.attributes["reduction"] == "mean":
            counted = _factor(build, labels, None, ignored, wide) if weights is None else factor
            incoming = build.apply("Div", incoming, _total(build, counted, wide, row))
        if factor is not None:
            incoming = build.apply("Mul", factor, incoming)
        shape = (row[0], 1, *row[1:])
        if build.type_of(incoming).dims:
            incoming = reshaped(build, incoming, shape)
        places = build.constant(
            np.arange(classes, dtype=number.storage).reshape(-1, *[1] * (len(row) - 1)), number
        )

        def form(y: Scalar, place: Scalar, label: Scalar, incoming: Scalar) -> Scalar:
            here = scalar.compare("equal", place, label)
            made = (y - scalar.where(here, scalar.constant(1, y.dtype), 0)) * incoming
            if ignored is None:
                return made
            return scalar.where(scalar.compare("equal", label, ignored), scalar.constant(0, y.dtype), made)

        found = build.apply("Softmax", scores, axis=1)
        label = reshaped(build, converted(build, labels, number), shape)
        return pointwise(build, form, found, places, label, incoming)

    def _weights_gradient(
        self, build: Emitter[T], node: Node, scores: T, labels: T, weights: T, loss: T, cotangent: T
    ) -> T:
        """The unweighted losses of each class, times what comes to them; of a mean, less the mean."""
        wide = arithmetic_type(build.type_of(scores).dtype)
        ignored, row = _ignored(node), build.type_of(labels).dims
        alone = build.apply("SoftmaxCrossEntropyLoss", scores, labels, reduction="none", ignore_index=ignored)
        share = converted(build, alone, wide)
        if node.attributes["reduction"] == "mean":
            share = build.apply("Sub", share, converted(build, loss, wide))
            total = _total(build, _factor(build, labels, weights, ignored, wide), wide, row)
            share = build.apply("Div", share, total)
            counts = _factor(build, labels, None, ignored, wide)
            share = share if counts is None else build.apply("Mul", share, counts)
        share = expanded(build, build.apply("Mul", share, converted(build, cotangent, wide)), row)
        classes = build.type_of(weights).dims[0]
        flat = reshaped(build, labels, (-1, 1))
        places = build.constant(np.arange(classes), build.type_of(labels).dtype)
        nothing = build.constant(0, wide)
        found = build.apply(
            "Where", build.apply("Equal", flat, places), reshaped(build, share, (-1, 1)), nothing
        )
        return converted(build, summed(build, found, [0]), build.type_of(weights).dtype)


def _ignored(node: Node) -> int | None:
    ignored = node.attributes["ignore_index"]
    return None if ignored is None else int(ignored)


def _factor(build: Emitter[T], labels: T, weights: T | None, ignored: int | None, wide: DType) -> T | None:
    """What each loss is multiplied with; None for 1."""
    factor: T | None = None
    there = labels
    if ignored is not None:
        dtype = build.type_of(labels).dtype
        is_out = build.apply("Equal", labels, build.constant(ignored, dtype))
        factor = converted(build, build.apply("Not", is_out), wide)
        there = build.apply("Where", is_out, build.constant(0, dtype), labels)
    if weights is not None:
        weight = build.apply("Gather", widened(build, weights), there, axis=0)
        factor = weight if factor is None else build.apply("Mul", factor, weight)
    return factor


def _total(build: Emitter[T], factor: T | None, wide: DType, row: Sequence[int]) -> T:
    if factor is None:
        return build.constant(float(np.prod(row)), wide)
    return summed(build, factor, range(len(row)))
