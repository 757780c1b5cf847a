"""Activations, element by element or along an axis."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from vkml.ir import scalar
from vkml.ir.gradients import expression
from vkml.ir.scalar import Scalar
from vkml.nn.functional.arguments import finished, require_floats
from vkml.nn.functional.randoms import uniform
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.operands import axis_of
from vkml.tracing import EMITTER, apply
from vkml.tracing.value import Call, next_serial

softmax, log_softmax = op.softmax, op.log_softmax
_BY_RESULT = "Elu", "Selu", "Celu", "LeakyRelu"
"""Operators whose gradient PyTorch finds from the result where that is written over the input."""


def _applied(name: str, x: Tensor, inplace: bool = False, **attributes: Any) -> Tensor:
    require_floats(x, name)
    start, value = next_serial(), apply(name, x.value, **attributes)
    if inplace and name in _BY_RESULT and value.application is not None:
        call = value.application.call = Call(f"{name}_")
        call.save("result", value)
    return finished(x, start, Tensor(value), inplace)


def _written(name: str, x: Tensor, form: Callable[[Scalar], Scalar], inplace: bool = False) -> Tensor:
    """A form of one element, which states no more than ONNX's operators do."""
    require_floats(x, name)
    value, start = x.value, next_serial()
    made = expression(EMITTER, form(scalar.argument(0, value.type.dtype)), [value], value.type.dtype)
    return finished(x, start, Tensor(made), inplace)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0).

    Args:
        input: floats of any shape.
        inplace: whether the result is written over the input.
    """
    return finished(input, next_serial(), op.relu(input), inplace)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ).

    Args:
        input: floats of any shape.
    """
    return op.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """tanh x.

    Args:
        input: floats of any shape.
    """
    return op.tanh(input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x Φ(x), Φ being the normal distribution's; by tanh where `approximate` says so.

    Args:
        input: floats of any shape.
        approximate: "none", or "tanh" for x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))).

    Raises:
        RuntimeError: `approximate` is neither "none" nor "tanh".
    """
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"approximate is 'none' or 'tanh', not {approximate!r}")
    return _applied("Gelu", input, approximate=approximate)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x sigmoid(x).

    Args:
        input: floats of any shape.
        inplace: whether the result is written over the input.
    """
    return _applied("Swish", input, inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x tanh(softplus(x)) (Misra, 2019).

    Args:
        input: floats of any shape.
        inplace: whether the result is written over the input.
    """
    return _applied("Mish", input, inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x, times a slope where it is negative.

    Args:
        input: floats of any shape.
        negative_slope: the slope.
        inplace: whether the result is written over the input.
    """
    return _applied("LeakyRelu", input, inplace, alpha=float(negative_slope))


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x, and α (eˣ - 1) where it is negative.

    Args:
        input: floats of any shape.
        alpha: α.
        inplace: whether the result is written over the input.
    """
    return _applied("Elu", input, inplace, alpha=float(alpha))


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """1.0507… (x, and 1.6733… (eˣ - 1) where it is negative) (Klambauer et al., 2017).

    Args:
        input: floats of any shape.
        inplace: whether the result is written over the input.
    """
    return _applied("Selu", input, inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x, and α (eˣᐟᵅ - 1) where it is negative.

    Args:
        input: floats of any shape.
        alpha: α, not 0.
        inplace: whether the result is written over the input.

    Raises:
        RuntimeError: α is 0.
    """
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return _applied("Celu", input, inplace, alpha=float(alpha))


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x min(max(x / 6 + 1/2, 0), 1).

    Args:
        input: floats of any shape.
        inplace: whether the result is written over the input.
    """
    return _applied("HardSwish", input, inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x / 6 + 1/2, 0), 1).

    Args:
        input: floats of any shape.
        inplace: whether the result is written over the input.
    """
    return _applied("HardSigmoid", input, inplace, alpha=1 / 6, beta=0.5)


def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|).

    Args:
        input: floats of any shape.
    """
    return _applied("Softsign", input)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x between two bounds, beyond which it is theirs.

    Args:
        input: floats of any shape.
        min_val: the lower bound.
        max_val: the upper bound.
        inplace: whether the result is written over the input.

    Raises:
        ValueError: the lower bound is the greater.
    """
    if min_val > max_val:
        raise ValueError(f"min_val {min_val} is greater than max_val {max_val}")

    def form(x: Scalar) -> Scalar:
        return scalar.where(x <= min_val, float(min_val), scalar.where(x >= max_val, float(max_val), x))

    return _written("hardtanh", input, form, inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6).

    Args:
        input: floats of any shape.
        inplace: whether the result is written over the input.
    """
    return hardtanh(input, 0.0, 6.0, inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above a threshold, elsewhere a number.

    Args:
        input: floats of any shape.
        threshold: up to which the number stands.
        value: the number.
        inplace: whether the result is written over the input.
    """
    return _written("threshold", input, lambda x: scalar.where(x <= threshold, float(value), x), inplace)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log (1 + e^(β x)) / β; x itself where β x is above a threshold.

    Args:
        input: floats of any shape.
        beta: β.
        threshold: of β x.
    """

    def form(x: Scalar) -> Scalar:
        grown = x * float(beta)
        # Without overflow, whatever the threshold.
        rest = scalar.unary("log1p", scalar.unary("exp", -scalar.absolute(grown)))
        return scalar.where(grown > threshold, x, (scalar.maximum(grown, 0.0) + rest) / float(beta))

    return _written("softplus", input, form)


def logsigmoid(input: Tensor) -> Tensor:
    """log (1 / (1 + e⁻ˣ)).

    Args:
        input: floats of any shape.
    """

    def form(x: Scalar) -> Scalar:
        return scalar.minimum(x, 0.0) - scalar.unary("log1p", scalar.unary("exp", -scalar.absolute(x)))

    return _written("logsigmoid", input, form)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x where it is beyond ±λ, elsewhere 0.

    Args:
        input: floats of any shape.
        lambd: λ.
    """
    form = lambda x: scalar.where((x < -lambd) | (x > lambd), x, 0.0)  # noqa: E731
    return _written("hardshrink", input, form)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved by λ towards 0, which it does not cross.

    Args:
        input: floats of any shape.
        lambd: λ.

    Raises:
        RuntimeError: λ is negative.
    """
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}")

    def form(x: Scalar) -> Scalar:
        return scalar.where(x < -lambd, x + lambd, scalar.where(x > lambd, x - lambd, 0.0))

    return _written("softshrink", input, form)


def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh x.

    Args:
        input: floats of any shape.
    """
    return _written("tanhshrink", input, lambda x: x - scalar.unary("tanh", x))


