"""Pads and slices round convolutions become their pads, and nothing else does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from tests.comparing import assert_close
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.onnx import save_graph
from vkml.passes import simplify, specialise

X = (2, 3, 9, 8)


def whole(sketch: Sketch, *values: int) -> str:
    return sketch.constant(np.array(values, np.int64))


def conv(sketch: Sketch, x: str, kernel: Sequence[int] = (3, 2), **attributes: Any) -> str:
    weight = np.random.default_rng(1).standard_normal((4, 3, *kernel)).astype(np.float32)
    return sketch.node("Conv", x, sketch.constant(weight), **attributes)


def check(sketch: Sketch, output: str, device_name: str, *others: str) -> list[str]:
    """The operators that are left; what comes out is onnxruntime's."""
    graph = sketch.finish(output, *others)
    model = save_graph(graph)
    values = np.random.default_rng(0).standard_normal(X).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with vkml.InferenceSession(model, devices=device_name) as ours:
        for made, wanted in zip(ours.run(None, {"x": values}), theirs.run(None, {"x": values}), strict=True):
            assert made.shape == np.shape(wanted)
            assert_close(made, np.asarray(wanted), rtol=1e-4, atol=1e-4)
    made = simplify(specialise(prepare(graph), {"x": X}))
    return [node.op for node in made.nodes if node.op != "Identity"]


@pytest.mark.parametrize("attributes", [{}, {"pads": (1, 0, 0, 1)}, {"auto_pad": "VALID", "strides": (2, 1)}])
def test_zeros_before_a_convolution(attributes: dict[str, Any], device_name: str) -> None:
    sketch = Sketch("padded", 18)
    padded = sketch.node("Pad", sketch.input("x", X), whole(sketch, 0, 0, 2, 0, 0, 0, 0, 3))
    assert check(sketch, conv(sketch, padded, **attributes), device_name) == ["Conv"]


@pytest.mark.parametrize(
    "starts, ends, steps",
    [((0, 0), (-2, 100), (1, 1)), ((1, 0), (1000, -1), (1, 1)), ((1, 1), (-8, -1), (1, 1))],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_rows_cut_behind_a_convolution(
    starts: tuple[int, ...], ends: tuple[int, ...], steps: tuple[int, ...], stride: int, device_name: str
) -> None:
    sketch = Sketch("cut", 18)
    made = conv(sketch, sketch.input("x", X), pads=(9, 4, 16, 4), strides=(stride, 1), dilations=(2, 1))
    lists = [whole(sketch, *each) for each in (starts, ends, (2, 3), steps)]
    assert check(sketch, sketch.node("Slice", made, *lists), device_name) == ["Conv"]


def test_both_round_one_convolution(device_name: str) -> None:
    sketch = Sketch("both", 18)
    padded = sketch.node("Pad", sketch.input("x", X), whole(sketch, 0, 0, 2, 0, 0, 0, 2, 0))
    made = sketch.node(
        "Relu",
        sketch.node("Slice", conv(sketch, padded), whole(sketch, 1), whole(sketch, -1), whole(sketch, 2)),
    )
    assert check(sketch, made, device_name) == ["Conv", "Relu"]


def test_what_is_no_pad_of_a_convolution_stays() -> None:
    def left(pads: Sequence[int], fill: float | None = None, **attributes: Any) -> list[str]:
        sketch = Sketch("other", 18)
        inputs = [sketch.input("x", X), whole(sketch, *pads)]
        if fill is not None:
            inputs.append(sketch.constant(np.float32(fill)))
        mode = attributes.pop("mode", "constant")
        return check(sketch, conv(sketch, sketch.node("Pad", *inputs, mode=mode), **attributes), "cpu")

    assert left((0, 0, 2, 0, 0, 0, 0, 3), 0.0) == ["Conv"]
    assert left((0, 0, 2, 0, 0, 0, 0, 3), 0.5) == ["Pad", "Conv"]
    assert left((0, 0, 2, 0, 0, 0, 0, 3), mode="edge") == ["Pad", "Conv"]
    assert left((0, 0, -1, 0, 0, 0, 0, 3)) == ["Pad", "Conv"]
    assert left((1, 0, 0, 0, 0, 0, 0, 0)) == ["Pad", "Conv"]
    assert left((0, 0, 1, 0, 0, 0, 0, 0), auto_pad="SAME_UPPER") == ["Pad", "Conv"]


def test_what_is_no_cut_of_pads_stays() -> None:
    def left(
        starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]
    ) -> list[str]:
        sketch = Sketch("other", 18)
        made = conv(sketch, sketch.input("x", X), pads=(1, 1, 1, 1))
        lists = [whole(sketch, *each) for each in (starts, ends, axes, steps)]
        return check(sketch, sketch.node("Slice", made, *lists), "cpu")

    assert left((1,), (1000,), (2,), (1,)) == ["Conv"]
    assert left((2,), (1000,), (2,), (1,)) == ["Conv", "Slice"], "more than the pads"
    assert left((0,), (1000,), (2,), (2,)) == ["Conv", "Slice"], "every second row"
    assert left((1,), (3,), (1,), (1,)) == ["Conv", "Slice"], "channels"


def test_values_that_others_read_stay() -> None:
    sketch = Sketch("shared", 18)
    padded = sketch.node("Pad", sketch.input("x", X), whole(sketch, 0, 0, 2, 0, 0, 0, 0, 3))
    assert check(sketch, conv(sketch, padded), "cpu", sketch.node("Neg", padded)) == ["Pad", "Conv", "Neg"]
    sketch = Sketch("made", 18)
    made = conv(sketch, sketch.input("x", X), pads=(1, 1, 1, 1))
    cut = sketch.node("Slice", made, whole(sketch, 1), whole(sketch, 100), whole(sketch, 2))
    assert check(sketch, cut, "cpu", made) == ["Conv", "Slice"]
