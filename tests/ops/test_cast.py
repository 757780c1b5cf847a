"""Cast and CastLike between all element types, and the encodings of those that NumPy lacks."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from tests.ops.checking import assert_same, check_operator, inferred_types, random_array, run_operator
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidArgument, InvalidGraph, NotImplemented
from vkml.ir import Constant, DType, dtypes, static
from vkml.ir.packing import pack, unpack
from vkml.onnx import save_graph
from vkml.ops.number_formats import decode, encode

NATIVE = [dtypes.BOOL, *dtypes.NUMBERS]
MINI = {
    dtypes.BFLOAT16: "bfloat16",
    dtypes.FLOAT8E4M3FN: "float8_e4m3fn",
    dtypes.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    dtypes.FLOAT8E5M2: "float8_e5m2",
    dtypes.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    dtypes.FLOAT4E2M1: "float4_e2m1fn",
    dtypes.FLOAT8E8M0: "float8_e8m0fnu",
}


@pytest.mark.parametrize("source", NATIVE, ids=str)
@pytest.mark.parametrize("target", NATIVE, ids=str)
def test_native_types(source: DType, target: DType) -> None:
    data = random_array(np.random.default_rng(1), source.storage, (3, 5))
    if target.kind == "u":
        data = np.abs(data)
    check_operator("Cast", [data], {"to": target.code}, opset=13)
    check_operator("CastLike", [data, np.ones(1, target.storage)], opset=15, against="onnx")


def test_integers_keep_their_low_bits_and_floats_lose_their_fraction() -> None:
    assert run_operator("Cast", [np.array([200, -129, 65536], np.int32)], {"to": 3})[0].tolist() == [
        -56,
        127,
        0,
    ]
    assert run_operator("Cast", [np.array([-1], np.int64)], {"to": 13})[0].tolist() == [2**64 - 1]
    assert run_operator("Cast", [np.array([2.9, -2.9], np.float32)], {"to": 6})[0].tolist() == [2, -2]
    assert run_operator("Cast", [np.array([0.0, -0.0, 0.1, np.nan], np.float32)], {"to": 9})[0].tolist() == [
        False, False, True, True,
    ]  # fmt: skip
    found = run_operator("Cast", [np.array([1e6, -1e6, np.nan], np.float64)], {"to": 10})[0]
    assert_same(found, np.array([np.inf, -np.inf, np.nan], np.float16))
    # Out of range is undefined, but it must not warn or fail.
    assert run_operator("Cast", [np.array([1e30, np.nan, -np.inf], np.float32)], {"to": 6})[0].shape == (3,)


@pytest.mark.parametrize("dtype", MINI, ids=str)
def test_decoding_every_code(dtype: DType) -> None:
    foreign = np.dtype(getattr(pytest.importorskip("ml_dtypes"), MINI[dtype]))
    count = 1 << dtype.bits
    codes = np.arange(count).astype(dtype.storage)
    stored = pack(codes) if dtype.bits == 4 else codes
    expected = codes.view(foreign).astype(np.float32)
    assert_same(decode(stored, dtype, (count,)), expected, 0, 0)


@pytest.mark.parametrize("dtype", [d for d in MINI if d != dtypes.FLOAT8E8M0], ids=str)
def test_encoding_rounds_to_nearest_even(dtype: DType) -> None:
    foreign = np.dtype(getattr(pytest.importorskip("ml_dtypes"), MINI[dtype]))
    nan = encode(np.array([np.nan], np.float32), dtype)
    assert (nan & 0xF if dtype.bits == 4 else nan) == np.array([np.nan]).astype(foreign).view(dtype.storage)
    rng = np.random.default_rng(2)
    codes = np.arange(1 << min(dtype.bits, 12)).astype(dtype.storage)
    stored = pack(codes) if dtype.bits == 4 else codes
    exact = decode(stored, dtype, codes.shape)
    exact = np.sort(exact[np.isfinite(exact)])
    # Every representable number, the midpoints between neighbours, and numbers of all sizes.
    spread = rng.standard_normal(2000) * np.exp2(rng.integers(-12, 6, 2000))
    values = np.concatenate([exact, (exact[1:] + exact[:-1]) / 2, spread]).astype(np.float32)
    values = values[np.abs(values) <= exact[-1]]
    found = decode(encode(values, dtype), dtype, values.shape)
    expected = values.astype(foreign).astype(np.float32)
    assert_same(found, expected, 0, 0)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


SATURATED = {"E4M3FN": 448, "E4M3FNUZ": 240, "E5M2": 57344, "E5M2FNUZ": 57344}


@pytest.mark.parametrize("name", SATURATED)
def test_float8_saturates_as_the_specification_says(name: str) -> None:
    dtype = getattr(dtypes, f"FLOAT8{name}")
    values = np.array([1e9, -1e9, np.inf, -np.inf, np.nan], np.float32)
    largest = SATURATED[name]
    saturated = run_operator("Cast", [values], {"to": dtype.code, "saturate": 1}, opset=19)[0]
    assert_same(decode(saturated, dtype), np.float32([largest, -largest, largest, -largest, np.nan]))
    free = run_operator("Cast", [values], {"to": dtype.code, "saturate": 0}, opset=19)[0]
    overflow = np.inf if name == "E5M2" else np.nan
    assert_same(decode(free, dtype), np.float32([overflow, -overflow, overflow, -overflow, np.nan]))
    zero = run_operator("Cast", [np.array([-0.0], np.float32)], {"to": dtype.code}, opset=19)[0]
    assert zero.tolist() == [0 if name.endswith("UZ") else 0x80]


def test_scale_type_rounds_as_asked() -> None:
    values = np.array([1.0, 1.25, 1.5, 1.75, 3.0, 0.0, np.inf, np.nan, 2.0**-140], np.float64)
    modes = {
        "up": [127, 128, 128, 128, 129, 0, 254, 255, 0],
        "down": [127, 127, 127, 127, 128, 0, 254, 255, 0],
        "nearest": [127, 127, 128, 128, 129, 0, 254, 255, 0],
    }
    for mode, expected in modes.items():
        attributes = {"to": dtypes.FLOAT8E8M0.code, "round_mode": mode}
        assert run_operator("Cast", [values], attributes, opset=24)[0].tolist() == expected
    free = {"to": dtypes.FLOAT8E8M0.code, "round_mode": "nearest", "saturate": 0}
    assert run_operator("Cast", [values], free, opset=24)[0].tolist()[5:] == [255] * 4


def test_bfloat16_keeps_nan_and_infinity() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3.4e38, 1.0, -0.0], np.float32)
    found = decode(encode(values, dtypes.BFLOAT16), dtypes.BFLOAT16)
    assert_same(found, np.float32([np.nan, np.inf, -np.inf, np.inf, 1.0, -0.0]))
    hidden = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(decode(encode(hidden, dtypes.BFLOAT16), dtypes.BFLOAT16)).all()


@pytest.mark.parametrize("dtype", [dtypes.INT2, dtypes.UINT2], ids=str)
def test_two_bits_there_and_back(dtype: DType) -> None:
    numbers = [-2, -1, 0, 1, 1] if dtype == dtypes.INT2 else [0, 1, 2, 3, 3]
    values = np.array(numbers, np.float32)
    packed = run_operator("Cast", [values], {"to": dtype.code}, opset=25)[0]
    assert packed.dtype == np.uint8 and packed.shape == (2,)
    assert packed[1] == (numbers[4] & 3)
    for target in (dtypes.FLOAT32, dtypes.INT8, dtypes.INT64):
        back = run_operator("Cast", [Constant(dtype, (5,), packed)], {"to": target.code}, opset=25)[0]
        assert_same(back, values.astype(target.storage))


@pytest.mark.parametrize("dtype", [dtypes.INT4, dtypes.UINT4, dtypes.FLOAT4E2M1], ids=str)
def test_packed_types_there_and_back(dtype: DType) -> None:
    values = np.array([[1, 2, 3], [0, 6, 4]], np.float32)
    packed = run_operator("Cast", [values], {"to": dtype.code}, opset=23)[0]
    assert packed.dtype == np.uint8 and packed.shape == (3,)
    back = run_operator("Cast", [Constant(dtype, (2, 3), packed)], {"to": 1}, opset=23)[0]
    assert_same(back, values)
    assert packed[0] & 15 == (2 if dtype == dtypes.FLOAT4E2M1 else 1)
    [type_] = inferred_types("Cast", [values], {"to": dtype.code}, opset=23)
    assert type_ == static(dtype, (2, 3))


def test_int4_has_signs_and_odd_counts() -> None:
    values = np.array([-8, 7, -1], np.int32)
    packed = encode(values, dtypes.INT4)
    assert packed.tolist() == [0x78, 0x0F]
    assert decode(packed, dtypes.INT4, (3,)).tolist() == [-8, 7, -1]
    assert unpack(packed, 3).tolist() == [8, 7, 15]


def test_two_bit_integers() -> None:
    signed = DType("int2", 26, 2, "i", np.dtype(np.uint8))
    values = np.array([-2, 1, 0, -1, 1], np.int8)
    packed = encode(values, signed)
    assert packed.tolist() == [0b11000110, 0b00000001]
    assert decode(packed, signed, (5,)).tolist() == values.tolist()


@pytest.mark.parametrize("dtype", [dtypes.BFLOAT16, dtypes.FLOAT8E4M3FN], ids=str)
def test_raw_types_are_read_as_what_they_are(dtype: DType) -> None:
    values = np.array([1.5, -2, 0.25], np.float32)
    bits = Constant(dtype, (3,), encode(values, dtype))
    for target in (dtypes.FLOAT32, dtypes.FLOAT64, dtypes.INT32, dtypes.FLOAT8E5M2):
        [found] = run_operator("Cast", [bits], {"to": target.code}, opset=21)
        [expected] = run_operator("Cast", [values], {"to": target.code}, opset=21)
        assert_same(found, expected)
    [found] = run_operator("CastLike", [values, bits], opset=21)
    assert_same(found, bits.array)


def test_strings() -> None:
    texts = np.array(["1.5", "-2", "1e3", "INF", "-inf", "nan"], object)
    [found] = run_operator("Cast", [texts], {"to": 1})
    assert_same(found, np.float32([1.5, -2, 1000, np.inf, -np.inf, np.nan]))
    [found] = run_operator("Cast", [np.array(["9007199254740993", "-7"], object)], {"to": 7})
    assert found.tolist() == [9007199254740993, -7]
    [found] = run_operator("Cast", [np.array(["100.5"], object)], {"to": 6})
    assert found.tolist() == [100]
    [found] = run_operator("Cast", [np.array([0.1, 2.0], np.float32)], {"to": 8})
    assert found.dtype == object and [float(text) for text in found] == [0.1, 2.0]
    [found] = run_operator("Cast", [np.array([3, -4])], {"to": 8})
    assert found.tolist() == ["3", "-4"]
    with pytest.raises(InvalidArgument, match=r"Cast node 'checked'.*Hello"):
        run_operator("Cast", [np.array(["Hello"], object)], {"to": 1})


def test_names_of_opset_1() -> None:
    for name, dtype in (("FLOAT", "float32"), ("INT64", "int64"), ("FLOAT16", "float16"), ("BOOL", "bool")):
        [found] = run_operator("Cast", [np.array([1, 0, 2])], {"to": name}, opset=1)
        assert found.dtype == dtype
    with pytest.raises(InvalidGraph, match="FLOAT128"):
        run_operator("Cast", [np.array([1])], {"to": "FLOAT128"}, opset=1)


@pytest.mark.parametrize("cast", ["Cast", "CastLike"])
def test_a_cast_to_the_same_type_changes_nothing_in_fused_chains(device_name: str, cast: str) -> None:
    """Which know float16 more precisely than it is stored, but one value as one number."""
    sketch = Sketch("same")
    x = sketch.input("x", (2, 16, 8), dtypes.FLOAT16)
    mean = sketch.node("AveragePool", x, kernel_shape=(3,))
    again = sketch.node("CastLike", mean, mean) if cast == "CastLike" else sketch.node("Cast", mean, to=10)
    order = sketch.node("LessOrEqual", again, mean)
    model = save_graph(sketch.finish(mean, order, sketch.node("Mod", mean, mean, fmod=1)))
    given = random_array(np.random.default_rng(0), np.float16, (2, 16, 8))
    with vkml.InferenceSession(model, devices=device_name) as session:
        assert session.run(None, {"x": given})[1].all()


def test_errors() -> None:
    with pytest.raises(InvalidGraph, match="99"):
        inferred_types("Cast", [np.zeros(2)], {"to": 99})
    with pytest.raises(InvalidGraph, match="complex64"):
        inferred_types("Cast", [np.zeros(2)], {"to": dtypes.COMPLEX64.code})
    with pytest.raises(InvalidGraph, match="round_mode"):
        inferred_types("Cast", [np.zeros(2)], {"to": 24, "round_mode": "sideways"})
    with pytest.raises(InvalidGraph, match="'to'"):
        inferred_types("Cast", [np.zeros(2)])
    # Without `resolve`, raw bits would be read as integers.
    bits = static(dtypes.BFLOAT16, (2,))
    with pytest.raises(NotImplemented, match=r"bfloat16.*resolve"):
        inferred_types("Cast", [bits], {"to": 1})
    with pytest.raises(NotImplemented, match=r"second input is bfloat16"):
        inferred_types("CastLike", [np.zeros(2), bits])
