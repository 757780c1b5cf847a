"""Segments: where a graph is cut, and where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.counting import lines_run
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Constant, Graph, Node, TensorType, Value, dtypes
from vkml.passes.segments import Segment, segments


def parts(graph: Graph) -> tuple[Segment, ...]:
    """The segments, after what must hold for all: every value has one origin, every output is made."""
    ready = prepare(graph, optimise=False)
    found = segments(ready)
    there = {value.name for value in ready.inputs}
    made: list[str] = []
    for segment in found:
        part = segment.graph
        inputs = {value.name for value in part.inputs}
        assert inputs <= there
        assert set(segment.values) <= inputs
        known = inputs | set(part.constants)
        for node in part.nodes:
            assert {name for name in node.inputs if name} <= known, node
            known.update(name for name in node.outputs if name)
        outputs = {value.name for value in part.outputs}
        assert outputs <= known
        there |= outputs
        made += [node.name for node in part.nodes]
    assert {value.name for value in ready.outputs} <= there
    assert set(made) == {node.name for node in ready.nodes}
    if len(found) == 1:
        assert found[0].graph is ready
    return found


def names(segment: Segment) -> set[str]:
    return {node.name for node in segment.graph.nodes if not node.name.startswith("output_")}


def one(sketch: Sketch, value: int) -> str:
    return sketch.constant(np.array([value]))


def test_shapes_of_shapes_cut_nothing() -> None:
    sketch = Sketch("shapes")
    x = sketch.input("x", ("batch", "rows", 4))
    relu = sketch.node("Relu", x)
    batch = sketch.node("Gather", sketch.node("Shape", relu), one(sketch, 0))
    target = sketch.node("Concat", batch, one(sketch, -1), axis=0)
    flat = sketch.node("Reshape", relu, target)
    ones = sketch.node(
        "ConstantOfShape",
        sketch.node("Shape", flat),
        value=Constant(dtypes.FLOAT32, (1,), np.ones(1, np.float32)),
    )
    places = sketch.node("NonZero", ones)
    graph = sketch.finish(flat, sketch.node("Transpose", sketch.node("Relu", places)))
    [only] = parts(graph)
    assert only.values == () and only.sized_by_data == ()


def test_sizes_that_data_decides_cut_before_what_reads_them() -> None:
    sketch = Sketch("places")
    x = sketch.input("x", ("n",))
    doubled = sketch.node("Add", x, x, name="before")
    places = sketch.node("NonZero", doubled, name="places")
    columns = sketch.node("Transpose", places, name="columns")
    found = sketch.node("GatherND", doubled, columns, name="found")
    count = sketch.node("Shape", found, name="count")
    filled = sketch.node("ConstantOfShape", count, name="filled")
    beside = sketch.node("Relu", x, name="beside")
    first, second = parts(sketch.finish(sketch.node("Add", found, filled, name="sum"), beside))
    assert names(first) == {"before", "places", "beside"}
    assert names(second) == {"columns", "found", "count", "filled", "sum"}
    assert [node.name for node in first.sized_by_data] == ["places"]
    assert first.values == second.values == () and second.sized_by_data == ()


def test_a_result_that_data_sizes_cuts_nothing_where_nothing_reads_it() -> None:
    places = Node("NonZero", ("x",), ("y",), {}, "places", version=20)
    x, y = Value("x", TensorType(dtypes.FLOAT32, ("n",))), Value("y", TensorType(dtypes.INT64, (1, "count")))
    [only] = parts(Graph((x,), (y,), (places,), {}, opsets={"": 20}))
    assert [node.name for node in only.sized_by_data] == ["places"]


def test_a_shape_computed_from_data_cuts_once_and_arithmetic_on_it_is_planned() -> None:
    sketch = Sketch("computed")
    x = sketch.input("x", ("n", 4))
    lengths = sketch.input("lengths", ("n",), dtypes.INT64)
    longest = sketch.node("ReduceMax", lengths, keepdims=1, name="longest")
    value = x
    for layer in range(8):
        heavy = sketch.node(
            "MatMul", value, sketch.constant(np.eye(4, dtype=np.float32)), name=f"product{layer}"
        )
        batch = sketch.node("Gather", sketch.node("Shape", heavy), one(sketch, 0))
        target = sketch.node("Concat", batch, longest, one(sketch, -1), axis=0, name=f"target{layer}")
        split = sketch.node("Reshape", heavy, target, name=f"split{layer}")
        value = sketch.node("Reshape", split, sketch.node("Shape", heavy), name=f"joined{layer}")
    first, second = parts(sketch.finish(value))
    assert {"longest", "product0"} <= names(first) and "split0" in names(second)
    assert not first.values
    assert any("longest" in name or "target0" in name for name in second.values)
    assert all(f"target{layer}:0" in second.arithmetic for layer in range(1, 8))


def test_integers_fed_as_shapes_cut_nothing() -> None:
    sketch = Sketch("fed")
    x = sketch.input("x", ("n",))
    shape = sketch.input("shape", (2,), dtypes.INT64)
    rows = sketch.node("Gather", shape, one(sketch, 0))
    swapped = sketch.node(
        "Concat", sketch.node("Mul", rows, one(sketch, 2)), one(sketch, -1), axis=0, name="swapped"
    )
    [only] = parts(
        sketch.finish(sketch.node("Reshape", x, swapped), sketch.node("Cast", shape, to=1, name="float"))
    )
    assert only.values == ("shape",)
    assert "swapped:0" in only.arithmetic and "float:0" not in only.arithmetic


def test_long_integers_and_floats_are_data() -> None:
    for dtype, dims in ((dtypes.INT64, ("n",)), (dtypes.INT64, (4096,)), (dtypes.FLOAT32, (1,))):
        sketch = Sketch("data")
        x = sketch.input("x", ("m",))
        data = sketch.input("data", dims, dtype)
        total = sketch.node("ReduceSum", data, name="total")
        whole = sketch.node("Cast", total, to=dtypes.INT64.code, name="whole")
        first, second = parts(sketch.finish(sketch.node("Expand", x, whole, name="expanded")))
        assert names(first) == {"total", "whole"} and names(second) == {"expanded"}
        assert second.values == ("whole:0",)


def test_inputs_and_constants_may_be_outputs_of_a_cut_graph() -> None:
    sketch = Sketch("outputs")
    x = sketch.input("x", ("n",))
    table = sketch.constant(np.arange(3.0, dtype=np.float32))
    size = sketch.node("Shape", x, name="size")
    late = sketch.node("Relu", sketch.node("NonZero", x, name="places"), name="late")
    first, second = parts(sketch.finish(x, table, size, late, sketch.node("Add", late, size, name="sum")))
    assert {"output", "output_1", "output_2"} <= {value.name for value in first.graph.outputs}
    # The shape of an input costs nothing where it is needed again, and need not come from the first segment.
    assert "size" in names(first) and "size" in names(second)


@pytest.mark.parametrize("makes_outputs", [False, True])
def test_cutting_takes_work_in_proportion_to_the_graph(makes_outputs: bool) -> None:
    def graph(count: int) -> Graph:
        sketch = Sketch("long")
        value = sketch.input("x", ("n",))
        made = []
        for _ in range(count):
            value = sketch.node("NonZero", value)
            for _ in range(3):
                value = sketch.node("Relu", value)
            made.append(value)
        return prepare(sketch.finish(*(made if makes_outputs else made[-1:])), optimise=False)

    assert len(segments(graph(100))) == 101
    small, large = (lines_run(segments, graph(count)) for count in (300, 1200))
    assert large < 5 * small
