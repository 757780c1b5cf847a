"""Cast and CastLike between all element types."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference.ops.op_cast import cast_to

import vkml
from tests.ops.checking import Array, assert_same, check_operator, inferred_types, random_array, run_operator
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidArgument, InvalidGraph
from vkml.ir import DType, dtypes, static
from vkml.onnx import save_graph

NATIVE = [dtype for dtype in (dtypes.BOOL, *dtypes.NUMBERS) if dtype.is_native]
SMALL = [dtype for dtype in dtypes.ALL if not dtype.is_native]
SCALE = dtypes.FLOAT8E8M0


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


def every_code(dtype: DType) -> Array:
    """All elements of a type of up to 16 bits."""
    bits = np.uint16 if dtype.bits == 16 else np.uint8
    return np.arange(1 << dtype.bits).astype(bits).view(dtype.storage)


def interesting(dtype: DType) -> Array:
    """Numbers of a native type: edges of all the small types, what lies about them, and any."""
    random = np.random.default_rng(2)
    if dtype == dtypes.BOOL:
        return np.array([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.storage)
        near = np.clip(np.arange(-300, 300), info.min, info.max).astype(dtype.storage)
        return np.concatenate([near, np.array([info.min, info.max, info.max - 1, info.max // 3], near.dtype)])
    edges = [every_code(small).astype(np.float64) for small in SMALL if small.bits <= 8]
    finite = np.unique(np.concatenate([edge[np.isfinite(edge)] for edge in edges]))
    spread = random.standard_normal(2000) * np.exp2(random.integers(-20, 20, 2000))
    with np.errstate(all="ignore"):
        return np.concatenate(
            [finite, (finite[1:] + finite[:-1]) / 2, spread, [-0.0, 1e9, -1e9, np.inf, -np.inf, np.nan]]
        ).astype(dtype.storage)


def is_defined(values: Array, target: DType) -> Array:
    """Where ONNX says what a number becomes, and its evaluator does what ONNX says."""
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        if target == SCALE:
            # Its zeros, infinities and numbers below float32's normal ones are not those of ONNX's table
            # (`test_scale_type_rounds_as_asked`), negative ones have no meaning, large integers are rounded.
            is_rounded = values.dtype.kind in "iu"
            inside = (wide >= 2.0**-126) & np.isfinite(wide) & ((wide <= 2.0**24) | (not is_rounded))
            return np.asarray(inside | np.isnan(wide))
        if not target.is_integer or dtypes.from_numpy(values.dtype).is_integer:
            return np.ones(values.shape, np.bool_)
        low = 0 if target.kind == "u" else -(2.0 ** (target.bits - 1))
        return np.asarray((wide > low - 1) & (wide < low + 2.0**target.bits))


def bits_of(array: Array) -> Array:
    """The bits, and one pattern for all NaNs: their payload is nobody's business."""
    is_nan = array != array
    return np.where(is_nan, -1, array.view(f"u{array.dtype.itemsize}").astype(np.int64))


CAST = [dtype for dtype in dtypes.ALL if dtype.kind in "fiub"]


@pytest.mark.parametrize("target", CAST, ids=str)
@pytest.mark.parametrize("source", CAST, ids=str)
def test_every_code_becomes_what_onnx_says(source: DType, target: DType) -> None:
    if source.is_native and target.is_native:
        return  # test_native_types
    if source.bits < 8 and target.bits < 8 and source != target and source.is_integer and target.is_integer:
        # ml_dtypes, and with it onnx's evaluator, has no such conversion.
        shift = 1 << target.bits
        least = 0 if target.kind == "u" else -shift // 2
        expected = (every_code(source).astype(np.int64) - least) % shift + least
        [found] = run_operator("Cast", [every_code(source)], {"to": target.code}, opset=25)
        np.testing.assert_array_equal(found.astype(np.int64), expected)
        return
    values = every_code(source) if not source.is_native else interesting(source)
    values = values[is_defined(values, target)]
    for saturate in (1, 0):
        for mode in ("up", "down", "nearest") if target == SCALE else ("up",):
            attributes = {"to": target.code, "saturate": saturate, "round_mode": mode}
            [found] = run_operator("Cast", [values], attributes, opset=25)
            with np.errstate(all="ignore"):
                # ml_dtypes has no way from float8e8m0 to other small types; float32 has all of its numbers.
                given = values.astype(np.float32) if source == SCALE else values
                expected = np.asarray(cast_to(given, target.code, bool(saturate), mode))
            assert found.dtype == expected.dtype == target.storage
            np.testing.assert_array_equal(bits_of(found), bits_of(expected), f"{saturate} {mode}")


