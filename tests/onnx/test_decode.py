"""Small element types: every code against the onnx package's values."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from vkml.errors import InvalidArgument
from vkml.ir import dtypes
from vkml.ir.packing import pack, unpack
from vkml.onnx import decode


def reference(dtype, data: np.ndarray, shape) -> np.ndarray:
    proto = TensorProto(data_type=dtype.code, dims=shape, raw_data=data.tobytes())
    return numpy_helper.to_array(proto).astype(np.float32)


@pytest.mark.parametrize(
    "dtype",
    [
        dtypes.FLOAT8E4M3FN,
        dtypes.FLOAT8E4M3FNUZ,
        dtypes.FLOAT8E5M2,
        dtypes.FLOAT8E5M2FNUZ,
        dtypes.FLOAT8E8M0,
    ],
    ids=repr,
)
def test_every_float8(dtype):
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)
    got = decode.decode(codes, dtype, (16, 16))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, reference(dtype, codes, (16, 16)))
    assert (
        np.array_equal(np.signbit(got), np.signbit(reference(dtype, codes, (16, 16)))) or np.isnan(got).any()
    )


def test_every_bfloat16():
    codes = np.arange(65536, dtype=np.uint16)
    np.testing.assert_array_equal(
        decode.decode(codes, dtypes.BFLOAT16, codes.shape), reference(dtypes.BFLOAT16, codes, codes.shape)
    )


@pytest.mark.parametrize(
    "dtype", [dtypes.INT4, dtypes.UINT4, dtypes.FLOAT4E2M1, dtypes.INT2, dtypes.UINT2], ids=repr
)
@pytest.mark.parametrize("elements", [0, 1, 16, 15, 7])
def test_every_code_below_a_byte(dtype, elements):
    packed = pack((np.arange(elements) % (1 << dtype.bits)).astype(np.uint8), dtype.bits)
    assert packed.size == dtype.bytes_for(elements)
    got = decode.decode(packed, dtype, (elements,))
    assert got.dtype == {"i": np.int8, "u": np.uint8, "f": np.float32}[dtype.kind]
    np.testing.assert_array_equal(got.astype(np.float32), reference(dtype, packed, (elements,)))


def test_native_types_pass_through():
    array = np.ones((2, 2), np.float16)
    assert decode.decode(array, dtypes.FLOAT16, (2, 2)) is array


def test_too_few_bytes():
    with pytest.raises(InvalidArgument, match="5 4-bit elements take 3 bytes, there are 2"):
        unpack(np.zeros(2, np.uint8), 5)
    with pytest.raises(InvalidArgument, match="5 2-bit elements take 2 bytes, there are 3"):
        unpack(np.zeros(3, np.uint8), 5, 2)
