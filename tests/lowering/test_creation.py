"""Tensors made of sizes that are known only when a model runs, by ConstantOfShape and Range."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from vkml.engine.sketch import Sketch
from vkml.ir import Constant, dtypes
from vkml.onnx import save_graph


def is_native(device: str, name: str) -> bool:
    """Whether a device computes with an element type."""
    if device == "cpu" or name in ("float32", "int32"):
        return True
    info = next(info for info in vkml.devices() if info.name == device)
    return bool(getattr(info.capabilities, name))


@pytest.mark.parametrize("name", ["float32", "float16", "float64", "int16", "int32", "int64"])
def test_ranges(device_name: str, name: str) -> None:
    sketch = Sketch("range")
    names = ("start", "limit", "delta")
    inputs = [sketch.input(each, (), dtypes.from_numpy(np.dtype(name))) for each in names]
    model = save_graph(sketch.finish(sketch.node("Range", *inputs)))
    strict = is_native(device_name, name)
    with vkml.InferenceSession(model, devices=device_name, strict=strict) as session:
        for bounds in ((0, 5, 1), (10, 0, -3), (-4, 3, 2), (5, 1, 1), (0, 1500, 1)):
            feed = {each: np.array(value, name) for each, value in zip(names, bounds, strict=True)}
            [found] = session.run(None, feed)
            np.testing.assert_array_equal(found, np.arange(*bounds).astype(name), strict=True)


def test_a_range_of_fractions(device_name: str) -> None:
    sketch = Sketch("range")
    bounds = [sketch.input(each, (), dtypes.FLOAT32) for each in ("start", "limit", "delta")]
    model = save_graph(sketch.finish(sketch.node("Range", *bounds)))
    with vkml.InferenceSession(model, devices=device_name, strict=True) as session:
        feed = {"start": np.float32(0.25), "limit": np.float32(100), "delta": np.float32(0.1)}
        [found] = session.run(None, {key: np.array(value) for key, value in feed.items()})
    expected = np.float32(0.25) + np.arange(len(found), dtype=np.float32) * np.float32(0.1)
    assert len(found) == 998
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["float32", "int64", "bool"])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_fills(device_name: str, name: str, rank: int) -> None:
    dtype = dtypes.from_numpy(np.dtype(name))
    sketch = Sketch("fill")
    shape = sketch.input("shape", (rank,), dtypes.INT64)
    filled = sketch.node("ConstantOfShape", shape, value=Constant(dtype, (1,), np.ones(1, name)))
    joined = sketch.node("Unsqueeze", filled, sketch.constant(np.array([0])))
    model = save_graph(sketch.finish(filled, sketch.node("Concat", joined, joined, axis=0)))
    with vkml.InferenceSession(model, devices=device_name) as session:
        for dims in ((3, 4, 5)[:rank], (2, 0, 1)[:rank], (1, 7, 2)[:rank]):
            found, twice = session.run(None, {"shape": np.array(dims, np.int64)})
            np.testing.assert_array_equal(found, np.ones(dims, name), strict=True)
            np.testing.assert_array_equal(twice, np.ones((2, *dims), name), strict=True)
        if name == "float32":
            assert not session.report().fallbacks
