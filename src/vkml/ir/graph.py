"""The graph: ONNX nodes in topological order over named values, as plain descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vkml.ir.dtypes import DType
from vkml.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose value is part of the graph. `array` is often a read-only view of a mapped file."""

    dtype: DType
    shape: tuple[int, ...]
    array: np.ndarray[Any, Any]
    """In the dtype's storage type; of `shape`, except for types below 8 bits, which are flat and packed."""

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"Constant({self.type})"


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an operator.

    `inputs` and `outputs` are value names, "" where an optional one is absent. `attributes` holds Python
    values: int, float, str, tuples of these, `Constant`, `Graph`, tuples of `Graph`. `version` is the opset
    version the model imports for the node's domain.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    version: int = 0

    @property
    def label(self) -> str:
        """How messages call the node: ``Conv node 'conv1'``, by its first output where it has no name."""
        return f"{self.op} node '{self.name or next((o for o in self.outputs if o), '?')}'"


@dataclass(frozen=True)
class Value:
    """A named, typed input or output of a graph."""

    name: str
    type: TensorType


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in topological order; every value is a graph input, a constant, or one node's output.

    A body of If or Loop may also read values of the graph around it (`Graph` does not list those).
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Constant]
    types: Mapping[str, TensorType] = field(default_factory=dict)
    """Types of values between nodes, as far as they were stated or inferred."""
    name: str = ""
    opsets: Mapping[str, int] = field(default_factory=dict)
    documentation: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    fold_allowance: int | None = None
    """Bytes that results folded to constants may still take; None: as many as its constants allow."""
