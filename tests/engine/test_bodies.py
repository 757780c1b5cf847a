"""Bodies of control flow: when what runs them is made, and what is refused before."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import vkml
from tests.control_models import model
from tests.patience import patience
from tests.robustness.large import bodies
from vkml import errors
from vkml.engine.control import Body, HostNode
from vkml.onnx import save_graph

IF = """
g (bool c, float[n] x) => (float[n] y) {
  y = If (c) <
    then_branch = then () => (float[n] a) { a = Exp(x) },
    else_branch = other () => (float[n] b) { b = Neg(x) }
  >
}
"""
X = np.arange(3, dtype=np.float32)


def only_host(session: vkml.InferenceSession) -> HostNode:
    [host] = session._runner.hosts.values()
    return host


def test_a_body_is_made_when_it_is_first_needed() -> None:
    session = vkml.InferenceSession(model(IF), devices="cpu")
    host = only_host(session)
    assert not host._bodies
    session.run(None, {"c": np.array(False), "x": X})
    assert [*host._bodies] == ["else_branch"]
    first = host.body("else_branch")
    session.run(None, {"c": np.array(True), "x": X})
    session.run(None, {"c": np.array(False), "x": X})
    assert [*host.bodies] == ["then_branch", "else_branch"]
    assert host.body("else_branch") is first


WRONG = {
    "captured": (
        IF.replace("float[n] x", "seq(float[n]) x"),
        r"Exp node 'a': its input 'x' must be a tensor, it is sequence",
    ),
    "captured, which a node before makes": (
        IF.replace("y = If", "e = SequenceConstruct(x) y = If").replace("Neg(x)", "Neg(e)"),
        r"Neg node 'b': its input 'e' must be a tensor, it is sequence",
    ),
    "made within": (
        IF.replace("b = Neg(x)", "e = SequenceConstruct(x) b = Neg(e)"),
        r"Neg node 'b': its input 'e' must be a tensor, it is sequence",
    ),
    "made within a body of a body": (
        IF.replace(
            "b = Neg(x)",
            """b = If (c) <
              then_branch = deep () => (float[n] d) { e = SequenceConstruct(x) d = Neg(e) },
              else_branch = deeper () => (float[n] f) { f = Neg(x) }
            >""",
        ),
        r"Neg node 'd': its input 'e' must be a tensor, it is sequence",
    ),
    "captured by a body of a body": (
        IF.replace("y = If", "e = SequenceConstruct(x) y = If").replace(
            "b = Neg(x)",
            """b = If (c) <
              then_branch = deep () => (float[n] d) { d = Neg(e) },
              else_branch = deeper () => (float[n] f) { f = Neg(x) }
            >""",
        ),
        r"Neg node 'd': its input 'e' must be a tensor, it is sequence",
    ),
    "made, where a tensor is stated": (
        IF.replace("b = Neg(x)", "b = SequenceConstruct(x)"),
        r"the output 'b' is stated to be float.* and computes to sequence",
    ),
    "an input": (
        """
        g (int64 m, seq(float[2]) x) => (seq(float[2]) y, float[k, 2] z) {
          y, z = Loop (m, , x) <
            body = body (int64 i, bool g, seq(float[2]) s) => (bool h, seq(float[2]) t, float[2] u) {
              h = Identity(g) t = Identity(s) u = Neg(s)
            }
          >
        }""",
        r"Neg node 'u': its input 's' must be a tensor, it is sequence",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_body_is_said_while_the_model_loads(name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(errors.InvalidGraph, match=message):
        vkml.InferenceSession(model(text), devices="cpu")


def test_threads_that_come_at_once_share_one_body(monkeypatch: pytest.MonkeyPatch) -> None:
    session = vkml.InferenceSession(model(IF), devices="cpu")
    host = only_host(session)
    both = threading.Barrier(2, timeout=patience(60))
    made: list[Body] = []
    make = HostNode._new_body

    def together(self: HostNode, key: str) -> Body:
        body = make(self, key)
        made.append(body)
        both.wait()
        return body

    monkeypatch.setattr(HostNode, "_new_body", together)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(session.run(None, {"c": np.array(False), "x": X})[0]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [array.tolist() for array in found] == [[0, -1, -2]] * 2
    assert len(made) == 2
    with_plans = [body for body in made if body.runner is not None and body.runner.plans.kept]
    assert with_plans == [host.body("else_branch")]


def test_a_body_that_is_made_while_its_session_is_closed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    session = vkml.InferenceSession(model(IF), devices="cpu")
    make = HostNode._new_body

    def meanwhile(self: HostNode, key: str) -> Body:
        made = make(self, key)
        closing = threading.Thread(target=session.close)
        closing.start()
        closing.join(patience(60))
        return made

    monkeypatch.setattr(HostNode, "_new_body", meanwhile)
    with pytest.raises(errors.Fail, match="is closed"):
        session.run(None, {"c": np.array(False), "x": X})
    body = only_host(session)._bodies["else_branch"]
    assert body.runner is not None and body.runner.plans.is_closed and not body.runner.plans.alive


def test_the_collector_rests_while_a_session_is_made() -> None:
    found: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        found.append(phase)

    vkml.InferenceSession(save_graph(bodies(10)), devices="cpu")  # what is made once in a process
    data = save_graph(bodies(500))
    threshold = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(100, 5, 5)
    try:
        session = vkml.InferenceSession(data, devices="cpu")
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(note)
    assert len(session._runner.hosts) == 150
    assert len(found) < 30  # 4; while it collects, 230 in the reading of the model and 60 behind it
