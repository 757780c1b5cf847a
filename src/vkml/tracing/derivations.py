"""Gradients of structures that were differentiated before: derived once, made again of other values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import Node, Operator, TensorType
from vkml.ir.size import is_deciding
from vkml.tracing.gradient import check_changes, gradients, placed, reads_inferred
from vkml.tracing.value import Application, Kind, Origin, Traced, next_serial, origin

KEPT = 256
"""Derivations that are kept."""


class _Structure:
    """What derivatives depend on, and the values that differ from one time to the next.

    Args:
        applications: through which gradients flow, in the order of recording.
        ends: other values: outputs, their cotangents, what is differentiated by.
    """

    def __init__(self, applications: Sequence[Application], ends: Sequence[Traced]) -> None:
        self.values: list[Traced] = []
        self.numbers: dict[int, int] = {}
        """Of values, by identity."""
        key: list[Any] = []
        number = self._number
        for application in applications:
            key.append(application.node)
            key += [None if value is None else number(value, key) for value in application.inputs]
            key += [number(application.output(at), key) for at in range(len(application.types))]
        key += [number(value, key) for value in ends]
        self.key: Hashable = tuple(key)

    def _number(self, value: Traced, key: list[Any]) -> int:
        """The number of a value; what it is becomes part of the key where it comes first."""
        found = self.numbers.get(id(value))
        if found is not None:
            return found
        key += (value.type.key, value.kind, value.is_free, value.tracks, value.is_leaf, id(value.device))
        if value.kind is Kind.CONSTANT:
            key.append(np.asarray(value.data).tobytes())
        self.values.append(value)
        self.numbers[id(value)] = len(self.values) - 1
        return len(self.values) - 1


@dataclass(frozen=True)
class _Step:
    """An application among those that make derivatives.

    Attributes:
        node: of it.
        operator: of it.
        types: of its outputs.
        inputs: numbers of values; None where one is absent.
        place: number of a value that is where it is computed; None where that is nowhere in particular.
        is_free: see `Application`.
    """

    node: Node
    operator: Operator
    types: Sequence[TensorType]
    inputs: tuple[int | None, ...]
    place: int | None
    is_free: bool


class _Derivation:
    """Derivatives as applications to numbered values.

    Args:
        constants: numbered behind the structure's values.
        steps: whose outputs are numbered behind these.
        results: numbers of the derivatives; None where there is none.
    """

    def __init__(
        self, constants: Sequence[Traced], steps: Sequence[_Step], results: Sequence[int | None]
    ) -> None:
        self._constants, self._steps, self._results = constants, steps, results

    def again(self, values: Sequence[Traced], where: Origin | None) -> list[Traced | None]:
        """The derivatives of other values of the structure.

        Args:
            values: these.
            where: the program asks for them.
        """
        known = [*values, *self._constants]
        for step in self._steps:
            device = None if step.place is None else known[step.place].device
            made = Application.again(
                step.node,
                step.operator,
                tuple([None if at is None else known[at] for at in step.inputs]),
                step.types,
                device,
                step.is_free,
                where,
            )
            known += [made.output(at) for at in range(len(step.types))]
        return [None if at is None else known[at] for at in self._results]


_derivations: dict[Hashable, _Derivation | None] = {}
"""By structure; None where it cannot be had again."""


def derivatives(
    applications: Sequence[Application],
    outputs: Sequence[Traced],
    cotangents: Sequence[Traced],
    wrt: Sequence[Traced],
) -> list[Traced | None]:
    """As `gradients`, of which nobody takes gradients again, where nothing looks at what is derived.

    Args:
        applications: through which gradients flow from the outputs.
        outputs: see `gradients`.
        cotangents: likewise.
        wrt: likewise.

    Raises:
        NotDifferentiable: see `gradients`.
    """
    is_kept = all([type(made) is Application for made in applications]) and not reads_inferred(applications)
    if is_deciding() or not is_kept:
        return gradients(outputs, cotangents, wrt)
    structure = _Structure(applications, (*outputs, *cotangents, *wrt))
    found = _derivations.get(structure.key)
    if found is not None:
        check_changes(applications, outputs, wrt)
        return placed(found.again(structure.values, origin()), wrt)
    is_new = structure.key not in _derivations
    start = next_serial()
    made = gradients(outputs, cotangents, wrt)
    if is_new:
        if len(_derivations) >= KEPT:
            _derivations.clear()
        _derivations[structure.key] = _derivation(structure, made, start)
    return made


def _derivation(structure: _Structure, results: Sequence[Traced | None], start: int) -> _Derivation | None:
    """How results are made of the values of a structure; None where they are not made of these alone.

    Args:
        structure: that they are the derivatives of.
        results: derivatives.
        start: what was applied for them has a serial above it.
    """
    applications: dict[int, Application] = {}
    constants: dict[int, Traced] = {}
    stack = [value for value in results if value is not None]
    if any(value.application is None and id(value) not in structure.numbers for value in stack):
        return None
    while stack:
        value = stack.pop()
        made = value.application
        if id(value) in structure.numbers:
            continue
        if made is None and value.kind is not Kind.DATA:
            constants[id(value)] = value
        elif type(made) is not Application or made.serial < start or not made.operator.is_deterministic:
            return None
        elif made.serial not in applications:
            applications[made.serial] = made
            stack += [given for given in made.inputs if given is not None]
    numbers = dict(structure.numbers)
    places: dict[int, int] = {}
    for at, value in enumerate(structure.values):
        places.setdefault(id(value.device), at)
    numbers.update({key: at for at, key in enumerate(constants, len(numbers))})
    steps = []
    made_here: list[Traced] = []  # alive, so that no two have the same identity
    first = len(numbers)
    for serial in sorted(applications):
        made = applications[serial]
        steps.append(
            _Step(
                made.node,
                made.operator,
                made.types,
                tuple([None if value is None else numbers[id(value)] for value in made.inputs]),
                None if made.device is None else places[id(made.device)],
                made.is_free,
            )
        )
        for at in range(len(made.types)):
            made_here.append(made.output(at))
            numbers[id(made_here[-1])] = first + len(made_here) - 1
    return _Derivation(
        [*constants.values()], steps, [None if value is None else numbers[id(value)] for value in results]
    )
