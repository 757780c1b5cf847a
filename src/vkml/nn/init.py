"""How parameters begin, as in `torch.nn.init`: each function fills a tensor in place and returns it."""

from __future__ import annotations

import math

from vkml.tensors import Tensor
from vkml.tensors.autograd import no_grad
from vkml.tensors.generator import Generator
from vkml.tensors.random import rand, randn

_GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By what a nonlinearity wants the standard deviation before it multiplied."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS and not nonlinearity.startswith("conv"):
        raise ValueError(f"unknown nonlinearity {nonlinearity!r}")
    return _GAINS.get(nonlinearity, 1.0)


def _fans(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ValueError("the numbers of inputs and outputs need a tensor of two axes or more")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Evenly from [a, b)."""
    if tensor.is_meta:  # as much as it would hold is not drawn
        return tensor
    return tensor.copy_((rand(*tensor.shape, generator=generator) * (b - a) + a).to(tensor.device))


@no_grad()
def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Normally, of a mean and a standard deviation."""
    if tensor.is_meta:
        return tensor
    return tensor.copy_((randn(*tensor.shape, generator=generator) * std + mean).to(tensor.device))


@no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """One number throughout."""
    return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return constant_(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return constant_(tensor, 1)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Evenly, so that variances stay between inputs' and outputs' (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normally, so that variances stay between inputs' and outputs' (Glorot and Bengio, 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans(tensor))), generator)


def _spread(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode is 'fan_in' or 'fan_out', not {mode!r}")
    return calculate_gain(nonlinearity, a) / math.sqrt(_fans(tensor)[mode == "fan_out"])


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Evenly, so that variances stay through a nonlinearity (He et al., 2015)."""
    bound = math.sqrt(3) * _spread(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Normally, so that variances stay through a nonlinearity (He et al., 2015)."""
    return normal_(tensor, 0.0, _spread(tensor, a, mode, nonlinearity), generator)
