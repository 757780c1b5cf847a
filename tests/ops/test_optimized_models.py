"""Models as onnxruntime's optimizers write them make what they made before, where they made it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.transformers import optimizer

import vkml
from tests.ops.checking import assert_same
from tests.ops.extension_cases import runs_everything
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, dtypes
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
WIDTH, HEADS, WORDS, PLACES = 32, 4, 80, 24


class Layers(Sketch):
    """Layers of transformers, written as exporters do."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.random = np.random.default_rng(907)

    def weights(self, *shape: int) -> str:
        return self.constant((self.random.standard_normal(shape) * 0.2).astype(np.float32))

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def linear(self, x: str, columns: int, out: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.weights(columns, out)), self.weights(out))

    def normal(self, x: str) -> str:
        return self.node(
            "LayerNormalization", x, self.weights(WIDTH), self.weights(WIDTH), axis=-1, epsilon=1e-5
        )

    def heads(self, x: str, perm: tuple[int, ...] = (0, 2, 1, 3)) -> str:
        shape = self.constant(np.array([0, 0, HEADS, WIDTH // HEADS]))
        return self.node("Transpose", self.node("Reshape", x, shape), perm=perm)

    def attention(self, x: str, mask: str) -> str:
        q, v = (self.heads(self.linear(x, WIDTH, WIDTH)) for _ in range(2))
        k = self.heads(self.linear(x, WIDTH, WIDTH), (0, 2, 3, 1))
        scores = self.node("Div", self.node("MatMul", q, k), self.number((WIDTH // HEADS) ** 0.5))
        weights = self.node("Softmax", self.node("Add", scores, mask), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", weights, v), perm=(0, 2, 1, 3))
        flat = self.node("Reshape", mixed, self.constant(np.array([0, 0, WIDTH])))
        return self.linear(flat, WIDTH, WIDTH)

    def gelu(self, x: str) -> str:
        gate = self.node("Erf", self.node("Div", x, self.number(2**0.5)))
        doubled = self.node("Mul", x, self.node("Add", gate, self.number(1)))
        return self.node("Mul", doubled, self.number(0.5))

    def layer(self, x: str, mask: str) -> str:
        x = self.normal(self.node("Add", self.attention(x, mask), x))
        more = self.linear(self.gelu(self.linear(x, WIDTH, 48)), 48, WIDTH)
        return self.normal(self.node("Add", more, x))


def encoder() -> Graph:
    """Two layers that words, segments and a mask go into, as BERT's."""
    sketch = Layers("encoder")
    names = ("input_ids", "token_type_ids", "attention_mask")
    ids, segments, mask = (sketch.input(name, ("batch", "rows"), dtypes.INT64) for name in names)
    rows = sketch.node("Gather", sketch.node("Shape", ids), sketch.constant(np.array(1)), axis=0)
    last = sketch.node("Unsqueeze", rows, sketch.constant(np.array([0])))
    places = sketch.constant(np.arange(PLACES)[None])
    own = sketch.node(
        "Slice", places, *(sketch.constant(np.array([0])), last, sketch.constant(np.array([1])))
    )
    words, kinds, where = (
        sketch.node("Gather", sketch.weights(count, WIDTH), given, axis=0)
        for count, given in ((WORDS, ids), (2, segments), (PLACES, own))
    )
    x = sketch.normal(sketch.node("Add", sketch.node("Add", words, kinds), where))
    wide = sketch.node("Unsqueeze", mask, sketch.constant(np.array([1])))
    wide = sketch.node("Unsqueeze", wide, sketch.constant(np.array([2])))
    hidden = sketch.node("Sub", sketch.number(1), sketch.node("Cast", wide, to=dtypes.FLOAT32.code))
    bias = sketch.node("Mul", hidden, sketch.number(-10000))
    for _ in range(2):
        x = sketch.layer(x, bias)
    return sketch.finish(x)


def image_model() -> Graph:
    """Convolutions and products that are activated."""
    sketch = Layers("image")
    x = sketch.input("image", ("batch", 3, 9, 9))
    first = sketch.node("Conv", x, sketch.weights(8, 3, 3, 3), sketch.weights(8), pads=[1] * 4)
    first = sketch.node("Relu", first)
    second = sketch.node("Conv", first, sketch.weights(8, 8, 3, 3), sketch.weights(8), pads=[1] * 4)
    x = sketch.node("Relu", sketch.node("Add", second, first))
    x = sketch.node("Conv", x, sketch.weights(4, 8, 3, 3), sketch.weights(4), strides=[2, 2])
    x = sketch.node("LeakyRelu", x, alpha=0.2)
    x = sketch.node("Gemm", sketch.node("Flatten", x), sketch.weights(64, 6), sketch.weights(6))
    return sketch.finish(sketch.node("Relu", x))


def saved(graph: Graph) -> bytes:
    found = save_graph(graph)
    assert found is not None
    return found


def check(optimized: Path, original: bytes, feeds: list[dict[str, Array]], device: str) -> set[str]:
    """Runs a model and what it was before; returns its operators of com.microsoft."""
    proto = onnx.load(optimized)
    taken = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    with vkml.InferenceSession(optimized, devices=device, strict=runs_everything(device)) as session:
        for feed in feeds:
            [expected] = onnxruntime.InferenceSession(original).run(None, feed)
            given: Mapping[str, Array] = {
                name: array.astype(np.int32) if taken[name] == onnx.TensorProto.INT32 else array
                for name, array in feed.items()
            }
            [found] = session.run(None, given)
            assert_same(found, expected, 1e-4, 1e-4)
        slow = [step for step in session.report().steps if step.variant == "numpy"]
        assert not slow, "machine code has all of it"
    return {node.op_type for node in proto.graph.node if node.domain == "com.microsoft"}


def text(batch: int, rows: int) -> dict[str, Array]:
    random = np.random.default_rng(rows)
    mask = np.ones((batch, rows), np.int64)
    mask[-1, rows - 2 :] = 0
    return {
        "input_ids": random.integers(0, WORDS, (batch, rows)),
        "token_type_ids": random.integers(0, 2, (batch, rows)),
        "attention_mask": mask,
    }


def optimized(folder: Path) -> tuple[bytes, Path]:
    """An encoder, and the file of what the optimizer makes of it."""
    original, path = saved(encoder()), folder / "encoder.onnx"
    (folder / "before.onnx").write_bytes(original)
    made = optimizer.optimize_model(
        str(folder / "before.onnx"), model_type="bert", num_heads=HEADS, hidden_size=WIDTH, opt_level=0
    )
    made.save_model_to_file(str(path))
    return original, path


def test_an_encoder_of_the_transformers_optimizer(tmp_path: Path, either_device_name: str) -> None:
    original, path = optimized(tmp_path)
    operators = check(path, original, [text(2, 7), text(1, 5), text(2, 9)], either_device_name)
    assert operators == {"EmbedLayerNormalization", "Attention", "SkipLayerNormalization", "BiasGelu"}


def test_an_encoder_that_is_quantised_behind_it(tmp_path: Path) -> None:
    _, path = optimized(tmp_path)
    small = tmp_path / "quantised.onnx"
    quantize_dynamic(path, small, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})
    proto = onnx.load(small)
    assert {"QAttention", "DynamicQuantizeLinear"} <= {node.op_type for node in proto.graph.node}
    taken = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    wide = taken["input_ids"] == onnx.TensorProto.INT64
    feed = {name: array if wide else array.astype(np.int32) for name, array in text(2, 7).items()}
    [expected] = onnxruntime.InferenceSession(small).run(None, feed)
    with vkml.InferenceSession(small, devices="cpu") as session:
        [found] = session.run(None, feed)
    # A number on the edge between two steps may be taken for the other.
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["encoder", "image"])
def test_a_model_that_a_session_saves(tmp_path: Path, name: str) -> None:
    original, path = saved(encoder() if name == "encoder" else image_model()), tmp_path / "saved.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(original, options)
    image = {"image": np.random.default_rng(9).standard_normal((2, 3, 9, 9)).astype(np.float32)}
    operators = check(path, original, [text(2, 7)] if name == "encoder" else [image], "cpu")
    wanted = {"encoder": {"BiasGelu", "FusedMatMul"}, "image": {"FusedConv", "FusedGemm"}}
    assert operators >= wanted[name]
