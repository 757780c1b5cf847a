"""MatMul, Gemm, MatMulInteger and Einsum against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from vkml.errors import InvalidGraph, ShapeError


def _random(seed: int, *shape: int, dtype: object = np.float32) -> np.ndarray:
    return random_array(np.random.default_rng(seed), dtype, shape)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 6)),
        ((1, 2, 3, 4), (7, 1, 4, 1)),
        ((0, 4), (4, 5)),
        ((3, 0), (0, 5)),
        ((2, 0, 4), (4, 3)),
    ],
)
def test_matmul_shapes(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check_operator("MatMul", [_random(0, *left), _random(1, *right)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.int64, np.uint32, np.uint64])
def test_matmul_types(dtype: object) -> None:
    check_operator("MatMul", [_random(0, 5, 6, dtype=dtype), _random(1, 2, 6, 7, dtype=dtype)], opset=13)


def test_matmul_float16_sums_in_float32() -> None:
    ones = np.ones((1, 4096), np.float16)
    # 4096 + 1 has no float16: a sum kept in float16 would stall at 2048.
    assert run_operator("MatMul", [ones, ones.T])[0][0, 0] == 4096


@pytest.mark.parametrize("transposed_a", [0, 1])
@pytest.mark.parametrize("transposed_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (3, 1), (1, 5), (3, 5)])
def test_gemm(transposed_a: int, transposed_b: int, bias: tuple[int, ...] | None) -> None:
    a = _random(0, *((4, 3) if transposed_a else (3, 4)))
    b = _random(1, *((5, 4) if transposed_b else (4, 5)))
    c = None if bias is None else _random(2, *bias)
    attributes = {"transA": transposed_a, "transB": transposed_b, "alpha": 0.75, "beta": 1.5}
    check_operator("Gemm", [a, b] if c is None else [a, b, c], attributes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_gemm_opsets(opset: int) -> None:
    check_operator(
        "Gemm", [_random(0, 2, 3), _random(1, 3, 4), _random(2, 4)], opset=opset, rtol=1e-4, atol=1e-5
    )


def test_gemm_of_opset_6_drops_broadcast() -> None:
    inputs = [_random(0, 2, 3), _random(1, 3, 4), _random(2, 4)]
    found = run_operator("Gemm", inputs, {"broadcast": 1}, opset=6)[0]
    np.testing.assert_allclose(found, inputs[0] @ inputs[1] + inputs[2], rtol=1e-5, atol=1e-5)


def test_gemm_empty() -> None:
    check_operator("Gemm", [_random(0, 0, 3), _random(1, 3, 4), _random(2, 4)])
    found = run_operator("Gemm", [_random(0, 2, 0), _random(1, 0, 4), _random(2, 4)])[0]
    np.testing.assert_array_equal(found, np.tile(_random(2, 4), (2, 1)))


@pytest.mark.parametrize("a_type", [np.uint8, np.int8])
@pytest.mark.parametrize("b_type", [np.uint8, np.int8])
def test_matmul_integer(a_type: type, b_type: type) -> None:
    generator = np.random.default_rng(3)

    def draw(dtype: type, *shape: int) -> np.ndarray:
        bounds = np.iinfo(dtype)
        return generator.integers(bounds.min, bounds.max + 1, shape).astype(dtype)

    a, b = draw(a_type, 2, 3, 300), draw(b_type, 300, 5)
    if a_type == np.int8 and b_type == np.uint8:
        # onnxruntime has no kernel for this pair.
        expected = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(run_operator("MatMulInteger", [a, b])[0], expected)
        return
    check_operator("MatMulInteger", [a, b])
    check_operator("MatMulInteger", [a, b, draw(a_type), draw(b_type)])
    check_operator("MatMulInteger", [a, b, draw(a_type), draw(b_type, 5)])


def test_matmul_integer_zero_point_of_each_row() -> None:
    a, b = np.arange(6, dtype=np.uint8).reshape(2, 3), np.arange(12, dtype=np.uint8).reshape(3, 4)
    zero = np.array([1, 5], np.uint8)
    expected = (a.astype(np.int32) - zero[:, None]) @ b.astype(np.int32)
    np.testing.assert_array_equal(run_operator("MatMulInteger", [a, b, zero])[0], expected)
    np.testing.assert_array_equal(run_operator("MatMulInteger", [a, b, zero[:, None]])[0], expected)
    zeros = np.arange(4, dtype=np.uint8)[None]
    expected = a.astype(np.int32) @ (b.astype(np.int32) - zeros)
    np.testing.assert_array_equal(run_operator("MatMulInteger", [a, b, None, zeros])[0], expected)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(1, 2, 1), (1, 1), None, (1, 2, 1)], r"b_zero_point has the shape \[1, 2, 1\]; .* of \[1, 1\]"),
        ([(2, 3), (3, 4), (2, 3)], r"a_zero_point has the shape \[2, 3\]; .* of \[2, 1\]"),
        ([(2, 3), (3, 4), (1, 1, 1)], "a_zero_point"),
        ([(2, 3), (3, 4), None, (3, 1)], r"b_zero_point has the shape \[3, 1\]; .* of \[1, 4\]"),
        ([(2, 3), (3,), None, (1, 1)], "b_zero_point"),
    ],
)
def test_matmul_integer_zero_points_fit(shapes: list[tuple[int, ...] | None], words: str) -> None:
    inputs = [None if shape is None else np.ones(shape, np.int8) for shape in shapes]
    with pytest.raises(ShapeError, match=words):
        inferred_types("MatMulInteger", inputs)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "words"),
    [
        ("MatMul", [(2, 3), (4, 5)], {}, ["'checked'", "3 columns", "4 rows"]),
        ("MatMul", [(2, 2, 3), (3, 3, 5)], {}, ["2 and 3", "broadcast"]),
        ("MatMul", [(), (3,)], {}, ["scalars"]),
        ("Gemm", [(2, 3), (3, 4), (3,)], {}, ["C of shape [3]", "[2, 4]"]),
        ("Gemm", [(2, 3), (4, 3)], {}, ["3 columns", "4 rows"]),
        ("Gemm", [(2, 3, 1), (3, 3)], {}, ["rank 2"]),
        ("Einsum", [(2, 3), (4, 5)], {"equation": "ij,jk->ik"}, ["'j'", "3", "4"]),
        ("Einsum", [(2, 3)], {"equation": "ijk->i"}, ["'ijk'", "[2, 3]"]),
    ],
)
def test_shape_errors(op: str, shapes: list[tuple[int, ...]], attributes: dict, words: list[str]) -> None:
    with pytest.raises(ShapeError) as caught:
        inferred_types(op, [np.zeros(shape, np.float32) for shape in shapes], attributes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_mixed_types_are_refused() -> None:
    with pytest.raises(InvalidGraph, match="float16"):
        inferred_types("MatMul", [np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float16)])
