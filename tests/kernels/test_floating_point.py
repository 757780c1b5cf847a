"""Floating-point arithmetic is what the graph states: no operation cancelled, contracted or reordered.

Every formula is one that a compiler free to rearrange real numbers would change. The results are compared
bit for bit with NumPy's, in graphs whose nodes are fused and in graphs whose nodes are kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from tests.passes.test_fuse import evaluate
from tests.vulkan_cases import Array, target
from vkml.engine.options import GraphOptimizationLevel, SessionOptions
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, dtypes
from vkml.onnx import save_graph

SPECIAL = [0.0, -0.0, 1.0, -1.0, 3.0, -0.1, 1e-3, 7.7, 1e8, -1e8, 1e30, -1e34, np.inf, -np.inf, np.nan]
"""Nothing that the formulas make of them on the way is subnormal: devices may flush that to zero."""

DIVISION = 10
"""Units in the last place that a division or a root may cost on a GPU: Vulkan allows 2.5 and 4.5, up to
twice as many of a following product's units."""


class Formula:
    """Writes nodes of a sketch, by methods named as operators are, on ``f.x``, ``f.y`` and numbers."""

    def __init__(self, sketch: Sketch, x: str, y: str, dtype: Any) -> None:
        self.sketch, self.x, self.y, self.dtype = sketch, x, y, dtype

    def __getattr__(self, op: str) -> Callable[..., str]:
        def node(*operands: str | float, **attributes: Any) -> str:
            return self.sketch.node(op, *(self.value(operand) for operand in operands), **attributes)

        return node

    def value(self, operand: str | float) -> str:
        return operand if isinstance(operand, str) else self.sketch.constant(np.array(operand, self.dtype))


def _error_of_sum(f: Formula) -> str:
    """What x + y loses by rounding: Knuth's sum without a comparison of sizes."""
    total = f.Add(f.x, f.y)
    part = f.Sub(total, f.x)
    return f.Add(f.Sub(f.x, f.Sub(total, part)), f.Sub(f.y, part))


def _compensated(f: Formula) -> str:
    """1e8 + x + x + x by Kahan's algorithm."""
    total, lost = f.value(1e8), f.value(0.0)
    for _ in range(3):
        term = f.Sub(f.x, lost)
        grown = f.Add(total, term)
        lost = f.Sub(f.Sub(grown, total), term)
        total = grown
    return f.Sub(total, 1e8)


