"""The known-answer cases: one small graph for each form that a kernel has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from vkml.engine.doctor_graphs import (
    attention,
    chain,
    convolution_epilogue,
    decoding,
    dequantized,
    dequantized_in_blocks,
    gather,
    given,
    large_array,
    layers,
    normalised_rows,
    outputs,
    recurrent,
    rounded,
    same_rows,
    side_by_side,
    simple,
    small_layers,
    sums,
    weighted,
)
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

    yield case("elementwise", "fp32 add", simple("Add", (3, 1001), (3, 1001)))
    yield case("elementwise", "fp32 exp", simple("Exp", (777,)))
    yield case("elementwise", "fp32 erf", simple("Erf", (777,)))
    yield case("elementwise", "fp16 multiply", simple("Mul", (5, 77), (5, 77), **f16), FLOAT16_TOLERANCE)
    yield case("elementwise", "fp16 tanh", simple("Tanh", (333,), **f16), FLOAT16_TOLERANCE)
    yield case("elementwise", "int32 subtract", simple("Sub", (13, 7), (13, 7), dtype=np.int32))
    yield case("elementwise", "int64 multiply", simple("Mul", (13, 7), (13, 7), dtype=np.int64))
    yield case("elementwise", "bool and", simple("And", (65,), (65,), dtype=np.bool_))
    yield case("elementwise", "fp32 to int32", simple("Cast", (129,), to=6))
    for dtype in (dtypes.BFLOAT16, dtypes.FLOAT8E4M3FN):
        yield case("elementwise", f"fp32 to {dtype.name} and back", rounded(dtype.code))
    yield case("elementwise", "compare", simple("Greater", (129,), (129,)))
    yield case("broadcast", "rows and columns", simple("Add", (4, 1, 9), (6, 1)))
    yield case("broadcast", "scalar", simple("Mul", (4, 5, 6), ()))
    yield case("broadcast", "fused chain", chain)
    yield case("elementwise", "tensors side by side", side_by_side)
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd"):
        axes = np.array([1], np.int64)
        yield case("reduce", f"{op} middle axis", simple(op, (3, 17, 5), constants=[axes], keepdims=0))
    yield case("reduce", "columns", simple("ReduceSum", (1033, 70), constants=[np.array([0])], keepdims=0))
    yield case("reduce", "several of products", sums)
    statistics = ((6,),) * 4
    yield case(
        "reduce",
        "mean and variance",
        simple("BatchNormalization", (4, 6, 7, 9), *statistics, training_mode=1),
    )
    yield case("reduce", "sum of all", simple("ReduceSum", (5, 1033), keepdims=0))
    yield case("reduce", "int32 sum", simple("ReduceSum", (5, 33), dtype=np.int32, keepdims=0))
    yield case("reduce", "ArgMax", simple("ArgMax", (7, 100), axis=1, keepdims=0))
    yield case("scan", "CumSum of rows", simple("CumSum", (5, 700), constants=[np.array(1)]))
    yield case(
        "scan",
        "CumSum of columns, backwards",
        simple("CumSum", (40, 9), constants=[np.array(0)], reverse=1, exclusive=1),
    )
    yield case("sort", "TopK", simple("TopK", (3, 2500), constants=[np.array([40])]))
    yield case("sort", "most of rows", simple("TopK", (3, 2500), constants=[np.array([2000])]))
    yield case("softmax", "last axis", simple("Softmax", (5, 1000), axis=-1))
    yield case("softmax", "middle axis", simple("Softmax", (3, 7, 5), axis=1))
    yield case("softmax", "long columns", simple("Softmax", (2100, 36), axis=0))
    yield case("softmax", "fp16", simple("Softmax", (3, 65), axis=-1, **f16), FLOAT16_TOLERANCE)
    scale, shift = np.linspace(0.5, 1.5, 96, dtype=np.float32), np.linspace(-1, 1, 96, dtype=np.float32)
    yield case(
        "layer norm", "96 wide", simple("LayerNormalization", (4, 7, 96), constants=[scale, shift], axis=-1)
    )
    yield case(
        "group norm",
        "3 groups",
        simple("GroupNormalization", (2, 6, 5, 7), constants=[scale[:6], shift[:6]], num_groups=3),
    )
    yield case(
        "instance norm",
        "6 channels",
        simple("InstanceNormalization", (2, 6, 9, 5), constants=[scale[:6], shift[:6]]),
    )
    yield case("matmul", "fp32 square", weighted("MatMul", (65, 127), (127, 66)))
    yield case("matmul", "fp32 tiles", weighted("MatMul", (128, 64), (64, 128)))
    yield case("matmul", "fp16", weighted("MatMul", (64, 96), (96, 64), **f16), FLOAT16_TOLERANCE)
    yield case("matmul", "batched", simple("MatMul", (3, 2, 17, 9), (2, 9, 21)))
    yield case("matmul", "few rows by weights of 8 bits", dequantized(2))
    yield case("matmul", "few rows by weights of 4 bits", dequantized_in_blocks(2))
    yield case("matmul", "rows by weights of 4 bits", dequantized_in_blocks(20))
    yield case("matmul", "rows by weights of 8 bits", dequantized(20))
    table = (np.arange(256 * 132) % 251 - 125).astype(np.int8)
    i8 = {"dtype": np.int8}
    yield case(
        "matmul",
        "8-bit integers",
        simple("MatMulInteger", (130, 256), constants=[table.reshape(256, 132)], **i8),
    )
    # Large enough for matrix units.
    large = (np.arange(512 * 1040) % 253 - 126).astype(np.int8)
    yield case(
        "matmul",
        "8-bit integers by constant ones, many",
        simple("MatMulInteger", (520, 512), constants=[large.reshape(512, 1040)], **i8),
    )
    many = simple("MatMulInteger", (520, 512), (512, 1040), dtype=np.int8)
    yield case("matmul", "8-bit integers, many", many)
    yield case(
        "matmul", "8-bit integers of a run", simple("MatMulInteger", (260, 515), (515, 262), dtype=np.int8)
    )
    # Of one step of K, which is not whole.
    short = simple("MatMulInteger", (200, 80), constants=[large[: 80 * 96].reshape(80, 96)], **i8)
    yield case("matmul", "8-bit integers, short lines", short)
    yield case("matmul", "vector by matrix", weighted("MatMul", (1, 300), (300, 129)))
    yield case("matmul", "normalised rows", normalised_rows)
    yield case("matmul", "Gemm, transposed", weighted("Gemm", (4, 70), (33, 70), 33, transB=1))
    high = HIGH_TOLERANCE, "high"
    # Large enough for the kernels that a GPU's matrix units have; tiles and ranges of K where it has none.
    yield case("matmul", "constant weights, precision high", weighted("MatMul", (70, 512), (512, 136)), *high)
    yield case("matmul", "rows by weights of 8 bits, precision high", dequantized(70, 512, 512), *high)
    yield case(
        "matmul", "rows by weights of 4 bits, precision high", dequantized_in_blocks(70, 512, 512), *high
    )
    yield case(
        "matmul",
        "many rows by weights of 4 bits, precision high",
        dequantized_in_blocks(300, 512, 512),
        *high,
    )
    yield case("matmul", "two of the same rows, precision high", same_rows, *high)
    yield case("matmul", "two operands, precision high", simple("MatMul", (380, 510), (510, 770)), *high)
    for words, k, n in (("", 510, 770), (" in whole words", 512, 768)):
        yield case(
            "matmul",
            f"two operands{words}, fp16, precision high",
            simple("MatMul", (380, k), (k, n), **f16),
            FLOAT16_TOLERANCE,
            "high",
        )
    # More than a pass over one of them would gain.
    squares = simple("MatMul", (768, 768), (768, 768), **f16)
    yield case("matmul", "two operands, many, fp16, precision high", squares, FLOAT16_TOLERANCE, "high")
    across = simple("Gemm", (512, 768), (512, 768), transA=1)
    yield case("matmul", "rows across memory, precision high", across, *high)
    yield case(
        "matmul",
        "constant weights, fp16, precision high",
        weighted("MatMul", (380, 510), (510, 770), **f16),
        FLOAT16_TOLERANCE,
        "high",
    )
    yield case("matmul", "large tiles", simple("MatMul", (1030, 250), (250, 1030)))
    yield case("matmul", "ranges of K", simple("MatMul", (380, 510), (510, 770)))
    yield case("matmul", "ranges of K, few rows", weighted("MatMul", (2, 16384), (16384, 24)))
    yield case("matmul", "ranges of K, precision high", weighted("MatMul", (40, 3072), (3072, 136)), *high)
    yield case("attention", "two heads", attention(2, 3, 19, 16))
    yield case("attention", "few rows", attention(2, 3, 9, 16, has_mask=True))
    yield case("attention", "a long past", decoding)
    yield case("attention", "fp32, precision high", attention(1, 2, 70, 64), *high)
    yield case("attention", "fp32, precision high, masked", attention(1, 2, 70, 40, has_mask=True), *high)
    # Separate kernels round scores up to 40 to fp16, by 1/64 at most, before they divide them by 8.
    yield case("attention", "fp16, precision high", attention(1, 2, 70, 64, **f16), 2**-7, "high")
    k3 = {"kernel_shape": (3, 3)}
    images = weighted("Conv", (4, 64, 28, 28), (64, 64, 3, 3), 64, pads=(1, 1, 1, 1), **k3)
    pixels = weighted("Conv", (4, 128, 28, 28), (128, 128, 1, 1), 128, kernel_shape=(1, 1))
    yield case("convolution", "fp32, many", images)
    yield case("convolution", "fp32, many, 1×1", pixels)
    yield case("convolution", "fp32, precision high", images, *high)
    yield case(
        "convolution",
        "fp32, precision high, small images",
        weighted("Conv", (8, 128, 7, 7), (128, 128, 3, 3), 128, pads=(1, 1, 1, 1), **k3),
        *high,
    )
    yield case(
        "convolution",
        "fp32, precision high, three channels",
        weighted("Conv", (2, 3, 96, 96), (32, 3, 3, 3), 32, pads=(1, 1, 1, 1), **k3),
        *high,
    )
    yield case("convolution", "fp32, precision high, 1×1", pixels, *high)
    yield case(
        "convolution", "3×3", weighted("Conv", (2, 5, 13, 11), (7, 5, 3, 3), 7, pads=(1, 1, 1, 1), **k3)
    )
    yield case("convolution", "1×1", weighted("Conv", (1, 24, 9, 9), (17, 24, 1, 1), 17, kernel_shape=(1, 1)))
    yield case(
        "convolution",
        "stride, dilation, groups",
        weighted("Conv", (1, 6, 15, 15), (4, 3, 3, 3), 4, group=2, strides=(2, 2), dilations=(2, 2), **k3),
    )
    grouped = weighted("Conv", (2, 128, 14, 14), (128, 4, 3, 3), 128, group=32, pads=(1, 1, 1, 1), **k3)
    yield case("convolution", "32 groups", grouped)
    yield case("convolution", "32 groups, precision high", grouped, *high)
    yield case(
        "convolution", "1-D", weighted("Conv", (2, 3, 50), (4, 3, 5), 4, kernel_shape=(5,), pads=(2, 2))
    )
    yield case(
        "convolution", "3-D", weighted("Conv", (1, 2, 6, 7, 8), (3, 2, 3, 3, 3), 3, kernel_shape=(3, 3, 3))
    )
    yield case(
        "convolution",
        "fp16",
        weighted("Conv", (1, 8, 9, 9), (8, 8, 3, 3), 8, **k3, **f16),
        FLOAT16_TOLERANCE,
    )
    filters = table[: 32 * 24 * 9].reshape(32, 24, 3, 3)
    yield case(
        "convolution",
        "8-bit integers",
        simple("ConvInteger", (1, 24, 9, 9), constants=[filters], pads=(1, 1, 1, 1), **i8),
    )
    # Whose channels lie side by side on matrix units.
    filters = large[: 64 * 64 * 9].reshape(64, 64, 3, 3)
    yield case(
        "convolution",
        "8-bit integers, many",
        simple("ConvInteger", (4, 64, 28, 28), constants=[filters], pads=(1, 1, 1, 1), **i8),
    )
    yield case("convolution", "epilogue", convolution_epilogue)
    same, pool = {"pads": (1, 1, 1, 1), **k3}, {"kernel_shape": (2, 2), "strides": (2, 2)}
    yield case(
        "convolution", "pooled", layers((1, 8, 14, 14), ("Conv", (16, 8, 3, 3), same), ("MaxPool", (), pool))
    )
    yield case(
        "convolution",
        "inverted residual",
        layers(
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
        layers((1, 64, 7, 7), ("Conv", (256, 64, 1, 1), {}), ("Relu", (), {}), ("GlobalAveragePool", (), {})),
    )
    yield case(
        "convolution",
        "transposed",
        weighted("ConvTranspose", (1, 6, 7, 5), (6, 4, 3, 3), 4, strides=(2, 2), pads=(1, 1, 1, 1), **k3),
    )
    yield case(
        "depthwise",
        "3×3",
        weighted("Conv", (1, 12, 14, 14), (12, 1, 3, 3), 12, group=12, pads=(1, 1, 1, 1), **k3),
    )
    yield case("pool", "maximum", simple("MaxPool", (1, 5, 12, 10), **pool))
    yield case("pool", "average", simple("AveragePool", (1, 5, 13, 11), pads=(1, 1, 1, 1), **k3))
    yield case("pool", "maximum with places", outputs("MaxPool", 2, (1, 5, 13, 11), pads=(1, 1, 1, 1), **k3))
    regions = np.array([[1, 1, 8, 6], [0, 2, 12, 10], [3, 0, 7, 9]], np.float32)
    yield case(
        "pool",
        "regions",
        simple(
            "RoiAlign",
            (2, 3, 13, 11),
            constants=[regions, np.array([0, 1, 1])],
            output_height=3,
            output_width=2,
            sampling_ratio=2,
        ),
    )
    yield case("pool", "global", simple("GlobalAveragePool", (2, 9, 7, 7)))
    yield case("gather", "rows", gather([[0, 10, -1], [3, 3, 7]], 0))
    yield case("gather", "middle axis", gather([5, 0], 1))
    pairs = np.array([[[0, 2], [3, 1]], [[1, 1], [-1, 0]]])
    numbers = np.linspace(-1, 1, 60, dtype=np.float32).reshape(4, 3, 5)
    yield case(
        "gather", "elements", given("GatherElements", numbers, np.array([[[0, 4, -1]] * 3] * 4), axis=2)
    )
    yield case("gather", "tuples", given("GatherND", numbers, pairs))
    updates = np.linspace(3, 4, 24, dtype=np.float32)
    yield case(
        "scatter",
        "elements",
        given("ScatterElements", numbers, np.array([[[0, 4]] * 3] * 4), updates.reshape(4, 3, 2), axis=2),
    )
    yield case(
        "scatter",
        "tuples",
        given("ScatterND", numbers, np.array([[2, 0], [0, 1], [3, 2]]), np.resize(updates, (3, 5))),
    )
    slices, few = np.resize(numbers, (6, 40)), np.array([[2], [0], [2]])
    yield case(
        "scatter",
        "added slices",
        given("ScatterND", slices, few, np.resize(updates, (3, 40)), reduction="add"),
    )
    yield case(
        "pad",
        "reflected",
        simple("Pad", (3, 5, 7), constants=[np.array([1, 0, 3, 2, 1, 0])], mode="reflect"),
    )
    yield case("concat", "middle axis", simple("Concat", (2, 3, 5), (2, 7, 5), axis=1))
    yield case("concat", "last axis", simple("Concat", (4, 3), (4, 6), axis=-1))
    yield case("transpose", "matrix", simple("Transpose", (65, 33), perm=(1, 0)))
    yield case("transpose", "large matrix", simple("Transpose", (364, 368), perm=(1, 0)))
    yield case("transpose", "large matrix, odd sides", simple("Transpose", (365, 367), perm=(1, 0)))
    yield case("transpose", "four axes", simple("Transpose", (2, 3, 5, 7), perm=(0, 2, 3, 1)))
    double = [None, np.array([1, 1, 2, 2], np.float32)]
    floor = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    yield case("resize", "nearest", simple("Resize", (1, 3, 5, 7), constants=double, mode="nearest", **floor))
    yield case("resize", "many results", simple("Resize", (1, 4, 128, 128), constants=double, mode="linear"))
    yield case("resize", "linear", simple("Resize", (1, 3, 5, 7), constants=double, mode="linear"))
    yield case("recurrent", "LSTM, few units", recurrent("LSTM", 4, 19))
    yield case("recurrent", "LSTM, many units", recurrent("LSTM", 4, 200))
    yield case("recurrent", "GRU", recurrent("GRU", 3, 24))
    yield case("recurrent", "RNN", recurrent("RNN", 1, 5))
    yield case("matmul", "small layers behind one another", small_layers)
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
    yield case("host", "an array read where it lies", large_array, is_bound=True)


CASES: tuple[Case, ...] = tuple(_all())
