"""Applies operators to traced values: types are inferred at once, nothing is computed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

import vkml.ops  # noqa: F401  fills the registry of operators
from vkml.errors import InvalidGraph, OperandError
from vkml.ir import Constant, DType, Graph, Known, Node, Operator, TensorType, find
from vkml.ir.gradients import Emitter
from vkml.ir.operator import normalise_attributes
from vkml.ir.scalar import Scalar
from vkml.ir.size import Size, TooOpen, is_deciding
from vkml.ir.size_terms import text_of
from vkml.ir.types import ValueType
from vkml.ops.upgrading import NEWEST
from vkml.passes.explain import explained
from vkml.tracing.value import Application, Kind, Traced, tensor_type, tracking

Array = np.ndarray[Any, Any]
_KEPT = 4096


class _Template:
    """What all applications of an operator with the same attributes have in common."""

    def __init__(self, node: Node, operator: Operator) -> None:
        self.node, self.operator = node, operator
        self.deciding = (*operator.value_inputs, *operator.sizing_inputs)
        """Inputs whose elements decide types."""
        self.types: dict[Hashable, tuple[TensorType, ...]] = {}


_templates: dict[Hashable, _Template] = {}
_sums: weakref.WeakKeyDictionary[Traced, tuple[int, Traced]] = weakref.WeakKeyDictionary()
"""Of values whose sum along an axis is known: the axis and the sum."""


def apply(op: str, *inputs: Traced | None, domain: str = "", **attributes: Any) -> Traced:
    """The first output of an operator; see `vkml.ir.gradients.Emitter`."""
    return _applied(op, inputs, 1, domain, attributes).output(0)


def apply_all(
    op: str, inputs: Sequence[Traced | None], outputs: int, domain: str = "", **attributes: Any
) -> list[Traced]:
    """The first `outputs` outputs of an operator."""
    made = _applied(op, tuple(inputs), outputs, domain, attributes)
    return [made.output(at) for at in range(outputs)]


def constant(value: Any, dtype: DType) -> Traced:
    """A tensor whose elements belong to the structure of what is made of it."""
    array = _with_open_sizes(value) if is_deciding() else None
    if array is None:
        array = np.asarray(value, dtype.storage)
    return Traced(tensor_type(dtype, array.shape), None, array, kind=Kind.CONSTANT)


def _with_open_sizes(value: Any) -> Array | None:
    """An array of objects, where open sizes are among the elements; None where there are none."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return None
    elements = np.asarray(value, object)
    if not any(isinstance(element, Size) for element in elements.reshape(-1)):
        return None
    return elements


def number(value: complex, dtype: DType) -> Traced:
    """A number of the program's text: part of the structure as long as it stays the same."""
    return Traced(tensor_type(dtype, ()), None, np.asarray(value, dtype.storage), kind=Kind.NUMBER)


def _applied(
    op: str, inputs: tuple[Traced | None, ...], outputs: int, domain: str, attributes: dict[str, Any]
) -> Application:
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    there = tuple([value is not None for value in inputs])
    key: tuple[Any, ...] = (op, domain, outputs, there)
    if attributes:
        if is_deciding():
            _refuse_open(op, attributes)
        key += tuple([(name, _attribute_key(value)) for name, value in attributes.items()])
    template = _templates.get(key)
    if template is None:
        template = _template(op, there, outputs, domain, attributes)
        if len(_templates) >= _KEPT:
            _templates.clear()
        _templates[key] = template
    for at in template.operator.value_inputs:
        value = inputs[at] if at < len(inputs) else None
        if value is not None and value.kind is Kind.NUMBER:
            # What decides shapes may not vary under one structure.
            inputs = (*inputs[:at], constant(value.data, value.type.dtype), *inputs[at + 1 :])
    return Application(template.node, template.operator, inputs, _types(template, inputs))


def _refuse_open(op: str, attributes: dict[str, Any]) -> None:
    """Raises where an attribute is an open size, or has some, which then are what they are now."""
    for name, value in attributes.items():
        several = value if isinstance(value, tuple | list) else (value,)
        sizes = [one for one in several if isinstance(one, Size)]
        if sizes:
            text = text_of(sizes[0].terms)
            for size in sizes:
                int(size)
            raise TooOpen(f"{op}: {text} in its {name} cannot be open")


