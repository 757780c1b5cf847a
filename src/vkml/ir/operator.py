"""What an operator is: one object that states types, reference evaluation, lowering and gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from vkml.errors import InvalidGraph, UnsupportedOperator
from vkml.ir.dtypes import DType
from vkml.ir.graph import Node
from vkml.ir.types import Known, TensorType

Array = np.ndarray[Any, Any]


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
"""Marks an attribute that has no default."""

OPTIONAL: Any = None
"""Marks an attribute that may be absent; nodes then carry None for it."""

MANY = 2**31
"""The upper bound of a variadic operator's input or output count."""


class Operator:
    """Base of all operators; a subclass or an instance describes one.

    Nodes reach the methods *normalised*: in the newest form of the operator (see `upgrade`), with every
    attribute present (defaults filled in), input types static. Absent optional inputs are None.
    """

    name: str = ""
    domain: ClassVar[str] = ""
    inputs: tuple[int, int] = (1, 1)
    """Least and greatest number of inputs."""
    outputs: tuple[int, int] = (1, 1)
    attributes: Mapping[str, Any] = {}
    """Attribute → default, `REQUIRED` or `OPTIONAL`."""
    value_inputs: tuple[int, ...] = ()
    """Inputs whose values (not only types) `infer` needs: shapes, axes, pads, … Constants by then."""
    is_pointwise: ClassVar[bool] = False
    """Whether each output element depends only on the inputs' elements at the same (broadcast) place."""
    is_deterministic: ClassVar[bool] = True
    """False for random operators, which constant folding leaves alone."""

    def __init__(self, name: str = "") -> None:
        self.name = name or type(self).__name__

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        """Rewrites a node of an older opset (`node.version`) into the newest form.

        May return several nodes (for example a Constant for what used to be an attribute, then the node).
        """
        return node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        """Output types, exact ONNX semantics; raises `ShapeError` or `InvalidGraph` that names the node."""
        raise NotImplementedError(self.name)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        """Reference implementation in NumPy, also the constant folder's and the CPU's fallback."""
        raise NotImplementedError(self.name)

    def lower(self, build: Any, node: Node, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """Emits the operator's Vulkan kernels through the builder (see `vkml.lowering.builder`).

        Returns None where this node has no Vulkan form; the node then runs on the CPU.
        """
        return None

    def expression(
        self, node: Node, arguments: Sequence[str], types: Sequence[DType], result: DType
    ) -> str | None:
        """For pointwise operators: the Slang expression of one output element.

        `arguments` are Slang operands in the compute type of their dtype (float for all floats up to 32 bits,
        double, int, uint, int64_t, uint64_t, bool); the expression has the compute type of `result`.
        Functions of ``kernels/pointwise_math.slang`` may be called. None where there is no such form.
        """
        return None


REGISTRY: dict[tuple[str, str], Operator] = {}

_T = TypeVar("_T", bound=type[Operator])


def register(operator: Operator) -> Operator:
    """Enters an operator into the registry under its domain and name."""
    key = (operator.domain, operator.name)
    assert key not in REGISTRY, f"{key} registered twice"
    REGISTRY[key] = operator
    return operator


def operator(*names: str) -> Callable[[_T], _T]:
    """Class decorator: registers one instance a name (or one, under the class's own name)."""

    def enter(cls: _T) -> _T:
        for name in names or (cls.__name__,):
            register(cls(name))
        return cls

    return enter


def find(node: Node) -> Operator:
    """The operator of a node; `UnsupportedOperator` where the registry has none."""
    found = REGISTRY.get((node.domain, node.op))
    if found is None:
        domain = node.domain or "ai.onnx"
        raise UnsupportedOperator(
            f"{node.label}: operator {domain}.{node.op} (opset {node.version}) is not known"
        )
    return found


def normalise_attributes(node: Node, spec: Operator) -> dict[str, Any]:
    """The node's attributes with defaults filled in; `InvalidGraph` for unknown or missing ones."""
    unknown = sorted(set(node.attributes) - set(spec.attributes))
    if unknown:
        raise InvalidGraph(
            f"{node.label}: attribute {unknown[0]!r} is not one of {sorted(spec.attributes) or 'none'}"
        )
    complete = {}
    for key, default in spec.attributes.items():
        value = node.attributes.get(key, default)
        if value is REQUIRED:
            raise InvalidGraph(f"{node.label}: the attribute {key!r} is missing and has no default")
        complete[key] = value
    return complete
