"""Random graphs as bodies: in an If, a Loop, a Scan or a map they make, to the bit, what they make alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkml
from tests.fuzz.comparison import is_equal
from tests.fuzz.generate import random_case
from tests.fuzz.tensors import Array

TRIPS = 2
CASES = 60


def _graph(proto: onnx.ModelProto, prefix: str, outputs: list[onnx.ValueInfoProto]) -> onnx.GraphProto:
    """The model's graph as a body that captures all that it reads; its outputs have names of their own."""
    graph = proto.graph
    nodes = [
        *graph.node,
        *(
            helper.make_node("Identity", [old.name], [new.name])
            for old, new in zip(graph.output, outputs, strict=True)
        ),
    ]
    return helper.make_graph(nodes, f"{prefix}body", [], outputs, graph.initializer)


def _stated(proto: onnx.ModelProto, prefix: str) -> list[onnx.ValueInfoProto]:
    """The model's outputs under other names, of unknown shapes."""
    return [
        helper.make_tensor_value_info(f"{prefix}{at}", value.type.tensor_type.elem_type, None)
        for at, value in enumerate(proto.graph.output)
    ]


def _model(proto: onnx.ModelProto, node: onnx.NodeProto, outputs: Any, extra: Any = ()) -> bytes:
    initializers = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in initializers]
    graph = helper.make_graph(
        [node],
        "wrapped",
        [*inputs, helper.make_tensor_value_info("the condition", TensorProto.BOOL, [])],
        outputs,
        list(extra),
    )
    made = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    return made.SerializeToString()


def in_if(proto: onnx.ModelProto) -> bytes:
    """The graph as both branches."""
    outer = _stated(proto, "outer ")
    bodies = {f"{key}_branch": _graph(proto, key, _stated(proto, f"{key} ")) for key in ("then", "else")}
    node = helper.make_node("If", ["the condition"], [value.name for value in outer], **bodies)
    return _model(proto, node, outer)


def in_loop(proto: onnx.ModelProto, *, is_known: bool = False) -> bytes:
    """The graph as the body of a Loop of two trips, which collects all outputs.

    Args:
        proto: the model.
        is_known: whether it makes these trips in every run, and so can be laid out.
    """
    outer, inner = _stated(proto, "outer "), _stated(proto, "inner ")
    body = _graph(proto, "loop", inner)
    body.input.append(helper.make_tensor_value_info("the trip", TensorProto.INT64, []))
    body.input.append(helper.make_tensor_value_info("goes on", TensorProto.BOOL, []))
    body.node.append(helper.make_node("Identity", ["goes on"], ["goes further"]))
    body.output.insert(0, helper.make_tensor_value_info("goes further", TensorProto.BOOL, []))
    inputs = ["trips", "always" if is_known else "the condition"]
    node = helper.make_node("Loop", inputs, [v.name for v in outer], body=body)
    constants = {"trips": np.array(TRIPS), "always": np.array(True)}
    return _model(
        proto, node, outer, [numpy_helper.from_array(each, name) for name, each in constants.items()]
    )


@pytest.mark.parametrize("index", range(CASES))
def test_bodies_make_what_graphs_make(index: int) -> None:
    case = random_case(77, index)
    proto = case.proto()
    assert proto is not None
    if {"RandomNormal", "RandomUniform", "Dropout", "Bernoulli"} & {n.op_type for n in proto.graph.node}:
        return
    try:
        alone = vkml.InferenceSession(case.model, devices="cpu", precision="highest")
        expected = [alone.run(None, feed) for feed in case.feeds]
    except vkml.Error:
        return  # what is refused, and that, is for test_fuzz.py
    branch = vkml.InferenceSession(in_if(proto), devices="cpu", precision="highest")
    loops = [
        vkml.InferenceSession(in_loop(proto, is_known=is_known), devices="cpu", precision="highest")
        for is_known in (False, True)
    ]
    for feed, wanted in zip(case.feeds, expected, strict=True):
        for condition in (True, False):
            found = branch.run(None, {**feed, "the condition": np.array(condition)})
            _assert_equal(found, wanted)
        for loop in loops:
            stacked = loop.run(None, {**feed, "the condition": np.array(True)})
            for trip in range(TRIPS):
                _assert_equal([array[trip, ...] for array in stacked], wanted)


def _assert_equal(found: list[Array], wanted: list[Array]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert np.all(is_equal(mine, theirs))


def test_most_cases_are_wrapped() -> None:
    def runs(index: int) -> bool:
        case = random_case(77, index)
        try:
            session = vkml.InferenceSession(case.model, devices="cpu")
            return all(session.run(None, dict(feed)) is not None for feed in case.feeds)
        except vkml.Error:
            return False

    assert sum(map(runs, range(20))) > 12
