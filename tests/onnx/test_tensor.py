"""Tensors: values of every type in every field, views without copies, data that do not fit their shape."""

from __future__ import annotations

import ctypes
import weakref

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkml.onnx
from tests.onnx import models
from vkml import errors
from vkml.errors import InvalidArgument, InvalidGraph, InvalidProtobuf
from vkml.ir import dtypes
from vkml.ir.packing import from_bytes, to_bytes
from vkml.onnx import Tensor, messages, tensor, wire
from vkml.onnx.external import ExternalFiles

NO_FILES = ExternalFiles(())


def ours(proto: TensorProto) -> Tensor:
    data = proto.SerializeToString()
    return Tensor(wire.read_message(messages.TENSOR, memoryview(data), 0, len(data)), NO_FILES)


TYPED = list(models.typed_fields().graph.initializer)


@pytest.mark.parametrize("proto", TYPED, ids=lambda proto: proto.name)
def test_typed_fields(proto):
    got = ours(proto)
    expected = numpy_helper.to_array(proto)
    assert got.dtype.code == proto.data_type
    assert got.shape == (3,)
    assert not got.array().flags.writeable
    assert got.array().dtype == got.dtype.storage
    if got.dtype is not dtypes.STRING:
        assert got.array().dtype == expected.dtype
    assert got.array().tolist() == [
        item.decode() if isinstance(item, bytes) else item for item in expected.tolist()
    ]


@pytest.mark.parametrize("code", [dtype.code for dtype in dtypes.ALL if dtype is not dtypes.STRING])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 2)])
def test_raw_data(code, shape):
    dtype = dtypes.from_code(code)
    size = dtype.bytes_for(int(np.prod(shape)))
    data = (
        np.random.default_rng(code).integers(0, 2 if dtype is dtypes.BOOL else 128, size, np.uint8).tobytes()
    )
    if used := int(np.prod(shape)) * dtype.bits % 8:
        data = data[:-1] + bytes([data[-1] & ((1 << used) - 1)])
    proto = TensorProto(data_type=code, dims=shape, raw_data=data)
    got = ours(proto)
    expected = numpy_helper.to_array(proto)
    for array in (got.array(), got.constant().array):
        assert (array.shape, array.dtype) == (shape, expected.dtype)
        assert array.tobytes() == expected.tobytes() and not array.flags.writeable
    assert got.constant().data.tobytes() == data


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if not d.is_native], ids=str)
@pytest.mark.parametrize("elements", [0, 1, 7, 256])
def test_every_code_of_types_that_numpy_lacks(dtype, elements):
    kept = np.uint16 if dtype.bits == 16 else np.uint8
    array = (np.arange(elements) % (1 << min(dtype.bits, 16))).astype(kept).view(dtype.storage)
    theirs = numpy_helper.from_array(array)
    assert theirs.data_type == dtype.code
    got = ours(theirs)
    assert got.array().tobytes() == array.tobytes() == numpy_helper.to_array(theirs).tobytes()
    assert to_bytes(array, dtype).tobytes() == theirs.raw_data
    assert (
        from_bytes(np.frombuffer(theirs.raw_data, np.uint8), dtype, (elements,)).tobytes() == array.tobytes()
    )


def test_packed_constants_stay_packed():
    proto = numpy_helper.from_array(np.ones((512, 1024), ml_dtypes.int4))
    constant = ours(proto).constant()
    first = constant.array
    assert constant.array is first, "unpacked once while somebody holds it"
    memory = weakref.ref(first)
    del first
    assert memory() is None, "and not kept"
    assert constant.data.nbytes == constant.type.bytes == 1 << 18
    assert constant.type.host_bytes == constant.array.nbytes == 1 << 19


@pytest.mark.parametrize(("bits", "dtype"), [(4, dtypes.INT4), (2, dtypes.UINT2)])
def test_bytes_that_are_not_as_many_as_elements_take(bits, dtype):
    with pytest.raises(InvalidArgument, match=rf"5 elements of {dtype.name} take {5 * bits // 8 + 1} bytes"):
        from_bytes(np.zeros(4, np.uint8), dtype, (5,))


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


