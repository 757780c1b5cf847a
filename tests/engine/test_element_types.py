"""Types that NumPy lacks at a session's border: ml_dtypes arrays in the stated shape, never wrong numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkml
from vkml.engine.sketch import Sketch
from vkml.ir import DType, dtypes
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
SMALL = [dtype for dtype in dtypes.ALL if not dtype.is_native]
INTEGERS = [dtypes.INT4, dtypes.UINT4, dtypes.INT2, dtypes.UINT2]
AS_BITS = [dtype for dtype in SMALL if dtype.bits >= 8]
OPSET = 25


def _elements(dtype: DType) -> Array:
    """Numbers that no device takes for zero, in a shape whose last byte is not full when packed."""
    codes = np.arange(1 << min(dtype.bits, 8)).astype(np.uint16 if dtype.bits == 16 else np.uint8)
    found = (codes * 37 if dtype.bits == 16 else codes).view(dtype.storage)
    wide = np.abs(found.astype(np.float32))
    return np.resize(found[np.isfinite(wide) & ((wide == 0) | (wide > 1e-37))], (3, 7))


def _casts(dtype: DType, shape: tuple[int | str, ...] = ("rows", 7)) -> bytes:
    """The input; as float; the input cast there and back; a middle value that another device computes."""
    sketch = Sketch("casts", OPSET)
    x = sketch.input("x", shape, dtype)
    floats = sketch.node("Cast", x, to=1)
    back = sketch.node("Cast", floats, to=dtype.code)
    return save_graph(sketch.finish(x, floats, back, sketch.node("Relu", floats)))


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_elements_go_in_and_come_out(dtype: DType, device_name: str) -> None:
    elements = _elements(dtype)
    with vkml.InferenceSession(_casts(dtype), devices=device_name) as session:
        for rows in (3, 3, 2, 3):  # again, so that the short ways of repeated runs are met
            given = elements[:rows]
            floats = given.astype(np.float32)
            same, wide, back, positive = session.run(None, {"x": given})
            assert same.tobytes() == given.tobytes()
            for found in (same, back):
                assert found.dtype == given.dtype and found.flags.writeable and found.shape == given.shape
                np.testing.assert_array_equal(found, given)
            np.testing.assert_array_equal(wide, floats)
            np.testing.assert_array_equal(positive, np.maximum(floats, 0))
        [alone] = session.run(["output_2"], {"x": given})
        np.testing.assert_array_equal(alone, given)
        [listed] = session.run(["output_1"], {"x": given.astype(np.float64).tolist()})
        np.testing.assert_array_equal(listed, floats)
        assert given.astype(np.float32).tobytes() == floats.tobytes(), "the input was changed"


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_numbers_of_small_integers_come_as_bytes(dtype: DType, kind: type, device_name: str) -> None:
    elements = _elements(dtype)
    numbers = elements.astype(np.int8)
    if kind is np.uint8:  # of which those below zero would be others
        numbers = np.abs(np.maximum(numbers, -1))
    with vkml.InferenceSession(_casts(dtype), devices=device_name) as session:
        same, floats, _, _ = session.run(None, {"x": numbers.astype(kind)})
    assert same.dtype == dtype.storage
    np.testing.assert_array_equal(same.astype(np.int8), numbers)
    np.testing.assert_array_equal(floats, numbers)


@pytest.mark.parametrize("dtype", AS_BITS, ids=str)
def test_bits_of_floats_come_as_unsigned_integers(dtype: DType, device_name: str) -> None:
    elements = _elements(dtype)
    bits = elements.view(np.uint16 if dtype.bits == 16 else np.uint8)
    with vkml.InferenceSession(_casts(dtype), devices=device_name) as session:
        for given in (bits, bits.astype(bits.dtype.newbyteorder(">"))):
            same, floats, _, _ = session.run(None, {"x": given})
            assert same.dtype == dtype.storage
            np.testing.assert_array_equal(same, elements)
            np.testing.assert_array_equal(floats, elements.astype(np.float32))


@pytest.mark.parametrize(
    ("dtype", "given", "said"),
    [
        (dtypes.INT4, np.zeros((1, 4), np.int8), r"takes the shape \['rows', 7\], got \[1, 4\]"),
        (dtypes.UINT4, np.zeros(4, np.uint8), r"takes the shape \['rows', 7\], got \[4\]"),
        (dtypes.BFLOAT16, np.zeros(14, np.uint8), r"takes bfloat16, got uint8"),
        (dtypes.UINT4, np.full((1, 7), 16, np.uint8), "numbers are 0 to 15; there are numbers from 16 to 16"),
        (dtypes.UINT4, np.full((1, 7), -1, np.int8), "numbers are 0 to 15; there are numbers from -1 to -1"),
        (dtypes.INT4, np.full((1, 7), 8, np.int8), "numbers are -8 to 7; there are numbers from 8 to 8"),
        (dtypes.INT4, np.full((1, 7), 15, np.uint8), "numbers are -8 to 7; there are numbers from 15 to 15"),
        (dtypes.INT2, np.full((1, 7), -3, np.int8), "numbers are -2 to 1"),
        (dtypes.UINT2, np.full((1, 7), 4, np.uint8), "numbers are 0 to 3"),
        (dtypes.UINT4, np.zeros((1, 7), np.int64), r"got int64; convert it with .astype\(ml_dtypes.uint4\)"),
        (dtypes.UINT4, [[99] * 7], "uint4, which does not have the number 99"),
        (dtypes.INT4, [[0.5] * 7], "int4, which does not have the number 0.5"),
        (dtypes.BFLOAT16, [[0.1] * 7], "bfloat16, which does not have the number 0.1"),
        (dtypes.FLOAT8E4M3FN, [[1000.0] * 7], "float8_e4m3fn, which does not have the number 1000.0"),
        (dtypes.FLOAT4E2M1, [[7.0] * 7], "float4_e2m1fn, which does not have the number 7.0"),
        (dtypes.FLOAT4E2M1, [[np.nan] * 7], "float4_e2m1fn, which does not have the number nan"),
        (dtypes.FLOAT8E8M0, [[-1.0] * 7], "float8_e8m0fnu, which does not have the number -1.0"),
        (dtypes.UINT4, np.zeros((1, 7), np.float32), "takes uint4, got float32"),
        (dtypes.FLOAT4E2M1, np.zeros((1, 7), np.uint8), "takes float4_e2m1fn, got uint8"),
        (dtypes.FLOAT8E5M2, np.zeros((1, 7), np.int8), "takes float8_e5m2, got int8"),
        (dtypes.FLOAT8E5M2, np.zeros((1, 7), ml_dtypes.float8_e4m3fn), "float8_e5m2, got float8_e4m3fn"),
        (dtypes.BFLOAT16, np.zeros((1, 7), np.float16), "takes bfloat16, got float16"),
        (dtypes.BFLOAT16, np.zeros((1, 7), np.int16), "takes bfloat16, got int16"),
        (dtypes.FLOAT32, np.zeros((1, 7), ml_dtypes.bfloat16), "takes float32, got bfloat16"),
        (dtypes.UINT8, np.zeros((1, 7), ml_dtypes.uint4), "takes uint8, got uint4"),
        (dtypes.UINT16, np.zeros((1, 7), ml_dtypes.bfloat16), "takes uint16, got bfloat16"),
    ],
)
def test_what_may_be_mistaken_or_cannot_be_held_is_refused(dtype: DType, given: Any, said: str) -> None:
    with (
        vkml.InferenceSession(_casts(dtype), devices="cpu") as session,
        pytest.raises(vkml.InvalidArgument, match=said),
    ):
        session.run(None, {"x": given})


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_constants_have_their_shape(dtype: DType, device_name: str, tmp_path: Path) -> None:
    """An initializer that is an output, one that a node hands on, one that is folded, in files beside."""
    elements = _elements(dtype)
    tensor = numpy_helper.from_array(elements, "c")
    assert tensor.data_type == dtype.code
    nodes = [
        helper.make_node("Identity", ["c"], ["handed"]),
        helper.make_node("Cast", ["c"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["floats", "x"], ["sum"]),
        helper.make_node("Constant", [], ["inside"], value=tensor),
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("c", "handed", "sum", "inside")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    graph = helper.make_graph(nodes, "constants", inputs, outputs, [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=13)
    onnx.save(model, tmp_path / "inside.onnx")
    beside = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save(model, tmp_path / "beside.onnx", **beside, convert_attribute=False)
    saved = save_graph(vkml.onnx.load_graph(tmp_path / "beside.onnx"))
    for source in (tmp_path / "inside.onnx", tmp_path / "beside.onnx", saved):
        with vkml.InferenceSession(source, devices=device_name) as session:
            for _ in range(2):
                own, handed, total, inside = session.run(None, {"x": np.ones(1, np.float32)})
                for found in (own, handed, inside):
                    assert found.dtype == elements.dtype and found.shape == elements.shape
                    assert found.tobytes() == elements.tobytes()
                np.testing.assert_array_equal(total, elements.astype(np.float32) + 1)


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_values_of_onnx_go_in_and_come_back(dtype: DType, device_name: str) -> None:
    """Arrays that onnx reads from tensors are what sessions take, and tensors made of results are onnx's."""
    values = [1.0, 2.0, 1.0] if dtype != dtypes.INT2 else [1.0, -2.0, 0.0]
    values = values if dtype != dtypes.UINT2 else [1.0, 3.0, 0.0]
    tensor = helper.make_tensor("x", dtype.code, [3], values)
    sketch = Sketch("identity", OPSET)
    x = sketch.input("x", ("n",), dtype)
    model = save_graph(sketch.finish(sketch.node("Concat", x, x, axis=0)))
    with vkml.InferenceSession(model, devices=device_name) as session:
        [found] = session.run(None, {"x": numpy_helper.to_array(tensor)})
    returned = numpy_helper.from_array(found, "y")
    assert returned.data_type == dtype.code and list(returned.dims) == [6]
    np.testing.assert_array_equal(numpy_helper.to_array(returned).astype(np.float32), values * 2)


