"""Discrete Fourier transforms, as `torch.fft`.

NumPy computes them on the CPU: values of a device come to the host and go back, and one warning says so. They
are recorded like any other operation, and have gradients. Arguments are torch's:

* n, s: how many elements of an axis are transformed; it is cut, or filled up with zeros at its end.
* dim: the axis, or axes; all, or the last ones that `s` has numbers for, where left out.
* norm: what is divided by n: "backward" (the default) the inverse transforms, "forward" the others, "ortho"
  all, by √n.

Example:
    >>> import vkml
    >>> vkml.fft.rfft(vkml.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor([1.+0.j, 1.+0.j, 1.+0.j])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.ir import DType, dtypes
from vkml.ir.gradients import padded
from vkml.tensors import Tensor
from vkml.tensors.arranging import roll
from vkml.tensors.complex import conj
from vkml.tensors.creation import tensor
from vkml.tensors.joining import narrow
from vkml.tensors.operands import axis_of, wrap
from vkml.tensors.promotion import get_default_dtype
from vkml.tracing import EMITTER, apply

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn",
    "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq",
    "rfftn",
]  # fmt: skip

Sizes = Sequence[int] | None
_OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _real(function: str, x: Tensor) -> Tensor:
    """As float32 or float64."""
    if x.dtype.is_complex:
        raise RuntimeError(f"fft.{function} takes real tensors, not {x.dtype.numpy_name}")
    if x.dtype in (dtypes.FLOAT32, dtypes.FLOAT64):
        return x
    return x.to(get_default_dtype() if not x.dtype.is_float else dtypes.FLOAT32)


def _complex(function: str, x: Tensor) -> Tensor:
    return x if x.dtype.is_complex else x.to(dtypes.complex_of(_real(function, x).dtype))


def _mode(function: str, norm: str | None) -> str:
    if norm is not None and norm not in _OPPOSITE:
        raise RuntimeError(f"fft.{function}: norm is 'backward', 'ortho' or 'forward', not {norm!r}")
    return norm or "backward"


def _sized(function: str, x: Tensor, n: int | None, axis: int) -> Tensor:
    """With n elements along an axis: the first ones, or zeros behind them."""
    size = x.shape[axis] if n is None else n
    if size < 1:
        raise RuntimeError(f"fft.{function}: {size} elements along axis {axis} of {list(x.shape)}")
    if size <= x.shape[axis]:
        return x if size == x.shape[axis] else narrow(x, axis, 0, size)
    ends = [0] * x.ndim
    ends[axis] = size - x.shape[axis]
    return wrap(padded(EMITTER, x.value, [0] * x.ndim, ends))


def _axis(function: str, x: Tensor, dim: int) -> int:
    if not x.ndim:
        raise IndexError(f"fft.{function}: a tensor without axes has none to transform")
    return axis_of(dim, x.ndim)


def _along(function: str, x: Tensor, n: int | None, dim: int, norm: str | None, *, inverse: bool) -> Tensor:
    """The transform of complex numbers along an axis."""
    mode, axis = _mode(function, norm), _axis(function, x, dim)
    given = _sized(function, _complex(function, x), n, axis)
    return wrap(apply("Fourier", given.value, domain="vkml", axis=axis, inverse=int(inverse), norm=mode))


def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The transform along an axis.

    Args:
        input: numbers; real ones become complex.
        n: so many elements are transformed: the first ones, or zeros behind them; None: as many as there are.
        dim: the axis.
        norm: what divides by n: the inverse ("backward"), the transform ("forward"), or both by √n ("ortho").

    Returns:
        Complex numbers.

    Raises:
        RuntimeError: n is not above 0, or another norm.
    """
    return _along("fft", input, n, dim, norm, inverse=False)


def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse transform along an axis.

    Args:
        input: numbers; real ones become complex.
        n: so many elements are transformed: the first ones, or zeros behind them; None: as many as there are.
        dim: the axis.
        norm: what divides by n: the inverse ("backward"), the transform ("forward"), or both by √n ("ortho").

    Returns:
        Complex numbers.

    Raises:
        RuntimeError: n is not above 0, or another norm.
    """
    return _along("ifft", input, n, dim, norm, inverse=True)


def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The first n // 2 + 1 numbers of the transform of real ones; the others are their conjugates.

    Args:
        input: real numbers.
        n: so many elements are transformed: the first ones, or zeros behind them; None: as many as there are.
        dim: the axis.
        norm: what divides by n; see `fft`.

    Returns:
        Complex numbers, n // 2 + 1 along the axis.

    Raises:
        RuntimeError: complex numbers, n is not above 0, or another norm.
    """
    mode, axis = _mode("rfft", norm), _axis("rfft", input, dim)
    given = _sized("rfft", _real("rfft", input), n, axis)
    return wrap(apply("RealFourier", given.value, domain="vkml", axis=axis, norm=mode))


