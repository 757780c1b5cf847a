"""What is measured of each kernel family: models of one operator, and what bounds them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.ir.dtypes import DType
from vkml.ir.graph import Graph

Array = np.ndarray[Any, Any]
_BLOCK = (1 << 20) - 192
"""Numbers that are drawn, no power of two; tensors hold them again and again, for drawing hundreds of MB
takes seconds. Whole lines in any type: an H200 copies what begins between words so slowly that nothing was
measured in a minute."""
CONSTANT_SEED = 1
"""Of a product's constant operand, and of its second one, too."""
_ROW = 1024
"""Elements of a row that is normalised, or gathered."""
_VOCABULARY = 50257
"""Elements of a row of which a language model's next word is drawn."""


@dataclass(frozen=True)
class Case:
    """One operator at one size.

    Attributes:
        family: of kernels.
        label: what the table calls it.
        build: makes the model.
        precision: of the session.
        operations: that the result takes, multiplications and additions; 0 where bytes bound it.
        units: whose rate bounds the operations: an element type of matrix units.
        products: of the units for one of the case's.
        peer: what PyTorch is asked for, and its numbers; None where it is not asked.
        is_product: of two matrices, whose result is compared with float64.
    """

    family: str
    label: str
    build: Callable[[], Graph]
    precision: str = "high"
    operations: float = 0
    units: str = "float16"
    products: int = 1
    peer: tuple[Any, ...] | None = None
    is_product: bool = False


@dataclass(frozen=True)
class Sizes:
    """How large it all is; as large as it should be for a GPU of today."""

    side: int = 8192
    """Of the large square matrices."""
    elements: int = 1 << 26
    """Of float32 that kernels pass over that memory bounds: 256 MiB."""
    length: int = 4096
    """Of attention's sequences."""


@functools.lru_cache(maxsize=64)
def block(dtype: DType, count: int, seed: int) -> Array:
    """So many normal numbers, at the most, of which a tensor consists; integers of all of their range."""
    generator = np.random.default_rng(seed)
    count = min(_BLOCK, count)
    if dtype.is_float:
        return generator.standard_normal(count, np.float32).astype(dtype.storage)
    limits = np.iinfo(dtype.storage)
    return generator.integers(limits.min, limits.max, count, dtype.storage, endpoint=True)


def numbers(dims: Sequence[int], dtype: DType, seed: int = 0) -> Array:
    """A tensor of a block's numbers, again and again."""
    return np.resize(block(dtype, math.prod(dims), seed), tuple(dims))


def numbers_at(dims: Sequence[int], dtype: DType, seed: int, rows: Array, columns: Array) -> Array:
    """What the matrix `numbers` has where some rows meet some columns, in float64."""
    source = block(dtype, math.prod(dims), seed)
    picked: Array = source[(rows[:, None] * dims[1] + columns) % len(source)]
    return picked.astype(np.float64)


def cases(sizes: Sizes) -> Iterator[Case]:
    """All of them, family by family."""
    yield from _matrix_products(sizes)
    yield from _attention(sizes.length)
    yield from _passes(sizes.elements)
    yield from _rows_times_matrix(sizes.side)
    yield from _convolutions(sizes)
    yield from _batches(sizes)
    yield from _other_attention(sizes.length)
    yield from _other_convolutions(sizes)
    yield from _few_bits(sizes.side)
    yield from _other_passes(sizes.elements)
    yield _recurrent(sizes.side)


