"""Types below 8 bits at a session's border: one element a byte in the stated shape, never wrong numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkml
from vkml.engine.sketch import Sketch
from vkml.ir import DType, dtypes
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
INTEGERS = [dtypes.INT4, dtypes.UINT4, dtypes.INT2, dtypes.UINT2]
OPSET = 25


def _numbers(dtype: DType) -> Array:
    """All numbers of an integer type, in a shape whose last byte is not full."""
    least = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
    found = np.resize(np.arange(least, least + (1 << dtype.bits)), 21).reshape(3, 7)
    return found.astype(np.int8 if dtype.kind == "i" else np.uint8)


def _casts(dtype: DType, shape: tuple[int | str, ...] = ("rows", 7)) -> bytes:
    """The input; as float; the input cast there and back; a middle value that another device computes."""
    sketch = Sketch("casts", OPSET)
    x = sketch.input("x", shape, dtype)
    floats = sketch.node("Cast", x, to=1)
    back = sketch.node("Cast", floats, to=dtype.code)
    return save_graph(sketch.finish(x, floats, back, sketch.node("Relu", floats)))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_numbers_go_in_and_come_out_one_a_byte(dtype: DType, device_name: str) -> None:
    numbers = _numbers(dtype)
    with vkml.InferenceSession(_casts(dtype), devices=device_name) as session:
        for rows in (3, 3, 2, 3):  # again, so that the short ways of repeated runs are met
            given = numbers[:rows]
            same, floats, back, positive = session.run(None, {"x": given})
            for found in (same, back):
                assert found.dtype == given.dtype and found.flags.writeable
                np.testing.assert_array_equal(found, given)
            np.testing.assert_array_equal(floats, given.astype(np.float32))
            np.testing.assert_array_equal(positive, np.maximum(given, 0).astype(np.float32))
        [alone] = session.run(["output_2"], {"x": given})
        np.testing.assert_array_equal(alone, given)
        [listed] = session.run(["output_1"], {"x": given.tolist()})
        np.testing.assert_array_equal(listed, given)


def test_codes_of_small_floats_go_in_and_come_out_one_a_byte(device_name: str) -> None:
    codes = np.arange(16, dtype=np.uint8).reshape(2, 8)
    with vkml.InferenceSession(_casts(dtypes.FLOAT4E2M1, (2, 8)), devices=device_name) as session:
        same, floats, back, _ = session.run(None, {"x": codes})
    np.testing.assert_array_equal(same, codes)
    np.testing.assert_array_equal(back, codes)
    positive = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    np.testing.assert_array_equal(floats, [positive, -positive])


@pytest.mark.parametrize(
    ("dtype", "given", "said"),
    [
        (dtypes.INT4, np.zeros((1, 4), np.int8), r"takes the shape \['rows', 7\], got \[1, 4\]"),
        (dtypes.UINT4, np.zeros(4, np.uint8), r"takes the shape \['rows', 7\], got \[4\]"),
        (
            dtypes.UINT4,
            np.full((1, 7), 16, np.uint8),
            "a uint8 from 0 to 15; there are numbers from 16 to 16",
        ),
        (dtypes.INT4, np.full((1, 7), 8, np.int8), "an int8 from -8 to 7; there are numbers from 8 to 8"),
        (dtypes.INT4, np.full((1, 7), 8, np.uint8), "takes int4, got uint8; .* an int8 from -8 to 7"),
        (dtypes.INT2, np.full((1, 7), -3, np.int8), "an int8 from -2 to 1"),
        (dtypes.UINT2, np.full((1, 7), 4, np.uint8), "a uint8 from 0 to 3"),
        (dtypes.UINT4, [[99] * 7], "a uint8 from 0 to 15"),
        (dtypes.UINT4, [[999] * 7], "takes uint4, got int64"),
        (dtypes.UINT4, np.zeros((1, 7), np.float32), "takes uint4, got float32"),
        (dtypes.FLOAT4E2M1, np.zeros((1, 7), np.float32), "the code as a uint8 from 0 to 15"),
        (dtypes.FLOAT4E2M1, [[1.5] * 7], "the code as a uint8 from 0 to 15"),
        (dtypes.FLOAT4E2M1, [[16] * 7], "the code as a uint8 from 0 to 15"),
        (dtypes.FLOAT4E2M1, [[257] * 7], "the code as a uint8 from 0 to 15"),
        (dtypes.FLOAT4E2M1, [[-1] * 7], "the code as a uint8 from 0 to 15"),
    ],
)
def test_what_the_type_cannot_hold_is_refused(dtype: DType, given: Any, said: str) -> None:
    with (
        vkml.InferenceSession(_casts(dtype), devices="cpu") as session,
        pytest.raises(vkml.InvalidArgument, match=said),
    ):
        session.run(None, {"x": given})


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_constants_have_their_shape(dtype: DType, device_name: str, tmp_path: Path) -> None:
    """An initializer that is an output, one that a node hands on, one that is folded."""
    numbers = _numbers(dtype)
    tensor = helper.make_tensor("c", dtype.code, numbers.shape, numbers.ravel().tolist())
    nodes = [
        helper.make_node("Identity", ["c"], ["handed"]),
        helper.make_node("Cast", ["c"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["floats", "x"], ["sum"]),
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("c", "handed", "sum")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    graph = helper.make_graph(nodes, "constants", inputs, outputs, [tensor])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=13),
        tmp_path / "constants.onnx",
    )
    with vkml.InferenceSession(tmp_path / "constants.onnx", devices=device_name) as session:
        for _ in range(2):
            own, handed, total = session.run(None, {"x": np.ones(1, np.float32)})
            for found in (own, handed):
                assert found.dtype == numbers.dtype
                np.testing.assert_array_equal(found, numbers)
            np.testing.assert_array_equal(total, numbers.astype(np.float32) + 1)


def test_numbers_that_decide_shapes() -> None:
    sketch = Sketch("fill", OPSET)
    shape = sketch.node("Cast", sketch.input("shape", (3,), dtypes.UINT4), to=TensorProto.INT64)
    model = save_graph(sketch.finish(sketch.node("ConstantOfShape", shape)))
    with vkml.InferenceSession(model, devices="cpu") as session:
        for wanted in ((2, 3, 1), (4, 5, 6), (2, 3, 1)):
            [found] = session.run(None, {"shape": np.array(wanted, np.uint8)})
            assert found.shape == wanted
