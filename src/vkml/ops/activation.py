"""Activation functions: Relu and its relatives, the sigmoid family, Gelu, PRelu."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import scalar
from vkml.ir.dtypes import BFLOAT16, FLOATS, INT32, INT64, NUMBERS, SIGNED, UINT32, UINT64
from vkml.ir.graph import Node
from vkml.ir.operator import Array, register
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType
from vkml.ops import special_functions
from vkml.ops.broadcasting import align_to_axis
from vkml.ops.pointwise import Binary, Unary
from vkml.ops.upgrading import renew


def _stored(value: float) -> float:
    """A number as a model file stores it: in 32 bits."""
    return float(np.float32(value))


# A part above zero plus a part below, one of which is 0: on random signs numpy.where mispredicts a branch an
# element and takes 5 ns, these 0.5 ns.


def _split(x: Array, above: Any, below: Any) -> Any:
    """`above` from 0 on and `below` under it, for parameters that are not finite: 0 times these is no 0."""
    return np.where(x >= 0, above, np.where(x < 0, below, x))


def _above(x: Array) -> Any:
    """The part from 0 on: -0 below, which leaves the sign of the other part's zeros, as 0 would not."""
    return np.maximum(x, x.dtype.type(-0.0))


def _sum(x: Array, above: Array, below: Any) -> Any:
    """`above` and `below`, of which one is 0; where both are, the zero that `x` is: a sum loses its sign."""
    total = np.asarray(above + below)
    np.copyto(total, x, where=x == 0)
    return total


def _leaky_relu(x: Array, alpha: float) -> Any:
    if not math.isfinite(alpha):
        return _split(x, x, x * alpha)
    if not 0 < x.dtype.type(alpha) <= 1:  # 0 times infinity is no number, and no part of what lies above 0
        return _sum(x, _above(x), np.minimum(x, 0) * alpha)
    value = np.multiply(x, x.dtype.type(alpha), out=np.empty_like(x))
    return np.maximum(x, value, out=value)


def _elu(x: Array, alpha: float) -> Any:
    if not math.isfinite(alpha):
        return _split(x, x, alpha * np.expm1(x))
    return _sum(x, _above(x), alpha * np.expm1(np.minimum(x, 0)))


def _celu(x: Array, alpha: float) -> Any:
    return np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0)


def _selu(x: Array, alpha: float, gamma: float) -> Any:
    if not math.isfinite(alpha):
        return _split(x, gamma * x, gamma * alpha * np.expm1(x))
    return gamma * (np.maximum(x, 0) + alpha * np.expm1(np.minimum(x, 0)))


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Any:
    value = np.multiply(x, x.dtype.type(alpha), out=np.empty_like(x))
    np.add(value, x.dtype.type(beta), out=value)
    return np.clip(value, 0, 1, out=value)


def _hard_swish(x: Array) -> Any:
    value = _hard_sigmoid(x, 1 / 6, 0.5)
    return np.multiply(value, x, out=value)


def _thresholded_relu(x: Array, alpha: float) -> Any:
    return np.where(x > alpha, x, 0)


def _softsign(x: Array) -> Any:
    return x / (1 + np.abs(x))


def _swish(x: Array, alpha: float) -> Any:
    return x * special_functions.sigmoid(x * x.dtype.type(alpha))


def _prelu(x: Array, slope: Array) -> Any:
    if x.dtype.kind == "u":
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, slope.shape)).copy()
    if not np.isfinite(slope).all():
        return np.where(x < 0, x * slope, x)
    return _sum(x, _above(x), np.minimum(x, 0) * slope)


def _shrink(x: Array, lambd: float, bias: float) -> Any:
    if x.dtype.kind == "f":
        return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))
    low, high, integral = _integer_limits(lambd, bias, x.dtype)
    if integral is None:
        wide = x.astype(np.float64)
        return np.trunc(_shrink(wide, lambd, bias)).astype(np.int64)
    step = np.int64(integral).astype(x.dtype)
    if low > np.iinfo(x.dtype).max:
        return x + step
    return np.where(x < low, x + step, np.where(x > high, x - step, 0))


