"""LinearAttention and FlexAttention beside ONNX's own cases: states that go on, graphs that read others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkml
from tests.ops.checking import assert_same
from vkml.errors import Error

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(908)
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}


def real(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model(
    op: str,
    domain: str,
    feeds: dict[str, tuple[int, Sequence[Any]]],
    outputs: Sequence[str],
    **attributes: Any,
) -> bytes:
    inputs = [name if name in feeds else "" for name in ("q", "k", "v", "past", "decay", "beta")]
    while not inputs[-1]:
        inputs.pop()
    node = helper.make_node(op, inputs, outputs, "node", domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, code, dims) for name, (code, dims) in feeds.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    imports = [helper.make_opsetid("", 27), helper.make_opsetid("ai.onnx.preview", 1)]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=13).SerializeToString())


def linear(**attributes: Any) -> bytes:
    rows = {"q": 16, "k": 8, "v": 6, "decay": 8, "beta": 2}
    feeds: dict[str, Any] = {name: (TensorProto.FLOAT, [2, "rows", width]) for name, width in rows.items()}
    feeds["past"] = TensorProto.FLOAT, [2, 2, 4, 3]
    return model("LinearAttention", "", feeds, ["y", "state"], **HEADS, **attributes)


def test_a_state_goes_on_from_row_to_row(either_device_name: str) -> None:
    """Five rows at once are three, one and one."""
    widths = {"q": 16, "k": 8, "v": 6, "decay": 8, "beta": 2}
    feed = {name: real(2, 5, width) * 0.5 for name, width in widths.items()}
    feed["decay"] = -np.abs(feed["decay"])
    state = real(2, 2, 4, 3)
    with vkml.InferenceSession(linear(), devices=either_device_name) as session:
        expected, last = session.run(None, {**feed, "past": state})
        parts = []
        for start, end in ((0, 3), (3, 4), (4, 5)):
            rows = {name: array[:, start:end].copy() for name, array in feed.items()}
            made, state = session.run(None, {**rows, "past": state})
            parts.append(made)
    assert_same(np.concatenate(parts, 1), expected, 1e-4, 1e-5)
    assert_same(state, last, 1e-4, 1e-5)


def test_a_row_is_what_the_rule_says() -> None:
    widths = {"q": 16, "k": 8, "v": 6, "decay": 8, "beta": 2}
    feed = {name: real(2, 1, width) for name, width in widths.items()}
    past = real(2, 2, 4, 3)
    with vkml.InferenceSession(linear(scale=0.5), devices="cpu") as session:
        found, state = session.run(None, {**feed, "past": past})
    wide = {name: array.astype(np.float64) for name, array in feed.items()}
    k, v = wide["k"].reshape(2, 2, 4), wide["v"].reshape(2, 2, 3)
    held = past * np.exp(wide["decay"].reshape(2, 2, 4, 1))
    v = wide["beta"].reshape(2, 2, 1) * (v - np.einsum("bhkv,bhk->bhv", held, k))
    held = held + k[..., None] * v[..., None, :]
    read = np.einsum("bhgk,bhkv->bhgv", wide["q"].reshape(2, 2, 2, 4), held) * 0.5
    assert_same(state, held.astype(np.float32), 1e-5, 1e-5)
    assert_same(found, read.reshape(2, 1, 12).astype(np.float32), 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"update_rule": "gated"}, "'gated' has no input 5, beta"),
        ({"update_rule": "delta"}, "'delta' has no input 4, decay"),
        ({"update_rule": "loud"}, "'loud' is none of linear, gated"),
        ({"kv_num_heads": 3}, "4 heads of queries share 3"),
    ],
)
def test_what_is_wrong_is_named(attributes: dict[str, Any], message: str) -> None:
    proto = onnx.load_from_string(linear())
    stated = {entry.name: helper.get_attribute_value(entry) for entry in proto.graph.node[0].attribute}
    del proto.graph.node[0].attribute[:]
    for key, value in {**stated, **attributes}.items():
        proto.graph.node[0].attribute.append(helper.make_attribute(key, value))
    with pytest.raises(Error, match=message):
        vkml.InferenceSession(proto.SerializeToString(), devices="cpu")


def body(op: str, *constants: float, of: str = "", code: int = TensorProto.FLOAT) -> onnx.GraphProto:
    """A graph of one node: of its input and a number, or another value. All have the same names."""
    nodes = []
    if constants:
        tensor = helper.make_tensor("number", code, [], constants)
        nodes.append(helper.make_node("Constant", [], ["number"], value=tensor))
    nodes.append(helper.make_node(op, ["x", of or "number"], ["y"]))
    value = helper.make_tensor_value_info("x", code, None), helper.make_tensor_value_info("y", code, None)
    return helper.make_graph(nodes, "mod", [value[0]], [value[1]])


def flex(q: Array, k: Array, v: Array, score: Array, scale: float, factor: float) -> Array:
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * scale + score
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) * factor) @ v


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_graphs_read_what_is_around_them(dtype: Any) -> None:
    """Both change it, with the same names inside, one by a value of the outer graph."""
    q, k, v = (real(2, heads, rows, 8).astype(dtype) for heads, rows in ((4, 3), (2, 5), (2, 5)))
    wide = np.float64 if dtype == np.float64 else np.float32
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    computed = helper.np_dtype_to_tensor_dtype(np.dtype(wide))
    score = RANDOM.standard_normal((1, 1, 3, 5)).astype(wide)
    names = ("q", "k", "v")
    attributes = {
        "score_mod": body("Add", of="score", code=computed),
        "prob_mod": body("Mul", 0.5, code=computed),
    }
    given = [helper.make_tensor_value_info(n, code, x.shape) for n, x in zip(names, (q, k, v), strict=True)]
    given.append(helper.make_tensor_value_info("score", computed, score.shape))
    node = helper.make_node("FlexAttention", names, ["made"], "flex", domain="ai.onnx.preview", **attributes)
    graph = helper.make_graph([node], "g", given, [helper.make_empty_tensor_value_info("made")])
    imports = [helper.make_opsetid("", 26), helper.make_opsetid("ai.onnx.preview", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=13)
    with vkml.InferenceSession(proto.SerializeToString(), devices="cpu") as session:
        [found] = session.run(None, {"q": q, "k": k, "v": v, "score": score})
    expected = flex(*(x.astype(np.float64) for x in (q, k, v)), score.astype(np.float64), 8**-0.5, 0.5)
    # The scale is a number of float32, in ONNX's reference, too.
    loose = {np.float32: 1e-5, np.float64: 1e-7, np.float16: 4e-3}[dtype]
    assert_same(found, expected.astype(dtype), loose, loose)


def test_a_graph_of_two_inputs_is_refused() -> None:
    feeds: dict[str, Any] = {name: (TensorProto.FLOAT, [1, 1, 2, 4]) for name in ("q", "k", "v")}
    wrong = body("Mul", 2.0)
    wrong.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    with pytest.raises(Error, match="score_mod has 2 inputs and 1 outputs"):
        vkml.InferenceSession(
            model("FlexAttention", "ai.onnx.preview", feeds, ["y"], score_mod=wrong), devices="cpu"
        )
