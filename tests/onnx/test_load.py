"""From file to graph: attributes, order, names, and graphs that are not well formed."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkml.onnx
from tests.onnx import models
from tests.onnx.models import value
from vkml import errors
from vkml.errors import InvalidGraph
from vkml.ir import Constant, Graph, OptionalType, SequenceType, TensorType, dtypes
from vkml.ir.types import UNKNOWN, MapType
from vkml.onnx import messages, wire
from vkml.onnx.value_types import write_value


def load(made: onnx.ModelProto) -> Graph:
    return vkml.onnx.load_graph(made.SerializeToString())


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


def test_graph():
    graph = load(models.plain())
    assert [(v.name, str(v.type)) for v in graph.inputs] == [("x", "float[batch,3]")]
    assert [(v.name, str(v.type)) for v in graph.outputs] == [("y", "float[batch,3]")]
    assert {name: str(type_) for name, type_ in graph.types.items()} == {"sum": "float[batch,3]"}
    assert [(n.op, n.name, n.inputs, n.outputs, n.version) for n in graph.nodes] == [
        ("Add", "add", ("x", "w"), ("sum",), 17),
        ("Relu", "relu", ("sum",), ("y",), 17),
    ]
    assert graph.constants["w"].array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (graph.name, graph.documentation, graph.opsets) == ("graph", "a model", {"": 17})
    assert graph.metadata == {"author": "nobody", "größe": "klein"}


def test_from_an_opened_model(tmp_path):
    onnx.save(models.plain(), tmp_path / "m.onnx")
    with vkml.onnx.open(tmp_path / "m.onnx") as model:
        graph = vkml.onnx.load_graph(model)
    assert graph.constants["w"].array.sum() == 15


def test_attributes():
    (made,) = load(models.attributes()).nodes
    found = dict(made.attributes)
    assert (made.domain, made.version) == ("org.example", 1)
    assert found.pop("f") == 0.5
    assert found.pop("i") == -3
    assert found.pop("s") == "text"
    assert found.pop("zero") == 0
    assert found.pop("empty") == ""
    assert found.pop("floats") == (1.0, float("inf"))
    assert found.pop("ints") == (1, -(2**63), 2**63 - 1)
    assert found.pop("strings") == ("a", "β")
    tensor = found.pop("t")
    assert isinstance(tensor, Constant)
    assert (tensor.dtype, tensor.shape, tensor.array.tolist()) == (dtypes.INT32, (1, 2), [[1, 2]])
    assert [item.array.tolist() for item in found.pop("tensors")] == [[[1, 2]]] * 2
    assert found.pop("sparse").array.tolist() == [[0, 1.5, 0], [0, 0, -2]]
    assert found.pop("kind") == TensorType(dtypes.FLOAT32, (2, "n"))
    for body in (found.pop("g"), *found.pop("graphs")):
        assert isinstance(body, Graph)
        assert body.nodes[0].op == "Neg"
    assert not found


def test_attribute_without_type_or_with_zero_left_out():
    made = models.attributes()
    attributes = made.graph.node[0].attribute
    del attributes[:]
    attributes.add(name="guessed", ints=[1, 2])
    attributes.add(name="zero", type=onnx.AttributeProto.INT)
    attributes.add(name="empty", type=onnx.AttributeProto.FLOATS)
    assert load(made).nodes[0].attributes == {"guessed": (1, 2), "zero": 0, "empty": ()}


def test_subgraphs():
    graph = load(models.subgraphs())
    choose, repeat = graph.nodes
    assert choose.attributes["then_branch"].nodes[0].inputs == ("x", "x")
    inner = choose.attributes["else_branch"].nodes[0].attributes["then_branch"]
    assert inner.nodes[0].inputs == ("x",)
    body = repeat.attributes["body"]
    assert [v.name for v in body.inputs] == ["step", "go", "carried"]
    assert body.inputs[0].type == TensorType(dtypes.INT64, ())
    assert repeat.inputs == ("count", "", "x")


def test_nodes_are_sorted_by_what_they_read_also_in_subgraphs():
    made = models.subgraphs()
    shuffled = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(shuffled)
    assert [n.name for n in load(made).nodes] == ["choose", "repeat"]
    nodes = [node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(50)]
    order = np.random.default_rng(1).permutation(50)
    graph = load(models.model([nodes[i] for i in order], [value("v0")], [value("v50")]))
    assert [n.outputs[0] for n in graph.nodes] == [f"v{i + 1}" for i in range(50)]


def test_inputs_that_are_initializers_too_are_constants():
    made = models.plain()
    made.ir_version = 3
    made.graph.input.append(value("w"))
    graph = load(made)
    assert [v.name for v in graph.inputs] == ["x"]
    assert list(graph.constants) == ["w"]


def test_sparse_initializer():
    made = models.plain()
    del made.graph.initializer[:]
    made.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            numpy_helper.from_array(np.array([2.0], np.float32), "w"),
            numpy_helper.from_array(np.array([4], np.int64), "i"),
            [2, 3],
        )
    )
    assert load(made).constants["w"].array.tolist() == [[0, 0, 0], [0, 2, 0]]


def test_default_domain_has_two_names():
    made = models.plain()
    made.opset_import[0].domain = "ai.onnx"
    made.graph.node[0].domain = "ai.onnx"
    assert [(n.domain, n.version) for n in load(made).nodes] == [("", 17)] * 2


def test_types():
    made = models.plain()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    made.graph.output[0].ClearField("type")
    graph = load(made)
    assert graph.inputs[0].type.shape == (None, 3)
    assert graph.outputs[0].type == UNKNOWN
    made.graph.input[0].type.tensor_type.ClearField("shape")
    assert load(made).inputs[0].type == TensorType(dtypes.FLOAT32, None)
    made.graph.input[0].type.tensor_type.shape.SetInParent()
    assert load(made).inputs[0].type.shape == ()


def test_newer_versions_are_no_reason_to_complain():
    made = models.plain()
    made.ir_version = 14
    made.opset_import[0].version = 99
    assert load(made).nodes[0].version == 99


def chain(*links, outputs=("y",)):
    return models.model(
        [node("Neg" if len(i) == 1 else "Add", i, o, name=f"n{k}") for k, (i, o) in enumerate(links)],
        [value("x")],
        [value(name) for name in outputs],
    )


def change(**fields):
    made = models.plain()
    for path, content in fields.items():
        target = made
        *way, last = path.split("__")
        for step in way:
            target = target[int(step[1:])] if step.startswith("_") else getattr(target, step)
        if content is None:
            target.ClearField(last)
        else:
            setattr(target, last, content)
    return made


def with_body(*nodes, inputs=(), outputs=("t",), initializers=()):
    body = helper.make_graph(
        nodes, "b", [value(n) for n in inputs], [value(n) for n in outputs], initializers
    )
    return models.model(
        [node("If", ["c"], ["y"], name="choose", then_branch=body, else_branch=body)],
        [value("c", (), models.BOOL)],
        [value("y")],
    )


WEIGHT = numpy_helper.from_array(np.zeros(3, np.float32), "x")

NOT_WELL_FORMED = {
    "cycle": (
        chain((["x", "c"], ["a"]), (["a"], ["b"]), (["b"], ["c"]), (["c"], ["y"])),
        r"cycle: .*Add node 'n0' → Neg node 'n1' → Neg node 'n2' → Add node 'n0'|"
        r"cycle: Neg node 'n1' → Neg node 'n2' → Add node 'n0' → Neg node 'n1'|"
        r"cycle: Neg node 'n2' → Add node 'n0' → Neg node 'n1' → Neg node 'n2'",
    ),
    "node that reads itself": (chain((["x", "y"], ["y"])), "cycle: Add node 'n0' → Add node 'n0'"),
    "dangling input": (chain((["x", "lost"], ["y"])), "Add node 'n0' reads 'lost', which nothing"),
    "several dangling": (chain((["lost", "too"], ["y"])), "reads 'lost'.*1 more"),
    "produced twice": (
        chain((["x"], ["y"]), (["x"], ["y"])),
        "'y' is produced twice, by Neg node 'n0' and by Neg node 'n1'",
    ),
    "produced twice by one node": (chain((["x"], ["y", "y"])), "'y' is produced twice"),
    "produces an input": (
        chain((["x"], ["x"]), (["x"], ["y"])),
        "Neg node 'n0' produces 'x', which is also an input",
    ),
    "produces an initializer": (
        models.model([node("Neg", ["x"], ["x"])], [], [value("x")], [WEIGHT]),
        "which is also an initializer",
    ),
    "output that nobody produces": (chain((["x"], ["a"])), "no node produces the output 'y'"),
    "no outputs": (chain((["x"], ["a"]), outputs=()), "has no outputs"),
    "input twice": (
        models.model([node("Neg", ["x"], ["y"])], [value("x"), value("x")], [value("y")]),
        "input 'x' is there twice",
    ),
    "initializer twice": (
        models.model([node("Neg", ["x"], ["y"])], [], [value("y")], [WEIGHT, WEIGHT]),
        "initializer 'x' is there twice",
    ),
    "input without type": (change(graph__input___0__type=None), "input 'x' has no element type"),
    "input without element type": (
        change(graph__input___0__type__tensor_type__elem_type=0),
        "input 'x' has no element type",
    ),
    "unknown element type": (
        change(graph__input___0__type__tensor_type__elem_type=77),
        "input 'x': element type 77",
    ),
    "negative dimension": (
        change(graph__value_info___0__type__tensor_type__shape__dim___1__dim_value=-7),
        "of -7",
    ),
    "nameless input": (change(graph__input___0__name=None), "an input has no name"),
    "nameless output": (change(graph__output___0__name=""), "an output has no name"),
    "nameless initializer": (change(graph__initializer___0__name=None), "initializer has no name"),
    "no operator": (change(graph__node___1__op_type=""), "node 'relu' has no operator"),
    "domain not imported": (
        change(graph__node___1__domain="foreign"),
        "of the domain 'foreign', which is not imported",
    ),
    "no default opset": (
        change(opset_import___0__domain="foreign"),
        "imports no opset of the default domain",
    ),
    "weight too short": (
        change(graph__initializer___0__raw_data=bytes(8)),
        "initializer 'w'.*takes 24 bytes",
    ),
    "attribute twice": (
        models.model([node("Neg", ["x"], ["y"], name="n", a=1)], [value("x")], [value("y")]),
        "attribute 'a' twice",
    ),
    "nameless attribute": (
        models.model([node("Neg", ["x"], ["y"], name="n", a=1)], [value("x")], [value("y")]),
        "nameless attribute",
    ),
    "attribute of unknown type": (
        models.model([node("Neg", ["x"], ["y"], name="n", a=1)], [value("x")], [value("y")]),
        "attribute 'a' has the type 0",
    ),
    "attribute without its tensor": (
        models.model([node("Neg", ["x"], ["y"], name="n", a=1)], [value("x")], [value("y")]),
        "attribute 'a' has no value",
    ),
    "reference outside a function": (
        models.model([node("Neg", ["x"], ["y"], name="n", a=1)], [value("x")], [value("y")]),
        "refers to 'slope' of a function, but is in none",
    ),
    "dangling in a subgraph": (
        with_body(node("Neg", ["lost"], ["t"], name="deep")),
        "Neg node 'deep' in a subgraph of If node 'choose' reads 'lost'",
    ),
    "outer value as a subgraph's output": (with_body(outputs=("c",)), "Identity"),
    "cycle in a subgraph": (
        with_body(node("Neg", ["t"], ["u"], name="p"), node("Neg", ["u"], ["t"], name="q")),
        "If node 'choose'.*cycle: Neg node '[pq]' → Neg node",
    ),
    "subgraph input that is an initializer": (
        with_body(node("Neg", ["x"], ["t"]), inputs=("x",), initializers=[WEIGHT]),
        "also an initializer",
    ),
}
for name, edit in {
    "attribute twice": lambda attributes: attributes.append(attributes[0]),
    "nameless attribute": lambda attributes: attributes[0].ClearField("name"),
    "attribute of unknown type": lambda attributes: attributes[0].CopyFrom(onnx.AttributeProto(name="a")),
    "attribute without its tensor": lambda attributes: setattr(attributes[0], "type", 4),
    "reference outside a function": lambda attributes: setattr(attributes[0], "ref_attr_name", "slope"),
}.items():
    edit(NOT_WELL_FORMED[name][0].graph.node[0].attribute)


@pytest.mark.parametrize("name", NOT_WELL_FORMED)
def test_graphs_that_are_not_well_formed(name):
    made, message = NOT_WELL_FORMED[name]
    with pytest.raises(InvalidGraph, match=message):
        load(made)


def test_messages_name_the_file(tmp_path):
    onnx.save(NOT_WELL_FORMED["dangling input"][0], tmp_path / "broken.onnx")
    with pytest.raises(InvalidGraph, match=r"broken\.onnx: Add node"):
        vkml.onnx.load_graph(tmp_path / "broken.onnx")


def _of(element: onnx.TypeProto, kind: str) -> onnx.TypeProto:
    return getattr(helper, f"make_{kind}_type_proto")(element)


TENSOR = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3])
FLOATS = TensorType(dtypes.FLOAT32, ("n", 3))
CONTAINERS = {
    "sequence": (_of(TENSOR, "sequence"), SequenceType(FLOATS)),
    "optional": (_of(TENSOR, "optional"), OptionalType(FLOATS)),
    "optional sequence": (_of(_of(TENSOR, "sequence"), "optional"), OptionalType(SequenceType(FLOATS))),
    "sequence of nothing stated": (_of(onnx.TypeProto(), "sequence"), SequenceType(UNKNOWN)),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_sequences_and_optionals(name):
    proto, type_ = CONTAINERS[name]
    made = models.plain()
    del made.graph.input[:], made.graph.output[:], made.graph.node[:]
    made.graph.input.append(helper.make_value_info("x", proto))
    made.graph.output.append(helper.make_value_info("y", proto))
    made.graph.node.append(helper.make_node("Identity", ["x"], ["y"]))
    graph = load(made)
    assert graph.inputs[0].type == graph.outputs[0].type == type_
    written = vkml.onnx.save_graph(graph)
    again = vkml.onnx.load_graph(written)
    assert again.inputs[0].type == again.outputs[0].type == type_
    if "nothing" not in name:
        assert onnx.load_from_string(written).graph.input[0].type == proto


def test_inputs_that_are_maps():
    made = models.plain()
    proto = onnx.TypeProto()
    proto.map_type.key_type = TensorProto.INT64
    for wrong in (proto, _of(proto, "sequence")):
        made.graph.input[0].type.CopyFrom(wrong)
        with pytest.raises(InvalidGraph, match="a map must be of keys to elements, both of types"):
            load(made)
    proto.map_type.value_type.tensor_type.elem_type = TensorProto.STRING
    type_ = MapType(dtypes.INT64, dtypes.STRING)
    for right, wanted in ((proto, type_), (_of(proto, "sequence"), SequenceType(type_))):
        made.graph.input[0].type.CopyFrom(right)
        written = vkml.onnx.save_graph(load(made))
        assert vkml.onnx.load_graph(written).inputs[0].type == wanted
        assert onnx.load_from_string(written).graph.input[0].type == right


def test_sequences_of_sequences_without_end():
    proto = TENSOR
    for _ in range(40):
        proto = _of(proto, "sequence")
    made = models.plain()
    made.graph.input[0].type.CopyFrom(proto)
    with pytest.raises(InvalidGraph, match="nested more than 8 deep"):
        load(made)


def test_long_cycle_is_cut_short_in_the_message():
    links = [([f"v{i}"], [f"v{(i + 1) % 1000}"]) for i in range(1000)]
    with pytest.raises(InvalidGraph, match=r"cycle: .* → … → ") as caught:
        load(chain(*links, (["x"], ["y"])))
    assert len(str(caught.value)) < 1000


def test_deep_subgraphs():
    # Written by hand: the onnx package itself stops at fewer levels.
    def nested(levels: int) -> bytes:
        output = messages.ValueInfoProto("t")
        body = messages.GraphProto(
            node=(messages.NodeProto(("x",), ("t",), op_type="Neg"),), output=(output,)
        )
        for _ in range(levels):
            branch = messages.AttributeProto(name="then_branch", g=body, type=5)
            inner = messages.NodeProto(("c",), ("t",), op_type="If", attribute=(branch,))
            body = messages.GraphProto(node=(inner,), output=(output,))
        inputs = tuple(write_value(name, TensorType(dtypes.FLOAT32, ())) for name in "xc")
        made = messages.ModelProto(
            ir_version=8,
            opset_import=(messages.OperatorSetIdProto("", 17),),
            graph=dataclasses.replace(body, input=inputs),
        )
        return b"".join(wire.encode_message(messages.MODEL, made)[0])

    vkml.onnx.load_graph(nested(30))
    with pytest.raises(errors.InvalidProtobuf, match="other messages"):
        vkml.onnx.load_graph(nested(40))


def test_many_sparse_tensors_share_one_limit():
    made = models.plain()
    for index in range(3):
        made.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.array([2.0], np.float32), f"s{index}"),
                numpy_helper.from_array(np.array([4], np.int64), "i"),
                [30 << 20],
            )
        )
    with pytest.raises(errors.NotImplemented, match=r"'s2'.*bytes dense"):
        load(made)


def test_hostile_names_take_no_quadratic_time():
    # One megabyte of operator name, used where messages are put together for each of many attributes.
    body = helper.make_graph(
        [node("Neg", ["x"], ["t"], **{f"a{i}": i for i in range(2000)})], "n" * 10**6, [], [value("t")]
    )
    made = models.model(
        [node("O" * 10**6, ["x"], ["y"], b=body, name="n" * 10**6)], [value("x")], [value("y")]
    )
    assert len(load(made).nodes[0].attributes["b"].nodes[0].attributes) == 2000
