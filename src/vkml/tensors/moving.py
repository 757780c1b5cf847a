"""Gradients between devices: those of what was moved are moved back."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.ir.gradients import Emitter
from vkml.ir.graph import Node
from vkml.ir.operator import Operator
from vkml.tensors import tensor as core
from vkml.tracing import Joined, Traced
from vkml.tracing.value import mode


def joined_to(moved: Traced, value: Traced, device: str) -> Traced:
    """A value elsewhere, through which gradients flow to the one that was moved.

    Args:
        moved: the elements on the other device.
        value: what was moved.
        device: where that is.
    """
    if not value.tracks or not mode.tracks:
        return moved
    return Joined(_Moved(device), [moved], [value]).output(0)


class _Moved(Operator):
    """What was moved from a device, as an operator: only its gradient is ever asked for."""

    def __init__(self, device: str) -> None:
        super().__init__("to")
        self._device = device

    def vjp(  # type: ignore[override]
        self,
        build: Emitter[Traced],
        node: Node,
        inputs: Sequence[Traced | None],
        outputs: Sequence[Traced],
        cotangents: Sequence[Traced | None],
        needed: Sequence[bool],
    ) -> Sequence[Traced | None]:
        [cotangent] = cotangents
        return [None if cotangent is None else core.Tensor(cotangent).to(self._device).value]
