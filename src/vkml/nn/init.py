"""How parameters begin, as in `torch.nn.init`: each function fills a tensor in place and returns it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from vkml.errors import CaptureError
from vkml.tensors import Tensor
from vkml.tensors.autograd import no_grad
from vkml.tensors.capture import is_capturing
from vkml.tensors.creation import tensor as tensor_of
from vkml.tensors.generator import Generator
from vkml.tensors.random import rand, randn

Array = np.ndarray[Any, Any]

_LINEAR = ("linear", *(f"conv{more}{n}d" for more in ("", "_transpose") for n in (1, 2, 3)))
_GAINS = {
    **dict.fromkeys(_LINEAR, 1.0), "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75,
}  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that a nonlinearity wants for the standard deviation of what comes before it.

    Args:
        nonlinearity: its name, as in `vkml.nn.functional`.
        param: the negative slope of "leaky_relu".

    Raises:
        ValueError: it is not known, or the slope is no number.
    """
    if nonlinearity == "leaky_relu":
        if isinstance(param, bool) or not isinstance(param, int | float | None):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return _GAINS[nonlinearity]


def _fans(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ValueError("the numbers of inputs and outputs need a tensor of two axes or more")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Draws uniformly from [a, b).

    Args:
        tensor: of floats.
        a: the least number.
        b: where numbers end.
        generator: of the numbers.
    """
    if tensor.is_meta:  # as much as it would hold is not drawn
        return tensor
    return tensor.copy_((rand(*tensor.shape, generator=generator) * (b - a) + a).to(tensor.device))


@no_grad()
def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Draws from a normal distribution of a mean and a standard deviation.

    Args:
        tensor: of floats.
        mean: of the distribution.
        std: of the distribution.
        generator: of the numbers.
    """
    if tensor.is_meta:
        return tensor
    return tensor.copy_((randn(*tensor.shape, generator=generator) * std + mean).to(tensor.device))


@no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fills with one number.

    Args:
        tensor: of any type.
        val: the number.
    """
    return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros.

    Args:
        tensor: of any type.
    """
    return constant_(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    """Ones.

    Args:
        tensor: of any type.
    """
    return constant_(tensor, 1)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Draws uniformly, with variances between inputs' and outputs' (Glorot and Bengio, 2010).

    Args:
        tensor: [outputs, inputs, ...]; further axes count for both.
        gain: a factor of the bound, √(6 / (inputs + outputs)).
        generator: of the numbers.

    Raises:
        ValueError: it has fewer than two axes.
    """
    bound = gain * math.sqrt(6 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Draws from a normal distribution of a variance between inputs' and outputs' (Glorot, Bengio, 2010).

    Args:
        tensor: [outputs, inputs, ...]; further axes count for both.
        gain: a factor of the standard deviation, √(2 / (inputs + outputs)).
        generator: of the numbers.

    Raises:
        ValueError: it has fewer than two axes.
    """
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans(tensor))), generator)


