"""Builds graphs in a few lines, with names made up: for known-answer cases, examples and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.ir import dtypes
from vkml.ir.dtypes import DType
from vkml.ir.graph import Constant, Graph, Node, Value
from vkml.ir.types import UNKNOWN, Dim, TensorType

OPSET = 20
"""The default domain's version that sketches are written in."""


class Sketch:
    """A graph under construction.

    Example:
        >>> sketch = Sketch("double")
        >>> x = sketch.input("x", (2,))
        >>> graph = sketch.finish(sketch.node("Add", x, x))
        >>> [node.op for node in graph.nodes]
        ['Add', 'Identity']
    """

    def __init__(self, name: str, opset: int = OPSET) -> None:
        self.name = name
        self.opset = opset
        self._inputs: list[Value] = []
        self._outputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: dict[str, Constant] = {}

    def input(self, name: str, shape: Sequence[Dim], dtype: DType = dtypes.FLOAT32) -> str:
        """Adds a graph input; returns its name."""
        self._inputs.append(Value(name, TensorType(dtype, tuple(shape))))
        return name

    def constant(self, array: Any, name: str = "") -> str:
        """Adds a constant of an array's values; returns its name."""
        value = np.asarray(array)
        chosen = name or f"constant_{len(self._constants)}"
        self._constants[chosen] = Constant(dtypes.from_numpy(value.dtype), value.shape, value)
        return chosen

    def node(self, op: str, *inputs: str, name: str = "", domain: str = "", **attributes: Any) -> str:
        """Adds a node of one output; returns that value's name.

        Lists among the attributes become tuples. Of domains beside the default one it is the first version.
        """
        return self.node_with_outputs(op, 1, *inputs, name=name, domain=domain, **attributes)[0]

    def node_with_outputs(
        self, op: str, count: int, *inputs: str, name: str = "", domain: str = "", **attributes: Any
    ) -> list[str]:
        """As `node`, of `count` outputs; returns their names."""
        label = name or f"{op}_{len(self._nodes)}"
        normal = {
            key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()
        }
        outputs = [f"{label}:{number}" for number in range(count)]
        version = 1 if domain else self.opset
        self._nodes.append(Node(op, inputs, tuple(outputs), normal, label, domain=domain, version=version))
        return outputs

    def output(
        self, value: str, name: str, shape: Sequence[Dim] | None = None, dtype: DType | None = None
    ) -> None:
        """Makes a value a graph output under a name of its own."""
        kind = UNKNOWN if dtype is None else TensorType(dtype, None if shape is None else tuple(shape))
        self._nodes.append(Node("Identity", (value,), (name,), {}, f"output_{name}", version=self.opset))
        self._outputs.append(Value(name, kind))

    def finish(self, *values: str) -> Graph:
        """The graph; `values` become further outputs named ``output``, ``output_1``, …."""
        for index, value in enumerate(values):
            self.output(value, f"output_{index}" if index else "output")
        return Graph(
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            nodes=tuple(self._nodes),
            constants=self._constants,
            name=self.name,
            opsets={"": self.opset},
        )
