"""How a launch of machine code ends: epilogues put together and fitted to index spaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vkml.cpu.native.expression import Access, Epilogue, Expression, Step
from vkml.dataclasses import dataclass
from vkml.kernels.epilogue import Epilogue as BodyEpilogue
from vkml.kernels.views import View
from vkml.lowering.native_body import expression_of

ADD = Expression(2, (Step("add", (0, 1)),), (2,))
"""The result and an operand."""


@dataclass(frozen=True)
class Ending:
    """How a template ends: its epilogue, operands, results, and copies of results to be made after it."""

    epilogue: Epilogue
    leaves: Sequence[View]
    targets: Sequence[View]
    copies: Sequence[tuple[View, View]]
    outputs: Sequence[View]


def ordered(taken: BodyEpilogue) -> Any:
    """The epilogue's body as an expression whose operand 0 is the template's result."""
    inputs = sorted(taken.body.inputs, key=lambda value: value.name != taken.result)
    return expression_of(replace(taken.body, inputs=tuple(inputs)))


def scaled(epilogue: Epilogue, factor: float | Access) -> Epilogue:
    """The result times a number, or times a further leaf that comes first, and then the epilogue."""
    old = epilogue.expression
    if isinstance(factor, float):
        by_number = (Step("constant", number=factor), Step("multiply", (0, old.operands)))
        return replace(epilogue, expression=after(old, by_number, 0))
    expression = after(old, (Step("multiply", (0, 1)),), 1)
    return replace(epilogue, expression=expression, leaves=(factor, *epilogue.leaves))


def divided(epilogue: Epilogue, divisor: Access) -> Epilogue:
    """The result divided by a further leaf that comes first, and then the epilogue."""
    expression = after(epilogue.expression, (Step("divide", (0, 1)),), 1)
    return replace(epilogue, expression=expression, leaves=(divisor, *epilogue.leaves))


def rooted(epilogue: Epilogue) -> Epilogue:
    return replace(epilogue, expression=after(epilogue.expression, (Step("sqrt", (0,)),), 0))


def after(old: Expression, first: tuple[Step, ...], added: int) -> Expression:
    """The expression applied to the last of `first`; `added` operands come in behind operand 0."""
    operands = old.operands + added
    result = operands + len(first) - 1

    def moved(value: int) -> int:
        if value == 0:
            return result
        return value + added if value < old.operands else value + added + len(first)

    steps = tuple(replace(step, inputs=tuple(moved(value) for value in step.inputs)) for step in old.steps)
    return Expression(operands, (*first, *steps), tuple(moved(value) for value in old.outputs))


def with_rows(epilogue: Epilogue) -> Epilogue:
    """(batch, m, n) → (batch, y, x, n) with one y."""
    return _mapped(epilogue, lambda s: (s[0], 0, s[1], s[2]))


def without_batch(epilogue: Epilogue) -> Epilogue:
    return _mapped(epilogue, lambda s: s[1:])


def without_depth(epilogue: Epilogue) -> Epilogue:
    """(image, z, y, x, channel) → (image, y, x, channel), where the lines of all planes are as many y."""
    return _mapped(epilogue, lambda s: (s[0], *s[2:]))


def grouped(epilogue: Epilogue, per_group: int) -> Epilogue:
    """(…, y, x, channel) → (…, group, y, x, channel of the group)."""
    return _mapped(epilogue, lambda s: (*s[:-3], per_group * s[-1], *s[-3:]))


def _mapped(epilogue: Epilogue, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Epilogue:
    return replace(
        epilogue,
        leaves=tuple(replace(access, strides=change(access.strides)) for access in epilogue.leaves),
        results=tuple(replace(access, strides=change(access.strides)) for access in epilogue.results),
    )