def _spread(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode is 'fan_in' or 'fan_out', not {mode!r}")
    fan = _fans(tensor)[mode == "fan_out"]
    if not fan:
        warnings.warn("Initializing zero-element tensors is a no-op", UserWarning, stacklevel=3)
        return 0.0
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Draws uniformly, so that variances stay through a nonlinearity (He et al., 2015).

    Args:
        tensor: [outputs, inputs, ...]; further axes count for both.
        a: the negative slope of "leaky_relu".
        mode: "fan_in" keeps variances on the way there, "fan_out" those of gradients.
        nonlinearity: what comes behind; see `calculate_gain`.
        generator: of the numbers.

    Raises:
        ValueError: it has fewer than two axes, or mode or nonlinearity are not known.
    """
    bound = math.sqrt(3) * _spread(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Draws from a normal distribution, so that variances stay through a nonlinearity (He et al., 2015).

    Args:
        tensor: [outputs, inputs, ...]; further axes count for both.
        a: the negative slope of "leaky_relu".
        mode: "fan_in" keeps variances on the way there, "fan_out" those of gradients.
        nonlinearity: what comes behind; see `calculate_gain`.
        generator: of the numbers.

    Raises:
        ValueError: it has fewer than two axes, or mode or nonlinearity are not known.
    """
    return normal_(tensor, 0.0, _spread(tensor, a, mode, nonlinearity), generator)


@no_grad()
def _fill(tensor: Tensor, elements: Array) -> Tensor:
    return tensor.copy_(tensor_of(elements, dtype=tensor.dtype).to(tensor.device))


def _drawn(make: Callable[..., Tensor], *size: int, generator: Generator | None) -> Array:
    """Random numbers on the host, where what is made of them is computed."""
    if is_capturing():
        raise CaptureError("random numbers of this distribution are made on the host: fill tensors outside")
    return make(*size, generator=generator).numpy().astype(np.float64)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Draws from a normal distribution, of which what lies in [a, b] is taken.

    Args:
        tensor: of floats.
        mean: of the normal distribution.
        std: of the normal distribution.
        a: the least.
        b: the greatest.
        generator: of the numbers.
    """
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of values may be "
            "incorrect.",
            UserWarning,
            stacklevel=2,
        )
    count = tensor.numel()
    inside = (math.erf((b - mean) / std / math.sqrt(2)) - math.erf((a - mean) / std / math.sqrt(2))) / 2
    # What is thrown away is drawn again: from the normal distribution where most of it lies inside, else
    # evenly, each kept as often as the distribution's density there says.
    peak = -0.5 * ((max(a, min(mean, b)) - mean) / std) ** 2
    found = np.empty(count)
    left = np.arange(count)
    while left.size:
        if inside > 0.3:
            drawn = _drawn(randn, left.size, generator=generator) * std + mean
            is_kept = (drawn >= a) & (drawn <= b)
        else:
            drawn, level = _drawn(rand, 2, left.size, generator=generator)
            drawn = drawn * (b - a) + a
            is_kept = np.log1p(-level) <= -0.5 * ((drawn - mean) / std) ** 2 - peak
        found[left[is_kept]] = drawn[is_kept]
        left = left[~is_kept]
    # Rounding to the tensor's type may lead outside.
    low, high = (tensor_of(bound, dtype=tensor.dtype).item() for bound in (a, b))
    return _fill(tensor, np.clip(found, low, high).reshape(tensor.shape))


def eye_(tensor: Tensor) -> Tensor:
    """Ones along the diagonal of a matrix, zeros elsewhere.

    Args:
        tensor: [rows, columns].

    Raises:
        ValueError: it has not two axes.
    """
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    return _fill(tensor, np.eye(*tensor.shape))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """The kernel of a convolution that leaves as many channels as there are as they are.

    Args:
        tensor: [outputs, inputs, ...] with one to three spatial axes.
        groups: of the convolution, each of which does so.
    """
    if tensor.ndim not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if tensor.shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    outputs = tensor.shape[0] // groups
    elements = np.zeros(tensor.shape)
    middle = tuple(size // 2 for size in tensor.shape[2:])
    for group in range(groups):
        for channel in range(min(outputs, tensor.shape[1])):
            elements[(group * outputs + channel, channel, *middle)] = 1
    return _fill(tensor, elements)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """An orthogonal matrix, of any number of rows and columns, all equally likely (Saxe et al., 2013).

    Args:
        tensor: of two axes or more; all but the first count as columns.
        gain: what it is multiplied by.
        generator: of the numbers.
    """
    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if not tensor.numel():
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    drawn = _drawn(randn, max(rows, columns), min(rows, columns), generator=generator)
    q, r = np.linalg.qr(drawn)
    q *= np.sign(np.diag(r))  # otherwise not all are equally likely
    return _fill(tensor, ((q.T if rows < columns else q) * gain).reshape(tensor.shape))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Draws from a normal distribution, with a share of each column that is 0 (Martens, 2010).

    Args:
        tensor: a matrix.
        sparsity: the share.
        std: of the others, whose mean is 0.
        generator: of the numbers.
    """
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    rows, columns = tensor.shape
    elements = _drawn(randn, rows, columns, generator=generator) * std
    order = _drawn(rand, rows, columns, generator=generator).argsort(0)
    np.put_along_axis(elements, order[: math.ceil(sparsity * rows)], 0, 0)
    return _fill(tensor, elements)
