"""What operators state of themselves is true, and an operator that states a trait is treated by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import onnx.defs
import pytest

import vkml.ops  # noqa: F401  fills the registry
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph
from vkml.ir import Constant, Graph, Known, Node, Operator, TensorType, dtypes, find
from vkml.ir.operator import REGISTRY, Array, AttributeType, normalise_attributes
from vkml.lowering.cpu_memory import peak_bytes
from vkml.passes import fuse, normalise, remove_dead, simplify, specialise
from vkml.passes.fuse import members
from vkml.passes.segments import segments

FLOATS = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e-42], np.float32)
SHAPE = (4, 2)


def of_one_input(op: str, **attributes: Any) -> Node:
    node = Node(op, ("x",), ("y",), attributes, op, version=20)
    return replace(node, attributes=normalise_attributes(node, find(node)))


def stating(trait: str) -> list[str]:
    return sorted(name for (_, name), each in REGISTRY.items() if getattr(each, trait))


def test_neutral_elements_leave_every_bit() -> None:
    assert stating("neutral_elements") == ["Add", "Div", "Mul", "Sub"]
    for name in stating("neutral_elements"):
        operator = REGISTRY["", name]
        node = Node(name, ("x", "y"), ("z",))
        for position, number in operator.neutral_elements.items():
            operands = [FLOATS, np.float32(number)][:: 1 if position else -1]
            [result] = operator.evaluate(node, [np.asarray(operand) for operand in operands])
            assert result.view(np.uint32).tolist() == FLOATS.view(np.uint32).tolist(), (name, position)


def test_shapes_are_computed_without_elements() -> None:
    assert stating("is_shape_only") == ["Shape", "Size"]
    x = np.zeros((2, 0, 5), np.float32)
    for node in (of_one_input("Size"), of_one_input("Shape"), of_one_input("Shape", start=-2, end=7)):
        operator = find(node)
        [made] = operator.evaluate(node, [x])
        stated = operator.evaluate_shape(node, x.shape)
        assert stated.dtype == made.dtype == np.int64 and stated.tolist() == made.tolist()


def test_views_keep_every_element() -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    others = {"Reshape": [np.array([3, 2])], "Unsqueeze": [np.array([0])]}
    assert stating("is_view") == ["Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"]
    for name in stating("is_view"):
        [made] = find(of_one_input(name)).evaluate(of_one_input(name), [x, *others.get(name, [])])
        assert sorted(made.reshape(-1)) == x.reshape(-1).tolist()
        assert REGISTRY["", name].is_pointwise or REGISTRY["", name].keeps_elements


def test_spatial_operators_have_windows() -> None:
    x, weight = (TensorType(dtypes.FLOAT32, shape) for shape in ((1, 2, 7, 9), (4, 2, 3, 3)))
    assert stating("is_spatial") == ["AveragePool", "Conv", "ConvInteger", "MaxPool"]
    for name in stating("is_spatial"):
        node = of_one_input(name, kernel_shape=(3, 3), pads=(1, 0, 1, 2), strides=(2, 3))
        windows = find(node).windows(node, [x, weight])
        assert windows is not None
        assert (windows.output, windows.pads_begin, windows.reach_end) == ((4, 3), (1, 0), (1, 0))
        unknown = TensorType(dtypes.FLOAT32, (1, None, 7, 9))
        assert find(node).windows(node, [unknown, weight]) is None


def test_attributes_have_the_types_that_onnx_states() -> None:
    kinds = {each.name: each for each in AttributeType}
    checked = 0
    for schema in onnx.defs.get_all_schemas_with_history():
        operator = REGISTRY.get((schema.domain, schema.name))
        for name, attribute in schema.attributes.items() if operator is not None else ():
            stated = attribute.type.name
            if stated in kinds and not (schema.since_version < 6 and name in operator.retyped_attributes):
                assert operator.attribute_type(name) is kinds[stated], (
                    schema.name,
                    schema.since_version,
                    name,
                )
                checked += 1
    assert checked > 500


def test_a_seed_is_an_integer() -> None:
    sketch = Sketch("seed", opset=13)
    training = sketch.constant(np.array(True))
    rate = sketch.constant(np.float32(0.5))
    x = sketch.input("x", SHAPE)
    prepare(sketch.finish(sketch.node("Dropout", x, rate, training, seed=3)))
    sketch.node("Dropout", x, rate, training, seed=0.5)
    with pytest.raises(InvalidGraph, match="'seed' must be an integer"):
        prepare(sketch.finish())


class _Stating(Operator):
    """Makes of its one input a value of the same type; subclasses state what they are."""

    domain: ClassVar[str] = "test"

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        assert inputs[0] is not None
        return [inputs[0].type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        raise AssertionError(f"{node.label} is evaluated")


def enter(monkeypatch: pytest.MonkeyPatch, **traits: Any) -> None:
    monkeypatch.setitem(REGISTRY, ("test", "New"), type("New", (_Stating,), traits)("New"))


def between_pointwise(*constants: float) -> Graph:
    """Exp → New (with constants behind its first input) → Neg."""
    sketch = Sketch("new")
    x = sketch.node("Exp", sketch.input("x", SHAPE))
    numbers = [sketch.constant(np.float32(number)) for number in constants]
    graph = sketch.finish(sketch.node("Neg", sketch.node("New", x, *numbers)))
    nodes = tuple(replace(n, domain="test") if n.op == "New" else n for n in graph.nodes)
    return replace(graph, nodes=nodes, opsets={"": 20, "test": 1})


def optimised(graph: Graph) -> list[str]:
    ready = remove_dead(simplify(specialise(prepare(graph), {"x": SHAPE})))
    return ["+".join(part.op for part in members(node)) for node in fuse(ready).nodes]


def test_an_anchor_takes_the_pointwise_nodes_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch)
    assert optimised(between_pointwise()) == ["Exp", "New", "Neg"]
    enter(monkeypatch, is_anchor=True)
    assert optimised(between_pointwise()) == ["Exp", "New+Neg"]


def test_an_identity_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, is_identity=lambda self, node: True)
    assert optimised(between_pointwise()) == ["Exp+Neg"]


def test_a_neutral_element_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, inputs=(2, 2), neutral_elements={1: 7.0})
    assert optimised(between_pointwise(7.0)) == ["Exp+Neg"]
    assert optimised(between_pointwise(-7.0)) == ["Exp", "New", "Neg"]


def test_what_follows_from_a_shape_alone_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, is_shape_only=True, evaluate_shape=lambda self, node, dims: np.ones(dims, np.float32))
    graph = specialise(prepare(between_pointwise()), {"x": SHAPE})
    assert "New" not in {node.op for node in graph.nodes}


def test_a_stated_constant_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Constant(dtypes.FLOAT32, (), np.array(3, np.float32))
    enter(monkeypatch, stated_constant=lambda self, node: value)
    graph = normalise(between_pointwise())
    assert "New" not in {node.op for node in graph.nodes} and value in graph.constants.values()


def test_a_view_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    types = dict.fromkeys("xyz", TensorType(dtypes.FLOAT32, SHAPE))
    nodes = [Node("Exp", ("x",), ("y",)), Node("New", ("y",), ("z",), domain="test")]
    for is_view, results in ((False, 2), (True, 1)):
        enter(monkeypatch, is_view=is_view)
        assert peak_bytes(nodes, types, ["z"]) == results * types["x"].bytes


def test_shape_arithmetic_cuts_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = Sketch("arithmetic")
    x, sizes = sketch.input("x", SHAPE), sketch.input("sizes", (2,), dtypes.INT64)
    graph = sketch.finish(sketch.node("Reshape", x, sketch.node("New", sketch.node("Neg", sizes))))
    nodes = tuple(replace(n, domain="test") if n.op == "New" else n for n in graph.nodes)
    graph = replace(graph, nodes=nodes, opsets={"": 20, "test": 1})
    for traits, count in (({}, 2), ({"is_shape_arithmetic": True, "keeps_elements": True}, 1)):
        enter(monkeypatch, **traits)
        assert len(segments(prepare(graph))) == count


def test_models_may_not_state_internal_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, attributes={"found": None}, internal_attributes=frozenset({"found"}))
    graph = between_pointwise()
    normalise(graph)
    nodes = tuple(replace(n, attributes={"found": 1}) if n.op == "New" else n for n in graph.nodes)
    with pytest.raises(InvalidGraph, match="'found' is not one of"):
        normalise(replace(graph, nodes=nodes))