FORMULAS: dict[str, Callable[[Formula], str]] = {
    "(x + y) - y": lambda f: f.Sub(f.Add(f.x, f.y), f.y),
    "(x + y) - x": lambda f: f.Sub(f.Add(f.x, f.y), f.x),
    "y - (y - x)": lambda f: f.Sub(f.y, f.Sub(f.y, f.x)),
    "(x + 1e8) - 1e8": lambda f: f.Sub(f.Add(f.x, 1e8), 1e8),
    "(x + 1e8) + -1e8": lambda f: f.Add(f.Add(f.x, 1e8), -1e8),
    "(x - 0.1) - 0.2": lambda f: f.Sub(f.Sub(f.x, 0.1), 0.2),
    "x - x": lambda f: f.Sub(f.x, f.x),
    "(x + y) - (x + y)": lambda f: f.Sub(f.Add(f.x, f.y), f.Add(f.x, f.y)),
    "(x + y) - (y + x)": lambda f: f.Sub(f.Add(f.x, f.y), f.Add(f.y, f.x)),
    "x * y - x * y": lambda f: f.Sub(f.Mul(f.x, f.y), f.Mul(f.x, f.y)),
    "x + -x": lambda f: f.Add(f.x, f.Neg(f.x)),
    "x / x": lambda f: f.Div(f.x, f.x),
    "(x * y) / y": lambda f: f.Div(f.Mul(f.x, f.y), f.y),
    "(x / y) * y": lambda f: f.Mul(f.Div(f.x, f.y), f.y),
    "(x * 3) / 3": lambda f: f.Div(f.Mul(f.x, 3.0), 3.0),
    "(x / 3) * 3": lambda f: f.Mul(f.Div(f.x, 3.0), 3.0),
    "1 / (1 / x)": lambda f: f.Reciprocal(f.Reciprocal(f.x)),
    "x * 0": lambda f: f.Mul(f.x, 0.0),
    "0 * x": lambda f: f.Mul(0.0, f.x),
    "x * -0": lambda f: f.Mul(f.x, -0.0),
    "0 / x": lambda f: f.Div(0.0, f.x),
    "x / 0": lambda f: f.Div(f.x, 0.0),
    "x / -0": lambda f: f.Div(f.x, -0.0),
    "x + 0": lambda f: f.Add(f.x, 0.0),
    "0 + x": lambda f: f.Add(0.0, f.x),
    "x + -0": lambda f: f.Add(f.x, -0.0),
    "-0 + x": lambda f: f.Add(-0.0, f.x),
    "x - 0": lambda f: f.Sub(f.x, 0.0),
    "x - -0": lambda f: f.Sub(f.x, -0.0),
    "0 - x": lambda f: f.Sub(0.0, f.x),
    "(x + 3e38) + 3e38 - 3e38": lambda f: f.Sub(f.Add(f.Add(f.x, 3e38), 3e38), 3e38),
    "x * 1": lambda f: f.Mul(f.x, 1.0),
    "1 * x": lambda f: f.Mul(1.0, f.x),
    "x / 1": lambda f: f.Div(f.x, 1.0),
    "x * -1": lambda f: f.Mul(f.x, -1.0),
    "-(-x)": lambda f: f.Neg(f.Neg(f.x)),
    "-(x - y)": lambda f: f.Neg(f.Sub(f.x, f.y)),
    "|-x|": lambda f: f.Abs(f.Neg(f.x)),
    "x * 1e-3 * 1e3": lambda f: f.Mul(f.Mul(f.x, 1e-3), 1e3),
    "x * 1e30 * 1e30 / 1e30": lambda f: f.Div(f.Mul(f.Mul(f.x, 1e30), 1e30), 1e30),
    "x * y + 0.1": lambda f: f.Add(f.Mul(f.x, f.y), 0.1),
    "0.1 - x * y": lambda f: f.Sub(0.1, f.Mul(f.x, f.y)),
    "x * y - x": lambda f: f.Sub(f.Mul(f.x, f.y), f.x),
    "x * y + x * 0.1": lambda f: f.Add(f.Mul(f.x, f.y), f.Mul(f.x, 0.1)),
    "x * x - y * y": lambda f: f.Sub(f.Mul(f.x, f.x), f.Mul(f.y, f.y)),
    "x * 0.1 + x * 0.2 + x * 0.3": lambda f: f.Sum(f.Mul(f.x, 0.1), f.Mul(f.x, 0.2), f.Mul(f.x, 0.3)),
    "sum of x, y, -x": lambda f: f.Sum(f.x, f.y, f.Neg(f.x)),
    "mean of x, y, -x": lambda f: f.Mean(f.x, f.y, f.Neg(f.x)),
    "error of x + y": _error_of_sum,
    "compensated sum": _compensated,
    "sqrt(x) * sqrt(x)": lambda f: f.Mul(f.Sqrt(f.x), f.Sqrt(f.x)),
    "sqrt(x * x)": lambda f: f.Sqrt(f.Mul(f.x, f.x)),
    "x - floor(x)": lambda f: f.Sub(f.x, f.Floor(f.x)),
    "max(x, x - x)": lambda f: f.Max(f.x, f.Sub(f.x, f.x)),
    "max(x, 0)": lambda f: f.Max(f.x, 0.0),
    "min(0, x)": lambda f: f.Min(0.0, f.x),
    "relu(x)": lambda f: f.Relu(f.x),
    "relu(x * 0)": lambda f: f.Relu(f.Mul(f.x, 0.0)),
    "clip(x, -1, 1)": lambda f: f.Clip(f.x, -1.0, 1.0),
    "clip(x - y, 0, 6)": lambda f: f.Clip(f.Sub(f.x, f.y), 0.0, 6.0),
    "x < 0 ? 0 : x": lambda f: f.Where(f.Less(f.x, 0.0), 0.0, f.x),
    "x < 0 ? -0 : x": lambda f: f.Where(f.Less(f.x, 0.0), -0.0, f.x),
    "x > 0 ? x : 0": lambda f: f.Where(f.Greater(f.x, 0.0), f.x, 0.0),
    "x >= y ? x : y": lambda f: f.Where(f.GreaterOrEqual(f.x, f.y), f.x, f.y),
    "not x < y ? x : y": lambda f: f.Where(f.Not(f.Less(f.x, f.y)), f.x, f.y),
    "x == x ? 1 : 2": lambda f: f.Where(f.Equal(f.x, f.x), 1.0, 2.0),
    "x >= x ? 1 : 2": lambda f: f.Where(f.GreaterOrEqual(f.x, f.x), 1.0, 2.0),
    "x < x ? 1 : 2": lambda f: f.Where(f.Less(f.x, f.x), 1.0, 2.0),
    "x - x == 0 ? 1 : 2": lambda f: f.Where(f.Equal(f.Sub(f.x, f.x), 0.0), 1.0, 2.0),
    "x is NaN ? 1 : 2": lambda f: f.Where(f.IsNaN(f.x), 1.0, 2.0),
    "x - x is NaN ? 1 : 2": lambda f: f.Where(f.IsNaN(f.Sub(f.x, f.x)), 1.0, 2.0),
    "x * 1e30 is infinite ? 1 : 2": lambda f: f.Where(f.IsInf(f.Mul(f.x, 1e30)), 1.0, 2.0),
}
ZERO_OF_EITHER_SIGN = ("max", "min", "relu", "clip")
"""IEEE 754 leaves the sign of the extreme of 0 and -0 open."""