def _integer_limits(lambd: float, bias: float, dtype: np.dtype[Any]) -> tuple[int, int, int | None]:
    """Shrink's two limits as integers, and the bias where it is integral.

    Below the first limit lies what is to grow: everything, where it is beyond the type's greatest number.
    """
    least, greatest = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    low, high = least, greatest  # beyond which nothing lies: NaN's, and those of infinity
    if math.isfinite(lambd):
        low = min(max(math.ceil(-lambd), least), greatest + 1)
        high = min(max(math.floor(lambd), least), greatest)
    elif lambd < 0:
        low = greatest + 1
    return low, high, int(bias) if float(bias).is_integer() and abs(bias) < 2**62 else None


def _shrink_form(x: Scalar, lambd: float, bias: float) -> Scalar | None:
    if x.dtype.is_float:
        return scalar.where(x < -lambd, x + bias, scalar.where(x > lambd, x - bias, 0.0))
    low, high, step = _integer_limits(lambd, bias, x.dtype.storage)
    if step is None:
        return None
    if low > np.iinfo(x.dtype.storage).max:
        return x + step
    return scalar.where(x < low, x + step, scalar.where(x > high, x - step, 0))


class _Gelu(Unary):
    """Gaussian error linear unit, exact or by tanh."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        if node.attributes["approximate"] not in ("none", "tanh"):
            raise InvalidGraph(
                f"{node.label}: approximate must be none or tanh, not {node.attributes['approximate']!r}"
            )
        return super().infer(node, inputs)


def _gelu(x: Array, approximate: str) -> Any:
    return special_functions.gelu_tanh(x) if approximate == "tanh" else special_functions.gelu(x)


def _gelu_form(x: Scalar, approximate: str) -> Scalar:
    if approximate == "tanh":
        # √(2/π) (x + 0.044715 x³)
        gate = scalar.unary("tanh", x * scalar.fma(x * x, 0.044715, 1.0) * math.sqrt(2 / math.pi))
    else:
        gate = scalar.unary("erf", x * math.sqrt(0.5))
    # Halved before it meets x, whose double may overflow.
    return x * scalar.fma(gate, 0.5, 0.5)


class _PRelu(Binary):
    """Leaky Relu with a slope per element, broadcast one way."""

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        # The slope of opsets 1 to 6 is one number or one per channel.
        return align_to_axis(node, 1) if node.version < 7 else node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        [found] = super().infer(node, inputs)
        data = inputs[0]
        if data is not None and found.dims != data.dims:
            slope = inputs[1]
            raise ShapeError(
                f"{node.label}: the slope of shape {list(slope.dims) if slope else None} does not broadcast "
                f"one-way to the input's shape {list(data.dims)}"
            )
        return [found]


class _Celu(Unary):
    """Continuously differentiable Elu."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        if node.attributes["alpha"] == 0:
            raise InvalidGraph(f"{node.label}: alpha must not be 0, by which Celu divides")
        return super().infer(node, inputs)


class _Selu(Unary):
    """Scaled Elu; opset 1 rounded its constants otherwise."""

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 6:
            return node
        old = {"alpha": _stored(1.6732), "gamma": _stored(1.0507)}
        return renew(node, drop=("consumed_inputs",), attributes={**old, **_given(node, old)})


def _given(node: Node, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: node.attributes[key] for key in keys if key in node.attributes}


def _leaky_form(x: Scalar, slope: Scalar | float) -> Scalar:
    return scalar.where(x < 0, x * slope, x)


def _leaky_slope(x: Scalar, slope: Scalar | float) -> Scalar:
    return scalar.where(x > 0, 1.0, slope if isinstance(slope, Scalar) else scalar.constant(slope, x.dtype))


def _elu_form(x: Scalar, alpha: float) -> Scalar:
    return scalar.where(x < 0, scalar.unary("expm1", x) * alpha, x)


def _elu_slope(x: Scalar, alpha: float) -> Scalar:
    return scalar.where(x > 0, 1.0, scalar.unary("exp", x) * alpha)


def _celu_form(x: Scalar, alpha: float) -> Scalar:
    return scalar.maximum(x, 0) + scalar.minimum(scalar.unary("expm1", x / alpha) * alpha, 0)


