"""What a tensor was made by, as `grad_fn` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.tracing import Traced
from vkml.tracing.value import Application

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


class GradientNode:
    """An operation that gradients flow through: what `grad_fn` is.

    Its name is the operator's, as ONNX calls it, with `Backward` behind it. Nodes of one operation are equal.
    """

    def __init__(self, made: Application) -> None:
        self._made = made

    def name(self) -> str:
        """The operator's name."""
        return f"{self._made.node.op}Backward"

    @property
    def next_functions(self) -> tuple[tuple[GradientNode | AccumulateGrad | None, int], ...]:
        """Where gradients flow on to, for each of its inputs, and which of the outputs of that it is."""
        return tuple([(gradient_node(x), 0 if x is None else x.index) for x in self._made.inputs])

    def __eq__(self, other: object) -> bool:
        return type(other) is GradientNode and self._made is other._made

    def __hash__(self) -> int:
        return id(self._made)

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class AccumulateGrad:
    """The end of what gradients flow through: a leaf, whose `grad` they are added to.

    Attributes:
        variable: the leaf; None where the program has it no more.
    """

    def __init__(self, value: Traced) -> None:
        self._value = value
        self.variable: Tensor | None = None if value.owner is None else value.owner()

    def name(self) -> str:
        """Its kind."""
        return "AccumulateGrad"

    @property
    def next_functions(self) -> tuple[()]:
        """Nothing."""
        return ()

    def __eq__(self, other: object) -> bool:
        return type(other) is AccumulateGrad and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)

    def __repr__(self) -> str:
        return "<AccumulateGrad>"


def gradient_node(value: Traced | None) -> GradientNode | AccumulateGrad | None:
    """What gradients of a value flow to next; None where they flow nowhere, or not any more."""
    if value is None or not value.tracks:
        return None
    if value.is_leaf or value.application is None:
        return AccumulateGrad(value)
    return GradientNode(value.application)
