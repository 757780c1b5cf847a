"""Loops of a few known trips are laid out, and compute what they did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.control_models import by_onnxruntime, check, model
from vkml.engine.prepare import prepare
from vkml.ir import every_node
from vkml.onnx import load_graph
from vkml.passes import unroll

Array = np.ndarray[Any, Any]

LOOP = """
g (float[n] x, int64[1] more) => (float[n] y, float[n] same, float[t, n] all, int64[t] numbers) {
  m = Constant <value_int = 4> ()
  go = Constant <value = bool {1}> ()
  e = Exp(x)
  y, same, all, numbers = Loop (m, go, x, x) <
    body = body (int64 i, bool c, float[n] s, float[n] k) =>
        (bool d, float[n] t, float[n] l, float[n] out, int64 number) {
      d = Identity(c)
      l = Identity(k)
      f = Cast <to = 1> (i)
      p = Mul(s, f)
      t = Sub(p, e)
      out = Identity(t)
      number = Identity(i)
    }
  >
}
"""


def floats(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def loops(source: bytes) -> int:
    return sum(node.op == "Loop" for node in every_node(prepare(load_graph(source))))


FEED = {"x": floats(5), "more": np.array([3])}


def test_trips_become_nodes(device_name: str) -> None:
    source = model(LOOP)
    assert loops(source) == 0
    session = check(source, [FEED, {**FEED, "x": floats(3)}], device_name)
    plain = vkml.SessionOptions()
    plain.graph_optimization_level = vkml.GraphOptimizationLevel.ORT_DISABLE_ALL
    as_loop = vkml.InferenceSession(source, plain, devices=device_name)
    operators = [name for step in as_loop.report().steps for name in step.operators]
    assert "Loop" in operators
    for mine, theirs in zip(session.run(None, FEED), as_loop.run(None, FEED), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m = Constant <value_int = 4> ()", "m = Squeeze(more)"),
        ("d = Identity(c)", "large = Constant <value_int = 90> () d = Less(i, large)"),
        ("go = Constant <value = bool {1}> ()", "one = Squeeze(more) go = Cast <to = 9> (one)"),
        ("value_int = 4", "value_int = 0"),
        ("value_int = 4", "value_int = 90"),
    ],
    ids=["count", "condition", "start", "none", "many"],
)
def test_what_only_a_run_knows_stays_a_loop(old: str, new: str) -> None:
    source = model(LOOP.replace(old, new))
    assert loops(source) == 1
    if "value_int = 0" not in new:
        check(source, [FEED], "cpu")


def test_absent_outputs_and_conditions() -> None:
    text = LOOP.replace("y, same, all, numbers = Loop (m, go, x, x)", "y, q, all = Loop (m, , x, x)")
    text = text.replace("float[n] same, ", "").replace(", int64[t] numbers", "")
    text = text.replace("d = Identity(c)", "d = Constant <value = bool {1}> ()")
    source = model(text)
    assert loops(source) == 0
    # onnxruntime wants a name for every output.
    y, _, rows, _ = by_onnxruntime(model(LOOP), FEED)
    check(source, [FEED], "cpu", expected=[[y, rows]])


def test_loops_in_loops_and_branches_by_the_trip_number() -> None:
    text = """
    g (float[2] x) => (float[2] y, float[a, b, 2] all) {
      two = Constant <value_int = 2> ()
      go = Constant <value = bool {1}> ()
      y, all = Loop (two, go, x) <
        body = outer (int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[b, 2] steps) {
          c1 = Identity(c)
          three = Constant <value_int = 3> ()
          go2 = Constant <value = bool {1}> ()
          s1, steps = Loop (three, go2, s) <
            body = inner (int64 j, bool d, float[2] r) => (bool d1, float[2] r1, float[2] step) {
              d1 = Identity(d)
              same = Equal(i, j)
              r1 = If (same) <
                then_branch = then () => (float[2] p) { p = Exp(r) },
                else_branch = other () => (float[2] q) { h = Tanh(x) q = Mul(r, h) }
              >
              step = Sub(r1, s)
            }
          >
        }
      >
    }"""
    source = model(text)
    assert {node.op for node in every_node(prepare(load_graph(source)))}.isdisjoint({"Loop", "If"})
    check(source, [{"x": floats(2)}], "cpu")


def test_bodies_within_keep_their_names_apart() -> None:
    # The inner loop, of an unknown count, calls a value x, as the outer one's initial value is called.
    text = """
    g (float[2] x, int64 m) => (float[2] y) {
      two = Constant <value_int = 2> ()
      go = Constant <value = bool {1}> ()
      y = Loop (two, go, x) <
        body = outer (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
          c1 = Identity(c)
          s1 = Loop (m, c, s) <
            body = inner (int64 j, bool d, float[2] r) => (bool d1, float[2] z) {
              d1 = Identity(d)
              x = Mul(r, r)
              z = Add(x, s)
            }
          >
        }
      >
    }"""
    source = model(text)
    assert loops(source) == 2
    x = floats(2)
    wanted = x
    for _ in range(2):
        s = wanted
        for _ in range(3):
            wanted = wanted * wanted + s
    check(source, [{"x": x, "m": np.array(3)}], "cpu", expected=[[wanted]])


def test_carried_sequences(device_name: str) -> None:
    text = """
    g (float[3] x) => (seq(float[3]) t) {
      three = Constant <value_int = 3> ()
      go = Constant <value = bool {1}> ()
      e = SequenceEmpty <dtype = 1> ()
      t, last = Loop (three, go, e, x) <
        body = body (int64 i, bool c, seq(float[3]) s, float[3] v) => (bool d, seq(float[3]) u, float[3] w) {
          d = Identity(c)
          w = Neg(v)
          u = SequenceInsert(s, w)
        }
      >
    }"""
    source = model(text)
    assert loops(source) == 0
    check(source, [{"x": floats(3)}], device_name)


def test_a_model_of_many_loops_grows_so_far_only(monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
      v{0} = Loop (m, go, v{1}) <
        body = b{0} (int64 i, bool c, float[2] s) => (bool d, float[2] t) {{ d = Identity(c) t = Neg(s) }}
      >"""
    count = 40
    text = "g (float[2] v0) => (float[2] y) { m = Constant <value_int = 60> () "
    text += "go = Constant <value = bool {1}> () "
    text += " ".join(body.format(at, at - 1) for at in range(1, count + 1))
    source = model(f"{text} y = Exp(v{count}) }}")
    graph = prepare(load_graph(source))
    left = [node for node in graph.nodes if node.op == "Loop"]
    assert 0 < len(left) < count
    assert len(graph.nodes) < 2 * unroll.MOST_NODES
    feed = {"v0": floats(2)}
    [found] = vkml.InferenceSession(source, devices="cpu").run(None, feed)
    np.testing.assert_allclose(found, by_onnxruntime(source, feed)[0], rtol=1e-6)
