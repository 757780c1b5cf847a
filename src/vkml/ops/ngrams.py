"""TfIdfVectorizer: counts of n-grams, weighted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph
from vkml.ir.dtypes import FLOAT32, INT32, INT64, STRING
from vkml.ir.graph import Node
from vkml.ir.lazy import kept
from vkml.ir.operator import FLOATS, INT, INTS, OPTIONAL, REQUIRED, STRINGS, Array, Operator, operator
from vkml.ir.operator import STRING as TEXT
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, require_rank, required
from vkml.ops.labels import Table
from vkml.ops.limits import check_size

_WINDOWS = 1 << 20
"""Windows of words that are looked up at a time."""


@dataclass(frozen=True)
class _Level:
    """What the n-grams of a pool are for one more word: from what was read so far, and the word."""

    pairs: Array
    """Sorted: number of what was read, times the words there are, plus the word."""
    columns: Array
    """Of each pair: where the n-gram is counted that ends there, -1 where none does."""


@dataclass(frozen=True)
class _Pool:
    words: Table
    count: int
    levels: tuple[_Level, ...]
    """Of the lengths 1, 2, …"""


@operator()
class TfIdfVectorizer(Operator):
    """How often each n-gram of a pool is in a row of words, times its weight."""

    attributes = {
        **dict.fromkeys(
            (
                "max_gram_length",
                "max_skip_count",
                "min_gram_length",
                "mode",
                "ngram_counts",
                "ngram_indexes",
            ),
            REQUIRED,
        ),
        **dict.fromkeys(("pool_int64s", "pool_strings", "weights"), OPTIONAL),
    }
    attribute_types = {
        **dict.fromkeys(("max_gram_length", "max_skip_count", "min_gram_length"), INT),
        **dict.fromkeys(("ngram_counts", "ngram_indexes", "pool_int64s"), INTS),
        "mode": TEXT,
        "pool_strings": STRINGS,
        "weights": FLOATS,
    }

    def check(self, node: Node) -> None:
        given = node.attributes
        if given["mode"] not in ("TF", "IDF", "TFIDF"):
            raise InvalidGraph(f"{node.label}: mode must be TF, IDF or TFIDF, not {given['mode']!r}")
        if not 1 <= given["min_gram_length"] <= given["max_gram_length"] or given["max_skip_count"] < 0:
            raise InvalidGraph(
                f"{node.label}: n-grams are of {given['min_gram_length']} to {given['max_gram_length']} "
                f"words with {given['max_skip_count']} left out; lengths must be positive and in order, the "
                "number not negative"
            )
        if bool(given["pool_strings"]) == bool(given["pool_int64s"]):
            raise InvalidGraph(
                f"{node.label}: one of pool_strings and pool_int64s must be given, and no more"
            )
        columns, weights = given["ngram_indexes"], given["weights"]
        if min(columns, default=0) < 0 or (weights and len(weights) != len(columns)):
            raise InvalidGraph(
                f"{node.label}: ngram_indexes must not be negative, and there is a weight for each or none"
            )
        kept(node, "pool", self._pool)

    def _pool(self, node: Node) -> _Pool:
        given = node.attributes
        items = given["pool_strings"] or given["pool_int64s"]
        pool = np.empty(len(items), np.object_ if given["pool_strings"] else np.int64)
        pool[:] = items
        starts = (*given["ngram_counts"], len(pool))
        if list(starts) != sorted(starts) or starts[0] < 0:
            raise InvalidGraph(f"{node.label}: ngram_counts must be places in the pool, in order")
        words = np.unique(pool)
        table, count = Table(words), len(words)
        read: list[dict[tuple[int, int], int]] = []
        """For each length, the numbers of what is read so far, by those of one word less and a word."""
        ends: list[dict[int, int]] = []
        column = 0
        columns = given["ngram_indexes"]
        for length, (start, end) in enumerate(itertools.pairwise(starts), 1):
            if (end - start) % length:
                raise InvalidGraph(f"{node.label}: {end - start} words are no n-grams of {length} words")
            for gram in table.find(pool[start:end]).reshape(-1, length).tolist():
                if column >= len(columns):
                    raise InvalidGraph(f"{node.label}: there are more n-grams than ngram_indexes")
                prefix = 0
                for level, word in enumerate(gram):
                    if level == len(read):
                        read.append({})
                        ends.append({})
                    prefix = read[level].setdefault((prefix, word), len(read[level]))
                if given["min_gram_length"] <= length <= given["max_gram_length"]:
                    ends[length - 1][prefix] = columns[column]
                column += 1
        if column != len(columns):
            raise InvalidGraph(f"{node.label}: there are {len(columns)} ngram_indexes for {column} n-grams")
        # Numbers of what is read follow the order in which pairs are sorted, so that a search gives them.
        levels: list[_Level] = []
        renumbered = np.zeros(1, np.int64)
        for known, ended in zip(read, ends, strict=True):
            keys = np.array(list(known), np.int64).reshape(-1, 2)
            pairs = renumbered[keys[:, 0]] * count + keys[:, 1]
            order = np.argsort(pairs)
            found = np.array([ended.get(number, -1) for number in range(len(known))], np.int64)
            levels.append(_Level(pairs[order], found[order]))
            renumbered = np.empty(len(known), np.int64)
            renumbered[order] = np.arange(len(known))
        return _Pool(table, count, tuple(levels))

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, (STRING,) if node.attributes["pool_strings"] else (INT32, INT64), "X")
        require_rank(node, x, 1, 2, "X")
        return [check_size(node, FLOAT32, (*x.dims[:-1], self._width(node)))]

    def _width(self, node: Node) -> int:
        return max(node.attributes["ngram_indexes"], default=-1) + 1

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, given = present(inputs, 0), node.attributes
        pool: _Pool = kept(node, "pool", self._pool)
        rows = pool.words.find(x if x.ndim == 2 else x.reshape(1, -1))
        width = self._width(node)
        counts = np.zeros((len(rows), width), np.float32)
        step = max(1, _WINDOWS // max(1, rows.shape[1]))
        for at in range(0, len(rows), step):
            self._count(pool, rows[at : at + step], counts[at : at + step], given)
        if given["mode"] == "IDF":
            counts = np.minimum(counts, 1)
        if given["mode"] != "TF" and given["weights"]:
            scales = np.ones(width, np.float32)
            scales[list(given["ngram_indexes"])] = given["weights"]
            counts = counts * scales
        return [counts.reshape(*x.shape[:-1], width)]

    def _count(self, pool: _Pool, rows: Array, counts: Array, given: Any) -> None:
        """Adds the n-grams of some rows of words to their counts."""
        length = rows.shape[1]
        for distance in range(1, given["max_skip_count"] + 2):
            state = np.zeros(rows.shape, np.int64)
            for level, known in enumerate(pool.levels[: given["max_gram_length"]]):
                # Columns of `state` are where windows begin; those that would end outside go.
                width = length - level * distance
                if width <= 0:
                    break
                word = rows[:, level * distance :]
                state = state[:, :width]
                pair = np.where((state >= 0) & (word >= 0), state * pool.count + word, -1)
                place = np.minimum(np.searchsorted(known.pairs, pair), len(known.pairs) - 1)
                is_known = (known.pairs[place] == pair) & (pair >= 0)
                state = np.where(is_known, place, -1)
                if level == 0 and distance > 1:
                    continue  # single words have been counted
                column = np.where(is_known, known.columns[place], -1)
                row, at = np.nonzero(column >= 0)
                np.add.at(counts, (row, column[row, at]), np.float32(1))
