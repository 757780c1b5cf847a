"""Reports say what NumPy runs on the CPU, and why; such nodes take no others along that machine code runs."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from vkml.cpu.native.executable import instruction_set
from vkml.engine.profile import profiled_steps
from vkml.engine.report import StepReport
from vkml.engine.sketch import Sketch
from vkml.errors import ShapeError
from vkml.ir import DType, Graph, dtypes
from vkml.onnx import save_graph

if instruction_set() is None:
    pytest.skip("no machine code here", allow_module_level=True)


def steps_of(graph: Graph) -> dict[str, StepReport]:
    """Node → the step it is in, on the CPU; after a run."""
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        session.run(
            None, {value.name: np.ones(value.type.dims, value.type.dtype.storage) for value in graph.inputs}
        )
        return {label: step for step in session.report().steps for label in step.nodes}


def test_every_node_that_numpy_runs_has_its_reason() -> None:
    sketch = Sketch("reasons")
    x = sketch.input("x", (4, 8))
    wide = sketch.node("Cast", x, to=dtypes.FLOAT64.code, name="wide")
    y = sketch.node("Softplus", sketch.node("Add", wide, wide, name="sum"), name="softplus")
    y = sketch.node("Sin", y, name="sine")
    y = sketch.node("Abs", y, name="size")
    places = sketch.node("NonZero", x, name="places")
    steps = steps_of(sketch.finish(y, places))
    for name, operator, lacks in (("softplus", "Softplus", "exp"), ("sine", "Sin", "sin")):
        step = steps[f"{operator} node '{name}'"]
        assert step.variant == "numpy" and f"{lacks} of double has no machine code" in step.reason
    for name, operator in (("sum", "Add"), ("wide", "Cast"), ("size", "Abs")):
        assert steps[f"{operator} node '{name}'"].variant != "numpy"
    assert "depends on data" in steps["NonZero node 'places'"].reason
    assert all(step.reason for step in steps.values() if step.variant == "numpy")


def test_reasons_name_machine_code_not_vulkan() -> None:
    sketch = Sketch("words")
    x = sketch.input("x", (4, 8))
    made = [
        sketch.node("GatherND", x, sketch.constant(np.array([[0]], np.int64)), name="places"),
        sketch.node("Einsum", x, x, equation="ij,kj->ik", name="einsum"),
        sketch.node("Add", *(sketch.node("Cast", x, to=dtypes.FLOAT64.code) for _ in range(2)), name="wide"),
    ]
    for step in steps_of(sketch.finish(*made)).values():
        if step.variant == "numpy":
            assert step.reason and "Vulkan" not in step.reason


@pytest.mark.parametrize("target", [dtypes.FLOAT64, dtypes.INT64], ids=str)
def test_what_epilogues_lack_is_a_launch_of_its_own(target: DType) -> None:
    sketch = Sketch("tails")
    value = sketch.input("x", (1, 4, 8, 8))
    for layer in range(2):
        weight = np.random.default_rng(layer).standard_normal((4, 4, 3, 3)).astype(np.float32)
        value = sketch.node("Conv", value, sketch.constant(weight), pads=[1] * 4, name=f"conv{layer}")
        value = sketch.node("Relu", value, name=f"relu{layer}")
        value = sketch.node("Cast", value, to=target.code, name=f"there{layer}")
        value = sketch.node("Mul", value, value, name=f"square{layer}")
        value = sketch.node("Cast", value, to=dtypes.FLOAT32.code, name=f"back{layer}")
    steps = steps_of(sketch.finish(value))
    for layer in range(2):
        assert (
            steps[f"Conv node 'conv{layer}'"].variant == steps[f"Relu node 'relu{layer}'"].variant != "numpy"
        )
        assert steps[f"Conv node 'conv{layer}'"].nodes == (
            f"Conv node 'conv{layer}'",
            f"Relu node 'relu{layer}'",
        )
        assert steps[f"Cast node 'there{layer}'"].variant != "numpy"


def test_numbers_are_known_to_lone_nodes_as_to_fused_ones() -> None:
    for exponent in (0.5, 2.0, 3.0):
        sketch = Sketch("power")
        power = sketch.node(
            "Pow", sketch.input("x", (4, 8)), sketch.constant(np.float32(exponent)), name="power"
        )
        steps = steps_of(sketch.finish(sketch.node("Transpose", power)))
        assert steps["Pow node 'power'"].variant != "numpy"


def test_without_machine_code_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = Sketch("plain")
    graph = sketch.finish(sketch.node("Relu", sketch.input("x", (4,)), name="relu"))
    monkeypatch.setattr("vkml.lowering.cpu.instruction_set", lambda: None)
    assert "VKML_NATIVE" in steps_of(graph)["Relu node 'relu'"].reason


def test_no_report_makes_up_gigabytes_that_sizes_might_hang_on() -> None:
    for size in (2**62, 2**31):
        sketch = Sketch("vast")
        axes = sketch.input("axes", (size,), dtypes.INT64)
        x = sketch.input("x", (2, 3))
        model = save_graph(sketch.finish(sketch.node("ReduceSum", x, axes, keepdims=0)))
        with vkml.InferenceSession(model, devices="cpu") as session:
            assert "values of 'axes'" in session.report().assumed[-1]


def _network() -> Graph:
    sketch = Sketch("net")
    x = sketch.input("x", ("n", 3, 8, 8))
    weight = sketch.constant(np.ones((4, 3, 3, 3), np.float32))
    y = sketch.node("Conv", x, weight, pads=[1] * 4, name="conv")
    y = sketch.node("Flatten", sketch.node("Relu", y, name="relu"), name="flat")
    y = sketch.node("Gemm", y, sketch.constant(np.ones((10, 256), np.float32)), transB=1, name="scores")
    return sketch.finish(sketch.node("Softmax", y, name="softmax"))


@pytest.mark.usefixtures("launches_of_their_own")
def test_steps_have_the_model_s_shapes_operations_and_bytes(device_name: str) -> None:
    # Strict: matrix units read weights in tiles of theirs, which may be larger.
    model = save_graph(_network())
    with vkml.InferenceSession(model, devices=device_name, precision="highest") as session:
        session.run(None, {"x": np.ones((2, 3, 8, 8), np.float32)})
        for batch in (2, 5):  # the second after a plan for open sizes has been made, perhaps
            steps = {each: step for step in session.report({"n": batch}).steps for each in step.operators}
            assert steps["Conv"].output_shapes == ((batch, 4, 8, 8),)
            assert steps["Gemm"].output_shapes == ((batch, 10),)
            assert steps["Conv"].flops == 2 * batch * 4 * 64 * 27
            assert steps["Gemm"].flops == 2 * batch * 10 * 256
            assert steps["Softmax"].flops == 0
            assert steps["Gemm"].bytes == 4 * (batch * 256 + 2560 + batch * 10)
            assert all(step.reason and step.bytes for step in steps.values())
            session.run(None, {"x": np.ones((7, 3, 8, 8), np.float32)})


def test_a_report_prints_as_a_table_of_eighty_columns(device_name: str) -> None:
    with vkml.InferenceSession(save_graph(_network()), devices=device_name) as session:
        lines = str(session.report({"n": 2})).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"Plan for {device_name}: ")
    [conv] = [at for at, line in enumerate(lines) if "conv" in line and "2×4×8×8" in line]
    assert "Conv Relu" in lines[conv] and "0.03" in lines[conv]
    assert lines[conv + 1].strip().startswith(f"{device_name}: ")


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "wanted"),
    [
        ("MatMul", [(3, 4, 5), (5, 6)], {}, 3 * 4 * 5 * 6),
        ("Gemm", [(5, 4), (6, 5)], {"transA": 1, "transB": 1}, 4 * 5 * 6),
        ("Conv", [(2, 4, 9), (6, 2, 3)], {"group": 2, "strides": [2]}, 2 * 6 * 4 * 6),
        # As the convolution that it runs as: each of its 11 results has 12 products, some of a border.
        ("ConvTranspose", [(2, 4, 9), (4, 3, 3)], {}, 2 * 3 * 11 * 12),
        ("Einsum", [(2, 3), (3, 4)], {"equation": "ij,jk->ik"}, 24),
        ("LSTM", [(7, 2, 3), (1, 20, 3), (1, 20, 5)], {"hidden_size": 5}, 14 * (60 + 100)),
        ("Relu", [(4,)], {}, 0),
    ],
)
def test_multiply_adds(
    op: str, shapes: list[tuple[int, ...]], attributes: dict[str, object], wanted: int
) -> None:
    sketch = Sketch("one")
    names = [sketch.input(f"x{at}", shape) for at, shape in enumerate(shapes)]
    graph = sketch.finish(sketch.node(op, *names, **attributes))
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        assert sum(step.flops for step in session.report().steps) == 2 * wanted


def test_nodes_of_one_body_that_are_called_alike_pay_each_for_itself(device_name: str) -> None:
    sketch = Sketch("attention", opset=23)
    shapes = {"q": (2, 2, 16, 16), "k": (2, 2, 8, 16), "v": (2, 2, 8, 4)}  # of fewer rows it is one launch
    q, k, v = (sketch.input(name, shape) for name, shape in shapes.items())
    graph = sketch.finish(sketch.node("Attention", q, k, v, name="attention"))
    feed = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    options = vkml.SessionOptions(enable_profiling=True)
    with vkml.InferenceSession(save_graph(graph), options, devices=device_name) as session:
        session.run(None, feed)
        steps, timed = session.report().steps, profiled_steps([session.traced_runs])
    assert sorted(step.flops for step in steps if step.flops) == [2 * 2048, 2 * 8192]
    assert sum(step.flops for step in timed) == 2 * (2048 + 8192)


def test_report_says_which_sizes_it_wants() -> None:
    """Of a model that is for no images of one pixel."""
    sketch = Sketch("pool")
    x = sketch.input("x", ("n", 3, "h", "w"))
    model = save_graph(sketch.finish(sketch.node("MaxPool", x, kernel_shape=(3, 3))))
    with vkml.InferenceSession(model, devices="cpu") as session:
        with pytest.raises(ShapeError, match=r"window of 3 .* taken for 1, unless stated: h, n, w$"):
            session.report()
        with pytest.raises(ShapeError, match=r"unless stated: n$"):
            session.report({"h": 8, "w": 2})
        [step] = session.report({"h": 8, "w": 8}).steps
    assert step.operators == ("MaxPool",)
