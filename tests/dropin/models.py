"""Small models of the shapes that onnxruntime's own tests and well-known programs use."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)


def info(name: str, kind: int = FLOAT, shape: Any = (3, 2)) -> Any:
    """A named, typed value."""
    return helper.make_tensor_value_info(name, kind, shape)


def tensor(name: str, array: Any) -> Any:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(array), name)


def proto(nodes: Any, inputs: Any, outputs: Any, initializers: Any = (), **metadata: str) -> Any:
    """A model of opset 17."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="tests",
        domain="tests.example",
        doc_string="a model",
        model_version=3,
    )
    helper.set_model_props(model, metadata)
    return model


def model(*arguments: Any, **metadata: str) -> bytes:
    """Its bytes."""
    made: bytes = proto(*arguments, **metadata).SerializeToString()
    return made


def product(**metadata: str) -> bytes:
    """Y = X · W elementwise, 3 × 2."""
    node = helper.make_node("Mul", ["X", "W"], ["Y"], name="mul_0")
    return model([node], [info("X")], [info("Y")], [tensor("W", X)], **metadata)


def matrix_product(rows: Any = 3) -> bytes:
    """Y = X @ W, to one column."""
    node = helper.make_node("MatMul", ["X", "W"], ["Y"])
    weights = tensor("W", np.array([[1], [2]], np.float32))
    return model([node], [info("X", shape=(rows, 2))], [info("Y", shape=(rows, 1))], [weights])


def identity(kind: int, shape: Any = (2, 2)) -> bytes:
    """Its input."""
    node = helper.make_node("Identity", ["input:0"], ["output:0"])
    return model([node], [info("input:0", kind, shape)], [info("output:0", kind, shape)])


def conjunction() -> bytes:
    """And of two inputs, the first of which is called the second."""
    node = helper.make_node("And", ["input1:0", "input:0"], ["output:0"])
    inputs = [info("input1:0", BOOL, (2, 2)), info("input:0", BOOL, (2, 2))]
    return model([node], inputs, [info("output:0", BOOL, (2, 2))])


def open_sizes() -> bytes:
    """Abs of an input whose sizes have names and denotations."""
    given, made = info("x", shape=("Dim1", "Dim2", 5)), info("y", shape=("Dim1", "Dim2", 5))
    for value in (given, made):
        for dimension, denotation in zip(
            value.type.tensor_type.shape.dim, ("DATA_BATCH", "DATA_CHANNEL", ""), strict=True
        ):
            dimension.denotation = denotation
    return model([helper.make_node("Abs", ["x"], ["y"])], [given], [made])


def external_product() -> bytes:
    """Y = X · W, where W lies in a file that is not there."""
    weights = tensor("W", X)
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    entry = weights.external_data.add()
    entry.key, entry.value = "location", "not_on_disk.bin"
    return model([helper.make_node("Mul", ["X", "W"], ["Y"])], [info("X")], [info("Y")], [weights])


def adaptable() -> bytes:
    """Y = X @ (W + A @ B), where a feed may have values for A and B: an adapter's."""
    nodes = [
        helper.make_node("MatMul", ["A", "B"], ["delta"]),
        helper.make_node("Add", ["W", "delta"], ["sum"]),
        helper.make_node("MatMul", ["X", "sum"], ["Y"]),
    ]
    inputs = [info("X", shape=(4, 4)), info("A", shape=(4, "r")), info("B", shape=("r", 4))]
    constants = [
        tensor("W", np.ones((4, 4), np.float32)),
        tensor("A", np.zeros((4, 0), np.float32)),
        tensor("B", np.zeros((0, 4), np.float32)),
    ]
    return model(nodes, inputs, [info("Y", shape=(4, 4))], constants)


def chain() -> bytes:
    """Add, Mul, Add, each with a name."""
    nodes = [
        helper.make_node("Add", ["A", "B"], ["s"], name="add_0"),
        helper.make_node("Mul", ["s", "B"], ["m"], name="mul_0"),
        helper.make_node("Add", ["m", "A"], ["C"], name="add_1"),
    ]
    return model(nodes, [info("A"), info("B")], [info("C")])


def perceptron() -> bytes:
    """Two layers whose weights are large enough for a file of their own."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gemm", ["X", "W1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Gemm", ["a", "W2", "b2"], ["Y"]),
    ]
    constants = [
        tensor("W1", rng.standard_normal((2, 16)).astype(np.float32)),
        tensor("b1", np.zeros(16, np.float32)),
        tensor("W2", rng.standard_normal((16, 8)).astype(np.float32)),
        tensor("b2", np.zeros(8, np.float32)),
    ]
    return model(nodes, [info("X")], [info("Y", shape=(3, 8))], constants)


def sequences(op: str) -> bytes:
    """SequenceLength, SequenceConstruct or SequenceInsert."""
    of_floats = helper.make_tensor_sequence_value_info("X", FLOAT, None)
    of_integers = helper.make_tensor_sequence_value_info("output_sequence", INT64, None)
    if op == "SequenceLength":
        return model([helper.make_node(op, ["X"], ["Y"])], [of_floats], [info("Y", INT64, ())])
    if op == "SequenceConstruct":
        names = ["tensor1", "tensor2"]
        inputs = [info(name, INT64, (2, 3)) for name in names]
        return model([helper.make_node(op, names, ["output_sequence"])], inputs, [of_integers])
    given = helper.make_tensor_sequence_value_info("input_seq", INT64, None)
    node = helper.make_node(op, ["input_seq", "tensor"], ["output_sequence"])
    return model([node], [given, info("tensor", INT64, (2, 3))], [of_integers])


def optional_identity() -> bytes:
    """Identity of an optional sequence."""
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    kind = helper.make_optional_type_proto(sequence)
    given, made = helper.make_value_info("opt_in", kind), helper.make_value_info("opt_out", kind)
    return model([helper.make_node("Identity", ["opt_in"], ["opt_out"])], [given], [made])


def passing() -> bytes:
    """An input that is an output, too, beside one that is computed."""
    shape = (1, 2, 2, 2)
    node = helper.make_node("Add", ["input_0", "ten"], ["plus_10"])
    given = info("input_0", shape=shape)
    return model([node], [given], [info("plus_10", shape=shape), given], [tensor("ten", np.float32(10))])


def noise() -> bytes:
    """Random numbers without a seed."""
    node = helper.make_node("RandomNormal", [], ["Y"], shape=[8])
    return model([node], [], [info("Y", shape=(8,))])
