"""Matrix products and convolutions on Vulkan: shapes, transpositions, batches, groups, padding, strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.vulkan_cases import Array, Cases, Fixed

FLOAT16_TOLERANCE = 2e-3
"""Of sums in float32 rounded to float16 once, where operands are near 1."""


def tolerance(name: str, length: int) -> dict[str, float]:
    """Of a sum of `length` products of operands of deviation 1."""
    size = length**0.5
    return {"rtol": 1e-5, "atol": 2e-6 * size} if name == "float32" else {"rtol": 2e-3, "atol": 1e-3 * size}


def normal(cases: Cases, name: str, shape: tuple[int, ...]) -> Array:
    made = cases.array(name, shape)
    return (made / 3).astype(name) if made.dtype.kind == "f" else made


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_matmul_of_odd_shapes(device_name: str, is_strided: bool) -> None:
    cases = Cases(61)
    for name in ("float32", "float16"):
        for _ in range(6):
            m, n, k = (int(v) for v in cases.random.integers(1, 70, 3))
            cases.add(
                "MatMul", normal(cases, name, (m, k)), normal(cases, name, (k, n)), **tolerance(name, k)
            )
    for a, b in (
        ((5,), (5,)),
        ((5,), (5, 3)),
        ((2, 3, 5), (5,)),
        ((2, 3, 5), (5, 4)),
        ((2, 3, 4, 5), (2, 3, 5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((4, 5), (2, 3, 5, 6)),
        ((2, 0, 5), (5, 3)),
    ):
        cases.add(
            "MatMul", normal(cases, "float32", a), normal(cases, "float32", b), **tolerance("float32", 5)
        )
    for name in ("int32", "uint32", "int64"):
        cases.add("MatMul", cases.array(name, (9, 17)), cases.array(name, (17, 12)))
    cases.check(device_name, is_strided=is_strided)


def test_matmul_with_constant_weights_and_long_sums(device_name: str) -> None:
    cases = Cases(62)
    for m, n, k in ((1, 64, 300), (1, 10, 2000), (64, 64, 64), (33, 130, 96), (128, 1, 40), (200, 7, 5)):
        for name in ("float32", "float16"):
            x, weight = normal(cases, name, (m, k)), normal(cases, name, (k, n))
            cases.add("MatMul", x, Fixed(weight), **tolerance(name, k))
    cases.check(device_name)


def test_an_empty_inner_axis_gives_zeros(device_name: str) -> None:
    cases = Cases(63)
    cases.add("MatMul", np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32), may_fall_back=True)
    cases.add("Gemm", np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32), may_fall_back=True)
    cases.check(device_name)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_gemm(device_name: str, is_strided: bool) -> None:
    cases = Cases(64)
    for name in ("float32", "float16"):
        for flags in range(4):
            m, n, k = (int(v) for v in cases.random.integers(1, 40, 3))
            trans_a, trans_b = flags & 1, flags >> 1
            a = normal(cases, name, (k, m) if trans_a else (m, k))
            b = normal(cases, name, (n, k) if trans_b else (k, n))
            c_shape: tuple[int, ...] = [(m, n), (n,), (m, 1), ()][flags]
            scales = {} if flags == 0 else {"alpha": 0.5, "beta": 1.5}
            c = normal(cases, name, c_shape)
            cases.add("Gemm", a, b, c, transA=trans_a, transB=trans_b, **scales, **tolerance(name, k + 2))
    cases.add(
        "Gemm", normal(cases, "float32", (4, 5)), normal(cases, "float32", (5, 6)), **tolerance("float32", 5)
    )
    c = normal(cases, "float32", (6,))
    a, b = normal(cases, "float32", (4, 5)), normal(cases, "float32", (5, 6))
    cases.add("Gemm", a, b, c, beta=0.0, **tolerance("float32", 5))
    cases.add("Gemm", cases.array("int32", (4, 5)), cases.array("int32", (5, 6)), cases.array("int32", (6,)))
    cases.check(device_name, is_strided=is_strided)


def geometry(cases: Cases, rank: int, kernel: tuple[int, ...]) -> dict[str, Any]:
    rng = cases.random
    made: dict[str, Any] = {"strides": [int(s) for s in rng.integers(1, 3, rank)]}
    if rng.random() < 0.7:
        made["pads"] = [int(rng.integers(0, k)) for k in (*kernel, *kernel)]
        made["dilations"] = [int(d) for d in rng.integers(1, 3, rank)]
    else:
        made["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    return made


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions(device_name: str, rank: int, is_strided: bool) -> None:
    cases = Cases(65 + rank)
    for index, (group, inner, per_group) in enumerate(
        [(1, 3, 5), (1, 16, 8), (2, 4, 3), (4, 1, 1), (6, 1, 2), (1, 1, 4), (3, 2, 1)]
    ):
        name = "float16" if index in (1, 4) else "float32"
        kernel = tuple(int(k) for k in cases.random.integers(1, 4, rank))
        x = normal(cases, name, (2, group * inner, *cases.shape(rank, 5, 9)))
        weight = normal(cases, name, (group * per_group, inner, *kernel))
        bias = normal(cases, name, (group * per_group,)) if index % 2 else None
        length = inner * int(np.prod(kernel))
        given = Fixed(weight) if index % 3 else weight
        cases.add(
            "Conv", x, given, bias, group=group, **geometry(cases, rank, kernel), **tolerance(name, length)
        )
    # 1 × 1, with and without strides
    x, weight = normal(cases, "float32", (2, 8, *(6,) * rank)), normal(cases, "float32", (4, 8, *(1,) * rank))
    cases.add("Conv", x, Fixed(weight), **tolerance("float32", 8))
    cases.add("Conv", x, Fixed(weight), strides=(2,) * rank, **tolerance("float32", 8))
    cases.add("Conv", x, Fixed(weight), pads=(1,) * (2 * rank), **tolerance("float32", 8))
    cases.add("Conv", x[:0], Fixed(weight))
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions(device_name: str, rank: int, is_strided: bool) -> None:
    cases = Cases(70 + rank)
    for index, (group, inner, per_group) in enumerate(
        [(1, 3, 5), (2, 4, 3), (4, 1, 1), (1, 1, 2), (3, 2, 2)]
    ):
        name = "float16" if index == 1 else "float32"
        kernel = tuple(int(k) for k in cases.random.integers(1, 4, rank))
        strides = [int(s) for s in cases.random.integers(1, 4, rank)]
        extra: dict[str, Any] = {"strides": strides}
        if index % 2:
            extra["pads"] = [int(cases.random.integers(0, k)) for k in (*kernel, *kernel)]
            extra["dilations"] = [int(d) for d in cases.random.integers(1, 3, rank)]
            extra["output_padding"] = [s - 1 for s in strides]
        x = normal(cases, name, (2, group * inner, *cases.shape(rank, 3, 6)))
        weight = normal(cases, name, (group * inner, per_group, *kernel))
        bias = normal(cases, name, (group * per_group,)) if index % 2 else None
        length = inner * int(np.prod(kernel))
        cases.add("ConvTranspose", x, weight, bias, group=group, **extra, **tolerance(name, length))
    cases.check(device_name, is_strided=is_strided)
