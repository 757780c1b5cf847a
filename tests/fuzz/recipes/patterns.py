"""Patterns of several nodes that engines rewrite: what is taken back again, folded, fused, shared."""

from __future__ import annotations

import numpy as np

from tests.fuzz.graphs import GraphBuilder, Skip, Value
from tests.fuzz.recipes.norms import batch_normalization
from tests.fuzz.recipes.registry import recipe
from tests.fuzz.recipes.windows import conv
from tests.fuzz.tensors import DOUBLE, FLOAT, FLOAT16, INTEGERS, NATIVE, Fill

ARITHMETIC = (FLOAT, FLOAT, FLOAT, DOUBLE, FLOAT16)


@recipe("taken_back")
def taken_back(build: GraphBuilder, op: str) -> None:
    """(x + c) - c, (x * c) / c and their like: algebra is not arithmetic."""
    data = build.take(ARITHMETIC)
    there, back = build.pick(("Add", "Sub"), ("Sub", "Add"), ("Mul", "Div"), ("Div", "Mul"))
    if build.chance(0.5):
        other: Value = build.constant(np.array(build.pick(1e4, 1e8, 3.0, 1e-4, 7.0, 1e30)), data.code)
    else:
        other = build.broadcastable(data.code, data.dims, Fill(build.pick("wide", "ordinary", "specials")))
    [moved] = build.node(there, [data, other])
    build.node(back, [moved, other])


@recipe("neutral")
def neutral(build: GraphBuilder, op: str) -> None:
    """x + 0, x * 1, x * 0, x - 0 and 0 - x, with constants of every shape."""
    data = build.take([code for code in NATIVE if code in (*ARITHMETIC, *INTEGERS)])
    kind = build.pick("Add", "Sub", "Mul", "Div", "Mul")
    number = build.pick(0, 1) if kind == "Mul" else 1 if kind == "Div" else build.pick(0, 0, 0, -0.0)
    shape = (1,) * build.integer(0, data.rank + build.chance(0.1))
    other = build.constant(np.full(shape, number), data.code)
    build.node(kind, [data, other] if build.chance(0.7) else [other, data])


@recipe("conv_and_norm")
def conv_and_norm(build: GraphBuilder, op: str) -> None:
    """Convolution and BatchNormalization, sometimes two of the latter, or the former read twice."""
    conv(build, "Conv")
    made = build.values[-1]
    if made.shape is None or not made.elements:
        raise Skip("empty")
    for _ in range(build.pick(1, 1, 2)):
        scale, bias, mean = (
            build.constant(np.asarray(build.rng.standard_normal(made.dims[1])), made.code) for _ in range(3)
        )
        variance = build.constant(np.asarray(build.rng.random(made.dims[1]) + 0.1), made.code)
        epsilon = build.pick(None, 1e-3, 0.5)
        [after] = build.node("BatchNormalization", [made, scale, bias, mean, variance], {"epsilon": epsilon})
        if build.chance(0.3):
            build.node("Relu", [made if build.chance(0.3) else after])


@recipe("odd_norm")
def odd_norm(build: GraphBuilder, op: str) -> None:
    """BatchNormalization behind a convolution, with statistics of shapes that may not fit."""
    conv(build, "Conv")
    batch_normalization(build, "BatchNormalization")


@recipe("chain")
def chain(build: GraphBuilder, op: str) -> None:
    """A run of pointwise nodes that read one another's inputs again: one fused kernel."""
    value = build.take([FLOAT, FLOAT, FLOAT, DOUBLE])
    seen = [value]
    for _ in range(build.integer(2, 7)):
        kind = build.pick(
            "Add", "Sub", "Mul", "Max", "Min", "Relu", "Neg", "Abs", "Sqrt", "Tanh", "Sigmoid", "Div"
        )
        if kind in ("Relu", "Neg", "Abs", "Sqrt", "Tanh", "Sigmoid"):
            [value] = build.node(kind, [value])
        else:
            other = build.pick(*seen) if build.chance(0.5) else build.broadcastable(value.code, seen[0].dims)
            [value] = build.node(kind, [value, other] if build.chance(0.6) else [other, value])
        seen.append(value)


@recipe("wide")
def wide(build: GraphBuilder, op: str) -> None:
    """A node of very many inputs, seldom: what takes time as the square of their number shows."""
    if not build.chance(0.03):
        raise Skip("seldom")
    values = [build.new(FLOAT, (2,)) for _ in range(3)]
    inputs = [build.pick(*values) for _ in range(build.pick(300, 1000, 6000))]
    kind = build.pick("Sum", "Max", "Concat")
    build.node(kind, inputs, {"axis": 0} if kind == "Concat" else {})
