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
GAMMA = ("gammaln", "digamma", "psi", "i0", "i0e", "i1", "i1e")
TAILS = ("erfc", "erfcx", "ndtr", "log_ndtr")
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


@pytest.mark.parametrize("name", TAILS)
def test_tails_have_all_digits(name: str, device_name: str) -> None:
    """They are small to the left or to the right, down to the smallest numbers."""
    functions: Any = pytest.importorskip("scipy.special")
    at = np.concatenate([np.linspace(-9, 9, 181), [-13, 10, 12, 1e-9, 0.0]]).astype(np.float32)
    wide = at.astype(np.float64)
    wanted = getattr(functions, name)(wide)
    x = vkml.tensor(at, device=device_name, requires_grad=True)
    found = getattr(special, name)(x)
    found.sum().backward()
    seen = (np.abs(wanted) > 1e-37) & (np.abs(wanted) < 1e38)
    np.testing.assert_allclose(found.detach().numpy()[seen], wanted[seen], rtol=2e-6)
    normal = np.exp(-(wide**2) / 2) / np.sqrt(2 * np.pi)
    if name == "erfcx":  # the other side's loses digits
        seen &= wide < 3
    slope = {
        "erfc": -2 / np.sqrt(np.pi) * np.exp(-(wide**2)),
        "erfcx": 2 * wide * wanted - 2 / np.sqrt(np.pi),
        "ndtr": normal,
        "log_ndtr": np.exp(np.log(normal) - functions.log_ndtr(wide)),
    }[name]
    seen &= (np.abs(slope) > 1e-35) & (np.abs(slope) < 1e38)
    np.testing.assert_allclose(x.grad.cpu().numpy()[seen], slope[seen], rtol=2e-5)


@pytest.mark.parametrize("name", TAILS)
def test_tails_of_float64(name: str) -> None:
    functions: Any = pytest.importorskip("scipy.special")
    at = np.concatenate([np.linspace(-26, 26, 521), [-30, 1e-9, 0.0]])
    wanted = getattr(functions, name)(at)
    seen = (np.abs(wanted) > 1e-307) & np.isfinite(wanted)
    found = getattr(special, name)(vkml.tensor(at)).numpy()
    # Where scipy rounds the square of x, it has fewer digits itself.
    np.testing.assert_allclose(found[seen], wanted[seen], rtol=3e-13)


def test_stated_values_of_tails() -> None:
    """Computed with 40 digits."""
    found = {
        "erfc": (5.0, 1.5374597944280349e-12), "erfcx": (5.0, 0.11070463773306863),
        "ndtr": (-10.0, 7.6198530241605261e-24), "log_ndtr": (-10.0, -53.231285150512471),
        "i1": (2.0, 1.5906368546373291), "i1e": (-100.0, -0.039744153025130250),
    }  # fmt: skip
    for name, (at, wanted) in found.items():
        made = getattr(special, name)(vkml.tensor(at, dtype=vkml.float64)).item()
        assert made == pytest.approx(wanted, rel=1e-14), name
    for order, wanted in ((1, 0.93480220054467931), (2, -0.82879664423431999), (5, 11.1135486024354962)):
        x = vkml.tensor(1.5, dtype=vkml.float64)
        assert special.polygamma(order, x).item() == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize("name", TAILS)
def test_ends_of_tails(name: str) -> None:
    functions: Any = pytest.importorskip("scipy.special")
    for dtype in (np.float32, np.float64):
        x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e15], dtype)
        found = getattr(special, name)(vkml.tensor(x)).numpy()
        np.testing.assert_allclose(found, getattr(functions, name)(x), rtol=1e-6)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 6, 11])
def test_polygamma(order: int, device_name: str) -> None:
    functions: Any = pytest.importorskip("scipy.special")
    at = np.concatenate([np.linspace(0.03, 30, 120), [1e3][: order < 6]])  # then what is multiplied is tiny
    for dtype, rtol in ((np.float32, 4e-6), (np.float64, 1e-13)):
        if dtype == np.float64 and device_name != "cpu":
            continue
        x = vkml.tensor(at.astype(dtype), device=device_name, requires_grad=True)
        found = special.polygamma(order, x)
        found.sum().backward()
        wide = at.astype(dtype).astype(np.float64)
        wanted, slope = functions.polygamma(order, wide), functions.polygamma(order + 1, wide)
        seen = (np.abs(slope) < np.finfo(dtype).max) & (np.abs(slope) > np.finfo(dtype).tiny)
        np.testing.assert_allclose(found.detach().numpy()[seen], wanted[seen], rtol, atol=rtol / 10)
        np.testing.assert_allclose(x.grad.cpu().numpy()[seen], slope[seen], 10 * rtol)


LEFT = {
    1: (18.541879647671606, 8.9348022005446793, 19.301637544529786, 11.30629671774469, 67.262913719987048),
    2: (122.69736678366236, -0.82879664423432, -124.21382135423058, 30.028008389476586, 1022.2772644358678),
    5: (492198.75334287458, 15371.113548602435, 492230.93030187432, 45190.003911428467, 31457611.064853311),
}
"""By order: of -1/4, -1/2, -7/4, -27/8 and -57/8, with 40 digits."""


def test_polygamma_left_of_zero_and_at_poles() -> None:
    at = [-0.25, -0.5, -1.75, -3.375, -7.125]
    for order, wanted in LEFT.items():
        found = special.polygamma(order, vkml.tensor(at, dtype=vkml.float64)).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        poles = special.polygamma(order, vkml.tensor([0.0, -1.0, -6.0, np.inf, np.nan])).numpy()
        sign = 1 if order % 2 else -1
        np.testing.assert_array_equal(poles, [*[sign * np.inf] * 3, 0.0, np.nan])
    with pytest.raises(RuntimeError, match="negative n"):
        special.polygamma(-1, vkml.ones(2))


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
    if name in ("i0", "i1"):
        wanted[4:6] = np.inf, np.inf if name == "i0" else -np.inf  # the limits; PyTorch has NaN
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
    wanted = torch.polygamma(2, torch.tensor([1.5, 4.0])).numpy()
    for found in (vkml.polygamma(2, x), x.polygamma(2), x.clone().polygamma_(2)):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5)
