"""Trees of ai.onnx.ml: TreeEnsemble, and TreeEnsembleClassifier and -Regressor, which it replaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import FLOAT16, FLOAT32, FLOAT64, STRING
from vkml.ir.gradients import Emitter, T, converted, expanded, sliced
from vkml.ir.graph import Constant, Node
from vkml.ir.lazy import kept
from vkml.ir.operator import (
    FLOATS,
    INT,
    INTS,
    OPTIONAL,
    REQUIRED,
    STRINGS,
    TENSOR,
    Array,
    AttributeType,
    Operator,
    operator,
)
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import present, require_dtype, require_rank, required
from vkml.ops.predictor_steps import (
    beside,
    finished_scores,
    labels_of_greatest,
    labels_of_truths,
    leaf_scores,
    other_share,
    rows_of,
    transformed_scores,
)
from vkml.ops.scores import (
    DOMAIN,
    LABEL_TYPES,
    TRANSFORMS,
    as_floats,
    as_rows,
    check_transform,
    label_array,
    labels_of,
    rows_and_features,
    transformed,
)
from vkml.ops.trees import LEAF, MODES, Forest, make_forest

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""By their numbers in TreeEnsemble."""
_MODE_NUMBERS = {**{f"BRANCH_{name}": number for number, name in enumerate(MODES[:6])}, "LEAF": LEAF}

_NODE_LISTS: Mapping[str, AttributeType] = {
    "nodes_treeids": INTS,
    "nodes_nodeids": INTS,
    "nodes_featureids": INTS,
    "nodes_modes": STRINGS,
    "nodes_values": FLOATS,
    "nodes_values_as_tensor": TENSOR,
    "nodes_truenodeids": INTS,
    "nodes_falsenodeids": INTS,
    "nodes_missing_value_tracks_true": INTS,
    "nodes_hitrates": FLOATS,
    "nodes_hitrates_as_tensor": TENSOR,
    "base_values": FLOATS,
    "base_values_as_tensor": TENSOR,
}
"""Attributes that the two operators of older models share."""


def _weight_lists(prefix: str) -> dict[str, AttributeType]:
    """Attributes that say what leaves add to targets or classes."""
    lists = {f"{prefix}_{name}": INTS for name in ("treeids", "nodeids", "ids")}
    return {**lists, f"{prefix}_weights": FLOATS, f"{prefix}_weights_as_tensor": TENSOR}


def _numbers(node: Node, name: str) -> Array:
    """A list of floats that a node states as such or, for doubles, as a tensor."""
    tensor, plain = node.attributes[f"{name}_as_tensor"], node.attributes[name]
    if tensor is None:
        return np.asarray(plain or (), np.float32)
    if plain:
        raise InvalidGraph(f"{node.label}: {name} and {name}_as_tensor must not both be given")
    return np.asarray(tensor.array).reshape(-1)


def _column(node: Node, name: str, count: int, what: str = "nodes") -> Array:
    """A list of integers with one for each of `count` nodes or weights."""
    found = np.asarray(node.attributes[name] or (), np.int64)
    if len(found) != count:
        raise InvalidGraph(f"{node.label}: {name} has {len(found)} elements for {count} {what}")
    return found


def _place(names: Array, wanted: Array) -> Array:
    """Where elements are in an ascending array that has any, or where another is if they are not there."""
    return np.minimum(np.searchsorted(names, wanted), len(names) - 1)


