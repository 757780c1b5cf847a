"""A value of a model may have any name, also one that vkml itself gives to values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vkml
from tests.vulkan_cases import assert_close
from vkml.engine.sketch import Sketch
from vkml.ir import Graph
from vkml.onnx import save_graph

RANDOM = np.random.default_rng(0)
DATA = {
    op: tuple(RANDOM.standard_normal(shape).astype(np.float32) for shape in shapes)
    for op, shapes in {"Conv": ((1, 4, 6, 6), (1, 8, 6, 6)), "Gemm": ((5, 4), (5, 8))}.items()
}
WEIGHTS = {
    op: RANDOM.standard_normal(shape).astype(np.float32)
    for op, shape in {"Conv": (8, 4, 3, 3), "Gemm": (4, 8)}.items()
}
BIAS = RANDOM.standard_normal(8).astype(np.float32)


def biased_product(op: str, first: str, second: str) -> Graph:
    """A product with a bias → × an input called `second`, which makes `first` → × its sigmoid."""
    sketch = Sketch("names")
    x, other = sketch.input("x", DATA[op][0].shape), sketch.input(second, DATA[op][1].shape)
    weight, bias = sketch.constant(WEIGHTS[op]), sketch.constant(BIAS)
    attributes = {"pads": [1] * 4} if op == "Conv" else {"alpha": 0.5, "beta": 0.25}
    total = sketch.node("Mul", sketch.node(op, x, weight, bias, **attributes), other)
    graph = sketch.finish(sketch.node("Mul", sketch.node("Sigmoid", total), total))

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(first if name == total else name for name in names)

    nodes = (replace(n, inputs=renamed(n.inputs), outputs=renamed(n.outputs)) for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


@pytest.mark.parametrize("op", ["Conv", "Gemm"])
def test_names_within_fused_groups(device_name: str, op: str) -> None:
    x, other = DATA[op]

    def result(first: str, second: str) -> np.ndarray:
        model = save_graph(biased_product(op, first, second))
        assert model is not None
        [found] = vkml.InferenceSession(model, devices=device_name).run(None, {"x": x, second: other})
        return found

    wanted = result("total", "other")
    for stem in ("~product", "~addend"):
        for name in (stem, f"{stem}~factor", f"{stem}~scaled", "~sum"):
            assert_close(result("total", name), wanted, what=f"input {name}")
            assert_close(result(name, "other"), wanted, what=f"result {name}")
