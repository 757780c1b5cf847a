"""NaN on Vulkan: every operator that should hand it on does, alone, in reductions, in windows, in epilogues.

NVIDIA's compiler makes instructions of comparisons that lose it, in some kernels and not in others, so each
template is asked, not only the expressions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.passes.test_fuse import check
from tests.vulkan_cases import Array, Cases, Fixed
from vkml.engine.sketch import Sketch

UNARY: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}),
    ("LeakyRelu", {"alpha": 0.1}),
    ("LeakyRelu", {"alpha": 1.5}),
    ("Elu", {}),
    ("Selu", {}),
    ("Celu", {"alpha": 1.5}),
    ("ThresholdedRelu", {"alpha": 0.5}),
    ("Shrink", {"lambd": 0.5, "bias": 0.25}),
    ("HardSigmoid", {}),
    ("HardSwish", {}),
    ("Sigmoid", {}),
    ("Swish", {}),
    ("Mish", {}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("Tanh", {}),
    ("Gelu", {"approximate": "none"}),
    ("Gelu", {"approximate": "tanh"}),
    ("Erf", {}),
    ("Abs", {}),
    ("Neg", {}),
    ("Floor", {}),
    ("Ceil", {}),
    ("Round", {}),
    ("Sign", {}),
    ("Sqrt", {}),
    ("Exp", {}),
    ("Log", {}),
    ("Sin", {}),
    ("Cos", {}),
    ("Sinh", {}),
    ("Cosh", {}),
    ("Atan", {}),
    ("Reciprocal", {}),
]
FLOATS = ("float32", "float16", "float64")
# Absolute error of what a formula cancels, as in test_pointwise_math.py.
ABSOLUTE = {"Gelu": 2e-5, "Celu": 1e-6, "HardSwish": 1e-6}


def fixed(*values: float, dtype: str = "int64") -> Fixed:
    return Fixed(np.array(values, dtype))


def rows_with_nan(cases: Cases, shape: tuple[int, ...], name: str = "float32") -> Array:
    """Random numbers of which the first row has NaN first, the second in the middle, the third last."""
    made = cases.array(name, shape)
    rows = made.reshape(-1, shape[-1])
    for row, place in zip(rows, (0, shape[-1] // 2, -1), strict=False):
        row[place] = np.nan
    return made


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_pointwise(vulkan_device_name: str, is_strided: bool) -> None:
    cases = Cases(211)
    for name in FLOATS:
        x = rows_with_nan(cases, (4, 16), name)
        y = np.flip(x, 0).copy()
        for op, attributes in UNARY:
            loose = {"rtol": 2e-3, "atol": 2e-3} if name == "float16" else {"atol": ABSOLUTE.get(op)}
            cases.add(op, x, may_fall_back=name == "float64", **loose, **attributes)
        limits = [Fixed(np.array(value, name)) for value in (-1, 1)]
        cases.add("Clip", x, *limits)
        cases.add("Clip", x, limits[0])
        cases.add("Clip", x, None, limits[1])
        cases.add("Clip", x, Fixed(np.array(1, name)), Fixed(np.array(-1, name)))
        for op in ("Max", "Min"):
            cases.add(op, x, y)
            cases.add(op, x, y, cases.array(name, (16,)))
        cases.add("PRelu", x, cases.array(name, (16,)))
        cases.add("PRelu", cases.array(name, (4, 16)), y)
        for op in ("Add", "Mul", "Div"):
            cases.add(op, x, y)
        cases.add("Where", Fixed(np.arange(16) % 3 > 0), x, y)
    cases.check(vulkan_device_name, is_strided=is_strided)


@pytest.mark.parametrize("length", [1, 3, 40, 1000, 70000])
def test_reductions(vulkan_device_name: str, length: int) -> None:
    cases = Cases(212)
    names = FLOATS if length < 1000 else ("float32",)
    for name in names:
        x = rows_with_nan(cases, (4, length), name)
        for op in ("Max", "Min", "Sum", "Mean", "L1", "L2"):
            cases.add(f"Reduce{op}", x, fixed(1), rtol=2e-3 if name == "float16" else 2e-5)
            cases.add(f"Reduce{op}", x.T.copy(), fixed(0), rtol=2e-3 if name == "float16" else 2e-5)
        cases.add("ArgMax", x, axis=1)
        cases.add("ArgMin", x, axis=1, select_last_index=1)
    x = rows_with_nan(cases, (4, length))
    # The reference adds a column's 70,000 float32 one after the other, which costs it 8e-5.
    loose = {"rtol": 1e-4, "atol": 2e-4} if length > 1000 else {"rtol": 2e-5, "atol": 1e-5}
    for op in ("Softmax", "LogSoftmax"):
        cases.add(op, x, **loose)
        cases.add(op, x.T.copy(), axis=0, **loose)
    cases.add("LayerNormalization", x, np.ones(length, np.float32), rtol=1e-4, atol=1e-5)
    cases.check(vulkan_device_name)


def test_windows(vulkan_device_name: str) -> None:
    cases = Cases(213)
    for name in ("float32", "float16"):
        loose = {"rtol": 2e-3 if name == "float16" else 1e-5}
        x = rows_with_nan(cases, (2, 3, 9, 9), name)
        x[1, 2, 8, 8] = x[1, 2, 0, 0] = np.nan
        for kernel, pads in ((2, 0), (3, 1)):
            window = {"kernel_shape": (kernel,) * 2, "pads": (pads,) * 4}
            cases.add("MaxPool", x, **window, **loose)
            cases.add("MaxPool", x, strides=(2, 2), **window, **loose)
            cases.add("AveragePool", x, **window, **loose)
        cases.add("GlobalMaxPool", x, **loose)
        cases.add("GlobalAveragePool", x, **loose)
    data, updates = rows_with_nan(cases, (4, 6)), np.flip(rows_with_nan(cases, (4, 6)), 0).copy()
    places = np.tile(np.arange(6), (4, 1))
    for reduction in ("max", "min", "add"):
        cases.add("ScatterElements", data, places, updates, axis=1, reduction=reduction)
    cases.check(vulkan_device_name)


EPILOGUES = [*UNARY[:18], ("Clip", {}), ("Max", {}), ("Min", {})]


@pytest.mark.parametrize("anchor", ["Conv", "MatMul", "vector MatMul", "Softmax", "ReduceSum", "pointwise"])
def test_epilogues(vulkan_device_name: str, anchor: str) -> None:
    cases = Cases(214)
    shape = {"Conv": (1, 8, 6, 6), "vector MatMul": (2, 64)}.get(anchor, (8, 64))
    x = rows_with_nan(cases, shape)
    sketch = Sketch("epilogues")
    source = sketch.input("x", shape)
    random = np.random.default_rng(3)
    made = []
    for op, attributes in EPILOGUES:
        if anchor == "Conv":
            weight = random.standard_normal((8, 8, 3, 3)).astype(np.float32) / 9
            value = sketch.node("Conv", source, sketch.constant(weight), pads=(1, 1, 1, 1))
        elif "MatMul" in anchor:
            weight = random.standard_normal((64, 16)).astype(np.float32) / 8
            value = sketch.node("MatMul", source, sketch.constant(weight))
        elif anchor == "ReduceSum":
            value = sketch.node("ReduceSum", source, sketch.constant(np.array([1])), keepdims=0)
        else:
            value = sketch.node("Softmax" if anchor == "Softmax" else "Neg", source)
        bounds = {"Clip": (-0.5, 0.5), "Max": (0.1,), "Min": (0.1,)}.get(op, ())
        inputs = [sketch.constant(np.float32(bound)) for bound in bounds]
        result = sketch.node(op, value, *inputs, **attributes)
        made.append(sketch.node("Mul", result, sketch.constant(np.float32(2))))
    graph = sketch.finish(*made)
    check(vulkan_device_name, graph, {"x": x}, atol=4e-5)
