"""Pointwise operators as chains of NumPy functions, for block-wise execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vkml.cpu.blocks import Chain, choose, store
from vkml.ir import Node, TensorType, find
from vkml.ir.dtypes import from_code

Array = np.ndarray[Any, Any]

COSTLY = (np.exp, np.log, np.tanh, np.power, np.sin, np.cos, np.log1p, np.expm1, np.arctan)
"""Functions that take about four times as long as an addition."""


@dataclass
class ChainBuilder:
    """Collects operands, then translates nodes. float16 is computed in float32 and rounded when stored."""

    chain: Chain = field(default_factory=Chain)
    values: dict[str, int] = field(default_factory=dict)
    cost: float = 0.0
    """Passes over a block, a costly function counted as four."""
    _scalars: dict[tuple[bytes, str], int] = field(default_factory=dict)
    _widened: dict[int, int] = field(default_factory=dict)

    def operand(self, name: str, dtype: Any) -> int:
        """Adds a named operand."""
        self.values[name] = self.chain.operand(dtype)
        return self.values[name]

    def scalar(self, value: Any, dtype: Any) -> int:
        """A constant number of a type, added once."""
        array = np.asarray(value).astype(dtype).reshape(())
        key = (array.tobytes(), array.dtype.str)
        if key not in self._scalars:
            self._scalars[key] = self.chain.constant(array)
        return self._scalars[key]

    def dtype(self, number: int) -> np.dtype[Any]:
        """The NumPy type of a value."""
        return self.chain.dtypes[number]  # type: ignore[no-any-return]

    def step(
        self, function: Callable[..., Any], *inputs: int, dtype: Any = None, in_place: bool = True
    ) -> int:
        """Adds a function application; the result has the first input's type unless stated."""
        self.cost += 4 if function in COSTLY else 1
        dtype = self.dtype(inputs[0]) if dtype is None else dtype
        return self.chain.step(function, *inputs, dtype=dtype, in_place=in_place)

    def wide(self, number: int) -> int:
        """The value as float32 where it is float16."""
        if self.dtype(number) != np.float16:
            return number
        if number not in self._widened:
            self._widened[number] = self.step(store, number, dtype=np.float32)
            self.cost += 10
        return self._widened[number]

    def translate(self, node: Node, types: Mapping[str, TensorType]) -> None:
        """Adds a pointwise node; its inputs are known values."""
        inputs = [self.wide(self.values[name]) if name else None for name in node.inputs]
        storage = types[node.outputs[0]].dtype.storage
        result = np.dtype(np.float32) if storage == np.float16 else storage
        translate = _TRANSLATIONS.get(node.op) if not node.domain else None
        number = translate(self, node, inputs, result) if translate else None
        if number is None:
            number = self._reference(node, types, result)
        self.values[node.outputs[0]] = number

    def _reference(self, node: Node, types: Mapping[str, TensorType], result: Any) -> int:
        """The operator's own `evaluate`, on blocks."""
        operator = find(node)
        names = list(node.inputs)
        wanted = [types[name].dtype.storage if name else None for name in names]
        numbers = [self.values[name] for name in names if name]

        def evaluate(*arrays: Array, out: Array) -> None:
            remaining = iter(arrays)
            inputs = [
                None if dtype is None else next(remaining).astype(dtype, copy=False) for dtype in wanted
            ]
            np.copyto(out, operator.evaluate(node, inputs)[0], casting="unsafe")

        self.cost += 8
        return self.step(evaluate, *numbers, dtype=result, in_place=False)


Translation = Callable[[ChainBuilder, Node, Sequence[Any], Any], int | None]


