"""Models of random weights, quantised by onnxruntime's quantiser."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

Array = np.ndarray[Any, Any]


class Network:
    """A model of float32 that grows node by node."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node's first output."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def weight(self, array: Array | np.floating[Any]) -> str:
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        return self.weight((self.random.standard_normal(shape) * scale).astype(np.float32))

    def conv(
        self, x: str, channels: int, filters: int, kernel: int = 3, stride: int = 1, group: int = 1
    ) -> str:
        inner = channels // group
        weight = self.normal(filters, inner, kernel, kernel, scale=(inner * kernel * kernel) ** -0.5)
        pads = [kernel // 2] * 4
        bias = self.normal(filters, scale=0.1)
        return self.add("Conv", x, weight, bias, pads=pads, strides=[stride] * 2, group=group)

    def linear(self, x: str, inner: int, columns: int) -> str:
        product = self.add("MatMul", x, self.normal(inner, columns, scale=inner**-0.5))
        return self.add("Add", product, self.normal(columns, scale=0.1))

    def model(self, output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def residual(side: int = 16, channels: int = 16, blocks: int = 2) -> onnx.ModelProto:
    """Convolutions with Relu, sums of two ways, pooling and a last layer."""
    net = Network((1, 3, side, side))
    x = net.add("Relu", net.conv("x", 3, channels, 5, 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for at in range(blocks):
        wide = channels * 2 if at else channels
        stride = 2 if at else 1
        y = net.add("Relu", net.conv(x, channels, wide, 1))
        y = net.add("Relu", net.conv(y, wide, wide, 3, stride))
        y = net.conv(y, wide, wide, 1)
        skip = x if wide == channels else net.conv(x, channels, wide, 1, stride)
        x, channels = net.add("Relu", net.add("Add", y, skip)), wide
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    weight, bias = net.normal(10, channels, scale=channels**-0.5), net.normal(10)
    return net.model(net.add("Gemm", x, weight, bias, transB=1))


def inverted_residual(side: int = 24, width: int = 8, blocks: int = 2) -> onnx.ModelProto:
    """Depthwise convolutions between wide and narrow layers of 1×1, as MobileNetV2 has them."""
    net = Network((1, 3, side, side))
    low, high = net.weight(np.float32(0)), net.weight(np.float32(6))
    channels = width
    x = net.add("Clip", net.conv("x", 3, channels, 3, 2), low, high)
    for at in range(blocks):
        wide = 6 * channels
        y = net.add("Clip", net.conv(x, channels, wide, 1), low, high)
        y = net.add("Clip", net.conv(y, wide, wide, 3, 1 + at % 2, group=wide), low, high)
        y = net.conv(y, wide, channels * (1 + at % 2), 1)
        x = y if at % 2 else net.add("Add", x, y)
        channels *= 1 + at % 2
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    weight, bias = net.normal(10, channels, scale=channels**-0.5), net.normal(10)
    return net.model(net.add("Gemm", x, weight, bias, transB=1))


def transformer(rows: int = 12, width: int = 32, heads: int = 2, layers: int = 1) -> onnx.ModelProto:
    """Attention and two linear layers with Gelu, each behind a LayerNormalization."""
    net = Network((1, rows, width))
    x = "x"
    for _ in range(layers):
        y = net.add("LayerNormalization", x, net.weight(np.ones(width, np.float32)), axis=-1)
        split = net.weight(np.array([0, rows, heads, width // heads], np.int64))
        q, k, v = (
            net.add("Transpose", net.add("Reshape", net.linear(y, width, width), split), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        factor = net.weight(np.float32((width // heads) ** -0.5))
        scores = net.add("Softmax", net.add("Mul", net.add("MatMul", q, k), factor), axis=-1)
        mixed = net.add("Transpose", net.add("MatMul", scores, v), perm=[0, 2, 1, 3])
        mixed = net.add("Reshape", mixed, net.weight(np.array([0, rows, width], np.int64)))
        x = net.add("Add", x, net.linear(mixed, width, width))
        y = net.add("LayerNormalization", x, net.weight(np.ones(width, np.float32)), axis=-1)
        y = net.linear(y, width, 4 * width)
        half = net.add("Erf", net.add("Div", y, net.weight(np.float32(2**0.5))))
        y = net.add(
            "Mul",
            net.add("Mul", y, net.add("Add", half, net.weight(np.float32(1)))),
            net.weight(np.float32(0.5)),
        )
        x = net.add("Add", x, net.linear(y, 4 * width, width))
    return net.model(net.add("Identity", x))


class _Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(1)
        self._left: Iterator[dict[str, Array]] = iter(
            [{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(4)]
        )

    def get_next(self) -> dict[str, Array] | None:
        return next(self._left, None)


def quantized(model: onnx.ModelProto, *, dynamic: bool = False, **settings: Any) -> bytes:
    """What onnxruntime's quantiser makes of a model: static, with nodes that quantise, or dynamic."""
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
            onnx.save(model, source)
            if dynamic:
                quantization.quantize_dynamic(source, target, **settings)
            else:
                quantization.quantize_static(source, target, _Samples(shape), **settings)
            return target.read_bytes()
    finally:
        logging.root.setLevel(level)