def wrong(name: str, found: Array, expected: Array, x: Array, y: Array, is_gpu: bool) -> str | None:
    """What is wrong with a formula's results, None where nothing is."""
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    if not name.startswith(ZERO_OF_EITHER_SIGN):
        same &= np.isnan(expected) | (np.signbit(found) == np.signbit(expected))
    divisions = sum(name.count(word) for word in ("/", "sqrt", "mean"))
    if is_gpu and divisions:
        with np.errstate(all="ignore"):
            near = np.abs(found - expected) <= DIVISION * divisions * np.spacing(np.abs(expected))
        same |= near & np.isfinite(expected) & (expected != 0)
    if same.all():
        return None
    shown = [
        tuple(float(a.reshape(-1)[at]) for a in (x, y, found, expected)) for at in np.flatnonzero(~same)[:4]
    ]
    return f"{name}: {np.count_nonzero(~same)} wrong, (x, y, found, expected): {shown}"


def operands(dtype: Any) -> tuple[Array, Array]:
    """Every special number with every other, then random ones of a few sizes."""
    random = np.random.default_rng(6)
    special = np.array(SPECIAL, dtype)
    more = (random.standard_normal((2, 287)) * np.exp2(random.integers(-9, 9, (2, 287)))).astype(dtype)
    return (
        np.concatenate([np.repeat(special, special.size), more[0]]),
        np.concatenate([np.tile(special, special.size), more[1]]),
    )


def formulas(dtype: Any, shape: tuple[int, ...]) -> Graph:
    """A graph with every formula as an output."""
    sketch = Sketch("formulas")
    kind = dtypes.from_numpy(np.dtype(dtype))
    f = Formula(sketch, sketch.input("x", shape, kind), sketch.input("y", shape, kind), dtype)
    return sketch.finish(*(write(f) for write in FORMULAS.values()))


def run(device: str, graph: Graph, feed: dict[str, Array], level: int) -> list[Array]:
    options = SessionOptions(graph_optimization_level=GraphOptimizationLevel(level))
    with vkml.InferenceSession(save_graph(graph), options, devices=device) as session:
        return session.run(None, feed)


