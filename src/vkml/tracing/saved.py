"""Gradients of values that were changed in place since they were read: refused where PyTorch refuses them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence

from vkml.dataclasses import dataclass
from vkml.errors import ChangedInPlace, NotDifferentiable
from vkml.ir import TensorType
from vkml.tracing.emit import EMITTER
from vkml.tracing.value import Application, Call, Origin, Traced, Version, next_serial, place_of, tracking


@dataclass(frozen=True)
class Saved:
    """What an operator's gradient needs of what it read and made.

    Attributes:
        inputs: numbers of inputs.
        outputs: numbers of outputs.
    """

    inputs: Collection[int] = ()
    outputs: Collection[int] = ()


_KEPT = 4096
_read: dict[Hashable, Saved] = {}
"""What vector-Jacobian products read, by node, types and what tracks."""


def touched(applications: Sequence[Application], outputs: Sequence[Traced]) -> list[Application]:
    """Those of some applications that read, or made, what was changed in place at some time.

    Or that are part of a call which did.

    Args:
        applications: that outputs were made by, in the order of recording.
        outputs: of the last ones.
    """
    if not applications or applications[0].serial >= Version.latest:
        return []
    known = {made.serial: made for made in applications}
    found: set[int] = set()
    call: Call | None = None
    for value in outputs:
        if value.application is not None and value.version is not None and value.version.changed_from:
            found.add(value.application.serial)
    for serial, made in known.items():
        if made.changed is not None:
            found.add(serial)
        for given in made.inputs if type(made) is Application else made.sources:
            version = None if given is None else _version_of(given)
            if version is not None and version.changed_from:
                found.add(serial)
                if given is not None and given.application is not None:
                    found.add(given.application.serial)
        if made.call is not None and made.call is not call:
            call = made.call
            if any([version.changed_from for *_, version in call.saved]):
                found.add(serial)
    return [known[serial] for serial in sorted(found & known.keys())] if found else []


def check_saved(applications: Sequence[Application], outputs: Sequence[Traced]) -> None:
    """Raises where the gradient of an application needs what was changed in place since.

    Args:
        applications: through which gradients are about to flow, in the order of recording.
        outputs: that they flow from.

    Raises:
        ChangedInPlace: one does; names the operator, and the line of the program that changed the value.
    """
    for made in touched(applications, outputs):
        call = made.call
        if call is not None:
            for label, type_, version in call.saved:
                if call.serial < version.changed_from:
                    raise changed_in_place(call.name, f"its {label}, {type_},", version, made.origin)
            continue
        if type(made) is not Application:
            continue  # what the program states says itself what it needs
        saved = saved_of(made)
        for kind, at, version in _versions(made):
            if at in (saved.inputs if kind == "input" else saved.outputs):
                type_ = made.types[at] if kind == "output" else _type(made.inputs[at])
                what = f"its {kind} {at}, {type_},"
                raise changed_in_place(made.operator.name, what, version, made.origin)


def changed_in_place(
    operator: str, what: str, version: Version, origin: Origin | None = None
) -> ChangedInPlace:
    """The error that a gradient needs what was changed in place.

    Args:
        operator: whose gradient it is.
        what: it needs.
        version: of that.
        origin: where the operator was applied; None where that is not known.
    """
    place, recorded = place_of(version.origin), place_of(origin)
    return ChangedInPlace(
        "one of the variables needed for gradient computation has been modified by an inplace operation"
        + (f" at {place}" if place else "")
        + f": the gradient of {operator} needs {what} as it was before"
        + (f" ({operator} was applied at {recorded})" if recorded else "")
        + "; change a clone() instead"
    )


def saved_of(made: Application) -> Saved:
    """What the gradient of an application needs, in PyTorch or, where that has no such operator, here."""
    tracks = tuple([value is not None and value.tracks for value in made.inputs])
    stated = made.operator.saved(made.node, tracks)
    if stated is not None:
        return Saved(*stated)
    key = made.node, tracks, *[None if value is None else value.type.key for value in made.inputs]
    found = _read.get(key)
    if found is None:
        if len(_read) >= _KEPT:
            _read.clear()
        found = _read[key] = _reads_of(made, tracks)
    return found


def _reads_of(made: Application, tracks: Sequence[bool]) -> Saved:
    """The elements that an application's vector-Jacobian product reads."""
    start = next_serial()
    outputs = [made.output(at) for at in range(len(made.types))]
    cotangents = [
        Traced(value.type, value.device, None) if value.type.dtype.is_inexact else None for value in outputs
    ]
    with tracking(False):
        try:
            results = made.operator.vjp(EMITTER, made.node, made.inputs, outputs, cotangents, tracks)
        except NotDifferentiable:
            return Saved()  # which is what will be said where it is asked for
    seen: set[int] = set()
    stack = [result for result in results if result is not None]
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        by = value.application
        if by is not None and by.serial > start and not by.operator.is_shape_only:
            stack += [given for given in by.inputs if given is not None]
    return Saved(
        frozenset([at for at, value in enumerate(made.inputs) if id(value) in seen]),
        frozenset([at for at, value in enumerate(outputs) if id(value) in seen]),
    )


def _versions(made: Application) -> Iterator[tuple[str, int, Version]]:
    """Inputs and outputs of an application that were changed after it: "input" or "output", and which."""
    serial = made.serial
    for at, value in enumerate(made.inputs):
        version = None if value is None else _version_of(value)
        if version is not None and serial < version.changed_from:
            yield "input", at, version
    for at in range(len(made.types)):
        value = made.known_output(at)
        version = value.version if value is not None else (made.changed or {}).get(at)
        if version is not None and serial < version.changed_from:
            yield "output", at, version


def _version_of(value: Traced) -> Version | None:
    """The version of a value, or of what it shows under another shape or order of axes."""
    found: Traced | None = value
    while found is not None and found.version is None:
        made = found.application
        if type(made) is not Application or not made.operator.is_view or made.operator.is_identity(made.node):
            return None
        found = made.inputs[0]
    return None if found is None else found.version


def _type(value: Traced | None) -> TensorType:
    assert value is not None, "an input that was changed"
    return value.type
