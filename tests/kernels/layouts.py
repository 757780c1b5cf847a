"""Products of operands that lie along either direction, with a bias behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.ir.dtypes import DType

Array = np.ndarray[Any, Any]

LAYOUTS = {
    "rows": ((), (33, 52), (52, 20), ""),
    "rows of odd lengths": ((), (33, 51), (51, 21), ""),
    "columns": ((), (52, 36), (20, 52), "ab"),
    "columns of odd lengths": ((), (51, 35), (21, 51), "ab"),
    "rows by columns, batches": ((2, 3), (20, 40), (24, 40), "b"),
    "columns by rows": ((), (70, 33), (70, 36), "a"),
}
"""Batch, the shapes of both operands, and which of them are transposed in the model."""
LONG = {
    "long rows": ((), (17, 700), (700, 19), ""),
    "long columns": ((), (1100, 40), (1100, 37), "a"),
}
"""Of which several workgroups look at a row."""


def normal(seed: int, *shape: int) -> Array:
    """Normal numbers of float32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@dataclass(frozen=True)
class LaidOut:
    """A model that adds a bias to a product, and what it is given."""

    sketch: Sketch
    value: str
    feed: dict[str, Array]
    a: Array
    """The operands as they are multiplied, in float64;"""
    b: Array
    bias: Array


def laid_out(name: str, dtype: DType = dtypes.FLOAT32) -> LaidOut:
    """The model of a layout of `LAYOUTS` or `LONG`, whose values are all of a type of floats."""
    batch, left, right, turned = (LAYOUTS | LONG)[name]
    feed = {
        "a": normal(1, *batch, *left).astype(dtype.storage),
        "b": normal(2, *batch, *right).astype(dtype.storage),
    }
    sketch = Sketch("product")
    values, factors = [], []
    for operand in "ab":
        value, array = sketch.input(operand, feed[operand].shape, dtype), feed[operand].astype(np.float64)
        if operand in turned:
            perm = [*range(len(batch)), len(batch) + 1, len(batch)]
            value, array = sketch.node("Transpose", value, perm=perm), array.swapaxes(-1, -2)
        values.append(value)
        factors.append(array)
    bias = normal(3, factors[1].shape[-1]).astype(dtype.storage)
    value = sketch.node("Add", sketch.node("MatMul", *values), sketch.constant(bias))
    return LaidOut(sketch, value, feed, *factors, bias)
