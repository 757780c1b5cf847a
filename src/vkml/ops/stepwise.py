"""Types and values of a node by its operator's steps, for operators whose steps are their definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from vkml.ir.dtypes import DType, from_numpy
from vkml.ir.gradients import Emitter
from vkml.ir.graph import Node
from vkml.ir.operator import Array, find, normalise_attributes
from vkml.ir.types import UNKNOWN, Known, TensorType, static
from vkml.ops.upgrading import NEWEST


def evaluate_steps(node: Node, inputs: Sequence[Array | None]) -> list[Array]:
    """The outputs of a node, by NumPy; something empty for one that nobody wants and the steps leave out."""
    made = find(node).steps(AT_ONCE, node, inputs)
    assert made is not None, "there are steps for known sizes"
    found = []
    for name, value in zip(node.outputs, made, strict=False):
        assert value is not None or not name, "a result that is wanted is made"
        found.append(np.zeros(0) if value is None else value)
    return found


def infer_steps(node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
    """The types of a node's outputs; a step that refuses its inputs says so in the node's name."""
    made = find(node).steps(_Inferring(node), node, inputs)
    assert made is not None, "there are steps for all that is understood"
    return [UNKNOWN if known is None else known.type for known in made[: len(node.outputs)]]


T = TypeVar("T")


class _Applying(Emitter[T]):
    """Applies operators at once, one after the other."""

    within = ""
    """The label of the node whose steps these are."""

    def apply(self, op: str, *inputs: T | None, domain: str = "", **attributes: Any) -> T:
        return self.apply_all(op, inputs, 1, domain, **attributes)[0]

    def node(self, op: str, inputs: Sequence[T | None], outputs: int, domain: str, **attributes: Any) -> Node:
        """The node that is applied, normalised."""
        names = tuple("" if found is None else f"x{at}" for at, found in enumerate(inputs))
        made = tuple(f"y{at}" for at in range(outputs))
        version = 1 if domain else NEWEST
        node = Node(op, names, made, attributes, op, domain, version, self.within)
        return replace(node, attributes=normalise_attributes(node, find(node)))

    def note_sum(self, value: T, axis: int, total: T) -> None:
        """Of use where gradients are recorded alone."""

    def known_sum(self, value: T, axis: int) -> T | None:
        return None

    def pulled_back(self, *_: Any) -> list[T | None]:
        raise NotImplementedError("what is applied at once records nothing to differentiate")


class _Evaluating(_Applying[Array]):
    """Applies operators to arrays."""

    def apply_all(
        self, op: str, inputs: Sequence[Array | None], outputs: int, domain: str = "", **attributes: Any
    ) -> list[Array]:
        node = self.node(op, inputs, outputs, domain, **attributes)
        return find(node).evaluate(node, inputs)[:outputs]

    def constant(self, value: Any, dtype: DType) -> Array:
        return np.asarray(value, dtype.storage)

    def type_of(self, value: Array) -> TensorType:
        return static(from_numpy(value.dtype), value.shape)

    def elements_of(self, value: Array) -> Array | None:
        return value


class _Inferring(_Applying[Known]):
    """Applies operators to what is known of values: types, and the elements of constants."""

    def __init__(self, node: Node) -> None:
        self.within = node.within or node.label

    def apply_all(
        self, op: str, inputs: Sequence[Known | None], outputs: int, domain: str = "", **attributes: Any
    ) -> list[Known]:
        node = self.node(op, inputs, outputs, domain, **attributes)
        return [Known(type_) for type_ in find(node).infer(node, inputs)][:outputs]

    def constant(self, value: Any, dtype: DType) -> Known:
        found = np.asarray(value)
        if found.dtype != object:  # there are open sizes among these
            found = found.astype(dtype.storage)
        return Known(TensorType(dtype, found.shape), found)

    def type_of(self, value: Known) -> TensorType:
        return value.type

    def elements_of(self, value: Known) -> Array | None:
        return value.value


AT_ONCE: Emitter[Array] = _Evaluating()
"""Applies operators to arrays, by NumPy."""
