"""Operators that work element by element: from the registry, and those with inputs of several types."""

from __future__ import annotations

import numpy as np

import vkml.ops  # noqa: F401  (fills the registry)
from tests.fuzz.graphs import GraphBuilder, Skip, Value, codes_of
from tests.fuzz.recipes.registry import RECIPES, data_input, plain_attributes, recipe
from tests.fuzz.tensors import BFLOAT16, BOOL, FLOAT, FLOAT8, INTEGERS, NARROW, NATIVE, STRING, Fill, indices
from vkml.ir.operator import MANY, REGISTRY

CASTABLE = (*NATIVE, *NATIVE, *NATIVE, BFLOAT16, STRING, *FLOAT8, *NARROW)


@recipe("Cast")
def cast(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, accept=lambda value: value.code != STRING)
    build.node(op, [data], {**plain_attributes(build, op, 0.2), "to": build.pick(*CASTABLE)})


@recipe("CastLike")
def cast_like(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, accept=lambda value: value.code != STRING)
    build.node(op, [data, build.take(NATIVE)], plain_attributes(build, op, 0.2))


@recipe("Where")
def where(build: GraphBuilder, op: str) -> None:
    first = build.take(codes_of(op, build.opset, 1))
    second = build.broadcastable(first.code, first.dims)
    condition = build.broadcastable(BOOL, first.dims)
    build.node(op, [condition, *[first, second][:: build.pick(1, -1)]])


@recipe("Clip")
def clip(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    if build.opset < 11 and data.code != FLOAT:
        raise Skip("its bounds were float attributes")
    bounds: list[Value | None] = []
    for number in (0, 1):
        value = build.integer(-4, 0) + 4 * number * build.chance(0.9)
        if data.code in INTEGERS:
            value = abs(value)
        is_there = build.chance(0.75)
        bounds.append(build.constant(np.array(value), data.code) if is_there else None)
        if is_there and build.chance(0.2) and build.opset >= 11:
            bounds[-1] = build.new(data.code, ())
    build.node(op, [data, *bounds])


@recipe("BitShift")
def bit_shift(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    build.node(
        op, [data, build.broadcastable(data.code, data.dims, indices(0, 8))], plain_attributes(build, op)
    )


@recipe("Pow")
def power(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    codes = codes_of(op, build.opset, 1) if build.opset >= 12 and build.chance(0.4) else (data.code,)
    if build.chance(0.5):
        exponent = build.constant(np.array(build.pick(0, 1, 2, 3, 2, 2)), build.code(codes))
    else:
        fill = indices(-3, 5) if build.chance(0.5) else Fill("ordinary")
        exponent = build.broadcastable(build.code(codes), data.dims, fill)
    build.node(op, [data, exponent])


@recipe("PRelu")
def prelu(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    build.node(op, [data, build.broadcastable(data.code, data.dims)])


@recipe("Dropout")
def dropout(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    ratio = build.constant(np.array(build.pick(0.0, 0.5)), FLOAT) if build.chance(0.5) else None
    mode = None
    if ratio is not None and build.opset >= 12 and build.chance(0.4):
        is_training = build.chance(0.3)  # with ratio 0 alone, else its mask is random
        ratio = build.constant(np.array(0.0 if is_training else 0.5), FLOAT)
        mode = build.constant(np.array(is_training), BOOL)
    build.node(op, [data, ratio, mode], {"seed": 3} if build.chance(0.3) else {}, build.integer(1, 2))


def unary(build: GraphBuilder, op: str) -> None:
    build.node(op, [data_input(build, op)], plain_attributes(build, op))


def binary(build: GraphBuilder, op: str) -> None:
    first = data_input(build, op)
    # x - x, x / x and their like are what compilers simplify.
    second = first if build.chance(0.15) else build.broadcastable(first.code, first.dims)
    pair = [first, second] if build.chance(0.6) else [second, first]
    attributes = plain_attributes(build, op)
    if op == "Mod":
        is_float = first.code not in INTEGERS
        attributes["fmod"] = 1 if is_float else build.integer(0, 1)
    build.node(op, pair, attributes)


def variadic(build: GraphBuilder, op: str) -> None:
    first = data_input(build, op)
    more = [build.broadcastable(first.code, first.dims) for _ in range(build.integer(0, 3))]
    build.node(op, [first, *more])


for (_domain, _op), _spec in sorted(REGISTRY.items()):
    if _spec.is_pointwise and not _domain and _op not in RECIPES:
        RECIPES[_op] = variadic if _spec.inputs[1] == MANY else binary if _spec.inputs[0] == 2 else unary
