"""`stft` and `istft` against PyTorch's, and against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml

RANDOM = np.random.default_rng(3)
SIGNAL = RANDOM.standard_normal((2, 61)).astype(np.float32)
COMPLEX = (SIGNAL + 1j * SIGNAL[:, ::-1]).astype(np.complex64)
WINDOW = (0.3 + RANDOM.random(12)).astype(np.float32)
CASES: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "as it comes": (SIGNAL, {"n_fft": 16}),
    "one signal": (SIGNAL[0], {"n_fft": 16, "hop_length": 5}),
    "a window": (SIGNAL, {"n_fft": 12, "window": WINDOW, "hop_length": 4}),
    "a narrow window": (SIGNAL, {"n_fft": 17, "win_length": 12, "window": WINDOW, "hop_length": 3}),
    "narrow ones": (SIGNAL, {"n_fft": 16, "win_length": 11, "hop_length": 4}),
    "not centred": (SIGNAL, {"n_fft": 12, "hop_length": 7, "center": False}),
    "padded with zeros": (SIGNAL, {"n_fft": 12, "pad_mode": "constant"}),
    "normalized": (SIGNAL, {"n_fft": 12, "normalized": True, "window": WINDOW}),
    "both sides": (SIGNAL, {"n_fft": 12, "onesided": False}),
    "complex": (COMPLEX, {"n_fft": 12, "window": WINDOW}),
}


def given(options: dict[str, Any], make: Any) -> dict[str, Any]:
    return {name: make(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    signal, options = CASES[name]
    x, y = vkml.tensor(signal, requires_grad=True), torch.tensor(signal, requires_grad=True)
    found = vkml.stft(x, return_complex=True, **given(options, vkml.tensor))
    wanted = torch.stft(y, return_complex=True, **given(options, torch.tensor))
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    (found.real**2 + found.imag).sum().backward()
    (wanted.real**2 + wanted.imag).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [None, 45, 80])
def test_back_against_torch(name: str, length: int | None) -> None:
    torch = pytest.importorskip("torch")
    signal, options = CASES[name]
    options = {key: x for key, x in options.items() if key != "pad_mode"}
    is_complex = np.iscomplexobj(signal)
    both = {**options, "onesided": False} if is_complex else options
    spectrum = vkml.stft(vkml.tensor(signal), return_complex=True, **given(options, vkml.tensor)).numpy()
    x, y = vkml.tensor(spectrum, requires_grad=True), torch.tensor(spectrum, requires_grad=True)
    if length == 80 and "narrow" in name:  # the last window's end is zeros
        for library, z in ((vkml, x), (torch, y)):
            with pytest.raises(RuntimeError, match="overlap add"):
                library.istft(z, length=length, **given(both, library.tensor))
        return
    found = vkml.istft(x, length=length, return_complex=is_complex, **given(both, vkml.tensor))
    wanted = torch.istft(y, length=length, return_complex=is_complex, **given(both, torch.tensor))
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    count = min(found.shape[-1], signal.shape[-1])
    if length is None or length < 60:
        np.testing.assert_allclose(
            found.detach().numpy()[..., :count], signal[..., :count], rtol=1e-3, atol=1e-4
        )
    (found.abs() ** 2).sum().backward()
    (wanted.abs() ** 2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_stated_values() -> None:
    """A constant is all in the lowest frequency."""
    made = vkml.stft(vkml.ones(8), 4, center=False, return_complex=False)
    assert tuple(made.shape) == (3, 5, 2)
    np.testing.assert_allclose(made[:, :, 0].numpy(), [[4.0] * 5, [0.0] * 5, [0.0] * 5], atol=1e-6)
    back = vkml.istft(vkml.stft(vkml.arange(9.0), 4, return_complex=True), 4)
    np.testing.assert_allclose(back.numpy(), np.arange(9), atol=1e-5)


def test_methods_and_captures() -> None:
    x = vkml.tensor(SIGNAL)
    wanted = vkml.istft(x.stft(16, return_complex=True) * 2, 16).numpy()
    act = vkml.jit(lambda x: (x.stft(16, return_complex=True) * 2).istft(16))
    for _ in range(3):
        np.testing.assert_allclose(act(x).numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda x: vkml.stft(x, 16), "return_complex"),
        (lambda x: vkml.stft(x[None], 16, return_complex=True), "1D or 2D"),
        (lambda x: vkml.stft(x, 100, center=False, return_complex=True), "n_fft <= 61"),
        (lambda x: vkml.stft(x, 16, win_length=17, return_complex=True), "win_length <= n_fft"),
        (lambda x: vkml.stft(x, 16, window=vkml.ones(3), return_complex=True), "window of 16"),
        (lambda x: vkml.stft(x, 16, hop_length=0, return_complex=True), "hop_length > 0"),
        (lambda x: vkml.istft(x, 16), "complex-valued"),
        (lambda x: vkml.istft(vkml.stft(x, 16, return_complex=True), 18), "10 numbers, not 9"),
        (
            lambda x: vkml.istft(
                vkml.stft(x, 8, 8, center=False, window=vkml.hann_window(8), return_complex=True),
                8, 8, center=False, window=vkml.hann_window(8),
            ),
            "overlap add",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(act: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        act(vkml.tensor(SIGNAL))
