"""Loop in sessions: on every device what `evaluate` and onnxruntime say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.control_models import LOOP, Array, by_onnxruntime, check, floats, loop_feed, model


def test_a_loop_carries_values_and_stacks_results(device_name: str) -> None:
    feeds = [loop_feed(4), loop_feed(1), loop_feed(9, size=3)]
    check(model(LOOP), feeds, device_name)


def test_a_loop_plans_once_for_shapes_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(monkeypatch)
    session = vkml.InferenceSession(model(LOOP), devices="cpu")
    session.run(None, loop_feed(50))
    first = len(made)
    assert first == 2  # what stands before the loop, and its body
    session.run(None, loop_feed(70))
    assert len(made) == first


WHILE = """
g (float x) => (float y, int64 n) {
  none = Constant <value_int = 0> ()
  go = Constant <value = bool {1}> ()
  y, n = Loop ("", go, x, none) <
    body = body (int64 i, bool c, float s, int64 k) => (bool more, float s2, int64 k2) {
      half = Constant <value_float = 0.5> ()
      one = Constant <value_int = 1> ()
      s2 = Mul(s, half)
      k2 = Add(k, one)
      limit = Constant <value_float = 1.0> ()
      more = Greater(s2, limit)
    }
  >
}
""".replace('""', "")


def test_a_loop_without_a_trip_count(device_name: str) -> None:
    feeds = [{"x": np.array(value, np.float32)} for value in (1000.0, 1.0, 7.5)]
    check(model(WHILE), feeds, device_name)


def test_a_loop_without_a_condition() -> None:
    text = LOOP.replace("bool go, ", "").replace("(m, go, x)", "(m, , x)")
    feeds = [{k: v for k, v in loop_feed(n).items() if k != "go"} for n in (3, 1)]
    check(model(text), feeds, "cpu")


def test_the_condition_of_the_body_ends_a_loop() -> None:
    text = LOOP.replace("200.0", "2.0")
    _, all_trips, _ = vkml.InferenceSession(model(text), devices="cpu").run(None, loop_feed(100))
    assert len(all_trips) == 3
    check(model(text), [loop_feed(100)], "cpu")


def test_loops_in_loops(device_name: str) -> None:
    # The inner loop reads the outer's carried value, trip number, and a value from outside of both.
    text = """
    g (int64 m, float[3] x) => (float[3] y, float[a, b, 3] all) {
      go = Constant <value = bool {1}> ()
      w = Tanh(x)
      y, all = Loop (m, go, x) <
        body = outer (int64 i, bool c, float[3] s) => (bool c1, float[3] s1, float[b, 3] steps) {
          c1 = Identity(c)
          three = Constant <value_int = 3> ()
          f = Cast <to = 1> (i)
          s1, steps = Loop (three, go, s) <
            body = inner (int64 j, bool d, float[3] r) => (bool d1, float[3] r1, float[3] step) {
              d1 = Identity(d)
              q = Add(w, f)
              r1 = Mul(q, r)
              step = Sub(r1, s)
            }
          >
        }
      >
    }"""
    check(model(text), [{"m": np.array(n), "x": floats(3)} for n in (2, 3)], device_name)


def test_shadowed_names() -> None:
    # onnxruntime refuses a body that calls its own values like outer ones; here the inner one counts.
    text = """
    g (int64 m, float[2] x) => (float[2] y) {
      go = Constant <value = bool {1}> ()
      s = Neg(x)
      t = Exp(s)
      y = Loop (m, go, x) <
        body = body (int64 i, bool c, float[2] s) => (bool d, float[2] u) {
          d = Identity(c)
          t = Add(s, s)
          u = Add(t, x)
        }
      >
    }"""
    x = np.array([1.0, -2.0], np.float32)
    expected = x
    for _ in range(3):
        expected = 2 * expected + x
    check(model(text), [{"m": np.array(3), "x": x}], "cpu", expected=[[expected]])


def test_values_captured_from_everywhere(device_name: str) -> None:
    # A constant that planning needs, a shape, an input and a result that only the CPU can make.
    text = """
    g (int64 m, float[n, 4] x) => (float[k] y) {
      go = Constant <value = bool {1}> ()
      shape = Shape(x)
      rows = Gather <axis = 0> (shape, zero)
      zero = Constant <value_int = 0> ()
      flat = Constant <value_ints = [-1]> ()
      places = NonZero(x)
      found = Cast <to = 1> (places)
      start = Reshape(x, flat)
      y = Loop (m, go, start) <
        body = body (int64 i, bool c, float[k] s) => (bool d, float[k] u) {
          d = Identity(c)
          r = Cast <to = 1> (rows)
          p = ReduceSum <keepdims = 0> (found)
          v = Reshape(x, flat)
          w = Add(v, r)
          t = Add(s, w)
          u = Sub(t, p)
        }
      >
    }"""
    feeds = [{"m": np.array(2), "x": np.maximum(floats(n, 4), 0)} for n in (2, 3, 5)]
    check(model(text), feeds, device_name)


def test_a_carried_value_that_grows(device_name: str) -> None:
    text = """
    g (int64 m, float[a, 2] x) => (float[b, 2] y, float[c] sums) {
      go = Constant <value = bool {1}> ()
      y, sums = Loop (m, go, x) <
        body = body (int64 i, bool c, float[b, 2] s) => (bool d, float[e, 2] t, float total) {
          d = Identity(c)
          r = Tanh(x)
          t = Concat <axis = 0> (s, r)
          total = ReduceSum <keepdims = 0> (t)
        }
      >
    }"""
    check(model(text), [{"m": np.array(n), "x": floats(2, 2)} for n in (4, 6)], device_name)


SLICES = """
g (int64 m, float[n, 3] x) => (float[1, 3] y, float[t, 1, 3] rows) {
  go = Constant <value = bool {1}> ()
  first = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  y0 = Slice(x, first, one)
  y, rows = Loop (m, go, y0) <
    body = body (int64 i, bool c, float[1, 3] s) => (bool d, float[1, 3] t, float[1, 3] row) {
      d = Identity(c)
      start = Unsqueeze(i, first)
      end = Add(start, one)
      row = Slice(x, start, end)
      t = Add(s, row)
    }
  >
}"""


def test_a_slice_by_the_trip_number() -> None:
    check(model(SLICES), [{"m": np.array(n), "x": floats(40, 3)} for n in (3, 40)], "cpu")


@pytest.mark.parametrize("feed", [loop_feed(0), loop_feed(3, go=False), loop_feed(-2)])
def test_zero_trips(device_name: str, feed: dict[str, Array]) -> None:
    # A trip would have made rows of 5, which the body does not state; onnxruntime takes 0 for that.
    expected = [feed["x"], np.empty((0, 5), np.float32), np.empty((0,), np.float32)]
    check(model(LOOP), [feed], device_name, expected=[expected])


def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `make_plan` is called with from now on."""
    from vkml.engine import plan_cache

    made: list[Any] = []
    real = plan_cache.make_plan
    monkeypatch.setattr(plan_cache, "make_plan", lambda *given: made.append(given) or real(*given))
    return made


