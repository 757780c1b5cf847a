"""Products with dequantised constants: which stay of few bits, and that numbers stay the same."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vkml
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(4)
INNER, COLUMNS = 160, 112


def numbers(dtype: Any, *shape: int) -> Array:
    bits = {np.dtype(ml_dtypes.int2): 2, np.dtype(ml_dtypes.uint2): 2}.get(np.dtype(dtype), 4)
    bits = 8 if np.dtype(dtype) in (np.int8, np.uint8) else bits
    is_signed = "u" not in np.dtype(dtype).name
    low = -(1 << bits - 1) if is_signed else 0
    return RANDOM.integers(low, low + (1 << bits), shape).astype(dtype)


def product(
    dtype: Any,
    *,
    scale: tuple[int, ...] = (),
    op: str = "MatMul",
    is_turned: bool = False,
    is_transposed: bool = False,
    has_zero: bool = False,
    of: Any = np.float32,
    columns: int = COLUMNS,
    gemm: dict[str, Any] | None = None,
    bias: Array | None = None,
    **attributes: Any,
) -> Graph:
    """A matrix [k, n], or turned one, dequantised, perhaps transposed, times x [3, k]."""
    shape = (columns, INNER) if is_turned else (INNER, columns)
    sketch = Sketch("product")
    x = sketch.input("x", (3, INNER), vkml.ir.dtypes.from_numpy(np.dtype(of)))
    given = [numbers(dtype, *shape), ((0.5 + RANDOM.random(scale)) / 100).astype(of)]
    if has_zero:
        given.append(numbers(dtype, *scale))
    right = sketch.node("DequantizeLinear", *map(sketch.constant, given), **attributes)
    if is_transposed:
        right = sketch.node("Transpose", right, perm=[1, 0])
    others = [] if bias is None else [sketch.constant(bias)]
    return sketch.finish(sketch.node(op, x, right, *others, **(gemm or {})))


KEPT: dict[str, dict[str, Any]] = {
    "blocks of int4": {"dtype": ml_dtypes.int4, "scale": (5, COLUMNS), "axis": 0, "block_size": 32},
    "blocks of uint4 with zero points": {
        "dtype": ml_dtypes.uint4, "scale": (10, COLUMNS), "axis": 0, "block_size": 16, "has_zero": True,
    },
    "blocks of uint4, the last one short": {
        "dtype": ml_dtypes.uint4, "scale": (4, COLUMNS), "axis": -2, "block_size": 48,
    },
    "columns of int8": {"dtype": np.int8, "scale": (COLUMNS,), "axis": 1},
    "columns of uint8 with zero points": {
        "dtype": np.uint8, "scale": (COLUMNS,), "axis": -1, "has_zero": True,
    },
    "one scale of int2": {"dtype": ml_dtypes.int2, "has_zero": True},
    "transposed blocks": {
        "dtype": ml_dtypes.int4, "scale": (COLUMNS, 5), "axis": 1, "block_size": 32, "is_turned": True,
        "is_transposed": True, "has_zero": True,
    },
    "Gemm of rows": {
        "dtype": np.int8, "scale": (COLUMNS,), "axis": 0, "is_turned": True, "op": "Gemm",
        "gemm": {"transB": 1}, "bias": np.ones(COLUMNS, np.float32),
    },
    "Gemm of columns": {"dtype": ml_dtypes.uint2, "scale": (COLUMNS,), "axis": 1, "op": "Gemm"},
    "blocks of float16": {
        "dtype": ml_dtypes.int4, "scale": (5, COLUMNS), "axis": 0, "block_size": 32, "of": np.float16,
    },
}  # fmt: skip
FOLDED: dict[str, dict[str, Any]] = {
    "scales along k": {"dtype": np.int8, "scale": (INNER,), "axis": 0},
    "blocks along n": {"dtype": ml_dtypes.int4, "scale": (INNER, 7), "axis": 1, "block_size": 16},
    "blocks of no words": {"dtype": ml_dtypes.int4, "scale": (40, COLUMNS), "axis": 0, "block_size": 4},
    "a scaled Gemm": {"dtype": np.int8, "scale": (COLUMNS,), "axis": 1, "op": "Gemm", "gemm": {"alpha": 0.5}},
    "few weights": {"dtype": np.int8, "columns": 16},
}


def operators(graph: Graph) -> list[str]:
    """Those that are left when it is prepared, but for the last, which names the output."""
    nodes = prepare(graph, keeps_few_bits=True).nodes
    assert nodes[-1].op == "Identity"
    return [node.op for node in nodes[:-1]]


def compare(graph: Graph, feed: dict[str, Array], path: Any) -> None:
    """That a session gives what it gives with weights that are folded to floats."""
    save_graph(graph, path)
    with vkml.InferenceSession(path, devices="cpu") as session:
        found = np.asarray(session.run(None, feed)[0], np.float64)
    reference = vkml.SessionOptions()
    reference.graph_optimization_level = vkml.GraphOptimizationLevel.ORT_DISABLE_ALL
    with vkml.InferenceSession(path, reference, devices="cpu") as session:
        expected = np.asarray(session.run(None, feed)[0], np.float64)
    is_half = feed["x"].dtype == np.float16  # as the dequantised weights are, there
    assert np.abs(found - expected).max() <= (1e-3 if is_half else 2e-6) * np.abs(expected).max()


def check_product(graph: Graph, path: Any) -> None:
    of = graph.inputs[0].tensor.dtype.storage
    compare(graph, {"x": np.random.default_rng(1).standard_normal((3, INNER)).astype(of)}, path)


@pytest.mark.parametrize("name", KEPT)
def test_weights_stay_of_few_bits(name: str, tmp_path: Any) -> None:
    graph = product(**KEPT[name])
    assert operators(graph) == ["MatMulNBits", *(["Add"] if "bias" in KEPT[name] else [])]
    check_product(graph, tmp_path / "model.onnx")


@pytest.mark.parametrize("name", FOLDED)
def test_other_weights_are_folded(name: str, tmp_path: Any) -> None:
    graph = product(**FOLDED[name])
    assert operators(graph) == [FOLDED[name].get("op", "MatMul")]
    check_product(graph, tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("dtype", "scale", "stated"),
    [
        (ml_dtypes.int4, (COLUMNS, 5), {"axis": 1, "block_size": 32}),
        (ml_dtypes.uint4, (COLUMNS,), {"axis": 0}),
        (np.int8, (), {}),
    ],
    ids=["blocks", "rows", "one scale"],
)
@pytest.mark.parametrize("has_zero", [False, True], ids=["", "zero points"])
def test_rows_that_are_gathered(
    dtype: Any, scale: tuple[int, ...], stated: dict[str, int], has_zero: bool, tmp_path: Any
) -> None:
    """As embeddings are: beside a product with the same numbers, turned."""
    sketch = Sketch("embedding")
    x = sketch.input("x", (3, 2), vkml.ir.dtypes.INT64)
    given = [numbers(dtype, COLUMNS, INNER), ((0.5 + RANDOM.random(scale)) / 100).astype(np.float32)]
    if has_zero:
        given.append(numbers(dtype, *scale))
    table = sketch.node("DequantizeLinear", *map(sketch.constant, given), **stated)
    rows = sketch.node("Gather", table, x, axis=0)
    graph = sketch.finish(sketch.node("MatMul", rows, sketch.node("Transpose", table, perm=[1, 0])))
    assert operators(graph) == ["GatherBlockQuantized", "MatMulNBits"]
    one_kind = prepare(graph, keeps_few_bits=True, stores_bytes=False)
    assert [node.op for node in one_kind.nodes[:-1]] == ["Gather", "MatMulNBits"]
    compare(graph, {"x": np.array([[0, 5], [COLUMNS - 1, -1], [7, -COLUMNS]])}, tmp_path / "model.onnx")


def test_products_with_the_same_weights_share_them() -> None:
    sketch = Sketch("shared")
    x = sketch.input("x", (3, INNER))
    scale = sketch.constant(np.float32(0.1))
    right = sketch.node("DequantizeLinear", sketch.constant(numbers(np.int8, INNER, INNER)), scale)
    first = sketch.node("MatMul", x, right)
    prepared = prepare(sketch.finish(sketch.node("MatMul", first, right)), keeps_few_bits=True)
    one, other = prepared.nodes[:2]
    assert one.op == other.op == "MatMulNBits" and one.inputs[1:] == other.inputs[1:]
