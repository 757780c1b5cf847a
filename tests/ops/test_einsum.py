"""Einsum against onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.checking import check_operator, inferred_types, random_array
from vkml.errors import InvalidGraph


def _random(seed: int, *shape: int, dtype: object = np.float32) -> np.ndarray:
    return random_array(np.random.default_rng(seed), dtype, shape)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij, bjk -> bik", [(5, 2, 3), (5, 3, 4)]),
        ("...ij,...jk->...ik", [(5, 1, 2, 3), (6, 3, 4)]),
        ("...ij,jk", [(5, 2, 3), (3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("ij->ji", [(2, 3)]),
        ("ij", [(2, 3)]),
        ("ba", [(2, 3)]),
        ("i,i->", [(4,), (4,)]),
        ("i,j->ij", [(4,), (5,)]),
        ("bnd,hd->bhn", [(2, 3, 4), (5, 4)]),
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
        ("...->...", [(2, 3)]),
        (",->", [(), ()]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = [_random(index, *shape) for index, shape in enumerate(shapes)]
    check_operator("Einsum", inputs, {"equation": equation}, opset=12, rtol=1e-4, atol=1e-5, against="onnx")


@pytest.mark.parametrize("equation", ["ij,jk->iik", "i$->i", "ij->ix", "i,j,k->i"])
def test_einsum_refuses_malformed_equations(equation: str) -> None:
    with pytest.raises(InvalidGraph, match="equation"):
        inferred_types("Einsum", [np.zeros((2, 3), np.float32)] * 2, {"equation": equation})
