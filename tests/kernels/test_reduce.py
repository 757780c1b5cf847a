"""Reductions on Vulkan: every operator, element type and choice of axes, strided inputs, long rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vkml
import vkml.engine.devices
from tests.kernels.test_tiles import lavapipe
from tests.vulkan_cases import Array, Cases, Fixed
from vkml.engine.sketch import Sketch
from vkml.lowering.kept import forget_lowerings
from vkml.onnx import save_graph

__all__ = ["lavapipe"]

REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
AXES: list[tuple[int, ...] | None] = [None, (0,), (-1,), (1, 2), (0, 2), (0, 1, 2, 3)]


def fixed(values: tuple[int, ...] | None) -> Fixed | None:
    return None if values is None else Fixed(np.array(values, np.int64))


def data(cases: Cases, op: str, name: str, shape: tuple[int, ...]) -> Array:
    made = cases.array(name, shape)
    if op in ("LogSum", "Prod") and made.dtype.kind == "f":
        # Sums that do not cancel under the logarithm, products that neither vanish nor overflow.
        made = (np.abs(made) * 0.2 + np.ones((), made.dtype) * 0.7).astype(name)
    return made


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_reductions_of_floats(device_name: str, is_strided: bool) -> None:
    cases = Cases(21)
    for op in REDUCTIONS:
        for index, name in enumerate(("float32", "float16")):
            for axes in AXES[index::2]:
                shape = cases.shape(4)
                keepdims = int(cases.random.integers(0, 2))
                # A float16 square or sum rounds once at the end; the default allows for that.
                cases.add(f"Reduce{op}", data(cases, op, name, shape), fixed(axes), keepdims=keepdims)
    cases.check(device_name, is_strided=is_strided)


def test_reductions_of_integers(device_name: str) -> None:
    cases = Cases(22)
    for op in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "SumSquare"):
        for name in ("int32", "int64", "uint32", "uint64"):
            # A mean's sum needs 64 bits.
            cases.add(f"Reduce{op}", cases.array(name, (3, 4, 5)), fixed((1,)), may_fall_back=op == "Mean")
    for op in ("Max", "Min"):
        for name in ("int8", "uint8", "bool"):
            cases.add(f"Reduce{op}", cases.array(name, (3, 4, 5)), fixed((0, 2)))
    cases.add("ReduceL2", cases.array("int32", (3, 4)), fixed((1,)), may_fall_back=True)
    cases.check(device_name, is_strided=True)


def test_integer_extremes_and_wrapping(device_name: str) -> None:
    cases = Cases(23)
    for name in ("int32", "int64", "uint32", "uint64"):
        info = np.iinfo(name)
        for op in ("Sum", "Max", "Min", "Prod", "Mean"):
            extreme = np.array([[info.max, info.max, 2], [info.min, 1, info.min]], name)
            if op != "Mean":
                cases.add(f"Reduce{op}", extreme, fixed((1,)))
        means = np.array([[-7, -6, -6], [1, 2, 4]]).astype(name)
        cases.add("ReduceMean", means, fixed((1,)), may_fall_back=not name.endswith("int64"))
    cases.check(device_name)


def test_special_values(device_name: str) -> None:
    cases = Cases(24)
    rows = np.array([[1, np.nan, 3], [np.inf, -np.inf, 0], [np.inf, 1, 2], [-np.inf, -np.inf, -np.inf]])
    for name in ("float32", "float16"):
        for op in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp"):
            cases.add(f"Reduce{op}", rows.astype(name), fixed((1,)))
    cases.check(device_name)


@pytest.mark.parametrize("shape", [(2, 5000), (5000, 3), (1, 20001), (1500, 40), (3, 257, 5)])
def test_long_rows(device_name: str, shape: tuple[int, ...]) -> None:
    cases = Cases(25)
    x = np.abs(cases.array("float32", shape))
    for axis in range(len(shape)):
        for op in ("Sum", "Max"):
            cases.add(f"Reduce{op}", x, fixed((axis,)), rtol=1e-5)
    cases.add("ReduceMean", x, None)
    cases.check(device_name)


@pytest.mark.parametrize("shape", [(3000, 17), (2, 1100, 3, 5), (65 * 64 * 31, 2), (3001, 16), (2069, 2, 9)])
def test_many_places_of_short_rows(device_name: str, shape: tuple[int, ...]) -> None:
    """Folded some at a time where their number has divisors: neighbours that are kept are lanes."""
    cases = Cases(24)
    for op in ("Sum", "Mean", "Max", "Min"):
        for axes in ((0,), tuple(range(len(shape) - 1))):
            x = np.abs(cases.array("float32", shape))  # sums that do not cancel
            cases.add(f"Reduce{op}", x, fixed(axes), keepdims=0)
    cases.check(device_name)


def test_scalars_single_elements_and_no_axes(device_name: str) -> None:
    cases = Cases(26)
    for op in REDUCTIONS:
        x = np.abs(cases.array("float32", (2, 3))) + np.float32(0.5)
        cases.add(f"Reduce{op}", x.reshape(-1)[0].reshape(()), None)
        cases.add(f"Reduce{op}", x, None, noop_with_empty_axes=1)
        cases.add(f"Reduce{op}", x[:, :1], fixed((1,)), keepdims=0)
        cases.add(f"Reduce{op}", np.zeros((2, 0, 3), np.float32), fixed((1,)), may_fall_back=True)
    cases.check(device_name)


def test_positions_of_extremes(device_name: str) -> None:
    cases = Cases(27)
    for op in ("ArgMax", "ArgMin"):
        for name in ("float32", "float16", "int32", "int64", "uint8"):
            for axis in (0, 1, -1):
                shape = cases.shape(3, 2, 6)
                # Few distinct values, so that there are ties.
                x = cases.random.integers(0, 3, shape).astype(name)
                last = int(cases.random.integers(0, 2))
                cases.add(op, x, axis=axis, keepdims=int(axis == 0), select_last_index=last)
        cases.add(op, np.array([[1, np.nan, 3, np.nan], [np.inf, -np.inf, 0, 1]], np.float32), axis=1)
        cases.add(op, np.array(3, np.float32), axis=0)
        cases.add(op, cases.array("float32", (3, 2000)), axis=1)
        cases.add(op, np.full((2, 3), np.iinfo(np.int32).min, np.int32), axis=1)
        cases.add(op, np.full((2, 3), -np.inf, np.float32), axis=1, select_last_index=1)
    cases.check(device_name, is_strided=True)


def test_running_totals(device_name: str) -> None:
    cases = Cases(28)
    for op in ("CumSum", "CumProd"):
        for name in ("float32", "float16", "int32", "int64"):
            for axis in (0, 1, -1):
                x = (
                    cases.array(name, cases.shape(3))
                    if name[0] == "i"
                    else cases.array(name, cases.shape(3)) * 0.5
                )
                exclusive, reverse = (int(v) for v in cases.random.integers(0, 2, 2))
                cases.add(op, x.astype(name), fixed((axis,)), exclusive=exclusive, reverse=reverse)
    cases.add("CumSum", np.abs(cases.array("float32", (3, 3000))), fixed((1,)), rtol=3e-5)
    cases.add("CumSum", cases.array("int32", (2, 1000, 3)), fixed((1,)), exclusive=1, reverse=1)
    cases.check(device_name, is_strided=True)


def columns_of_a_gpu(
    device: str, monkeypatch: pytest.MonkeyPatch, processors: int, op: str, *shapes: tuple[int, int]
) -> dict[int, int]:
    """Reduces columns; launches by the columns' lengths."""
    real = vkml.engine.devices.target_of
    monkeypatch.setattr(
        vkml.engine.devices,
        "target_of",
        lambda info, precision="highest": replace(real(info, precision), processors=processors),
    )
    forget_lowerings()
    launches = {}
    for length, columns in shapes:
        x = np.random.default_rng(length).standard_normal((length, columns)).astype(np.float32)
        sketch = Sketch("columns")
        given, axes = sketch.input("x", x.shape), sketch.constant(np.array([0], np.int64))
        model = save_graph(sketch.finish(sketch.node(op, given, axes, keepdims=0)))
        with vkml.InferenceSession(model, devices=device) as session:
            [found] = session.run(None, {"x": x})
            launches[length] = len(session.report().steps)
        wide = x.astype(np.float64)
        wanted = {"ReduceSum": wide.sum(0), "ReduceMean": wide.mean(0), "ReduceMax": wide.max(0)}
        np.testing.assert_allclose(found, wanted.get(op, np.sqrt((wide**2).sum(0))), rtol=1e-5, atol=2e-5)
    return launches


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceL2"])
def test_columns_of_a_large_gpu(lavapipe: str, monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """Up to 1024 rows of few columns are one launch: ranges of them would take another."""
    shapes = ((511, 40), (512, 256), (1000, 33), (1024, 128), (1100, 64), (4000, 64))
    launches = columns_of_a_gpu(lavapipe, monkeypatch, 132, op, *shapes)
    assert launches == {511: 1, 512: 1, 1000: 1, 1024: 1, 1100: 2, 4000: 2}


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceL2"])
def test_columns_that_fall_to_processors_evenly(
    lavapipe: str, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    """Long columns are one launch, too, where each processor has workgroups; else they are in ranges."""
    shapes = ((3000, 128), (3001, 250), (2500, 160), (8191, 125), (40000, 40))
    launches = columns_of_a_gpu(lavapipe, monkeypatch, 4, op, *shapes)
    assert launches == {3000: 1, 3001: 1, 2500: 2, 8191: 1, 40000: 2}


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_places_in_long_rows(vulkan_device_name: str, is_strided: bool) -> None:
    """Threads with several vectors of a row, one, or single elements; many elements are equal, some NaN."""
    cases = Cases(71)
    for name in ("float32", "float16", "int32", "int64", "uint8"):
        for shape, axis in (
            ((5, 1024), 1),
            ((3, 1030), 1),
            ((2, 4100), 1),
            ((70, 3, 513), 2),
            ((1040, 40), 0),
        ):
            for op in ("ArgMax", "ArgMin"):
                for last in (0, 1):
                    x = cases.random.integers(0, 9, shape).astype(name)
                    if np.dtype(name).kind == "f" and last:
                        x[cases.random.random(shape) < 0.002] = np.nan
                    cases.add(op, x, axis=axis, select_last_index=last, keepdims=0)
    cases.check(vulkan_device_name, is_strided=is_strided)
