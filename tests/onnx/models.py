"""Models built with the onnx package, of every kind that the file format has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: Sequence[int | str | None] | None = (2, 3), dtype: int = FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes, inputs, outputs, initializers=(), *, opset: int = 17, opsets=(), functions=(), **fields
) -> ModelProto:
    """A model of one graph; `fields` are set on the model."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(*item) for item in opsets)]
    made = helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=8)
    for name, content in fields.items():
        setattr(made, name, content)
    return made


def plain() -> ModelProto:
    """y = relu(x + w) with an embedded weight, metadata and value types."""
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")
    made = model(
        [
            helper.make_node("Add", ["x", "w"], ["sum"], name="add"),
            helper.make_node("Relu", ["sum"], ["y"], name="relu"),
        ],
        [value("x", ("batch", 3))],
        [value("y", ("batch", 3))],
        [weight],
        producer_name="tests",
        producer_version="1.5",
        domain="org.example",
        model_version=7,
        doc_string="a model",
    )
    made.graph.value_info.append(value("sum", ("batch", 3)))
    made.graph.doc_string = "a graph"
    helper.set_model_props(made, {"author": "nobody", "größe": "klein"})
    return made


def attributes() -> ModelProto:
    """A node of a foreign domain with an attribute of every kind."""
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([1.5, -2.0], np.float32), "sparse_values"),
        numpy_helper.from_array(np.array([1, 5], np.int64), "sparse_indices"),
        [2, 3],
    )
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "body", [], [value("n")])
    tensor = numpy_helper.from_array(np.array([[1, 2]], np.int32), "t")
    node = helper.make_node(
        "Anything",
        ["x"],
        ["y"],
        domain="org.example",
        f=0.5,
        i=-3,
        s="text",
        t=tensor,
        g=body,
        floats=[1.0, float("inf")],
        ints=[1, -(2**63), 2**63 - 1],
        strings=["a", "β"],
        tensors=[tensor, tensor],
        graphs=[body, body],
        zero=0,
        empty="",
    )
    node.attribute.append(helper.make_attribute("sparse", sparse))
    node.attribute.append(helper.make_attribute("kind", helper.make_tensor_type_proto(FLOAT, [2, "n"])))
    return model([node], [value("x")], [value("y")], opsets=[("org.example", 1)])


def subgraphs() -> ModelProto:
    """If and Loop whose bodies read values from outside."""
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["t"], name="double")], "then", [], [value("t", None)]
    )
    inner = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["deep"])], "deep", [], [value("deep", None)]
    )
    other = helper.make_graph(
        [helper.make_node("If", ["c"], ["e"], then_branch=inner, else_branch=inner, name="inner if")],
        "else",
        [],
        [value("e", None)],
    )
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["carried", "z"], ["next"]),
        ],
        "body",
        [value("step", (), INT64), value("go", (), BOOL), value("carried", None)],
        [value("go_on", (), BOOL), value("next", None)],
    )
    nodes = [
        helper.make_node("If", ["c"], ["z"], then_branch=then, else_branch=other, name="choose"),
        helper.make_node("Loop", ["count", ""], ["y", "last"][:1], body=body, name="repeat"),
    ]
    nodes[1].input.extend(["x"])
    count = numpy_helper.from_array(np.array(3, np.int64), "count")
    return model(nodes, [value("x"), value("c", (), BOOL)], [value("y")], [count])


def functions() -> ModelProto:
    """Functions that call functions, with attribute references, defaults and an omitted input."""
    domain = "org.example"
    reference = helper.make_node("LeakyRelu", ["a"], ["b"])
    attribute = reference.attribute.add()
    attribute.name, attribute.ref_attr_name, attribute.type = "alpha", "slope", 1
    leaky = helper.make_function(
        domain, "Leaky", ["a"], ["b"], [reference], [helper.make_opsetid("", 17)], [],
        [helper.make_attribute("slope", 0.25)],
    )  # fmt: skip
    call = helper.make_node("Leaky", ["sum"], ["out"], domain=domain)
    passed = call.attribute.add()
    passed.name, passed.ref_attr_name, passed.type = "slope", "steep", 1
    block = helper.make_function(
        domain, "Block", ["a", "b", "rest"], ["out", "a2"],
        [
            helper.make_node("Add", ["a", "b"], ["sum"]),
            call,
            helper.make_node("Identity", ["a"], ["a2"]),
        ],
        [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)],
        ["steep"],
    )  # fmt: skip
    nodes = [
        helper.make_node("Block", ["x", "w"], ["h", "x2"], domain=domain, name="first", steep=0.5),
        helper.make_node("Block", ["h", "w"], ["k", "same"], domain=domain, name="second", steep=0.1),
        helper.make_node("Leaky", ["k"], ["l"], domain=domain),
        helper.make_node("Mul", ["l", "same"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.linspace(-3, 1, 6, dtype=np.float32).reshape(2, 3), "w")
    return model(nodes, [value("x")], [value("y")], [weight], opsets=[(domain, 1)], functions=[leaky, block])


def typed_fields() -> ModelProto:
    """Initializers in typed fields instead of raw bytes."""
    made = model([helper.make_node("Identity", ["x"], ["y"])], [value("x")], [value("y")])
    for code, values in (
        (FLOAT, [0.5, -1.0, 3.0]),
        (TensorProto.DOUBLE, [0.5, -1.0, 1e300]),
        (TensorProto.INT8, [-128, 0, 127]),
        (TensorProto.UINT8, [0, 200, 255]),
        (TensorProto.INT16, [-(2**15), 0, 5]),
        (TensorProto.INT32, [-(2**31), 0, 2**31 - 1]),
        (TensorProto.INT64, [-(2**63), 0, 2**63 - 1]),
        (TensorProto.UINT32, [0, 1, 2**32 - 1]),
        (TensorProto.UINT64, [0, 1, 2**64 - 1]),
        (TensorProto.BOOL, [True, False, True]),
        (TensorProto.FLOAT16, [0.5, -1.0, 65504.0]),
        (TensorProto.BFLOAT16, [0.5, -1.0, 3.0]),
        (TensorProto.FLOAT8E4M3FN, [0.5, -1.0, 448.0]),
        (TensorProto.FLOAT8E5M2, [0.5, -1.0, 3.0]),
        (TensorProto.INT4, [-8, 3, 7]),
        (TensorProto.UINT4, [0, 3, 15]),
        (TensorProto.FLOAT4E2M1, [0.5, -1.0, 6.0]),
        (TensorProto.INT2, [-2, 1, -1]),
        (TensorProto.UINT2, [0, 3, 2]),
        (TensorProto.COMPLEX64, [1 + 2j, 0j, -3j]),
        (TensorProto.COMPLEX128, [1 + 2j, 0j, -3j]),
        (TensorProto.STRING, ["a", "", "ß"]),
    ):
        name = TensorProto.DataType.Name(code).lower()
        made.graph.initializer.append(helper.make_tensor(name, code, [3], values))
    return made


def external(location: str = "weights.bin") -> tuple[ModelProto, bytes]:
    """A model whose weight lies at an odd offset of another file, and that file's bytes."""
    made = plain()
    tensor = made.graph.initializer[0]
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, content in (("location", location), ("offset", "5"), ("length", str(len(data)))):
        tensor.external_data.add(key=key, value=content)
    return made, b"12345" + data + b"rest"


KINDS: dict[str, Callable[[], ModelProto]] = {
    "plain": plain,
    "attributes": attributes,
    "subgraphs": subgraphs,
    "functions": functions,
    "typed_fields": typed_fields,
    "external": lambda: external()[0],
}