def test_numbers_that_decide_shapes() -> None:
    sketch = Sketch("fill", OPSET)
    shape = sketch.node("Cast", sketch.input("shape", (3,), dtypes.UINT4), to=TensorProto.INT64)
    model = save_graph(sketch.finish(sketch.node("ConstantOfShape", shape)))
    with vkml.InferenceSession(model, devices="cpu") as session:
        for wanted in ((2, 3, 1), (4, 5, 6), (2, 3, 1)):
            for kind in (np.uint8, ml_dtypes.uint4):
                [found] = session.run(None, {"shape": np.array(wanted).astype(kind)})
                assert found.shape == wanted


@pytest.mark.parametrize("optimise", [True, False])
def test_cast_like_reads_no_element_of_what_states_the_type(optimise: bool, device_name: str) -> None:
    """Its second input may have any shape, and a type that the device cannot compute with."""
    options = vkml.SessionOptions()
    if not optimise:
        options.graph_optimization_level = vkml.GraphOptimizationLevel.ORT_DISABLE_ALL
    for dtype in (dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.INT32):
        sketch = Sketch("like", OPSET)
        x, like = sketch.input("x", ("n",), dtypes.FLOAT32), sketch.input("like", ("a", "b"), dtype)
        cast = sketch.node("CastLike", sketch.node("Neg", x), like)
        shape = sketch.node("CastLike", sketch.constant(np.array([3.0], np.float32)), sketch.input("k", (1,)))
        made = sketch.node("ConstantOfShape", sketch.node("Cast", shape, to=TensorProto.INT64))
        model = save_graph(sketch.finish(cast, made))
        feed = {"x": np.array([1.5, -2, 4], np.float32), "like": np.zeros((2, 5), dtype.storage)}
        with vkml.InferenceSession(model, options, devices=device_name) as session:
            found, filled = session.run(None, {**feed, "k": np.ones(1, np.float32)})
        assert found.dtype == dtype.storage and filled.shape == (3,)
        np.testing.assert_array_equal(found, (-feed["x"]).astype(dtype.storage))
