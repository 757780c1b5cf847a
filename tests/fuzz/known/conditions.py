"""What a freedom is, and the conditions that several families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.tensors import Array, is_computed_float
from vkml.ir import Node

Where = Callable[[Node, list[Array | None], Array], Any]
"""Node, inputs, vkml's result → whether all of it, or a mask of its elements."""


@dataclass(frozen=True)
class Freedom:
    """Elements of a node's results that other runtimes get wrong, or may make what they like of."""

    ops: str
    where: Where
    reason: str
    of: str = ""
    """The runtime that is excused; any, where this is empty."""


ORT, ONNX = "onnxruntime", "onnx's evaluator"


def floats(inputs: list[Array | None]) -> list[Array]:
    return [array for array in inputs if array is not None and is_computed_float(array)]


def always(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return True


def has_nan(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any(np.isnan(array).any() for array in floats(inputs))


def has_special(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any(not np.isfinite(array).all() for array in floats(inputs))


def is_double(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == np.float64


def is_whole(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype.kind in "iu"


def is_large(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Numbers whose squares lose or overflow what other places need."""
    return has_special(node, inputs, result) or any(
        np.abs(array).max(initial=0) > 1e6 for array in floats(inputs)
    )


def overflows_half(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any(array.dtype == np.float16 and not np.isfinite(array).all() for array in floats(inputs))


def is_half(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == np.float16


def is_wide_whole(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Products of integers that overflow, or that float64 cannot hold."""
    if result.dtype.kind not in "iu":
        return False
    sizes = [np.abs(array.astype(np.float64)).max(initial=1) for array in inputs if array is not None]
    terms = max(max(array.shape, default=1) for array in inputs if array is not None)
    return float(np.prod(sizes)) * terms >= min(2**50, int(np.iinfo(result.dtype).max))
