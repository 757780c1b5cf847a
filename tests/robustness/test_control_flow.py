"""Loops without end, too deep, too large, closed and interrupted in the middle; bodies that are no bodies."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkml
from tests.control_models import model
from tests.patience import patience
from tests.robustness.processes import run_python
from vkml import errors
from vkml.engine import control
from vkml.engine.gated_trips import GatedTrips

ENDLESS = """
g (float[40] x, bool go) => (float[40] y, int64 n) {
  zero = Constant <value_int = 0> ()
  y, n = Loop (, go, x, zero) <
    body = body (int64 i, bool c, float[40] s, int64 k) => (bool d, float[40] t, int64 j) {
      one = Constant <value_int = 1> ()
      j = Add(k, one)
      d = GreaterOrEqual(j, k)
      t = Tanh(s)
    }
  >
}
"""

INTERRUPTS = """
    import faulthandler
    import numpy as np, vkml
    from tests.control_models import model
    from tests.patience import patience
    from tests.robustness.interrupts import interrupted, interrupted_everywhere
    from tests.robustness.test_control_flow import ENDLESS

    faulthandler.dump_traceback_later(patience(200), exit=True)
    session = vkml.InferenceSession(model(ENDLESS), devices="{name}")
    x = np.ones(40, np.float32)

    def run(go):
        return session.run(None, {{"x": x, "go": np.array(go)}})

    run(False)
    # Long enough to be met by every interrupt; not endless, for Python drops one that meets a finalizer.
    long = vkml.InferenceSession(model(ENDLESS.replace("(, go", "(many, go").replace(
        "zero = Constant", "many = Constant <value_int = 20000> () zero = Constant", 1)), devices="{name}")
    interrupted(lambda: long.run(None, {{"x": x, "go": np.array(True)}}), 20, 0.02)
    long.close()
    assert run(False)[0].tolist() == x.tolist()
    few = vkml.InferenceSession(model(ENDLESS.replace("(, go", "(two, go").replace(
        "zero = Constant", "two = Constant <value_int = 2> () zero = Constant", 1)), devices="{name}")
    feed = {{"x": x, "go": np.array(True)}}
    expected = few.run(None, feed)[0]

    def check():
        assert few.run(None, feed)[0].tolist() == expected.tolist()

    files = ["vkml/engine/control.py", "vkml/engine/runner.py", "vkml/ops/control.py"]
    assert interrupted_everywhere(lambda: few.run(None, feed), check, files) > 20
    session.close()
    few.close()
    print("done")
"""


def test_interrupts(device_name: str) -> None:
    done = run_python(INTERRUPTS.format(name=device_name))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr


def test_a_session_closed_in_the_middle_of_a_loop(device_name: str) -> None:
    session = vkml.InferenceSession(model(ENDLESS), devices=device_name)
    session.run(None, {"x": np.ones(40, np.float32), "go": np.array(False)})
    has_begun = threading.Event()
    caught: list[Exception] = []
    steps: list[None] = []

    def noting(kind: type, name: str) -> Any:
        real = getattr(kind, name)

        def run(*given: Any) -> Any:
            steps.append(None)
            if len(steps) > 20:
                has_begun.set()
            return real(*given)

        return run

    def work() -> None:
        try:
            session.run(None, {"x": np.ones(40, np.float32), "go": np.array(True)})
        except Exception as error:
            caught.append(error)

    with pytest.MonkeyPatch.context() as patch:
        for kind, name in ((control.Body, "run"), (GatedTrips, "_chunk")):
            patch.setattr(kind, name, noting(kind, name))
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert has_begun.wait(patience(60))
        closing = threading.Thread(target=session.close, daemon=True)
        closing.start()
        for each in (thread, closing):
            each.join(patience(60))
            assert not each.is_alive()
    assert len(caught) == 1 and isinstance(caught[0], errors.Fail) and "closed" in str(caught[0])


COLLECTS = """
g (int64 m, float[1024] x) => (float[1024] y, float[t, 1024] all) {
  go = Constant <value = bool {1}> ()
  y, all = Loop (m, go, x) <
    body = body (int64 i, bool c, float[1024] s) => (bool d, float[1024] t, float[1024] o) {
      d = Identity(c)
      t = Neg(s)
      o = Identity(t)
    }
  >
}
"""


@pytest.mark.parametrize("trips", [2**62, 100_000, 2_000])
def test_results_that_memory_does_not_hold(monkeypatch: pytest.MonkeyPatch, trips: int) -> None:
    session = vkml.InferenceSession(model(COLLECTS), devices="cpu")
    feed = {"m": np.array(3), "x": np.ones(1024, np.float32)}
    session.run(None, feed)
    monkeypatch.setattr(control, "free_memory", lambda: 6 << 20)
    with pytest.raises(errors.OutOfMemory, match=r"Loop node 'y'.*MiB.* are free"):
        session.run(None, {**feed, "m": np.array(trips)})
    assert session.run(None, feed)[1].shape == (3, 1024)


def test_sequences_that_memory_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    g (int64 m, float[8] x) => (seq(float[8]) y) {
      go = Constant <value = bool {1}> ()
      e = SequenceEmpty <dtype = 1> ()
      y = Loop (m, go, e) <
        body = body (int64 i, bool c, seq(float[8]) s) => (bool d, seq(float[8]) t) {
          d = Identity(c)
          t = SequenceInsert(s, x)
        }
      >
    }"""
    session = vkml.InferenceSession(model(text), devices="cpu")
    feed = {"m": np.array(3), "x": np.ones(8, np.float32)}
    assert len(session.run(None, feed)[0]) == 3
    monkeypatch.setattr(control, "free_memory", lambda: 0)
    with pytest.raises(errors.OutOfMemory, match="Loop node 'y'"):
        session.run(None, {**feed, "m": np.array(2**62)})