def _attribute_key(value: Any) -> Hashable:
    """Equal for equal attributes only: 0.0 is not the -0.0 that equals it, nor 1 the 1.0."""
    if isinstance(value, Constant):
        return value.dtype, value.shape, value.array.tobytes()
    if type(value) in (int, str):
        return type(value), value
    # A form's text is longer than the form: it repeats what the form shares.
    return value if isinstance(value, Scalar | Graph) else repr(value)


def _template(
    op: str, there: Sequence[bool], outputs: int, domain: str, attributes: dict[str, Any]
) -> _Template:
    names = tuple(f"x{at}" if is_there else "" for at, is_there in enumerate(there))
    made = tuple(f"y{at}" for at in range(outputs))
    node = Node(op, names, made, attributes, op, domain, version=1 if domain else NEWEST)
    operator = find(node)
    complete = normalise_attributes(node, operator)
    node = Node(op, names, made, complete, op, domain, version=node.version)
    operator.check(node)
    return _Template(node, operator)


def _inferred(template: _Template, known: Sequence[Known | None]) -> Sequence[ValueType]:
    try:
        with explained(template.node, "its types cannot be inferred"):
            return template.operator.infer(template.node, known)
    except InvalidGraph as error:
        # There is no graph that could be invalid: the program gave it what it does not take.
        text = str(error).replace(f"{template.node.label}: ", f"{template.node.op}: ")
        raise OperandError(text) from None


def _types(template: _Template, inputs: Sequence[Traced | None]) -> tuple[TensorType, ...]:
    deciding = template.deciding
    # Types of open sizes are inferred each time: what is decided about sizes meanwhile is this capture's.
    is_kept = not is_deciding()
    key: list[Any] = [None if value is None else value.type.key for value in inputs] if is_kept else []
    for at in deciding:
        value = inputs[at] if at < len(inputs) else None
        if value is not None:
            if value.data is None or value.kind is Kind.DATA:
                raise TypeError(f"{template.node.op}: input {at} decides shapes and must be a constant")
            key.append(np.asarray(value.data).tobytes() if is_kept else None)
    found = template.types.get(tuple(key)) if is_kept else None
    if found is None:
        known = [
            None if value is None else Known(value.type, np.asarray(value.data) if at in deciding else None)
            for at, value in enumerate(inputs)
        ]
        inferred = _inferred(template, known)
        found = tuple(
            tensor_type(type_.tensor.dtype, type_.tensor.dims)
            for type_ in inferred[: len(template.node.outputs)]
        )
        if is_kept:
            if len(template.types) >= _KEPT:
                template.types.clear()
            template.types[tuple(key)] = found
    return found


class _Tracing(Emitter[Traced]):
    """The emitter of traced values."""

    def apply(self, op: str, *inputs: Traced | None, domain: str = "", **attributes: Any) -> Traced:
        return apply(op, *inputs, domain=domain, **attributes)

    def apply_all(
        self, op: str, inputs: Sequence[Traced | None], outputs: int, domain: str = "", **attributes: Any
    ) -> list[Traced]:
        return apply_all(op, inputs, outputs, domain, **attributes)

    def constant(self, value: Any, dtype: DType) -> Traced:
        return constant(value, dtype)

    def type_of(self, value: Traced) -> TensorType:
        return value.type

    def elements_of(self, value: Traced) -> Array | None:
        return np.asarray(value.data) if value.kind is Kind.CONSTANT else None

    def note_sum(self, value: Traced, axis: int, total: Traced) -> None:
        _sums[value] = axis, total

    def known_sum(self, value: Traced, axis: int) -> Traced | None:
        known, total = _sums.get(value, (None, None))
        return total if known == axis else None

    def pulled_back(
        self,
        write: Callable[[], Sequence[Traced | None]],
        inputs: Sequence[Traced | None],
        cotangents: Sequence[Traced | None],
        needed: Sequence[bool],
    ) -> list[Traced | None]:
        from vkml.tracing.gradient import gradients

        with tracking(True):
            made = write()
        pairs = zip(made, cotangents, strict=False)
        known = [(x, incoming) for x, incoming in pairs if x is not None and incoming is not None]
        wrt = [x for x, wanted in zip(inputs, needed, strict=True) if x is not None and wanted]
        ends = [x for x in inputs if x is not None]
        found = iter(gradients([x for x, _ in known], [incoming for _, incoming in known], wrt, ends=ends))
        return [
            next(found) if wanted and x is not None else None
            for x, wanted in zip(inputs, needed, strict=True)
        ]


EMITTER = _Tracing()
