"""Writing graphs: what comes out is valid ONNX, says the same, and is there whole or not at all."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import vkml.onnx
from tests.onnx import models
from tests.onnx.models import value
from vkml.errors import Fail, InvalidArgument, InvalidGraph
from vkml.ir import Constant, Graph, Node, TensorType, Value, dtypes
from vkml.ir.types import UNKNOWN
from vkml.onnx import writer


def assert_same(ours, theirs) -> None:
    """Compares two graphs, or what is in them, field by field."""
    if isinstance(theirs, Constant):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert_same(ours.array, theirs.array)
    elif isinstance(theirs, Graph | Node):
        assert type(ours) is type(theirs)
        for field in dataclasses.fields(theirs):
            assert_same(getattr(ours, field.name), getattr(theirs, field.name))
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        if theirs.dtype.isbuiltin != 1:
            ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key, item in theirs.items():
            assert_same(ours[key], item)
    elif isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


def saved(graph: Graph, **options) -> bytes:
    data = vkml.onnx.save_graph(graph, **options)
    assert data is not None
    return data


def run(source, **feeds):
    return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, feeds)


def small(*constants: tuple[str, Constant], **fields) -> Graph:
    x, y = (Value(name, TensorType(dtypes.FLOAT32, (2, "n"))) for name in "xy")
    node = Node("Neg", ("x",), ("y",), version=17)
    return dataclasses.replace(Graph((x,), (y,), (node,), dict(constants)), **fields)


@pytest.mark.parametrize("kind", [kind for kind in models.KINDS if kind != "external"])
def test_round_trip(kind):
    graph = vkml.onnx.load_graph(models.KINDS[kind]().SerializeToString())
    data = saved(graph)
    assert_same(vkml.onnx.load_graph(data), graph)
    onnx.checker.check_model(data)
    assert saved(vkml.onnx.load_graph(data)) == data


@pytest.mark.parametrize("kind", ["plain", "subgraphs"])
def test_onnxruntime_runs_it_alike(kind):
    made = models.KINDS[kind]()
    feeds = {"x": np.linspace(-2, 3, 6, dtype=np.float32).reshape(2, 3)}
    if kind == "subgraphs":
        feeds["c"] = np.array(False)
    data = saved(vkml.onnx.load_graph(made.SerializeToString()))
    np.testing.assert_array_equal(run(data, **feeds), run(made.SerializeToString(), **feeds))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=repr)
@pytest.mark.parametrize("shape", [(), (0, 2), (3,), (2, 3)])
def test_constants_of_every_type(dtype, shape):
    random = np.random.default_rng(dtype.code)
    if dtype is dtypes.STRING:
        array = np.array(["a", "ß", "", "d", "e", "f"], object)[: int(np.prod(shape))].reshape(shape)
    else:
        array = random.integers(0, 2, shape, np.uint8).astype(dtype.storage)
    constant = Constant(dtype, shape, array)
    data = saved(small(("c", constant)))
    onnx.checker.check_model(data)
    proto = onnx.load_model_from_string(data)
    theirs = numpy_helper.to_array(proto.graph.initializer[0])
    assert theirs.shape == shape
    assert_same(vkml.onnx.load_graph(data).constants["c"], constant)
    if dtype is not dtypes.STRING:
        assert theirs.dtype == array.dtype and theirs.tobytes() == array.tobytes()


def test_arrays_of_any_layout():
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    unaligned = np.frombuffer(b"\0" + base.tobytes(), np.float32, offset=1).reshape(4, 6)
    for array in (base.T, base[::2, ::-1], base.astype(">f4"), np.broadcast_to(base[:1], (4, 6)), unaligned):
        data = saved(small(("c", Constant(dtypes.FLOAT32, array.shape, array))))
        np.testing.assert_array_equal(vkml.onnx.load_graph(data).constants["c"].array, array)


def test_header():
    graph = small(name="g", documentation="d", metadata={"a": "b"}, opsets={"": 17, "x": 2})
    data = saved(graph, producer="p", producer_version="1", domain="dom", model_version=3)
    made = onnx.load_model_from_string(data)
    assert (made.producer_name, made.producer_version, made.domain, made.model_version) == (
        "p",
        "1",
        "dom",
        3,
    )
    assert (made.graph.name, made.doc_string) == ("g", "d")
    assert [(item.key, item.value) for item in made.metadata_props] == [("a", "b")]
    assert {item.domain: item.version for item in made.opset_import} == {"": 17, "x": 2}


@pytest.mark.parametrize(
    ("version", "dtype", "expected"),
    [
        (7, dtypes.FLOAT32, 8),
        (18, dtypes.FLOAT32, 8),
        (20, dtypes.FLOAT32, 9),
        (22, dtypes.FLOAT32, 10),
        (17, dtypes.FLOAT8E5M2, 9),
        (17, dtypes.INT4, 10),
        (17, dtypes.INT2, 13),
        (17, dtypes.UINT2, 13),
    ],
)
def test_ir_version(version, dtype, expected):
    constant = Constant(dtype, (2,), np.zeros(2, dtype.storage))
    graph = small(("c", constant), nodes=(Node("Neg", ("x",), ("y",), version=version),))
    assert onnx.load_model_from_string(saved(graph)).ir_version == expected
    assert onnx.load_model_from_string(saved(graph, ir_version=12)).ir_version == 12


def test_ir_versions_are_those_that_the_onnx_package_lists():
    for _, ir_version, opset, *_ in helper.VERSION_TABLE:
        if 8 <= ir_version <= 13:
            assert writer._ir_version(opset, ()) == ir_version


def test_attribute_values():
    array = np.arange(3)
    attributes = {
        "flag": True,
        "number": np.int64(3),
        "real": np.float32(0.5),
        "mixed": (1, 0.5),
        "bytes": b"abc",
        "array": array,
        "absent": None,
        "value_floats": (),
        "axes": (),
        "list": [1, 2],
    }
    graph = small(
        nodes=(Node("Any", ("x",), ("y",), attributes, domain="org.example", version=1),), opsets={"": 17}
    )
    (node,) = vkml.onnx.load_graph(saved(graph)).nodes
    found = dict(node.attributes)
    assert found.pop("array").array.tolist() == [0, 1, 2]
    assert found == {
        "flag": 1,
        "number": 3,
        "real": 0.5,
        "mixed": (1.0, 0.5),
        "bytes": "abc",
        "value_floats": (),
        "axes": (),
        "list": (1, 2),
    }
    made = onnx.load_model_from_string(saved(graph)).graph.node[0]
    types = {item.name: item.type for item in made.attribute}
    assert types["value_floats"] == onnx.AttributeProto.FLOATS
    assert types["axes"] == onnx.AttributeProto.INTS


@pytest.mark.parametrize("content", [object(), {}, ("a", 1), 1j, (None,), 2**64, 1e300, "\ud800"])
def test_attributes_that_have_no_form(content):
    graph = small(nodes=(Node("Any", ("x",), ("y",), {"bad": content}, "n", version=17),))
    with pytest.raises(InvalidArgument):
        saved(graph)


@pytest.mark.parametrize(
    "constant",
    [
        Constant(dtypes.FLOAT32, (2,), np.zeros(2, np.float64)),
        Constant(dtypes.FLOAT32, (2,), np.zeros(3, np.float32)),
        Constant(dtypes.INT4, (3,), np.zeros(3, np.uint8)),
    ],
)
def test_constants_that_are_not_stored_as_their_type_says(constant):
    with pytest.raises(InvalidArgument, match="constant 'c' is"):
        saved(small(("c", constant)))


def test_opsets():
    nodes = (Node("Neg", ("x",), ("h",), version=13), Node("Neg", ("h",), ("y",), version=17))
    with pytest.raises(InvalidGraph, match=r"17 of the domain 'ai\.onnx'"):
        saved(small(nodes=nodes))
    with pytest.raises(InvalidGraph, match=r"state an opset of the domain 'ai\.onnx'"):
        saved(small(nodes=(Node("Neg", ("x",), ("y",)),)))
    with pytest.raises(InvalidGraph, match="'foreign'"):
        saved(small(nodes=(Node("Neg", ("x",), ("y",), domain="foreign"),), opsets={"": 17}))
    # What the nodes say counts: passes may have rewritten them into a newer form.
    graph = small(opsets={"": 9})
    assert onnx.load_model_from_string(saved(graph)).opset_import[0].version == 17
    graph = small(nodes=(Node("Neg", ("x",), ("y",)),), opsets={"": 9})
    assert onnx.load_model_from_string(saved(graph)).opset_import[0].version == 9


def test_types_left_to_inference_are_not_written():
    made = onnx.load_model_from_string(saved(small(outputs=(Value("y", UNKNOWN),))))
    assert not made.graph.output[0].HasField("type")


def weights(count: int = 4, elements: int = 1000) -> Graph:
    arrays = {f"w{i}": np.full(elements, i, np.float32) for i in range(count)}
    arrays["page"] = np.arange(1 << 15, dtype=np.float32)
    arrays["tiny"] = np.ones(2, np.float32)
    return small(*((name, Constant(dtypes.FLOAT32, array.shape, array)) for name, array in arrays.items()))


@pytest.mark.parametrize(("option", "name"), [(True, "m.onnx.data"), ("other.bin", "other.bin")])
def test_external_data(tmp_path, option, name):
    graph = weights()
    assert vkml.onnx.save_graph(graph, tmp_path / "m.onnx", external_data=option) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["m.onnx", name])
    onnx.checker.check_model(str(tmp_path / "m.onnx"))
    made = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    offsets = {
        tensor.name: int(next(item.value for item in tensor.external_data if item.key == "offset"))
        for tensor in made.graph.initializer
        if tensor.external_data
    }
    assert set(offsets) == set(graph.constants) - {"tiny"}
    assert all(offset % 64 == 0 for offset in offsets.values())
    assert offsets["page"] % 4096 == 0
    assert_same(vkml.onnx.load_graph(tmp_path / "m.onnx").constants, dict(graph.constants))
    for ours, theirs in zip(
        onnx.load(tmp_path / "m.onnx").graph.initializer, graph.constants.values(), strict=True
    ):
        np.testing.assert_array_equal(numpy_helper.to_array(ours), theirs.array)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", x=x)[0], -x)


def test_threshold(tmp_path):
    vkml.onnx.save_graph(weights(), tmp_path / "m.onnx", external_data=True, external_threshold=4001)
    model = vkml.onnx.open(tmp_path / "m.onnx")
    assert [tensor.name for tensor in model.tensors().values() if tensor.is_external] == ["page"]


def test_external_data_where_one_file_would_be_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100_000)
    vkml.onnx.save_graph(weights(), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").exists()
    assert_same(vkml.onnx.load_graph(tmp_path / "m.onnx").constants, dict(weights().constants))
    for options in ({"path": tmp_path / "n.onnx", "external_data": False}, {}):
        with pytest.raises(InvalidArgument, match="at most 100000"):
            vkml.onnx.save_graph(weights(), **options)
    assert not (tmp_path / "n.onnx").exists()


def test_external_data_need_a_path_and_a_plain_name(tmp_path):
    with pytest.raises(InvalidArgument, match="a path"):
        vkml.onnx.save_graph(weights(), external_data=True)
    for name in ("../w.bin", "a/b", "a\\b", "m.onnx", "", "..", "/w"):
        with pytest.raises(InvalidArgument, match="not the name of a file"):
            vkml.onnx.save_graph(weights(), tmp_path / "m.onnx", external_data=name)
    assert not list(tmp_path.iterdir())


def test_a_model_can_be_written_over_itself(tmp_path):
    path = tmp_path / "m.onnx"
    vkml.onnx.save_graph(weights(), path, external_data=True)
    graph = vkml.onnx.load_graph(path)
    vkml.onnx.save_graph(graph, path, external_data=True)
    assert_same(vkml.onnx.load_graph(path).constants, dict(weights().constants))
    assert_same(dict(graph.constants), dict(weights().constants))


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    vkml.onnx.save_graph(small(), path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Fail, match=r"m\.onnx.* cannot be written: No space left"):
        vkml.onnx.save_graph(weights(), path, external_data=True)
    assert [item.name for item in tmp_path.iterdir()] == ["m.onnx"]
    assert path.read_bytes() == before
    with pytest.raises(Fail, match="cannot be written"):
        vkml.onnx.save_graph(small(), tmp_path / "nowhere" / "m.onnx")


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)
ATTRIBUTES = st.one_of(
    INTS,
    FLOATS,
    NAMES,
    st.lists(INTS, min_size=1).map(tuple),
    st.lists(FLOATS, min_size=1).map(tuple),
    st.lists(NAMES, min_size=1).map(tuple),
)
TYPES = st.builds(
    TensorType,
    st.sampled_from([dtype for dtype in dtypes.ALL]),
    st.none() | st.lists(st.none() | st.integers(0, 2**40) | NAMES, max_size=4).map(tuple),
)


@st.composite
def graphs(draw) -> Graph:
    names = draw(st.lists(NAMES, min_size=3, max_size=12, unique=True))
    inputs, names = names[:1], names[1:]
    nodes, known = [], list(inputs)
    for name in names:
        reads = draw(st.lists(st.sampled_from([*known, ""]), max_size=3))
        attributes = draw(st.dictionaries(NAMES, ATTRIBUTES, max_size=3))
        nodes.append(Node(draw(NAMES), tuple(reads), (name,), attributes, draw(NAMES), "d", draw(st.just(3))))
        known.append(name)
    array = np.array(draw(st.lists(INTS, max_size=5)), np.int64)
    return Graph(
        tuple(Value(name, draw(TYPES)) for name in inputs),
        tuple(Value(name, draw(TYPES)) for name in known[-2:]),
        tuple(nodes),
        {"a longer name": Constant(dtypes.INT64, array.shape, array)},
        {name: draw(TYPES) for name in known[1:-2]},
        draw(NAMES),
        {"": draw(st.integers(1, 30)), "d": 3},
        draw(NAMES),
        draw(st.dictionaries(NAMES, NAMES, max_size=3)),
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(graphs())
def test_round_trip_of_random_graphs(graph):
    data = saved(graph)
    assert_same(vkml.onnx.load_graph(data), graph)
    # The onnx package reads the same bytes, and writes what we read.
    again = onnx.load_model_from_string(data).SerializeToString()
    assert_same(vkml.onnx.load_graph(again), graph)


def test_values_by_name_are_written_once():
    graph = small(types={"x": UNKNOWN, "h": TensorType(dtypes.INT8, (1,))})
    made = onnx.load_model_from_string(saved(graph)).graph
    assert [item.name for item in made.value_info] == ["h"]
    assert made.value_info[0] == value("h", [1], onnx.TensorProto.INT8)
