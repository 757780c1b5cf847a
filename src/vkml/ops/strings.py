"""Operators on tensors of strings: joined, split, cleaned, matched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import BOOL, INT64, STRING
from vkml.ir.graph import Node
from vkml.ir.lazy import kept
from vkml.ir.operator import INT, OPTIONAL, STRINGS, Array, Operator, operator
from vkml.ir.operator import STRING as TEXT
from vkml.ir.types import Known, TensorType
from vkml.ops.automata import Automaton
from vkml.ops.broadcasting import broadcast_shapes
from vkml.ops.checks import present, require_dtype, require_rank, required
from vkml.ops.limits import check_size
from vkml.ops.regular_expressions import compiled
from vkml.ops.texts import each_character, of_texts, text_list, texts


def _strings(node: Node, inputs: Sequence[Known | None], index: int = 0) -> Known:
    found = required(node, inputs, index)
    require_dtype(node, found, (STRING,), f"input {index}")
    return found


@operator()
class StringConcat(Operator):
    """Strings of one tensor with those of another behind them, broadcast."""

    inputs = (2, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        a, b = _strings(node, inputs), _strings(node, inputs, 1)
        return [check_size(node, STRING, broadcast_shapes(node, a.dims, b.dims))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        a, b = np.broadcast_arrays(texts(present(inputs, 0)), texts(present(inputs, 1)))
        joined = [x + y for x, y in zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)]
        return [of_texts(joined, a.shape)]


@operator()
class StringSplit(Operator):
    """The parts of strings between delimiters, filled up with empty ones, and how many each has."""

    outputs = (1, 2)
    written_outputs = 2
    sizing_inputs = (0,)
    attributes = {"delimiter": OPTIONAL, "maxsplit": OPTIONAL}
    attribute_types = {"delimiter": TEXT, "maxsplit": INT}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = _strings(node, inputs)
        width = None if x.value is None else self.evaluate(node, [x.value])[0].shape[-1]
        return [TensorType(STRING, (*x.dims, width)), TensorType(INT64, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        delimiter, limit = node.attributes["delimiter"] or None, node.attributes["maxsplit"]
        parts = [text.split(delimiter, -1 if limit is None else limit) for text in text_list(x)]
        counts = [len(part) for part in parts]
        width = max(counts, default=0)
        filled = [item for part in parts for item in (*part, *[""] * (width - len(part)))]
        return [of_texts(filled, (*x.shape, width)), np.array(counts, np.int64).reshape(x.shape)]


@operator()
class StringNormalizer(Operator):
    """Strings without stop words, in lower or upper case; one empty string where none is left."""

    sizing_inputs = (0,)
    attributes = {
        "case_change_action": "NONE",
        "is_case_sensitive": 0,
        "locale": OPTIONAL,
        "stopwords": OPTIONAL,
    }
    attribute_types = {"locale": TEXT, "stopwords": STRINGS}

    def check(self, node: Node) -> None:
        if node.attributes["case_change_action"] not in _CASES:
            raise InvalidGraph(
                f"{node.label}: case_change_action must be LOWER, UPPER or NONE, not "
                f"{node.attributes['case_change_action']!r}"
            )

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = _strings(node, inputs)
        require_rank(node, x, 1, 2)
        if x.rank == 2 and x.dims[0] != 1:
            raise ShapeError(
                f"{node.label}: the input must have the shape [C] or [1, C], it has {list(x.dims)}"
            )
        count = None if x.value is None else self.evaluate(node, [x.value])[0].shape[-1]
        return [TensorType(STRING, (*x.dims[:-1], count))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)

        def compared(text: str) -> str:
            return text if node.attributes["is_case_sensitive"] else each_character(text, str.lower)

        stop = {compared(word) for word in node.attributes["stopwords"] or ()}
        change = _CASES[node.attributes["case_change_action"]]
        left = [text for text in text_list(x) if not stop or compared(text) not in stop] or [""]
        if change is not None:
            left = [each_character(text, change) for text in left]
        return [of_texts(left, (*x.shape[:-1], len(left)))]


_CASES = {"LOWER": str.lower, "UPPER": str.upper, "NONE": None}


@operator()
class RegexFullMatch(Operator):
    """Whether strings as a whole are what a regular expression of RE2 describes."""

    attributes = {"pattern": OPTIONAL}
    attribute_types = {"pattern": TEXT}

    def check(self, node: Node) -> None:
        if node.attributes["pattern"] is None:
            raise InvalidGraph(f"{node.label}: the attribute 'pattern' is missing")
        self._pattern(node)

    def _pattern(self, node: Node) -> Automaton:
        return kept(node, "pattern", lambda node: compiled(node.label, node.attributes["pattern"]))

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [TensorType(BOOL, _strings(node, inputs).dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, pattern = present(inputs, 0), self._pattern(node)
        found = [pattern.matches(text) for text in text_list(x)]
        return [np.array(found, np.bool_).reshape(x.shape)]
