"""Evaluates a node by its operator's steps, for operators whose steps are their definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.ir.dtypes import DType, from_numpy
from vkml.ir.gradients import Emitter
from vkml.ir.graph import Node
from vkml.ir.operator import Array, find, normalise_attributes
from vkml.ir.types import TensorType, static
from vkml.ops.upgrading import NEWEST


def evaluate_steps(node: Node, inputs: Sequence[Array | None]) -> list[Array]:
    """The outputs of a node, by NumPy; something empty for one that nobody wants and the steps leave out."""
    made = find(node).steps(_EMITTER, node, inputs)
    assert made is not None, "there are steps for known sizes"
    found = []
    for name, value in zip(node.outputs, made, strict=False):
        assert value is not None or not name, "a result that is wanted is made"
        found.append(np.zeros(0) if value is None else value)
    return found


class _Evaluating(Emitter[Array]):
    """Applies operators to arrays."""

    def apply(self, op: str, *inputs: Array | None, domain: str = "", **attributes: Any) -> Array:
        return self.apply_all(op, inputs, 1, domain, **attributes)[0]

    def apply_all(
        self, op: str, inputs: Sequence[Array | None], outputs: int, domain: str = "", **attributes: Any
    ) -> list[Array]:
        names = tuple("" if found is None else f"x{at}" for at, found in enumerate(inputs))
        made = tuple(f"y{at}" for at in range(outputs))
        node = Node(op, names, made, attributes, op, domain, version=1 if domain else NEWEST)
        spec = find(node)
        return spec.evaluate(replace(node, attributes=normalise_attributes(node, spec)), inputs)[:outputs]

    def constant(self, value: Any, dtype: DType) -> Array:
        return np.asarray(value, dtype.storage)

    def type_of(self, value: Array) -> TensorType:
        return static(from_numpy(value.dtype), value.shape)

    def elements_of(self, value: Array) -> Array | None:
        return value

    def note_sum(self, value: Array, axis: int, total: Array) -> None:
        """Of use where gradients are recorded alone."""

    def known_sum(self, value: Array, axis: int) -> Array | None:
        return None

    def pulled_back(self, *_: Any) -> list[Array | None]:
        raise NotImplementedError("an evaluation records nothing to differentiate")


_EMITTER = _Evaluating()
