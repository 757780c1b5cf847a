"""Open sizes through specialisation: one graph says what 50 graphs of fixed sizes say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.models import gpt_with_past
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, dtypes
from vkml.ir.size import Size, Sizes, concrete
from vkml.ir.size_terms import Symbol
from vkml.passes.specialise import specialise

OPSET = 17


def flattened() -> Graph:
    sketch = Sketch("flattened", OPSET)
    x = sketch.input("x", ("batch", 4, "height", "width"))
    y = sketch.node("Flatten", x)
    z = sketch.node("Reshape", x, sketch.constant(np.array([0, -1, 2], np.int64)))
    rest = sketch.node("Reshape", z, sketch.constant(np.array([-1], np.int64)))
    return sketch.finish(y, z, rest)


def convolutions() -> Graph:
    sketch = Sketch("convolutions", OPSET)
    x = sketch.input("x", ("batch", 3, "height", "width"))
    weight = sketch.constant(np.zeros((8, 3, 3, 3), np.float32))
    x = sketch.node("Conv", x, weight, strides=(2, 2), pads=(1, 1, 1, 1))
    y = sketch.node("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1)
    z = sketch.node("AveragePool", x, kernel_shape=(2, 2), auto_pad="SAME_UPPER", strides=(2, 2))
    return sketch.finish(y, z, sketch.node("GlobalAveragePool", z))


def cut_and_joined() -> Graph:
    sketch = Sketch("cut", OPSET)

    def whole(*values: int) -> str:
        return sketch.constant(np.array(values, np.int64))

    x = sketch.input("x", ("batch", "length", 8))
    last = sketch.node("Slice", x, whole(-1), whole(2**63 - 1), whole(1))
    rest = sketch.node("Slice", x, whole(0), whole(-1), whole(1))
    odd = sketch.node("Slice", x, whole(1), whole(2**31 - 1), whole(1), whole(2))
    pads = whole(0, 2, 0, 0, 1, 0)
    padded = sketch.node("Pad", x, pads)
    return sketch.finish(last, rest, odd, padded, sketch.node("Concat", rest, last, padded, axis=1))


def computed_shapes() -> Graph:
    """Windows of attention: what exporters write for x.view(b, n // 4, 4, c), and masks of computed sizes."""
    sketch = Sketch("computed", OPSET)

    def whole(value: int) -> str:
        return sketch.constant(np.int64(value))

    def vector(value: str) -> str:
        return sketch.node("Unsqueeze", value, sketch.constant(np.zeros(1, np.int64)))

    x = sketch.input("x", ("batch", "length", 8))
    shape = sketch.node("Shape", x)
    batch, length = (sketch.node("Gather", shape, whole(axis), axis=0) for axis in (0, 1))
    missing = sketch.node("Mod", sketch.node("Sub", whole(4), sketch.node("Mod", length, whole(4))), whole(4))
    zeros = sketch.constant(np.zeros(4, np.int64))
    pads = sketch.node("Concat", zeros, vector(missing), sketch.constant(np.zeros(1, np.int64)), axis=0)
    padded = sketch.node("Pad", x, pads)
    count = sketch.node("Div", sketch.node("Add", length, missing), whole(4))
    eight, four = sketch.constant(np.array([8], np.int64)), sketch.constant(np.array([4], np.int64))
    target = sketch.node("Concat", vector(batch), vector(count), four, eight, axis=0)
    windows = sketch.node("Reshape", padded, target)
    half = sketch.node("Div", length, whole(2))
    is_long = sketch.node("Greater", half, whole(3))
    chosen = sketch.node("Where", is_long, half, length)
    mask = sketch.node("ConstantOfShape", sketch.node("Concat", vector(batch), vector(chosen), axis=0))
    steps = sketch.node("Range", length, sketch.node("Add", length, whole(3)), whole(1))
    return sketch.finish(windows, mask, steps, sketch.node("Expand", sketch.constant(np.float32(1)), target))


def broadcast() -> Graph:
    sketch = Sketch("broadcast", OPSET)
    x, y = sketch.input("x", ("batch", "length", 8)), sketch.input("y", ("length", 1))
    z = sketch.node("Add", x, y)
    w = sketch.node("MatMul", z, sketch.node("Transpose", z, perm=(0, 2, 1)))
    return sketch.finish(z, sketch.node("Softmax", w), sketch.node("ReduceMean", w, axes=(1,), keepdims=0))


def expanded() -> Graph:
    """What exporters write for x.expand(-1, 4, length), where a size of -1 is the one that is there."""
    sketch = Sketch("expanded", OPSET)
    x, y = sketch.input("x", ("batch", 1, 1)), sketch.input("y", ("batch", "length"))
    axis = sketch.constant(np.int64(1))
    length = sketch.node("Gather", sketch.node("Shape", y), axis, axis=0)
    zeros, wanted = sketch.constant(np.zeros(1, np.int64)), sketch.constant(np.array([-1, 4], np.int64))
    target = sketch.node("Concat", wanted, sketch.node("Unsqueeze", length, zeros), axis=0)
    ones = sketch.constant(np.ones(3, np.int64))
    is_kept = sketch.node("Equal", target, sketch.node("Mul", ones, sketch.constant(np.int64(-1))))
    return sketch.finish(sketch.node("Expand", x, sketch.node("Where", is_kept, ones, target)))


MODELS: dict[str, Callable[[], Graph]] = {
    "gpt_with_past": gpt_with_past,
    "flattened": flattened,
    "convolutions": convolutions,
    "cut_and_joined": cut_and_joined,
    "computed_shapes": computed_shapes,
    "broadcast": broadcast,
    "expanded": expanded,
}
FREE = {"gpt_with_past", "flattened", "broadcast", "expanded"}
"""Models whose one plan holds for all sizes from 2 on."""


def shapes_of(graph: Graph, sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        value.name: tuple(sizes[dim] if isinstance(dim, str) else dim for dim in value.type.shape or ())
        for value in graph.inputs
    }


def bound(value: Any, values: dict[Symbol, int]) -> Any:
    return concrete(value, values) if isinstance(value, Size) else value


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_for_all_sizes(name: str) -> None:
    graph = prepare(MODELS[name](), optimise=True)
    names = sorted({dim for value in graph.inputs for dim in value.type.shape or () if isinstance(dim, str)})
    rng = np.random.default_rng(7)
    kept: list[tuple[Sizes, Graph]] = []
    for _ in range(50):
        numbers = {each: int(size) for each, size in zip(names, rng.integers(2, 70, len(names)), strict=True)}
        fixed = specialise(graph, shapes_of(graph, numbers))
        found = next((made for made in kept if made[0].holds(numbers)), None)
        if found is None:
            sizes = Sizes()
            symbols = {each: sizes.symbol(each, size) for each, size in numbers.items()}
            with sizes.deciding():
                found = (sizes, specialise(graph, shapes_of(graph, symbols)))
            kept.append(found)
        opened, values = found[1], {Symbol(each): size for each, size in numbers.items()}
        # What is small for some sizes is folded there; no node is there that is not in the other.
        assert {node.outputs for node in fixed.nodes} <= {node.outputs for node in opened.nodes}
        for value, type_ in fixed.types.items():
            shape = opened.types[value].shape
            assert tuple(bound(dim, values) for dim in shape or ()) == type_.shape, value
            assert opened.types[value].dtype == type_.dtype
        for value in fixed.constants.keys() & opened.constants.keys():
            constant = fixed.constants[value]
            array = opened.constants[value].array
            if array.dtype == object and constant.dtype != dtypes.STRING:
                array = np.array([bound(each, values) for each in array.reshape(-1)]).reshape(array.shape)
            np.testing.assert_array_equal(array, constant.array, err_msg=value)
    guards = [sizes.guards() for sizes, _ in kept]
    assert len(kept) <= 16, guards
    if name in FREE:
        assert guards == [[]]
    assert not any("==" in guard and "//" not in guard for each in guards for guard in each), guards


def test_a_value_that_only_a_number_serves_is_guarded() -> None:
    """Bits of a size are not an expression: the plan holds for this size alone."""
    sketch = Sketch("bits", 18)
    x = sketch.input("x", ("length",))
    size = sketch.node("Gather", sketch.node("Shape", x), sketch.constant(np.int64(0)), axis=0)
    odd = sketch.node("BitwiseAnd", size, sketch.constant(np.int64(6)))
    shape = sketch.node("Unsqueeze", odd, sketch.constant(np.zeros(1, np.int64)))
    graph = prepare(sketch.finish(sketch.node("ConstantOfShape", shape)), optimise=True)
    sizes = Sizes()
    with sizes.deciding():
        made = specialise(graph, {"x": (sizes.symbol("length", 13),)})
    assert made.outputs[0].type.shape == (4,)
    assert sizes.holds({"length": 13}) and not sizes.holds({"length": 12})