def softmin(input: Tensor, dim: int) -> Tensor:
    """e⁻ˣ / Σ e⁻ˣ along an axis.

    Args:
        input: floats.
        dim: the axis.
    """
    return op.softmax(op.neg(input), dim)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half of an axis times the sigmoid of the second (Dauphin et al., 2016).

    Args:
        input: floats.
        dim: the axis, of an even number of elements.

    Returns:
        Half as many elements along the axis.

    Raises:
        RuntimeError: the axis has an odd number of elements, or there is none.
    """
    if not input.ndim:
        raise RuntimeError("glu does not support tensors without axes")
    axis = axis_of(dim, input.ndim)
    size = input.shape[axis]
    if size % 2:
        raise RuntimeError(f"glu halves an axis: axis {axis} has {size} elements, an odd number")
    front, back = op.split(input, size // 2, axis) if size else (input, input)
    return op.mul(front, op.sigmoid(back))


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x, times a slope that is learned where it is negative (He et al., 2015).

    Args:
        input: [batch, channels, ...].
        weight: [1] or [channels].

    Raises:
        RuntimeError: the weight has another shape or type.
    """
    require_floats(input, "prelu")
    if weight.dtype != input.dtype:
        raise RuntimeError(
            f"prelu: the weight has the type {weight.dtype.numpy_name}, the input {input.dtype.numpy_name}"
        )
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.ndim > 1 or (weight.numel() != 1 and weight.numel() != channels):
        raise RuntimeError(
            f"prelu: the weight {list(weight.shape)} has one element, or one for each of {channels} channels"
        )
    lanes = (weight.numel(), *(1,) * (input.ndim - 2)) if weight.numel() > 1 else (1,) * input.ndim
    return Tensor(apply("PRelu", input.value, op.reshape(weight, *lanes).value))


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """x, times a slope where it is negative: in training one drawn evenly for each element, else their mean.

    Args:
        input: floats of any shape.
        lower: the least slope.
        upper: the greatest slope.
        training: whether slopes are drawn.
        inplace: whether the result is written over the input.

    Raises:
        RuntimeError: the lower bound is the greater.
    """
    if lower > upper:
        raise RuntimeError(f"the lower bound {lower} is greater than the upper bound {upper}")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slope = uniform(input, input.shape) * (upper - lower) + lower
    return finished(input, next_serial(), op.where(op.le(input, 0), op.mul(input, slope), input), inplace)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, dim: int = -1) -> Tensor:
    """Samples of classes that gradients flow through (Jang et al., 2017).

    Args:
        logits: of classes along an axis, not normalised.
        tau: temperature.
        hard: whether samples are one-hot, as if they were not where gradients are concerned.
        dim: the axis.
    """
    require_floats(logits, "gumbel_softmax")
    # From (0, 1]: no logarithm of 0; the second one is infinite at 1 alone, where the sample then is.
    gumbels = op.neg(op.log(op.neg(op.log(1 - uniform(logits, logits.shape)))))
    soft = op.softmax(op.div(op.add(logits, gumbels), tau), dim)
    if not hard:
        return soft
    axis = axis_of(dim, logits.ndim)
    lanes = [-1 if at == axis else 1 for at in range(logits.ndim)]
    from vkml.tensors.creation import arange

    places = op.reshape(arange(logits.shape[axis], device=logits.device), *lanes)
    one_hot = op.eq(op.argmax(soft, axis, True), places).to(soft.dtype)
    return op.add(op.sub(one_hot, soft.detach()), soft)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x over its p-norm along an axis, or over `eps` where the norm is smaller.

    Args:
        input: floats.
        p: which norm; see `vkml.norm`.
        dim: the axis.
        eps: the least that is divided by.
    """
    require_floats(input, "normalize")
    return op.div(input, op.clamp(op.norm(input, p, dim, True), min=eps))


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def act(input: Tensor, *arguments: Any, **named: Any) -> Tensor:
        return function(input, *arguments, **named, inplace=True)

    act.__doc__ = f"As `{function.__name__}`; what it makes is written over the input."
    stated = inspect.signature(function)
    kept = [parameter for name, parameter in stated.parameters.items() if name != "inplace"]
    act.__signature__ = stated.replace(parameters=kept)  # type: ignore[attr-defined]
    act.__name__ = act.__qualname__ = f"{function.__name__}_"
    return act


relu_, elu_, selu_, celu_ = _in_place(relu), _in_place(elu), _in_place(selu), _in_place(celu)
leaky_relu_, rrelu_ = _in_place(leaky_relu), _in_place(rrelu)
hardtanh_, threshold_ = _in_place(hardtanh), _in_place(threshold)

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Of `selu`; `alpha_dropout` sets elements to what it has at -∞."""
SELU_LOWEST = -SELU_ALPHA * SELU_SCALE
assert math.isclose(SELU_LOWEST, -1.7580993408473766)
