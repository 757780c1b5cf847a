"""Operators of com.microsoft on strings: what scikit-learn's text features are exported with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import FLOAT32, FLOAT64, INT32, INT64, STRING, UINT32, UINT64
from vkml.ir.graph import Node
from vkml.ir.lazy import kept
from vkml.ir.operator import OPTIONAL, REQUIRED, STRINGS, Array, Operator, operator
from vkml.ir.operator import STRING as TEXT
from vkml.ir.types import Known, TensorType
from vkml.ops.automata import Automaton
from vkml.ops.checks import present, require_dtype, require_rank, required
from vkml.ops.regular_expressions import compiled
from vkml.ops.texts import of_texts, text_list


@operator()
class Tokenizer(Operator):
    """The parts of strings, filled up with `pad_value`, along a new last axis; none where there is no string.

    They are what `tokenexp` describes, or what is left between `separators`, each of which divides what the
    ones before it left; single characters where a separator is empty, or `tokenexp` is a dot. Parts of fewer
    than `mincharnum` characters do not count. With `mark` a character 2 comes before the parts of a string,
    a character 3 behind them, unless no string has any.
    """

    domain = "com.microsoft"
    sizing_inputs = (0,)
    attributes = {
        "mark": REQUIRED,
        "mincharnum": REQUIRED,
        "pad_value": REQUIRED,
        "separators": OPTIONAL,
        "tokenexp": OPTIONAL,
    }
    attribute_types = {"separators": STRINGS, "tokenexp": TEXT, "pad_value": TEXT}

    def check(self, node: Node) -> None:
        attributes = node.attributes
        least = attributes["mincharnum"]
        if least < 1:
            raise InvalidGraph(f"{node.label}: mincharnum must be 1 at least, not {least}")
        if not attributes["separators"] and not attributes["tokenexp"]:
            raise InvalidGraph(f"{node.label}: neither separators nor tokenexp say what tokens are")
        if _is_by_character(node) and least != 1:
            raise InvalidGraph(f"{node.label}: tokens are characters, and mincharnum is {least}")
        self._patterns(node)

    def _patterns(self, node: Node) -> list[Automaton]:
        def written(node: Node) -> list[Automaton]:
            patterns = node.attributes["separators"] or [node.attributes["tokenexp"]]
            return [] if _is_by_character(node) else [compiled(node.label, each) for each in patterns]

        return kept(node, "patterns", written)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, (STRING,), "the input")
        require_rank(node, x, 1, 2)
        if x.value is not None:
            return [TensorType(STRING, self.evaluate(node, [x.value])[0].shape)]
        return [TensorType(STRING, x.dims if x.type.elements == 0 else (*x.dims, None))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        if not x.size:
            return [of_texts([], x.shape)]
        found = [self._tokens(node, text) for text in text_list(x)]
        width = max(map(len, found))
        if width and node.attributes["mark"]:
            found, width = [["\x02", *tokens, "\x03"] for tokens in found], width + 2
        pad = node.attributes["pad_value"]
        filled = [token for tokens in found for token in (*tokens, *[pad] * (width - len(tokens)))]
        return [of_texts(filled, (*x.shape, width))]

    def _tokens(self, node: Node, text: str) -> list[str]:
        if _is_by_character(node):
            return list(text)
        least = node.attributes["mincharnum"]
        if not node.attributes["separators"]:
            [pattern] = self._patterns(node)
            found = [text[begin:end] for begin, end in _matches(pattern, text)]
            return [token for token in found if len(token) >= least]
        tokens = [text]
        for pattern in self._patterns(node):
            tokens = [part for token in tokens for part in _between(pattern, token) if len(part) >= least]
        return tokens


def _is_by_character(node: Node) -> bool:
    separators = node.attributes["separators"]
    return list(separators) == [""] if separators else node.attributes["tokenexp"] == "."


def _matches(pattern: Automaton, text: str) -> Iterator[tuple[int, int]]:
    """Parts that a pattern describes, one behind the other; a character is left out where one is empty."""
    at = 0
    while (found := pattern.find(text, at)) is not None:
        yield found
        begin, end = found
        at = end if end > begin else end + 1
        if at > len(text):
            return


def _between(pattern: Automaton, text: str) -> list[str]:
    """What is left between the parts that a pattern describes."""
    parts, at = [], 0
    for begin, end in _matches(pattern, text):
        parts.append(text[at:begin])
        at = end if end > begin else end + 1
    return [*parts, text[at:]]


@operator()
class MurmurHash3(Operator):
    """A hash of 32 bits of each element's bytes: MurmurHash3_x86_32 (Austin Appleby), for feature hashing."""

    domain = "com.microsoft"
    attributes = {"positive": 1, "seed": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, (INT32, UINT32, INT64, UINT64, FLOAT32, FLOAT64, STRING), "the input")
        return [TensorType(UINT32 if node.attributes["positive"] else INT32, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, seed = present(inputs, 0), node.attributes["seed"]
        if x.dtype.kind in "OUS":
            made = np.array([murmur_hash(text.encode(), seed) for text in text_list(x)], np.uint32)
            made = made.reshape(x.shape)
        else:
            octets = np.ascontiguousarray(x).reshape(-1)
            words = octets.view("<u4").reshape(octets.size, -1) if octets.size else np.zeros((0, 1), "<u4")
            made = _hashed(words, np.zeros(len(words), np.uint32), 4 * words.shape[1], seed).reshape(x.shape)
        return [made if node.attributes["positive"] else made.view(np.int32)]


def murmur_hash(data: bytes, seed: int) -> int:
    """MurmurHash3_x86_32 of bytes."""
    words = np.frombuffer(data[: len(data) & ~3], "<u4")
    rest = int.from_bytes(data[len(data) & ~3 :], "little")
    return int(_hashed(words[None], np.array([rest], np.uint32), len(data), seed)[0])


def _hashed(words: Array, rest: Array, size: int, seed: int) -> Array:
    """MurmurHash3_x86_32 of rows of words, and of up to three bytes behind each; of `size` bytes each."""

    def turned(x: Array, places: int) -> Array:
        return x << np.uint32(places) | x >> np.uint32(32 - places)

    def mixed(x: Array) -> Array:
        return turned(x * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)

    found = np.full(len(words), seed & 0xFFFFFFFF, np.uint32)
    for word in words.T:
        found = turned(found ^ mixed(word), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    found ^= mixed(rest)
    found ^= np.uint32(size)
    for places, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ found >> np.uint32(places)) * np.uint32(factor)
    return found ^ found >> np.uint32(16)