@pytest.mark.parametrize("rows", [40, 4000])
def test_trips_that_all_differ_do_without_plans_where_there_is_little_to_do(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    made = planned(monkeypatch)
    session = vkml.InferenceSession(model(SLICES), devices="cpu")
    feed = {"m": np.array(12), "x": floats(rows, 3)}
    found = session.run(None, feed)
    for mine, theirs in zip(found, by_onnxruntime(model(SLICES), feed), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert (len(made) < 6) == (rows == 40)


def test_trips_get_a_plan_once_they_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nine trips slice elsewhere each, all further ones where the ninth did.
    last = "nine = Constant <value_ints = [9]> () first = Constant <value_ints = [0]> ()"
    text = SLICES.replace("start = Unsqueeze(i, first)", "at = Unsqueeze(i, first) start = Min(at, nine)")
    text = text.replace("first = Constant <value_ints = [0]> ()", last)
    made = planned(monkeypatch)
    session = vkml.InferenceSession(model(text), devices="cpu")
    feed = {"m": np.array(60), "x": floats(40, 3)}
    for mine, theirs in zip(session.run(None, feed), by_onnxruntime(model(text), feed), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
    count = len(made)
    assert 3 < count < 8
    session.run(None, {**feed, "m": np.array(40)})
    assert len(made) == count


def test_zero_trips_of_what_nobody_knows() -> None:
    text = LOOP.replace(
        "out = Tanh(s2)", "n = NonZero(s2) o = Cast <to = 1> (n) out = ReduceMax <keepdims = 0> (o, z)"
    )
    found = vkml.InferenceSession(model(text), devices="cpu").run(None, loop_feed(0))
    assert [(array.shape, array.dtype) for array in found[1:]] == [((0, 0), np.float32), ((0,), np.float32)]
