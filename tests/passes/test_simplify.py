"""Simplification drops what changes no number, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.passes import specialise
from vkml.passes.simplify import remove_identities

EXACT = [("Add", -0.0), ("Sub", 0.0), ("Mul", 1.0), ("Div", 1.0)]
INEXACT = [
    ("Add", 0.0),
    ("Sub", -0.0),
    ("Mul", -1.0),
    ("Mul", 0.0),
    ("Div", -1.0),
    ("Add", 1.0),
    ("Sub", 1.0),
]
"""x + 0 makes 0 of -0, as x - -0 does."""


def kept(op: str, *operands: Any, dtype: str = "float32") -> list[str]:
    """The operators left of one between two others; an operand of None is a value, others are constants."""
    sketch = Sketch("one")
    value = sketch.node("Abs", sketch.input("x", (2, 3), dtypes.from_numpy(np.dtype(dtype))))
    names = [value if o is None else sketch.constant(np.asarray(o, dtype)) for o in operands]
    graph = sketch.finish(sketch.node("Abs", sketch.node(op, *names)))
    return [node.op for node in remove_identities(specialise(prepare(graph), {"x": (2, 3)})).nodes][1:-2]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_arithmetic_that_keeps_every_number_is_dropped(dtype: str) -> None:
    for op, number in EXACT:
        assert kept(op, None, number, dtype=dtype) == [], (op, number)
        assert kept(op, None, [[number]], dtype=dtype) == [], (op, number)
        if op in ("Add", "Mul"):
            assert kept(op, number, None, dtype=dtype) == [], (op, number)
    for op, number in INEXACT:
        assert kept(op, None, number, dtype=dtype) == [op], (op, number)
    assert kept("Sub", 0.0, None, dtype=dtype) == ["Sub"]
    assert kept("Div", 1.0, None, dtype=dtype) == ["Div"]


def test_integers_have_one_zero() -> None:
    for op, number in (("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1)):
        assert kept(op, None, number, dtype="int32") == []
    assert kept("Add", None, 1, dtype="int32") == ["Add"]


def test_what_changes_the_shape_stays() -> None:
    assert kept("Mul", None, np.ones((2, 1, 1)), dtype="float32") == ["Mul"]