def _matrix_products(sizes: Sizes) -> Iterator[Case]:
    """Square products: whole tiles, sizes that are no multiple of one, and small ones."""
    side = sizes.side
    kinds = (
        ("fp16", dtypes.FLOAT16, "high", "float16", 1, "fp16"),
        ("bf16", dtypes.BFLOAT16, "high", "bfloat16", 1, "bf16"),
        ("fp32, high", dtypes.FLOAT32, "high", "float16", 1, "tf32"),
        ("fp32, highest", dtypes.FLOAT32, "highest", "float16", 3, "fp32"),
        ("int8 → int32", dtypes.INT8, "high", "int8", 1, "int8"),
    )
    for kind, dtype, precision, units, products, mode in kinds:
        for size, is_constant in (
            (side, True),
            (side, False),
            (side * 1000 // 1024, True),
            (side - 1, False),
            (side // 8, True),
            (side // 8, False),
        ):
            yield Case(
                "matmul",
                f"{kind}, {size}³, {'one operand constant' if is_constant else 'no constant'}",
                product(size, size, dtype, is_constant=is_constant),
                precision,
                2 * size**3,
                units,
                products,
                None if is_constant else ("matmul", mode, size),
                is_product=True,
            )
    yield Case(
        "matmul",
        f"int8 → int8 (QLinearMatMul), {side}³, one operand constant",
        _quantized_product(side),
        operations=2 * side**3,
        units="int8",
    )


def product(rows: int, side: int, dtype: DType, *, is_constant: bool) -> Callable[[], Graph]:
    """A product of so many rows and a square matrix, which may be constant."""

    def build() -> Graph:
        sketch = Sketch("product")
        a = sketch.input("a", (rows, side), dtype)
        if is_constant:
            b = sketch.constant(numbers((side, side), dtype, CONSTANT_SEED))
        else:
            b = sketch.input("b", (side, side), dtype)
        return sketch.finish(sketch.node("MatMul" if dtype.is_float else "MatMulInteger", a, b))

    return build


def _batches(sizes: Sizes) -> Iterator[Case]:
    """Several products at a time, as of heads, and of few rows."""
    batch, side = 96, max(16, sizes.side // 16)
    for kind, dtype, precision in (
        ("fp16", dtypes.FLOAT16, "high"),
        ("fp32, high", dtypes.FLOAT32, "high"),
        ("fp32, highest", dtypes.FLOAT32, "highest"),
    ):
        yield Case(
            "batched",
            f"{kind}, {batch} × {side} × {side} × 64",
            _node("MatMul", ((batch, side, 64), dtype), ((batch, 64, side), dtype)),
            precision,
            2 * batch * side**2 * 64,
            products=3 if precision == "highest" else 1,
        )
    for rows in (2, 4):
        build = product(rows, sizes.side, dtypes.FLOAT32, is_constant=True)
        yield Case("gemv", f"fp32, {rows} × {sizes.side}²", build, "highest")


def _few_bits(side: int) -> Iterator[Case]:
    """Products by weights of four and eight bits with a scale for each 32: of a row, and of many."""
    side -= side % 32
    weights = np.random.default_rng(1).integers(-8, 8, (side, side), np.int8)
    for bits, dtype in ((4, dtypes.INT4), (8, dtypes.INT8)):
        for rows in (1, 16, 128):
            yield Case(
                "weight-only",
                f"{rows} × {side}², {bits} bits",
                _dequantized(rows, weights.astype(dtype.storage)),
                operations=2 * rows * side**2 if rows > 16 else 0,
            )


def _dequantized(rows: int, weights: Array) -> Callable[[], Graph]:
    def build() -> Graph:
        sketch = Sketch("weight-only", 21)
        side = len(weights)
        x = sketch.input("x", (rows, side), dtypes.FLOAT32)
        scales = sketch.constant(np.full((side // 32, side), 0.01, np.float32))
        held = sketch.node("DequantizeLinear", sketch.constant(weights), scales, axis=0, block_size=32)
        return sketch.finish(sketch.node("MatMul", x, held))

    return build


def _recurrent(side: int) -> Case:
    hidden, steps = max(16, side // 32), max(8, side // 64)
    shapes = ((2, 4 * hidden, hidden), (2, 4 * hidden, hidden))
    weights = [numbers(shape, dtypes.FLOAT32, 1) * np.float32(hidden**-0.5) for shape in shapes]
    return Case(
        "recurrent",
        f"LSTM, both ways, {hidden}, {steps} steps",
        _node(
            "LSTM",
            ((steps, 1, hidden), dtypes.FLOAT32),
            *weights,
            hidden_size=hidden,
            direction="bidirectional",
        ),
        operations=2 * 2 * steps * 8 * hidden**2,
    )


def _quantized_product(side: int) -> Callable[[], Graph]:
    def build() -> Graph:
        sketch = Sketch("product")
        zero = sketch.constant(np.int8(0))
        scales = [sketch.constant(np.float32(x)) for x in (0.05, 0.05, 0.05 * side**0.5)]
        a = sketch.input("a", (side, side), dtypes.INT8)
        b = sketch.constant(numbers((side, side), dtypes.INT8, 1))
        return sketch.finish(
            sketch.node("QLinearMatMul", a, scales[0], zero, b, scales[1], zero, scales[2], zero)
        )

    return build


def _rows_times_matrix(side: int) -> Iterator[Case]:
    """Products of one row, which read the matrix and do little else."""
    for kind, dtype in (("fp32", dtypes.FLOAT32), ("fp16", dtypes.FLOAT16)):
        yield Case("gemv", f"{kind}, 1 × {side}²", product(1, side, dtype, is_constant=True), "highest")


def _node(
    op: str,
    *inputs: tuple[Sequence[int], DType] | Array,
    opset: int = 20,
    **attributes: Any,
) -> Callable[[], Graph]:
    """A model of one operator; arrays among its inputs are constants."""

    def build() -> Graph:
        sketch = Sketch(op, opset)
        names = []
        for index, given in enumerate(inputs):
            if isinstance(given, np.ndarray):
                names.append(sketch.constant(given))
            else:
                names.append(sketch.input(f"x{index}", *given))
        return sketch.finish(sketch.node(op, *names, **attributes))

    return build


def _convolutions(sizes: Sizes) -> Iterator[Case]:
    """Layers of common networks, channels first, as models have them."""
    batch = max(1, sizes.side // 256)
    for label, channels, filters, side, kernel in (
        ("3×3", 256, 256, 14, 3),
        ("3×3", 64, 64, 56, 3),
        ("1×1", 256, 1024, 14, 1),
    ):
        weights = numbers((filters, channels, kernel, kernel), dtypes.FLOAT32, 1)
        pixels = batch * side * side
        for precision, products in (("high", 1), ("highest", 3)):
            yield Case(
                "convolution",
                f"{label}, batch {batch}, {channels} → {filters}, {side}², fp32, {precision}",
                _node(
                    "Conv",
                    ((batch, channels, side, side), dtypes.FLOAT32),
                    weights,
                    pads=[kernel // 2] * 4,
                ),
                precision,
                2 * pixels * filters * channels * kernel**2,
                products=products,
            )
    for images, channels, side, kernel, stride in (
        (batch, 144, 56, 3, 1),
        (batch, 96, 112, 3, 2),
        (batch, 96, 56, 7, 1),
        (1, 192, 28, 3, 1),
        (1, 960, 7, 3, 1),
    ):
        step = f", every {stride}nd" if stride > 1 else ""
        yield Case(
            "convolution",
            f"depthwise {kernel}×{kernel}{step}, batch {images}, {channels}, {side}², fp32",
            _node(
                "Conv",
                ((images, channels, side, side), dtypes.FLOAT32),
                numbers((channels, 1, kernel, kernel), dtypes.FLOAT32, 1),
                pads=[kernel // 2] * 4,
                strides=[stride] * 2,
                group=channels,
            ),
        )


def _other_convolutions(sizes: Sizes) -> Iterator[Case]:
    """Of one axis and of three, transposed, of groups, of bytes."""
    batch, single = max(1, sizes.side // 256), dtypes.FLOAT32

    def case(
        op: str, label: str, shape: tuple[int, ...], weights: tuple[int, ...], **attributes: Any
    ) -> Case:
        held = numbers(weights, single, 1)
        filters = weights[1] if op == "ConvTranspose" else weights[0]
        size = "×".join(map(str, shape[2:]))
        return Case(
            "convolution",
            f"{label}, batch {shape[0]}, {shape[1]} → {filters}, {size}, fp32, high",
            _node(op, (shape, single), held, **attributes),
            operations=2 * (math.prod(shape) // shape[1]) * held.size,
        )

    wide = (batch, 256, 28, 28)
    yield case("Conv", "3 of one axis", (batch, 256, 1024), (256, 256, 3), pads=[1, 1])
    yield case("Conv", "3×3×3", (1, 64, 32, 32, 32), (64, 64, 3, 3, 3), pads=[1] * 6)
    yield case("Conv", "3×3 in 32 groups", wide, (256, 8, 3, 3), pads=[1] * 4, group=32)
    yield case("Conv", "3×3 of dilation 2", wide, (256, 256, 3, 3), pads=[2] * 4, dilations=[2, 2])
    images, filters = (batch, 128, 28, 28), (128, 64, 4, 4)
    yield case("ConvTranspose", "transposed 4×4, every 2nd", images, filters, pads=[1] * 4, strides=[2, 2])
    weights = numbers((256, 256, 3, 3), dtypes.INT8, 1)
    yield Case(
        "convolution",
        f"3×3, batch {batch}, 256 → 256, 14², int8",
        _node("ConvInteger", ((batch, 256, 14, 14), dtypes.INT8), weights, pads=[1] * 4),
        operations=2 * batch * 14 * 14 * weights.size,
        units="int8",
    )


HEADS, HEAD_SIZE = 16, 128


def _attention(length: int) -> Iterator[Case]:
    shape = (1, HEADS, length, HEAD_SIZE)
    for is_causal in (False, True):
        yield Case(
            "attention",
            f"{HEADS} heads × {length} × {HEAD_SIZE}, fp16{', causal' if is_causal else ''}",
            _node("Attention", *[(shape, dtypes.FLOAT16)] * 3, opset=23, is_causal=int(is_causal)),
            operations=4 * HEADS * length**2 * HEAD_SIZE / (2 if is_causal else 1),
            peer=("attention", shape, is_causal),
        )


def _other_attention(length: int) -> Iterator[Case]:
    """Of float32, of keys that heads share, by a mask, and of one new token."""
    shape = (1, HEADS, length, HEAD_SIZE)
    short = (1, HEADS, length // 2, HEAD_SIZE)
    few = (1, HEADS // 4, length, HEAD_SIZE)
    single, half = dtypes.FLOAT32, dtypes.FLOAT16
    work = 4 * HEADS * length**2 * HEAD_SIZE
    size = f"{HEADS} heads × {length} × {HEAD_SIZE}"
    yield Case(
        "attention",
        f"{HEADS} heads × {length // 2} × {HEAD_SIZE}, fp32, high",
        _node("Attention", *[(short, single)] * 3, opset=23),
        operations=work / 4,
    )
    yield Case(
        "attention",
        f"{size}, fp16, keys of {HEADS // 4} heads",
        _node("Attention", (shape, half), (few, half), (few, half), opset=23),
        operations=work,
    )
    mask = np.zeros((length, length), np.float16)
    yield Case(
        "attention",
        f"{size}, fp16, mask",
        _node("Attention", *[(shape, half)] * 3, mask, opset=23),
        operations=work,
    )
    one = (1, 2 * HEADS, 1, HEAD_SIZE)
    past = (1, 2 * HEADS, length, HEAD_SIZE)
    yield Case(
        "attention",
        f"one token, {2 * HEADS} heads × {length} × {HEAD_SIZE}, fp16",
        _node("Attention", (one, half), (past, half), (past, half), opset=23),
    )


def _other_passes(elements: int) -> Iterator[Case]:
    """Borders, regions, and elements by places."""
    single = dtypes.FLOAT32
    rows = elements // _ROW
    images = (max(1, elements >> 20), 64, 128, 128) if elements >= 1 << 20 else (1, 4, 16, elements // 64)
    yield Case("pad", "one pixel round images", _node("Pad", (images, single), np.array([0, 0, 1, 1] * 2)))
    yield Case(
        "slice",
        "every 2nd pixel",
        _node("Slice", (images, single), *map(np.array, ([0, 0], [9999] * 2, [2, 3], [2, 2]))),
    )
    order = np.random.default_rng(0).permutation(rows)
    yield Case(
        "gather", f"GatherND, rows of {_ROW}", _node("GatherND", ((rows, _ROW), single), order[:, None])
    )
    yield Case("reduce", "means of channels", _node("GlobalAveragePool", (images, single)))
    boxes = np.tile(np.array([[1, 2, 90, 100]], np.float32), (max(1, rows // 64), 1))
    which = np.arange(len(boxes)) % images[0]
    yield Case(
        "regions",
        f"RoiAlign, {len(boxes)} of 7×7",
        _node("RoiAlign", (images, single), boxes, which, output_height=7, output_width=7, sampling_ratio=2),
    )


def _passes(elements: int) -> Iterator[Case]:
    """What memory bounds: each reads or writes so many numbers of float32."""
    single, half = dtypes.FLOAT32, dtypes.FLOAT16
    rows = elements // _ROW
    x = (rows, _ROW), single
    ones, zeros = np.ones(_ROW, np.float32), np.zeros(_ROW, np.float32)
    side = 1 << (elements.bit_length() - 1) // 2
    matrix = (elements // side, side), single
    images = (max(1, elements >> 20), 64, 128, 128) if elements >= 1 << 20 else (1, 4, 16, elements // 64)
    yield Case("elementwise", "Relu", _node("Relu", x))
    yield Case("elementwise", "Add of two tensors", _node("Add", x, x))
    yield Case("elementwise", "Div of two tensors", _node("Div", x, x))
    yield Case("elementwise", "Gelu", _node("Gelu", x))
    yield Case("elementwise", "fp32 → fp16", _node("Cast", x, to=dtypes.FLOAT16.code))
    yield Case("elementwise", "Add of a row", _node("Add", x, ones))
    yield Case("norm", f"LayerNormalization, rows of {_ROW}", _node("LayerNormalization", x, ones, zeros))
    yield Case("norm", f"RMSNormalization, rows of {_ROW}", _node("RMSNormalization", x, ones, opset=23))
    halves = (2 * rows, _ROW), half
    weights = ones.astype(np.float16), zeros.astype(np.float16)
    yield Case(
        "norm", f"LayerNormalization, rows of {_ROW}, fp16", _node("LayerNormalization", halves, *weights)
    )
    scales = np.ones(images[1], np.float32)
    yield Case(
        "norm",
        "GroupNormalization, 2 channels a group",
        _node("GroupNormalization", (images, single), scales, scales, opset=21, num_groups=images[1] // 2),
    )
    yield Case("softmax", f"rows of {_ROW}", _node("Softmax", x))
    yield Case("softmax", f"rows of {matrix[0][1]}", _node("Softmax", matrix))
    yield Case("softmax", "down the columns", _node("Softmax", matrix, axis=0))
    middle = (max(1, rows // _ROW), min(rows, _ROW), _ROW)
    yield Case("softmax", f"middle axis of {middle[1]}", _node("Softmax", (middle, single), axis=1))
    yield Case("softmax", f"rows of {_ROW}, fp16", _node("Softmax", halves))
    last, first = np.array([1]), np.array([0])
    yield Case("reduce", f"sums of rows of {_ROW}", _node("ReduceSum", x, last))
    yield Case("reduce", f"sums of columns of {matrix[0][0]}", _node("ReduceSum", matrix, first))
    yield Case("reduce", "the largest of all", _node("ReduceMax", x))
    yield Case("reduce", f"ArgMax of rows of {_ROW}", _node("ArgMax", x, axis=1))
    yield Case("reduce", f"ArgMax of columns of {matrix[0][0]}", _node("ArgMax", matrix, axis=0))
    yield Case("transpose", "matrix, fp32", _node("Transpose", matrix, perm=[1, 0]))
    yield Case("transpose", "matrix, fp16", _node("Transpose", (matrix[0], half), perm=[1, 0]))
    yield Case("transpose", "channels first → last", _node("Transpose", (images, single), perm=[0, 2, 3, 1]))
    heads = (rows // 64, 64, 16, _ROW // 16)
    yield Case("transpose", "heads", _node("Transpose", (heads, single), perm=[0, 2, 1, 3]))
    order = np.random.default_rng(0).permutation(rows)
    yield Case("gather", f"rows of {_ROW}", _node("Gather", x, order))
    yield Case(
        "scatter",
        f"rows of {_ROW}",
        _node("ScatterND", x, order[: rows // 2, None], ((rows // 2, _ROW), single)),
    )
    yield Case("scan", f"CumSum of rows of {_ROW}", _node("CumSum", x, np.array(1)))
    yield Case(
        "pooling", "largest of 3×3", _node("MaxPool", (images, single), kernel_shape=[3, 3], pads=[1] * 4)
    )
    scale = np.array([1, 1, 2, 2], np.float32)
    small = (*images[:2], images[2] // 2, images[3] // 2)
    yield Case(
        "resize",
        "linear, twice",
        _node("Resize", (small, single), np.zeros(0, np.float32), scale, mode="linear"),
    )
    yield Case("concat", "two matrices", _node("Concat", x, x, axis=1))
    yield Case("sort", f"TopK, 8 of rows of {_ROW}", _node("TopK", x, np.array([8])))
    for count in dict.fromkeys((max(1, elements // _VOCABULARY), 1)):
        logits = (count, min(_VOCABULARY, elements)), single
        case = f"TopK, 50 of {count} × {logits[0][1]}"
        yield Case("sort", case, _node("TopK", logits, np.array([50])))
