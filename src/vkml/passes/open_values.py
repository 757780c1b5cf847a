"""Integer arithmetic on sizes that planning leaves open: Shape, and what is computed from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.ir import MANY, Known, Node, TensorType, find, scalar
from vkml.ir.dtypes import BOOL, STRING
from vkml.ir.scalar import Scalar, ordered
from vkml.ir.size import Size, array_of

Array = np.ndarray[Any, Any]


class _NoNumbers(Exception):
    """An operation that open sizes do not have."""


def is_open(value: Array | None) -> bool:
    """Whether an array holds open sizes among its elements."""
    return (
        value is not None
        and value.dtype == object
        and any(isinstance(element, Size) for element in value.reshape(-1))
    )


def evaluate_open(
    node: Node, inputs: Sequence[Known | None], types: Sequence[TensorType]
) -> list[Array] | None:
    """The outputs of a node some of whose inputs hold open sizes; all inputs are known.

    Integers that have no form in expressions of sizes are computed from their examples; the plan then holds
    for these values alone. None where the node is better left to the run: its results are no sizes, or open
    sizes only say which elements it takes.

    Args:
        node: of a deterministic operator.
        inputs: with values.
        types: of the outputs, whose own sizes are numbers.
    """
    operator = find(node)
    values = [None if known is None else known.value for known in inputs]
    try:
        if operator.is_pointwise and len(types) == 1:
            return [_pointwise(node, inputs, types[0])]
        if node.op == "Range" and not node.domain:
            start, _, delta = (value.reshape(-1)[0] for value in values if value is not None)
            return [array_of([start + at * delta for at in range(types[0].elements)], types[0].dims)]
        if operator.is_shape_arithmetic:
            if not is_open(values[0]) and operator.inputs[1] != MANY:
                return None
            wide = [
                value if at in operator.value_inputs or value is None else value.astype(object)
                for at, value in enumerate(values)
            ]
            made = operator.evaluate(node, wide)
            return [_typed(array, type_) for array, type_ in zip(made, types, strict=False)]
    except (_NoNumbers, TypeError):
        pass
    if not all(type_.dtype.is_integer or type_.dtype == BOOL for type_ in types):
        return None
    closed = [
        np.asarray([int(element) for element in value.reshape(-1)], known.dtype.storage).reshape(value.shape)
        if known is not None and value is not None and is_open(value)
        else value
        for known, value in zip(inputs, values, strict=True)
    ]
    return operator.evaluate(node, closed)


def _typed(array: Array, type_: TensorType) -> Array:
    found = np.asarray(array)
    return found if is_open(found) else found.astype(type_.dtype.storage)


def _pointwise(node: Node, inputs: Sequence[Known | None], type_: TensorType) -> Array:
    arguments: list[Scalar | None] = []
    values: list[Array] = []
    for known in inputs:
        if known is None:
            arguments.append(None)
            continue
        assert known.value is not None
        if known.dtype == STRING:
            raise _NoNumbers
        arguments.append(scalar.argument(len(values), known.dtype))
        values.append(np.broadcast_to(known.value, type_.dims).reshape(-1))
    types = [None if known is None else known.dtype for known in inputs]
    form = find(node).scalar(node, arguments, types, type_.dtype)
    if form is None:
        raise _NoNumbers
    order = ordered([form])
    elements = [_element(order, form, operands) for operands in zip(*values, strict=True)]
    if any(isinstance(element, Size) for element in elements):
        return array_of(elements, type_.dims)
    return np.array(elements, type_.dtype.storage).reshape(type_.dims)


def _element(order: Sequence[Scalar], result: Scalar, operands: Sequence[Any]) -> Any:
    known: dict[Scalar, Any] = {}
    for step in order:
        if step.operation == "argument":
            operand = operands[int(step.value)]
            # Beside sizes, numbers may be Python's own.
            known[step] = operand.item() if isinstance(operand, np.generic) else operand
        elif step.operation == "constant":
            known[step] = step.value
        elif step.operation == "convert":
            known[step] = _converted(known[step.inputs[0]], step)
        else:
            function = _FUNCTIONS.get(step.operation)
            if function is None or not (step.dtype.is_integer or step.dtype == BOOL):
                raise _NoNumbers
            known[step] = function(*(known[entry] for entry in step.inputs))
    return known[result]


def _converted(value: Any, step: Scalar) -> Any:
    if step.dtype == BOOL:
        return bool(value != 0)
    if not step.dtype.is_integer or step.inputs[0].dtype.kind not in "iub":
        raise _NoNumbers
    return value if isinstance(value, Size) else int(scalar.constant(int(value), step.dtype).value)


def _divide(a: Any, b: Any) -> Any:
    """Truncating toward 0; by 0 it is 0."""
    if b == 0:
        return 0
    if (a >= 0) == (b > 0):
        return a // b
    return -(-a // b)


def _remainder(a: Any, b: Any) -> Any:
    return 0 if b == 0 else a % b


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": _divide,
    "mod": _remainder,
    "negative": lambda a: -a,
    "absolute": abs,
    "relu": lambda a: max(a, 0),
    "minimum": min,
    "maximum": max,
    "where": lambda condition, a, b: a if condition else b,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "bitwise_and": lambda a, b: _bits(a) & _bits(b),
    "bitwise_or": lambda a, b: _bits(a) | _bits(b),
    "bitwise_xor": lambda a, b: _bits(a) ^ _bits(b),
}


def _bits(value: Any) -> Any:
    if isinstance(value, Size):
        raise _NoNumbers
    return value