SATURATED = {"E4M3FN": 448, "E4M3FNUZ": 240, "E5M2": 57344, "E5M2FNUZ": 57344}


@pytest.mark.parametrize("name", SATURATED)
def test_float8_saturates_as_the_specification_says(name: str) -> None:
    dtype = getattr(dtypes, f"FLOAT8{name}")
    values = np.array([1e9, -1e9, np.inf, -np.inf, np.nan], np.float32)
    largest = SATURATED[name]
    saturated = run_operator("Cast", [values], {"to": dtype.code, "saturate": 1}, opset=19)[0]
    assert_same(saturated.astype(np.float32), np.float32([largest, -largest, largest, -largest, np.nan]))
    free = run_operator("Cast", [values], {"to": dtype.code, "saturate": 0}, opset=19)[0]
    overflow = np.inf if name == "E5M2" else np.nan
    assert_same(free.astype(np.float32), np.float32([overflow, -overflow, overflow, -overflow, np.nan]))
    zero = run_operator("Cast", [np.array([-0.0], np.float32)], {"to": dtype.code}, opset=19)[0]
    assert zero.view(np.uint8).tolist() == [0 if name.endswith("UZ") else 0x80]


def test_scale_type_rounds_as_asked() -> None:
    values = np.array([1.0, 1.25, 1.5, 1.75, 3.0, 0.0, np.inf, np.nan, 2.0**-140], np.float64)
    modes = {
        "up": [127, 128, 128, 128, 129, 0, 254, 255, 0],
        "down": [127, 127, 127, 127, 128, 0, 254, 255, 0],
        "nearest": [127, 127, 128, 128, 129, 0, 254, 255, 0],
    }
    for mode, expected in modes.items():
        attributes = {"to": dtypes.FLOAT8E8M0.code, "round_mode": mode}
        assert run_operator("Cast", [values], attributes, opset=24)[0].view(np.uint8).tolist() == expected
    free = {"to": dtypes.FLOAT8E8M0.code, "round_mode": "nearest", "saturate": 0}
    assert run_operator("Cast", [values], free, opset=24)[0].view(np.uint8).tolist()[5:] == [255] * 4


def test_bfloat16_keeps_nan_and_infinity() -> None:
    hidden = np.array([0x7F800001], np.uint32).view(np.float32)
    values = np.array([np.nan, np.inf, -np.inf, 3.4e38, 1.0, -0.0, hidden[0]], np.float32)
    [found] = run_operator("Cast", [values], {"to": dtypes.BFLOAT16.code})
    assert_same(found.astype(np.float32), np.float32([np.nan, np.inf, -np.inf, np.inf, 1.0, -0.0, np.nan]))


@pytest.mark.parametrize("target", SMALL, ids=str)
def test_cast_like_takes_the_type_of_an_array(target: DType) -> None:
    values = np.array([[1, 0], [1, 2]], np.float32)
    [found] = run_operator("CastLike", [values, np.zeros(3, target.storage)], opset=25)
    assert_same(found, run_operator("Cast", [values], {"to": target.code}, opset=25)[0])
    [back] = run_operator("CastLike", [found, np.zeros(3, np.float64)], opset=25)
    assert back.dtype == np.float64


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
        inferred_types("Cast", [np.zeros(2, np.complex64)], {"to": dtypes.STRING.code})
    with pytest.raises(InvalidGraph, match="round_mode"):
        inferred_types("Cast", [np.zeros(2)], {"to": 24, "round_mode": "sideways"})
    with pytest.raises(InvalidGraph, match="'to'"):
        inferred_types("Cast", [np.zeros(2)])
    [type_] = inferred_types("Cast", [static(dtypes.BFLOAT16, (2,))], {"to": 22}, opset=25)
    assert type_ == static(dtypes.INT4, (2,))
