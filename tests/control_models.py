"""Models with control flow and containers as text, run in three ways that have to agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime

import vkml
from tests.comparing import assert_close
from vkml.engine.prepare import prepare
from vkml.onnx import load_graph
from vkml.ops.bodies import evaluate_body

Array = np.ndarray[Any, Any]


def model(text: str, opset: int = 18) -> bytes:
    """A model of one graph, written as onnx prints them."""
    header = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    return onnx.parser.parse_model(f"{header} {text}").SerializeToString()


def evaluated(source: bytes, feed: Mapping[str, Any]) -> list[Any]:
    """What the operators' own `evaluate` makes of a model."""
    graph = prepare(load_graph(source))
    return evaluate_body(graph, [feed[value.name] for value in graph.inputs], {})


def by_onnxruntime(source: bytes, feed: Mapping[str, Any]) -> list[Any]:
    """What onnxruntime makes of a model."""
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feed)))


def assert_same(found: Any, expected: Any, what: str) -> None:
    """Asserts equal values: tensors, sequences of them, None."""
    if isinstance(expected, list):
        assert isinstance(found, list), what
        assert len(found) == len(expected), what
        for at, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            assert_same(mine, theirs, f"{what}[{at}]")
    elif expected is None:
        assert found is None, what
    else:
        assert isinstance(found, np.ndarray), what
        assert_close(found, np.asarray(expected), rtol=1e-5, atol=1e-6, what=what)


def check(
    source: bytes,
    feeds: Sequence[Mapping[str, Any]],
    device: str,
    *,
    expected: Sequence[Sequence[Any]] | None = None,
    **options: Any,
) -> vkml.InferenceSession:
    """Runs a model in a session, with `evaluate` and with onnxruntime, and compares; returns the session.

    Args:
        source: the model.
        feeds: one after the other, all into the same session.
        device: to run on.
        expected: of each feed, in the place of onnxruntime's results, where that cannot run the model.
        options: of the session.
    """
    session = vkml.InferenceSession(source, devices=device, **options)
    for at, feed in enumerate(feeds):
        wanted = by_onnxruntime(source, feed) if expected is None else expected[at]
        for how, found in (("evaluated", evaluated(source, feed)), (device, session.run(None, feed))):
            assert len(found) == len(wanted)
            for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
                assert_same(mine, theirs, f"{how}, feed {at}, output {number}")
    return session


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


LOOP = """
g (int64 m, bool go, float[k] x, float[k] w) => (float[k] last, float[t, k] all, float[t] sums) {
  z = Constant <value_ints = [0]> ()
  e = Exp(w)
  last, all, sums = Loop (m, go, x) <
    body = body (int64 i, bool c, float[k] s) => (bool more, float[k] s2, float[k] out, float total) {
      f = Cast <to = 1> (i)
      p = Mul(s, e)
      s2 = Add(p, f)
      out = Tanh(s2)
      total = ReduceSum <keepdims = 0> (out, z)
      limit = Constant <value_float = 200.0> ()
      more = Less(f, limit)
    }
  >
}
"""


def loop_feed(trips: int, go: bool = True, size: int = 5) -> dict[str, Array]:
    return {"m": np.array(trips), "go": np.array(go), "x": floats(size), "w": 0.1 * floats(size, seed=1)}
