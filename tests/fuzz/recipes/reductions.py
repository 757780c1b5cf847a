"""Reductions, cumulative sums, rows (softmax and its kin), the greatest elements."""

from __future__ import annotations

import numpy as np

from tests.fuzz.graphs import GraphBuilder, Skip
from tests.fuzz.recipes.registry import axis_of, data_input, plain_attributes, recipe, some_axes
from tests.fuzz.tensors import INT32, INT64, indices


@recipe(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
def reduction(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    axes = None
    if build.chance(0.75):
        axes = build.decided(np.array(some_axes(build, data.rank), np.int64))
        if axes.data is not None and not axes.elements and build.opset < (13 if op == "ReduceSum" else 18):
            axes = None
    build.node(op, [data, axes], plain_attributes(build, op, 0.4))


@recipe("ArgMax", "ArgMin")
def arg_reduction(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    attributes = plain_attributes(build, op, 0.4)
    build.node(op, [data], {**attributes, "axis": axis_of(build, data.rank) if build.chance(0.8) else None})


@recipe("Softmax", "LogSoftmax", "Hardmax")
def rows(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    build.node(op, [data], {"axis": axis_of(build, data.rank) if build.chance(0.8) else None})


@recipe("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def cross_entropy(build: GraphBuilder, op: str) -> None:
    scores = data_input(build, op, 2)
    rows = (scores.dims[0], *scores.dims[2:])
    if not scores.dims[1]:
        raise Skip("no class")
    labels = build.new(build.pick(INT64, INT32), rows, indices(0, scores.dims[1]), constant=0.5)
    weights = build.new(scores.code, scores.dims[1:2]) if build.chance(0.4) else None
    ignored = build.integer(-1, scores.dims[1]) if build.chance(0.5) else None
    attributes = {"reduction": build.pick(None, "none", "sum", "mean"), "ignore_index": ignored}
    has_logs = op == "SoftmaxCrossEntropyLoss" and build.chance(0.3)
    build.node(op, [scores, labels, weights], attributes, outputs=2 if has_logs else 1)


@recipe("LpNormalization")
def lp_normalization(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    build.node(op, [data], {"axis": axis_of(build, data.rank), "p": build.pick(1, 2, None)})


@recipe("CumSum", "CumProd")
def cumulative(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axis = build.decided(np.array(axis_of(build, data.rank)), build.pick(INT32, INT64))
    build.node(op, [data, axis], plain_attributes(build, op))


@recipe("TopK")
def top_k(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axis = axis_of(build, data.rank)
    k = build.decided(np.array([build.integer(0, data.dims[axis])], np.int64))
    attributes = {"axis": axis, "largest": build.integer(0, 1), "sorted": 1}
    build.node(op, [data, k], attributes if build.opset >= 11 else {"axis": axis}, 2)


@recipe("Unique")
def unique(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    attributes = {
        "sorted": build.pick(1, 0, None),
        "axis": axis_of(build, data.rank) if build.chance(0.5) else None,
    }
    build.node(op, [data], attributes, build.integer(1, 4))


@recipe("NonZero")
def non_zero(build: GraphBuilder, op: str) -> None:
    build.node(op, [data_input(build, op, 1)])


@recipe("Compress")
def compress(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axis = axis_of(build, data.rank) if build.chance(0.7) else None
    length = data.elements if axis is None else data.dims[axis]
    condition = np.asarray(build.rng.random(max(length - build.integer(0, 1), 0)) < 0.6)
    build.node(op, [data, build.decided(condition)], {"axis": axis})


@recipe("Trilu")
def trilu(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 2)
    k = build.constant(np.array(build.integer(-4, 4), np.int64)) if build.chance(0.6) else None
    build.node(op, [data, k], {"upper": build.pick(0, 1, None)})
