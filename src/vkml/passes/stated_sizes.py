"""Open sizes in graphs: constants that hold them become arithmetic on the shapes of inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.ir import Graph, Node, TensorType, Value, dtypes
from vkml.ir.size import Size, TooOpen, is_same
from vkml.ir.size_terms import Atom, Symbol, Terms, least_value
from vkml.passes.rewriting import Rewriting


def with_stated_sizes(graph: Graph) -> Graph:
    """The graph without constants of open sizes: they are computed of the shapes of its inputs.

    Args:
        graph: of recorded sizes; all of its values have types.

    Raises:
        TooOpen: a size is that of no input.
    """
    writer = _Arithmetic(graph)
    for node in graph.nodes:
        writer.stem = node.name
        inputs = [
            writer.stated(node, at) if name in graph.constants and graph.constants[name].is_open else name
            for at, name in enumerate(node.inputs)
        ]
        attributes = node.attributes
        # A constant in the place of an open one is the short form, in which 0 copies; else 0 is a size.
        if node.op == "Reshape" and inputs[1] != node.inputs[1] and inputs[1] in writer.constants:
            attributes = {**attributes, "allowzero": 0}
        writer.nodes.append(replace(node, inputs=tuple(inputs), attributes=attributes))
    made = writer.finish()
    constants = {name: constant for name, constant in made.constants.items() if not constant.is_open}
    return replace(made, constants=constants)


def with_named_sizes(graph: Graph, text: Callable[[Size], str]) -> Graph:
    """The graph with names of open sizes in its types.

    Args:
        graph: of recorded sizes.
        text: the name of one.
    """

    def named(type_: TensorType) -> TensorType:
        dims = [text(size) if isinstance(size, Size) else size for size in type_.dims]
        return TensorType(type_.dtype, tuple(dims))

    return replace(
        graph,
        inputs=tuple(Value(value.name, named(value.tensor)) for value in graph.inputs),
        outputs=tuple(Value(value.name, named(value.tensor)) for value in graph.outputs),
        types={name: named(type_) for name, type_ in graph.types.items()},
    )


class _Arithmetic(Rewriting):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._known: dict[object, str] = {}
        self._sources: dict[Terms, tuple[str, int]] = {}
        for value in graph.inputs:
            for axis, size in enumerate(value.tensor.dims):
                if isinstance(size, Size):
                    self._sources.setdefault(size.terms, (value.name, axis))

    def stated(self, node: Node, at: int) -> str:
        """The name of what an input, which is a constant of open sizes, holds."""
        constant = self.constants[node.inputs[at]]
        elements = constant.array.reshape(-1).tolist()
        if at == 1 and node.op == "Reshape":
            short = _reshape(self.types[node.inputs[0]].dims, elements)
            if short is not None:
                return self._ints(short)
        if at == 1 and node.op == "Expand":
            own = self.types[node.inputs[0]].dims
            elements = _expand(own, elements)
        found = self._vector(elements)
        if constant.shape != (len(elements),):
            found = self.apply("Reshape", [found, self._ints(list(constant.shape))])
        if constant.dtype != dtypes.INT64:
            found = self.apply("Cast", [found], to=constant.dtype.code)
        return found

    def _ints(self, numbers: Sequence[int]) -> str:
        key = tuple(numbers)
        found = self._known.get(key)
        if found is None:
            array = np.array(numbers, np.int64)
            found = self._known[key] = self.constant(array, dtypes.INT64, "shape")
        return found

    def _vector(self, elements: Sequence[Any]) -> str:
        parts: list[str] = []
        numbers: list[int] = []
        for element in [*elements, None]:
            if isinstance(element, int):
                numbers.append(element)
                continue
            if numbers:
                parts.append(self._ints(numbers))
                numbers = []
            if element is not None:
                parts.append(self._sum(element.terms))
        return parts[0] if len(parts) == 1 else self.apply("Concat", parts, axis=0)

    def _sum(self, terms: Terms) -> str:
        """A sum, as one element."""
        found = self._known.get(terms)
        if found is not None:
            return found
        if terms in self._sources:
            name, axis = self._sources[terms]
            found = self.apply("Shape", [name], start=axis, end=axis + 1)
        else:
            # What is added comes first: intermediate sums are as large as they can be.
            for monomial, factor in sorted(terms, key=lambda term: term[1] < 0):
                part = self._product(monomial, abs(factor) if found else factor)
                found = part if found is None else self.apply("Add" if factor > 0 else "Sub", [found, part])
            assert found is not None, "an open size has terms"
        self._known[terms] = found
        return found

    def _product(self, monomial: tuple[Atom, ...], factor: int) -> str:
        found = None
        for atom in monomial:
            part = self._atom(atom)
            found = part if found is None else self.apply("Mul", [found, part])
        if found is None:
            return self._ints([factor])
        return found if factor == 1 else self.apply("Mul", [found, self._ints([factor])])

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Symbol):
            terms = (((atom,), 1),)
            if terms not in self._sources:
                raise TooOpen(f"{atom.name} is no size of an input")
            return self._sum(terms)
        found = self._known.get(atom)
        if found is None:
            dividend, divisor = self._sum(atom.dividend), self._sum(atom.divisor)
            least = least_value(atom.dividend)
            if least is None or least < 0:
                # Div rounds towards 0, a remainder has the sign of the divisor.
                dividend = self.apply("Sub", [dividend, self.apply("Mod", [dividend, divisor])])
            found = self._known[atom] = self.apply("Div", [dividend, divisor])
        return found


def _reshape(own: Sequence[Any], wanted: Sequence[Any]) -> list[int] | None:
    """A shape in numbers: 0 for sizes that stay in their place, -1 for one more; None for several more."""
    if any(isinstance(size, int) and size == 0 for size in wanted):
        return None
    found: list[int] = []
    for at, size in enumerate(wanted):
        if isinstance(size, int):
            found.append(size)
        elif at < len(own) and is_same(own[at], size):
            found.append(0)
        else:
            found.append(-1)
    if found.count(-1) > 1:
        return None
    return found


def _expand(own: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """A shape to broadcast to, 1 where the size stays."""
    more = len(wanted) - len(own)
    return [1 if at >= more and is_same(own[at - more], size) else size for at, size in enumerate(wanted)]
