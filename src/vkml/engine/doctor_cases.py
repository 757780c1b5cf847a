"""The known-answer cases: one small graph for each form that a kernel has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.doctor_bodies import (
    Array,
    Feed,
    attention_gradients,
    attention_gradients_answer,
    loop,
    loop_answer,
    maximum_gradient,
    maximum_gradient_answer,
)
from vkml.engine.sketch import OPSET, Sketch
from vkml.ir import dtypes
from vkml.ir.graph import Graph

FLOAT32_TOLERANCE = 2e-5
"""Of fp32 sums over some hundred products, relative to the largest value."""
FLOAT16_TOLERANCE = 4e-3
"""Of fp16 results of fp32 accumulation: a few units in the last of 11 bits."""
HIGH_TOLERANCE = 4e-3
"""Of precision high: operands of ten bits."""


@dataclass(frozen=True)
class Case:
    """One graph with its inputs; its answer is what the operators' own evaluation gives in float64."""

    name: str
    family: str
    build: Callable[[np.random.Generator], tuple[Graph, Feed]]
    tolerance: float = FLOAT32_TOLERANCE
    precision: str = "highest"
    answer: Callable[[Feed], list[Array]] | None = None
    """Where nodes have bodies, which no operator evaluates: what the graph makes."""
    is_bound: bool = False
    """Whether values are bound and it runs several times, for what only such runs have."""


