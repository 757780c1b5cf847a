"""Convolutions lose the taps that lie in the padding for all results, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from tests.comparing import assert_close
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph
from vkml.onnx import save_graph
from vkml.passes import specialise
from vkml.passes.simplify import simplify

Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def convolution(x: tuple[int, ...], weight: Array, **attributes: Any) -> Graph:
    sketch = Sketch("convolution")
    bias = sketch.constant(numbers(weight.shape[0], seed=2))
    value = sketch.node("Conv", sketch.input("x", x), sketch.constant(weight), bias, **attributes)
    return sketch.finish(sketch.node("LeakyRelu", value))


def kernel_of(graph: Graph) -> tuple[int, ...]:
    """Of the convolution, once simplified."""
    made = simplify(specialise(prepare(graph), {value.name: value.tensor.dims for value in graph.inputs}))
    [conv] = [node for node in made.nodes if node.op == "Conv"]
    return made.constants[conv.inputs[1]].shape[2:]


def check(graph: Graph, device: str) -> None:
    """Fails unless vkml and onnxruntime compute the same."""
    model = save_graph(graph)
    assert model is not None
    feeds = {"x": numbers(*graph.inputs[0].tensor.dims, seed=7)}
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with vkml.InferenceSession(model, devices=device, precision="highest") as ours:
        [made] = ours.run(None, feeds)
    [wanted] = theirs.run(None, feeds)
    assert np.abs(wanted).max() > 0
    assert_close(made, np.asarray(wanted), rtol=0, atol=1e-5 * float(np.abs(wanted).max()))


CASES = {
    "the middle": ((2, 3, 7, 6), (3, 3), (1, 1), {"dilations": [8, 8], "pads": [8, 8, 8, 8]}),
    "a row": ((1, 3, 7, 20), (3, 3), (1, 3), {"dilations": [8, 8], "pads": [8, 8, 8, 8]}),
    "the last ones": ((1, 3, 4, 4), (3, 3), (2, 2), {"pads": [1, 1, 0, 0], "strides": [4, 4]}),
    "five of seven": ((1, 3, 5, 5), (7, 7), (5, 5), {"pads": [1, 1, 1, 1]}),
    "one axis": ((1, 3, 9), (5,), (1,), {"dilations": [9], "pads": [18, 18]}),
    "three axes": ((1, 3, 1, 4, 4), (3, 3, 3), (1, 3, 3), {"pads": [1, 1, 1, 1, 1, 1]}),
    "SAME": ((1, 3, 1, 6), (3, 3), (1, 3), {"auto_pad": "SAME_UPPER"}),
}


@pytest.mark.parametrize("name", CASES)
def test_dead_taps_are_dropped(name: str, device_name: str) -> None:
    x, kernel, left, attributes = CASES[name]
    graph = convolution(x, numbers(4, 3, *kernel), **attributes)
    assert kernel_of(graph) == left
    check(graph, device_name)


def test_what_any_result_needs_stays() -> None:
    for x, kernel, attributes in (
        ((1, 3, 9, 9), (3, 3), {"dilations": [8, 8], "pads": [8, 8, 8, 8]}),
        ((1, 3, 2, 2), (3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 3, 5, 5), (3, 3), {}),
    ):
        assert kernel_of(convolution(x, numbers(4, 3, *kernel), **attributes)) == kernel


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_products_of_zeros_that_are_not_zero_stay(value: float) -> None:
    weight = numbers(4, 3, 3, 3)
    weight[1, 2, 0, 0] = value
    graph = convolution((1, 3, 5, 5), weight, dilations=[8, 8], pads=[8, 8, 8, 8])
    assert kernel_of(graph) == (3, 3)
    model = save_graph(graph)
    with vkml.InferenceSession(model, devices="cpu") as session:
        [found] = session.run(None, {"x": numbers(1, 3, 5, 5)})
    assert np.isnan(found[0, 1]).all() and np.isfinite(found[0, 0]).all()


def test_groups_and_computed_weights() -> None:
    graph = convolution((1, 4, 5, 5), numbers(4, 1, 3, 3), group=4, dilations=[5, 5], pads=[5, 5, 5, 5])
    assert kernel_of(graph) == (1, 1)
    check(graph, "cpu")
    sketch = Sketch("computed")
    values = sketch.input("x", (1, 4, 5, 5)), sketch.input("w", (4, 4, 3, 3))
    graph = sketch.finish(sketch.node("Conv", *values, dilations=[5, 5], pads=[5, 5, 5, 5]))
    shapes = {value.name: value.tensor.dims for value in graph.inputs}
    [node] = [node for node in simplify(specialise(prepare(graph), shapes)).nodes if node.op == "Conv"]
    assert node.inputs == ("x", "w")