def nested(depth: int) -> bytes:
    """y = -x, made `depth` branches deep where the condition, an input, holds."""
    made = helper.make_tensor_value_info(f"y{depth}", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], [made.name])], "innermost", [], [made])
    for level in reversed(range(depth)):
        other = helper.make_tensor_value_info(f"z{level}", TensorProto.FLOAT, [2])
        branch = helper.make_graph([helper.make_node("Exp", ["x"], [other.name])], "other", [], [other])
        made = helper.make_tensor_value_info(f"y{level}", TensorProto.FLOAT, [2])
        node = helper.make_node("If", ["c"], [made.name], then_branch=graph, else_branch=branch)
        graph = helper.make_graph([node], f"level {level}", [], [made])
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]))
    graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(whole.SerializeToString())


def test_branches_as_deep_as_files_may_have_them() -> None:
    x = np.array([1, 2], np.float32)
    session = vkml.InferenceSession(nested(30), devices="cpu")
    assert session.run(None, {"x": x, "c": np.array(True)})[0].tolist() == [-1, -2]
    session.report()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("If", ["c"], ["y"], then_branch=3, else_branch=4), "_branch' must be a graph"),
        (helper.make_node("If", ["c"], ["y"]), "'then_branch' is missing"),
        (helper.make_node("Loop", ["c"], ["y"]), "takes at least 2 inputs, has 1"),
        (helper.make_node("Loop", ["", "c"], ["y"]), "'body' is missing"),
        (helper.make_node("Scan", ["x"], ["y"], num_scan_inputs=1), "'body' is missing"),
        (helper.make_node("SequenceMap", ["x"], ["y"], body="text"), "'body' must be a graph"),
        (helper.make_node("SequenceEmpty", [], ["y"], dtype=77), "SequenceEmpty node 'y'"),
    ],
)
def test_nodes_without_bodies(node: onnx.NodeProto, message: str) -> None:
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(errors.ModelError, match=message):
        vkml.InferenceSession(made.SerializeToString(), devices="cpu")


def test_many_threads_in_one_loop(device_name: str) -> None:
    session = vkml.InferenceSession(model(COLLECTS), devices=device_name)
    wrong: list[Any] = []

    def work(number: int) -> None:
        x = np.full(1024, number, np.float32)
        for trips in (1, 2, 5):
            y, rows = session.run(None, {"m": np.array(trips), "x": x})
            if y[0] != number * (-1) ** trips or rows.shape != (trips, 1024) or rows[0, 5] != -number:
                wrong.append((number, trips))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
