"""Windows of signals, as `torch.hann_window` and kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkml.ir import DType
from vkml.tensors.creation import tensor
from vkml.tensors.promotion import checked, get_default_dtype
from vkml.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def _window(
    size: int, periodic: bool, form: Callable[[Array], Array], dtype: DType | None, device: Any, grad: bool
) -> Tensor:
    """A window by its form over 0 … 1; a periodic one is that of one more element, without the last."""
    if size < 0:
        raise RuntimeError(f"a window of {size} elements")
    kind = checked(dtype) or get_default_dtype()
    if not kind.is_float:
        raise RuntimeError(f"a window has elements of floats, not of {kind.numpy_name}")
    count = size + 1 if periodic and size > 1 else size
    elements = form(np.arange(count) / (count - 1))[:size] if count > 1 else np.ones(count)
    return tensor(elements.astype(kind.storage), device=device, requires_grad=grad)


def _cosines(*weights: float) -> Callable[[Array], Array]:
    def form(x: Array) -> Array:
        terms = [w * np.cos(2 * np.pi * at * x) * (-1) ** at for at, w in enumerate(weights)]
        return np.asarray(sum(terms))

    return form


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Hann's window: half of 1 - cos.

    Args:
        window_length: how many elements.
        periodic: whether its next element would be its first; else it is symmetric.
        dtype: a floating type; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.
    """
    return _window(window_length, periodic, _cosines(0.5, 0.5), dtype, device, requires_grad)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *,
    dtype: DType | None = None, device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Hamming's window: `alpha` - `beta` cos.

    Args:
        window_length: how many elements.
        periodic: whether its next element would be its first; else it is symmetric.
        alpha: the mean.
        beta: the factor of the cosine.
        dtype: a floating type; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.
    """
    return _window(window_length, periodic, _cosines(alpha, beta), dtype, device, requires_grad)


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Blackman's window, of two cosines.

    Args:
        window_length: how many elements.
        periodic: whether its next element would be its first; else it is symmetric.
        dtype: a floating type; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.
    """
    return _window(window_length, periodic, _cosines(0.42, 0.5, 0.08), dtype, device, requires_grad)


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Bartlett's window, a triangle.

    Args:
        window_length: how many elements.
        periodic: whether its next element would be its first; else it is symmetric.
        dtype: a floating type; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.
    """
    return _window(window_length, periodic, lambda x: 1 - np.abs(2 * x - 1), dtype, device, requires_grad)


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: DType | None = None,
    device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Kaiser's window, of the modified Bessel function of order 0.

    Args:
        window_length: how many elements.
        periodic: whether its next element would be its first; else it is symmetric.
        beta: how narrow it is.
        dtype: a floating type; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.
    """

    def form(x: Array) -> Array:
        return np.asarray(np.i0(beta * np.sqrt(np.maximum(0, 1 - (2 * x - 1) ** 2))) / np.i0(beta))

    return _window(window_length, periodic, form, dtype, device, requires_grad)
