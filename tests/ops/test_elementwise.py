"""Arithmetic, functions of one number, comparisons, logic, bits: values, types and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import defs

import vkml
from tests.ops.checking import (
    assert_same,
    build_model,
    check_operator,
    inferred_types,
    random_array,
    run_operator,
)
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import TensorType, dtypes, static
from vkml.ir.operator import REGISTRY
from vkml.onnx import save_graph
from vkml.ops.pointwise import Pointwise
from vkml.ops.special_functions import erf

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTEGERS
SHAPES = [((2, 3), (2, 3)), ((4, 1, 5), (3, 1)), ((), (2, 2)), ((), ()), ((0, 3), (1, 3)), ((1,), (7,))]

UNARY = """Abs Neg Sign Ceil Floor Round Reciprocal Sqrt Exp Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh
Asinh Acosh Atanh""".split()  # noqa: SIM905
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-7, 88.0, -88.0, 1e4, np.inf, -np.inf, np.nan]


def generator(*seed: object) -> np.random.Generator:
    return np.random.default_rng(sum(map(ord, str(seed))))


def dtype_names(op: str) -> list[str]:
    spec = REGISTRY["", op]
    assert isinstance(spec, Pointwise)
    return [dtype.numpy_name for dtype in spec.allowed if dtype.is_native and dtype.kind not in "sc"]


@pytest.mark.parametrize("op", UNARY)
def test_functions_of_one_number(op: str) -> None:
    for name in dtype_names(op):
        rng = generator(op, name)
        for shape in ((3, 5), (), (0, 2)):
            data = random_array(rng, name, shape)
            if op in ("Asin", "Acos", "Atanh"):
                data = np.asarray(np.clip(data / 12, -0.999, 0.999), name)
            if op == "Sqrt" or op == "Log":
                data = np.abs(data)
            if op == "Acosh":
                data = np.abs(data) + np.ones((), name)
            # Both references compute Erf of doubles in float; the test of erf below has a better one.
            loose = 1e-6 if op == "Erf" and name == "float64" else None
            check_operator(op, [np.asarray(data)], opset=22, rtol=loose, atol=loose)


@pytest.mark.parametrize("op", UNARY)
def test_special_values(op: str) -> None:
    data = np.array(SPECIAL, np.float32)
    # The reference evaluator calls NumPy; onnxruntime's Sign and Acosh treat NaN otherwise.
    with np.errstate(all="ignore"):
        check_operator(op, [data], opset=22, against="onnx")
    check_operator(op, [data.astype(np.float16)], opset=22, against="onnx", atol=2e-3)


def test_round_is_half_to_even() -> None:
    [found] = run_operator("Round", [np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2.4999], np.float32)])
    assert found.tolist() == [0, 2, 2, 0, -2, -2, 2]


def test_erf_is_accurate_in_every_type() -> None:
    x = np.concatenate([np.linspace(-6, 6, 4001), np.geomspace(1e-30, 1, 500)])
    exact = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(erf(x), exact, rtol=1e-15, atol=0)
    single = x.astype(np.float32)
    exact = np.array([math.erf(v) for v in single.astype(np.float64)])
    np.testing.assert_allclose(erf(single), exact, rtol=5e-7, atol=0)
    assert erf(single).dtype == np.float32
    assert np.abs(erf(single)).max() <= 1
    edges = erf(np.array([np.nan, np.inf, -np.inf, 3e38, -0.0], np.float32))
    assert_same(edges, np.array([np.nan, 1, -1, 1, 0], np.float32))
    assert np.signbit(edges[-1])
    # Longer than one block, and not contiguous.
    long = np.linspace(-3, 3, 100_002).astype(np.float32).reshape(2, -1)
    np.testing.assert_array_equal(erf(long.T), erf(long).T)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
@pytest.mark.parametrize("name", NUMBERS)
def test_arithmetic(op: str, name: str) -> None:
    rng = generator(op, name)
    for first, second in SHAPES:
        a, b = random_array(rng, name, first), random_array(rng, name, second)
        if op == "Div" and np.dtype(name).kind in "iu":
            b = np.asarray(np.where(b == 0, 3, b), name)
        check_operator(op, [a, b], opset=14)


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "int64", "uint64"])
def test_integers_wrap_around(name: str) -> None:
    info = np.iinfo(name)
    a = np.array([info.max, info.min, info.max, info.min], name)
    b = np.array([1, 1, info.max, info.min], name)
    bits = info.bits
    for op, function in (("Add", int.__add__), ("Sub", int.__sub__), ("Mul", int.__mul__)):
        wrapped = [function(x, y) % 2**bits for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        if info.min < 0:
            wrapped = [v - 2**bits if v >= 2 ** (bits - 1) else v for v in wrapped]
        [found] = run_operator(op, [a, b])
        assert found.tolist() == wrapped, op


def test_integer_division_truncates_and_survives_zero() -> None:
    a = np.array([7, -7, 7, -7, 6, -6, 5, -5, 0], np.int32)
    b = np.array([2, 2, -2, -2, 3, 3, 0, 0, 0], np.int32)
    [found] = run_operator("Div", [a, b])
    assert found.tolist() == [3, -3, -3, 3, 2, -2, 0, 0, 0]
    least = np.array([-(2**31)], np.int32)
    [found] = run_operator("Div", [least, np.array([-1], np.int32)])
    assert found.tolist() == [-(2**31)]
    [found] = run_operator("Mod", [a, b])
    assert found.tolist()[-3:] == [0, 0, 0]


@pytest.mark.parametrize("name", NUMBERS)
def test_mod(name: str) -> None:
    rng = generator("Mod", name)
    a, b = random_array(rng, name, (4, 6)), random_array(rng, name, (6,))
    b = np.asarray(np.where(b == 0, 3, b), name)
    fmods = (1,) if np.dtype(name).kind == "f" else (0, 1)
    for fmod in fmods:
        check_operator(
            "Mod", [a, b], {"fmod": fmod}, opset=13, against="onnx" if name == "float16" else "onnxruntime"
        )


def test_mod_of_floats_with_the_sign_of_the_divisor() -> None:
    a = np.array([5.5, -5.5, 5.5, -5.5], np.float32)
    [found] = run_operator("Mod", [a, np.array([3, 3, -3, -3], np.float32)], {"fmod": 0})
    assert found.tolist() == [2.5, 0.5, -0.5, -2.5]


@pytest.mark.parametrize("base", ["float32", "float64", "float16", "int32", "int64"])
@pytest.mark.parametrize("exponent", ["float32", "float64", "int32", "int64"])
def test_pow_of_mixed_types(base: str, exponent: str) -> None:
    rng = generator(base, exponent)
    b = np.asarray(rng.integers(1, 6, (3, 4))).astype(base)
    e = np.asarray(rng.integers(0, 5, (4,))).astype(exponent)
    check_operator("Pow", [b, e], opset=15)
    for value in (2, 3):
        signed = np.asarray(-b)
        check_operator("Pow", [signed, np.array(value, exponent)], opset=15)


def test_pow_edges() -> None:
    base = np.array([-2, -2, 0, 0, -8, np.inf, 2, np.nan], np.float32)
    exponent = np.array([3, 2, 0, -1, 1 / 3, -1, -2, 0], np.float32)
    [found] = run_operator("Pow", [base, exponent])
    assert_same(found, np.array([-8, 4, 1, np.inf, np.nan, 0, 0.25, 1], np.float32))
    [found] = run_operator(
        "Pow", [np.array([2, 1, -1, -1, 0, 3], np.int32), np.array([-1, -5, -3, -2, 0, 40], np.int64)]
    )
    wrapped = (3**40 + 2**31) % 2**32 - 2**31
    assert found.tolist() == [0, 1, -1, 1, 1, wrapped]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("exponent", [np.uint32(2**32 - 2), np.uint32(2**31 + 1), np.uint64(2**64 - 1)])
def test_unsigned_exponents_are_not_negative(kind: type, exponent: np.unsignedinteger) -> None:
    bits = np.dtype(kind).itemsize * 8
    base = [0, 1, -1, 2, 3, -7, 754364331]
    expected = [(pow(b, int(exponent), 2**bits) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for b in base]
    [found] = run_operator("Pow", [np.array(base, kind), np.array(exponent)])
    assert found.tolist() == expected


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_roots_as_powers_of_zero_and_infinity_below_zero(
    device_name: str, name: str, exponent: float
) -> None:
    """IEEE 754 has pow(-0, ½) = 0 and pow(-∞, ½) = ∞; NumPy takes the square root where ½ is repeated."""
    data = np.array([-np.inf, -0.0, -4, 4, np.inf, np.nan, 0], name)
    zero, infinity = (0.0, np.inf) if exponent > 0 else (np.inf, 0.0)
    expected = np.array([infinity, zero, np.nan, 4**exponent, infinity, np.nan, zero], name)
    for shape in ((), (1,), (7,)):
        given = [data, np.full(shape, exponent, name)]
        [evaluated] = run_operator("Pow", given)
        model = build_model("Pow", given, opset=15).SerializeToString()
        with vkml.InferenceSession(model, devices=device_name) as session:
            [found] = session.run(None, {"x0": given[0], "x1": given[1]})
        for result in (evaluated, found):
            assert_same(result, expected)
            assert not np.signbit(result[[0, 1, 3, 4, 6]]).any()


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "exponent", [2**24 + 1, 2**31 - 1, -(2**24) - 1, -(2**53) - 1, 2**62 + 1, 2**62 + 2, 2**64 - 1, 3, 4, -5]
)
def test_odd_exponents_beyond_what_floats_hold_stay_odd(device_name: str, name: str, exponent: int) -> None:
    """Of 2²⁴ + 1, float32 has the even neighbours only."""
    data = np.array([-1, 1, -0.5, -np.inf, -0.0, 0, -2, np.nan], name)
    sign = -1 if exponent % 2 else 1
    power = float(min(max(exponent, -2000), 2000))
    with np.errstate(all="ignore"):
        size = np.abs(data).astype(np.float64) ** power
    expected = np.where(np.signbit(data), sign * size, size).astype(name)
    kinds = [
        kind
        for kind in ("int32", "int64", "uint32", "uint64")
        if np.iinfo(kind).min <= exponent <= np.iinfo(kind).max
    ]
    for kind in kinds:
        for shape in ((), (8,)):
            given = [data, np.full(shape, exponent, kind)]
            [evaluated] = run_operator("Pow", given)
            model = build_model("Pow", given, opset=15).SerializeToString()
            with vkml.InferenceSession(model, devices=device_name) as session:
                [found] = session.run(None, {"x0": given[0], "x1": given[1]})
            sketch = Sketch("constant")
            x = sketch.input("x", (8,), dtypes.from_numpy(np.dtype(name)))
            fixed = save_graph(sketch.finish(sketch.node("Pow", x, sketch.constant(given[1]))))
            with vkml.InferenceSession(fixed, devices=device_name) as session:
                [folded] = session.run(None, {"x": data})
            for result in (evaluated, found, folded):
                assert_same(result, expected)
                is_number = ~np.isnan(expected)
                assert (np.signbit(result) == np.signbit(expected))[is_number].all()


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_variadic(op: str) -> None:
    for name in ("float32", "float16", "float64"):
        rng = generator(op, name)
        arrays = [random_array(rng, name, shape) for shape in ((2, 3, 4), (4,), (3, 1), ())]
        for many in range(1, 5):
            check_operator(op, arrays[:many], opset=13)


def test_max_and_min_keep_nan() -> None:
    a, b = np.array([1, np.nan, 2], np.float32), np.array([np.nan, 1, 3], np.float32)
    for op in ("Max", "Min"):
        check_operator(op, [a, b], opset=13)


def test_very_many_inputs_are_none_of_a_kernels(device_name: str) -> None:
    """A driver would compile this one for ten seconds."""
    sketch = Sketch("many")
    names = [sketch.input(f"x{i}", (2,)) for i in range(3)]
    model = save_graph(sketch.finish(sketch.node("Max", *(names[i % 3] for i in range(1000)))))
    with vkml.InferenceSession(model, devices=device_name) as session:
        [found] = session.run(None, {name: np.float32([i, -i]) for i, name in enumerate(names)})
        assert {step.device for step in session.report().steps} == {"cpu"}
    assert found.tolist() == [2, 0]


def test_sum_of_float16_rounds_once() -> None:
    many = [np.array([1], np.float16), *[np.array([2**-12], np.float16)] * 8]
    [found] = run_operator("Sum", many)
    assert found[0] == np.float16(1 + 2**-9)


@pytest.mark.parametrize(
    "name", ["float32", "float16", "float64", "int8", "int32", "int64", "uint8", "uint64"]
)
def test_clip(name: str) -> None:
    rng = generator("Clip", name)
    data = random_array(rng, name, (3, 7))
    low, high = np.array(2, name), np.array(5, name)
    for bounds in ([low, high], [low], [None, high], []):
        check_operator("Clip", [data, *bounds], opset=13)
    [found] = run_operator("Clip", [data, high, low])
    assert (found == low).all()


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_clip_without_a_bound_ends_at_the_largest_number(name: str) -> None:
    data = np.array([np.inf, -np.inf, np.nan, 1], name)
    largest, zero = np.finfo(name).max, np.array(0, name)
    for bounds, expected in (
        ([], [largest, -largest, np.nan, 1]),
        ([zero], [largest, 0, np.nan, 1]),
        ([None, zero], [0, -largest, np.nan, 0]),
    ):
        [found] = check_operator("Clip", [data, *bounds], opset=13)
        assert_same(found, np.array(expected, name))
        [scalar] = check_operator("Clip", [data[0], *bounds], opset=13)
        assert_same(scalar, np.array(expected[0], name))


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_clip_without_a_bound_on_a_device(device_name: str, name: str) -> None:
    data = np.array([np.inf, -np.inf, np.nan, 1], name)
    largest, zero = np.finfo(name).max, np.array(0, name)
    for bounds, expected in (
        ([], [largest, -largest, np.nan, 1]),
        ([zero], [largest, 0, np.nan, 1]),
        ([None, zero], [0, -largest, np.nan, 0]),
    ):
        model = build_model("Clip", [data, *bounds], opset=13).SerializeToString()
        feed = {f"x{index}": array for index, array in enumerate([data, *bounds]) if array is not None}
        with vkml.InferenceSession(model, devices=device_name) as session:
            assert_same(session.run(None, feed)[0], np.array(expected, name))


@pytest.mark.parametrize("name", ["float32", "float16", "float64", "int8", "int64"])
@pytest.mark.parametrize("bounds", [("", "low"), ("low",), ("", "high"), ("low", "high")])
@pytest.mark.parametrize("rank", [0, 1])
def test_clip_in_a_fused_chain(device_name: str, name: str, bounds: tuple[str, ...], rank: int) -> None:
    # HardSwish has a 1 of its own, which lies in memory many times.
    numbers = {"low": np.full((1,) * rank, 1, name), "high": np.full((1,) * rank, 3, name)}
    sketch = Sketch("chain")
    x = sketch.input("x", ("n", 40), dtypes.from_numpy(np.dtype(name)))
    given = [numbers[bound] if bound else None for bound in bounds]
    clipped = sketch.node("Clip", x, *("" if array is None else sketch.constant(array) for array in given))
    is_float = name.startswith("float")
    data = (np.arange(120) % 7).reshape(3, 40).astype(name)
    [expected] = run_operator("Clip", [data, *given])
    if is_float:
        [expected] = run_operator("HardSwish", [expected], opset=14)
    model = save_graph(sketch.finish(sketch.node("HardSwish" if is_float else "Abs", clipped)))
    with vkml.InferenceSession(model, devices=device_name) as session:
        assert_same(session.run(None, {"x": data})[0], expected)


def test_clip_keeps_nan_and_upgrades_attributes() -> None:
    data = np.array([np.nan, -3, 0.5, 3], np.float32)
    assert_same(
        check_operator("Clip", [data], {"min": -1.0, "max": 1.0}, opset=6)[0],
        np.float32([np.nan, -1, 0.5, 1]),
    )
    for name in ("float16", "float64"):
        [found] = run_operator("Clip", [data.astype(name)], {"max": 1.0}, opset=6)
        assert_same(found, np.array([np.nan, -3, 0.5, 1], name))
    [found] = run_operator("Clip", [data], {"min": 0.0, "consumed_inputs": (0,)}, opset=1)
    assert_same(found, np.float32([np.nan, 0, 0.5, 3]))


COMPARISONS = [(op, name) for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual") for name in NUMBERS]


@pytest.mark.parametrize(("op", "name"), [*COMPARISONS, *(("Equal", name) for name in (*NUMBERS, "bool"))])
def test_comparisons(op: str, name: str) -> None:
    rng = generator(op, name)
    for first, second in SHAPES:
        a, b = random_array(rng, name, first, 1.0), random_array(rng, name, second, 1.0)
        check_operator(op, [a, b], opset=19 if op == "Equal" else 16)
    if np.dtype(name).kind == "f":
        check_operator(
            op, [np.array([np.nan, 1, np.inf], name), np.array([np.nan, np.nan, np.inf], name)], opset=13
        )


def test_equal_of_strings() -> None:
    a = np.array([["x", "yes"], ["no", ""]], object)
    [found] = run_operator("Equal", [a, np.array(["x", ""], object)], opset=19)
    assert found.tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op: str) -> None:
    rng = generator(op)
    for first, second in SHAPES:
        check_operator(op, [random_array(rng, bool, first), random_array(rng, bool, second)], opset=13)
    check_operator("Not", [random_array(rng, bool, (3, 4))], opset=13)


@pytest.mark.parametrize("name", [*NUMBERS, "bool"])
def test_where(name: str) -> None:
    rng = generator("Where", name)
    condition = random_array(rng, bool, (2, 1, 4))
    check_operator(
        "Where", [condition, random_array(rng, name, (3, 1)), random_array(rng, name, ())], opset=16
    )


def test_where_of_strings() -> None:
    [found] = run_operator(
        "Where", [np.array([True, False]), np.array("a", object), np.array(["b", "c"], object)]
    )
    assert found.tolist() == ["a", "c"]


@pytest.mark.parametrize("name", INTEGERS)
def test_bitwise(name: str) -> None:
    rng = generator("bits", name)
    a, b = random_array(rng, name, (3, 4)), random_array(rng, name, (4,))
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        check_operator(op, [a, b], opset=18)
    check_operator("BitwiseNot", [a], opset=18)


@pytest.mark.parametrize("name", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shift(name: str, direction: str) -> None:
    rng = generator(name, direction)
    a = np.asarray(rng.integers(0, np.iinfo(name).max, (3, 5), dtype=name))
    amounts = np.asarray(rng.integers(0, np.iinfo(name).bits, (5,))).astype(name)
    check_operator("BitShift", [a, amounts], {"direction": direction}, opset=11, against="onnx")
    width = np.array([np.iinfo(name).bits], name)
    [found] = run_operator("BitShift", [a, width], {"direction": direction})
    assert not found.any()


def test_shift_of_signed_numbers() -> None:
    x = np.array([-8, 8, -1, 100], np.int8)
    [found] = run_operator("BitShift", [x, np.array([1, 1, 9, -1], np.int8)], {"direction": "RIGHT"})
    assert found.tolist() == [-4, 4, -1, 0]
    [found] = run_operator("BitShift", [x, np.array([1, 5, 7, 1], np.int8)], {"direction": "LEFT"})
    assert found.tolist() == [-16, 0, -128, -56]


@pytest.mark.parametrize("name", ["uint16", "int32"])
def test_shift_of_scalars_is_a_scalar(name: str) -> None:
    x, places = np.array(9, name), np.array(1, name)
    for direction, expected in (("RIGHT", 4), ("LEFT", 18)):
        [found] = run_operator("BitShift", [x, places], {"direction": direction})
        assert_same(found, np.array(expected, name))


def test_tests_for_nan_and_infinity() -> None:
    for name in FLOATS:
        data = np.array([np.nan, np.inf, -np.inf, 0, 1e4], name)
        check_operator("IsNaN", [data], opset=20)
        for negative in (0, 1):
            for positive in (0, 1):
                flags = {"detect_negative": negative, "detect_positive": positive}
                check_operator("IsInf", [data], flags, opset=20)


def test_identity_passes_anything() -> None:
    for data in (np.arange(6).reshape(2, 3), np.array(["a", "b"], object), np.array(True)):
        [found] = run_operator("Identity", [data])
        assert found is data


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Div"])
def test_broadcast_attributes_of_old_opsets(op: str) -> None:
    rng = generator(op)
    a, channel = random_array(rng, np.float32, (2, 3, 4, 5)), random_array(rng, np.float32, (3,))
    expected = run_operator(op, [a, channel.reshape(3, 1, 1)])[0]
    for opset in (1, 6):
        [found] = run_operator(op, [a, channel], {"broadcast": 1, "axis": 1}, opset=opset)
        assert_same(found, expected)
    middle = random_array(rng, np.float32, (3, 4))
    [found] = run_operator(op, [a, middle], {"broadcast": 1, "axis": 1}, opset=6)
    expected = run_operator(op, [a, middle.reshape(3, 4, 1)])[0]
    assert_same(found, expected)
    [found] = run_operator(op, [a, middle], {"broadcast": 1, "axis": -3}, opset=6)
    assert_same(found, expected)
    tail = random_array(rng, np.float32, (4, 5))
    [found] = run_operator(op, [a, tail], {"broadcast": 1}, opset=6)
    assert_same(found, run_operator(op, [a, tail])[0])
    [found] = run_operator(op, [a, a], {"consumed_inputs": (0, 0)}, opset=1)
    assert_same(found, run_operator(op, [a, a])[0])


def test_allowed_types_are_those_of_the_specification() -> None:
    names = {dtype.name for dtype in dtypes.ALL}
    for (domain, op), spec in REGISTRY.items():
        if domain or not isinstance(spec, Pointwise):
            continue
        schema = defs.get_schema(op, 28)
        variable = schema.inputs[0].type_str
        [stated] = [c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable]
        wanted = {text[7:-1] for text in stated if text.startswith("tensor(")} & names
        assert {dtype.name for dtype in spec.allowed} == wanted, op


def test_errors_name_node_and_types() -> None:
    with pytest.raises(InvalidGraph, match=r"Sqrt node 'checked'.*int32.*float16"):
        inferred_types("Sqrt", [np.arange(3, dtype=np.int32)])
    with pytest.raises(InvalidGraph, match=r"Add node 'checked'.*float, double"):
        inferred_types("Add", [np.zeros(3, np.float32), np.zeros(3)])
    with pytest.raises(ShapeError, match=r"\[2, 3\] and \[2, 4\].*sizes 3 and 4 meet on axis -1"):
        inferred_types("Add", [np.zeros((2, 3)), np.zeros((2, 4))])
    with pytest.raises(InvalidGraph, match=r"float8e5m2 is not allowed; Add takes float16, bfloat16"):
        inferred_types("Add", [static(dtypes.FLOAT8E5M2, (2,))] * 2)
    with pytest.raises(InvalidGraph, match="direction"):
        inferred_types("BitShift", [np.zeros(2, np.uint8)] * 2, {"direction": "UP"})
    with pytest.raises(ShapeError, match="min must be a scalar"):
        inferred_types("Clip", [np.zeros(4, np.float32), np.zeros(3, np.float32)])
    for shape in ((1, 1), (1, 1, 1)):
        with pytest.raises(ShapeError, match="max must be a scalar"):
            inferred_types("Clip", [np.zeros(4, np.float32), None, np.zeros(shape, np.float32)])
    with pytest.raises(InvalidGraph, match="max"):
        inferred_types("Clip", [np.zeros(4, np.int32), None, np.zeros((), np.float32)])
    with pytest.raises(ShapeError, match="allows"):
        huge = TensorType(dtypes.FLOAT64, (2**25, 1))
        inferred_types("Add", [huge, TensorType(dtypes.FLOAT64, (2**25,))])
