"""Operators that ONNX defines as functions run through their bodies where vkml has none of its own."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph, UnsupportedOperator
from vkml.ir import Graph, Node, dtypes
from vkml.ir.operator import REGISTRY
from vkml.onnx import function_bodies, save_graph
from vkml.passes import normalise

onnx = pytest.importorskip("onnx")
ROOT = Path(__file__).resolve().parents[2]
A = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
B = np.linspace(2, -1, 12, dtype=np.float32).reshape(3, 4)


def run(graph: Graph, **feeds: np.ndarray) -> list[np.ndarray]:
    model = save_graph(graph)
    assert model is not None
    return vkml.InferenceSession(model, devices="cpu").run(None, feeds)


def gated(shape: tuple[int, ...] = A.shape, **attributes: Any) -> Graph:
    sketch = Sketch("gated", opset=28)
    inputs = sketch.input("a", A.shape), sketch.input("b", shape)
    return sketch.finish(sketch.node("SwiGLU", *inputs, name="gate", **attributes))


def test_the_file_is_what_onnx_states() -> None:
    path = ROOT / "tools" / "generate_function_bodies.py"
    specification = importlib.util.spec_from_file_location("generate_function_bodies", path)
    assert specification is not None and specification.loader is not None
    generator = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(generator)
    if onnx.__version__ != generator.PINNED:
        pytest.skip(f"onnx {generator.PINNED} is needed, installed: {onnx.__version__}")
    assert generator.generate() == generator.OUTPUT.read_bytes()


@pytest.mark.parametrize("alpha", [None, 0.25])
def test_a_body_takes_the_place_of_its_node(alpha: float | None) -> None:
    graph = gated() if alpha is None else gated(alpha=alpha)
    assert ("", "SwiGLU") not in REGISTRY, "try another operator, this one needs no body any more"
    assert [node.op for node in normalise(graph).nodes] == ["Swish", "Mul", "Identity"]
    [found] = run(graph, a=A, b=B)
    np.testing.assert_allclose(found, A / (1 + np.exp(-(alpha or 1) * A)) * B, rtol=1e-6)


def test_a_body_is_an_operator_for_gradients() -> None:
    from vkml.nn import from_onnx

    model = save_graph(gated())
    assert model is not None
    a = vkml.tensor(A, requires_grad=True)
    from_onnx(model)(a, vkml.tensor(B)).sum().backward()
    sigmoid = 1 / (1 + np.exp(-A))
    np.testing.assert_allclose(a.grad.numpy(), B * sigmoid * (1 + A * (1 - sigmoid)), rtol=1e-5, atol=1e-6)


def test_errors_name_the_node_that_the_model_states() -> None:
    with pytest.raises(InvalidGraph, match=r"SwiGLU node 'gate' \(in its body, Mul\).*\[3, 5\]"):
        run(gated((3, 5)), a=A, b=np.zeros((3, 5), np.float32))
    with pytest.raises(InvalidGraph, match=r"SwiGLU node 'gate'.*'beta' is not one of"):
        normalise(gated(beta=1.0))
    with pytest.raises(
        InvalidGraph, match=r"SwiGLU node 'gate' \(in its body, Swish\).*'alpha' must be a float"
    ):
        normalise(gated(alpha="much"))
    graph = gated()
    node, identity = graph.nodes
    for inputs in ((*node.inputs, "a"), node.inputs[:1]):
        with pytest.raises(InvalidGraph, match=r"SwiGLU node 'gate'.*takes 2 inputs, has"):
            normalise(replace(graph, nodes=(replace(node, inputs=inputs), identity)))


def test_versions_before_the_operator_have_no_body() -> None:
    graph = gated()
    older = replace(graph, nodes=tuple(replace(node, version=27) for node in graph.nodes))
    with pytest.raises(UnsupportedOperator, match=r"ai\.onnx\.SwiGLU \(opset 27\)"):
        normalise(older)


def functions() -> list[Any]:
    from vkml.onnx import open as open_model

    found = open_model(function_bodies.FILE).functions
    return [each for each in found if ("", each.name) in REGISTRY]


@pytest.mark.parametrize("function", functions(), ids=lambda each: f"{each.name}-{each.overload}")
def test_operators_with_a_form_of_their_own_do_what_their_bodies_do(function: Any) -> None:
    """Whoever gives an operator a form of its own has it compared with the body here."""
    sketch = Sketch("own", opset=int(function.overload))
    feeds: dict[str, np.ndarray] = {}
    for name, array in _operands(function).items():
        feeds[name] = array
        sketch.input(name, array.shape, dtypes.from_numpy(array.dtype))
    graph = sketch.finish(sketch.node(function.name, *feeds, name="node"))
    node, identity = graph.nodes
    least = REGISTRY["", function.name].outputs[0]
    node = replace(node, outputs=(*node.outputs, *(f"node:{at}" for at in range(1, least))))
    graph = replace(graph, nodes=(node, identity))
    [expected] = run(graph, **feeds)
    body = function_bodies.body_of(node)
    assert body is not None
    [found] = _run_nodes(graph, [*body, identity], feeds)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


def _run_nodes(graph: Graph, nodes: list[Node], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    opset = nodes[0].version
    alike = tuple(replace(node, version=opset) for node in nodes)
    return run(replace(graph, nodes=alike, opsets={"": opset}), **feeds)


def _operands(function: Any) -> dict[str, np.ndarray]:
    if function.name == "AffineGrid":
        return {"theta": np.ones((2, 2, 3), np.float32), "size": np.array([2, 3, 4, 5])}
    if function.name == "MeanVarianceNormalization":
        return {"X": np.linspace(-3, 4, 24, dtype=np.float32).reshape(1, 2, 3, 4) ** 2}
    arrays = (A, B, np.array([0], np.int64))
    if function.name.endswith("Window"):
        arrays = (np.array(10),)  # type: ignore[assignment]
    if function.name.startswith("Reduce"):
        arrays = (np.abs(A) + 0.5, np.array([1]))  # type: ignore[assignment]
    return dict(zip(function.input, arrays, strict=False))
