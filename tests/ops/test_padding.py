"""Pad and Tile against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, random_array, run_operator
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import dtypes
from vkml.kernels.moves import MANY
from vkml.onnx import save_graph


def _array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return random_array(np.random.default_rng(0), dtype, shape)


def _list(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_random_pad(seed: int, mode: str) -> None:
    generator = np.random.default_rng(seed)
    rank = int(generator.integers(1, 4))
    shape = tuple(int(s) for s in generator.integers(4, 7, rank))
    pads = generator.integers(-2 if mode == "constant" else 0, 4, 2 * rank).astype(np.int64)
    x = random_array(generator, np.float32, shape)
    fill = np.array(2.5, np.float32)
    opset = 19 if mode == "wrap" else 13
    check_operator("Pad", [x, pads, fill] if mode == "constant" else [x, pads], {"mode": mode}, opset=opset)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_pad_crops_before_it_repeats(mode: str) -> None:
    # One axis cut at one end and padded at the other: what is repeated is what is left.
    check_operator("Pad", [_array(6, 5), _list(-2, 1, 3, -1)], {"mode": mode}, opset=13)


def test_pad_forms() -> None:
    x = _array(2, 3)
    check_operator("Pad", [x], {"pads": (0, 1, 2, 0), "value": 1.5}, opset=2)
    old = run_operator("Pad", [x], {"paddings": (0, 1, 2, 0), "value": 1.5}, opset=1)[0]
    np.testing.assert_array_equal(old, np.pad(x, ((0, 2), (1, 0)), constant_values=1.5))
    half = run_operator("Pad", [x.astype(np.float16)], {"pads": (0, 1, 2, 0)}, opset=2)[0]
    assert half.dtype == np.float16
    check_operator("Pad", [x, _list(1, 2), None, _list(-1)], {"mode": "edge"}, opset=18)
    check_operator("Pad", [x, _list(1, 2), np.array(3, np.float32), _list(0)], opset=18)
    check_operator("Pad", [np.array([True]), _list(1, 1), np.array(True)], opset=13)
    check_operator("Pad", [_array(0, 2), _list(1, 0, 1, 0)], opset=13)


def test_reflect_beyond_the_tensor_keeps_reflecting() -> None:
    x = np.arange(3, dtype=np.float32)
    found = run_operator("Pad", [x, _list(5, 4)], {"mode": "reflect"})[0]
    np.testing.assert_array_equal(found, np.pad(x, (5, 4), mode="reflect"))
    single = run_operator("Pad", [x[:1], _list(2, 1)], {"mode": "reflect"})[0]
    np.testing.assert_array_equal(single, [0, 0, 0, 0])


@pytest.mark.parametrize("pads", [(3, 0, -5, 0), (-6, 1, 3, -2), (0, -4, 0, 3), (4, -2, -8, 2)])
def test_pad_takes_away_what_it_adds(pads: tuple[int, ...], device_name: str) -> None:
    """As in onnxruntime: the constant alone is left, which onnx's text says nothing against."""
    arrays = [_array(4, 2), _list(*pads), np.array(2.5, np.float32)]
    check_operator("Pad", arrays, opset=13)
    [expected] = run_operator("Pad", arrays, opset=13)
    assert (expected == 2.5).all()
    model = build_model("Pad", arrays, opset=13).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name) as session:
        [found] = session.run(None, {f"x{index}": array for index, array in enumerate(arrays)})
    np.testing.assert_array_equal(found, expected)


