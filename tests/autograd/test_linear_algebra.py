"""Gradients of factorisations: against finite differences, torch, and with their values on a device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autograd.checking import Array, check, normal

GENERATOR = np.random.default_rng(7)


def _regular(*batch: int, size: int = 3) -> Array:
    return normal(GENERATOR, *batch, size, size, scale=0.4) + 2 * np.eye(size)


def _apart(rows: int, columns: int) -> Array:
    """A matrix whose singular values are not near to each other."""
    u, _, vh = np.linalg.svd(normal(GENERATOR, rows, columns), full_matrices=False)
    return np.asarray((u * np.arange(1.0, min(rows, columns) + 1)) @ vh)


def test_solve(device_name: str) -> None:
    inputs = [_regular(2), normal(GENERATOR, 2, 3, 2)]
    check("Solve", inputs, domain="vkml", torch=_torch("solve"), device=device_name)
    check("Solve", [_regular(), normal(GENERATOR, 2, 3, 2)], domain="vkml", device=device_name)


@pytest.mark.parametrize(("op", "name"), [("Inverse", "inv"), ("Determinant", "det")])
def test_inverse_and_determinant(op: str, name: str, device_name: str) -> None:
    check(op, [_regular(2)], domain="vkml", torch=_torch(name), device=device_name)


def test_the_logarithm_of_determinants() -> None:
    check("SlogDet", [_regular(2)], domain="vkml", outputs=2, counted=[1], torch=_torch("slogdet"))


def test_cholesky() -> None:
    half = _regular()
    x = half @ half.T
    # Only the lower triangle is read: differences along single elements are of the symmetric part.
    check("Cholesky", [x], domain="vkml", torch=_torch("cholesky"), differences=False)


@pytest.mark.parametrize("shape", [(3, 3), (4, 2)])
def test_qr(shape: tuple[int, int]) -> None:
    check("QR", [_apart(*shape)], domain="vkml", outputs=2, torch=_torch("qr"), second_order=False)


def test_eigenvalues_of_symmetric_matrices() -> None:
    q = np.linalg.qr(normal(GENERATOR, 3, 3))[0]
    x = (q * np.array([1.0, 2.5, 5.0])) @ q.T
    check("EigH", [x], domain="vkml", outputs=2, counted=[0], torch=_torch("eigh"), differences=False)


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)])
def test_singular_values(shape: tuple[int, int]) -> None:
    check("SVD", [_apart(*shape)], domain="vkml", outputs=3, counted=[1], torch=_torch("svdvals", 3))
    check("SVD", [_apart(*shape)], domain="vkml", outputs=3, second_order=False)


def _torch(name: str, outputs: int = 1):  # type: ignore[no-untyped-def]
    """A function of torch.linalg's; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    function = getattr(torch.linalg, name)
    return function if outputs == 1 else lambda x: (None, function(x), None)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_exponential(batch: tuple[int, ...], device_name: str) -> None:
    x = normal(GENERATOR, *batch, 3, 3)
    check("MatrixExponential", [x], domain="vkml", torch=_torch("matrix_exp"), device=device_name)