def _selu_form(x: Scalar, alpha: float, gamma: float) -> Scalar:
    return gamma * scalar.where(x <= 0, alpha * scalar.unary("expm1", x), x)


def _hard_sigmoid_form(x: Scalar, alpha: float, beta: float) -> Scalar:
    return scalar.maximum(scalar.minimum(scalar.fma(x, alpha, beta), 1), 0)


def _hard_sigmoid_slope(x: Scalar, alpha: float, beta: float) -> Scalar:
    value = scalar.fma(x, alpha, beta)
    return scalar.where((value > 0) & (value < 1), scalar.constant(alpha, x.dtype), 0.0)


def _hard_swish_slope(x: Scalar) -> Scalar:
    return scalar.where(x <= -3, 0.0, scalar.where(x >= 3, 1.0, x * (1 / 3) + 0.5))


def _sigmoid_form(x: Scalar) -> Scalar:
    return scalar.unary("sigmoid", x)


# x tanh(log(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2); from 20 on that is x.
def _mish_form(x: Scalar) -> Scalar:
    grown = scalar.unary("exp", scalar.minimum(x, 20))
    n = grown * (grown + 2)
    return x * (n / (n + 2))


def _softplus_form(x: Scalar) -> Scalar:
    return scalar.unary("log1p", scalar.unary("exp", -scalar.absolute(x))) + scalar.relu(x)


register(Unary("Relu", lambda x: np.maximum(x, 0), scalar.relu, FLOATS + SIGNED, always_saved=((), (0,))))
register(
    Unary(
        "LeakyRelu",
        _leaky_relu,
        lambda x, alpha: _leaky_form(x, alpha),
        FLOATS,
        attributes={"alpha": 0.01},
        slopes=[lambda x, alpha: _leaky_slope(x, alpha)],
    )
)
register(
    _PRelu(
        "PRelu",
        _prelu,
        _leaky_form,
        (*FLOATS, INT32, INT64, UINT32, UINT64),
        slopes=[_leaky_slope, lambda x, slope: scalar.where(x > 0, 0.0, x)],
    )
)
register(
    Unary(
        "ThresholdedRelu",
        _thresholded_relu,
        lambda x, alpha: scalar.where(x > alpha, x, 0),
        FLOATS,
        attributes={"alpha": 1.0},
    )
)
register(
    Unary(
        "Shrink",
        _shrink,
        _shrink_form,
        tuple(dtype for dtype in NUMBERS if dtype != BFLOAT16),
        attributes={"lambd": 0.5, "bias": 0.0},
    )
)

register(Unary("Elu", _elu, _elu_form, FLOATS, attributes={"alpha": 1.0}, slopes=[_elu_slope]))
register(_Celu("Celu", _celu, _celu_form, FLOATS, attributes={"alpha": 1.0}))
register(
    _Selu(
        "Selu",
        _selu,
        _selu_form,
        FLOATS,
        attributes={"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    )
)

register(Unary("Sigmoid", special_functions.sigmoid, _sigmoid_form, FLOATS))
register(
    Unary(
        "HardSigmoid",
        _hard_sigmoid,
        _hard_sigmoid_form,
        FLOATS,
        attributes={"alpha": 0.2, "beta": 0.5},
        slopes=[_hard_sigmoid_slope],
    )
)
register(
    Unary(
        "HardSwish",
        _hard_swish,
        lambda x: x * _hard_sigmoid_form(x, 1 / 6, 0.5),
        FLOATS,
        slopes=[_hard_swish_slope],
    )
)
register(
    Unary("Swish", _swish, lambda x, alpha: x * _sigmoid_form(x * alpha), FLOATS, attributes={"alpha": 1.0})
)
register(_Gelu("Gelu", _gelu, _gelu_form, FLOATS, attributes={"approximate": "none"}))
register(Unary("Mish", special_functions.mish, _mish_form, FLOATS))
register(Unary("Softplus", special_functions.softplus, _softplus_form, FLOATS, slopes=[_sigmoid_form]))
register(Unary("Softsign", _softsign, lambda x: x / (1 + scalar.absolute(x)), FLOATS))
