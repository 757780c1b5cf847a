"""Model-local functions: inlined so that the graph computes what the model did."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import vkml.onnx
from tests.onnx import models
from tests.onnx.models import value
from vkml import errors
from vkml.errors import InvalidGraph
from vkml.ir import Graph
from vkml.onnx import load as load_module

DOMAIN = "org.example"


def load(made: onnx.ModelProto) -> Graph:
    return vkml.onnx.load_graph(made.SerializeToString())


def function(name, inputs, outputs, nodes, attributes=(), defaults=(), version=17):
    imports = [helper.make_opsetid("", version), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_function(DOMAIN, name, inputs, outputs, nodes, imports, attributes, defaults)


def call(name, inputs, outputs, **attributes):
    return helper.make_node(name, inputs, outputs, domain=DOMAIN, **attributes)


def model(nodes, functions, inputs=("x",), outputs=("y",)):
    return models.model(
        nodes,
        [value(n) for n in inputs],
        [value(n) for n in outputs],
        opsets=[(DOMAIN, 1)],
        functions=functions,
    )


def same_results(made: onnx.ModelProto, expected=None, **feeds) -> Graph:
    """The graph; fails unless it computes what is expected, or what onnxruntime makes of the model."""
    graph = load(made)
    data = vkml.onnx.save_graph(graph)
    assert data is not None
    flat = onnx.load_model_from_string(data)
    assert not flat.functions
    onnx.checker.check_model(flat, full_check=True)
    if expected is None:
        session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, feeds)
    for ours, theirs in zip(ReferenceEvaluator(flat).run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    return graph


X = np.linspace(-2, 3, 6, dtype=np.float32).reshape(2, 3)


def test_nested_calls_references_and_defaults():
    graph = same_results(models.functions(), x=X)
    assert {node.op for node in graph.nodes} == {"Add", "LeakyRelu", "Identity", "Mul"}
    assert [node.attributes["alpha"] for node in graph.nodes if node.op == "LeakyRelu"] == [
        0.5,
        np.float32(0.1),
        0.25,
    ]
    names = [name for node in graph.nodes for name in node.outputs]
    assert len(set(names)) == len(names)


def test_order_of_calls_is_free():
    made = models.functions()
    nodes = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    assert [node.op for node in load(made).nodes].count("Add") == 2


def test_names_in_a_function_and_outside_do_not_meet():
    inner = function(
        "F", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["h"]), helper.make_node("Exp", ["h"], ["y"])]
    )
    nodes = [
        helper.make_node("Abs", ["x"], ["h"]),
        call("F", ["h"], ["g"]),
        helper.make_node("Add", ["g", "h"], ["y"]),
    ]
    same_results(model(nodes, [inner]), x=X)


def test_values_that_pass_through():
    inner = function("F", ["a", "b"], ["a", "s", "b"], [helper.make_node("Add", ["a", "b"], ["s"])])
    made = model(
        [call("F", ["x", "w"], ["p", "q", "r"])], [inner], inputs=("x", "w"), outputs=("p", "q", "r")
    )
    graph = load(made)
    assert sorted(node.op for node in graph.nodes) == ["Add", "Identity", "Identity"]
    same_results(made, [X, X + X * 2, X * 2], x=X, w=X * 2)


def test_omitted_inputs_and_outputs():
    inner = function(
        "F", ["a", "low", "high"], ["o", "unused"],
        [helper.make_node("Clip", ["a", "low", "high"], ["o"]), helper.make_node("Neg", ["a"], ["unused"])],
    )  # fmt: skip
    made = model([call("F", ["x"], ["h"]), call("F", ["h", "", "m"], ["y", ""])], [inner])
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.float32), "m"))
    clips = [node.inputs for node in load(made).nodes if node.op == "Clip"]
    assert clips == [("x", "", ""), ("h", "", "m")]
    same_results(made, [np.minimum(X, 1)], x=X)


def test_missing_attribute_without_default_is_left_out():
    reference = helper.make_node("LeakyRelu", ["a"], ["o"])
    reference.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    made = model([call("F", ["x"], ["y"])], [function("F", ["a"], ["o"], [reference], ["slope"])])
    assert load(made).nodes[0].attributes == {}


def test_subgraph_in_a_function():
    reference = helper.make_node("LeakyRelu", ["a"], ["t"])
    reference.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    then = helper.make_graph([reference], "then", [], [value("t", None)])
    other = helper.make_graph([call("G", ["a"], ["t"])], "else", [], [value("t", None)])
    inner = function(
        "F",
        ["c", "a"],
        ["o"],
        [helper.make_node("If", ["c"], ["o"], then_branch=then, else_branch=other)],
        ["slope"],
    )
    nested = function(
        "G", ["v"], ["w"], [helper.make_node("Neg", ["v"], ["h"]), helper.make_node("Exp", ["h"], ["w"])]
    )
    nodes = [call("F", ["c", "x"], ["h"], slope=0.5), call("F", ["c", "h"], ["y"], slope=0.125)]
    made = model(nodes, [inner, nested])
    made.graph.input.append(value("c", (), models.BOOL))
    for condition in (True, False):
        graph = same_results(made, x=X, c=np.array(condition))
    bodies = [node.attributes["then_branch"] for node in graph.nodes]
    assert [body.nodes[0].attributes["alpha"] for body in bodies] == [0.5, 0.125]
    assert [body.nodes[0].inputs for body in bodies] == [("x",), ("h",)]


def test_graph_given_to_a_function():
    # A caller's subgraph keeps the caller's names, also where the function has the same ones.
    body = helper.make_graph([helper.make_node("Neg", ["a"], ["t"])], "body", [], [value("t", None)])
    chosen = helper.make_node("If", ["c"], ["o"])
    for name in ("then_branch", "else_branch"):
        chosen.attribute.add(name=name, ref_attr_name="what", type=5)
    inner = function("F", ["a", "c"], ["o"], [chosen], ["what"])
    made = model([call("F", ["x", "go"], ["y"], what=body)], [inner], inputs=("x", "a"))
    made.graph.input.append(value("go", (), models.BOOL))
    (node,) = load(made).nodes
    assert node.attributes["then_branch"].nodes[0].inputs == ("a",)


def test_own_opset_version():
    inner = function("F", ["a"], ["o"], [helper.make_node("Neg", ["a"], ["o"])], version=13)
    assert load(model([call("F", ["x"], ["y"])], [inner])).nodes[0].version == 13


def test_overloads():
    first = function("F", ["a"], ["o"], [helper.make_node("Neg", ["a"], ["o"])])
    second = function("F", ["a"], ["o"], [helper.make_node("Exp", ["a"], ["o"])])
    second.overload = "exponential"
    node = call("F", ["x"], ["y"])
    node.overload = "exponential"
    assert [item.op for item in load(model([node], [first, second])).nodes] == ["Exp"]


def ring(length: int):
    return [
        function(f"F{i}", ["a"], ["o"], [call(f"F{(i + 1) % length}", ["a"], ["o"])]) for i in range(length)
    ]


NEG = function("F", ["a"], ["o"], [helper.make_node("Neg", ["a"], ["o"])])

NOT_WELL_FORMED = {
    "recursion": (
        model([call("F0", ["x"], ["y"])], ring(1)),
        r"org\.example\.F0 calls itself: org\.example\.F0 → org\.example\.F0",
    ),
    "mutual recursion": (model([call("F0", ["x"], ["y"])], ring(3)), r"F0 → .*F1 → .*F2 → .*F0"),
    "too many inputs": (
        model([call("F", ["x", "x"], ["y"])], [NEG]),
        "has 2 inputs, the function org.example.F 1",
    ),
    "too many outputs": (model([call("F", ["x"], ["y", "z"])], [NEG]), "has 2 outputs"),
    "unknown attribute": (
        model([call("F", ["x"], ["y"], k=1)], [NEG]),
        "attribute 'k' is not one of the function's",
    ),
    "defined twice": (model([call("F", ["x"], ["y"])], [NEG, NEG]), "defined twice"),
    "output that nobody produces": (
        model([call("F", ["x"], ["y"])], [function("F", ["a"], ["o"], [])]),
        "function org.example.F, called by F node 'y': no node produces the output 'o'",
    ),
    "dangling name inside": (
        model(
            [call("F", ["x"], ["y"])], [function("F", ["a"], ["o"], [helper.make_node("Neg", ["x"], ["o"])])]
        ),
        r"reads 'F\.1/x'",
    ),
    "input twice": (
        model(
            [call("F", ["x"], ["y"])],
            [function("F", ["a", "a"], ["o"], [helper.make_node("Neg", ["a"], ["o"])])],
        ),
        "input 'a' twice",
    ),
}


@pytest.mark.parametrize("name", NOT_WELL_FORMED)
def test_functions_that_are_not_well_formed(name):
    made, message = NOT_WELL_FORMED[name]
    with pytest.raises(InvalidGraph, match=message):
        load(made)


def test_calls_nested_too_deep():
    depth = load_module.MAX_NESTING + 1
    functions = [function(f"F{i}", ["a"], ["o"], [call(f"F{i + 1}", ["a"], ["o"])]) for i in range(depth)]
    with pytest.raises(InvalidGraph, match="nested more than"):
        load(model([call("F0", ["x"], ["y"])], functions))


def test_functions_that_double_at_every_call(monkeypatch):
    monkeypatch.setattr(load_module, "INLINE_LIMIT", 1 << 20)
    functions = [
        function(f"F{i}", ["a"], ["o"], [call(f"F{i + 1}", ["a"], ["h"]), call(f"F{i + 1}", ["h"], ["o"])])
        for i in range(40)
    ]
    functions.append(function("F40", ["a"], ["o"], [helper.make_node("Neg", ["a"], ["o"])]))
    with pytest.raises(errors.NotImplemented, match="too large"):
        load(model([call("F0", ["x"], ["y"])], functions))


@pytest.mark.parametrize(
    "taken", [("Twice.1/t",), ("Twice.1/t", "Twice.1.1/t"), ("Twice.2/t", "Twice.1.2/t")]
)
def test_values_of_a_body_are_told_from_the_models(taken):
    """Two calls, beside values of the names that a body's value gets in each."""
    twice = function("Twice", ["a"], ["b"], [
        helper.make_node("Neg", ["a"], ["t"]), helper.make_node("Sub", ["a", "t"], ["b"])
    ])  # fmt: skip
    nodes = [
        *(helper.make_node("Abs", ["x"], [name]) for name in taken),
        call("Twice", ["x"], ["first"]),
        call("Twice", ["first"], ["second"]),
        helper.make_node("Sum", ["second", *taken], ["y"]),
    ]
    same_results(model(nodes, [twice]), x=np.array([[1, -2, 3], [4, 5, -6]], np.float32))


def test_values_of_bodies_are_told_from_each_others():
    """A function's name, with the number of its call, may read like a call of another and a value there."""
    inner = [helper.make_node("Neg", ["a"], ["B.2/t"]), helper.make_node("Abs", ["B.2/t"], ["b"])]
    outer = [helper.make_node("Exp", ["a"], ["t"]), helper.make_node("Neg", ["t"], ["b"])]
    functions = [function("A", ["a"], ["b"], inner), function("A.1/B", ["a"], ["b"], outer)]
    nodes = [
        call("A", ["x"], ["first"]),
        call("A.1/B", ["x"], ["second"]),
        helper.make_node("Add", ["first", "second"], ["y"]),
    ]
    x = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    same_results(model(nodes, functions), [np.abs(x) - np.exp(x)], x=x)
