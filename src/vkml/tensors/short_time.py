"""Fourier transforms of a signal's windows, and the signal of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vkml.tensors import elementwise as basic
from vkml.tensors.arranging import numbers, unfold
from vkml.tensors.capture import is_capturing
from vkml.tensors.complex import of_parts, view_as_real
from vkml.tensors.reductions import amin
from vkml.tensors.shapes import cat, reshape, transpose, unsqueeze

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

_LEAST = 1e-11
"""Below it a sum of squared windows is none that could be divided by."""


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:
    """The Fourier transforms of a signal's windows; complex numbers are computed on the CPU.

    Args:
        input: [samples] or [batch, samples], real or complex.
        n_fft: elements of each transform.
        hop_length: from the middle of a window to that of the next; a quarter of `n_fft` where left out.
        win_length: elements of the window, with zeros to both sides of it; `n_fft` where left out.
        window: [win_length], by which samples are multiplied; ones where left out.
        center: whether the first window's middle is the first sample: the signal is padded.
        pad_mode: how, as `vkml.nn.functional.pad` has it.
        normalized: whether transforms are divided by the root of `n_fft`.
        onesided: whether the first n_fft // 2 + 1 numbers of transforms alone are wanted, of which the others
            are conjugates; of real signals and windows they are, where left out.
        return_complex: whether the result is complex, as it always is of complex signals; else real and
            imaginary parts are along a new last axis.

    Returns:
        [batch, frequencies, windows].

    Raises:
        RuntimeError: sizes do not fit, the signal is shorter than a window, or it is not said what a real
            signal's result is to be.
    """
    from vkml import fft
    from vkml.nn.functional import pad

    hop, width = _sizes("stft", n_fft, hop_length, win_length, window)
    if input.ndim not in (1, 2):
        raise RuntimeError(f"stft: expected a 1D or 2D tensor, got one of the shape {list(input.shape)}")
    is_complex = input.dtype.is_complex or (window is not None and window.dtype.is_complex)
    if return_complex is None:
        if not is_complex:
            raise RuntimeError("stft requires the return_complex parameter be given for real inputs")
        return_complex = True
    if onesided is None:
        onesided = not is_complex
    elif onesided and is_complex:
        raise RuntimeError(
            "stft: of complex signals or windows there is no half that says all: onesided=False"
        )
    signal = input if input.ndim == 2 else unsqueeze(input, 0)
    if center:
        around = n_fft // 2

        def padded(x: Tensor) -> Tensor:
            return pad(unsqueeze(x, 1), (around, around), pad_mode).squeeze(1)

        signal = of_parts(padded, signal) if signal.dtype.is_complex else padded(signal)
    if n_fft > signal.shape[-1]:
        raise RuntimeError(
            f"stft: expected 0 < n_fft <= {signal.shape[-1]}, the samples there are, not {n_fft}"
        )
    parts = unfold(signal, -1, n_fft, hop)
    if window is not None or width < n_fft:
        parts = basic.mul(parts, _widened(window, width, n_fft, input))
    norm = "ortho" if normalized else "backward"
    made = fft.rfft(parts, norm=norm) if onesided else fft.fft(parts, norm=norm)
    made = transpose(made, -1, -2)
    made = made if input.ndim == 2 else made.squeeze(0)
    return made if return_complex else view_as_real(made)


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal whose windows' Fourier transforms are the nearest to some: the inverse of `stft`.

    Args:
        input: [frequencies, windows] or [batch, frequencies, windows], complex.
        n_fft: elements of each transform.
        hop_length: see `stft`.
        win_length: see `stft`.
        window: [win_length], by which samples were multiplied; ones where left out.
        center: see `stft`; what was padded is cut off.
        normalized: see `stft`.
        onesided: whether n_fft // 2 + 1 numbers of each transform are there; by their number where left out.
        length: how many samples are wanted, with zeros behind them where there are fewer.
        return_complex: whether the signal is complex; all numbers of the transforms have to be there then.

    Returns:
        [samples] or [batch, samples].

    Raises:
        RuntimeError: sizes do not fit, the transforms are real numbers, or there are samples that no window
            has, which nobody looks for in a captured function.
    """
    from vkml import fft

    hop, width = _sizes("istft", n_fft, hop_length, win_length, window)
    if not input.dtype.is_complex:
        raise RuntimeError(
            "istft requires a complex-valued input tensor, as of stft with return_complex=True"
        )
    if input.ndim not in (2, 3) or not input.numel():
        raise RuntimeError(
            f"istft: expected a tensor of 2 or 3 axes, got one of the shape {list(input.shape)}"
        )
    given, half = input.shape[-2], n_fft // 2 + 1
    is_half = onesided if onesided is not None else given != n_fft
    if given != (half if is_half else n_fft):
        raise RuntimeError(
            f"istft: transforms of {n_fft} elements have {half if is_half else n_fft} numbers, not {given}"
        )
    if return_complex and is_half:
        raise RuntimeError("istft: a complex signal takes all numbers of its transforms: onesided=False")
    parts = transpose(input if input.ndim == 3 else unsqueeze(input, 0), -1, -2)
    norm = "ortho" if normalized else "backward"
    # A real signal's other numbers are conjugates, whatever is given.
    signals = fft.ifft(parts, norm=norm) if return_complex else fft.irfft(parts[..., :half], n_fft, norm=norm)
    by = _widened(window, width, n_fft, signals)
    count = parts.shape[1]
    total = n_fft + hop * (count - 1)
    places = numbers(np.arange(count)[:, None] * hop + np.arange(n_fft)).flatten()
    signal = signals.new_zeros(parts.shape[0], total).index_add(
        1, places, reshape(signals * by, (parts.shape[0], -1))
    )
    squares = basic.square(by).expand(count, n_fft)
    weights = by.new_zeros(total).index_add(0, places, reshape(squares, -1))
    start = n_fft // 2 if center else 0
    end = total - start if length is None else min(start + length, total)
    signal, weights = signal[:, start:end], weights[start:end]
    if not is_capturing() and float(amin(basic.abs(weights))) <= _LEAST:
        raise RuntimeError("istft: window overlap add min: there are samples that no window has")
    made: Tensor = signal / weights
    if length is not None and length > end - start:
        made = cat([made, made.new_zeros(parts.shape[0], length - (end - start))], 1)
    return made if input.ndim == 3 else made.squeeze(0)


def _sizes(
    name: str, n_fft: int, hop_length: int | None, win_length: int | None, window: Tensor | None
) -> tuple[int, int]:
    """From window to window, and how wide they are."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    if n_fft < 1 or hop < 1 or not 0 < width <= n_fft:
        raise RuntimeError(
            f"{name}: expected n_fft > 0, hop_length > 0 and 0 < win_length <= n_fft, got {n_fft}, {hop} and "
            f"{width}"
        )
    if window is not None and tuple(window.shape) != (width,):
        raise RuntimeError(f"{name}: expected a window of {width} elements, got {list(window.shape)}")
    return hop, width


def _widened(window: Tensor | None, width: int, n_fft: int, like: Tensor) -> Tensor:
    """The window between zeros."""
    from vkml.nn.functional import pad

    if window is None:
        window = (like.real if like.dtype.is_complex else like).new_ones(width)
    before = (n_fft - width) // 2
    return pad(window, (before, n_fft - width - before)) if width < n_fft else window
