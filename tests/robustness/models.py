"""Small models for these tests, right and wrong ones, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: Sequence[Any] | None, dtype: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any
) -> NodeProto:
    return helper.make_node(op, inputs, outputs, name=name or None, **attributes)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: dict[str, Array] | None = None,
    opset: int = 20,
    domains: dict[str, int] | None = None,
) -> bytes:
    """A model's bytes, unchecked."""
    initializers = [
        numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()
    ]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), initializers)
    opsets = [
        helper.make_opsetid(domain, version) for domain, version in {"": opset, **(domains or {})}.items()
    ]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return data


def unary(op: str = "Relu", shape: Sequence[Any] = (2, 4), out: Any = "same", **attributes: Any) -> bytes:
    """y = op(x), the node called "it"."""
    stated = shape if out == "same" else out
    return model([node(op, ["x"], ["y"], "it", **attributes)], [value("x", shape)], [value("y", stated)])


def product() -> bytes:
    """y (n, 3) = x (n, 4) · w."""
    return model(
        [node("MatMul", ["x", "w"], ["y"], "product")],
        [value("x", ("n", 4))],
        [value("y", ("n", 3))],
        {"w": weights()},
    )


def weights() -> Array:
    return np.arange(12, dtype=np.float32).reshape(4, 3) - 5


def gather() -> bytes:
    """y (k, 4) = x (2, 4)[i]."""
    return model(
        [node("Gather", ["x", "i"], ["y"], "pick")],
        [value("x", (2, 4)), value("i", ("k",), INT64)],
        [value("y", ("k", 4))],
    )


def convolution() -> bytes:
    random = np.random.default_rng(0)
    return model(
        [
            node("Conv", ["x", "w", "b"], ["a"], "conv", pads=[1, 1, 1, 1], strides=[2, 2]),
            node("Relu", ["a"], ["r"]),
            node("GlobalAveragePool", ["r"], ["p"]),
            node("Flatten", ["p"], ["y"]),
        ],
        [value("x", (1, 2, 6, 6))],
        [value("y", (1, 3))],
        {
            "w": random.standard_normal((3, 2, 3, 3)).astype(np.float32),
            "b": random.standard_normal(3).astype(np.float32),
        },
    )


def shape_arithmetic() -> bytes:
    """y = x with its last two axes made one, by Shape, Slice, Concat and Reshape; then a softmax."""
    return model(
        [
            node("Shape", ["x"], ["s"]),
            node("Slice", ["s", "zero", "one"], ["n"]),
            node("Concat", ["n", "minus"], ["t"], axis=0),
            node("Reshape", ["x", "t"], ["r"]),
            node("Softmax", ["r"], ["y"], axis=-1),
        ],
        [value("x", ("n", 2, 3))],
        [value("y", ("n", 6))],
        {"zero": np.array([0]), "one": np.array([1]), "minus": np.array([-1])},
    )


def elementwise() -> bytes:
    return model(
        [
            node("Add", ["x", "c"], ["a"]),
            node("LeakyRelu", ["a"], ["l"], alpha=0.1),
            node("Mul", ["l", "x"], ["m"]),
            node("Clip", ["m", "low", "high"], ["y"]),
        ],
        [value("x", (2, 3))],
        [value("y", (2, 3))],
        {"c": np.float32([1, 2, 3]), "low": np.float32(-1), "high": np.float32(1)},
    )