def _forest(node: Node, prefix: str, targets: int) -> Forest:
    """The trees of TreeEnsembleClassifier and -Regressor, whose nodes are named by tree and number."""
    trees = np.asarray(node.attributes["nodes_treeids"] or (), np.int64)
    count = len(trees)
    numbers, features = (_column(node, f"nodes_{name}", count) for name in ("nodeids", "featureids"))
    names = node.attributes["nodes_modes"] or ()
    unknown = sorted(set(names) - set(_MODE_NUMBERS))
    if unknown or len(names) != count:
        raise InvalidGraph(
            f"{node.label}: nodes_modes has {len(names)} elements for {count} nodes"
            if not unknown
            else f"{node.label}: nodes_modes has {unknown[0]!r}; known are {', '.join(_MODE_NUMBERS)}"
        )
    modes = np.array([_MODE_NUMBERS[name] for name in names], np.int8)
    splits = _numbers(node, "nodes_values")
    if len(splits) != count:
        raise InvalidGraph(f"{node.label}: nodes_values has {len(splits)} elements for {count} nodes")
    tracks = node.attributes["nodes_missing_value_tracks_true"]
    missing = _column(node, "nodes_missing_value_tracks_true", count) if tracks else np.zeros(count)
    tree_names, tree_ranks = np.unique(trees, return_inverse=True)
    number_names, number_ranks = np.unique(numbers, return_inverse=True)
    keys = tree_ranks * len(number_names) + number_ranks
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if (ordered[1:] == ordered[:-1]).any():
        raise InvalidGraph(f"{node.label}: two nodes of a tree have the same number")

    def find(tree: Array, number: Array, what: str) -> Array:
        """Where nodes are that are named by tree and number."""
        is_there = np.zeros(len(tree), np.bool_)
        if count:
            tree_at, number_at = _place(tree_names, tree), _place(number_names, number)
            key = tree_at * len(number_names) + number_at
            at = _place(ordered, key)
            is_there = (tree_names[tree_at] == tree) & (number_names[number_at] == number)
            is_there &= ordered[at] == key
        if not is_there.all():
            wrong = int(is_there.argmin())
            raise InvalidGraph(
                f"{node.label}: {what} names the node {number[wrong]} of tree {tree[wrong]}, which is "
                "not there"
            )
        return order[at] if count else order

    inner = np.flatnonzero(modes != LEAF)
    true, false = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for into, name in ((true, "nodes_truenodeids"), (false, "nodes_falsenodeids")):
        into[inner] = find(trees[inner], _column(node, name, count)[inner], name)
    is_child = np.zeros(count, np.bool_)
    is_child[true[inner]] = is_child[false[inner]] = True
    starts = np.flatnonzero(~is_child)
    _, first = np.unique(trees[starts], return_index=True)
    roots = starts[np.sort(first)]
    if len(roots) < len(tree_names):
        raise InvalidGraph(f"{node.label}: a tree has no root")
    weights = _numbers(node, f"{prefix}_weights")
    tree, number, target = (
        _column(node, f"{prefix}_{name}", len(weights), "weights") for name in ("treeids", "nodeids", "ids")
    )
    entries = find(tree, number, f"{prefix}_nodeids"), target, weights
    return make_forest(
        node.label,
        roots=roots,
        modes=modes,
        features=features,
        splits=splits,
        true=true,
        false=false,
        missing=missing != 0,
        entries=entries,
        count=targets,
    )


def _check_width(node: Node, forest: Forest, width: Any) -> None:
    if forest.widest >= width:
        raise InvalidGraph(f"{node.label}: a tree looks at feature {forest.widest}, the input has {width}")


class _Trees(Operator):
    """What the operators on trees share: a forest that is laid out once."""

    domain = DOMAIN

    def forest(self, node: Node) -> Forest:
        return kept(node, "forest", self.lay_out)

    def lay_out(self, node: Node) -> Forest:
        raise NotImplementedError(self.name)

    def check(self, node: Node) -> None:
        self.forest(node)


