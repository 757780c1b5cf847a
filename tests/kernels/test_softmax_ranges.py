"""Softmax along axes that memory runs across, of rows too long for registers; on software by force."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.engine.devices
from tests.kernels.test_row_spreads import is_slow_compiler, normal, run, softmax, unroll_ranges_less
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.kernels import row_spread, softmax_ranges
from vkml.lowering.kept import forget_lowerings
from vkml.onnx import save_graph

SHAPES = [((700, 40), 0), ((3, 300, 2, 36), 1), ((2, 333, 20), 1), ((260, 132), 0)]


@pytest.fixture(autouse=True, params=[1, 3, 64], ids=["one range", "some", "many"])
def ranges(
    vulkan_device_name: str,
    many_processors: None,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[int]:
    """Rows that a large GPU does not keep go in so many ranges, of which the last may be empty."""
    monkeypatch.setattr(row_spread, "MOST_KEPT", 2)
    if is_slow_compiler(vulkan_device_name):
        unroll_ranges_less(monkeypatch)
    monkeypatch.setattr(softmax_ranges, "ranges_of", lambda *_: request.param)
    forget_lowerings()
    yield request.param
    forget_lowerings()


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_both_functions(
    vulkan_device_name: str, shape: tuple[int, ...], axis: int, name: str, ranges: int
) -> None:
    x = (normal(21, *shape) * 3).astype(name)
    wanted = softmax(x, axis)
    for op, exact in (("Softmax", wanted), ("LogSoftmax", np.log(wanted))):
        sketch = Sketch("softmax")
        given = sketch.input("x", x.shape, dtypes.from_numpy(x.dtype))
        [found], steps = run(vulkan_device_name, sketch, {"x": x}, sketch.node(op, given, axis=axis))
        variants = [step.variant for step in steps]
        if name == "float32" or softmax_ranges.BATCH == 8:  # SwiftShader has no halves
            assert all(f"{ranges} range" in variant for variant in variants) and len(variants) == 2, variants
        limit = 3e-6 if name == "float32" else 1.5e-3
        np.testing.assert_allclose(found, exact, rtol=limit, atol=limit if op == "LogSoftmax" else 1e-7)


def test_special_values(vulkan_device_name: str) -> None:
    x = normal(22, 400, 36)
    x[7, 0], x[399, 1], x[:, 2], x[:, 3] = np.nan, np.inf, -np.inf, np.inf
    x[1:, 4], x[:399, 5] = -np.inf, -np.inf
    x[:, 6] *= 1e4
    wanted = np.full(x.shape, np.nan)
    wanted[:, 4:] = softmax(x[:, 4:], 0)
    sketch = Sketch("softmax")
    [found], _ = run(
        vulkan_device_name, sketch, {"x": x}, sketch.node("Softmax", sketch.input("x", x.shape), axis=0)
    )
    np.testing.assert_allclose(found, wanted, rtol=4e-6, atol=1e-7)


def test_what_follows_is_done_as_rows_are_stored(vulkan_device_name: str) -> None:
    """Of views, to a place in a whole."""
    shape, width = (2, 300, 36), 36
    x, whole, other = normal(23, 300, 2, width), normal(24, *shape), normal(25, 2, 8, width)
    sketch = Sketch("epilogue")
    turned = sketch.node("Transpose", sketch.input("x", x.shape), perm=[1, 0, 2])
    made = sketch.node("Mul", sketch.node("Softmax", turned, axis=1), sketch.input("whole", shape))
    made = sketch.node("Concat", made, sketch.input("other", other.shape), axis=1)
    feed: dict[str, Any] = {"x": x, "whole": whole, "other": other}
    [found], _ = run(vulkan_device_name, sketch, feed, made)
    exact = softmax(x.transpose(1, 0, 2), 1) * whole
    np.testing.assert_allclose(found[:, :300], exact, rtol=3e-6, atol=1e-6)
    np.testing.assert_array_equal(found[:, 300:], other)


def test_lengths_that_are_open(vulkan_device_name: str) -> None:
    """One plan serves them, ranges that begin behind the end among them."""
    sketch = Sketch("open")
    made = sketch.node("Softmax", sketch.input("x", (None, 40)), axis=0)
    with vkml.InferenceSession(save_graph(sketch.finish(made)), devices=vulkan_device_name) as session:
        for length in (5000, 4001, 9000, 7777):
            x = normal(26, length, 40)
            [found] = session.run(None, {"x": x})
            np.testing.assert_allclose(found, softmax(x, 0), rtol=4e-6, atol=1e-9)
