"""Random numbers: RandomNormal, RandomUniform, the same of another's shape, Bernoulli, Multinomial.

All draw by `vkml.Philox`, so that a seed means the same words on every device, and the same numbers up to
what a device rounds in logarithms and cosines. A node with a seed draws the same in each run, as in ONNX's
reference; one without another each time, or what follows `set_seed` (`vkml.ops.random_state`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph, ModelError, ShapeError
from vkml.ir.dtypes import (
    BOOL,
    FLOAT32,
    FLOATS,
    INT32,
    INT64,
    NUMBERS,
    UINT32,
    DType,
    from_code,
)
from vkml.ir.gradients import Emitter, T, converted, expression, reshaped, sliced
from vkml.ir.graph import Node
from vkml.ir.operator import FLOAT, INT, INTS, OPTIONAL, REQUIRED, Array, Operator, operator
from vkml.ir.size import Size
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, require_rank, required
from vkml.ops.limits import check_size
from vkml.ops.philox import STATE_WORDS, blocks_of
from vkml.ops.random_numbers import normal_forms, uniform_form, wide_type, words_each
from vkml.ops.stepwise import evaluate_steps


class _Random(Operator):
    """An operator that draws."""

    is_deterministic = False
    attribute_types = {"dtype": INT, "seed": FLOAT, "shape": INTS}
    drawn: tuple[DType, ...] = FLOATS
    """The types that it makes."""

    def _type(self, node: Node, like: DType | None) -> DType:
        """The type of the result: the attribute's, or else another's."""
        code = node.attributes["dtype"]
        try:
            found = like if code is None else from_code(int(code))
        except ModelError as error:
            raise type(error)(f"{node.label}: {error}") from None
        if found not in self.drawn:
            raise InvalidGraph(f"{node.label}: no random numbers of type {found and found.name} are drawn")
        return found

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [None] * len(inputs)  # what is drawn jumps, or follows from no element


def _state(build: Emitter[T], node: Node) -> T:
    """The state from which a node draws: its key is the seed's bits."""
    seed = node.attributes["seed"]
    if seed is None:
        return build.apply("RandomState", domain="vkml")
    return build.constant([int(np.float32(seed).view(np.uint32)), *[0] * (STATE_WORDS - 1)], UINT32)


def _words(build: Emitter[T], node: Node, count: int, each: int) -> list[T]:
    """`each` words for each of `count` elements, by place."""
    words = count * each
    blocks = blocks_of(words)
    skip = build.constant(0, UINT32)
    parts = build.apply_all("Philox", [_state(build, node), skip], 4, domain="vkml", blocks=blocks)
    drawn = build.apply("Concat", *(reshaped(build, part, (blocks,)) for part in parts), axis=0)
    return [sliced(build, drawn, 0, at * count, (at + 1) * count) for at in range(each)]


def _open(dims: Sequence[int]) -> bool:
    return any(isinstance(size, Size) for size in dims)


def _uniform(build: Emitter[T], node: Node, dims: Sequence[int], dtype: DType, low: float, high: float) -> T:
    """Numbers of [low, high)."""
    count = math.prod(dims)
    if not count:
        return build.constant(np.zeros(dims), dtype)
    words = _words(build, node, count, words_each(dtype))
    return reshaped(build, expression(build, uniform_form(dtype) * (high - low) + low, words, dtype), dims)


def random_uniform(build: Emitter[T], node: Node, dims: Sequence[int], dtype: DType) -> T:
    """Numbers of [0, 1) for a node with a `seed`, in the type in which elements of `dtype` are drawn."""
    return _uniform(build, node, dims, wide_type(dtype), 0, 1)


