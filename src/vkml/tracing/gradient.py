"""Reverse-mode differentiation of traced values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vkml.errors import ChangedInPlace, NotDifferentiable
from vkml.ir.size import is_number
from vkml.tracing.emit import EMITTER, apply
from vkml.tracing.saved import check_saved, touched
from vkml.tracing.value import Application, Traced, next_serial

Changed = Callable[[Traced, Traced], Traced]
Checked = Callable[[Application, "Sequence[Traced | None]"], None]


def gradients(
    outputs: Sequence[Traced],
    cotangents: Sequence[Traced],
    wrt: Sequence[Traced],
    changed: Changed = lambda value, found: found,
    *,
    checked: Checked | None = None,
    ends: Sequence[Traced] = (),
) -> list[Traced | None]:
    """Cotangents of `wrt` from those of `outputs`, recorded like any other operation.

    Args:
        outputs: what is differentiated; their histories reach back to `wrt` through values that track.
        cotangents: of its types: what each element of an output counts.
        wrt: by what.
        changed: from a value between them and its cotangent, whole, to the one that is gone on with.
        checked: called with each application and the cotangents of what it is made of.
        ends: values that histories are not followed behind.

    Returns:
        Of each of `wrt`, a value of its type; None where the outputs do not depend on it.

    Raises:
        NotDifferentiable: an operator between them has no derivative; what a value between them was made of
            has been released; or what the gradient needs of it was changed in place.
    """
    between = _between(outputs, frozenset(map(id, wrt)), frozenset(map(id, ends)))
    check_saved([made for made, *_ in between], outputs)
    start = next_serial() if reads_inferred([made for made, *_ in between]) else None
    found: dict[int, list[Traced]] = {}
    for value, cotangent in zip(outputs, cotangents, strict=True):
        found.setdefault(id(value), []).append(cotangent)
    totals: dict[int, Traced] = {}

    def total(value: Traced) -> Traced | None:
        if id(value) not in totals and id(value) in found:
            totals[id(value)] = changed(value, _sum(found.pop(id(value))))
        return totals.get(id(value))

    for application, needed, made in reversed(between):
        incoming = [total(value) for value in made]
        if all(cotangent is None for cotangent in incoming):
            continue
        try:
            results = application.operator.vjp(
                EMITTER, application.node, application.sources, made, incoming, needed
            )
        except ChangedInPlace:
            raise
        except NotDifferentiable as error:
            name = application.operator.name
            raise NotDifferentiable(f"the gradient of {name} is not known: {error}") from None
        if start is not None:
            _refuse_inferred(results, start)
        if checked is not None:
            checked(application, results)
        for given, result in zip(application.sources, results, strict=False):
            if given is not None and result is not None:
                found.setdefault(id(given), []).append(result)
    return placed([total(value) for value in wrt], wrt)


def check_changes(
    applications: Sequence[Application], outputs: Sequence[Traced], wrt: Sequence[Traced]
) -> None:
    """Raises where `gradients` would, because something was changed in place.

    Args:
        applications: through which gradients flow from the outputs.
        outputs: see `gradients`.
        wrt: likewise.
    """
    if touched(applications, outputs):
        between = _between(outputs, frozenset(map(id, wrt)), frozenset())
        check_saved([made for made, *_ in between], outputs)


def reads_inferred(applications: Sequence[Application]) -> bool:
    """Whether something was recorded of values of inference mode."""
    return any([value is not None and value.is_inferred for made in applications for value in made.inputs])


def _refuse_inferred(results: Sequence[Traced | None], start: int) -> None:
    """Raises where cotangents are made of values of inference mode.

    Args:
        results: the cotangents.
        start: what was recorded for them has a serial above it.
    """
    seen: set[int] = set()
    left = [result for result in results if result is not None]
    while left:
        value = left.pop()
        if value.is_inferred:
            raise NotDifferentiable(
                "Inference tensors cannot be saved for backward. Please do not use Tensors created in "
                "inference mode in computation tracked by autograd. To work around this, you can make a "
                "clone to get a normal tensor and use it in autograd, or use `vkml.no_grad()` instead of "
                "`vkml.inference_mode()`."
            )
        made = value.application
        if made is not None and made.serial > start and made.serial not in seen:
            seen.add(made.serial)
            left += [given for given in made.inputs if given is not None]


def placed(found: list[Traced | None], wrt: Sequence[Traced]) -> list[Traced | None]:
    """Cotangents of values, each where its value is, though it may be made of constants alone."""
    for value, result in zip(wrt, found, strict=True):
        if result is not None and result.is_free:
            result.device = value.device
    return found


def _sum(parts: Sequence[Traced]) -> Traced:
    if len(parts) > 1:
        parts = _joined(parts)
    return parts[0] if len(parts) == 1 else apply("Sum", *parts)


def _joined(parts: Sequence[Traced]) -> Sequence[Traced]:
    """What is to be added up, where it is the gradients of all slices along an axis these in one piece.

    Each of them is a slice's gradient with zeros round it: queries, keys and values that are cut out of one
    product would be written three times, and read three times to be added.
    """
    padded = [(part, found) for part in parts if (found := _padding(part)) is not None]
    for axis in {found[0] for _, found in padded}:
        along = sorted((found[1], found[2], at) for at, (_, found) in enumerate(padded) if found[0] == axis)
        place, taken = 0, []
        for begin, end, at in along:
            if begin == place and end > begin:
                place = end
                taken.append(padded[at][0])
        if len(taken) > 1 and place == taken[0].dims[axis]:
            made = apply("Concat", *[_made_of(part).inputs[0] for part in taken], axis=axis)
            return [made, *(part for part in parts if not any(part is each for each in taken))]
    return parts


def _padding(value: Traced) -> tuple[int, int, int] | None:
    """The one axis along which a value is zeros round another one, where that begins and where it ends."""
    if value.data is not None or value.application is None or value.application.node.op != "Pad":
        return None
    made = value.application
    counts = made.inputs[1].data if len(made.inputs) == 2 and made.inputs[1] is not None else None
    if (
        not isinstance(counts, np.ndarray)
        or counts.dtype == object
        or made.node.attributes["mode"] != "constant"
    ):
        return None
    rank = len(value.dims)
    sides = [(int(counts[axis]), int(counts[axis + rank])) for axis in range(rank)]
    axes = [axis for axis, side in enumerate(sides) if any(side)]
    if len(axes) != 1 or min(sides[axes[0]]) < 0 or not is_number(value.dims[axes[0]]):
        return None
    begin, behind = sides[axes[0]]
    return axes[0], begin, value.dims[axes[0]] - behind


def _made_of(value: Traced) -> Application:
    assert value.application is not None
    return value.application


_Step = tuple[Application, list[bool], list[Traced]]


def takers_of(outputs: Sequence[Traced], applications: Sequence[Application]) -> list[Traced]:
    """Leaves, and values whose tensors or hooks take gradients, among some and what they are made of.

    Args:
        outputs: some.
        applications: through which gradients flow from these.
    """
    found: dict[int, Traced] = {}
    for application in applications:
        for value in application.sources:
            if value is not None and (value.is_leaf or value.owner is not None or value.hooks is not None):
                found[id(value)] = value
    for value in outputs:
        if value.is_leaf or value.owner is not None or value.hooks is not None:
            found[id(value)] = value
    return [*found.values()]


def tracked(outputs: Sequence[Traced], ends: frozenset[int] = frozenset()) -> list[Application]:
    """The applications through which gradients flow from outputs, in the order of recording.

    Args:
        outputs: of which values.
        ends: values, by identity, that no history is followed behind.
    """
    applications: dict[int, Application] = {}
    stack = list(outputs)
    while stack:
        value = stack.pop()
        application = value.application
        if id(value) in ends:
            continue
        if value.is_released:
            raise NotDifferentiable(
                "gradients flow through what an earlier backward() has released: call that with "
                "retain_graph=True, or detach() what is not to be differentiated again"
            )
        if application is None or value.is_leaf or not value.tracks:
            continue
        if application.serial not in applications:
            applications[application.serial] = application
            stack += [given for given in application.sources if given is not None]
    return [applications[serial] for serial in sorted(applications)]


def _between(outputs: Sequence[Traced], wrt: frozenset[int], ends: frozenset[int]) -> list[_Step]:
    """The applications by which outputs depend on values, in the order of recording.

    A value that is asked for ends no path: another one may lie behind it. With each, which of its inputs
    depend on these values, and its outputs.
    """
    depending: set[int] = set()
    steps: list[_Step] = []
    for application in tracked(outputs, ends):
        needed = [
            value is not None
            and value.type.dtype.is_inexact
            and (
                id(value) in wrt
                or (
                    not value.is_leaf
                    and value.application is not None
                    and value.application.serial in depending
                )
            )
            for value in application.sources
        ]
        if any(needed):
            depending.add(application.serial)
            made = [application.output(at) for at in range(len(application.types))]
            steps.append((application, needed, made))
    return steps


def release(applications: Sequence[Application]) -> None:
    """Lets go of what was made of what, as far as nothing but its own computation needs it."""
    for application in applications:
        application.tracks = False
        for at in range(len(application.types)):
            value = application.known_output(at)
            if value is not None:
                value.tracks = False
                value.is_released = True
                if value.data is not None:
                    value.application = None
