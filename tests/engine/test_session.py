"""Sessions: plans for each shape, inputs that decide shapes, several threads, fallbacks, bad arguments."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from tests.patience import patience
from vkml import errors
from vkml.engine.options import SessionOptions
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.onnx import save_graph
from vkml.ops.upgrading import NEWEST

Array = np.ndarray[Any, Any]


def scaled_softmax(shape: tuple[int | str, ...] = ("rows", 4)) -> bytes:
    sketch = Sketch("scaled")
    x = sketch.input("x", shape)
    doubled = sketch.node("Mul", x, sketch.constant(np.float32(2)))
    return save_graph(sketch.finish(sketch.node("Softmax", doubled), doubled))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def test_every_shape_gets_its_plan_and_old_plans_go(device_name: str) -> None:
    options = SessionOptions(plan_cache_size=2)
    with vkml.InferenceSession(scaled_softmax(), options, devices=device_name) as session:
        for rows in (1, 2, 3, 1, 2, 7, 1):
            x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
            found, doubled = session.run(None, {"x": x})
            np.testing.assert_allclose(found, softmax(2 * x), rtol=1e-5)
            np.testing.assert_array_equal(doubled, 2 * x)
            assert len(session._runner.plans.kept) <= 2
        [only] = session.run(["output_1"], {"x": x})
        np.testing.assert_array_equal(only, 2 * x)


def test_results_are_the_callers_own(device_name: str) -> None:
    with vkml.InferenceSession(scaled_softmax((2, 4)), devices=device_name) as session:
        x = np.ones((2, 4), np.float32)
        first = session.run(None, {"x": x})
        kept = [array.copy() for array in first]
        session.run(None, {"x": 5 * x})
        for array, copy in zip(first, kept, strict=True):
            np.testing.assert_array_equal(array, copy)
            array[...] = 7  # writable, and not the session's memory
        for array, copy in zip(session.run(None, {"x": x}), kept, strict=True):
            np.testing.assert_array_equal(array, copy)


def test_inputs_that_decide_shapes(device_name: str) -> None:
    sketch = Sketch("reshape")
    x = sketch.input("x", ("n",))
    shape = sketch.input("shape", (2,), dtypes.INT64)
    graph = sketch.finish(sketch.node("Relu", sketch.node("Reshape", x, shape)))
    with vkml.InferenceSession(save_graph(graph), devices=device_name) as session:
        data = np.arange(12, dtype=np.float32) - 6
        for wanted in ((3, 4), (4, 3), (-1, 2), (3, 4)):
            [found] = session.run(None, {"x": data, "shape": np.array(wanted, np.int64)})
            np.testing.assert_array_equal(found, np.maximum(data.reshape(wanted), 0))
        with pytest.raises(errors.ShapeError, match="Reshape"):
            session.run(None, {"x": data, "shape": np.array((5, 5), np.int64)})
        [found] = session.run(None, {"x": data, "shape": np.array((6, 2), np.int64)})
        assert found.shape == (6, 2)


def test_threads_share_a_session(device_name: str) -> None:
    with vkml.InferenceSession(scaled_softmax(), devices=device_name) as session:
        wrong: list[str] = []

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(25):
                x = random.standard_normal((int(random.integers(1, 4)), 4)).astype(np.float32)
                found, doubled = session.run(None, {"x": x})
                if not (np.allclose(found, softmax(2 * x), rtol=1e-5) and np.array_equal(doubled, 2 * x)):
                    wrong.append(f"thread {seed}: {x}")

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience(60))
        assert not wrong and not any(thread.is_alive() for thread in threads)


def with_unsupported() -> tuple[bytes, Array, Array]:
    """Relu → Cos in double (SPIR-V has none) → Add, so device, CPU, device; its input and answer."""
    sketch = Sketch("mixed")
    x = sketch.input("x", (2, 3))
    first = sketch.node("Relu", x, name="first")
    wide = sketch.node("Cast", first, to=dtypes.FLOAT64.code, name="widen")
    root = sketch.node("Cos", wide, name="cosine")
    narrow = sketch.node("Cast", root, to=dtypes.FLOAT32.code, name="narrow")
    graph = sketch.finish(sketch.node("Add", narrow, first, name="last"), first)
    data = np.linspace(-1, 2, 6, dtype=np.float32).reshape(2, 3)
    return save_graph(graph), data, (np.cos(np.maximum(data, 0)) + np.maximum(data, 0)).astype(np.float32)


def test_nodes_without_a_kernel_run_on_the_cpu(
    vulkan_device_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, data, expected = with_unsupported()
    with vkml.InferenceSession(model, devices=vulkan_device_name) as session:
        for _ in range(2):
            found, first = session.run(None, {"x": data})
            np.testing.assert_allclose(found, expected, rtol=1e-6)
            np.testing.assert_array_equal(first, np.maximum(data, 0))
        report = session.report()
    fallen = dict(report.fallbacks)
    assert any("cosine" in label for label in fallen) and all(fallen.values())
    assert not any("first" in label or "last" in label for label in fallen)
    assert {step.device for step in report.steps} == {"cpu", vulkan_device_name}
    warnings = [record for record in caplog.records if "on the CPU instead" in record.message]
    assert len(warnings) == 1 and "cosine" in warnings[0].message


def test_strict_sessions_refuse_the_cpu(vulkan_device_name: str) -> None:
    model, _, _ = with_unsupported()
    with pytest.raises(errors.NotImplemented, match="cosine"):
        vkml.InferenceSession(model, devices=vulkan_device_name, strict=True)


@pytest.mark.parametrize("name", ["int64", "float16", "bool", "uint8"])
def test_types_that_a_device_lacks_fall_back_with_a_reason(vulkan_device_name: str, name: str) -> None:
    dtype = dtypes.from_numpy(np.dtype(name))
    sketch = Sketch("types")
    x = sketch.input("x", (4,), dtype)
    moved = sketch.node("Concat", x, x, axis=0)
    compared = sketch.node("Equal", moved, moved) if name != "float16" else sketch.node("Neg", moved)
    data = np.array([0, 1, 1, 0]).astype(name)
    with vkml.InferenceSession(
        save_graph(sketch.finish(moved, compared)), devices=vulkan_device_name
    ) as session:
        found, _ = session.run(None, {"x": data})
        np.testing.assert_array_equal(found, np.concatenate([data, data]))
        for label, reason in session.report().fallbacks:
            assert label and "needs" in reason


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({}, "missing"),
        ({"x": np.zeros((2, 4), np.float32), "y": np.zeros(1)}, "unknown"),
        ({"x": np.zeros((2, 5), np.float32)}, "shape"),
        ({"x": np.zeros((2, 4), np.float64)}, "float32"),
        ({"x": np.zeros((4,), np.float32)}, "shape"),
    ],
)
def test_bad_feeds_are_said_to_be(device_name: str, feed: dict[str, Array], message: str) -> None:
    with vkml.InferenceSession(scaled_softmax(), devices=device_name) as session:
        with pytest.raises(errors.InvalidArgument, match=message):
            session.run(None, feed)
        with pytest.raises(errors.InvalidArgument, match="nothing"):
            session.run(["nothing"], {"x": np.zeros((2, 4), np.float32)})
        session.run(None, {"x": np.zeros((2, 4), np.float32)})


def test_empty_batches_and_views_as_feeds(device_name: str) -> None:
    with vkml.InferenceSession(scaled_softmax(), devices=device_name) as session:
        found, doubled = session.run(None, {"x": np.zeros((0, 4), np.float32)})
        assert found.shape == doubled.shape == (0, 4)
        base = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
        strided = base.T[1:5, ::-2].T
        found, _ = session.run(None, {"x": strided})
        np.testing.assert_allclose(found, softmax(2 * strided), rtol=1e-5)


def test_a_closed_session_says_so(device_name: str) -> None:
    session = vkml.InferenceSession(scaled_softmax((2, 4)), devices=device_name)
    session.run(None, {"x": np.zeros((2, 4), np.float32)})
    session.close()
    session.close()
    with pytest.raises(errors.Fail, match="closed"):
        session.run(None, {"x": np.zeros((2, 4), np.float32)})


def test_sessions_and_devices_say_what_they_are(device_name: str, tmp_path: Path) -> None:
    (tmp_path / "new.onnx").write_bytes(_of_opset(13))
    with vkml.InferenceSession(tmp_path / "new.onnx", devices=device_name) as session:
        assert repr(session) == f"<InferenceSession of {tmp_path / 'new.onnx'} on {device_name}>"
    [device] = [each for each in vkml.devices(True) if each.name == device_name]
    assert device_name in repr(device) and device.title in repr(device) and len(repr(device)) < 200


def test_a_profile_names_every_node(device_name: str, tmp_path: Path) -> None:
    sketch = Sketch("net")
    x = sketch.input("x", (4, 8))
    product = sketch.node("MatMul", x, sketch.constant(np.ones((8, 8), np.float32)), name="first")
    graph = sketch.finish(sketch.node("Softmax", product, name="second", axis=-1))
    options = vkml.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    with vkml.InferenceSession(save_graph(graph), options, devices=device_name) as session:
        for _ in range(2):
            [found] = session.run(None, {"x": np.ones((4, 8), np.float32)})
        path = session.end_profiling()
    np.testing.assert_allclose(found, np.full((4, 8), 0.125), rtol=1e-6)
    events = json.loads(Path(path).read_text(encoding="utf-8"))
    assert [event["name"] for event in events if event["cat"] == "Session"] == ["run", "run"]
    nodes = [event for event in events if event["cat"] == "Node"]
    for name in ("first", "second"):
        assert sum(name in event["name"] for event in nodes) >= 2
    assert all(event["dur"] >= 0 and event["args"]["device"] == device_name for event in nodes)


def test_profiles_of_the_same_second_keep_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "now")
    options = SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "trace"))
    paths = []
    for runs in (1, 2, 3):
        with vkml.InferenceSession(_of_opset(13), options, devices="cpu") as session:
            for _ in range(runs):
                session.run(None, {"x": np.ones(2, np.float32)})
            paths.append(session.end_profiling())
    traces = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    assert [sum(event["name"] == "run" for event in trace) for trace in traces] == [1, 2, 3]


def _of_opset(version: int) -> bytes:
    sketch = Sketch("new", opset=version)
    x = sketch.input("x", (2,))
    return save_graph(sketch.finish(sketch.node("Add", sketch.node("Relu", x), x)))


def test_opsets_newer_than_known_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with vkml.InferenceSession(_of_opset(NEWEST + 3), devices="cpu") as session:
        for _ in range(2):
            [found] = session.run(None, {"x": np.array([-1, 1], np.float32)})
            assert found.tolist() == [-1, 2]
    [warning] = [record.getMessage() for record in caplog.records if "opset" in record.getMessage()]
    assert f"opset {NEWEST + 3}, vkml knows opsets up to {NEWEST}" in warning
    caplog.clear()
    vkml.InferenceSession(_of_opset(NEWEST), devices="cpu").close()
    vkml.InferenceSession(_of_opset(NEWEST + 1), SessionOptions(log_severity_level=4), devices="cpu").close()
    assert not caplog.records


def test_lists_may_hold_whole_numbers_on_both_sides_of_the_largest_signed_one(device_name: str) -> None:
    sketch = Sketch("large")
    x = sketch.input("x", (3,), dtypes.UINT64)
    model = save_graph(sketch.finish(sketch.node("Identity", x)))
    numbers = [1, 2**63 + 1, 2**64 - 1]  # of which NumPy makes float64
    with vkml.InferenceSession(model, devices=device_name) as session:
        assert session.run(None, {"x": numbers})[0].tolist() == numbers
        for wrong in ([1, 2**63, 2**64], [-1, 2**63, 1], [1.0, 2**63, 1]):
            with pytest.raises(errors.InvalidArgument, match="'x' takes uint64"):
                session.run(None, {"x": wrong})
