"""Values whose gradients pass to others as they come."""

from __future__ import annotations

from typing import Any

from vkml.ir.operator import Operator
from vkml.tracing import Joined, Traced


def passing(made: Traced, source: Traced, name: str) -> Traced:
    """A value's elements, with the history of another one, of which gradients take them for a copy.

    Args:
        made: the elements.
        source: what gradients pass to.
        name: of what makes the one of the other, for errors.
    """
    return Joined(_Through(name), [made], [source]).output(0)


class _Through(Operator):
    """A copy, as an operator: only its gradient is ever asked for."""

    def vjp(self, build: Any, node: Any, inputs: Any, outputs: Any, cotangents: Any, needed: Any) -> Any:
        return cotangents
