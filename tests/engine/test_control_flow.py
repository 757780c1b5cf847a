"""If, Loop, Scan and SequenceMap in sessions: on every device what `evaluate` and onnxruntime say."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vkml
from tests.control_models import LOOP, by_onnxruntime, check, floats, loop_feed, model
from tests.engine.test_scans import SCAN
from vkml import errors
from vkml.engine import control
from vkml.engine.control import HostNode
from vkml.ir import Node

IF = """
g (bool c, float[n, 4] x) => (float[n, 4] y, float[n, m] z) {
  w = Constant <value_float = 2.0> ()
  e = Exp(x)
  y, z = If (c) <
    then_branch = then () => (float[n, 4] a, float[n, m] b) { a = Mul(e, w)  b = MatMul(x, k) },
    else_branch = other () => (float[n, 4] a, float[n, m] b) { a = Sub(x, w) b = Neg(a) }
  >
}
""".replace(
    "w = Constant",
    "k = Constant <value = float[4, 4] {1, 0, 0, 2, 0, 1, 0, 0, 0, 0, 1, 0, 3, 0, 0, 1}> () w = Constant",
)


def test_a_branch_runs_with_what_it_captures(device_name: str) -> None:
    feeds = [{"c": np.array(c), "x": floats(n, 4)} for n, c in ((2, True), (2, False), (3, True), (0, True))]
    check(model(IF), feeds, device_name)


def test_only_the_branch_that_is_taken_runs() -> None:
    # The other one would divide a Reshape's elements wrongly.
    text = """
    g (bool c, float[2, 3] x, int64[1] s) => (float[a] y) {
      y = If (c) <
        then_branch = then () => (float[a] p) { p = Reshape(x, s) },
        else_branch = other () => (float[a] q) { i = Constant <value_ints = [6]> () q = Reshape(x, i) }
      >
    }"""
    session = vkml.InferenceSession(model(text), devices="cpu")
    x = floats(2, 3)
    [made] = session.run(None, {"c": np.array(False), "x": x, "s": np.array([5])})
    assert made.tolist() == x.reshape(-1).tolist()
    with pytest.raises(errors.ModelError):
        session.run(None, {"c": np.array(True), "x": x, "s": np.array([5])})


def test_branches_of_different_shapes(device_name: str) -> None:
    text = """
    g (bool c, float[n] x) => (float[m] y) {
      s = If (c) <
        then_branch = then () => (float[k] p) { p = Concat <axis = 0> (x, x) },
        else_branch = other () => (float[k] q) { q = Identity(x) }
      >
      y = Add(s, s)
    }"""
    feeds = [{"c": np.array([c]), "x": floats(n)} for c, n in ((True, 3), (False, 3), (False, 5), (True, 4))]
    feeds = [{**feed, "c": feed["c"].reshape(())} for feed in feeds]
    check(model(text), feeds, device_name)


def test_a_branch_that_is_always_taken_becomes_part_of_the_graph() -> None:
    text = """
    g (float[2] x) => (float[2] y) {
      t = Constant <value = bool {1}> ()
      h = Neg(x)
      a = If (t) <
        then_branch = then () => (float[2] h2) {
            f = Not(t)
            h2 = If (f) <
                then_branch = t2 () => (float[2] no) { no = Sqrt(h) },
                else_branch = e2 () => (float[2] yes) { g = Exp(h) yes = Add(g, h) }
            >
        },
        else_branch = other () => (float[2] b) { b = Identity(x) }
      >
      b = If (t) <
        then_branch = then () => (float[2] h3) { h3 = Mul(a, a) },
        else_branch = other () => (float[2] b) { b = Identity(x) }
      >
      y = Add(a, b)
    }"""
    session = check(model(text), [{"x": floats(2)}], "cpu")
    operators = [name for step in session.report().steps for name in step.operators]
    assert "If" not in operators and "Exp" in operators


def test_inlining_keeps_names_apart() -> None:
    # Both branches, and a body inside of one, call their values alike; h is the outer one in the inner body.
    text = """
    g (float[2] x, int64 n) => (float[2] y) {
      t = Constant <value = bool {1}> ()
      h = Neg(x)
      a = If (t) <
        then_branch = then () => (float[2] r) {
            v = Exp(h)
            u, r = Loop (n, t, h) <
                body = body (int64 i, bool c, float[2] s) => (bool c2, float[2] s2, float[2] r2) {
                    c2 = Identity(c)
                    s2 = Add(s, v)
                    r2 = Mul(s, v)
                }
            >
            z = Constant <value_ints = [0]> ()
            r3 = ReduceSum <keepdims = 0> (r, z)
            r4 = Add(r3, u)
        },
        else_branch = other () => (float[2] v) { v = Identity(x) }
      >
      b = If (t) <
        then_branch = then () => (float[2] v) { v = Mul(a, h) },
        else_branch = other () => (float[2] r) { r = Identity(x) }
      >
      y = Add(a, b)
    }""".replace("(float[2] r) {\n            v", "(float[2] r4) {\n            v")
    check(model(text), [{"x": floats(2), "n": np.array(3)}], "cpu")


def test_a_map_over_a_sequence(device_name: str) -> None:
    text = """
    g (seq(float[n]) s, seq(float[n]) r, float x) => (seq(float[n]) y, seq(int64[d]) z) {
      w = Exp(x)
      y, z = SequenceMap (s, r, x) <
        body = body (float[n] a, float[n] b, float k) => (float[n] c, int64[d] d) {
          m = Mul(a, w)
          e = Add(m, b)
          c = Sub(e, k)
          d = Shape(a)
        }
      >
    }"""
    feeds = [
        {"s": [floats(n) for n in sizes], "r": [floats(n, seed=1) for n in sizes], "x": np.float32(0.5)}
        for sizes in ((3, 1, 4), (2,), ())
    ]
    feeds = [{**feed, "x": np.array(0.5, np.float32)} for feed in feeds]
    expected = [
        [
            [
                a * np.exp(np.float32(0.5)) + b - np.float32(0.5)
                for a, b in zip(feed["s"], feed["r"], strict=True)
            ],
            [np.array(a.shape) for a in feed["s"]],
        ]
        for feed in feeds
    ]
    check(model(text), feeds, device_name, expected=expected)


LARGE = """
g (int64 m, float[256, 128] x, float[128, 128] w) =>
    (float[256, 128] y, float[256, 128] same, float[t] sums) {
  go = Constant <value = bool {1}> ()
  e = Tanh(w)
  y, same, sums = Loop (m, go, x, x) <
    body = body (int64 i, bool c, float[256, 128] s, float[256, 128] k) =>
        (bool d, float[256, 128] u, float[256, 128] l, float total) {
      d = Identity(c)
      l = Identity(k)
      p = MatMul(s, e)
      q = Add(p, k)
      u = Tanh(q)
      total = ReduceMean <keepdims = 0> (u)
    }
  >
}
"""


def test_large_values_stay_on_the_device_from_trip_to_trip(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkml.engine.control import Body
    from vkml.engine.device_array import DeviceArray

    monkeypatch.setattr(Body, "run_trips", lambda *given: None)  # which would submit all of them together
    session = vkml.InferenceSession(model(LARGE), devices=vulkan_device_name, precision="highest")
    moved: list[str] = []

    def note(name: str) -> None:
        real = getattr(DeviceArray, name)
        monkeypatch.setattr(DeviceArray, name, lambda *given: moved.append(name) or real(*given))

    note("write")
    note("numpy")
    feed = {"m": np.array(6), "x": floats(256, 128), "w": 0.1 * floats(128, 128, seed=1)}
    for _ in range(2):
        moved.clear()
        found = session.run(None, feed)
        for mine, theirs in zip(found, by_onnxruntime(model(LARGE), feed), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=1e-4)
        # Up go weights that are captured and x, which is handed on, once each; down come both results.
        assert moved == ["write", "write", "numpy", "numpy"]


def test_large_values_of_changing_shapes(vulkan_device_name: str) -> None:
    text = """
    g (int64 m, float[a, 512] x) => (float[b, 512] y, float[t] sums) {
      go = Constant <value = bool {1}> ()
      y, sums = Loop (m, go, x) <
        body = body (int64 i, bool c, float[b, 512] s) => (bool d, float[e, 512] t, float total) {
          d = Identity(c)
          r = Tanh(x)
          t = Concat <axis = 0> (s, r)
          total = ReduceMean <keepdims = 0> (t)
        }
      >
    }"""
    check(model(text), [{"m": np.array(n), "x": floats(40, 512)} for n in (5, 2, 5)], vulkan_device_name)


# --- errors, limits, ownership ------------------------------------------------------------------------------


def test_an_error_names_the_node_and_the_trip() -> None:
    text = """
    g (int64 m, float[4] x, int64[k] at) => (float y) {
      go = Constant <value = bool {1}> ()
      zero = Constant <value_float = 0.0> ()
      y = Loop (m, go, zero) <
        body = body (int64 i, bool c, float s) => (bool d, float t) {
          d = Identity(c)
          p = Gather(at, i)
          v = Gather(x, p)
          t = Add(s, v)
        }
      >
    }"""
    session = vkml.InferenceSession(model(text), devices="cpu")
    feed = {"m": np.array(3), "x": floats(4), "at": np.array([0, 1, 3])}
    assert session.run(None, feed)[0] == pytest.approx(feed["x"][[0, 1, 3]].sum(), rel=1e-6)
    with pytest.raises(errors.Error, match=r"Loop node 'y', trip 2: .*Gather"):
        session.run(None, {**feed, "at": np.array([0, 1, 9])})


def test_collected_results_of_changing_shapes() -> None:
    text = """
    g (int64 m, float[a] x) => (float[b] y, float[t, c] all) {
      go = Constant <value = bool {1}> ()
      y, all = Loop (m, go, x) <
        body = body (int64 i, bool c, float[b] s) => (bool d, float[e] t, float[e] out) {
          d = Identity(c)
          t = Concat <axis = 0> (s, x)
          out = Neg(t)
        }
      >
    }"""
    session = vkml.InferenceSession(model(text), devices="cpu")
    with pytest.raises(
        errors.RuntimeException, match=r"trip 1: .*'out'.*float32\[4\] at first and is .*\[6\]"
    ):
        session.run(None, {"m": np.array(3), "x": floats(2)})


WRONG = {
    "inputs": (LOOP.replace("bool c, float", "bool c, bool c3, float"), "body must have 3 inputs.*it has 4"),
    "outputs": (
        SCAN.replace("float[2] p, float[2] q)", "float[2] p)"),
        "its body must have 3 outputs .*it has 2",
    ),
    "branches": (
        IF.replace("(float[n, 4] a, float[n, m] b) { a = Sub", "(float[n, 4] a) { a = Sub"),
        "else_branch must have 2 outputs",
    ),
    "axes": (SCAN.replace("scan_output_axes = [0, -1]", "scan_output_axes = [0]"), "scan_output_axes has 1"),
    "directions": (SCAN.replace("directions = [0, 1]", "directions = [0, 2]"), "are 0 or 1, not"),
    "slices": (SCAN.replace("num_scan_inputs = 2", "num_scan_inputs = 4"), "num_scan_inputs is 4"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bodies_that_do_not_fit_their_nodes(name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(errors.InvalidGraph, match=message):
        vkml.InferenceSession(model(text), devices="cpu")


def test_a_condition_of_several_elements() -> None:
    session = vkml.InferenceSession(model(IF.replace("bool c", "bool[k] c")), devices="cpu")
    with pytest.raises(
        errors.RuntimeException, match=r"If node 'y': the condition must be one element.*\[2\]"
    ):
        session.run(None, {"c": np.array([True, False]), "x": floats(2, 4)})


def test_results_belong_to_the_caller() -> None:
    # A value handed through unchanged, a constant, a captured input, and one twice.
    text = """
    g (int64 m, float[2] x) => (float[2] y, float[2] k, float[t, 2] all, float[2] z) {
      go = Constant <value = bool {1}> ()
      one = Constant <value = float[2] {1, 2}> ()
      y, k, all = Loop (m, go, x, one) <
        body = body (int64 i, bool c, float[2] s, float[2] r) =>
            (bool d, float[2] s2, float[2] r2, float[2] out) {
          d = Identity(c)
          s2 = Identity(s)
          r2 = Constant <value = float[2] {3, 4}> ()
          out = Identity(x)
        }
      >
      z = Identity(y)
    }"""
    source = model(text)
    for trips in (0, 2):
        session = vkml.InferenceSession(source, devices="cpu")
        feed = {"m": np.array(trips), "x": floats(2)}
        before = feed["x"].copy()
        expected = by_onnxruntime(source, feed)
        for _ in range(2):
            made = session.run(None, feed)
            for mine, theirs in zip(made, expected, strict=True):
                assert mine.tolist() == theirs.tolist()
                mine[...] = -7
            assert feed["x"].tolist() == before.tolist()
            arrays = [*made, feed["x"]]
            pairs = [(a, b) for at, a in enumerate(arrays) for b in arrays[:at]]
            assert not any(np.shares_memory(a, b) for a, b in pairs)


def test_a_closed_session_says_so() -> None:
    session = vkml.InferenceSession(model(LOOP), devices="cpu")
    session.run(None, loop_feed(2))
    session.close()
    with pytest.raises(errors.Fail, match="is closed"):
        session.run(None, loop_feed(2))


def test_reports_show_bodies_behind_their_nodes(device_name: str) -> None:
    session = vkml.InferenceSession(model(LOOP), devices=device_name)
    steps = session.report({"k": 40}).steps
    at = next(number for number, step in enumerate(steps) if step.operators == ("Loop",))
    assert steps[at].depth == 0 and steps[at].nodes == ("Loop node 'last'",)
    inside = [step for step in steps if step.depth == 1]
    assert inside and all(steps.index(step) > at for step in inside)
    assert {"Mul", "Tanh", "ReduceSum"} <= {name for step in inside for name in step.operators}
    assert device_name in {step.device for step in inside}
    assert (40,) in [shape for step in inside for shape in step.output_shapes]


def test_small_bodies_stay_on_the_host(vulkan_device_name: str) -> None:
    text = """
    g (int64 m, float[4] x) => (float[4] y) {
      go = Constant <value = bool {1}> ()
      y = Loop (m, go, x) <
        body = body (int64 i, bool c, float[4] s) => (bool d, float[4] t) { d = Identity(c) t = Add(s, x) }
      >
    }"""

    def devices(**options: Any) -> set[str]:
        session = vkml.InferenceSession(model(text), devices=vulkan_device_name, **options)
        feed = {"m": np.array(4), "x": np.ones(4, np.float32)}
        assert session.run(None, feed)[0].tolist() == [5, 5, 5, 5]
        return {step.device for step in session.report().steps if step.depth == 1}

    assert devices() == {"cpu"}
    assert devices(strict=True) == {vulkan_device_name}


def test_strict_sessions_refuse_bodies_with_sizes_from_data(vulkan_device_name: str) -> None:
    text = IF.replace("b = Neg(a)", "l = NonZero(a) b0 = Cast <to = 1> (l) b = Transpose(b0)")
    with pytest.raises(
        errors.NotImplemented, match="NonZero node 'l': the sizes of its results depend on data"
    ):
        vkml.InferenceSession(model(text), devices=vulkan_device_name, strict=True)


def test_traces_tell_bodies_from_the_model(tmp_path: Any) -> None:
    import json

    options = vkml.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = vkml.InferenceSession(model(LOOP), options, devices="cpu")
    session.run(None, loop_feed(3))
    with open(session.end_profiling(), encoding="utf-8") as file:
        names = [event["name"] for event in json.load(file)]
    assert names.count("body of Loop node 'last'") == 3
    assert names.count("Loop node 'last'") == 1


def test_sizes_from_data_within_a_body(device_name: str) -> None:
    # Each trip finds other places, whose number decides what follows in the same trip.
    text = """
    g (int64 m, float[n, 8] x) => (float[n, 8] y, float[t] found) {
      go = Constant <value = bool {1}> ()
      y, found = Loop (m, go, x) <
        body = body (int64 i, bool c, float[n, 8] s) => (bool d, float[n, 8] u, float count) {
          d = Identity(c)
          half = Constant <value_float = 0.5> ()
          u = Sub(s, half)
          positive = Relu(u)
          places = NonZero(positive)
          rows = Transpose(places)
          values = GatherND(u, rows)
          squares = Mul(values, values)
          count = ReduceSum <keepdims = 0> (squares)
        }
      >
    }"""
    feeds = [{"m": np.array(n), "x": 3 * np.abs(floats(rows, 8))} for n, rows in ((4, 6), (2, 9))]
    check(model(text), feeds, device_name)


def test_branches_within_loops_on_sequences(device_name: str) -> None:
    # A sequence and an optional are carried; a branch in the body changes them.
    text = """
    g (int64 m, float[4] x, seq(float[4]) s) => (seq(float[4]) t, float[4] last) {
      go = Constant <value = bool {1}> ()
      t, last = Loop (m, go, s, x) <
        body = body (int64 i, bool c, seq(float[4]) a, float[4] v) => (bool d, seq(float[4]) b, float[4] w) {
          d = Identity(c)
          two = Constant <value_int = 2> ()
          rest = Mod(i, two)
          is_odd = Cast <to = 9> (rest)
          w = Tanh(v)
          b = If (is_odd) <
            then_branch = odd () => (seq(float[4]) p) { p = SequenceInsert(a, w) },
            else_branch = even () => (seq(float[4]) q) {
              zero = Constant <value_int = 0> ()
              n = Neg(w)
              q = SequenceInsert(a, n, zero)
            }
          >
        }
      >
    }"""
    feeds = [{"m": np.array(n), "x": floats(4), "s": [floats(4, seed=1)]} for n in (5, 1)]
    check(model(text), feeds, device_name)


def test_what_differentiates_a_body_is_not_closed_in_the_midst_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other threads' shapes take its place meanwhile; it goes when nobody has it any more."""
    node = object.__new__(HostNode)
    node.node = Node("If", (), (), {"then_branch": None})
    node._gradients, node._bodies = {}, {}
    left: list[int] = []

    class Differentiating:
        def __init__(self, graph: Any, forget: Any) -> None:
            self.is_closed = False

        def run(self, given: list[Any], names: list[str]) -> list[Any]:
            if given[0].size == 0:
                for size in range(1, 2 * control._GRADIENTS_KEPT):
                    node.gradients("then_branch", [np.zeros(size, np.float32)], 1)
                assert len(node._gradients) == control._GRADIENTS_KEPT
            if self.is_closed:
                raise AssertionError("closed")
            return [given[0] + 1]

        def close(self) -> bool:
            self.is_closed = True
            return True

        def __del__(self) -> None:
            left.append(1)

    node._make = Differentiating  # type: ignore[assignment]
    graph = SimpleNamespace(outputs=[SimpleNamespace(name="y")])
    found = SimpleNamespace(graph=graph, feeds=(0,), is_of_data=False, of=lambda outputs: outputs)
    monkeypatch.setattr("vkml.tracing.graphs.gradient_graph", lambda *given: found)
    monkeypatch.setattr(control, "prepare_normalised", lambda graph: graph)
    [made] = node.gradients("then_branch", [np.zeros(0, np.float32)], 1)
    assert made.size == 0
    gc.collect()
    assert len(left) == control._GRADIENTS_KEPT
    kept = [runner for _, runner in node._gradients.values()]
    assert node.close() and all(runner.is_closed for runner in kept)  # type: ignore[attr-defined]
