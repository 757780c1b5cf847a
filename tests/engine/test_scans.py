"""Scan in sessions: both directions, along all axes, nested, capturing, and of nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.control_models import check, model
from vkml import errors

Array = np.ndarray[Any, Any]


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SCAN = """
g (float[2] s, float[t, 2] x, float[2, t] z) => (float[2] last, float[t, 2] a, float[2, t] b) {
  last, a, b = Scan <
    num_scan_inputs = 2, scan_input_axes = [0, -1], scan_input_directions = [0, 1],
    scan_output_axes = [0, -1], scan_output_directions = [1, 0],
    body = body (float[2] state, float[2] u, float[2] v) => (float[2] next, float[2] p, float[2] q) {
      m = Mul(u, v)
      next = Add(state, m)
      p = Tanh(next)
      q = Sub(next, u)
    }
  > (s, x, z)
}
"""


def test_scans_in_both_directions_along_other_axes(device_name: str) -> None:
    feeds = [{"s": floats(2), "x": floats(n, 2, seed=1), "z": floats(2, n, seed=2)} for n in (5, 1, 7)]
    check(model(SCAN), feeds, device_name)


def test_a_scan_of_nothing(device_name: str) -> None:
    feed = {"s": floats(2), "x": floats(0, 2), "z": floats(2, 0)}
    expected = [feed["s"], np.empty((0, 2), np.float32), np.empty((2, 0), np.float32)]
    check(model(SCAN), [feed], device_name, expected=[expected])


def test_scan_inputs_of_different_lengths() -> None:
    text = SCAN.replace("float[2, t] z) =>", "float[2, u] z) =>")
    session = vkml.InferenceSession(model(text), devices="cpu")
    with pytest.raises(errors.RuntimeException, match=r"Scan node 'last'.*\[3, 4\] slices"):
        session.run(None, {"s": floats(2), "x": floats(3, 2), "z": floats(2, 4)})


BATCH_SCAN = """
g (int64[b] lengths, float[b, 2] s, float[b, t, 2] x) => (float[b, 2] last, float[b, t, 2] all) {
  last, all = Scan <
    num_scan_inputs = 1, directions = [DIRECTION],
    body = body (float[2] state, float[2] u) => (float[2] next, float[2] p) {
      next = Add(state, u)
      p = Mul(next, next)
    }
  > (lengths, s, x)
}
"""


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("has_lengths", [True, False])
def test_scans_of_opset_8(device_name: str, direction: int, has_lengths: bool) -> None:
    text = BATCH_SCAN.replace("DIRECTION", str(direction))
    feed: dict[str, Any] = {"s": floats(3, 2), "x": floats(3, 4, 2, seed=1)}
    if has_lengths:
        feed["lengths"] = np.array([4, 2, 3])
    else:
        text = text.replace("int64[b] lengths, ", "").replace("(lengths, s", "(, s")
    check(model(text, opset=8), [feed], device_name)


NESTED = """
g (float[3] s, float[t, u, 3] x, float[3] w) => (float[3] last, float[3, t] ends, float[t, 3, u] all) {
  e = Tanh(w)
  last, ends, all = Scan <
    num_scan_inputs = 1, scan_input_directions = [OUTER], scan_output_axes = [-1, 0],
    scan_output_directions = [1, OUTER],
    body = outer (float[3] state, float[u, 3] row) => (float[3] next, float[3] end, float[3, u] steps) {
      half = Mul(state, e)
      inner, steps = Scan <
        num_scan_inputs = 1, scan_input_directions = [INNER], scan_output_axes = [-1],
        scan_output_directions = [INNER],
        body = inner (float[3] carried, float[3] one) => (float[3] on, float[3] step) {
          p = Mul(one, half)
          q = Add(p, e)
          on = Add(carried, q)
          step = Sub(on, state)
        }
      > (half, row)
      next = Tanh(inner)
      end = Neg(inner)
    }
  > (s, x)
}
"""


@pytest.mark.parametrize(("outer", "inner"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_scans_in_scans(device_name: str, outer: int, inner: int) -> None:
    """The inner body reads a value of the outer body, its state, and one from outside of both."""
    text = NESTED.replace("OUTER", str(outer)).replace("INNER", str(inner))
    sizes = ((2, 4), (3, 1), (1, 5), (2, 4))
    feeds = [{"s": floats(3), "x": floats(t, u, 3, seed=t + u), "w": floats(3, seed=9)} for t, u in sizes]
    check(model(text), feeds, device_name)


def test_scans_in_scans_of_nothing(device_name: str) -> None:
    """Without outer trips, and with outer trips that have no inner ones."""
    text = NESTED.replace("OUTER", "0").replace("INNER", "1")
    s, w = floats(3), floats(3, seed=9)
    half = s * np.tanh(w)
    feeds = [{"s": s, "x": floats(t, u, 3), "w": w} for t, u in ((0, 4), (1, 0))]
    expected = [
        [s, np.empty((3, 0), np.float32), np.empty((0, 3, 4), np.float32)],
        [np.tanh(half), -half.reshape(3, 1), np.empty((1, 3, 0), np.float32)],
    ]
    check(model(text), feeds, device_name, expected=expected)


def test_scans_in_loops_and_loops_in_scans(device_name: str) -> None:
    text = """
    g (int64 m, float[t, 4] x, float[4] s) => (float[4] last, float[a, 4] totals) {
      go = Constant <value = bool {1}> ()
      last, totals = Loop (m, go, s) <
        body = trip (int64 i, bool c, float[4] before) => (bool d, float[4] after, float[4] total) {
          d = Identity(c)
          two = Constant <value_int = 2> ()
          zero = Constant <value_ints = [0]> ()
          after, rows = Scan <
            num_scan_inputs = 1, scan_input_directions = [1],
            body = row (float[4] state, float[4] one) => (float[4] next, float[4] seen) {
              sum = Add(state, one)
              next = Loop (two, d, sum) <
                body = twice (int64 j, bool e, float[4] v) => (bool f, float[4] u) {
                  f = Identity(e)
                  p = Mul(v, before)
                  u = Tanh(p)
                }
              >
              seen = Sub(next, one)
            }
          > (before, x)
          total = ReduceSum <keepdims = 0> (rows, zero)
        }
      >
    }"""
    feeds = [{"m": np.array(m), "x": floats(t, 4, seed=t), "s": floats(4)} for m, t in ((2, 3), (1, 4))]
    check(model(text), feeds, device_name)
