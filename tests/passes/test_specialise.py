"""Folding computes what a model states, in silence."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.ir.size import Sizes
from vkml.passes import specialise

LARGE = np.full((1, 2, 2), 3e38, np.float32)
OVERFLOWING: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any]]] = [
    ("MatMul", (LARGE, LARGE), {}),
    ("Gemm", (LARGE[0], LARGE[0]), {}),
    ("Conv", (LARGE, np.full((1, 2, 1), 3e38, np.float32)), {}),
    ("Add", (LARGE, LARGE), {}),
    ("ReduceSum", (LARGE, np.array([1])), {}),
    ("ReduceProd", (LARGE, np.array([1])), {}),
    ("Einsum", (LARGE, LARGE), {"equation": "abc,acd->abd"}),
    ("Cast", (LARGE,), {"to": 10}),
    ("GlobalAveragePool", (LARGE,), {}),
    ("CumSum", (LARGE, np.array(1)), {}),
    ("LpPool", (LARGE,), {"kernel_shape": [2]}),
    ("Exp", (LARGE,), {}),
    ("Range", (np.float32(0), np.float32(3e38), np.float32(2e38)), {}),
]
"""Range's third number would be no float32; the rest have infinite results."""


@pytest.mark.parametrize("op, operands, attributes", OVERFLOWING, ids=lambda item: str(item)[:20])
@pytest.mark.parametrize("is_shape_known", [False, True])
def test_folding_that_overflows_warns_nobody(
    op: str, operands: tuple[np.ndarray, ...], attributes: dict[str, Any], is_shape_known: bool
) -> None:
    """Both before input shapes are known and behind a Shape, which is folded when they are."""
    sketch = Sketch("overflow")
    x = sketch.input("x", ("n",))
    first, *others = (sketch.constant(array) for array in operands)
    if is_shape_known:
        count = sketch.node("Cast", sketch.node("Size", x), to=1)
        first = sketch.node("Mul", first, count)
    graph = sketch.finish(sketch.node(op, first, *others, **attributes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folded = specialise(prepare(graph), {"x": (1,)})
    assert op not in [node.op for node in folded.nodes]


@pytest.mark.parametrize("size", [3, 2**62, "open"])
def test_an_input_of_which_only_the_type_matters_may_have_any_size(size: int | str) -> None:
    """No array has 2^62 elements, and a size that is looked at stays open no longer."""
    sketch = Sketch("like")
    x = sketch.input("x", ("n",), dtypes.FLOAT16)
    graph = sketch.finish(sketch.node("CastLike", sketch.constant(np.float32(1.5)), x))
    sizes = Sizes()
    with sizes.deciding():
        shape = (sizes.symbol("n", 5) if isinstance(size, str) else size,)
        folded = specialise(prepare(graph), {"x": shape})
    assert {node.op for node in folded.nodes} <= {"Identity"}
    assert 1.5 in [c.array.item() for c in folded.constants.values() if c.dtype == dtypes.FLOAT16]
    assert not sizes.guards()
