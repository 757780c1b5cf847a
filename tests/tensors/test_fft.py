"""Fourier transforms: against NumPy, their gradients against PyTorch and finite differences."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import vkml

RANDOM = np.random.default_rng(5)
Z = RANDOM.normal(size=(3, 4, 5)) + 1j * RANDOM.normal(size=(3, 4, 5))
X = RANDOM.normal(size=(3, 4, 5))
REAL = {"rfft", "ihfft", "rfftn", "rfft2", "ihfft2", "ihfftn"}
ALONG = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
OVER = ("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2")
NORMS = (None, "backward", "ortho", "forward")


def _given(name: str) -> list[Any]:
    return [X] if name in REAL else [Z, X]


def _check(name: str, x: Any, arguments: dict[str, Any], device: str = "cpu") -> None:
    of_numpy = {"dim": "axes" if name[-1] != "t" else "axis"}
    expected = getattr(np.fft, name)(x, **{of_numpy.get(key, key): value for key, value in arguments.items()})
    found = getattr(vkml.fft, name)(vkml.tensor(x, device=device), **arguments)
    assert found.device == device and found.numpy().dtype == expected.dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ALONG)
def test_along_an_axis(name: str) -> None:
    for x in _given(name):
        for norm in NORMS:
            for n, dim in ((None, -1), (None, 0), (3, 1), (7, 1), (8, -1)):
                _check(name, x, {"n": n, "dim": dim, "norm": norm})


@pytest.mark.parametrize("name", OVER)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy's, of s without axes
def test_over_several_axes(name: str) -> None:
    for x in _given(name):
        for norm in NORMS:
            _check(name, x, {"norm": norm})
            _check(name, x, {"s": (3, 6), "dim": (0, 2), "norm": norm})
            _check(name, x, {"s": (6, 2), "dim": (2, 0), "norm": norm})
            if name[-1] == "n":
                _check(name, x, {"dim": (1,), "norm": norm})


@pytest.mark.parametrize("name", [*ALONG, *OVER])
def test_on_devices(name: str, device_name: str) -> None:
    _check(name, _given(name)[0], {"norm": "ortho"}, device_name)


def test_types() -> None:
    assert vkml.fft.fft(vkml.tensor(X.astype(np.float32))).dtype == vkml.complex64
    assert vkml.fft.fft(vkml.tensor([1, 2])).dtype == vkml.complex64
    assert vkml.fft.rfft(vkml.tensor(X)).dtype == vkml.complex128
    assert vkml.fft.irfft(vkml.tensor(Z.astype(np.complex64))).dtype == vkml.float32


def test_frequencies_and_shifts() -> None:
    assert vkml.fft.fftfreq(0).shape == vkml.fft.rfftfreq(0).shape == (0,)
    with pytest.raises(RuntimeError, match="no -1 elements"):
        vkml.fft.rfftfreq(-1)
    for n in (5, 6):
        np.testing.assert_allclose(vkml.fft.fftfreq(n, 0.5).numpy(), np.fft.fftfreq(n, 0.5), rtol=1e-6)
        np.testing.assert_allclose(vkml.fft.rfftfreq(n).numpy(), np.fft.rfftfreq(n), rtol=1e-6)
    for name in ("fftshift", "ifftshift"):
        for dim in (None, 1, (0, 2)):
            found = getattr(vkml.fft, name)(vkml.tensor(Z), dim).numpy()
            np.testing.assert_array_equal(found, getattr(np.fft, name)(Z, dim))


def test_errors() -> None:
    x, z = vkml.tensor(X), vkml.tensor(Z)
    with pytest.raises(RuntimeError, match="norm is"):
        vkml.fft.fft(x, norm="half")
    with pytest.raises(RuntimeError, match="takes real tensors"):
        vkml.fft.rfft(z)
    with pytest.raises(RuntimeError, match="0 elements along axis 2"):
        vkml.fft.fft(x, 0)
    with pytest.raises(RuntimeError, match="0 elements along axis 0"):
        vkml.fft.irfft(z[:1], dim=0)
    with pytest.raises(IndexError):
        vkml.fft.fft(x, dim=3)
    with pytest.raises(RuntimeError, match="named twice"):
        vkml.fft.fftn(x, dim=(1, 1))
    with pytest.raises(RuntimeError, match="2 sizes for 1 axes"):
        vkml.fft.fftn(x, s=(3, 3), dim=(1,))


def _loss(V: Any, name: str, x: Any, arguments: dict[str, Any]) -> Any:
    made = getattr(V.fft, name)(x, **arguments)
    weights = V.tensor(np.arange(1.0, 1 + made.numel()).reshape(tuple(made.shape)))
    return ((made * weights * (1 - 0.5j)).real if made.is_complex() else made * weights).sum()


CASES: list[dict[str, Any]] = [{}, {"n": 3, "dim": 1, "norm": "ortho"}, {"n": 8, "dim": 0, "norm": "forward"}]


@pytest.mark.parametrize("name", ALONG)
@pytest.mark.parametrize("arguments", CASES)
def test_gradients(name: str, arguments: dict[str, Any]) -> None:
    for given in _given(name):
        x = vkml.tensor(given, requires_grad=True)
        _loss(vkml, name, x, arguments).backward()
        assert x.grad is not None
        direction = RANDOM.normal(size=X.shape) + (1j * RANDOM.normal(size=X.shape) if given is Z else 0)
        # Linear: the difference is exact.
        ahead = _loss(vkml, name, vkml.tensor(given + direction), arguments).item()
        slope = ahead - _loss(vkml, name, vkml.tensor(given), arguments).item()
        assert (x.grad.numpy().conj() * direction).real.sum() == pytest.approx(slope, rel=1e-9)


@pytest.mark.parametrize(
    "name", [one for one in vkml.fft.__all__ if "freq" not in one and "shift" not in one]
)
def test_as_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    mine = [*inspect.signature(getattr(vkml.fft, name)).parameters]
    assert mine[1:] == ["n" if name[-1] == "t" else "s", "dim", "norm"]
    for given in _given(name):
        found = []
        for V in (vkml, torch):
            x = V.tensor(given).requires_grad_()
            _loss(V, name, x, {"norm": "ortho"}).backward()
            found.append((getattr(V.fft, name)(x).detach(), x.grad))
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one.numpy(), other.resolve_conj().numpy(), rtol=1e-9, atol=1e-9)
