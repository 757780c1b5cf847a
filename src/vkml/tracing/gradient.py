"""Reverse-mode differentiation of traced values."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.errors import NotDifferentiable
from vkml.tracing.emit import EMITTER, apply
from vkml.tracing.value import Application, Traced


def gradients(
    outputs: Sequence[Traced], cotangents: Sequence[Traced], wrt: Sequence[Traced]
) -> list[Traced | None]:
    """Cotangents of `wrt` from those of `outputs`, recorded like any other operation.

    Args:
        outputs: what is differentiated.
        cotangents: of its types: what each element of an output counts.
        wrt: by what.

    Returns:
        Of each of `wrt`, a value of its type; None where the outputs do not depend on it.

    Raises:
        NotDifferentiable: an operator between them has no derivative.
    """
    between = _between(outputs, {id(value) for value in wrt})
    found: dict[int, list[Traced]] = {}
    for value, cotangent in zip(outputs, cotangents, strict=True):
        found.setdefault(id(value), []).append(cotangent)
    totals: dict[int, Traced] = {}

    def total(value: Traced) -> Traced | None:
        if id(value) not in totals and id(value) in found:
            totals[id(value)] = _sum(found.pop(id(value)))
        return totals.get(id(value))

    for application, needed, made in reversed(between):
        incoming = [total(value) for value in made]
        if all(cotangent is None for cotangent in incoming):
            continue
        try:
            results = application.operator.vjp(
                EMITTER, application.node, application.inputs, made, incoming, needed
            )
        except NotDifferentiable as error:
            raise NotDifferentiable(f"the gradient of {application.node.op} is not known: {error}") from None
        for given, result in zip(application.inputs, results, strict=False):
            if given is not None and result is not None:
                found.setdefault(id(given), []).append(result)
    return [total(value) for value in wrt]


def _sum(parts: Sequence[Traced]) -> Traced:
    return parts[0] if len(parts) == 1 else apply("Sum", *parts)


_Step = tuple[Application, list[bool], list[Traced]]


def _between(outputs: Sequence[Traced], wrt: set[int]) -> list[_Step]:
    """The applications by which outputs depend on values, in the order of recording.

    With each, which of its inputs depend on these values, and its outputs.
    """
    applications: dict[int, Application] = {}
    stack = [value.application for value in outputs if id(value) not in wrt]
    while stack:
        application = stack.pop()
        if application is None or application.serial in applications:
            continue
        applications[application.serial] = application
        stack += [v.application for v in application.inputs if v is not None and id(v) not in wrt]
    depending: set[int] = set()
    steps: list[_Step] = []
    for serial in sorted(applications):
        application = applications[serial]
        needed = [
            value is not None
            and value.type.dtype.is_float
            and (
                id(value) in wrt or (value.application is not None and value.application.serial in depending)
            )
            for value in application.inputs
        ]
        if any(needed):
            depending.add(serial)
            steps.append(
                (application, needed, [application.output(n) for n in range(len(application.types))])
            )
    return steps