def _normal(build: Emitter[T], node: Node, dims: Sequence[int], dtype: DType, mean: float, scale: float) -> T:
    """Numbers of a normal distribution."""
    count = math.prod(dims)
    if not count:
        return build.constant(np.zeros(dims), dtype)
    words = _words(build, node, -(-count // 2), 2 * words_each(dtype))
    halves = [expression(build, form * scale + mean, words, dtype) for form in normal_forms(dtype)]
    return reshaped(build, sliced(build, build.apply("Concat", *halves, axis=0), 0, 0, count), dims)


class _Drawn(_Random):
    """Numbers of a distribution, in a shape."""

    def _dims(self, node: Node, like: Sequence[int] | None) -> tuple[int, ...]:
        return tuple(like) if like is not None else tuple(int(size) for size in node.attributes["shape"])

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        like = required(node, inputs, 0) if inputs else None
        dtype = self._type(node, None if like is None else like.dtype)
        return [check_size(node, dtype, self._dims(node, None if like is None else like.dims))]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        like = build.type_of(present(inputs, 0)) if inputs else None
        dims = self._dims(node, None if like is None else like.dims)
        if _open(dims):
            return None
        dtype = self._type(node, None if like is None else like.dtype)
        if "mean" in node.attributes:
            mean, scale = (float(node.attributes[key]) for key in ("mean", "scale"))
            return [_normal(build, node, dims, dtype, mean, scale)]
        low, high = (float(node.attributes[key]) for key in ("low", "high"))
        return [_uniform(build, node, dims, dtype, low, high)]


@operator()
class RandomNormal(_Drawn):
    """Normally distributed numbers."""

    inputs = (0, 0)
    attributes = {"dtype": FLOAT32.code, "mean": 0.0, "scale": 1.0, "seed": OPTIONAL, "shape": REQUIRED}


@operator()
class RandomUniform(_Drawn):
    """Numbers from [low, high), equally likely."""

    inputs = (0, 0)
    attributes = {"dtype": FLOAT32.code, "high": 1.0, "low": 0.0, "seed": OPTIONAL, "shape": REQUIRED}


@operator()
class RandomNormalLike(_Drawn):
    """Normally distributed numbers in the shape of another tensor."""

    attributes = {"dtype": OPTIONAL, "mean": 0.0, "scale": 1.0, "seed": OPTIONAL}
    type_inputs = (0,)


@operator()
class RandomUniformLike(_Drawn):
    """Numbers from [low, high), equally likely, in the shape of another tensor."""

    attributes = {"dtype": OPTIONAL, "high": 1.0, "low": 0.0, "seed": OPTIONAL}
    type_inputs = (0,)


@operator()
class Bernoulli(_Random):
    """1 with the probabilities of the input's elements, else 0."""

    attributes = {"dtype": OPTIONAL, "seed": OPTIONAL}
    drawn = (*NUMBERS, BOOL)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        return [check_size(node, self._type(node, x.dtype), x.dims)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x = present(inputs, 0)
        type_ = build.type_of(x)
        if _open(type_.dims):
            return None
        wide = wide_type(type_.dtype)
        drawn = random_uniform(build, node, type_.dims, type_.dtype)
        is_one = build.apply("Less", drawn, converted(build, x, wide))
        return [converted(build, is_one, self._type(node, type_.dtype))]


@operator()
class Multinomial(_Random):
    """Numbers of classes, drawn `sample_size` times by the logarithms [batch, classes] of their weights."""

    attributes = {"dtype": INT32.code, "sample_size": 1, "seed": OPTIONAL}
    drawn = (INT32, INT64)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, samples = required(node, inputs, 0), int(node.attributes["sample_size"])
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 2, 2)
        if samples < 1 or x.dims[1] == 0:
            raise ShapeError(f"{node.label}: {samples} samples of {x.dims[1]} classes")
        return [check_size(node, self._type(node, None), (x.dims[0], samples))]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, samples = present(inputs, 0), int(node.attributes["sample_size"])
        batch, classes = build.type_of(x).dims
        if _open((batch, classes)):
            return None
        wide, result = wide_type(build.type_of(x).dtype), self._type(node, None)
        if not batch:
            return [build.constant(np.zeros((0, samples)), result)]
        x = converted(build, x, wide)
        greatest = build.apply("ReduceMax", x, build.constant([1], INT64))
        weights = build.apply("Exp", build.apply("Sub", x, greatest))
        below = build.apply("CumSum", weights, build.constant(1, INT64))
        drawn = build.apply(
            "Mul",
            _uniform(build, node, (batch, samples), wide, 0, 1),
            sliced(build, below, 1, classes - 1, classes),
        )
        drawn, below = (
            reshaped(build, value, dims)
            for value, dims in ((drawn, (batch, samples, 1)), (below, (batch, 1, classes)))
        )
        # A class is where as many sums of weights are not above what has been drawn; the last never counts.
        is_past = build.apply("GreaterOrEqual", drawn, sliced(build, below, 2, 0, classes - 1))
        past = converted(build, is_past, result)
        return [build.apply("ReduceSum", past, build.constant([2], INT64), keepdims=0)]