def test_pad_that_crops_alone_copies_nothing(vulkan_device_name: str) -> None:
    sketch = Sketch("crop")
    x = _array(4, 5, 6)
    made = sketch.node("Pad", sketch.input("x", x.shape), sketch.constant(_list(0, -1, -2, -1, 0, -1)))
    model = save_graph(sketch.finish(sketch.node("Neg", sketch.node("ReduceSum", made, keepdims=0))))
    with vkml.InferenceSession(model, devices=vulkan_device_name) as session:
        [found] = session.run(None, {"x": x})
        kernels = [step.kernel for step in session.report().steps]
    np.testing.assert_allclose(found, -x[:3, 1:, 2:5].sum(), rtol=1e-5)
    assert len(kernels) == 1, kernels


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad_of_many_elements(mode: Any, vulkan_device_name: str) -> None:
    """A thread has several, of an operand whose axes lie in another order, some of which stay as they are."""
    x = _array(2, 501, 31, 7, 5)
    pads = ((1, 2), (0, 0), (0, 0), (0, 0), (3, 0))
    sketch = Sketch("pad")
    turned = sketch.node("Transpose", sketch.input("x", x.shape), perm=(0, 2, 3, 4, 1))
    amounts = sketch.constant(_list(*(first for first, _ in pads), *(last for _, last in pads)))
    model = save_graph(sketch.finish(sketch.node("Pad", turned, amounts, mode=mode)))
    with vkml.InferenceSession(model, devices=vulkan_device_name) as session:
        [found] = session.run(None, {"x": x})
        assert [step.kernel for step in session.report().steps] == ["pad"]
    assert found.size > MANY
    np.testing.assert_array_equal(found, np.pad(np.moveaxis(x, 1, -1), pads, mode=mode))


def test_pad_errors() -> None:
    with pytest.raises(ShapeError, match="3 entries for 1 axes"):
        inferred_types("Pad", [_array(2), _list(0, 1, 2)])
    with pytest.raises(ShapeError, match="leave -1"):
        inferred_types("Pad", [_array(2), _list(-2, -1)])
    with pytest.raises(ShapeError, match="leave 0"):
        inferred_types("Pad", [_array(0), _list(1, 0)], {"mode": "edge"})
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("Pad", [_array(2), _list(2**61, 2**61)])
    with pytest.raises(InvalidGraph, match="mode"):
        inferred_types("Pad", [_array(2), _list(1, 1)], {"mode": "mirror"})


@pytest.mark.parametrize("repeats", [(1, 1), (2, 3), (0, 2), (3, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_tile(repeats: tuple[int, ...], dtype: type) -> None:
    check_operator("Tile", [_array(2, 3, dtype=dtype), _list(*repeats)], opset=13)


def test_tile_errors() -> None:
    with pytest.raises(ShapeError, match=r"repeats \[2\]"):
        inferred_types("Tile", [_array(2, 3), _list(2)])
    with pytest.raises(ShapeError, match="repeats"):
        inferred_types("Tile", [_array(2), _list(-1)])
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("Tile", [_array(2), _list(2**62)])


def test_tile_of_opset_1_repeats_one_axis() -> None:
    x = _array(2, 3)
    found = run_operator("Tile", [x, np.array(3, np.float32), np.array(1, np.float32)], opset=1)[0]
    np.testing.assert_array_equal(found, np.tile(x, (1, 3)))


@pytest.mark.parametrize("shape", [(6, 6), (3, 4), (9, 8), (4, 9), (5, 5), (0, 3)])
@pytest.mark.parametrize("axes", [None, (1, 0), (-1, -2)])
def test_center_crop_pad(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    if 0 in shape:
        assert run_operator("CenterCropPad", [_array(6, 7), _list(*shape)])[0].shape == shape
        return
    check_operator("CenterCropPad", [_array(6, 7), _list(*shape)], {"axes": axes}, opset=18, against="onnx")


def test_fill_of_another_type() -> None:
    codes = np.zeros(2, dtypes.FLOAT8E5M2.storage)
    with pytest.raises(InvalidGraph, match="constant_value"):
        inferred_types("Pad", [codes, _list(1, 0), np.array(1.5, np.float32)])


def test_tile_of_nothing_by_much() -> None:
    assert run_operator("Tile", [_array(0, 3), _list(2**62, 2)])[0].shape == (0, 6)