def _values(generator: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return generator.uniform(-2, 2, shape).astype(kind)
    if kind.kind == "b":
        return generator.random(shape) < 0.5
    return generator.integers(-100, 100, shape).astype(kind)


def _simple(
    op: str,
    *shapes: Sequence[int],
    dtype: Any = np.float32,
    constants: Sequence[Any] = (),
    **attributes: Any,
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A graph of one node: inputs of `shapes`, then `constants`."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch(op)
        feed = {f"x{index}": _values(generator, shape, dtype) for index, shape in enumerate(shapes)}
        names = [sketch.input(name, each.shape, dtypes.from_numpy(each.dtype)) for name, each in feed.items()]
        names += ["" if value is None else sketch.constant(value) for value in constants]
        return sketch.finish(sketch.node(op, *names, **attributes)), feed

    return build


def _weighted(
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
        feed = {"x": _values(generator, shape, dtype)}
        scale = 1 / math.sqrt(math.prod(weight[1:] if op.startswith("Conv") else weight[-2:-1]))
        names = [sketch.input("x", shape, dtypes.from_numpy(dtype))]
        names.append(sketch.constant((generator.standard_normal(weight) * scale).astype(dtype)))
        if bias:
            names.append(sketch.constant(generator.standard_normal(bias).astype(dtype)))
        return sketch.finish(sketch.node(op, *names, **attributes)), feed

    return build


def _same_rows(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Two products of the same rows by constant weights."""
    sketch = Sketch("same rows")
    feed = {"x": _values(generator, (130, 512), np.float32)}
    x = sketch.input("x", (130, 512))
    weights = [(generator.standard_normal((512, 264)) / 23).astype(np.float32) for _ in range(2)]
    return sketch.finish(*[sketch.node("MatMul", x, sketch.constant(weight)) for weight in weights]), feed


def _dequantized(
    rows: int, inner: int = 256, columns: int = 66
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A product with weights that stay bytes, each column's with a scale."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("dequantized")
        feed = {"x": _values(generator, (rows, inner), np.float32)}
        scales = generator.uniform(0.5, 1, columns).astype(np.float32) / 1000
        codes = sketch.constant(_values(generator, (inner, columns), np.int8))
        numbers = sketch.node("DequantizeLinear", codes, sketch.constant(scales), axis=1)
        return sketch.finish(sketch.node("MatMul", sketch.input("x", (rows, inner)), numbers)), feed

    return build


def _dequantized_in_blocks(
    rows: int, inner: int = 256, columns: int = 66
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A product with weights of 4 bits, 32 of a column with a scale."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("blocks", 23)
        feed = {"x": _values(generator, (rows, inner), np.float32)}
        scales = generator.uniform(0.5, 1, (inner // 32, columns)).astype(np.float32) / 100
        codes = sketch.constant(generator.integers(-8, 8, (inner, columns)).astype(dtypes.INT4.storage))
        numbers = sketch.node("DequantizeLinear", codes, sketch.constant(scales), axis=0, block_size=32)
        return sketch.finish(sketch.node("MatMul", sketch.input("x", (rows, inner)), numbers)), feed

    return build


def _sums(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Two reductions of what is made of the same values, in one kernel, and what is made of their results."""
    sketch = Sketch("sums")
    feed = {name: _values(generator, (5, 4, 9, 16), np.float32) for name in "ab"}
    a, b = (sketch.input(name, value.shape) for name, value in feed.items())
    axes = sketch.constant(np.array([0, 2, 3], np.int64))
    total = sketch.node("ReduceSum", sketch.node("Mul", a, b), axes)
    greatest = sketch.node("ReduceMax", sketch.node("Sub", a, b), axes)
    return sketch.finish(sketch.node("Add", total, greatest), greatest), feed


def _chain(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """A fused elementwise kernel: several operators, broadcasting, two outputs."""
    sketch = Sketch("chain")
    feed = {"a": _values(generator, (5, 1, 33), np.float32), "b": _values(generator, (7, 1), np.float32)}
    a, b = (sketch.input(name, value.shape) for name, value in feed.items())
    total = sketch.node("Add", sketch.node("Mul", a, b), sketch.constant(np.float32(0.5)))
    gate = sketch.node("Mul", total, sketch.node("Sigmoid", total))
    return sketch.finish(gate, sketch.node("Tanh", sketch.node("Sub", gate, a))), feed


def _gather(indices: Any, axis: int) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("Gather")
        feed = {"table": _values(generator, (11, 6, 5), np.float32), "indices": np.asarray(indices, np.int64)}
        table = sketch.input("table", (11, 6, 5))
        chosen = sketch.input("indices", feed["indices"].shape, dtypes.INT64)
        return sketch.finish(sketch.node("Gather", table, chosen, axis=axis)), feed

    return build


def _outputs(
    op: str, count: int, shape: Sequence[int], **attributes: Any
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A graph of one node of several outputs."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch(op)
        names = sketch.node_with_outputs(op, count, sketch.input("x", shape), **attributes)
        return sketch.finish(*names), {"x": _values(generator, shape, np.float32)}

    return build


def _given(
    op: str, *inputs: Array, opset: int = OPSET, **attributes: Any
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A graph of one node with these inputs, which a run brings."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch(op, opset)
        feed = {f"x{index}": array for index, array in enumerate(inputs)}
        names = [sketch.input(name, each.shape, dtypes.from_numpy(each.dtype)) for name, each in feed.items()]
        return sketch.finish(sketch.node(op, *names, **attributes)), feed

    return build


def _rounded(code: int) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """To a type that NumPy lacks, and back from it as it lies in memory, of numbers that the type has."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("rounded")
        feed = {"x": generator.integers(-8, 9, (5, 33)).astype(np.float32) / 8}
        narrow = sketch.node("Cast", sketch.input("x", (5, 33)), to=code)
        turned = sketch.node("Transpose", narrow, perm=(1, 0))
        wide = sketch.node("Cast", turned, to=dtypes.FLOAT32.code)
        return sketch.finish(narrow, sketch.node("Softmax", wide)), feed

    return build


def _attention(
    *shape: int, dtype: Any = np.float32, has_mask: bool = False
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """softmax(q·kᵀ/√d)·v as exporters write it, with a padding mask or without."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("attention")
        feed = {name: _values(generator, shape, dtype) for name in ("q", "k", "v")}
        q, k, v = (sketch.input(name, shape, dtypes.from_numpy(np.dtype(dtype))) for name in feed)
        scores = sketch.node("MatMul", q, sketch.node("Transpose", k, perm=(0, 1, 3, 2)))
        scores = sketch.node("Div", scores, sketch.constant(np.array(math.sqrt(shape[-1]), dtype)))
        if has_mask:
            seen = np.arange(shape[-2]) < shape[-2] - 5
            scores = sketch.node("Add", scores, sketch.constant(np.where(seen, 0, -6e4).astype(dtype)))
        return sketch.finish(sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), v)), feed

    return build


def _decoding(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """One row of queries by two heads over a long past."""
    sketch = Sketch("decoding", 23)
    shapes = {"q": (1, 2, 1, 64), "k": (1, 2, 1500, 64), "v": (1, 2, 1500, 64)}
    feed = {name: _values(generator, shape, np.float32) for name, shape in shapes.items()}
    names = [sketch.input(name, shape) for name, shape in shapes.items()]
    return sketch.finish(sketch.node("Attention", *names)), feed


def _normalised_rows(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """A product of two rows that are normalised before."""
    sketch = Sketch("rows")
    feed = {"x": _values(generator, (2, 256), np.float32)}
    scale = sketch.constant(np.linspace(0.5, 1.5, 256, dtype=np.float32))
    rows = sketch.node("LayerNormalization", sketch.input("x", (2, 256)), scale)
    weight = sketch.constant((generator.standard_normal((256, 130)) / 16).astype(np.float32))
    return sketch.finish(sketch.node("MatMul", rows, weight)), feed


def _convolution_epilogue(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Convolution, bias, residual and ReLU, as a residual network has them."""
    sketch = Sketch("epilogue")
    feed = {"x": _values(generator, (1, 8, 9, 9), np.float32)}
    x = sketch.input("x", (1, 8, 9, 9))
    weight = sketch.constant((generator.standard_normal((8, 8, 3, 3)) / 8).astype(np.float32))
    bias = sketch.constant(generator.standard_normal(8).astype(np.float32))
    y = sketch.node("Conv", x, weight, bias, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    return sketch.finish(sketch.node("Relu", sketch.node("Add", y, x))), feed


def _layers(
    image: Sequence[int], *layers: tuple[str, Sequence[int], Mapping[str, Any]]
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """Operators over an image one behind the other, with constant weights of a shape, where there is one."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch("chain")
        feed = {"x": _values(generator, image, np.float32)}
        value = sketch.input("x", image)
        for op, shape, attributes in layers:
            scale = 1 / math.sqrt(math.prod(shape[1:]))
            weights = scale * generator.standard_normal(shape), generator.standard_normal(shape[:1])
            names = [sketch.constant(array.astype(np.float32)) for array in weights] if shape else []
            value = sketch.node(op, value, *names, **attributes)
        return sketch.finish(value), feed

    return build


def _recurrent(
    op: str, gates: int, hidden: int, **attributes: Any
) -> Callable[[np.random.Generator], tuple[Graph, Feed]]:
    """A layer in both directions over a few steps of a batch of two."""

    def build(generator: np.random.Generator) -> tuple[Graph, Feed]:
        sketch = Sketch(op)
        feed = {"x": _values(generator, (5, 2, 12), np.float32)}
        shapes = ((2, gates * hidden, 12), (2, gates * hidden, hidden), (2, 2 * gates * hidden))
        weights = [
            (generator.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32) for shape in shapes
        ]
        names = [sketch.input("x", (5, 2, 12)), *(sketch.constant(array) for array in weights)]
        sizes: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional"}
        return sketch.finish(sketch.node(op, *names, **sizes, **attributes)), feed

    return build


def _side_by_side(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """The same step of several tensors, as an optimizer's of parameters: none waits for another."""
    sketch, found = Sketch("tensors"), []
    feed: dict[str, Array] = {}
    for number, shape in enumerate(((5, 33), (700,), (3, 4, 5), (1,), (129,), (64, 9))):
        feed[f"p{number}"], feed[f"g{number}"] = (_values(generator, shape, np.float32) for _ in range(2))
        parameter, gradient = (sketch.input(f"{letter}{number}", shape) for letter in "pg")
        step = sketch.node("Mul", gradient, sketch.constant(np.float32(0.25)))
        found.append(sketch.node("Sub", parameter, step))
    return sketch.finish(*found), feed


def _small_layers(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Layers of a few rows, each of which waits for the one before: phases of one launch on a large GPU."""
    sketch = Sketch("layers")
    feed = {"x": _values(generator, (3, 24), np.float32)}
    value = sketch.input("x", (3, 24))
    for _ in range(3):
        weight = sketch.constant((generator.standard_normal((24, 24)) / 5).astype(np.float32))
        value = sketch.node("LogSoftmax", sketch.node("MatMul", value, weight), axis=-1)
    return sketch.finish(value), feed


def _large_array(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Sums of rows of an array that begins anywhere in memory, so large that a GPU reads it where it lies."""
    sketch, whole = Sketch("large"), _values(generator, (300 * 600 + 3,), np.float32)
    tripled = sketch.node("Mul", sketch.input("x", (300, 600)), sketch.constant(np.float32(3)))
    sums = sketch.node("ReduceSum", tripled, sketch.constant(np.array([1])), keepdims=0)
    return sketch.finish(sums), {"x": whole[3:].reshape(300, 600)}


def _all() -> Iterator[Case]:
    f16: dict[str, Any] = {"dtype": np.float16}

    def case(
        family: str,
        name: str,
        build: Any,
        tolerance: float = FLOAT32_TOLERANCE,
        precision: str = "highest",
        **others: Any,
    ) -> Case:
        return Case(f"{family} {name}", family, build, tolerance, precision, **others)

    yield case("elementwise", "fp32 add", _simple("Add", (3, 1001), (3, 1001)))
    yield case("elementwise", "fp32 exp", _simple("Exp", (777,)))
    yield case("elementwise", "fp32 erf", _simple("Erf", (777,)))
    yield case("elementwise", "fp16 multiply", _simple("Mul", (5, 77), (5, 77), **f16), FLOAT16_TOLERANCE)
    yield case("elementwise", "fp16 tanh", _simple("Tanh", (333,), **f16), FLOAT16_TOLERANCE)
    yield case("elementwise", "int32 subtract", _simple("Sub", (13, 7), (13, 7), dtype=np.int32))
    yield case("elementwise", "int64 multiply", _simple("Mul", (13, 7), (13, 7), dtype=np.int64))
    yield case("elementwise", "bool and", _simple("And", (65,), (65,), dtype=np.bool_))
    yield case("elementwise", "fp32 to int32", _simple("Cast", (129,), to=6))
    for dtype in (dtypes.BFLOAT16, dtypes.FLOAT8E4M3FN):
        yield case("elementwise", f"fp32 to {dtype.name} and back", _rounded(dtype.code))
    yield case("elementwise", "compare", _simple("Greater", (129,), (129,)))
    yield case("broadcast", "rows and columns", _simple("Add", (4, 1, 9), (6, 1)))
    yield case("broadcast", "scalar", _simple("Mul", (4, 5, 6), ()))
    yield case("broadcast", "fused chain", _chain)
    yield case("elementwise", "tensors side by side", _side_by_side)
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd"):
        axes = np.array([1], np.int64)
        yield case("reduce", f"{op} middle axis", _simple(op, (3, 17, 5), constants=[axes], keepdims=0))
    yield case("reduce", "columns", _simple("ReduceSum", (1033, 70), constants=[np.array([0])], keepdims=0))
    yield case("reduce", "several of products", _sums)
    statistics = ((6,),) * 4
    yield case(
        "reduce",
        "mean and variance",
        _simple("BatchNormalization", (4, 6, 7, 9), *statistics, training_mode=1),
    )
    yield case("reduce", "sum of all", _simple("ReduceSum", (5, 1033), keepdims=0))
    yield case("reduce", "int32 sum", _simple("ReduceSum", (5, 33), dtype=np.int32, keepdims=0))
    yield case("reduce", "ArgMax", _simple("ArgMax", (7, 100), axis=1, keepdims=0))
    yield case("scan", "CumSum of rows", _simple("CumSum", (5, 700), constants=[np.array(1)]))
    yield case(
        "scan",
        "CumSum of columns, backwards",
        _simple("CumSum", (40, 9), constants=[np.array(0)], reverse=1, exclusive=1),
    )
    yield case("sort", "TopK", _simple("TopK", (3, 2500), constants=[np.array([40])]))
    yield case("sort", "most of rows", _simple("TopK", (3, 2500), constants=[np.array([2000])]))
    yield case("softmax", "last axis", _simple("Softmax", (5, 1000), axis=-1))
    yield case("softmax", "middle axis", _simple("Softmax", (3, 7, 5), axis=1))
    yield case("softmax", "long columns", _simple("Softmax", (2100, 36), axis=0))
    yield case("softmax", "fp16", _simple("Softmax", (3, 65), axis=-1, **f16), FLOAT16_TOLERANCE)
    scale, shift = np.linspace(0.5, 1.5, 96, dtype=np.float32), np.linspace(-1, 1, 96, dtype=np.float32)
    yield case(
        "layer norm", "96 wide", _simple("LayerNormalization", (4, 7, 96), constants=[scale, shift], axis=-1)
    )
    yield case(
        "group norm",
        "3 groups",
        _simple("GroupNormalization", (2, 6, 5, 7), constants=[scale[:6], shift[:6]], num_groups=3),
    )
    yield case(
        "instance norm",
        "6 channels",
        _simple("InstanceNormalization", (2, 6, 9, 5), constants=[scale[:6], shift[:6]]),
    )
    yield case("matmul", "fp32 square", _weighted("MatMul", (65, 127), (127, 66)))
    yield case("matmul", "fp32 tiles", _weighted("MatMul", (128, 64), (64, 128)))
    yield case("matmul", "fp16", _weighted("MatMul", (64, 96), (96, 64), **f16), FLOAT16_TOLERANCE)
    yield case("matmul", "batched", _simple("MatMul", (3, 2, 17, 9), (2, 9, 21)))
    yield case("matmul", "few rows by weights of 8 bits", _dequantized(2))
    yield case("matmul", "few rows by weights of 4 bits", _dequantized_in_blocks(2))
    yield case("matmul", "rows by weights of 4 bits", _dequantized_in_blocks(20))
    yield case("matmul", "rows by weights of 8 bits", _dequantized(20))
    table = (np.arange(256 * 132) % 251 - 125).astype(np.int8)
    i8 = {"dtype": np.int8}
    yield case(
        "matmul",
        "8-bit integers",
        _simple("MatMulInteger", (130, 256), constants=[table.reshape(256, 132)], **i8),
    )
    # Large enough for matrix units.
    large = (np.arange(512 * 1040) % 253 - 126).astype(np.int8)
    yield case(
        "matmul",
        "8-bit integers by constant ones, many",
        _simple("MatMulInteger", (520, 512), constants=[large.reshape(512, 1040)], **i8),
    )
    many = _simple("MatMulInteger", (520, 512), (512, 1040), dtype=np.int8)
    yield case("matmul", "8-bit integers, many", many)
    yield case(
        "matmul", "8-bit integers of a run", _simple("MatMulInteger", (260, 515), (515, 262), dtype=np.int8)
    )
    yield case("matmul", "vector by matrix", _weighted("MatMul", (1, 300), (300, 129)))
    yield case("matmul", "normalised rows", _normalised_rows)
    yield case("matmul", "Gemm, transposed", _weighted("Gemm", (4, 70), (33, 70), 33, transB=1))
    high = HIGH_TOLERANCE, "high"
    # Large enough for the kernels that a GPU's matrix units have; tiles and ranges of K where it has none.
    yield case(
        "matmul", "constant weights, precision high", _weighted("MatMul", (70, 512), (512, 136)), *high
    )
    yield case("matmul", "rows by weights of 8 bits, precision high", _dequantized(70, 512, 512), *high)
    yield case(
        "matmul", "rows by weights of 4 bits, precision high", _dequantized_in_blocks(70, 512, 512), *high
    )
    yield case("matmul", "two of the same rows, precision high", _same_rows, *high)
    yield case("matmul", "two operands, precision high", _simple("MatMul", (380, 510), (510, 770)), *high)
    for words, k, n in (("", 510, 770), (" in whole words", 512, 768)):
        yield case(
            "matmul",
            f"two operands{words}, fp16, precision high",
            _simple("MatMul", (380, k), (k, n), **f16),
            FLOAT16_TOLERANCE,
            "high",
        )
    # More than a pass over one of them would gain.
    squares = _simple("MatMul", (768, 768), (768, 768), **f16)
    yield case("matmul", "two operands, many, fp16, precision high", squares, FLOAT16_TOLERANCE, "high")
    across = _simple("Gemm", (512, 768), (512, 768), transA=1)
    yield case("matmul", "rows across memory, precision high", across, *high)
    yield case(
        "matmul",
        "constant weights, fp16, precision high",
        _weighted("MatMul", (380, 510), (510, 770), **f16),
        FLOAT16_TOLERANCE,
        "high",
    )
    yield case("matmul", "large tiles", _simple("MatMul", (1030, 250), (250, 1030)))
    yield case("matmul", "ranges of K", _simple("MatMul", (380, 510), (510, 770)))
    yield case("matmul", "ranges of K, few rows", _weighted("MatMul", (2, 16384), (16384, 24)))
    yield case("matmul", "ranges of K, precision high", _weighted("MatMul", (40, 3072), (3072, 136)), *high)
    yield case("attention", "two heads", _attention(2, 3, 19, 16))
    yield case("attention", "few rows", _attention(2, 3, 9, 16, has_mask=True))
    yield case("attention", "a long past", _decoding)
    yield case("attention", "fp32, precision high", _attention(1, 2, 70, 64), *high)
    yield case("attention", "fp32, precision high, masked", _attention(1, 2, 70, 40, has_mask=True), *high)
    # Separate kernels round scores up to 40 to fp16, by 1/64 at most, before they divide them by 8.
    yield case("attention", "fp16, precision high", _attention(1, 2, 70, 64, **f16), 2**-7, "high")
    k3 = {"kernel_shape": (3, 3)}
    images = _weighted("Conv", (4, 64, 28, 28), (64, 64, 3, 3), 64, pads=(1, 1, 1, 1), **k3)
    pixels = _weighted("Conv", (4, 128, 28, 28), (128, 128, 1, 1), 128, kernel_shape=(1, 1))
    yield case("convolution", "fp32, many", images)
    yield case("convolution", "fp32, many, 1×1", pixels)
    yield case("convolution", "fp32, precision high", images, *high)
    yield case(
        "convolution",
        "fp32, precision high, small images",
        _weighted("Conv", (8, 128, 7, 7), (128, 128, 3, 3), 128, pads=(1, 1, 1, 1), **k3),
        *high,
    )
    yield case(
        "convolution",
        "fp32, precision high, three channels",
        _weighted("Conv", (2, 3, 96, 96), (32, 3, 3, 3), 32, pads=(1, 1, 1, 1), **k3),
        *high,
    )
    yield case("convolution", "fp32, precision high, 1×1", pixels, *high)
    yield case(
        "convolution", "3×3", _weighted("Conv", (2, 5, 13, 11), (7, 5, 3, 3), 7, pads=(1, 1, 1, 1), **k3)
    )
    yield case(
        "convolution", "1×1", _weighted("Conv", (1, 24, 9, 9), (17, 24, 1, 1), 17, kernel_shape=(1, 1))
    )
    yield case(
        "convolution",
        "stride, dilation, groups",
        _weighted("Conv", (1, 6, 15, 15), (4, 3, 3, 3), 4, group=2, strides=(2, 2), dilations=(2, 2), **k3),
    )
    yield case(
        "convolution", "1-D", _weighted("Conv", (2, 3, 50), (4, 3, 5), 4, kernel_shape=(5,), pads=(2, 2))
    )
    yield case(
        "convolution", "3-D", _weighted("Conv", (1, 2, 6, 7, 8), (3, 2, 3, 3, 3), 3, kernel_shape=(3, 3, 3))
    )
    yield case(
        "convolution",
        "fp16",
        _weighted("Conv", (1, 8, 9, 9), (8, 8, 3, 3), 8, **k3, **f16),
        FLOAT16_TOLERANCE,
    )
    filters = table[: 32 * 24 * 9].reshape(32, 24, 3, 3)
    yield case(
        "convolution",
        "8-bit integers",
        _simple("ConvInteger", (1, 24, 9, 9), constants=[filters], pads=(1, 1, 1, 1), **i8),
    )
    # Whose channels lie side by side on matrix units.
    filters = large[: 64 * 64 * 9].reshape(64, 64, 3, 3)
    yield case(
        "convolution",
        "8-bit integers, many",
        _simple("ConvInteger", (4, 64, 28, 28), constants=[filters], pads=(1, 1, 1, 1), **i8),
    )
    yield case("convolution", "epilogue", _convolution_epilogue)
    same, pool = {"pads": (1, 1, 1, 1), **k3}, {"kernel_shape": (2, 2), "strides": (2, 2)}
    yield case(
        "convolution", "pooled", _layers((1, 8, 14, 14), ("Conv", (16, 8, 3, 3), same), ("MaxPool", (), pool))
    )
    yield case(
        "convolution",
        "inverted residual",
        _layers(
            (1, 24, 14, 14),
            ("Conv", (96, 24, 1, 1), {}),
            ("Relu", (), {}),
            ("Conv", (96, 1, 3, 3), {"group": 96, **same}),
            ("Relu", (), {}),
            ("Conv", (24, 96, 1, 1), {}),
        ),
    )
    yield case(
        "convolution",
        "means",
        _layers(
            (1, 64, 7, 7), ("Conv", (256, 64, 1, 1), {}), ("Relu", (), {}), ("GlobalAveragePool", (), {})
        ),
    )
    yield case(
        "convolution",
        "transposed",
        _weighted("ConvTranspose", (1, 6, 7, 5), (6, 4, 3, 3), 4, strides=(2, 2), pads=(1, 1, 1, 1), **k3),
    )
    yield case(
        "depthwise",
        "3×3",
        _weighted("Conv", (1, 12, 14, 14), (12, 1, 3, 3), 12, group=12, pads=(1, 1, 1, 1), **k3),
    )
    yield case("pool", "maximum", _simple("MaxPool", (1, 5, 12, 10), **pool))
    yield case("pool", "average", _simple("AveragePool", (1, 5, 13, 11), pads=(1, 1, 1, 1), **k3))
    yield case("pool", "maximum with places", _outputs("MaxPool", 2, (1, 5, 13, 11), pads=(1, 1, 1, 1), **k3))
    regions = np.array([[1, 1, 8, 6], [0, 2, 12, 10], [3, 0, 7, 9]], np.float32)
    yield case(
        "pool",
        "regions",
        _simple(
            "RoiAlign",
            (2, 3, 13, 11),
            constants=[regions, np.array([0, 1, 1])],
            output_height=3,
            output_width=2,
            sampling_ratio=2,
        ),
    )
    yield case("pool", "global", _simple("GlobalAveragePool", (2, 9, 7, 7)))
    yield case("gather", "rows", _gather([[0, 10, -1], [3, 3, 7]], 0))
    yield case("gather", "middle axis", _gather([5, 0], 1))
    pairs = np.array([[[0, 2], [3, 1]], [[1, 1], [-1, 0]]])
    numbers = np.linspace(-1, 1, 60, dtype=np.float32).reshape(4, 3, 5)
    yield case(
        "gather", "elements", _given("GatherElements", numbers, np.array([[[0, 4, -1]] * 3] * 4), axis=2)
    )
    yield case("gather", "tuples", _given("GatherND", numbers, pairs))
    updates = np.linspace(3, 4, 24, dtype=np.float32)
    yield case(
        "scatter",
        "elements",
        _given("ScatterElements", numbers, np.array([[[0, 4]] * 3] * 4), updates.reshape(4, 3, 2), axis=2),
    )
    yield case(
        "scatter",
        "tuples",
        _given("ScatterND", numbers, np.array([[2, 0], [0, 1], [3, 2]]), np.resize(updates, (3, 5))),
    )
    slices, few = np.resize(numbers, (6, 40)), np.array([[2], [0], [2]])
    yield case(
        "scatter",
        "added slices",
        _given("ScatterND", slices, few, np.resize(updates, (3, 40)), reduction="add"),
    )
    yield case(
        "pad",
        "reflected",
        _simple("Pad", (3, 5, 7), constants=[np.array([1, 0, 3, 2, 1, 0])], mode="reflect"),
    )
    yield case("concat", "middle axis", _simple("Concat", (2, 3, 5), (2, 7, 5), axis=1))
    yield case("concat", "last axis", _simple("Concat", (4, 3), (4, 6), axis=-1))
    yield case("transpose", "matrix", _simple("Transpose", (65, 33), perm=(1, 0)))
    yield case("transpose", "large matrix", _simple("Transpose", (364, 368), perm=(1, 0)))
    yield case("transpose", "large matrix, odd sides", _simple("Transpose", (365, 367), perm=(1, 0)))
    yield case("transpose", "four axes", _simple("Transpose", (2, 3, 5, 7), perm=(0, 2, 3, 1)))
    double = [None, np.array([1, 1, 2, 2], np.float32)]
    floor = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    yield case(
        "resize", "nearest", _simple("Resize", (1, 3, 5, 7), constants=double, mode="nearest", **floor)
    )
    yield case("resize", "many results", _simple("Resize", (1, 4, 128, 128), constants=double, mode="linear"))
    yield case("resize", "linear", _simple("Resize", (1, 3, 5, 7), constants=double, mode="linear"))
    yield case("recurrent", "LSTM, few units", _recurrent("LSTM", 4, 19))
    yield case("recurrent", "LSTM, many units", _recurrent("LSTM", 4, 200))
    yield case("recurrent", "GRU", _recurrent("GRU", 3, 24))
    yield case("recurrent", "RNN", _recurrent("RNN", 1, 5))
    yield case("matmul", "small layers behind one another", _small_layers)
    yield case("gradients", "maximum", maximum_gradient, answer=maximum_gradient_answer)
    # Scores' gradients are differences: of ten bits some are off by 5e-3 (lavapipe's units, by force).
    yield case(
        "gradients",
        "attention, precision high",
        attention_gradients,
        2**-6,
        "high",
        answer=attention_gradients_answer,
    )
    yield case("loop", "ended by its values", loop, answer=loop_answer)
    yield case("host", "an array read where it lies", _large_array, is_bound=True)


CASES: tuple[Case, ...] = tuple(_all())
