"""Gradients of matrix products."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check, normal
from vkml.ir.dtypes import BFLOAT16

torch = pytest.importorskip("torch")

SHAPES = [
    ((3, 4), (4, 2)),
    ((5,), (5,)),
    ((4,), (4, 3)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 3)),
    ((2, 3, 4), (2, 4, 1)),
    ((3, 4), (2, 4, 2)),
    ((2, 1, 3, 4), (3, 4, 2)),
    ((1, 3, 4), (2, 2, 4, 2)),
    ((2, 3, 1), (1, 1, 2)),
    ((2, 1, 4), (1, 4, 3)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], device_name: str) -> None:
    generator = np.random.default_rng(len(a) * 10 + len(b))
    inputs = [normal(generator, *a), normal(generator, *b)]
    check("MatMul", inputs, torch=torch.matmul, device=device_name)


@pytest.mark.parametrize("empty", [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0))], ids=str)
def test_matmul_of_nothing(empty: Any) -> None:
    a, b = (np.zeros(dims) for dims in empty)
    found = check("MatMul", [a, b], torch=torch.matmul)
    assert [gradient is not None and gradient.shape for gradient in found] == list(empty)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16.storage], ids=str)
def test_matmul_of_16_bits(dtype: Any, device_name: str) -> None:
    generator = np.random.default_rng(2)
    inputs = [normal(generator, 2, 3, 40), normal(generator, 40, 5)]
    check("MatMul", inputs, second_order=False, device=device_name, dtype=dtype)


ADDENDS: list[tuple[int, ...] | None] = [None, (), (2,), (1, 2), (3, 1), (3, 2)]


@pytest.mark.parametrize(("flips_a", "flips_b"), list(itertools.product((0, 1), (0, 1))))
def test_gemm(flips_a: int, flips_b: int, device_name: str) -> None:
    generator = np.random.default_rng(flips_a + 2 * flips_b)
    addend = ADDENDS[int(generator.integers(len(ADDENDS)))]
    a = normal(generator, *((4, 3) if flips_a else (3, 4)))
    b = normal(generator, *((2, 4) if flips_b else (4, 2)))
    attributes = {"alpha": 0.5, "beta": 0.25, "transA": flips_a, "transB": flips_b}

    def gemm(a: Any, b: Any, *c: Any) -> Any:
        product = 0.5 * (a.T if flips_a else a) @ (b.T if flips_b else b)
        return product + 0.25 * c[0] if c else product

    check(
        "Gemm",
        [a, b, None if addend is None else normal(generator, *addend)],
        attributes,
        torch=gemm,
        device=device_name,
    )


@pytest.mark.parametrize("addend", ADDENDS, ids=str)
def test_what_gemm_adds(addend: tuple[int, ...] | None) -> None:
    generator = np.random.default_rng(7)
    inputs = [normal(generator, 3, 4), normal(generator, 4, 2)]
    more = [] if addend is None else [normal(generator, *addend)]
    check("Gemm", [*inputs, *more], torch=lambda a, b, *c: a @ b + sum(c))


def test_what_gemm_multiplies_by_nothing_has_no_gradient() -> None:
    generator = np.random.default_rng(8)
    inputs = [normal(generator, 3, 4), normal(generator, 4, 2), normal(generator, 2)]
    assert check("Gemm", inputs, {"beta": 0.0})[2] is None
