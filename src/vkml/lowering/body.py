"""Writes pointwise bodies in a few lines, for lowerings that are compositions of simpler steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkml.ir import Constant, DType, Graph, Known, Node, TensorType, Value, find
from vkml.ir.operator import normalise_attributes
from vkml.ir.scalar import arithmetic_type


class Body:
    """A pointwise body under construction: every call applies one operator and names its result.

    float16 operands count as float, in which kernels compute them; the store rounds once.
    """

    def __init__(self) -> None:
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: dict[str, Constant] = {}
        self._types: dict[str, TensorType] = {}

    def input(self, dtype: DType) -> str:
        """Names the next leaf."""
        name = f"leaf{len(self._inputs)}"
        self._types[name] = TensorType(arithmetic_type(dtype), ())
        self._inputs.append(Value(name, self._types[name]))
        return name

    def constant(self, value: float, like: str) -> str:
        """A number in the type of the operand `like`."""
        dtype = self._types[like].dtype
        name = f"constant{len(self._constants)}"
        self._constants[name] = Constant(dtype, (), np.array(value, dtype.storage))
        self._types[name] = TensorType(dtype, ())
        return name

    def __call__(self, op: str, *operands: str, **attributes: Any) -> str:
        """Applies an operator in its newest form."""
        name = f"value{len(self._nodes)}"
        node = Node(op, operands, (name,), attributes, name)
        spec = find(node)
        node = Node(op, operands, (name,), normalise_attributes(node, spec), name)
        [type_] = spec.infer(node, [Known(self._types[operand]) for operand in operands])
        self._types[name] = type_.tensor
        self._nodes.append(node)
        return name

    def cast(self, operand: str, dtype: DType) -> str:
        """The operand converted."""
        return self("Cast", operand, to=dtype.code)

    def finish(self, *results: str) -> Graph:
        """The body, whose outputs are `results`."""
        return Graph(
            tuple(self._inputs),
            tuple(Value(name, self._types[name]) for name in results),
            tuple(self._nodes),
            self._constants,
            self._types,
        )
