"""Activations as modules."""

from __future__ import annotations

from typing import Any

from vkml.ir import DType
from vkml.nn import functional, init
from vkml.nn.module import Module, Parameter
from vkml.tensors import Tensor
from vkml.tensors.creation import empty


class Identity(Module):
    """What it is given, whatever it is made with.

    Args:
        *arguments: passed over.
        **named: passed over.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Sigmoid(Module):
    """1 / (1 + e⁻ˣ)."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.sigmoid(input)


class Tanh(Module):
    """tanh x."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.tanh(input)


class LogSigmoid(Module):
    """log (1 / (1 + e⁻ˣ))."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.logsigmoid(input)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.softsign(input)


class Tanhshrink(Module):
    """x - tanh x."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.tanhshrink(input)


class _InPlace(Module):
    """An activation that may write its result into its input."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class ReLU(_InPlace):
    """max(x, 0); see `functional.relu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.relu(input, self.inplace)


class ReLU6(_InPlace):
    """min(max(x, 0), 6); see `functional.relu6`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.relu6(input, self.inplace)


class SELU(_InPlace):
    """λ x, and λ α (eˣ - 1) where it is negative; see `functional.selu` (Klambauer et al., 2017)."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.selu(input, self.inplace)


class SiLU(_InPlace):
    """x sigmoid(x); see `functional.silu`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.silu(input, self.inplace)


class Mish(_InPlace):
    """x tanh(softplus(x)); see `functional.mish`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.mish(input, self.inplace)


class Hardswish(_InPlace):
    """x min(max(x / 6 + 1/2, 0), 1); see `functional.hardswish`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.hardswish(input, self.inplace)


class Hardsigmoid(_InPlace):
    """min(max(x / 6 + 1/2, 0), 1); see `functional.hardsigmoid`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.hardsigmoid(input, self.inplace)


class LeakyReLU(_InPlace):
    """x, times a slope where it is negative; see `functional.leaky_relu`."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input: Tensor) -> Tensor:
        return functional.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        more = ", inplace=True" if self.inplace else ""
        return f"negative_slope={self.negative_slope}{more}"


class ELU(_InPlace):
    """x, and α (eˣ - 1) where it is negative; see `functional.elu`."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        return functional.elu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        more = ", inplace=True" if self.inplace else ""
        return f"alpha={self.alpha}{more}"


class CELU(_InPlace):
    """x, and α (eˣᐟᵅ - 1) where it is negative; see `functional.celu`."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        return functional.celu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        more = ", inplace=True" if self.inplace else ""
        return f"alpha={self.alpha}{more}"


class Hardtanh(_InPlace):
    """x between two bounds, beyond which it is theirs; see `functional.hardtanh`."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.min_val, self.max_val = min_val, max_val

    def forward(self, input: Tensor) -> Tensor:
        return functional.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        more = ", inplace=True" if self.inplace else ""
        return f"min_val={self.min_val}, max_val={self.max_val}{more}"


class Threshold(_InPlace):
    """x where it is above a threshold, elsewhere a number; see `functional.threshold`."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold, self.value = threshold, value

    def forward(self, input: Tensor) -> Tensor:
        return functional.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        more = ", inplace=True" if self.inplace else ""
        return f"threshold={self.threshold}, value={self.value}{more}"


class GELU(Module):
    """x Φ(x); see `functional.gelu`."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return functional.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Softplus(Module):
    """log (1 + e^(β x)) / β; see `functional.softplus`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Tensor:
        return functional.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Hardshrink(Module):
    """x where it is beyond ±λ, elsewhere 0; see `functional.hardshrink`."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        return functional.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class Softshrink(Module):
    """x moved by λ towards 0, which it does not cross; see `functional.softshrink`."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        return functional.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class GLU(Module):
    """The first half of an axis times the sigmoid of the second; see `functional.glu`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return functional.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class RReLU(_InPlace):
    """x, times a slope where it is negative, in training a random one; see `functional.rrelu`."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.lower, self.upper = lower, upper

    def forward(self, input: Tensor) -> Tensor:
        return functional.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        more = ", inplace=True" if self.inplace else ""
        return f"lower={self.lower}, upper={self.upper}{more}"


class PReLU(Module):
    """x, times a slope where it is negative that is learned.

    Args:
        num_parameters: 1, or the number of channels.
        init: what the slopes begin as.
        device: of the slopes.
        dtype: of the slopes.
    """

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All as they begin."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return functional.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class _AlongAxis(Module):
    """An activation along an axis."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax(_AlongAxis):
    """eˣ / Σ eˣ along an axis; see `functional.softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.softmax(input, self.dim)


class LogSoftmax(_AlongAxis):
    """The logarithm of softmax; see `functional.log_softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.log_softmax(input, self.dim)


class Softmin(_AlongAxis):
    """e⁻ˣ / Σ e⁻ˣ along an axis; see `functional.softmin`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.softmin(input, self.dim)


class Softmax2d(Module):
    """Softmax over the channels of [batch, channels, height, width], or without a batch."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return functional.softmax(input, -3)
