"""Forests of decision trees: laid out as arrays, and all rows taken down all trees level by level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, RuntimeException
from vkml.ir.operator import Array

T = TypeVar("T")

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
"""Comparisons of a feature with a split, by their numbers in TreeEnsemble; MEMBER becomes several of EQ."""
LEAF = -1
"""The mode of a node that compares nothing."""
_COMPARISONS: tuple[Callable[..., Any], ...] = (
    np.less_equal,
    np.less,
    np.greater_equal,
    np.greater,
    np.equal,
    np.not_equal,
)
_STEPS = 1 << 15
"""Pairs of a row and a tree that go down together: what is read for them stays in a processor's cache."""
_LEAVES = 1 << 22
"""Pairs of a row and a tree whose leaves are kept at a time."""
_FEW_SCORES = 64
"""Scores for which what all trees say is added up at once."""
_SIFTED = 4
"""Levels after which pairs that have come to a leaf are left out."""


@dataclass(frozen=True)
class Forest:
    """Decision trees as parallel arrays over their nodes; leaves lead to themselves.

    Entries of leaves, which target each adds how much to, are padded to the same number with weight 0.
    """

    roots: Array
    """Of each tree, in the order in which its leaves are added up."""
    depths: Array
    """Of each tree, how many comparisons lead to its farthest leaf."""
    modes: Array
    features: Array
    splits: Array
    children: Array
    """[nodes, 2]: where to go when the comparison is false, and when it is true."""
    missing: Array
    """Whether the comparison counts as true for NaN."""
    targets: Array
    """[nodes, entries]"""
    weights: Array
    """[nodes, entries]"""
    has_entry: Array
    """[nodes, entries]"""
    count: int
    """Of targets."""
    where: str
    """What messages call it."""

    _made: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def widest(self) -> int:
        """The last feature that a comparison looks at; -1 where there is none."""
        return int(self.features[self.modes != LEAF].max(initial=-1))

    @cached_property
    def by_depth(self) -> Array:
        """The trees, in the order of their depths."""
        return np.argsort(self.depths, kind="stable")

    def _laid_out(self, what: str, dtype: np.dtype[Any], make: Callable[[Forest, np.dtype[Any]], T]) -> T:
        """What is made of all nodes for rows of a type: once, for a row takes less time than that."""
        if (what, dtype) not in self._made:
            self._made[what, dtype] = make(self, dtype)
        found: T = self._made[what, dtype]
        return found

    def leaves(self, x: Array) -> Array:
        """The leaf that each row comes to in each tree.

        Args:
            x: [rows, features], of the splits' type.

        Returns:
            [trees, rows], numbers of nodes.
        """
        rows, width = x.shape
        if self.widest >= width:
            raise RuntimeException(f"{self.where}: a tree looks at feature {self.widest}, there are {width}")
        made = np.empty((len(self.roots), rows), np.int32)
        if not rows:
            return made
        flat = np.ascontiguousarray(x).reshape(-1)
        walk = self._laid_out("walk", x.dtype, _Walk)
        minds_missing = walk.minds_missing and bool(np.isnan(flat).any())
        order = self.by_depth
        offsets = np.arange(rows, dtype=np.intp) * width
        block = max(1, _STEPS // rows)
        for at in range(0, len(order), block):
            trees = order[at : at + block]
            starts = np.repeat(self.roots[trees] * 2, rows)
            depth = int(self.depths[trees[-1]])
            found = walk.down(flat, starts, np.tile(offsets, len(trees)), depth, minds_missing)
            made[trees] = found.reshape(len(trees), rows)
        return made

    def scores(self, x: Array, aggregate: str) -> Array:
        """What leaves add up to for each row and target, in the order of the trees, in the type of `x`.

        Args:
            x: [rows, features], of the splits' type.
            aggregate: SUM, AVERAGE, MIN or MAX.

        Returns:
            [rows, targets], 0 where no leaf said anything of a target.
        """
        rows = len(x)
        start = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
        totals = np.full((rows, self.count), start, x.dtype)
        has_any = np.zeros((rows, self.count), np.bool_)
        combine: Any = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
        chunk = max(256, _LEAVES // max(1, len(self.roots)))
        weights = self.weights.astype(x.dtype, copy=False)
        dense = self._laid_out("dense", x.dtype, Forest._by_target)
        for at in range(0, rows, chunk):
            part, seen = totals[at : at + chunk], has_any[at : at + chunk]
            leaves = self.leaves(x[at : at + chunk])
            if dense is not None:
                if part.size <= _FEW_SCORES:
                    every = np.concatenate([part[None], dense[leaves]])
                    part[:] = combine.accumulate(every, axis=0)[-1]
                else:
                    for found in leaves:
                        combine(part, dense[found], out=part)
                seen[:] = len(leaves) > 0
                continue
            line = np.arange(len(part))
            for found in leaves:
                for entry in range(self.weights.shape[1]):
                    there = self.has_entry[found, entry]
                    at_row, node = (line, found) if there.all() else (line[there], found[there])
                    target = self.targets[node, entry]
                    part[at_row, target] = combine(part[at_row, target], weights[node, entry])
                    seen[at_row, target] = True
        if aggregate == "AVERAGE" and len(self.roots):
            totals /= x.dtype.type(len(self.roots))
        return np.where(has_any, totals, x.dtype.type(0))

    def _by_target(self, dtype: np.dtype[Any]) -> Array | None:
        """[nodes, targets], where each leaf has one entry of each target; None where not."""
        weights = self.weights.astype(dtype, copy=False)
        is_leaf = self.modes == LEAF
        if self.weights.shape[1] != self.count or not self.has_entry[is_leaf].all():
            return None
        ordered = np.sort(self.targets[is_leaf], axis=1)
        if (ordered != np.arange(self.count)).any():
            return None
        dense = np.zeros_like(weights)
        nodes = np.flatnonzero(is_leaf)[:, None]
        dense[nodes, self.targets[is_leaf]] = weights[is_leaf]
        return dense


class _Walk:
    """Takes pairs of a row and a tree down from node to node."""

    def __init__(self, forest: Forest, dtype: np.dtype[Any]) -> None:
        # A pair stands at twice the number of a node, so that a comparison picks the child without a product.
        self._children = forest.children.reshape(-1).astype(np.intp) * 2
        is_leaf = forest.modes == LEAF
        self._features = np.repeat(np.where(is_leaf, 0, forest.features), 2).astype(np.intp)
        self._splits = np.repeat(forest.splits.astype(dtype, copy=False), 2)
        self._is_leaf = np.repeat(is_leaf, 2)
        self.minds_missing = bool(forest.missing.any())
        self._missing = np.repeat(forest.missing, 2) if self.minds_missing else None
        modes = np.unique(forest.modes[~is_leaf])
        self._mode = int(modes[0]) if len(modes) == 1 else None
        self._modes = np.repeat(forest.modes, 2)
        self._present = [int(mode) for mode in modes]

    def down(self, x: Array, places: Array, offsets: Array, depth: int, minds_missing: bool) -> Array:
        """The nodes that pairs come to.

        Args:
            x: all rows, one behind the other.
            places: twice the nodes that they start at.
            offsets: of each pair, where its row starts.
            depth: of the farthest leaf.
            minds_missing: whether any element is NaN that some comparison takes for true.
        """
        ended: list[tuple[Array, Array]] = []
        pairs: Array | None = None
        """Of the pairs that are left, their numbers, once some are not."""
        total = len(places)
        for level in range(depth):
            if level and level % _SIFTED == 0:
                is_going = ~self._is_leaf[places]
                if np.count_nonzero(is_going) < 0.7 * len(places):
                    numbers = np.arange(total) if pairs is None else pairs
                    ended.append((numbers[~is_going], places[~is_going]))
                    pairs, places, offsets = numbers[is_going], places[is_going], offsets[is_going]
            values = x[self._features[places] + offsets]
            places = self._children[places + self._is_true(values, places, minds_missing)]
        if pairs is None:
            return places >> 1
        made: Array = np.empty(total, np.intp)
        for numbers, found in [*ended, (pairs, places)]:
            made[numbers] = found
        return np.asarray(made >> 1)

    def _is_true(self, values: Array, places: Array, minds_missing: bool) -> Array:
        splits = self._splits[places]
        if self._mode is not None:
            found = _COMPARISONS[self._mode](values, splits)
        else:
            found = np.zeros(len(values), np.bool_)
            modes = self._modes[places]
            for mode in self._present:
                found |= (modes == mode) & _COMPARISONS[mode](values, splits)
        if minds_missing and self._missing is not None:
            found |= np.isnan(values) & self._missing[places]
        return np.asarray(found)


def make_forest(
    where: str,
    *,
    roots: Array,
    modes: Array,
    features: Array,
    splits: Array,
    true: Array,
    false: Array,
    missing: Array,
    entries: tuple[Array, Array, Array],
    count: int,
    members: Sequence[Array] = (),
) -> Forest:
    """A forest of nodes that are checked: no comparison leads outside, or round in a circle.

    Args:
        where: what messages call it.
        roots: node of each tree.
        modes: number in `MODES`, or `LEAF`, of each node.
        features: of each node; negative ones are none.
        splits: of each node.
        true: the node to go to.
        false: the node to go to.
        missing: whether NaN goes where what is true goes.
        entries: of leaves: node, target and weight of each.
        count: of targets.
        members: of each node of mode MEMBER, in their order, what it looks for.
    """
    modes, features, splits, true, false, missing = _without_members(
        where, modes, features, splits, true, false, missing, members
    )
    number = len(modes)
    is_leaf = modes == LEAF
    children = np.stack([false, true], axis=1).astype(np.int64)
    children[is_leaf] = np.flatnonzero(is_leaf)[:, None]
    if number and (children.min() < 0 or children.max() >= number):
        raise InvalidGraph(f"{where}: a comparison leads to a node that does not exist")
    if len(roots) and (roots.min() < 0 or roots.max() >= number):
        raise InvalidGraph(f"{where}: a tree's root does not exist")
    if (features[~is_leaf] < 0).any():
        raise InvalidGraph(f"{where}: a comparison looks at a negative feature")
    nodes, targets, weights = entries
    if len(nodes) and (targets.min() < 0 or targets.max() >= count):
        raise InvalidGraph(
            f"{where}: weights are for targets {targets.min()} to {targets.max()}, there are {count}"
        )
    order = np.argsort(nodes, kind="stable")
    nodes, targets, weights = nodes[order], targets[order], weights[order]
    first = np.searchsorted(nodes, nodes)
    place = np.arange(len(nodes)) - first
    width = int(place.max()) + 1 if len(place) else 1
    padded = np.zeros((number, width), np.intp), np.zeros((number, width), weights.dtype)
    has_entry = np.zeros((number, width), np.bool_)
    padded[0][nodes, place], padded[1][nodes, place], has_entry[nodes, place] = targets, weights, True
    depths = _depths(where, roots, children, is_leaf)
    return Forest(roots, depths, modes, features, splits, children, missing, *padded, has_entry, count, where)


def _depths(where: str, roots: Array, children: Array, is_leaf: Array) -> Array:
    """Of each tree, how many comparisons lead to its farthest leaf."""
    depths = np.zeros(len(roots), np.int64)
    pairs = np.unique(np.arange(len(roots)) + roots.astype(np.int64) * len(roots))
    for level in range(len(children) + 1):
        trees, nodes = pairs % max(1, len(roots)), pairs // max(1, len(roots))
        going = ~is_leaf[nodes]
        trees, nodes = trees[going], nodes[going]
        if not len(nodes):
            return depths
        depths[trees] = level + 1
        pairs = children[nodes].reshape(-1) * len(roots) + np.repeat(trees, 2)
        if len(pairs) > 2 * len(children):  # branches that meet again
            pairs = np.unique(pairs)
    raise InvalidGraph(f"{where}: the comparisons of a tree lead round in a circle")


def _without_members(
    where: str,
    modes: Array,
    features: Array,
    splits: Array,
    true: Array,
    false: Array,
    missing: Array,
    members: Sequence[Array],
) -> tuple[Array, ...]:
    """Nodes that look for a member of a set as one comparison after the other with EQ."""
    at_members = np.flatnonzero(modes == MODES.index("MEMBER"))
    if len(at_members) != len(members):
        raise InvalidGraph(f"{where}: {len(at_members)} nodes look for members of {len(members)} sets")
    columns = [modes.copy(), features, splits.copy(), true, false.copy(), missing]
    modes, _, splits, _, false, _ = columns
    added: list[list[Any]] = [[] for _ in columns]
    size = len(modes)
    for node, values in zip(at_members, members, strict=True):
        modes[node] = MODES.index("EQ")
        if not len(values):
            splits[node] = np.nan  # which nothing equals
            continue
        splits[node], last = values[0], false[node]
        for number, value in enumerate(values[1:]):
            here = size + len(added[0])
            if number == 0:
                false[node] = here
            is_last = number == len(values) - 2
            row = (modes[node], features[node], value, true[node], last if is_last else here + 1)
            for column, item in zip(added, (*row, missing[node]), strict=True):
                column.append(item)
    if not added[0]:
        return tuple(columns)
    return tuple(
        np.concatenate([column, np.array(items, column.dtype)])
        for column, items in zip(columns, added, strict=True)
    )
