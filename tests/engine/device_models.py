"""Small models for runs on several devices, and what they are in float64.

Those that are exact hold and make small whole numbers only: no kernel rounds these, whatever its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, TensorProto, TypeProto, numpy_helper

from benchmarks.models import Network, Transformer
from tests import control_models
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]


@dataclass(frozen=True)
class DeviceModel:
    """A model and its inputs."""

    make: Callable[[], bytes]
    feed: Callable[[np.random.Generator], dict[str, Array]]
    is_exact: bool
    is_whole: bool = True
    """Whether it is one segment, that plans run."""


def whole(rng: np.random.Generator, *shape: int, most: int = 1) -> Array:
    """Whole numbers as floats."""
    return rng.integers(-most, most + 1, shape).astype(np.float32)


def in_float64(source: bytes) -> bytes:
    """The model with all of its floats in float64."""
    model = onnx.load_from_string(source)
    _widen_graph(model.graph)
    return bytes(model.SerializeToString())


def reference(source: bytes, feed: Feed) -> list[Array]:
    """What the operators' own `evaluate` makes of a model in float64, rounded to float32."""
    wide = {
        name: each.astype(np.float64) if each.dtype == np.float32 else each for name, each in feed.items()
    }
    found = control_models.evaluated(in_float64(source), wide)
    return [each.astype(np.float32) if each.dtype == np.float64 else each for each in found]


def _widen_graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        _widen_type(value.type)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif attribute.type == AttributeProto.GRAPH:
                _widen_graph(attribute.g)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def _widen_type(type_: TypeProto) -> None:
    if type_.tensor_type.elem_type == TensorProto.FLOAT:
        type_.tensor_type.elem_type = TensorProto.DOUBLE


# -- models --------------------------------------------------------------------------------------------------


def _mlp() -> bytes:
    net, rng = Network("mlp"), np.random.default_rng(1)
    x = net.input("x", (5, 16))
    for source, target in ((16, 24), (24, 24), (24, 10)):
        x = net.node("MatMul", x, net.constant(whole(rng, source, target)))
        x = net.node("Relu", net.node("Add", x, net.constant(whole(rng, target, most=3))))
    return save_graph(net.finish(x, net.node("ReduceMax", x, axes=(1,), keepdims=0)))


def _cnn() -> bytes:
    net, rng = Network("cnn"), np.random.default_rng(2)

    def convolved(x: str, source: int, target: int) -> str:
        weight = net.constant(whole(rng, target, source, 3, 3))
        return net.node("Conv", x, weight, kernel_shape=(3, 3), pads=(1, 1, 1, 1))

    x = net.node("Relu", convolved(net.input("x", (2, 3, 8, 8)), 3, 6))
    x = net.node("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
    x = net.node("Add", x, net.node("Relu", convolved(x, 6, 6)))
    x = net.node("ReduceSum", x, net.integers(2, 3), keepdims=0)
    return save_graph(net.finish(net.node("MatMul", x, net.constant(whole(rng, 6, 4)))))


def _transformer() -> bytes:
    net = Network("transformer", seed=3)
    sizes = Transformer(2, 7, width=16, heads=2, hidden=24)
    x = net.input("x", (2, 7, 16))
    mask = net.constant(np.triu(np.full((1, 1, 7, 7), -1e9, np.float32), 1))
    return save_graph(net.finish(sizes.block(net, x, normalises_first=False, mask=mask)))


def _lstm() -> bytes:
    net = Network("lstm", seed=4)
    x = net.node("Tanh", net.linear(net.input("x", (6, 2, 5)), 5, 8))
    weights = [net.uniform(-0.4, 0.4, *shape) for shape in ((2, 28, 8), (2, 28, 7), (2, 56))]
    y = net.node("LSTM", x, *weights, hidden_size=7, direction="bidirectional")
    y = net.node("Reshape", net.node("Transpose", y, perm=(0, 2, 1, 3)), net.integers(6, 2, 14))
    return save_graph(net.finish(net.node("Tanh", net.linear(y, 14, 3))))


def _control() -> bytes:
    """A loop of as many trips as an input says, inside of which a branch is taken by a value's sum."""
    return control_models.model(
        """
        control (float[3, 4] x, int64 trips) => (float[3, 4] last, float[n, 3, 4] each)
        <float[4, 4] turn = {0,1,0,0, 0,0,-1,0, 0,0,0,1, 1,0,0,0}, bool yes = {1}, float zero = {0}>
        {
            begin = MatMul(x, turn)
            last, stack = Loop(trips, yes, begin) <body = trip (int64 i, bool go, float[3, 4] carried)
                => (bool on, float[3, 4] next, float[3, 4] seen) {
                on = Identity(go)
                total = ReduceSum <keepdims = 0> (carried)
                is_more = Greater(total, zero)
                next = If (is_more) <
                    then_branch = more () => (float[3, 4] a) { h = MatMul(carried, turn) a = Sub(h, x) },
                    else_branch = less () => (float[3, 4] b) { b = Add(carried, x) }>
                seen = Neg(next)
            }>
            each = Abs(stack)
        }
        """
    )


def _nonzero() -> bytes:
    net, rng = Network("nonzero"), np.random.default_rng(6)
    x = net.input("x", (6, 5))
    rows = net.node("MatMul", x, net.constant(whole(rng, 5, 8)))
    found = net.node(
        "Transpose", net.node("NonZero", net.node("Greater", rows, net.scalar(0.5))), perm=(1, 0)
    )
    kept = net.node("GatherND", net.node("Mul", rows, rows), found)
    count = net.node("ReduceSum", kept, net.integers(0), keepdims=1)
    return save_graph(net.finish(kept, net.node("Sub", kept, count), found))


def _values(*shape: int, most: int = 0) -> Callable[[np.random.Generator], dict[str, Array]]:
    if most:
        return lambda rng: {"x": whole(rng, *shape, most=most)}
    return lambda rng: {"x": rng.standard_normal(shape).astype(np.float32)}


def _control_feed(rng: np.random.Generator) -> dict[str, Array]:
    return {"x": whole(rng, 3, 4, most=3), "trips": np.array(rng.integers(2, 7), np.int64)}


DEVICE_MODELS: dict[str, DeviceModel] = {
    "mlp": DeviceModel(_mlp, _values(5, 16, most=3), True),
    "cnn": DeviceModel(_cnn, _values(2, 3, 8, 8, most=3), True),
    "transformer": DeviceModel(_transformer, _values(2, 7, 16), False),
    "lstm": DeviceModel(_lstm, _values(6, 2, 5), False),
    "control": DeviceModel(_control, _control_feed, True, is_whole=False),
    "nonzero": DeviceModel(_nonzero, _values(6, 5, most=2), True, is_whole=False),
}
