"""`vkml.special` against PyTorch's: values and gradients, near roots, poles and joints of series."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml import special

PLACES = np.concatenate(
    [
        np.linspace(-6.3, 12, 200),
        [1, 2, 1.0001, 1.9999, 0.5, 2.5, 1.5, 8, 7.999, 8.001, 50, 80, 1e-5, -1e-5, 1e-10],
    ]
)
GAMMA = ("gammaln", "digamma", "psi", "i0", "i0e")
OTHERS = ("entr", "ndtr", "ndtri", "expit", "logit", "erf", "erfinv", "exp2", "expm1", "log1p", "sinc")


def compare(name: str, x: np.ndarray, device: str, rtol: float, atol: float) -> None:
    """Values, and gradients where both are finite."""
    torch = pytest.importorskip("torch")
    ours = vkml.tensor(x, device=device, requires_grad=True)
    theirs = torch.tensor(x, requires_grad=True)
    found, wanted = getattr(special, name)(ours), getattr(torch.special, name)(theirs)
    found.sum().backward()
    wanted.sum().backward()
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol, atol)
    slope, other = ours.grad.cpu().numpy(), theirs.grad.numpy()
    steep = np.isfinite(other) & (np.abs(other) < 1e4)
    # PyTorch's trigamma has nine digits.
    np.testing.assert_allclose(slope[steep], other[steep], rtol=max(100 * rtol, 1e-9), atol=20 * atol)


@pytest.mark.parametrize("name", GAMMA)
def test_gamma_and_bessel(name: str, device_name: str) -> None:
    compare(name, PLACES.astype(np.float32), device_name, 1e-5, 3e-6)


@pytest.mark.parametrize("name", GAMMA)
def test_gamma_and_bessel_of_float64(name: str) -> None:
    compare(name, PLACES, "cpu", 1e-12, 1e-12)


@pytest.mark.parametrize("name", GAMMA)
def test_against_scipy(name: str) -> None:
    functions: Any = pytest.importorskip("scipy.special")
    wanted = getattr(functions, name)(PLACES)
    np.testing.assert_allclose(getattr(special, name)(vkml.tensor(PLACES)).numpy(), wanted, 2e-13, 2e-13)


def test_the_derivative_of_digamma() -> None:
    functions: Any = pytest.importorskip("scipy.special")
    at = np.linspace(0.1, 20, 200)
    x = vkml.tensor(at, requires_grad=True)
    special.digamma(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), functions.polygamma(1, at), rtol=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_others(name: str, device_name: str) -> None:
    compare(name, np.linspace(0.02, 0.98, 37).astype(np.float32), device_name, 1e-4, 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", GAMMA)
def test_at_poles_and_without_end(name: str, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    x = np.array([0.0, -0.0, -1, -2, np.inf, -np.inf, np.nan, 1e10, 1e30], dtype)
    wanted = getattr(torch.special, name)(torch.tensor(x)).numpy()
    if name == "i0":
        wanted[4:6] = np.inf  # the limit; PyTorch has NaN
    np.testing.assert_allclose(getattr(special, name)(vkml.tensor(x)).numpy(), wanted, rtol=1e-6)


def test_edges_of_others() -> None:
    torch = pytest.importorskip("torch")
    x = np.array([-1.0, 0.0, 0.5, 1.0, np.nan, np.inf], np.float32)
    y = np.array([-0.5, -1.0, 2.0, np.inf, 0.0, 0.0], np.float32)
    for name, given in (("entr", (x,)), ("xlog1py", (x, y)), ("xlogy", (x, np.abs(y)))):
        found = getattr(special, name)(*map(vkml.tensor, given)).numpy()
        wanted = getattr(torch.special, name)(*map(torch.tensor, given)).numpy()
        np.testing.assert_allclose(found, wanted, err_msg=name)


def test_of_several_dimensions() -> None:
    torch = pytest.importorskip("torch")
    a = np.linspace(2.5, 9, 8, dtype=np.float32)
    for p in (1, 2, 5):
        wanted = torch.special.multigammaln(torch.tensor(a), p).numpy()
        np.testing.assert_allclose(special.multigammaln(vkml.tensor(a), p).numpy(), wanted, rtol=1e-5)
    with pytest.raises(RuntimeError, match="greater than"):
        special.multigammaln(vkml.tensor(a), 0)


def test_names() -> None:
    torch = pytest.importorskip("torch")
    assert all(hasattr(torch.special, name) for name in special.__all__)
    x = vkml.tensor([1.5, 4.0])
    for name in ("lgamma", "digamma", "i0"):
        wanted = getattr(torch, name)(torch.tensor([1.5, 4.0])).numpy()
        for found in (getattr(vkml, name)(x), getattr(x, name)(), getattr(x.clone(), name + "_")()):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5)