@pytest.mark.parametrize("padding", range(5))
def test_raw_data_are_views_at_any_alignment(padding, tmp_path):
    made = models.plain()
    # The name's length moves the data behind it.
    made.graph.initializer[0].name = made.graph.node[0].input[1] = "w" * (padding + 1)
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    data = path.read_bytes()
    at = data.index(made.graph.initializer[0].raw_data)
    opened = vkml.onnx.open(path)
    (weight,) = opened.tensors().values()
    array = weight.array()
    assert array.ctypes.data == address(opened._bytes()) + at
    assert array.flags.aligned == (at % 4 == 0)
    assert not array.flags.writeable
    expected = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(array @ array.T, expected @ expected.T)
    np.testing.assert_array_equal(np.ascontiguousarray(array)[::-1].sum(0), expected.sum(0))
    assert ctypes.string_at(array.ctypes.data, array.nbytes) == expected.tobytes()
    aligned = weight.array(aligned=True)
    assert aligned.flags.aligned
    assert not aligned.flags.writeable
    assert (aligned.ctypes.data == array.ctypes.data) == array.flags.aligned


def test_float_fields_are_views():
    proto = helper.make_tensor("t", TensorProto.FLOAT, [3], [1, 2, 3])
    data = proto.SerializeToString()
    view = memoryview(data)
    got = Tensor(wire.read_message(messages.TENSOR, view, 0, len(data)), NO_FILES).array()
    assert address(view) <= got.ctypes.data < address(view) + len(data)


def test_unpacked_fields():
    single = b"".join(b"\x25" + np.float32(number).tobytes() for number in (1.5, 2.5))
    data = b"\x08\x02\x10\x01" + single
    assert ours(TensorProto.FromString(data)).array().tolist() == [1.5, 2.5]
    got = Tensor(wire.read_message(messages.TENSOR, memoryview(data), 0, len(data)), NO_FILES)
    assert got.array().tolist() == [1.5, 2.5]


def test_bools_that_are_neither_zero_nor_one():
    got = ours(TensorProto(data_type=TensorProto.BOOL, dims=[3], raw_data=b"\x00\x02\xff")).array()
    assert got.view(np.uint8).tolist() == [0, 1, 1]


BAD = {
    "too few raw bytes": (dict(data_type=1, dims=[2], raw_data=bytes(7)), "takes 8 bytes, there are 7"),
    "too many raw bytes": (dict(data_type=1, dims=[1], raw_data=bytes(8)), "takes 4 bytes, there are 8"),
    "no data": (dict(data_type=1, dims=[2**40]), "takes 1099511627776 numbers in float_data, there are 0"),
    "too many numbers": (dict(data_type=7, dims=[1], int64_data=[1, 2]), "takes 1 numbers in int64_data"),
    "data in another field": (dict(data_type=7, dims=[1], float_data=[1]), "int64_data, there are 0"),
    "negative dimension": (dict(data_type=1, dims=[-1], raw_data=b""), "negative dimension"),
    "product overflows 64 bits": (dict(data_type=1, dims=[2**32, 2**32], raw_data=b""), "more elements"),
    "product wraps round to zero": (dict(data_type=1, dims=[2**31, 2**31, 4], raw_data=b""), "more elements"),
    "empty, yet too large": (dict(data_type=1, dims=[0, 2**62], raw_data=b""), "more elements"),
    "rank": (dict(data_type=1, dims=[1] * 65, raw_data=bytes(4)), "65 dimensions"),
    "no type": (dict(dims=[1], raw_data=bytes(4)), "element type 0"),
    "unknown type": (
        dict(data_type=99, dims=[1], raw_data=bytes(4)),
        r"type 99 is not .* \(known: 1 to 28\)",
    ),
    "raw strings": (dict(data_type=8, dims=[1], raw_data=bytes(4)), "never in raw"),
    "too few strings": (dict(data_type=8, dims=[2], string_data=[b"a"]), "has 2 strings, string_data has 1"),
    "odd 4-bit length": (dict(data_type=22, dims=[5], raw_data=bytes(2)), "takes 3 bytes, there are 2"),
    "odd 2-bit length": (dict(data_type=26, dims=[5], raw_data=bytes(3)), "takes 2 bytes, there are 3"),
}


