"""Gradients of sums of products over named axes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autograd.checking import check, normal

torch = pytest.importorskip("torch")

CASES: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("bij,bjk->bik", [(2, 2, 3), (2, 3, 4)]),
    ("bhqd,bhkd->bhqk", [(1, 2, 3, 2), (1, 2, 4, 2)]),
    ("ij->ji", [(2, 3)]),
    ("ij->i", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("i,i->", [(3,), (3,)]),
    ("i,j->ij", [(3,), (2,)]),
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("iji->j", [(2, 3, 2)]),
    ("iii->i", [(2, 2, 2)]),
    ("ii,ij->j", [(2, 2), (2, 3)]),
    ("ij,kl->il", [(2, 3), (4, 2)]),
    ("...ij,...jk->...ik", [(2, 2, 3), (3, 2)]),
    ("...i,i->...", [(2, 2, 3), (3,)]),
    ("ij,ij->ij", [(1, 3), (2, 3)]),
    ("ij,ij->j", [(1, 3), (2, 1)]),
    ("i,i,i->i", [(3,), (1,), (3,)]),
    ("a,ab,abc->c", [(2,), (2, 3), (2, 3, 2)]),
]


@pytest.mark.parametrize(("equation", "shapes"), CASES, ids=[equation for equation, _ in CASES])
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    generator = np.random.default_rng(len(equation))
    inputs = [normal(generator, *shape) for shape in shapes]
    check("Einsum", inputs, {"equation": equation}, torch=lambda *x: torch.einsum(equation, *x))


def test_einsum_on_devices(vulkan_device_name: str) -> None:
    generator = np.random.default_rng(1)
    inputs = [normal(generator, 2, 2, 3), normal(generator, 2, 3, 4)]
    check("Einsum", inputs, {"equation": "bij,bjk->bik"}, differences=False, device=vulkan_device_name)
