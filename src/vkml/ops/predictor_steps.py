"""Predictors of ai.onnx.ml as operators that devices have: scores, post transforms, trees level by level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.ir.dtypes import FLOAT32, FLOAT64, INT32, INT64, DType
from vkml.ir.gradients import Emitter, T, converted, expanded, reshaped
from vkml.ir.operator import Array
from vkml.ops.trees import LEAF, MODES, Forest

DEEPEST = 64
"""Levels of trees that are written out."""
_COMPARISONS = ("LessOrEqual", "Less", "GreaterOrEqual", "Greater", "Equal")
"""By the modes of trees; the next one, NEQ, is none of ONNX's."""


def rows_of(build: Emitter[T], x: T, dtype: DType | None = None) -> T:
    """Features as rows [n, features] of a float type: of doubles as they are where none is stated."""
    type_ = build.type_of(x)
    kept = FLOAT64 if type_.dtype == FLOAT64 else FLOAT32
    x = converted(build, x, dtype or kept)
    return x if type_.rank > 1 else reshaped(build, x, (1, *type_.dims))


def products_of(build: Emitter[T], x: T, coefficients: Array, intercepts: Array) -> T:
    """Scores [n, targets]: rows times coefficients [targets, features], and intercepts."""
    scores = build.apply("MatMul", x, build.constant(np.ascontiguousarray(coefficients.T), FLOAT32))
    return build.apply("Add", scores, build.constant(intercepts, FLOAT32)) if len(intercepts) else scores


def transformed_scores(build: Emitter[T], name: str, scores: T) -> T | None:
    """Scores after a post transform; None for those that are the host's."""
    if name == "SOFTMAX":
        return build.apply("Softmax", scores, axis=1)
    if name == "LOGISTIC":
        return build.apply("Sigmoid", scores)
    return scores if name == "NONE" else None


def finished_scores(build: Emitter[T], name: str, scores: T) -> T | None:
    """As `transformed_scores`, for targets: a single one stays what it is but by PROBIT."""
    is_kept = build.type_of(scores).dims[1] == 1 and name != "PROBIT"
    return scores if is_kept else transformed_scores(build, name, scores)


def labels_by_place(build: Emitter[T], labels: Sequence[int], chosen: T) -> T:
    """Labels of classes that are chosen by their places."""
    return build.apply("Gather", build.constant(list(labels), INT64), chosen, axis=0)


def labels_of_greatest(build: Emitter[T], labels: Sequence[int], scores: T) -> T:
    """The label of each row's greatest score."""
    return labels_by_place(build, labels, build.apply("ArgMax", scores, axis=1, keepdims=0))


def labels_of_truths(build: Emitter[T], labels: Sequence[int], is_second: T) -> T:
    """The second label where something holds, [n, 1], else the first."""
    second, first = (build.constant(labels[at], INT64) for at in (1, 0))
    rows = build.type_of(is_second).dims[0]
    return reshaped(build, build.apply("Where", is_second, second, first), (rows,))


def beside(build: Emitter[T], first: T, second: T) -> T:
    """Columns of scores side by side."""
    return build.apply("Concat", first, second, axis=1)


def other_share(build: Emitter[T], score: T) -> T:
    """What a share leaves of 1."""
    return build.apply("Sub", build.constant(1, build.type_of(score).dtype), score)


def leaf_scores(build: Emitter[T], forest: Forest, x: T, aggregate: str) -> T | None:
    """What `Forest.scores` gives: [n, targets]; None where that has no such form.

    All rows go down all trees, a level at a time; leaves lead to themselves.
    """
    depth, dtype = int(forest.depths.max(initial=0)), build.type_of(x).dtype
    rows, trees = build.type_of(x).dims[0], len(forest.roots)
    weights = _by_target(forest, aggregate)
    compared = forest.modes[forest.modes != LEAF]
    if weights is None or not trees or depth > DEEPEST or (compared == MODES.index("MEMBER")).any():
        return None

    def table(values: Array, kind: DType) -> T:
        return build.constant(np.ascontiguousarray(values).astype(kind.storage), kind)

    features = table(np.where(forest.modes == LEAF, 0, forest.features), INT32)
    splits, children = table(forest.splits, dtype), table(forest.children.reshape(-1), INT32)
    modes = sorted({int(mode) for mode in compared})
    of_node = table(forest.modes, INT32) if len(modes) > 1 else None
    missing = table(forest.missing, INT32) if forest.missing.any() else None
    places = expanded(build, table(forest.roots[None], INT32), (rows, trees))
    for _ in range(depth):
        values = build.apply("GatherElements", x, build.apply("Gather", features, places, axis=0), axis=1)
        edges = build.apply("Gather", splits, places, axis=0)
        holds = _compare(build, modes[0], values, edges)
        if of_node is not None:
            own = build.apply("Gather", of_node, places, axis=0)
            for mode in modes[1:]:
                is_mode = build.apply("Equal", own, build.constant(mode, INT32))
                holds = build.apply("Where", is_mode, _compare(build, mode, values, edges), holds)
        if missing is not None:
            tracks = build.apply("Gather", missing, places, axis=0)
            is_tracked = build.apply("Equal", tracks, build.constant(1, INT32))
            is_missing = build.apply("And", build.apply("IsNaN", values), is_tracked)
            holds = build.apply("Or", holds, is_missing)
        twice = build.apply("Add", places, places)
        places = build.apply(
            "Gather", children, build.apply("Add", twice, converted(build, holds, INT32)), axis=0
        )
    found = build.apply("Gather", table(weights, dtype), places, axis=0)
    how = {"SUM": "ReduceSum", "AVERAGE": "ReduceMean", "MIN": "ReduceMin", "MAX": "ReduceMax"}[aggregate]
    return build.apply(how, found, build.constant([1], INT64), keepdims=0)


def _compare(build: Emitter[T], mode: int, values: T, edges: T) -> T:
    if mode < len(_COMPARISONS):
        return build.apply(_COMPARISONS[mode], values, edges)
    return build.apply("Not", build.apply("Equal", values, edges))


def _by_target(forest: Forest, aggregate: str) -> Array | None:
    """[nodes, targets]: what a leaf adds to each target; None where a leaf that says nothing would count."""
    nodes, entries = np.nonzero(forest.has_entry)
    made = np.zeros((len(forest.modes), forest.count), forest.weights.dtype)
    times = np.zeros(made.shape, np.int64)
    targets = forest.targets[nodes, entries]
    np.add.at(made, (nodes, targets), forest.weights[nodes, entries])
    np.add.at(times, (nodes, targets), 1)
    if aggregate in ("MIN", "MAX"):
        is_leaf = forest.modes == LEAF
        return made if (times[is_leaf] == 1).all() else None
    return made
