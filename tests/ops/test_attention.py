"""ONNX's Attention: one kernel where a device has it, its masks, sizes that are open, wrong use.

The variants one by one are cases of ONNX's own suite (`tests/conformance`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.engine.open_graphs import open_plans
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import Graph, Node, Value, dtypes
from vkml.ir.operator import REGISTRY
from vkml.ir.types import UNKNOWN
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
NAMES = ("q", "k", "v", "mask", "past_key", "past_value", "lengths")
RESULTS = ("y", "present_key", "present_value", "scores")


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def heads(dtype: Any = np.float32, **sizes: int) -> dict[str, Array]:
    """Four heads of queries, two of keys and values."""
    rows, keys, columns = (
        sizes.get(name, least) for name, least in (("rows", 5), ("keys", 5), ("columns", 8))
    )
    shapes = {"q": (2, 4, rows, columns), "k": (2, 2, keys, columns), "v": (2, 2, keys, columns)}
    return {name: normal(at, *shape, dtype=dtype) for at, (name, shape) in enumerate(shapes.items())}


def past(count: int, columns: int = 8, dtype: Any = np.float32) -> dict[str, Array]:
    return {name: normal(7 + at, 2, 2, count, columns, dtype=dtype) for at, name in enumerate(NAMES[4:6])}


def model(
    feed: dict[str, Array], outputs: int = 1, sizes: dict[str, Any] | None = None, **attributes: Any
) -> bytes:
    sketch = Sketch("attention", opset=25)
    for name, array in feed.items():
        sketch.input(name, (sizes or {}).get(name, array.shape), dtypes.from_numpy(array.dtype))
    made = RESULTS[:outputs]
    given = tuple(name if name in feed else "" for name in NAMES)
    node = Node("Attention", given, made, attributes, "attend", version=25)
    plain = sketch.finish()
    graph = Graph(plain.inputs, tuple(Value(name, UNKNOWN) for name in made), (node,), {}, opsets={"": 25})
    saved = save_graph(graph)
    assert saved is not None
    return saved


def reference(feed: dict[str, Array], outputs: int = 1, **attributes: Any) -> list[Array]:
    operator = REGISTRY["", "Attention"]
    names = tuple(name if name in feed else "" for name in NAMES)
    node = Node("Attention", names, RESULTS[:outputs], {**operator.attributes, **attributes}, "attend")
    return operator.evaluate(node, [feed.get(name) for name in NAMES])


CASES: dict[str, tuple[Any, dict[str, Array], dict[str, Any]]] = {
    "causal, shared heads, past": (np.float16, {}, {"is_causal": 1}),
    "softcap, bools": (
        np.float16,
        {"mask": np.random.default_rng(3).random((24, 31)) < 0.5},
        {"softcap": 2.0, "left_window_size": 20, "right_window_size": 2},
    ),
    "causal, numbers": (
        np.float32,
        {"mask": normal(4, 2, 1, 24, 31)},
        {"is_causal": 1, "softcap": 1.5, "scale": 0.4},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_launch_where_there_are_matrix_units(unit: str, name: str) -> None:
    dtype, more, attributes = CASES[name]
    feed = {**heads(dtype, rows=24, keys=24, columns=16), **past(7, 16, dtype)}
    feed |= more
    if "mask" in feed and feed["mask"].dtype == np.bool_:
        feed["mask"][3] = False  # a row that sees nothing
    given = model(feed, 3, **attributes)
    with vkml.InferenceSession(given, devices=unit, precision="high") as session:
        found = session.run(None, feed)
        steps = [
            step
            for step in session.report().steps
            if "MatMul" in step.operators or "Softmax" in step.operators
        ]
        fused = [step for step in session.report().steps if "Attention" in step.operators]
    assert not steps
    launches = [step.kernel for step in fused if step.kernel == "attention"]
    assert launches == ["attention"]
    expected = reference(feed, 3, **attributes)
    np.testing.assert_allclose(found[0], expected[0], rtol=4e-3, atol=4e-3)
    for mine, right in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(mine, right)


def test_steps_do_what_the_definition_says(device_name: str) -> None:
    """Where no kernel takes it: against a loop over heads, rows and keys."""
    feed = {**heads(rows=3, keys=2), **past(4), "mask": np.random.default_rng(5).random((3, 6)) < 0.6}
    feed["mask"][1] = False
    attributes = {"is_causal": 1, "softcap": 1.5, "left_window_size": 4}
    with vkml.InferenceSession(
        model(feed, 4, qk_matmul_output_mode=3, **attributes), devices=device_name
    ) as session:
        y, keys, values, weights = session.run(None, feed)
    np.testing.assert_array_equal(keys, np.concatenate([feed["past_key"], feed["k"]], axis=2))
    np.testing.assert_array_equal(values, np.concatenate([feed["past_value"], feed["v"]], axis=2))
    expected = np.zeros((2, 4, 3, 6))
    for batch, head, row in np.ndindex(2, 4, 3):
        seen = [j for j in range(6) if j <= row + 4 and j >= row + 4 - 4 and feed["mask"][row, j]]
        scores = [
            np.tanh(feed["q"][batch, head, row] @ keys[batch, head // 2, j] / 8**0.5 / 1.5) * 1.5
            for j in seen
        ]
        if seen:
            expected[batch, head, row, seen] = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, weights @ values.repeat(2, axis=1), rtol=1e-5, atol=1e-6)


def test_any_length_of_the_past_is_one_plan() -> None:
    """A decoder's step: one row of queries behind as many keys as there are."""
    sizes = {"past_key": (2, 2, "past", 8), "past_value": (2, 2, "past", 8)}
    first = {**heads(rows=1, keys=1), **past(3)}
    with vkml.InferenceSession(model(first, 3, sizes, is_causal=1), devices="cpu") as session:
        for count in (3, 4, 9, 30):
            feed = {**first, **past(count)}
            for mine, right in zip(session.run(None, feed), reference(feed, 3, is_causal=1), strict=True):
                np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)
        assert len(open_plans(session)) == 1


@pytest.mark.parametrize(
    ("changes", "attributes", "said"),
    [
        ({"k": normal(1, 2, 3, 5, 8), "v": normal(1, 2, 3, 5, 8)}, {}, "4 heads of queries, 3 of keys"),
        ({"k": normal(1, 2, 2, 5, 6)}, {}, "heads of 8 columns in queries, of 6 in keys"),
        ({"mask": np.ones((4, 5), np.bool_)}, {}, r"mask of shape \[4, 5\] does not broadcast"),
        ({"lengths": np.ones(3, np.int64)}, {}, r"numbers of keys of shape \[3\]"),
        ({"past_key": past(2)["past_key"]}, {}, "come together"),
        ({}, {"q_num_heads": 2}, "q_num_heads is 2"),
        ({}, {"softmax_precision": 7}, "softmax_precision 7"),
        (
            {"q": normal(1, 2, 5, 32), "k": normal(1, 2, 5, 16), "v": normal(1, 2, 5, 16)},
            {},
            "q_num_heads has to",
        ),
    ],
)
def test_wrong_use_names_the_node(changes: dict[str, Array], attributes: dict[str, Any], said: str) -> None:
    feed = {**heads(), **changes}
    feed = {name: feed[name] for name in NAMES if name in feed}
    with pytest.raises((InvalidGraph, ShapeError), match=f"Attention node 'attend': .*{said}"):
        vkml.InferenceSession(model(feed, **attributes), devices="cpu").run(None, feed)
