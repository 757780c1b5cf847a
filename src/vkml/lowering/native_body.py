"""Scalar forms as expressions for machine code."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field

from vkml.cpu.native.conversions import conversion
from vkml.cpu.native.element import computed_in, lane_bytes
from vkml.cpu.native.expression import Expression, Step
from vkml.cpu.native.operations import OPERATIONS
from vkml.dataclasses import dataclass
from vkml.ir import Constant, Graph, Node, TensorType, Value, dtypes, find
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import Scalar, ordered
from vkml.ir.scalar_body import scalar_results
from vkml.ir.scalar_functions import expansion

ELEMENTS = {dtype: dtype.numpy_name for dtype in (*dtypes.NUMBERS, dtypes.BOOL)}
"""Element types that expressions compute with, by their names in accesses."""
_OVERFLOWING = frozenset(
    ("add", "subtract", "multiply", "divide", "negative", "absolute", "power", "invert", "left_shift")
)
"""What may leave the range of a narrow integer, which is computed in 32 bits."""
_HALF_FRACTION = 10
"""Bits of a float16 behind the point."""

_expressions: weakref.WeakKeyDictionary[Graph, Expression] = weakref.WeakKeyDictionary()


def expression_of(body: Graph) -> Expression:
    """A body as an expression whose operands are the body's inputs, in order.

    Raises:
        CannotLower: a node or a type has no machine code.
    """
    known = _expressions.get(body)
    if known is None:
        types = [value.tensor for value in (*body.inputs, *body.outputs)]
        types += [constant.type for constant in body.constants.values()]
        for type_ in (*types, *body.types.values()):
            require_element(type_)
        known = _expressions[body] = expression(scalar_results(body), len(body.inputs))
    return known


def require_element(type_: TensorType) -> None:
    """Refuses element types that machine code does not load and store."""
    if type_.dtype not in ELEMENTS:
        raise CannotLower(f"machine code has no arithmetic of {type_.dtype.name}")


def expression(results: Sequence[Scalar], operands: int) -> Expression:
    """Scalars as an expression whose operand n is their argument n.

    Raises:
        CannotLower: machine code lacks an operation.
    """
    build = _Translation(operands)
    outputs = tuple(map(build.value, results))
    return Expression(operands, tuple(build.steps), outputs)


def pointwise_refusal(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]
) -> str | None:
    """Why a pointwise node has no machine code; None where it has, and for other nodes."""
    if not find(node).is_pointwise or any(node.outputs[1:]):
        return None
    try:
        expression_of(_body(node, types, constants))
    except CannotLower as reason:
        return str(reason)
    return None


_FORMS_KEPT = 4096
_fits: dict[Hashable, bool] = {}
"""Whether nodes of a form fit an epilogue; sizes do not matter."""


def fits_epilogue(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]) -> bool:
    """Whether a pointwise node may follow a product or the like, which is done in 32-bit lanes."""
    operands: list[Hashable] = [types[node.outputs[0]].dtype]
    for name in node.inputs:
        constant = constants.get(name)
        is_number = constant is not None and constant.type.elements == 1
        operands.append(constant.array.tobytes() if constant is not None and is_number else is_number)
        operands.append(name and types[name].dtype)
    form = node.form and (node.form, *operands)
    found = _fits.get(form) if form else None
    if found is None:
        found = _has_fitting_lanes(_body(node, types, constants))
        if form:
            if len(_fits) >= _FORMS_KEPT:
                _fits.clear()
            _fits[form] = found
    return found


def _has_fitting_lanes(body: Graph) -> bool:
    if any(value.tensor.dtype.bits > 32 for value in (*body.inputs, *body.outputs)):
        return False
    try:
        return not expression_of(body).is_wide
    except CannotLower:
        return False


def _body(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]) -> Graph:
    """A node as a body, the single numbers that it reads among its constants."""
    names = [name for name in dict.fromkeys(node.inputs) if name]
    numbers = {
        name: constants[name] for name in names if name in constants and constants[name].array.size == 1
    }
    inputs = tuple(Value(name, types[name]) for name in names if name not in numbers)
    return Graph(inputs, (Value(node.outputs[0], types[node.outputs[0]]),), (node,), numbers)


def _kind(scalar: Scalar) -> str:
    """The arithmetic type of a scalar in machine code."""
    return computed_in(scalar.dtype.numpy_name)


def _is_narrow(scalar: Scalar) -> bool:
    return scalar.dtype.is_integer and scalar.dtype.bits < 32


@dataclass
class _Translation:
    operands: int
    steps: list[Step] = field(default_factory=list)
    _values: dict[Scalar, int] = field(default_factory=dict)
    """Scalars are compared by identity, of which there is one for equal trees."""
    _known: dict[Step, int] = field(default_factory=dict)

    def step(self, operation: str, *inputs: int, dtype: str, number: float | int = 0) -> int:
        """Adds a step unless the same exists; its value."""
        made = Step(operation, inputs, number, dtype)
        if made not in self._known:
            self.steps.append(made)
            self._known[made] = self.operands + len(self.steps) - 1
        return self._known[made]

    def value(self, result: Scalar) -> int:
        """The number of the value that is this scalar."""
        for scalar in ordered([result]):
            if scalar not in self._values:
                self._values[scalar] = self._translated(scalar)
        return self._values[result]

    def _translated(self, scalar: Scalar) -> int:
        special = {
            "argument": self._argument,
            "constant": self._constant,
            "convert": self._convert,
            "power": self._power,
            "round_to_half": self._round_to_half,
            "view": self._view,
        }.get(scalar.operation)
        if special is not None:
            return special(scalar)
        inputs = [self._values[entry] for entry in scalar.inputs]
        kind = _kind(scalar.inputs[-1])
        if (scalar.operation, kind) in OPERATIONS:
            return self._in_range(scalar, self.step(scalar.operation, *inputs, dtype=kind))
        return self._expanded(scalar)

    def _expanded(self, scalar: Scalar) -> int:
        simpler = expansion(scalar)
        if simpler is None:
            raise CannotLower(f"{scalar.operation} of {scalar.inputs[0].dtype.name} has no machine code")
        return self.value(simpler)

    def _in_range(self, scalar: Scalar, value: int) -> int:
        """A narrow integer brought back into the range of its type."""
        if not _is_narrow(scalar) or scalar.operation not in _OVERFLOWING:
            return value
        return self.step(f"wrap_{scalar.dtype.numpy_name}", value, dtype="int32")

    def _argument(self, scalar: Scalar) -> int:
        return int(scalar.value)

    def _constant(self, scalar: Scalar) -> int:
        number = float(scalar.value) if scalar.dtype.is_float else int(scalar.value)
        return self.step("constant", dtype=_kind(scalar), number=number)

    def _view(self, scalar: Scalar) -> int:
        return self._values[scalar.inputs[0]]

    def _convert(self, scalar: Scalar) -> int:
        [source] = scalar.inputs
        value = self._values[source]
        if scalar.dtype == dtypes.BOOL:
            number: float | int = 0.0 if source.dtype.is_float else 0
            zero = self.step("constant", dtype=_kind(source), number=number)
            return self.step("not_equal", value, zero, dtype=_kind(source))
        value = self.converted(value, _kind(source), _kind(scalar))
        is_inside = source.dtype == dtypes.BOOL or (
            source.dtype.is_integer
            and source.dtype.bits < scalar.dtype.bits
            and (source.dtype.kind == "u" or scalar.dtype.kind == "i")
        )
        if not _is_narrow(scalar) or is_inside:
            return value
        return self.step(f"wrap_{scalar.dtype.numpy_name}", value, dtype="int32")

    def converted(self, value: int, source: str, target: str) -> int:
        """A value in another arithmetic type; integers of one size have the same bits."""
        form = (conversion(target), source)
        return self.step(form[0], value, dtype=source) if form in OPERATIONS else value

    def _round_to_half(self, scalar: Scalar) -> int:
        [source] = scalar.inputs
        value = self._values[source]
        if _kind(source) == "float64":
            value = self.converted(self._with_half_fraction(value), "float64", "float32")
        return self.step("round_to_half", value, dtype="float32")

    def _with_half_fraction(self, x: int) -> int:
        """A float64 with as many bits behind the point as float16 has, so that float32 rounds nothing."""

        def number(value: float) -> int:
            return self.step("constant", dtype="float64", number=value)

        # Next to 2⁵²⁻¹⁰ times its power of two, a number has no other bits; subnormal numbers have fewer.
        exponent = self.step("constant", dtype="int64", number=0x7FF << 52)
        power = self.step("bitwise_and", x, exponent, dtype="int64")
        power = self.step("maximum", power, number(2.0**-14), dtype="float64")
        power = self.step("minimum", power, number(2.0**17), dtype="float64")
        large = self.step("multiply", power, number(1.5 * 2.0 ** (52 - _HALF_FRACTION)), dtype="float64")
        return self.step("subtract", self.step("add", x, large, dtype="float64"), large, dtype="float64")

    def _power(self, scalar: Scalar) -> int:
        """Of integers with an exponent as wide as the base."""
        base, exponent = scalar.inputs
        if not base.dtype.is_integer:
            return self._expanded(scalar)
        x, y, kind = self._values[base], self._values[exponent], _kind(base)
        wide = "uint64" if base.dtype.kind == "u" else "int64"
        if lane_bytes(_kind(exponent)) == 8 or lane_bytes(kind) == 8:
            x, y = self.converted(x, kind, wide), self.converted(y, _kind(exponent), "int64")
            made = self.converted(self.step("power", x, y, dtype=wide), wide, kind)
        else:
            made = self.step("power", x, y, dtype=kind)
        return self._in_range(scalar, made)