def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The n real numbers whose `rfft` this is; 2 (m - 1) of m where n is left out.

    Args:
        input: complex numbers, m along the axis.
        n: elements of the result along the axis; None: 2 (m - 1).
        dim: the axis.
        norm: what divides by n; see `fft`.

    Returns:
        Real numbers.

    Raises:
        RuntimeError: n is not above 0, or another norm.
    """
    mode, axis = _mode("irfft", norm), _axis("irfft", input, dim)
    count = 2 * (input.shape[axis] - 1) if n is None else n
    if count < 1:
        raise RuntimeError(f"fft.irfft: {count} elements along axis {axis} of {list(input.shape)}")
    given = _sized("irfft", _complex("irfft", input), count // 2 + 1, axis)
    return wrap(apply("FourierReal", given.value, domain="vkml", axis=axis, n=count, norm=mode))


def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The transform, which is real, of numbers whose second half are conjugates of the first, given alone.

    Args:
        input: complex numbers, m along the axis.
        n: elements of the result along the axis; None: 2 (m - 1).
        dim: the axis.
        norm: what divides by n; see `fft`.

    Returns:
        Real numbers.

    Raises:
        RuntimeError: n is not above 0, or another norm.
    """
    return irfft(conj(input), n, dim, _OPPOSITE[_mode("hfft", norm)])


def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The first half of the inverse transform of real numbers: what `hfft` takes.

    Args:
        input: real numbers.
        n: so many elements are transformed: the first ones, or zeros behind them; None: as many as there are.
        dim: the axis.
        norm: what divides by n; see `fft`.

    Returns:
        Complex numbers, n // 2 + 1 along the axis.

    Raises:
        RuntimeError: complex numbers, n is not above 0, or another norm.
    """
    return conj(rfft(input, n, dim, _OPPOSITE[_mode("ihfft", norm)]))


def _axes(
    function: str, x: Tensor, s: Sizes, dim: int | Sequence[int] | None
) -> tuple[list[int], list[int | None]]:
    """Axes, and how many elements each is to have; None for all."""
    if dim is None:
        count = x.ndim if s is None else len(s)
        if count > x.ndim:
            raise RuntimeError(f"fft.{function}: {count} sizes for the axes of {list(x.shape)}")
        axes = list(range(x.ndim - count, x.ndim))
    else:
        axes = [_axis(function, x, one) for one in ((dim,) if isinstance(dim, int) else dim)]
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"fft.{function}: an axis is named twice in {dim}")
    sizes: list[int | None] = [None] * len(axes) if s is None else [None if n == -1 else n for n in s]
    if len(sizes) != len(axes):
        raise RuntimeError(f"fft.{function}: {len(sizes)} sizes for {len(axes)} axes")
    return axes, sizes


def _over(
    function: str,
    x: Tensor,
    axes: Sequence[int],
    sizes: Sequence[int | None],
    norm: str | None,
    *,
    inverse: bool,
) -> Tensor:
    x = _complex(function, x)
    for axis, n in zip(axes, sizes, strict=True):
        x = _along(function, x, n, axis, norm, inverse=inverse)
    return x


def _last(function: str, axes: Sequence[int]) -> int:
    if not axes:
        raise RuntimeError(f"fft.{function} needs at least one axis")
    return axes[-1]


def fftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The transform along several axes.

    Args:
        input: numbers; real ones become complex.
        s: for each axis what `n` is of `fft`; -1: as many elements as there are. Without `dim`: of the last
            axes.
        dim: axes; None: all, or as many as `s` has sizes.
        norm: what divides; see `fft`.

    Returns:
        Complex numbers.

    Raises:
        RuntimeError: an axis is named twice, or sizes and axes are not as many.
    """
    axes, sizes = _axes("fftn", input, s, dim)
    return _over("fftn", input, axes, sizes, norm, inverse=False)


def ifftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse transform along several axes.

    Args:
        input: numbers; real ones become complex.
        s: for each axis what `n` is of `fft`; -1: as many elements as there are. Without `dim`: of the last
            axes.
        dim: axes; None: all, or as many as `s` has sizes.
        norm: what divides; see `fft`.

    Returns:
        Complex numbers.

    Raises:
        RuntimeError: an axis is named twice, or sizes and axes are not as many.
    """
    axes, sizes = _axes("ifftn", input, s, dim)
    return _over("ifftn", input, axes, sizes, norm, inverse=True)


def rfftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`rfft` along the last of several axes, then `fft` along the others.

    Args:
        input: real numbers.
        s: for each axis what `n` is of `fft`; -1: as many elements as there are. Without `dim`: of the last
            axes.
        dim: axes; None: all, or as many as `s` has sizes.
        norm: what divides; see `fft`.

    Returns:
        Complex numbers, n // 2 + 1 along the last of the axes.

    Raises:
        RuntimeError: complex numbers, an axis is named twice, or sizes and axes are not as many.
    """
    axes, sizes = _axes("rfftn", input, s, dim)
    found = rfft(input, sizes[-1] if sizes else None, _last("rfftn", axes), norm)
    return _over("rfftn", found, axes[:-1], sizes[:-1], norm, inverse=False)


def irfftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`ifft` along all of several axes but the last, then `irfft` along it.

    Args:
        input: complex numbers.
        s: sizes of the result along the axes. Without `dim`: along the last axes.
        dim: axes; None: all, or as many as `s` has sizes.
        norm: what divides; see `fft`.

    Returns:
        Real numbers.

    Raises:
        RuntimeError: an axis is named twice, or sizes and axes are not as many.
    """
    axes, sizes = _axes("irfftn", input, s, dim)
    last = _last("irfftn", axes)
    found = _over("irfftn", input, axes[:-1], sizes[:-1], norm, inverse=True)
    return irfft(found, sizes[-1], last, norm)


def hfftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`fft` along all of several axes but the last, then `hfft` along it.

    Args:
        input: complex numbers.
        s: sizes of the result along the axes. Without `dim`: along the last axes.
        dim: axes; None: all, or as many as `s` has sizes.
        norm: what divides; see `fft`.

    Returns:
        Real numbers.

    Raises:
        RuntimeError: an axis is named twice, or sizes and axes are not as many.
    """
    axes, sizes = _axes("hfftn", input, s, dim)
    last = _last("hfftn", axes)
    return hfft(_over("hfftn", input, axes[:-1], sizes[:-1], norm, inverse=False), sizes[-1], last, norm)


def ihfftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """`ihfft` along the last of several axes, then `ifft` along the others.

    Args:
        input: real numbers.
        s: for each axis what `n` is of `fft`; -1: as many elements as there are. Without `dim`: of the last
            axes.
        dim: axes; None: all, or as many as `s` has sizes.
        norm: what divides; see `fft`.

    Returns:
        Complex numbers, n // 2 + 1 along the last of the axes.

    Raises:
        RuntimeError: complex numbers, an axis is named twice, or sizes and axes are not as many.
    """
    axes, sizes = _axes("ihfftn", input, s, dim)
    found = ihfft(input, sizes[-1] if sizes else None, _last("ihfftn", axes), norm)
    return _over("ihfftn", found, axes[:-1], sizes[:-1], norm, inverse=True)


def fft2(input: Tensor, s: Sizes = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """`fftn` along two axes; arguments as for `fftn`."""
    return fftn(input, s, dim, norm)


def ifft2(input: Tensor, s: Sizes = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """`ifftn` along two axes; arguments as for `ifftn`."""
    return ifftn(input, s, dim, norm)


def rfft2(input: Tensor, s: Sizes = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """`rfftn` along two axes; arguments as for `rfftn`."""
    return rfftn(input, s, dim, norm)


def irfft2(input: Tensor, s: Sizes = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """`irfftn` along two axes; arguments as for `irfftn`."""
    return irfftn(input, s, dim, norm)


def hfft2(input: Tensor, s: Sizes = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """`hfftn` along two axes; arguments as for `hfftn`."""
    return hfftn(input, s, dim, norm)


def ihfft2(input: Tensor, s: Sizes = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """`ihfftn` along two axes; arguments as for `ihfftn`."""
    return ihfftn(input, s, dim, norm)


# -- frequencies ---------------------------------------------------------------------------------------------


def fftfreq(n: int, d: float = 1.0, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """The frequencies of what `fft` makes of n numbers that are `d` apart.

    Args:
        n: how many numbers.
        d: how far they are apart.
        dtype: of its elements; None: the default type.
        device: its name; the CPU where left out.

    Returns:
        [n]: from 0 up, then from the most negative one to -1 / (n d).
    """
    return tensor(_frequencies(np.fft.fftfreq, n, d), dtype=dtype or get_default_dtype(), device=device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """The frequencies of what `rfft` makes of n numbers that are `d` apart.

    Args:
        n: how many numbers.
        d: how far they are apart.
        dtype: of its elements; None: the default type.
        device: its name; the CPU where left out.

    Returns:
        [n // 2 + 1], from 0 up.
    """
    return tensor(_frequencies(np.fft.rfftfreq, n, d), dtype=dtype or get_default_dtype(), device=device)


def _frequencies(function: Any, n: int, d: float) -> Any:
    if n < 0:
        raise RuntimeError(f"fft.{function.__name__}: there are no {n} elements")
    return function(n, d) if n else np.zeros(0)


def _shift(function: str, x: Tensor, dim: Any, sign: int) -> Tensor:
    axes, _ = _axes(function, x, None, dim)
    shifts = [x.shape[axis] // 2 if sign > 0 else -(x.shape[axis] // 2) for axis in axes]
    return roll(x, tuple(shifts), tuple(axes)) if axes else x.clone()


def fftshift(input: Tensor, dim: Any = None) -> Tensor:
    """With the frequency 0 in the middle of axes, of all where none are named.

    Args:
        input: any.
        dim: an axis, or several; None: all.
    """
    return _shift("fftshift", input, dim, 1)


def ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    """`fftshift` undone.

    Args:
        input: any.
        dim: an axis, or several; None: all.
    """
    return _shift("ifftshift", input, dim, -1)