def _ufunc(function: Callable[..., Any]) -> Translation:
    def translate(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int | None:
        return build.step(function, *inputs, dtype=result)

    return translate


def _float_ufunc(function: Callable[..., Any]) -> Translation:
    def translate(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int | None:
        return build.step(function, *inputs, dtype=result) if result.kind == "f" else None

    return translate


def _folded(function: Callable[..., Any]) -> Translation:
    """A variadic operator: the function applied from left to right."""

    def translate(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int | None:
        total = inputs[0]
        for following in inputs[1:]:
            total = build.step(function, total, following, dtype=result)
        return int(total)

    return translate


def _identity(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int:
    return int(inputs[0])


def _relu(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int:
    return build.step(np.maximum, inputs[0], build.scalar(0, result), dtype=result)


def _clip(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int | None:
    value, low, high = [*inputs, None, None][:3]
    if low is None or high is None:
        return None  # whose place the limits of the stored type take
    return build.step(np.minimum, build.step(np.maximum, value, low, dtype=result), high, dtype=result)


def _sigmoid(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int:
    one = build.scalar(1, result)
    value = build.step(np.negative, inputs[0])
    value = build.step(np.exp, value)
    value = build.step(np.add, value, one)
    return build.step(np.divide, one, value, dtype=result)


def _leaky_relu(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int | None:
    alpha = node.attributes["alpha"]
    if not 0 < result.type(alpha) <= 1:  # 0 times infinity is no number, and greater than it by NumPy's rules
        return None
    value = build.step(np.multiply, inputs[0], build.scalar(alpha, result))
    return build.step(np.maximum, inputs[0], value)


def _hard_sigmoid(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int:
    return _hard_gate(build, inputs[0], node.attributes["alpha"], node.attributes["beta"], result)


def _hard_gate(build: ChainBuilder, x: int, alpha: float, beta: float, result: Any) -> int:
    value = build.step(np.multiply, x, build.scalar(alpha, result))
    value = build.step(np.add, value, build.scalar(beta, result))
    value = build.step(np.maximum, value, build.scalar(0, result))
    return build.step(np.minimum, value, build.scalar(1, result))


def _hard_swish(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int:
    gate = _hard_gate(build, inputs[0], 1 / 6, 0.5, result)
    return build.step(np.multiply, inputs[0], gate)


def _erf(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int | None:
    return _erf_steps(build, inputs[0]) if result == np.float32 else None


# erf(x) = tanh(x P(x²)): NumPy's tanh is its fastest function of that shape, and what is left to approximate
# is nearly straight. Reweighted least squares on [-4, 4], beyond which erf is 1: error below 1.4e-7.
_ERF = (
    1.1283797025680542,
    0.10276547819375992,
    -0.00018438237020745873,
    -0.0006257208297029138,
    8.971311763161793e-05,
    -5.98578435528907e-06,
    1.589659746059624e-07,
)


def _erf_steps(build: ChainBuilder, x: int) -> int:
    square = build.step(np.multiply, x, x)
    square = build.step(np.minimum, square, build.scalar(16, np.float32))
    value = build.step(np.multiply, square, build.scalar(_ERF[-1], np.float32))
    for coefficient in _ERF[-2:0:-1]:
        value = build.step(np.add, value, build.scalar(coefficient, np.float32))
        value = build.step(np.multiply, value, square)
    value = build.step(np.add, value, build.scalar(_ERF[0], np.float32))
    value = build.step(np.multiply, value, x)
    return build.step(np.tanh, value)


def _gelu(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int | None:
    x = inputs[0]
    one, half = build.scalar(1, result), build.scalar(0.5, result)
    if node.attributes["approximate"] == "tanh":
        # sqrt(2 / pi) (x + 0.044715 x³) = x (0.79788456 + 0.035677408 x²)
        value = build.step(np.multiply, x, x)
        value = build.step(np.multiply, value, build.scalar(0.0356774081363001, result))
        value = build.step(np.add, value, build.scalar(0.7978845608028654, result))
        value = build.step(np.multiply, value, x)
        value = build.step(np.tanh, value)
    else:
        if result != np.float32:
            return None
        value = _erf_steps(build, build.step(np.multiply, x, build.scalar(0.7071067811865476, result)))
    # Halved before it meets x, whose double may overflow.
    value = build.step(np.add, value, one)
    value = build.step(np.multiply, value, half)
    return build.step(np.multiply, value, x)


def _power(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int | None:
    if build.dtype(inputs[0]) != build.dtype(inputs[1]) or result.kind != "f":
        return None
    return build.step(np.power, *inputs)


def _cast(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int | None:
    source = build.dtype(build.values[node.inputs[0]])
    target = from_code(node.attributes["to"])
    if not target.is_native or source.kind not in "fiub" or target.kind not in "fiub":
        return None
    if node.attributes["source"] == target.code:
        return int(inputs[0])  # known more precisely than its type, perhaps, but one value is one number
    if source.kind == "f" and target.kind != "f":
        return None
    if target.storage == np.float16:
        narrow = build.step(store, inputs[0], dtype=np.float16)
        return build.wide(narrow)
    return build.step(store, inputs[0], dtype=target.storage)


def _where(build: ChainBuilder, node: Node, inputs: Sequence[Any], result: Any) -> int:
    return build.step(choose, *inputs, dtype=result, in_place=False)


_TRANSLATIONS: dict[str, Translation] = {
    "Abs": _ufunc(np.abs),
    "Add": _ufunc(np.add),
    "And": _ufunc(np.logical_and),
    "Cast": _cast,
    "Ceil": _float_ufunc(np.ceil),
    "Clip": _clip,
    "Cos": _float_ufunc(np.cos),
    "Div": _float_ufunc(np.divide),
    "Equal": _ufunc(np.equal),
    "Erf": _erf,
    "Exp": _float_ufunc(np.exp),
    "Floor": _float_ufunc(np.floor),
    "Gelu": _gelu,
    "Greater": _ufunc(np.greater),
    "GreaterOrEqual": _ufunc(np.greater_equal),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": _identity,
    "LeakyRelu": _leaky_relu,
    "Less": _ufunc(np.less),
    "LessOrEqual": _ufunc(np.less_equal),
    "Log": _float_ufunc(np.log),
    "Max": _folded(np.maximum),
    "Min": _folded(np.minimum),
    "Mul": _ufunc(np.multiply),
    "Neg": _ufunc(np.negative),
    "Not": _ufunc(np.logical_not),
    "Or": _ufunc(np.logical_or),
    "Pow": _power,
    "Reciprocal": _float_ufunc(np.reciprocal),
    "Relu": _relu,
    "Sigmoid": _sigmoid,
    "Sin": _float_ufunc(np.sin),
    "Sqrt": _float_ufunc(np.sqrt),
    "Sub": _ufunc(np.subtract),
    "Sum": _folded(np.add),
    "Tanh": _float_ufunc(np.tanh),
    "Where": _where,
    "Xor": _ufunc(np.logical_xor),
}
