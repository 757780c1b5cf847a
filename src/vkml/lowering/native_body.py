"""Bodies of pointwise nodes as expressions for machine code."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vkml.cpu.native.expression import Expression, Step
from vkml.ir import Constant, DType, Graph, Node, TensorType, Value, dtypes, find
from vkml.ir.lowering import CannotLower
from vkml.ops.elementwise import clip_limits

ELEMENTS = {dtypes.FLOAT32: "float32", dtypes.FLOAT16: "float16", dtypes.BOOL: "bool"}
"""Element types that expressions compute with, by their names in accesses."""


_expressions: weakref.WeakKeyDictionary[Graph, Expression] = weakref.WeakKeyDictionary()


def expression_of(body: Graph) -> Expression:
    """A body as an expression whose operands are the body's inputs, in order.

    Raises:
        CannotLower: a node or a type has no machine code.
    """
    known = _expressions.get(body)
    if known is None:
        known = _expressions[body] = _translated(body)
    return known


def _translated(body: Graph) -> Expression:
    build = _Translation(len(body.inputs))
    for number, value in enumerate(body.inputs):
        _require(value.type)
        build.values[value.name] = number
        build.types[value.name] = value.type
    for name, constant in body.constants.items():
        build.constants[name] = constant
        build.types[name] = constant.type
    for node in body.nodes:
        type_ = body.types.get(node.outputs[0])
        if type_ is None:
            type_ = next(value.type for value in body.outputs if value.name == node.outputs[0])
        _require(type_)
        build.types[node.outputs[0]] = type_
        build.translate(node)
    outputs = tuple(build.value(value.name) for value in body.outputs)
    return Expression(len(body.inputs), tuple(build.steps), outputs)


def pointwise_refusal(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]
) -> str | None:
    """Why a pointwise node has no machine code; None where it has, and for other nodes."""
    if not find(node).is_pointwise or any(node.outputs[1:]):
        return None
    names = [name for name in dict.fromkeys(node.inputs) if name]
    numbers = {
        name: constants[name] for name in names if name in constants and constants[name].array.size == 1
    }
    inputs = tuple(Value(name, types[name]) for name in names if name not in numbers)
    outputs = (Value(node.outputs[0], types[node.outputs[0]]),)
    try:
        expression_of(Graph(inputs, outputs, (node,), numbers))
    except CannotLower as reason:
        return str(reason)
    return None


def _require(type_: TensorType) -> None:
    if type_.dtype not in ELEMENTS:
        raise CannotLower(f"machine code computes with float32, float16 and bool, not {type_.dtype.name}")


@dataclass
class _Translation:
    operands: int
    steps: list[Step] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    _known: dict[Step, int] = field(default_factory=dict)

    def step(self, operation: str, *inputs: int, number: float = 0.0) -> int:
        """Adds a step unless the same exists; its value."""
        is_logical = operation in ("bitwise_and", "bitwise_or", "bitwise_xor", "invert")
        made = Step(operation, inputs, number, dtype="bool" if is_logical else "float32")
        if made not in self._known:
            self.steps.append(made)
            self._known[made] = self.operands + len(self.steps) - 1
        return self._known[made]

    def constant(self, number: float) -> int:
        return self.step("constant", number=float(np.float32(number)))

    def value(self, name: str) -> int:
        if name not in self.values:
            constant = self.constants[name]
            _require(constant.type)
            if constant.array.size != 1:
                raise CannotLower("a constant of a body has more than one element")
            number = constant.array.reshape(-1)[0]
            if constant.dtype == dtypes.BOOL:
                one, zero = self.constant(1.0), self.constant(0.0)
                self.values[name] = self.step("equal", one, one if number else zero)
            else:
                self.values[name] = self.constant(float(number))
        return self.values[name]

    def dtype(self, name: str) -> DType:
        return self.types[name].dtype

    def translate(self, node: Node) -> None:
        write = _TRANSLATIONS.get(node.op) if not node.domain else None
        if write is None:
            raise CannotLower(f"{node.op} has no machine code")
        inputs = [self.value(name) for name in node.inputs if name]
        self.values[node.outputs[0]] = write(self, node, inputs)


_Write = Callable[[_Translation, Node, Sequence[int]], int]


def _plain(operation: str) -> _Write:
    return lambda build, node, inputs: build.step(operation, *inputs)


def _of_floats(operation: str) -> _Write:
    """An operation that is defined on floats only: on truth values, bits would be read as numbers."""

    def write(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
        if any(build.dtype(name) == dtypes.BOOL for name in node.inputs if name):
            raise CannotLower(f"{node.op} of bool has no machine code")
        return build.step(operation, *inputs)

    return write


def _folded(operation: str) -> _Write:
    def write(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
        total = inputs[0]
        for following in inputs[1:]:
            total = build.step(operation, total, following)
        return total

    return write


def _mean(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    return build.step("divide", _folded("add")(build, node, inputs), build.constant(len(inputs)))


def _identity(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    return inputs[0]


def _clip(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    present = iter(inputs)
    value = next(present)
    limits = clip_limits(build.dtype(node.outputs[0]))
    for index, operation in enumerate(("maximum", "minimum")):
        if index + 1 < len(node.inputs) and node.inputs[index + 1]:
            value = build.step(operation, value, next(present))
        elif limits is not None:
            value = build.step(operation, value, build.constant(limits[index]))
    return value


def _cast(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    source, target = build.dtype(node.inputs[0]), build.dtype(node.outputs[0])
    if target not in ELEMENTS or source not in ELEMENTS:
        raise CannotLower(f"Cast from {source.name} to {target.name} has no machine code")
    if source == dtypes.BOOL and target != dtypes.BOOL:
        return build.step("where", inputs[0], build.constant(1.0), build.constant(0.0))
    if target == dtypes.BOOL and source != dtypes.BOOL:
        return build.step("not_equal", inputs[0], build.constant(0.0))
    if target == dtypes.FLOAT16 and source == dtypes.FLOAT32:
        # Also where the value stays in registers: a model may cast there and back to round.
        return build.step("round_to_half", inputs[0])
    return inputs[0]


def _leaky(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    scaled = build.step("multiply", inputs[0], build.constant(node.attributes["alpha"]))
    is_negative = build.step("less", inputs[0], build.constant(0.0))
    return build.step("where", is_negative, scaled, inputs[0])


def _prelu(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    scaled = build.step("multiply", inputs[0], inputs[1])
    is_negative = build.step("less", inputs[0], build.constant(0.0))
    return build.step("where", is_negative, scaled, inputs[0])


def _elu(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    grown = build.step("subtract", build.step("exp", inputs[0]), build.constant(1.0))
    scaled = build.step("multiply", grown, build.constant(node.attributes["alpha"]))
    is_negative = build.step("less", inputs[0], build.constant(0.0))
    return build.step("where", is_negative, scaled, inputs[0])


def _hard_gate(build: _Translation, x: int, alpha: float, beta: float) -> int:
    value = build.step("fma", x, build.constant(alpha), build.constant(beta))
    return build.step("minimum", build.step("maximum", value, build.constant(0.0)), build.constant(1.0))


def _hard_sigmoid(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    return _hard_gate(build, inputs[0], node.attributes["alpha"], node.attributes["beta"])


def _hard_swish(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    return build.step("multiply", inputs[0], _hard_gate(build, inputs[0], 1 / 6, 0.5))


def _gelu(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    x = inputs[0]
    if node.attributes["approximate"] == "tanh":
        # sqrt(2 / pi) (x + 0.044715 x³) = x (0.79788456 + 0.035677408 x²)
        square = build.step("multiply", x, x)
        inner = build.step(
            "fma", square, build.constant(0.0356774081363001), build.constant(0.7978845608028654)
        )
        gate = build.step("tanh", build.step("multiply", inner, x))
    else:
        gate = build.step("erf", build.step("multiply", x, build.constant(math.sqrt(0.5))))
    # Halved before it meets x, whose double may overflow.
    half = build.constant(0.5)
    gate = build.step("fma", gate, half, half)
    return build.step("multiply", gate, x)


def _silu(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    x = inputs[0]
    alpha = float(node.attributes.get("alpha", 1.0))
    inner = x if alpha == 1.0 else build.step("multiply", x, build.constant(alpha))
    return build.step("multiply", x, build.step("sigmoid", inner))


def _equality(operation: str) -> _Write:
    def write(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
        if build.dtype(node.inputs[0]) == dtypes.BOOL:
            raise CannotLower(f"{node.op} of bool has no machine code")
        return build.step(operation, *inputs)

    return write


def _power(build: _Translation, node: Node, inputs: Sequence[int]) -> int:
    """Powers with an exponent that is a small number known now."""
    exponent = build.constants.get(node.inputs[1])
    if exponent is None or exponent.array.size != 1:
        raise CannotLower("Pow with a varying exponent has no machine code")
    number = float(exponent.array.reshape(-1)[0])
    x = inputs[0]
    if number == 0.5:
        return build.step("sqrt", x)
    if number not in (1.0, 2.0, 3.0, 4.0):
        raise CannotLower(f"Pow with the exponent {number:g} has no machine code")
    square = build.step("multiply", x, x)
    return {1.0: lambda: x, 2.0: lambda: square, 3.0: lambda: build.step("multiply", square, x),
            4.0: lambda: build.step("multiply", square, square)}[number]()  # fmt: skip


_TRANSLATIONS: Mapping[str, _Write] = {
    "Abs": _of_floats("absolute"),
    "Add": _of_floats("add"),
    "And": _plain("bitwise_and"),
    "Cast": _cast,
    "Ceil": _of_floats("ceil"),
    "Clip": _clip,
    "Div": _of_floats("divide"),
    "Elu": _elu,
    "Equal": _equality("equal"),
    "Erf": _of_floats("erf"),
    "Exp": _of_floats("exp"),
    "Floor": _of_floats("floor"),
    "Gelu": _gelu,
    "Greater": _of_floats("greater"),
    "GreaterOrEqual": _of_floats("greater_equal"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": _identity,
    "LeakyRelu": _leaky,
    "Less": _of_floats("less"),
    "LessOrEqual": _of_floats("less_equal"),
    "Log": _of_floats("log"),
    "Max": _folded("maximum"),
    "Mean": _mean,
    "Min": _folded("minimum"),
    "Mul": _of_floats("multiply"),
    "Neg": _of_floats("negative"),
    "Not": _plain("invert"),
    "Or": _plain("bitwise_or"),
    "Pow": _power,
    "PRelu": _prelu,
    "Reciprocal": _of_floats("reciprocal"),
    "Relu": _of_floats("relu"),
    "Round": _of_floats("rint"),
    "Sigmoid": _of_floats("sigmoid"),
    "Sqrt": _of_floats("sqrt"),
    "Sub": _of_floats("subtract"),
    "Sum": _folded("add"),
    "Swish": _silu,
    "Tanh": _of_floats("tanh"),
    "Where": _plain("where"),
    "Xor": _plain("bitwise_xor"),
}
