"""Reductions that compute what they read: against float64, how many launches, and where it does not pay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from tests.vulkan_cases import GUARD_BYTES, Array, assert_close
from vkml.engine.options import SessionOptions
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, dtypes
from vkml.ir.lowering import CannotLower
from vkml.kernels import reduce
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph
from vkml.passes import fuse, fuse_reductions, specialise
from vkml.passes.fuse import members
from vkml.passes.simplify import remove_identities

SHAPE = (3, 17, 5, 9)


def run(
    device: str, graph: Graph, feed: dict[str, Array], is_strict: bool = True
) -> tuple[list[Array], list[str]]:
    """What a session makes of a graph, and the operators of each of its launches."""
    options = SessionOptions(guard_bytes=GUARD_BYTES)
    with vkml.InferenceSession(save_graph(graph), options, devices=device, strict=is_strict) as session:
        found = session.run(None, feed)
        return found, ["+".join(step.operators) for step in session.report().steps]


def axes(sketch: Sketch, *of: int) -> str:
    return sketch.constant(np.array(of, np.int64))


def drawn(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("of", [(0,), (1,), (3,), (0, 2, 3), (1, 3), (0, 1, 2, 3)], ids=str)
def test_sums_of_products_are_one_launch(vulkan_device_name: str, of: tuple[int, ...]) -> None:
    """Two sums, of a gradient behind a mask and of its product: as a normalisation's gradient has them."""
    sketch, wide = Sketch("sums"), [drawn(*SHAPE, seed=seed).astype(np.float64) for seed in range(3)]
    incoming, x, y = (sketch.input(name, SHAPE) for name in ("incoming", "x", "y"))
    masked = sketch.node("Mul", incoming, sketch.node("Sign", sketch.node("Relu", y)))
    total = sketch.node("ReduceSum", masked, axes(sketch, *of))
    along = sketch.node("ReduceMean", sketch.node("Mul", masked, x), axes(sketch, *of))
    both = sketch.node("Add", total, along)  # which waits for the sum, not what it is made of
    result = sketch.node("Sub", masked, sketch.node("Mul", x, both))
    feed = {name: array.astype(np.float32) for name, array in zip(("incoming", "x", "y"), wide, strict=True)}
    found, steps = run(vulkan_device_name, sketch.finish(total, along, result), feed)
    kept = np.where(wide[2] > 0, wide[0], 0)
    sums = kept.sum(of, keepdims=True)
    means = (kept * wide[1]).mean(of, keepdims=True)
    for made, wanted in zip(found, (sums, means, kept - wide[1] * (sums + means)), strict=True):
        assert_close(made, wanted.astype(np.float32), 1e-5, 1e-5 * np.abs(wanted).max())
    assert len(steps) == 2 and "ReduceSum" in steps[0] and "ReduceMean" in steps[0], steps


