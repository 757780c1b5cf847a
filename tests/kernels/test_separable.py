"""Depthwise-separable convolutions as one launch: what is computed so, and that three make the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import vkml
from vkml.engine.sketch import Sketch
from vkml.ir import Graph
from vkml.kernels import separable
from vkml.kernels.separable import Shape
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]


def block(
    inputs: int,
    inner: int,
    filters: int,
    size: tuple[int, int],
    *,
    kernel: int = 3,
    stride: int = 1,
    pads: Sequence[int] = (1, 1, 1, 1),
    dilation: int = 1,
    batch: int = 1,
    expands: bool = True,
    adds: bool = False,
    biased: bool = True,
    finish: bool = True,
) -> Graph:
    """An inverted residual as exporters write it, or one without its first convolution."""
    rng = np.random.default_rng(inputs + inner)
    sketch = Sketch("block")

    def weights(*shape: int) -> str:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        return sketch.constant((rng.standard_normal(shape) * scale).astype(np.float32))

    def bias(count: int) -> tuple[str, ...]:
        return (sketch.constant(rng.standard_normal(count).astype(np.float32)),) if biased else ()

    x = first = sketch.input("x", (batch, inputs, *size))
    six = sketch.constant(np.float32(2)), sketch.constant(np.float32(6))
    if expands:
        x = sketch.node("Conv", x, weights(inner, inputs, 1, 1), *bias(inner))
        x = sketch.node("Clip", x, sketch.constant(np.float32(0)), six[1]) if finish else x
    x = sketch.node(
        "Conv", x, weights(inner, 1, kernel, kernel), *bias(inner),
        strides=(stride, stride), pads=tuple(pads), dilations=(dilation, dilation), group=inner,
    )  # fmt: skip
    x = sketch.node("Mul", sketch.node("Sigmoid", x), x) if finish else x
    x = sketch.node("Conv", x, weights(filters, inner, 1, 1), *bias(filters))
    if adds:
        x = sketch.node("Add", first, x)
    return sketch.finish(x)


CASES = {
    "residual": (block(8, 24, 8, (9, 7), adds=True), Shape(4, 8, 128)),
    "one tile and block": (block(8, 8, 12, (5, 5)), Shape(5, 8, 128)),
    "slices of inputs": (block(24, 16, 5, (4, 4)), Shape(2, 4, 256)),
    "more pixels than threads": (block(3, 16, 9, (13, 40)), Shape(4, 16, 128)),
    "stride 2": (block(6, 16, 7, (11, 10), stride=2), Shape(2, 8, 128)),
    "uneven pads": (block(4, 8, 3, (6, 9), pads=(2, 0, 0, 1)), Shape(2, 4, 128)),
    "dilated": (block(4, 8, 3, (9, 9), kernel=3, dilation=2, pads=(2, 2, 2, 2)), Shape(3, 8, 128)),
    "wide windows": (block(4, 8, 3, (8, 8), kernel=5, pads=(2, 2, 2, 2)), Shape(3, 8, 128)),
    "even windows": (block(4, 8, 3, (8, 8), kernel=2, pads=(0, 0, 0, 0)), Shape(3, 8, 128)),
    "apart": (
        block(4, 8, 3, (9, 9), kernel=1, stride=3, pads=(0, 0, 0, 0)),
        Shape(1, 8, 128),
    ),
    "pads beyond the image": (block(4, 8, 3, (3, 3), kernel=3, pads=(3, 3, 3, 3)), Shape(1, 8, 128)),
    "batch": (block(8, 16, 8, (6, 6), batch=3, adds=True), Shape(3, 8, 256)),
    "batch without partial sums": (block(8, 16, 8, (6, 6), batch=3, adds=True), Shape(3, 16, 256)),
    "not expanded": (block(16, 16, 8, (9, 7), expands=False), Shape(2, 8, 128)),
    "not expanded, one block": (block(16, 16, 16, (9, 7), expands=False, adds=True), Shape(2, 16, 128)),
    "not expanded, a batch": (block(16, 16, 8, (9, 7), expands=False, batch=2, stride=2), Shape(2, 4, 128)),
    "no bias, nothing between": (block(8, 16, 8, (6, 6), biased=False, finish=False), Shape(3, 8, 128)),
    "many filters": (block(8, 32, 130, (7, 7)), Shape(7, 16, 256)),
}


def labels(session: vkml.InferenceSession) -> list[str]:
    return [step.kernel.label for plan in session._runner.plans.kept.values() for program in plan.programs
            for level in program.program.levels for step in level]  # fmt: skip


def run(graph: Graph, device: str, x: np.ndarray, precision: str = "highest") -> tuple[np.ndarray, list[str]]:
    with vkml.InferenceSession(
        save_graph(graph), devices=device, strict=True, precision=precision
    ) as session:
        [made] = session.run(None, {"x": x})
        again = session.run(None, {"x": x})[0]
        assert made.tobytes() == again.tobytes()
        return made, labels(session)


def given(graph: Graph) -> Array:
    shape = tuple(int(size) for size in graph.inputs[0].tensor.shape)
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_one_launch_is_what_three_are(
    name: str, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, shape = CASES[name]
    x = given(graph)
    with monkeypatch.context() as rule:
        rule.setattr(separable, "choose", lambda target, sizes: None)
        expected, apart = run(graph, vulkan_device_name, x)
    assert "separable" not in apart
    monkeypatch.setattr(separable, "forced", shape)
    made, together = run(graph, vulkan_device_name, x)
    inner = graph.constants[
        next(node for node in graph.nodes if node.attributes.get("group", 1) > 1).inputs[1]
    ]
    assert together == ["separable", *["add_partials"] * (inner.shape[0] > shape.channels)]
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
