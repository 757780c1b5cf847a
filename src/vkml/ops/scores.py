"""What ai.onnx.ml's predictors make of scores: the post transforms, and labels by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import FLOAT32, FLOAT64, INT32, INT64, STRING, DType
from vkml.ir.graph import Node
from vkml.ir.operator import INTS, STRINGS, Array, AttributeType
from vkml.ir.types import Known
from vkml.ops.checks import require_dtype, require_rank, required

DOMAIN = "ai.onnx.ml"

FEATURES = (FLOAT32, FLOAT64, INT64, INT32)
"""Element types of what predictors look at."""

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

_NOTHING = 1e-7
"""Scores of at most this size are zeros for SOFTMAX_ZERO, which leaves these zeros."""


def transformed(name: str, scores: Array) -> Array:
    """Scores after a post transform, each row by itself.

    Args:
        name: of the transform.
        scores: [rows, classes], float32 or float64.

    Returns:
        Of the same shape and type.
    """
    with np.errstate(all="ignore"):
        if name == "LOGISTIC":
            return logistic(scores)
        if name == "PROBIT":
            return probit(scores)
        if name == "NONE" or not scores.size:
            return scores
        largest = scores.max(axis=1, keepdims=True)
        powers = np.exp(scores - largest)
        if name == "SOFTMAX_ZERO":
            is_zero = np.abs(scores) <= _NOTHING
            total = np.where(is_zero, scores.dtype.type(0), powers).sum(axis=1, keepdims=True)
            return np.asarray(np.where(is_zero, scores * np.exp(-largest), powers) / total)
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), without the overflow of its powers."""
    above = 1 / (1 + np.exp(-np.abs(x)))
    return np.where(x < 0, 1 - above, above).astype(x.dtype, copy=False)


def probit(x: Array) -> Array:
    """The quantile of the normal distribution, by the inverse error function.

    That is S. Winitzki, "A handy approximation for the error function and its inverse", 2008, with a = 0.147:
    good to 2e-3. ONNX does not say how exact it has to be; models were made with this one.
    """
    y = 2 * x.astype(np.float32) - 1
    factor = np.float32(0.147)
    log = np.log((1 - y) * (1 + y))
    half = np.float32(2) / (np.float32(3.14159) * factor) + np.float32(0.5) * log
    root = np.sqrt(-half + np.sqrt(half * half - log / factor))
    return np.asarray(np.float32(1.41421356) * np.where(y < 0, -root, root), x.dtype)


def check_transform(node: Node, known: Sequence[str] = TRANSFORMS) -> str:
    """The node's `post_transform`; `InvalidGraph` where there is none of that name."""
    name = node.attributes["post_transform"]
    if name not in known:
        raise InvalidGraph(f"{node.label}: post_transform must be one of {', '.join(known)}, not {name!r}")
    return str(name)


def rows_and_features(node: Node, inputs: Sequence[Known | None]) -> tuple[Known, int, int]:
    """The first input, how many rows it has and of how many features: a list is one row."""
    x = required(node, inputs, 0)
    require_dtype(node, x, FEATURES, "X")
    require_rank(node, x, 1, 2, "X")
    return x, 1 if x.rank == 1 else x.dims[0], x.dims[-1]


def as_rows(x: Array) -> Array:
    """Features as [rows, features]."""
    return x.reshape(1, -1) if x.ndim == 1 else x


def as_floats(x: Array) -> Array:
    """Features as float32, float64 as it is."""
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


LABEL_TYPES: Mapping[str, AttributeType] = {
    "classlabels_ints": INTS,
    "classlabels_int64s": INTS,
    "classlabels_strings": STRINGS,
}


def labels_of(node: Node, integers: str = "classlabels_int64s") -> tuple[DType, tuple[Any, ...]]:
    """The labels that a node states, and their type.

    Args:
        node: normalised.
        integers: the attribute that states integers.
    """
    texts, numbers = node.attributes["classlabels_strings"], node.attributes[integers]
    if bool(texts) == bool(numbers):
        raise InvalidGraph(
            f"{node.label}: one of {integers} and classlabels_strings must be given, and no more"
        )
    return (STRING, tuple(texts)) if texts else (INT64, tuple(numbers))


def label_array(dtype: DType, labels: Sequence[Any]) -> Array:
    """Labels as an array that can be indexed by class."""
    found = np.empty(len(labels), dtype.storage)
    found[:] = labels
    return found
