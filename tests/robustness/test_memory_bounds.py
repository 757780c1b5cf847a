"""Small models that want much memory: what loading takes of it, and what is refused before it is taken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto

import vkml
from tests.robustness.models import INT64, model, node, value
from tests.robustness.processes import output_of

MIB = 1 << 20
MOST_LOADING = 300 * MIB
"""What loading a model of a few hundred bytes may take."""

LOAD = """
    import json, sys
    import vkml
    from pathlib import Path

    def peak():
        line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    with vkml.InferenceSession({small!r}, devices="cpu"):
        pass
    before = peak()
    kind = "loaded"
    try:
        vkml.InferenceSession({path!r}, devices="cpu")
    except vkml.OutOfMemory as error:
        kind = "refused"
    print(json.dumps([kind, peak() - before]))
"""


def loaded(folder: Path, data: bytes) -> tuple[str, int]:
    """Whether a process of its own can load a model on the CPU, and how much its memory grows by that."""
    small, path = folder / "small.onnx", folder / "model.onnx"
    small.write_bytes(model([node("Neg", ["x"], ["y"])], [value("x", (2,))], [value("y", (2,))]))
    path.write_bytes(data)
    kind, grown = json.loads(output_of(LOAD.format(small=str(small), path=str(path))))
    return kind, grown


def doubling(times: int, op: str = "Concat") -> bytes:
    nodes = [node(op, [f"v{i}", f"v{i}"], [f"v{i + 1}"], axis=0) for i in range(times)]
    last = [node("ReduceMax", [f"v{times}"], ["m"], keepdims=0), node("Add", ["x", "m"], ["y"])]
    return model([*nodes, *last], [value("x", (1,))], [value("y", (1,))], {"v0": np.ones(16, np.float32)})


@pytest.mark.parametrize("times", [25, 33])
def test_doubled_constants(tmp_path: Path, times: int) -> None:
    data = doubling(times)
    assert len(data) < 2000
    kind, grown = loaded(tmp_path, data)
    assert grown < MOST_LOADING
    if times == 33:
        assert kind == "refused"


def filled(kind: str, count: int) -> tuple[list[NodeProto], dict[str, np.ndarray]]:
    """`count` fills of 48 MiB, each of constants, whose sums are added up; and the constants."""
    rows = 12 * MIB
    constants: dict[str, np.ndarray] = {
        "shape": np.array([rows]),
        "one": np.ones(1, np.float32),
        "start": np.array(0, np.float32),
        "stop": np.array(rows, np.float32),
        "step": np.array(1, np.float32),
        "index": np.zeros(4, np.int64),
        "depth": np.array(rows // 4),
        "values": np.array([0, 1], np.float32),
    }
    inputs = {
        "ConstantOfShape": ["shape"],
        "Expand": ["one", "shape"],
        "Tile": ["one", "shape"],
        "Range": ["start", "stop", "step"],
        "OneHot": ["index", "depth", "values"],
    }[kind]
    nodes, total = [], "x"
    for i in range(count):
        nodes += [
            node(kind, inputs, [f"fill{i}"]),
            # Alive until the end: nothing is gained by releasing what is dead.
            node("Add", [f"fill{i}", "x"], [f"wide{i}"]),
        ]
    for i in range(count):
        nodes += [
            node("ReduceMax", [f"wide{i}"], [f"most{i}"], keepdims=0),
            node("Add", [total, f"most{i}"], [f"total{i}"]),
        ]
        total = f"total{i}"
    nodes.append(node("Identity", [total], ["y"]))
    used = set(inputs)
    return nodes, {name: array for name, array in constants.items() if name in used}


@pytest.mark.parametrize("kind", ["ConstantOfShape", "Expand", "Tile", "Range", "OneHot"])
@pytest.mark.parametrize("dimension", [1, "n"], ids=["static", "open"])
def test_fills(tmp_path: Path, kind: str, dimension: int | str) -> None:
    nodes, constants = filled(kind, 16)
    data = model(nodes, [value("x", (dimension,))], [value("y", (dimension,))], constants)
    assert loaded(tmp_path, data)[1] < MOST_LOADING


def test_what_folding_has_used_is_released(tmp_path: Path) -> None:
    """A chain of results that only folded nodes read folds away whole, however long."""
    nodes = [node("ConstantOfShape", ["shape"], ["v0"])]
    nodes += [node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(100)]
    nodes += [node("ReduceMax", ["v100"], ["m"], keepdims=0), node("Add", ["x", "m"], ["y"], "last")]
    data = model(nodes, [value("x", (1,))], [value("y", (1,))], {"shape": np.array([4 * MIB])})
    with vkml.InferenceSession(data, devices="cpu") as session:
        assert [step.nodes for step in session.report().steps] == [("Add node 'last'",)]
    assert loaded(tmp_path, data)[1] < MOST_LOADING


def test_shapes_are_known_whatever_folding_has_spent() -> None:
    """Fills that use all there is come first; the shape arithmetic behind them is folded all the same."""
    nodes = [node("ConstantOfShape", ["large"], [f"fill{i}"], f"fill{i}") for i in range(5)]
    nodes += [node("Mul", ["a", "b"], ["s"]), node("Reshape", ["x", "s"], ["r"])]
    nodes += [node("ReduceMax", [f"fill{i}"], [f"m{i}"], keepdims=0) for i in range(5)]
    nodes += [node("Sum", ["r", *(f"m{i}" for i in range(5))], ["y"])]
    constants = {"large": np.array([8 * MIB]), "a": np.array([1, 2]), "b": np.array([3, 1])}
    data = model(nodes, [value("x", (6,))], [value("y", (3, 2))], constants)
    with vkml.InferenceSession(data, devices="cpu") as session:
        [y] = session.run(None, {"x": np.arange(6, dtype=np.float32)})
    np.testing.assert_array_equal(y, np.arange(6).reshape(3, 2))


def placed(count: int, elements: int) -> bytes:
    """So many times the places of a fill's elements, whose number decides a size."""
    nodes, total = [], "x"
    for i in range(count):
        nodes += [
            node("Expand", ["one", "size"], [f"fill{i}"], f"fill{i}"),
            node("NonZero", [f"fill{i}"], [f"places{i}"], f"places{i}"),
            node("Transpose", [f"places{i}"], [f"column{i}"], perm=[1, 0]),
            node("ReduceMax", [f"column{i}"], [f"most{i}"], keepdims=0),
            node("Cast", [f"most{i}"], [f"real{i}"], to=1),
            node("Add", [total, f"real{i}"], [f"total{i}"]),
        ]
        total = f"total{i}"
    nodes.append(node("Identity", [total], ["y"]))
    constants = {"one": np.ones(1, np.float32), "size": np.array([elements])}
    return model(nodes, [value("x", (1,))], [value("y", (1,))], constants)


