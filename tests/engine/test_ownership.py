"""Arrays stay their owners': a session keeps none of the caller's, and gives none of its own away."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkml
from tests.control_models import model
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]


def test_strings_of_one_shape_are_told_apart_by_what_they_say(device_name: str) -> None:
    sketch = Sketch("places")
    texts = sketch.input("texts", (4,), dtypes.STRING)
    equal = sketch.node("Equal", texts, sketch.input("wanted", (1,), dtypes.STRING))
    graph = sketch.finish(sketch.node("NonZero", equal))
    wanted = np.array(["1" * 100_000], object)
    with vkml.InferenceSession(save_graph(graph), devices=device_name) as session:
        texts_data = np.empty(4, object)
        for number in range(32):
            # The last strings are gone before the next are made, which then take their addresses.
            texts_data[:] = None
            bits = [number >> bit & 1 for bit in range(4)]
            texts_data[:] = [str(bit) * 100_000 for bit in bits]
            [found] = session.run(None, {"texts": texts_data, "wanted": wanted})
            assert found.tolist() == [np.flatnonzero(bits).tolist()]


def test_a_shape_that_the_caller_changes_later_changes_no_plan(device_name: str) -> None:
    sketch = Sketch("reshape")
    x = sketch.input("x", (12,))
    shape = sketch.input("shape", (2,), dtypes.INT64)
    row = sketch.node("Unsqueeze", shape, sketch.constant(np.array([0])))
    graph = sketch.finish(sketch.node("Reshape", x, shape), shape, row)
    x_data, shape_data = np.arange(12, dtype=np.float32), np.array([3, 4])
    with vkml.InferenceSession(save_graph(graph), devices=device_name) as session:
        session.run(None, {"x": x_data, "shape": shape_data})
        shape_data[:] = 2, 6
        for wanted in ((3, 4), (2, 6), (3, 4)):
            found, same, row_found = session.run(None, {"x": x_data, "shape": np.array(wanted)})
            np.testing.assert_array_equal(found, x_data.reshape(wanted))
            assert same.tolist() == [*wanted]
            assert row_found.tolist() == [[*wanted]]


def test_outputs_share_memory_with_nothing(device_name: str) -> None:
    sketch = Sketch("views")
    x = sketch.input("x", (4, 6))
    table = sketch.constant(np.arange(24, dtype=np.float32).reshape(4, 6))
    flat = sketch.node("Reshape", x, sketch.constant(np.array([24])))
    turned = sketch.node("Transpose", flat)
    cut = sketch.node("Slice", flat, *(sketch.constant(np.array([at])) for at in (0, 5)))
    of_table = sketch.node("Reshape", table, sketch.constant(np.array([24])))
    relu = sketch.node("Relu", x)
    of_relu = sketch.node("Reshape", relu, sketch.constant(np.array([24])))
    graph = sketch.finish(x, flat, turned, cut, table, of_table, relu, of_relu)
    data = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    with vkml.InferenceSession(save_graph(graph), devices=device_name) as session:
        expected = [array.copy() for array in session.run(None, {"x": data})]
        names = [value.name for value in session.get_outputs()]
        for wanted in (None, [*names, names[0], names[-1]], names[::-1]):
            given = data.copy()
            found = session.run(wanted, {"x": given})
            for at, one in enumerate(found):
                assert not np.shares_memory(one, given)
                assert not any(np.shares_memory(one, other) for other in found[at + 1 :])
                one[...] = 77
            np.testing.assert_array_equal(given, data)
        for one, kept in zip(session.run(None, {"x": data}), expected, strict=True):
            np.testing.assert_array_equal(one, kept)


def test_an_output_that_is_an_input_is_a_copy(device_name: str) -> None:
    """The value itself, without an Identity between: alone, beside another result, and wanted twice."""
    sketch = Sketch("input")
    graph = sketch.finish(sketch.node("Relu", sketch.input("x", (4, 6))))
    data = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    [relu] = graph.outputs
    [x] = graph.inputs
    with vkml.InferenceSession(save_graph(replace(graph, outputs=(x, relu))), devices=device_name) as session:
        for wanted in (["x"], ["x", "x"], None, [relu.name, "x", relu.name, "x"]):
            given = data.copy()
            found = session.run(wanted, {"x": given})
            for at, one in enumerate(found):
                assert not np.shares_memory(one, given)
                assert not any(np.shares_memory(one, other) for other in found[at + 1 :])
            for name, one in zip(wanted or ["x", relu.name], found, strict=True):
                np.testing.assert_array_equal(one, data if name == "x" else np.maximum(data, 0))


@pytest.mark.parametrize("kind", ["chain", "loop"])
def test_sessions_go_with_their_last_reference(device_name: str, kind: str) -> None:
    # Not when the collector comes: until then they would hold a device's memory.
    texts = {
        "chain": "g (float[n] x) => (float[n] y) { a = Exp(x) y = Tanh(a) }",
        "loop": """
        g (float[n] x) => (float[n] y) {
          m = Constant <value_int = 3> ()
          go = Constant <value = bool {1}> ()
          y = Loop (m, go, x) <
            body = body (int64 i, bool c, float[n] s) => (bool d, float[n] t) {
              d = Identity(c) e = Exp(s) t = Tanh(e)
            }
          >
        }""",
    }
    gc.collect()
    gc.disable()
    try:
        session = vkml.InferenceSession(model(texts[kind]), devices=device_name)
        for size in (20, 30, 40):
            session.run(None, {"x": np.ones(size, np.float32)})
        runners = [session._runner]
        runners += [b.runner for host in session._runner.hosts.values() for b in host.bodies.values()]
        plans = [weakref.ref(plan) for runner in runners for plan in runner.plans.alive]
        assert plans
        del session, runners
        assert [plan() for plan in plans] == [None] * len(plans)
    finally:
        gc.enable()
