"""Graphs of the known-answer cases: what builds one, with its inputs, from a source of random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.engine.doctor_bodies import Array, Feed
from vkml.engine.sketch import OPSET, Sketch
from vkml.ir import dtypes
from vkml.ir.graph import Graph


def values(generator: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return generator.uniform(-2, 2, shape).astype(kind)
    if kind.kind == "b":
        return generator.random(shape) < 0.5
    return generator.integers(-100, 100, shape).astype(kind)


def simple(
    op: str,
    *shapes: Sequence[int],
    dtype: Any = np.float32,
    constants: Sequence[Any] = (),
    **attributes: Any,
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A graph of one node: inputs of `shapes`, then `constants`."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch(op)
        feed = {f"x{index}": values(generator, shape, dtype) for index, shape in enumerate(shapes)}
        names = [sketch.input(name, each.shape, dtypes.from_numpy(each.dtype)) for name, each in feed.items()]
        names += ["" if value is None else sketch.constant(value) for value in constants]
        return sketch.finish(sketch.node(op, *names, **attributes)), feed

    return build


def weighted(
    op: str,
    shape: Sequence[int],
    weight: Sequence[int],
    bias: int = 0,
    dtype: Any = np.float32,
    **attributes: Any,
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A graph of one node with constant weights, scaled so that sums stay near 1, and a bias."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch(op)
        feed = {"x": values(generator, shape, dtype)}
        scale = 1 / math.sqrt(math.prod(weight[1:] if op.startswith("Conv") else weight[-2:-1]))
        names = [sketch.input("x", shape, dtypes.from_numpy(dtype))]
        names.append(sketch.constant((generator.standard_normal(weight) * scale).astype(dtype)))
        if bias:
            names.append(sketch.constant(generator.standard_normal(bias).astype(dtype)))
        return sketch.finish(sketch.node(op, *names, **attributes)), feed

    return build


def same_rows(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Two products of the same rows by constant weights."""
    sketch = Sketch("same rows")
    feed = {"x": values(generator, (130, 512), np.float32)}
    x = sketch.input("x", (130, 512))
    weights = [(generator.standard_normal((512, 264)) / 23).astype(np.float32) for _ in range(2)]
    return sketch.finish(*[sketch.node("MatMul", x, sketch.constant(weight)) for weight in weights]), feed