@pytest.mark.parametrize("name", BAD)
def test_data_that_do_not_fit(name):
    fields, message = BAD[name]
    with pytest.raises(InvalidGraph, match=message):
        ours(TensorProto(name="t", **fields)).array()


def test_malformed_tensors():
    with pytest.raises(InvalidProtobuf, match="not UTF-8"):
        ours(TensorProto(data_type=8, dims=[1], string_data=[b"\xff"])).array()
    with pytest.raises(InvalidProtobuf, match="location 7"):
        Tensor(messages.TensorProto(data_type=1, data_location=7), NO_FILES).array()
    with pytest.raises(errors.NotImplemented, match="segments"):
        ours(
            TensorProto(data_type=1, dims=[1], raw_data=bytes(4), segment=TensorProto.Segment(begin=0))
        ).array()
    for code, name in ((27, "float6e2m3"), (28, "float6e3m2")):
        with pytest.raises(
            errors.NotImplemented, match=f"tensor 't': the element type {name} is not supported"
        ):
            ours(TensorProto(name="t", data_type=code, dims=[4], raw_data=bytes(3))).array()
    cut = messages.TensorProto(data_type=7, dims=(1,), int64_data=b"\x01\x80")
    with pytest.raises(InvalidProtobuf, match="cut off"):
        Tensor(cut, NO_FILES).array()
    with pytest.raises(InvalidGraph, match="7 bytes"):
        Tensor(messages.TensorProto(data_type=1, dims=(1,), float_data=bytes(7)), NO_FILES).array()


def sparse(values, indices, dims, code=TensorProto.FLOAT) -> messages.SparseTensorProto:
    made = helper.make_sparse_tensor(
        helper.make_tensor("v", code, [len(values)], values),
        numpy_helper.from_array(np.array(indices, np.int64), "i"),
        dims,
    )
    data = made.SerializeToString()
    return wire.read_message(messages.TABLES["SparseTensorProto"], memoryview(data), 0, len(data))


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse(indices):
    got = tensor.densify(sparse([1.5, -2.0], indices, [2, 3]), NO_FILES, "t")
    assert got.dtype is dtypes.FLOAT32
    assert got.shape == (2, 3)
    assert got.array.tolist() == [[0, 1.5, 0], [0, 0, -2]]
    assert not got.array.flags.writeable


def test_sparse_strings():
    got = tensor.densify(sparse(["a"], [1], [2], TensorProto.STRING), NO_FILES, "t")
    assert got.array.tolist() == ["", "a"]


@pytest.mark.parametrize(
    ("indices", "dims", "message"),
    [
        ([1, 6], [2, 3], "outside"),
        ([-1, 1], [2, 3], "outside"),
        ([[0, 0], [0, 3]], [2, 3], "outside"),
        ([1], [2, 3], "2 values in 2 dimensions"),
        ([[[1]], [[1]]], [2, 3], "2 values in 2 dimensions"),
        ([1, 2], [2, -3], "negative"),
    ],
)
def test_bad_sparse(indices, dims, message):
    with pytest.raises(InvalidGraph, match=message):
        tensor.densify(sparse([1.0, 2.0], indices, dims), NO_FILES, "t")


def test_sparse_too_large_when_dense():
    with pytest.raises(errors.NotImplemented, match="bytes dense"):
        tensor.densify(sparse([1.0], [1], [2**30]), NO_FILES, "t")
    with pytest.raises(InvalidGraph, match="no values"):
        tensor.densify(messages.SparseTensorProto(dims=(3,)), NO_FILES, "t")