@pytest.mark.parametrize("shape", [(2, 4099), (5, 64, 8), (1030, 40), (33, 2, 128)], ids=str)
def test_rows_in_ranges(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    """A second launch joins the parts of rows, as on devices of many processors."""
    monkeypatch.setattr(reduce, "_splits", lambda build, walk: 3)
    forget_lowerings()
    sketch, x = Sketch("ranges"), drawn(*shape)
    given = sketch.input("x", shape)
    outputs = []
    for axis in range(len(shape)):
        squares = sketch.node("Mul", given, given)
        outputs.append(sketch.node("ReduceSum", squares, axes(sketch, axis)))
        outputs.append(sketch.node("Neg", sketch.node("ReduceMax", squares, axes(sketch, axis))))
    found, _ = run(vulkan_device_name, sketch.finish(*outputs), {"x": x})
    forget_lowerings()
    squares = np.square(x.astype(np.float64))
    for axis, (total, greatest) in enumerate(zip(found[::2], found[1::2], strict=True)):
        np.testing.assert_allclose(total, squares.sum(axis, keepdims=True), 1e-5)
        np.testing.assert_allclose(greatest, -squares.max(axis, keepdims=True), 1e-6)


def test_element_types(vulkan_device_name: str) -> None:
    """What is reduced has the type that it would be stored in, but is not rounded to 16 bits before."""
    feed = {
        "half": drawn(4, 33, dtype=np.float16),
        "double": drawn(4, 33, dtype=np.float64),
        "int": np.arange(132, dtype=np.int32).reshape(4, 33),
    }
    sketch = Sketch("types")
    outputs, wanted = [], []
    for name, array in feed.items():
        x = sketch.input(name, array.shape, dtypes.from_numpy(array.dtype))
        made = sketch.node("Mul", x, x)
        outputs.append(sketch.node("ReduceSum", made, axes(sketch, 1)))
        wanted.append(np.square(array.astype(np.float64)).sum(1, keepdims=True))
        outputs.append(sketch.node("ReduceMax", sketch.node("Greater", made, x), axes(sketch, 1)))
        wanted.append((array * array > array).max(1, keepdims=True))
    found, _ = run(vulkan_device_name, sketch.finish(*outputs), feed, is_strict=False)
    for made, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(made.astype(np.float64), expected, 1e-3 if made.itemsize == 2 else 1e-5)


def test_without_such_a_kernel(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch for what is reduced, one for each reduction, one for what is made of the results."""

    def refuse(*_: object) -> list[Any]:
        raise CannotLower("too many operands")

    monkeypatch.setattr(VulkanBuilder, "_reduced", refuse)
    forget_lowerings()
    sketch, x = Sketch("apart"), drawn(6, 7)
    given = sketch.input("x", x.shape)
    made = sketch.node("Mul", given, given)
    total = sketch.node("ReduceSum", made, axes(sketch, 1))
    least = sketch.node("Neg", sketch.node("ReduceMin", made, axes(sketch, 1)))
    found, steps = run(vulkan_device_name, sketch.finish(total, least), {"x": x})
    forget_lowerings()
    squares = np.square(x.astype(np.float64))
    np.testing.assert_allclose(found[0], squares.sum(1, keepdims=True), 1e-5)
    np.testing.assert_allclose(found[1], -squares.min(1, keepdims=True), 1e-6)
    assert len(steps) == 4, steps


def test_of_nothing(vulkan_device_name: str) -> None:
    sketch = Sketch("nothing")
    x = sketch.input("x", (3, 0, 4))
    made = sketch.node("Mul", x, x)
    outputs = [sketch.node("ReduceSum", made, axes(sketch, of), keepdims=0) for of in (0, 1)]
    found, _ = run(vulkan_device_name, sketch.finish(*outputs), {"x": np.zeros((3, 0, 4), np.float32)}, False)
    assert found[0].shape == (0, 4)
    np.testing.assert_array_equal(found[1], np.zeros((3, 4)))


def fused(write: Callable[..., list[str]]) -> list[str]:
    """The operators of each group of a graph of square matrices, all of whose nodes are on one device."""
    sketch = Sketch("squares")
    outputs = write(sketch, *[sketch.input(name, (8, 8)) for name in "xyz"])
    graph = sketch.finish(*outputs)
    given = {value.name: (8, 8) for value in graph.inputs}
    graph = fuse(remove_identities(specialise(prepare(graph), given)))
    graph, _ = fuse_reductions(graph, lambda node: "", lambda node: True)
    return sorted("+".join(part.op for part in members(node)) for node in graph.nodes)


def test_what_others_read_is_written_once() -> None:
    """A value that a product reads is there for a reduction; what else the group makes is not written."""

    def write(sketch: Sketch, x: str, y: str, z: str) -> list[str]:
        made = sketch.node("Mul", x, y)
        total = sketch.node("ReduceSum", made, axes(sketch, 1))
        squares = sketch.node("ReduceSum", sketch.node("Mul", made, made), axes(sketch, 0))
        return [total, squares, sketch.node("MatMul", made, z)]

    assert fused(write) == ["MatMul", "Mul", "Mul+ReduceSum", "ReduceSum"]


@pytest.mark.parametrize("readers", [1, 3])
def test_what_is_dear_to_read_is_written_once(readers: int) -> None:
    """Three readers of what is made of three values: nine reads, or six and a write."""

    def write(sketch: Sketch, x: str, y: str, z: str) -> list[str]:
        made = sketch.node("Mul", sketch.node("Mul", x, y), z)
        reduced = [(0,), (1,), (0, 1)][:readers]
        return [sketch.node("ReduceSum", made, axes(sketch, *of)) for of in reduced]

    expected = ["Mul+Mul+ReduceSum"] if readers == 1 else ["Mul+Mul", "ReduceSum", "ReduceSum", "ReduceSum"]
    assert fused(write) == expected


@pytest.mark.parametrize("of", [0, 1])
def test_what_waits_for_another_stays_apart(of: int) -> None:
    """A variance waits for the mean; the greatest along the same axis does not."""

    def write(sketch: Sketch, x: str, y: str, z: str) -> list[str]:
        mean = sketch.node("ReduceMean", x, axes(sketch, 1))
        centred = sketch.node("Sub", x, mean)
        variance = sketch.node("ReduceMean", sketch.node("Mul", centred, centred), axes(sketch, 1))
        return [variance, sketch.node("ReduceMax", x, axes(sketch, of))]

    alone = ["ReduceMax", "ReduceMean"] if of == 0 else ["ReduceMean+ReduceMax"]
    assert fused(write) == [*alone, "Sub+Mul+ReduceMean"]


def test_what_follows_waits_alone() -> None:
    """What follows the second reduction waits for more than it: the reductions are one all the same."""

    def write(sketch: Sketch, x: str, y: str, z: str) -> list[str]:
        total = sketch.node("ReduceSum", x, axes(sketch, 1))
        running = sketch.node("CumSum", total, sketch.constant(np.array(0, np.int64)))
        return [sketch.node("Add", sketch.node("ReduceMax", x, axes(sketch, 1)), running)]

    assert fused(write) == ["Add", "CumSum", "ReduceSum+ReduceMax"]