def dequantized(
    rows: int, inner: int = 256, columns: int = 66
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A product with weights that stay bytes, each column's with a scale."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("dequantized")
        feed = {"x": values(generator, (rows, inner), np.float32)}
        scales = generator.uniform(0.5, 1, columns).astype(np.float32) / 1000
        codes = sketch.constant(values(generator, (inner, columns), np.int8))
        numbers = sketch.node("DequantizeLinear", codes, sketch.constant(scales), axis=1)
        return sketch.finish(sketch.node("MatMul", sketch.input("x", (rows, inner)), numbers)), feed

    return build


def dequantized_in_blocks(
    rows: int, inner: int = 256, columns: int = 66
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A product with weights of 4 bits, 32 of a column with a scale."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("blocks", 23)
        feed = {"x": values(generator, (rows, inner), np.float32)}
        scales = generator.uniform(0.5, 1, (inner // 32, columns)).astype(np.float32) / 100
        codes = sketch.constant(generator.integers(-8, 8, (inner, columns)).astype(dtypes.INT4.storage))
        numbers = sketch.node("DequantizeLinear", codes, sketch.constant(scales), axis=0, block_size=32)
        return sketch.finish(sketch.node("MatMul", sketch.input("x", (rows, inner)), numbers)), feed

    return build


def sums(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Two reductions of what is made of the same values, in one kernel, and what is made of their results."""
    sketch = Sketch("sums")
    feed = {name: values(generator, (5, 4, 9, 16), np.float32) for name in "ab"}
    a, b = (sketch.input(name, value.shape) for name, value in feed.items())
    axes = sketch.constant(np.array([0, 2, 3], np.int64))
    total = sketch.node("ReduceSum", sketch.node("Mul", a, b), axes)
    greatest = sketch.node("ReduceMax", sketch.node("Sub", a, b), axes)
    return sketch.finish(sketch.node("Add", total, greatest), greatest), feed


def chain(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """A fused elementwise kernel: several operators, broadcasting, two outputs."""
    sketch = Sketch("chain")
    feed = {"a": values(generator, (5, 1, 33), np.float32), "b": values(generator, (7, 1), np.float32)}
    a, b = (sketch.input(name, value.shape) for name, value in feed.items())
    total = sketch.node("Add", sketch.node("Mul", a, b), sketch.constant(np.float32(0.5)))
    gate = sketch.node("Mul", total, sketch.node("Sigmoid", total))
    return sketch.finish(gate, sketch.node("Tanh", sketch.node("Sub", gate, a))), feed


def gather(indices: Any, axis: int) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("Gather")
        feed = {"table": values(generator, (11, 6, 5), np.float32), "indices": np.asarray(indices, np.int64)}
        table = sketch.input("table", (11, 6, 5))
        chosen = sketch.input("indices", feed["indices"].shape, dtypes.INT64)
        return sketch.finish(sketch.node("Gather", table, chosen, axis=axis)), feed

    return build


def outputs(
    op: str, count: int, shape: Sequence[int], **attributes: Any
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A graph of one node of several outputs."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch(op)
        names = sketch.node_with_outputs(op, count, sketch.input("x", shape), **attributes)
        return sketch.finish(*names), {"x": values(generator, shape, np.float32)}

    return build


def given(
    op: str, *inputs: Array, opset: int = OPSET, **attributes: Any
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A graph of one node with these inputs, which a run brings."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch(op, opset)
        feed = {f"x{index}": array for index, array in enumerate(inputs)}
        names = [sketch.input(name, each.shape, dtypes.from_numpy(each.dtype)) for name, each in feed.items()]
        return sketch.finish(sketch.node(op, *names, **attributes)), feed

    return build


def rounded(code: int) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """To a type that NumPy lacks, and back from it as it lies in memory, of numbers that the type has."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("rounded")
        feed = {"x": generator.integers(-8, 9, (5, 33)).astype(np.float32) / 8}
        narrow = sketch.node("Cast", sketch.input("x", (5, 33)), to=code)
        turned = sketch.node("Transpose", narrow, perm=(1, 0))
        wide = sketch.node("Cast", turned, to=dtypes.FLOAT32.code)
        return sketch.finish(narrow, sketch.node("Softmax", wide)), feed

    return build


def attention(
    *shape: int, dtype: Any = np.float32, has_mask: bool = False
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """softmax(q·kᵀ/√d)·v as exporters write it, with a padding mask or without."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("attention")
        feed = {name: values(generator, shape, dtype) for name in ("q", "k", "v")}
        q, k, v = (sketch.input(name, shape, dtypes.from_numpy(np.dtype(dtype))) for name in feed)
        scores = sketch.node("MatMul", q, sketch.node("Transpose", k, perm=(0, 1, 3, 2)))
        scores = sketch.node("Div", scores, sketch.constant(np.array(math.sqrt(shape[-1]), dtype)))
        if has_mask:
            seen = np.arange(shape[-2]) < shape[-2] - 5
            scores = sketch.node("Add", scores, sketch.constant(np.where(seen, 0, -6e4).astype(dtype)))
        return sketch.finish(sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), v)), feed

    return build


def decoding(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """One row of queries by two heads over a long past."""
    sketch = Sketch("decoding", 23)
    shapes = {"q": (1, 2, 1, 64), "k": (1, 2, 1500, 64), "v": (1, 2, 1500, 64)}
    feed = {name: values(generator, shape, np.float32) for name, shape in shapes.items()}
    names = [sketch.input(name, shape) for name, shape in shapes.items()]
    return sketch.finish(sketch.node("Attention", *names)), feed


def normalised_rows(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """A product of two rows that are normalised before."""
    sketch = Sketch("rows")
    feed = {"x": values(generator, (2, 256), np.float32)}
    scale = sketch.constant(np.linspace(0.5, 1.5, 256, dtype=np.float32))
    rows = sketch.node("LayerNormalization", sketch.input("x", (2, 256)), scale)
    weight = sketch.constant((generator.standard_normal((256, 130)) / 16).astype(np.float32))
    return sketch.finish(sketch.node("MatMul", rows, weight)), feed


def convolution_epilogue(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Convolution, bias, residual and ReLU, as a residual network has them."""
    sketch = Sketch("epilogue")
    feed = {"x": values(generator, (1, 8, 9, 9), np.float32)}
    x = sketch.input("x", (1, 8, 9, 9))
    weight = sketch.constant((generator.standard_normal((8, 8, 3, 3)) / 8).astype(np.float32))
    bias = sketch.constant(generator.standard_normal(8).astype(np.float32))
    y = sketch.node("Conv", x, weight, bias, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    return sketch.finish(sketch.node("Relu", sketch.node("Add", y, x))), feed


def layers(
    image: Sequence[int], *layers: tuple[str, Sequence[int], Mapping[str, Any]]
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """Operators over an image one behind the other, with constant weights of a shape, where there is one."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("chain")
        feed = {"x": values(generator, image, np.float32)}
        value = sketch.input("x", image)
        for op, shape, attributes in layers:
            scale = 1 / math.sqrt(math.prod(shape[1:]))
            weights = scale * generator.standard_normal(shape), generator.standard_normal(shape[:1])
            names = [sketch.constant(array.astype(np.float32)) for array in weights] if shape else []
            value = sketch.node(op, value, *names, **attributes)
        return sketch.finish(value), feed

    return build


def recurrent(
    op: str, gates: int, hidden: int, **attributes: Any
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A layer in both directions over a few steps of a batch of two."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch(op)
        feed = {"x": values(generator, (5, 2, 12), np.float32)}
        shapes = ((2, gates * hidden, 12), (2, gates * hidden, hidden), (2, 2 * gates * hidden))
        weights = [
            (generator.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32) for shape in shapes
        ]
        names = [sketch.input("x", (5, 2, 12)), *(sketch.constant(array) for array in weights)]
        sizes: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional"}
        return sketch.finish(sketch.node(op, *names, **sizes, **attributes)), feed

    return build


def side_by_side(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """The same step of several tensors, as an optimizer's of parameters: none waits for another."""
    sketch, found = Sketch("tensors"), []
    feed: dict[str, Array] = {}
    for number, shape in enumerate(((5, 33), (700,), (3, 4, 5), (1,), (129,), (64, 9))):
        feed[f"p{number}"], feed[f"g{number}"] = (values(generator, shape, np.float32) for _ in range(2))
        parameter, gradient = (sketch.input(f"{letter}{number}", shape) for letter in "pg")
        step = sketch.node("Mul", gradient, sketch.constant(np.float32(0.25)))
        found.append(sketch.node("Sub", parameter, step))
    return sketch.finish(*found), feed


def small_layers(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Layers of a few rows, each of which waits for the one before: phases of one launch on a large GPU."""
    sketch = Sketch("layers")
    feed = {"x": values(generator, (3, 24), np.float32)}
    value = sketch.input("x", (3, 24))
    for _ in range(3):
        weight = sketch.constant((generator.standard_normal((24, 24)) / 5).astype(np.float32))
        value = sketch.node("LogSoftmax", sketch.node("MatMul", value, weight), axis=-1)
    return sketch.finish(value), feed


def large_array(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Sums of rows of an array that begins anywhere in memory, so large that a GPU reads it where it lies."""
    sketch, whole = Sketch("large"), values(generator, (300 * 600 + 3,), np.float32)
    tripled = sketch.node("Mul", sketch.input("x", (300, 600)), sketch.constant(np.float32(3)))
    sums = sketch.node("ReduceSum", tripled, sketch.constant(np.array([1])), keepdims=0)
    return sketch.finish(sums), {"x": whole[3:].reshape(300, 600)}