def test_sizes_decided_by_values_larger_than_what_is_folded(tmp_path: Path) -> None:
    """Each is computed all the same, and let go of before the next."""
    data = placed(6, 12 * MIB)
    with vkml.InferenceSession(data, devices="cpu") as session:
        [y] = session.run(None, {"x": np.zeros(1, np.float32)})
    np.testing.assert_allclose(y, [6 * (12 * MIB - 1)])
    assert loaded(tmp_path, data)[1] < MOST_LOADING


def test_sizes_decided_by_values_larger_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkml.engine.plan_memory.free_memory", lambda: 32 * MIB)
    with pytest.raises(vkml.OutOfMemory) as caught:
        vkml.InferenceSession(placed(1, 32 * MIB), devices="cpu")
    for word in ("Expand node 'fill0'", "decides sizes", "64.0 MiB", "32.0 MiB are free"):
        assert word in str(caught.value), caught.value


@pytest.mark.parametrize("dtype", ["float32", "float64"], ids=["machine-code", "numpy"])
def test_results_that_are_alive_together(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Ten of 6 MiB where 32 MiB are free; each fits alone."""
    kind = {"float32": 1, "float64": 11}[dtype]
    count, elements = 10, 6 * MIB // np.dtype(dtype).itemsize
    names = [f"part{i}" for i in range(count)]
    nodes = [node("Softmax", ["x"], [name], name, axis=-1) for name in names]
    inputs = [value("x", ("n",), kind)]
    together = model(nodes, inputs, [value(name, ("n",), kind) for name in names])
    chain = [node("Softmax", ["x"], ["part0"], axis=-1)]
    chain += [node("Softmax", [f"part{i}"], [f"part{i + 1}"], axis=-1) for i in range(count)]
    one_by_one = model(chain, inputs, [value(f"part{count}", ("n",), kind)])
    monkeypatch.setattr("vkml.engine.plan_memory.free_memory", lambda: 32 * MIB)
    x = np.ones(elements, dtype)
    with vkml.InferenceSession(together, devices="cpu") as session:
        with pytest.raises(vkml.OutOfMemory) as caught:
            session.run(None, {"x": x})
        for word in ("cpu", "60.0 MiB", "32.0 MiB are free", "95 %", "Softmax node 'part0'", "6.0 MiB"):
            assert word in str(caught.value), caught.value
        assert len(session.run(None, {"x": x[:10]})) == count
    with vkml.InferenceSession(one_by_one, devices="cpu") as session:
        assert session.run(None, {"x": x})[0].shape == x.shape


def test_views_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Neg", ["x"], ["v0"])]
    nodes += [node("Reshape", [f"v{i}", "s"], [f"v{i + 1}"]) for i in range(9)]
    nodes += [node("Neg", ["v9"], ["y"])]
    data = model(nodes, [value("x", ("n",), INT64)], [value("y", (None,), INT64)], {"s": np.array([-1])})
    monkeypatch.setattr("vkml.engine.plan_memory.free_memory", lambda: 16 * MIB)
    with vkml.InferenceSession(data, devices="cpu") as session:
        x = np.arange(6 * MIB // 8)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)


def test_what_is_larger_for_a_smaller_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for all n computes 1025 - n rows: more for n = 600 than for 1024, its power of two."""
    monkeypatch.setattr("vkml.engine.plan_memory.free_memory", lambda: 1024 * MIB)
    constants = {"most": np.array([1025]), "row": np.ones((1, 8192), np.float32), "columns": np.array([8192])}
    nodes = [
        node("Shape", ["x"], ["n"]),
        node("Sub", ["most", "n"], ["rest"]),
        node("Concat", ["rest", "columns"], ["size"], axis=0),
        node("Expand", ["row", "size"], ["large"], "large"),
        node("Softmax", ["large"], ["even"], axis=-1),
        node("ReduceMax", ["even"], ["greatest"], keepdims=0),
        node("Add", ["x", "greatest"], ["y"]),
    ]
    data = model(nodes, [value("x", ("n",))], [value("y", ("n",))], constants)
    with vkml.InferenceSession(data, devices="cpu") as session:
        for n in (1023, 1022, 1024, 1021):
            [y] = session.run(None, {"x": np.zeros(n, np.float32)})
            np.testing.assert_allclose(y, np.full(n, 1 / 8192), rtol=1e-5)
        monkeypatch.setattr("vkml.engine.plan_memory.free_memory", lambda: 8 * MIB)
        with pytest.raises(vkml.OutOfMemory, match="MiB are free"):
            session.run(None, {"x": np.zeros(600, np.float32)})
        [y] = session.run(None, {"x": np.zeros(1020, np.float32)})
        np.testing.assert_allclose(y, np.full(1020, 1 / 8192), rtol=1e-5)
