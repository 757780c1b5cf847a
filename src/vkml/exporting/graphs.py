"""Recorded operations as a graph whose values have names for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkml.engine.device_array import on_host
from vkml.exporting.recording import Scopes
from vkml.ir import Constant, Graph, Node, TensorType, Value, unused
from vkml.ops.upgrading import NEWEST
from vkml.tracing import Joined, Traced
from vkml.tracing.evaluation import Recorded
from vkml.tracing.value import Application, Kind

_SHARED = 1024
"""Bytes of constants that are one where they are equal."""


def graph_of(
    inputs: Sequence[tuple[str, Traced]], outputs: Sequence[tuple[str, Traced]], states: Mapping[int, str],
    scopes: Scopes, name: str,
) -> tuple[Graph, set[str]]:  # fmt: skip
    """The graph that computes outputs of inputs; its types may have open sizes.

    Args:
        inputs: with their names.
        outputs: likewise.
        states: names of values that are parameters and buffers, by identity.
        scopes: where operations were recorded.
        name: of the graph.

    Returns:
        It, and the names of those of its constants that are parameters or buffers.
    """
    naming = _Naming(inputs, states, scopes)
    return naming.graph(outputs, name), naming.stated


class _Naming:
    def __init__(
        self, inputs: Sequence[tuple[str, Traced]], states: Mapping[int, str], scopes: Scopes
    ) -> None:
        self._states, self._scopes = states, scopes
        self._names: dict[int, str] = {id(value): name for name, value in inputs}
        self._inputs = inputs
        self._taken = {name for name, _ in inputs}
        self._nodes: list[Node] = []
        self._constants: dict[str, Constant] = {}
        self._types: dict[str, TensorType] = {}
        self._shared: dict[object, str] = {}
        self._made: dict[tuple[int, int], str] = {}
        self.stated: set[str] = set()
        """Names of parameters and buffers that are read."""

    def graph(self, outputs: Sequence[tuple[str, Traced]], name: str) -> Graph:
        self._taken.update(name for name, _ in outputs)
        pending = [value for _, value in outputs if value.data is None]
        recorded = Recorded(pending, held=False)
        for application in recorded.applications:
            self._add(application)
        for output, value in outputs:
            self._nodes.append(
                Node("Identity", (self._name(value),), (output,), {}, f"/{output}", version=NEWEST)
            )
            self._types[output] = value.type
        return Graph(
            tuple(Value(label, value.type) for label, value in self._inputs),
            tuple(Value(label, value.type) for label, value in outputs),
            tuple(self._nodes),
            self._constants,
            self._types,
            name=name,
            opsets={"": NEWEST},
        )

    def _add(self, application: Application) -> None:
        inputs = tuple([self._name(value) for value in application.inputs])
        scope = self._scopes.of(application.serial).replace(".", "/")
        operator = "Identity" if isinstance(application, Joined) else application.node.op
        label = self._unused(f"/{scope}/{operator}" if scope else f"/{operator}")
        outputs = []
        for at, type_ in enumerate(application.types):
            made = self._unused(f"{label}_output_{at}")
            self._made[application.serial, at] = made
            self._types[made] = type_
            outputs.append(made)
        if isinstance(application, Joined):
            for number, (value, made) in enumerate(zip(inputs, outputs, strict=True)):
                self._nodes.append(
                    Node("Identity", (value,), (made,), {}, f"{label}_{number}", version=NEWEST)
                )
            return
        self._nodes.append(
            replace(application.node, inputs=inputs, outputs=tuple(outputs), name=label, version=NEWEST)
        )

    def _name(self, value: Traced | None) -> str:
        if value is None:
            return ""
        found = self._names.get(id(value))
        if found is None and value.data is None:
            assert value.application is not None
            return self._made[value.application.serial, value.index]
        if found is None:
            found = self._names[id(value)] = self._constant(value)
        return found

    def _constant(self, value: Traced) -> str:
        array = np.asarray(on_host(value.data))
        name = self._states.get(id(value))
        if name is None:
            key: object = None
            if array.dtype == object:
                key = value.type.dtype, array.shape, tuple(array.reshape(-1).tolist())
            elif array.nbytes <= _SHARED and value.kind is not Kind.DATA:
                key = value.type.dtype, array.shape, array.tobytes()
            known = None if key is None else self._shared.get(key)
            if known is not None:
                return known
            name = self._unused("constant")
            if key is not None:
                self._shared[key] = name
        else:
            name = self._unused(name)
            self.stated.add(name)
        self._constants[name] = Constant(value.type.dtype, tuple(array.shape), array)
        self._types[name] = value.type
        return name

    def _unused(self, wanted: str) -> str:
        name = unused(wanted, self._taken)
        self._taken.add(name)
        return name
