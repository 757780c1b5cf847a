"""What is known of strings."""

from __future__ import annotations

from typing import Any

from tests.fuzz.known.conditions import ONNX, ORT, Freedom
from tests.fuzz.tensors import Array
from vkml.ir import Node


def _has_accents(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data = inputs[0]
    return data is not None and not all(str(text).isascii() for text in data.reshape(-1))


def _drops(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data = inputs[0]
    return data is not None and "" in data.reshape(-1).tolist()


def _is_weighted(node: Node, inputs: list[Array | None], result: Array) -> Any:
    columns = list(node.attributes["ngram_indexes"])
    return node.attributes["mode"] != "TF" and columns != sorted(columns)


def _splits_at_whitespace(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return not node.attributes["delimiter"] or _drops(node, inputs, result)


def _keeps_case(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["case_change_action"] == "NONE" and not node.attributes["is_case_sensitive"]


FREEDOMS = (
    Freedom("StringNormalizer", _drops, "onnx's evaluator drops empty strings, too", ONNX),
    Freedom(
        "TfIdfVectorizer", _is_weighted, "onnx's evaluator takes weights for columns', not n-grams'", ONNX
    ),
    Freedom(
        "StringSplit",
        _splits_at_whitespace,
        "onnxruntime: spaces alone are whitespace, nothing has no part",
        ORT,
    ),
    Freedom("RegexFullMatch", _has_accents, "onnx's evaluator takes Python's expressions for RE2's", ONNX),
    Freedom("StringNormalizer", _has_accents, "onnx's evaluator takes accents off", ONNX),
    Freedom("StringNormalizer", _keeps_case, "onnxruntime minds case where it does not change it", ORT),
)
