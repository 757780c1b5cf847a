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
        outputs: what is differentiated; their histories reach back to `wrt` through values that track.
        cotangents: of its types: what each element of an output counts.
        wrt: by what.

    Returns:
        Of each of `wrt`, a value of its type; None where the outputs do not depend on it.

    Raises:
        NotDifferentiable: an operator between them has no derivative.
    """
    between = _between(outputs, frozenset(map(id, wrt)))
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
    asked = [total(value) for value in wrt]
    for value, result in zip(wrt, asked, strict=True):
        if result is not None and result.is_free:
            result.device = value.device
    return asked


def _sum(parts: Sequence[Traced]) -> Traced:
    return parts[0] if len(parts) == 1 else apply("Sum", *parts)


_Step = tuple[Application, list[bool], list[Traced]]


def leaves_of(outputs: Sequence[Traced]) -> list[Traced]:
    """The values that take gradients, among what others are made of, in the order of recording."""
    found = {
        id(value): value
        for application in _tracked(outputs)
        for value in application.inputs
        if value is not None and value.is_leaf
    }
    return [*found.values()]


def _tracked(outputs: Sequence[Traced]) -> list[Application]:
    """The applications through which gradients flow from outputs, in the order of recording."""
    applications: dict[int, Application] = {}
    stack = list(outputs)
    while stack:
        value = stack.pop()
        application = value.application
        if application is None or value.is_leaf or not value.tracks:
            continue
        if application.serial not in applications:
            applications[application.serial] = application
            stack += [given for given in application.inputs if given is not None]
    return [applications[serial] for serial in sorted(applications)]


def _between(outputs: Sequence[Traced], wrt: frozenset[int]) -> list[_Step]:
    """The applications by which outputs depend on values, in the order of recording.

    A value that is asked for ends no path: another one may lie behind it. With each, which of its inputs
    depend on these values, and its outputs.
    """
    depending: set[int] = set()
    steps: list[_Step] = []
    for application in _tracked(outputs):
        needed = [
            value is not None
            and value.type.dtype.is_float
            and (
                id(value) in wrt
                or (
                    not value.is_leaf
                    and value.application is not None
                    and value.application.serial in depending
                )
            )
            for value in application.inputs
        ]
        if any(needed):
            depending.add(application.serial)
            made = [application.output(at) for at in range(len(application.types))]
            steps.append((application, needed, made))
    return steps


def release(outputs: Sequence[Traced]) -> None:
    """Lets go of what outputs were made of, as far as nothing but their own computation needs it."""
    for application in _tracked(outputs):
        application.tracks = False
        for at in range(len(application.types)):
            value = application.known_output(at)
            if value is not None:
                value.tracks = False
                if value.data is not None:
                    value.application = None