@operator()
class TreeEnsembleRegressor(_Trees):
    """What decision trees predict of some targets, added up or otherwise aggregated."""

    attributes = {
        **dict.fromkeys((*_NODE_LISTS, *_weight_lists("target")), OPTIONAL),
        "aggregate_function": "SUM",
        "post_transform": "NONE",
        "n_targets": OPTIONAL,
    }
    attribute_types = {**_NODE_LISTS, **_weight_lists("target"), "n_targets": INT}

    def lay_out(self, node: Node) -> Forest:
        return _forest(node, "target", self._targets(node))

    def _targets(self, node: Node) -> int:
        stated = node.attributes["n_targets"]
        return max(node.attributes["target_ids"] or (0,)) + 1 if stated is None else int(stated)

    def check(self, node: Node) -> None:
        check_transform(node)
        count, base = self._targets(node), _numbers(node, "base_values")
        if node.attributes["aggregate_function"] not in AGGREGATES or len(base) not in (0, 1, count):
            raise InvalidGraph(
                f"{node.label}: aggregate_function is {node.attributes['aggregate_function']!r} (known are "
                f"{', '.join(AGGREGATES)}), and there are {len(base)} base values for {count} targets"
            )
        super().check(node)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        _, rows, width = rows_and_features(node, inputs)
        _check_width(node, self.forest(node), width)
        return [static(FLOAT32, (rows, self._targets(node)))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = as_rows(as_floats(present(inputs, 0)))
        scores = self.forest(node).scores(x, node.attributes["aggregate_function"])
        base = _numbers(node, "base_values")
        if len(base):
            scores = scores + base.astype(scores.dtype)
        return [_finished(node.attributes["post_transform"], scores).astype(np.float32, copy=False)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None] | None:
        x, base = rows_of(build, present(inputs, 0)), _numbers(node, "base_values")
        scores = leaf_scores(build, self.forest(node), x, node.attributes["aggregate_function"])
        if scores is None:
            return None
        if len(base):
            scores = build.apply("Add", scores, build.constant(base, build.type_of(x).dtype))
        made = finished_scores(build, node.attributes["post_transform"], scores)
        return None if made is None else [converted(build, made, FLOAT32)]


@operator()
class TreeEnsembleClassifier(_Trees):
    """The class that decision trees find likeliest, and a score of each class."""

    outputs = (1, 2)
    attributes = {
        **dict.fromkeys((*_NODE_LISTS, *_weight_lists("class")), OPTIONAL),
        "classlabels_int64s": OPTIONAL,
        "classlabels_strings": OPTIONAL,
        "post_transform": "NONE",
    }
    attribute_types = {**_NODE_LISTS, **_weight_lists("class"), **LABEL_TYPES}

    def lay_out(self, node: Node) -> Forest:
        return _forest(node, "class", max(len(labels_of(node)[1]), 1))

    def check(self, node: Node) -> None:
        check_transform(node)
        count, base = len(labels_of(node)[1]), len(_numbers(node, "base_values"))
        if base not in ((0, count) if count != 2 else (0, 1, 2)):
            raise InvalidGraph(f"{node.label}: there are {base} base values for {count} classes")
        super().check(node)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        _, rows, width = rows_and_features(node, inputs)
        _check_width(node, self.forest(node), width)
        dtype, labels = labels_of(node)
        return [static(dtype, (rows,)), static(FLOAT32, (rows, len(labels)))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = as_rows(as_floats(present(inputs, 0)))
        forest = self.forest(node)
        scores = forest.scores(x, "SUM")
        base = _numbers(node, "base_values").astype(scores.dtype)
        dtype, labels = labels_of(node)
        ids = set(node.attributes["class_ids"] or (0,))
        transform = node.attributes["post_transform"]
        if len(labels) == 2 and len(ids) == 1 and len(base) < 2:
            chosen, scores = _of_two(scores, min(ids), base, transform, forest.weights.min(initial=0) >= 0)
        else:
            if len(base) == 1 < len(labels):
                base = np.concatenate([base, np.zeros(len(labels) - 1, base.dtype)])
            scores = scores + base if len(base) else scores
            chosen = scores.argmax(axis=1)
            scores = transformed(transform, scores)
        return [label_array(dtype, labels)[chosen], scores.astype(np.float32, copy=False)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None] | None:
        x, forest = rows_of(build, present(inputs, 0)), self.forest(node)
        (dtype, labels), kind = labels_of(node), build.type_of(x).dtype
        ids, transform = set(node.attributes["class_ids"] or (0,)), node.attributes["post_transform"]
        base = _numbers(node, "base_values")
        scores = None if dtype == STRING else leaf_scores(build, forest, x, "SUM")
        if scores is None:
            return None
        made: T | None
        if len(labels) == 2 and len(ids) == 1 and len(base) < 2:
            stated, is_share = min(ids), bool(forest.weights.min(initial=0) >= 0)
            score = sliced(build, scores, 1, stated, stated + 1)
            if len(base):
                score = build.apply("Add", score, build.constant(base, kind))
            is_second = build.apply("Greater", score, build.constant(0.5 if is_share else 0, kind))
            chosen, made = labels_of_truths(build, labels, is_second), None
            if stated == 1:
                nothing = expanded(build, build.constant(0, kind), build.type_of(score).dims)
                made = transformed_scores(build, transform, beside(build, nothing, score))
            elif transform != "PROBIT":
                is_margin = transform == "LOGISTIC" or not is_share
                rest = build.apply("Neg", score) if is_margin else other_share(build, score)
                both = beside(build, rest, score)
                made = transformed_scores(build, "LOGISTIC", both) if transform == "LOGISTIC" else both
        else:
            if len(base) == 1 < len(labels):
                base = np.concatenate([base, np.zeros(len(labels) - 1, base.dtype)])
            if len(base):
                scores = build.apply("Add", scores, build.constant(base, kind))
            chosen = labels_of_greatest(build, labels, scores)
            made = transformed_scores(build, transform, scores)
        return None if made is None else [chosen, converted(build, made, FLOAT32)][: len(node.outputs)]


def _of_two(scores: Array, stated: int, base: Array, transform: str, is_share: bool) -> tuple[Array, Array]:
    """The classes and scores of rows where leaves speak of one of two classes alone.

    ONNX leaves open what they then say of the other; models are made for onnxruntime's answer. Where no
    weight is negative, scores are shares of 1, and the second class is chosen above a half; else they are
    margins, and it is chosen above 0.

    Args:
        scores: [rows, 2]
        stated: the class that leaves speak of; the score of class 0 is the second's.
        base: what is added to it, or nothing.
        transform: of the scores.
        is_share: whether no weight is negative.
    """
    score = scores[:, stated] + (base if len(base) else scores.dtype.type(0))
    chosen = (score > (0.5 if is_share else 0)).astype(np.intp)
    if stated == 1:
        return chosen, transformed(transform, np.stack([np.zeros_like(score), score], axis=1))
    if transform == "LOGISTIC":
        return chosen, transformed(transform, np.stack([-score, score], axis=1))
    both = np.stack([1 - score if is_share else -score, score], axis=1)
    return chosen, transformed(transform, both) if transform == "PROBIT" else both


_INTERIOR = (
    "nodes_featureids",
    "nodes_truenodeids",
    "nodes_falsenodeids",
    "nodes_trueleafs",
    "nodes_falseleafs",
)


@operator()
class TreeEnsemble(_Trees):
    """What decision trees predict of some targets; nodes and leaves are lists of their own."""

    attributes = {
        "aggregate_function": 1,
        "post_transform": 0,
        "n_targets": OPTIONAL,
        "nodes_missing_value_tracks_true": OPTIONAL,
        "nodes_hitrates": OPTIONAL,
        "membership_values": OPTIONAL,
        **dict.fromkeys(
            (*_INTERIOR, "tree_roots", "nodes_modes", "nodes_splits", "leaf_targetids", "leaf_weights"),
            REQUIRED,
        ),
    }
    attribute_types = {
        **dict.fromkeys(
            (*_INTERIOR, "tree_roots", "leaf_targetids", "nodes_missing_value_tracks_true"), INTS
        ),
        **dict.fromkeys(
            ("nodes_modes", "nodes_splits", "leaf_weights", "nodes_hitrates", "membership_values"), TENSOR
        ),
        "n_targets": INT,
    }

    def _targets(self, node: Node) -> int:
        stated = node.attributes["n_targets"]
        return max(node.attributes["leaf_targetids"] or (0,)) + 1 if stated is None else int(stated)

    def check(self, node: Node) -> None:
        for name, known in (("aggregate_function", AGGREGATES), ("post_transform", TRANSFORMS)):
            if not 0 <= node.attributes[name] < len(known):
                raise InvalidGraph(f"{node.label}: {name} must be 0 to {len(known) - 1}")
        super().check(node)

    def lay_out(self, node: Node) -> Forest:
        modes = _tensor(node, "nodes_modes").astype(np.int64)
        count, is_leaf = len(modes), {}
        features, true, false, is_leaf["true"], is_leaf["false"] = (
            _column(node, name, count) for name in _INTERIOR
        )
        splits, weights = _tensor(node, "nodes_splits"), _tensor(node, "leaf_weights")
        leaves = len(weights)
        tracks = node.attributes["nodes_missing_value_tracks_true"]
        missing = _column(node, "nodes_missing_value_tracks_true", count) if tracks else np.zeros(count)
        targets = _column(node, "leaf_targetids", leaves, "leaves")
        if len(splits) != count or (count and not 0 <= modes.min() <= modes.max() < len(MODES)):
            raise InvalidGraph(
                f"{node.label}: nodes_modes and nodes_splits must be of one length, modes 0 to "
                f"{len(MODES) - 1}"
            )
        for name, child, leaf in (("true", true, is_leaf["true"]), ("false", false, is_leaf["false"])):
            bound = np.where(leaf != 0, leaves, count)
            if ((child < 0) | (child >= bound)).any():
                raise InvalidGraph(
                    f"{node.label}: nodes_{name}nodeids names a node or leaf that is not there"
                )
            child += np.where(leaf != 0, count, 0)
        roots = np.asarray(node.attributes["tree_roots"], np.int64)
        if len(roots) and roots.max() >= count:
            raise InvalidGraph(f"{node.label}: a tree's root does not exist")
        nothing = np.zeros(leaves, np.int64)
        return make_forest(
            node.label,
            roots=roots,
            modes=np.concatenate([modes, nothing + LEAF]).astype(np.int8),
            features=np.concatenate([features, nothing]),
            splits=np.concatenate([splits, nothing.astype(splits.dtype)]),
            true=np.concatenate([true, nothing]),
            false=np.concatenate([false, nothing]),
            missing=np.concatenate([missing, nothing]) != 0,
            entries=(np.arange(count, count + leaves), targets, weights),
            count=self._targets(node),
            members=_members(node, int((modes == MODES.index("MEMBER")).sum())),
        )

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, (FLOAT32, FLOAT64, FLOAT16), "X")
        require_rank(node, x, 1, 2, "X")
        _check_width(node, self.forest(node), x.dims[-1])
        return [static(x.dtype, (1 if x.rank == 1 else x.dims[0], self._targets(node)))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        scores = self.forest(node).scores(
            as_rows(as_floats(x)), AGGREGATES[node.attributes["aggregate_function"]]
        )
        made = _finished(TRANSFORMS[node.attributes["post_transform"]], scores)
        return [made.astype(x.dtype, copy=False)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None] | None:
        x = present(inputs, 0)
        how = AGGREGATES[node.attributes["aggregate_function"]]
        scores = leaf_scores(build, self.forest(node), rows_of(build, x), how)
        if scores is None:
            return None
        made = finished_scores(build, TRANSFORMS[node.attributes["post_transform"]], scores)
        return None if made is None else [converted(build, made, build.type_of(x).dtype)]


def _finished(transform: str, scores: Array) -> Array:
    """Scores of targets after a post transform.

    That of a single target is left as it is but by PROBIT, as onnxruntime does it: a softmax of one number
    says nothing, and models were made with what it answers for LOGISTIC.
    """
    return scores if scores.shape[1] == 1 and transform != "PROBIT" else transformed(transform, scores)


def _tensor(node: Node, name: str) -> Array:
    constant: Constant = node.attributes[name]
    found = np.asarray(constant.array).reshape(-1)
    return found.astype(np.float32) if found.dtype == np.float16 else found


def _members(node: Node, count: int) -> list[Array]:
    """The sets that nodes of mode MEMBER look into, which NaN parts."""
    if node.attributes["membership_values"] is None:
        return []
    values = _tensor(node, "membership_values")
    ends = np.flatnonzero(np.isnan(values))
    parts = np.split(values, ends)
    found = [part[np.isnan(part[:1]).sum() :] for part in parts]
    return found[:count] if len(found) > count and not len(found[-1]) else found
