"""Folding computes what a model states, in silence."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph
from vkml.ir import Graph, Known, Node, TensorType, dtypes
from vkml.ir.size import Sizes
from vkml.passes import specialise
from vkml.passes.specialise import infer_types

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


def test_a_size_that_is_not_known_is_refused_even_where_such_types_were_inferred_before() -> None:
    """Who infers types of sizes that only a run knows has them kept for nodes that are alike."""
    sketch = Sketch("open")
    x = sketch.input("x", (2, 3))
    graph = prepare(sketch.finish(sketch.node("Identity", sketch.node("NonZero", x))))
    infer_types(graph.nodes[1], [Known(TensorType(dtypes.INT64, (2, None)))])
    with pytest.raises(InvalidGraph, match=r"Identity.* the size of its input .* is decided by values"):
        specialise(graph, {"x": (2, 3)})


def form(op: str = "Add", inputs: tuple[str, ...] = ("a", "b"), **attributes: Any) -> Any:
    found = Node(op, inputs, ("y",), attributes).form
    assert found is not None
    return found


def test_forms_are_one_object_for_nodes_that_are_alike() -> None:
    assert form() is form(inputs=("c", "d")) is not form("Sub")
    assert form(axis=1, to="x") is form(axis=1, to="x")
    body = Graph((), (), (Node("If", ("b",), ("z",)),), {}, {})
    assert Node("Loop", ("a",), ("y",), {"body": body}).form is None


def test_forms_differ_where_operators_may() -> None:
    found = [
        form(),
        form(inputs=("a", "a")),
        form(inputs=("a", "")),
        form(inputs=("", "a")),
        form(inputs=("a",)),
        form(axis=1),
        form(axis=True),
        form(axis=1.0),
        form(axis="1"),
        form(axis=None),
        form(axis=(1,)),
        form(axis=(True,)),
        form(axis=((1,),)),
        form(axis=0.0),
        form(axis=-0.0),
        form(axes=1),
        form(axis=1, axes=1),
        Node("Add", ("a", "b"), ("y", "")).form,
        Node("Add", ("a", "b"), ("y", "z")).form,
        Node("Add", ("a", "b"), ("y",), domain="com.microsoft").form,
    ]
    assert len({*found}) == len(found)
