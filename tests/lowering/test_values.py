"""Where values end up: concatenations written in place, and graph outputs of every kind."""

from __future__ import annotations

import numpy as np

from tests.passes.test_fuse import check
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, Node, TensorType, Value, dtypes

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 11


def test_concat_is_written_in_place(device_name: str) -> None:
    sketch = Sketch("concat")
    x = sketch.input("x", X.shape)
    parts = [sketch.node("Tanh", x), sketch.node("Softmax", x), sketch.node("Relu", x)]
    outputs = [sketch.node("Concat", *parts, axis=axis) for axis in (0,)]
    session = check(device_name, sketch.finish(*outputs), {"x": X})
    del session


def test_concats_along_every_axis_of_a_batch(device_name: str) -> None:
    for axis in (0, 1, 2):
        sketch = Sketch("concat")
        x = sketch.input("x", X.shape)
        parts = [
            sketch.node("Tanh", x),
            sketch.node("Softmax", x, axis=1),
            sketch.node("Transpose", x, perm=(0, 1, 2)),
        ]
        whole = sketch.node("Concat", *parts, axis=axis)
        outputs = [whole, sketch.node("Relu", whole), parts[0]]
        check(device_name, sketch.finish(*outputs), {"x": X})


def test_a_value_twice_in_a_concat_and_in_two_concats(device_name: str) -> None:
    sketch = Sketch("twice")
    x = sketch.input("x", X.shape)
    value, other = sketch.node("Tanh", x), sketch.node("Exp", x)
    first = sketch.node("Concat", value, other, value, axis=1)
    second = sketch.node("Concat", other, value, x, sketch.constant(X * 2), axis=1)
    nested = sketch.node("Concat", first, second, axis=1)
    check(device_name, sketch.finish(nested, sketch.node("Abs", second)), {"x": X}, atol=1e-3)


def test_a_concat_of_views_of_one_tensor(device_name: str) -> None:
    sketch = Sketch("views")
    x = sketch.input("x", X.shape)
    value = sketch.node("Neg", x)
    ends = [sketch.constant(np.array([v], np.int64)) for v in (0, 2, 3, 2)]
    left, right = (
        sketch.node("Slice", value, ends[0], ends[1], ends[3]),
        sketch.node("Slice", value, ends[1], ends[2], ends[3]),
    )
    whole = sketch.node("Concat", right, left, axis=2)
    moved = sketch.node("Transpose", whole, perm=(2, 0, 1))
    check(device_name, sketch.finish(moved, whole, value), {"x": X})


def test_concat_of_reduced_and_pooled_values(device_name: str) -> None:
    """Kernels that may not be able to write into a part of the result."""
    sketch = Sketch("reduced")
    feed = {"x": np.random.default_rng(1).standard_normal((2, 4, 6, 6)).astype(np.float32)}
    x = sketch.input("x", (2, 4, 6, 6))
    weight = sketch.constant(np.random.default_rng(2).standard_normal((3, 4, 1, 1)).astype(np.float32))
    parts = [
        sketch.node("Conv", x, weight),
        sketch.node("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        sketch.node("Softmax", x, axis=1),
        sketch.node("LayerNormalization", x, sketch.constant(np.ones(6, np.float32))),
        sketch.node("InstanceNormalization", x, *(sketch.constant(np.ones(4, np.float32)) for _ in range(2))),
        sketch.node("CumSum", x, sketch.constant(np.int64(3))),
        sketch.node("Gather", x, sketch.constant(np.array([1, 3, -4], np.int64)), axis=1),
        sketch.node("MatMul", x, sketch.constant(np.eye(6, dtype=np.float32))),
        sketch.node("Pad", x, sketch.constant(np.array([0, 1, 0, 0, 0, 0, 0, 0], np.int64))),
        sketch.node("ReduceMax", x, sketch.constant(np.array([1], np.int64))),
    ]
    for axis in (1,):
        check(device_name, sketch.finish(sketch.node("Concat", *parts, axis=axis)), feed, atol=1e-4)


def test_outputs_that_are_inputs_constants_views_and_duplicates(device_name: str) -> None:
    kind = TensorType(dtypes.FLOAT32, (2, 3, 4))
    moved = TensorType(dtypes.FLOAT32, (4, 3, 2))
    from vkml.ir import Constant

    graph = Graph(
        inputs=(Value("x", kind),),
        outputs=(
            Value("x", kind),
            Value("c", kind),
            Value("t", moved),
            Value("y", kind),
            Value("z", kind),
            Value("r", TensorType(dtypes.FLOAT32, (6, 4))),
        ),
        nodes=(
            Node("Relu", ("x",), ("y",), {}, "relu", version=20),
            Node("Identity", ("y",), ("z",), {}, "same", version=20),
            Node("Transpose", ("x",), ("t",), {}, "moved", version=20),
            Node("Reshape", ("y", "shape"), ("r",), {}, "reshaped", version=20),
        ),
        constants={
            "c": Constant(dtypes.FLOAT32, (2, 3, 4), X * 3),
            "shape": Constant(dtypes.INT64, (2,), np.array([6, 4])),
        },
        opsets={"": 20},
    )
    check(device_name, graph, {"x": X})


def test_a_graph_of_no_launches(device_name: str) -> None:
    sketch = Sketch("views")
    x = sketch.input("x", X.shape)
    check(device_name, sketch.finish(sketch.node("Transpose", x), sketch.node("Identity", x)), {"x": X})
