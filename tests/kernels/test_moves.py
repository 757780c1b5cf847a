"""Gathers and scatters of slices: units of every width, several of them a thread, operands between units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.kernels.moves import MANY
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
OPERATORS = ("Gather", "GatherND", "ScatterND")
SLICES = {
    "16 bytes": ((8, "float32"), (8, "float16"), (16, "uint8"), (6, "int64")),
    "8 bytes": ((6, "float32"), (12, "float16"), (24, "uint8"), (3, "int64"), (1, "int64")),
    "4 bytes": ((7, "float32"), (6, "float16"), (12, "uint8"), (1, "float32")),
    "an element": ((7, "float16"), (10, "uint8"), (1, "uint8")),
}
"""Elements of rows, three of which are a slice, by what a thread moves at a time, and their types."""
CASES = [(unit, *slice_) for unit, slices in SLICES.items() for slice_ in slices]


def moved(op: str, x: Array, picks: Array, updates: Array) -> Array:
    """What NumPy makes of an operator that picks along the first axis."""
    if op != "ScatterND":
        return x[picks]
    found = x.copy()
    found[picks] = updates
    return found


def check(
    op: str, x: Array, picks: Array, device: str, *, start: int = 0, is_turned: bool = False
) -> list[str] | None:
    """Compares an operator on a device with NumPy, between guard zones; the variants of its launches, if any.

    Args:
        op: the operator.
        x: what slices along the first axis are picked of.
        picks: which, some counted from the end.
        device: the device.
        start: elements of what is fed before those of a slice.
        is_turned: whether axes of a slice lie in another order in memory.
    """
    rng = np.random.default_rng(5)
    updates = rng.permutation(x.reshape(-1))[: picks.size * x[0].size].reshape(picks.shape + x.shape[1:])
    sketch, feed = Sketch("moves"), {}

    def fed(name: str, array: Array) -> str:
        """The value of an array, which is a view on what is fed."""
        order = [0, 2, 1] if is_turned else list(range(array.ndim))
        held = np.concatenate([np.zeros((*array.shape[:-1], start), array.dtype), array], -1).transpose(order)
        feed[name] = np.ascontiguousarray(held)
        value = sketch.input(name, held.shape, dtypes.from_numpy(held.dtype))
        if is_turned:
            value = sketch.node("Transpose", value, perm=order)
        if start:
            bounds = [sketch.constant(np.array([number])) for number in (start, 2**31, array.ndim - 1)]
            value = sketch.node("Slice", value, *bounds)
        return value

    value = fed("x", x)
    if op == "Gather":
        made = sketch.node(op, value, sketch.constant(picks), axis=0)
    elif op == "GatherND":
        made = sketch.node(op, value, sketch.constant(picks[..., None]))
    else:
        made = sketch.node(op, value, sketch.constant(picks[..., None]), fed("updates", updates))
    with vkml.InferenceSession(save_graph(sketch.finish(made)), devices=device) as session:
        [found] = session.run(None, feed)
        report = session.report()
    np.testing.assert_array_equal(found, moved(op, x, picks, updates))
    # A device that lacks the type has no kernel for it.
    return None if report.fallbacks else [step.variant for step in report.steps]


def numbers(dtype: str, *shape: int) -> Array:
    return np.random.default_rng(3).integers(0, 100, shape).astype(dtype)


def some(count: int, size: int, seed: int = 0) -> Array:
    """Different places along an axis, some counted from the end."""
    rng = np.random.default_rng(seed)
    found = rng.permutation(size)[:count]
    return np.where(rng.random(count) < 0.5, found, found - size)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize(("unit", "length", "dtype"), CASES)
def test_units(op: str, unit: str, length: int, dtype: str, vulkan_device_name: str) -> None:
    variants = check(op, numbers(dtype, 37, 3, length), some(30, 37), vulkan_device_name)
    assert variants is None or any(variant.endswith(f"{unit} a thread") for variant in variants), variants


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
@pytest.mark.parametrize("start", [1, 2, 4, 16])
def test_slices_that_begin_between_units(op: str, dtype: str, start: int, vulkan_device_name: str) -> None:
    check(op, numbers(dtype, 21, 2, 32), some(13, 21), vulkan_device_name, start=start)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_slices_in_another_order(op: str, dtype: str, vulkan_device_name: str) -> None:
    variants = check(op, numbers(dtype, 21, 8, 16), some(13, 21), vulkan_device_name, is_turned=True)
    assert variants is None or any(variant.endswith("an element a thread") for variant in variants), variants


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize(
    ("unit", "length", "dtype"), [("16 bytes", 4096, "float32"), ("an element", 1031, "uint8")]
)
def test_many_units(op: str, unit: str, length: int, dtype: str, vulkan_device_name: str) -> None:
    """Several a thread, of which the last threads have fewer."""
    each = length if unit == "an element" else length // 4
    count = MANY // each + 3
    x = numbers(dtype, count + 5, length)
    variants = check(op, x, some(count, count + 5), vulkan_device_name)
    assert variants is None or any(variant.endswith(f"4 times {unit} a thread") for variant in variants), (
        variants
    )


def test_slices_of_inner_axes(vulkan_device_name: str) -> None:
    """Gather behind an axis that it keeps, indices of two axes, and a result that is a part of another."""
    x, picks = numbers("float32", 5, 9, 4, 8), some(6, 9).reshape(2, 3)
    sketch = Sketch("inner")
    made = sketch.node("Gather", sketch.input("x", x.shape), sketch.constant(picks), axis=1)
    other = sketch.input("other", (5, 2, 3, 4, 4))
    both = sketch.node("Concat", other, made, axis=4)
    feed = {"x": x, "other": numbers("float32", 5, 2, 3, 4, 4)}
    with vkml.InferenceSession(save_graph(sketch.finish(both)), devices=vulkan_device_name) as session:
        np.testing.assert_array_equal(
            session.run(None, feed)[0], np.concatenate([feed["other"], x[:, picks]], axis=4)
        )


def test_open_sizes(vulkan_device_name: str) -> None:
    """Known slices are moved in units where it is open how many there are."""
    sketch = Sketch("open")
    x, picks = sketch.input("x", ("rows", 12)), sketch.input("picks", ("picked",), dtypes.INT64)
    graph = sketch.finish(sketch.node("Gather", x, picks, axis=0))
    with vkml.InferenceSession(save_graph(graph), devices=vulkan_device_name) as session:
        for rows, picked in ((7, 5), (9, 20), (300, 2), (41, 1000)):
            given = numbers("float32", rows, 12)
            indices = np.random.default_rng(rows).integers(-rows, rows, picked)
            np.testing.assert_array_equal(
                session.run(None, {"x": given, "picks": indices})[0], given[indices]
            )
        steps = session.report({"rows": 300, "picked": 2}).steps
        assert any("16 bytes a thread" in step.variant for step in steps)