def is_gpu(device: str) -> bool:
    [info] = [info for info in vkml.devices() if info.name == device]
    return device != "cpu" and not getattr(info, "is_software", False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("level", [0, 99], ids=["separate", "fused"])
def test_formulas(device_name: str, level: int, dtype: str) -> None:
    if dtype == "float64" and device_name != "cpu" and "float64" not in target(device_name).capabilities:
        return
    x, y = operands(dtype)
    graph = formulas(dtype, x.shape)
    feed = {"x": x, "y": y}
    found, expected = run(device_name, graph, feed, level), evaluate(graph, feed)
    problems = [
        wrong(name, made, wanted, x, y, is_gpu(device_name))
        for name, made, wanted in zip(FORMULAS, found, expected, strict=True)
    ]
    assert not any(problems), "\n".join(problem for problem in problems if problem)


@pytest.mark.parametrize("level", [0, 99], ids=["separate", "fused"])
def test_conversions_round(device_name: str, level: int) -> None:
    """There and back is not where one came from."""
    chains = (
        ("float64", "float32", "float64"),
        ("float64", "float16", "float64"),
        ("float32", "float16", "float32"),
        ("float64", "float32", "float16", "float32"),
        ("float32", "int32", "float32"),
        ("int32", "float32", "int32"),
        ("uint32", "float32", "uint32"),
        ("int64", "float32", "int64"),
        ("int64", "float64", "int64"),
        ("uint64", "float64", "uint64"),
    )
    sketch, feed, made = Sketch("conversions"), {}, []
    for number, (kind, *others) in enumerate(chains):
        random = np.random.default_rng(number)
        if np.dtype(kind).kind == "f":
            x = (random.standard_normal(200) * 50).astype(kind)
            x[:4] = [0.1, -0.0, 1 + 2**-11 + 2**-20, 2049.0]
        else:
            limits = np.iinfo(kind)
            x = random.integers(limits.min // 2, limits.max // 2, 200, kind)
            x[:4] = [2**24 + 1, 2**24 + 3, 2**25 + 2, 7]
        value = sketch.input(f"x{number}", x.shape, dtypes.from_numpy(x.dtype))
        feed[value] = x
        for other in others:
            value = sketch.node("Cast", value, to=dtypes.from_numpy(np.dtype(other)).code)
        made.append(value)
    graph = sketch.finish(*made)
    for found, expected in zip(run(device_name, graph, feed, level), evaluate(graph, feed), strict=True):
        np.testing.assert_array_equal(found, expected)


EPILOGUES = (
    "(x + y) - y",
    "x - x",
    "x / x",
    "0 / x",
    "x + 0",
    "x * y + 0.1",
    "error of x + y",
    "relu(x * 0)",
)


def anchored(anchor: str) -> tuple[Graph, dict[str, Array]]:
    """A graph whose formulas follow a heavy node, whose results are whole numbers: exact in any order."""
    random = np.random.default_rng(8)
    shape = {"Conv": (1, 8, 6, 6), "MaxPool": (1, 8, 6, 6), "vector MatMul": (3, 64)}.get(anchor, (8, 64))
    x = random.integers(-9, 10, shape).astype(np.float32)
    x.reshape(-1, shape[-1])[:3, 5] = [np.inf, -np.inf, np.nan]
    sketch = Sketch(anchor)
    source, made = sketch.input("x", shape), []
    result = {"Conv": (1, 8, 6, 6), "MaxPool": (1, 8, 6, 6), "ReduceSum": (8, 1)}.get(anchor, (shape[0], 64))
    y = np.resize(np.array(SPECIAL, np.float32), result)
    other = sketch.input("y", result)
    for name in EPILOGUES:
        if anchor == "Conv":
            weight = random.integers(1, 4, (8, 8, 1, 1)).astype(np.float32)
            value = sketch.node("Conv", source, sketch.constant(weight))
        elif anchor == "MaxPool":
            value = sketch.node("MaxPool", source, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        elif anchor == "ReduceSum":
            value = sketch.node("ReduceSum", source, sketch.constant(np.array([1])))
        else:
            weight = random.integers(1, 4, (64, 64)).astype(np.float32)
            value = sketch.node("MatMul", source, sketch.constant(weight))
        made.append(FORMULAS[name](Formula(sketch, value, other, np.float32)))
    return sketch.finish(*made), {"x": x, "y": y}


@pytest.mark.parametrize("anchor", ["MatMul", "vector MatMul", "Conv", "MaxPool", "ReduceSum"])
def test_formulas_behind_heavy_nodes(device_name: str, anchor: str) -> None:
    graph, feed = anchored(anchor)
    found, expected = run(device_name, graph, feed, 99), evaluate(graph, feed)
    problems = [
        wrong(name, made, wanted, wanted, feed["y"], is_gpu(device_name))
        for name, made, wanted in zip(EPILOGUES, found, expected, strict=True)
    ]
    assert not any(problems), "\n".join(problem for problem in problems if problem)
