"""The Fourier transforms extension of the array API; see `vkml.fft` for where they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkml import fft as _fft
from vkml.ir import DType
from vkml.xp.array import Array, as_array, of_type

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn",
    "rfft", "rfftfreq", "rfftn",
]  # fmt: skip

Sizes = Sequence[int] | None


def _is(x: Any, kinds: str) -> Any:
    """The array, whose elements are of kinds: f, c.

    Raises:
        TypeError: they are of another.
    """
    if x.dtype.kind not in kinds:
        raise TypeError(f"the transform is not of {x.dtype.numpy_name}")
    return x


def fft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The transform along an axis."""
    return as_array(_fft.fft(_is(x, "fc"), n, axis, norm))


def ifft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse transform along an axis."""
    return as_array(_fft.ifft(_is(x, "fc"), n, axis, norm))


def fftn(x: Any, /, *, s: Sizes = None, axes: Sizes = None, norm: str = "backward") -> Array:
    """The transform along several axes."""
    return as_array(_fft.fftn(_is(x, "fc"), s, axes, norm))


def ifftn(x: Any, /, *, s: Sizes = None, axes: Sizes = None, norm: str = "backward") -> Array:
    """The inverse transform along several axes."""
    return as_array(_fft.ifftn(_is(x, "fc"), s, axes, norm))


def rfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The first half of the transform of real numbers."""
    return as_array(_fft.rfft(_is(x, "f"), n, axis, norm))


def irfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The real numbers whose `rfft` this is."""
    return as_array(_fft.irfft(_is(x, "fc"), n, axis, norm))


def rfftn(x: Any, /, *, s: Sizes = None, axes: Sizes = None, norm: str = "backward") -> Array:
    """`rfft` along the last of several axes, then `fft` along the others."""
    return as_array(_fft.rfftn(_is(x, "f"), s, axes, norm))


def irfftn(x: Any, /, *, s: Sizes = None, axes: Sizes = None, norm: str = "backward") -> Array:
    """The real numbers whose `rfftn` this is."""
    return as_array(_fft.irfftn(_is(x, "fc"), s, axes, norm))


def hfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The transform, which is real, of numbers whose second half are conjugates of these."""
    return as_array(_fft.hfft(_is(x, "fc"), n, axis, norm))


def ihfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The first half of the inverse transform of real numbers."""
    return as_array(_fft.ihfft(_is(x, "f"), n, axis, norm))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None) -> Array:
    """The frequencies of what `fft` makes of n numbers that are `d` apart."""
    return as_array(_fft.fftfreq(n, d, dtype=_real_type(dtype), device=device))


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None) -> Array:
    """The frequencies of what `rfft` makes of n numbers that are `d` apart."""
    return as_array(_fft.rfftfreq(n, d, dtype=_real_type(dtype), device=device))


def _real_type(dtype: DType | None) -> DType | None:
    if dtype is not None and not of_type(dtype, dtype).is_float:
        raise TypeError(f"frequencies are floats, not {dtype.numpy_name}")
    return dtype


def fftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """With the frequency 0 in the middle of axes, of all where none are named."""
    return as_array(_fft.fftshift(_is(x, "fc"), axes))


def ifftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """`fftshift` undone."""
    return as_array(_fft.ifftshift(_is(x, "fc"), axes))
