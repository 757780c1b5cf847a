"""Operators that become others as a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import INT32, DType
from vkml.ir.graph import Node
from vkml.ir.operator import REQUIRED, AttributeType, Operator
from vkml.ops.upgrading import NEWEST, constant_node, fresh_name


class Writer:
    """The nodes that stand in the place of one."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.within = node.within or node.label
        self.nodes: list[Node] = []

    def given(self, at: int) -> str:
        """An input's name, "" where it is absent."""
        return self.node.inputs[at] if at < len(self.node.inputs) else ""

    def wanted(self, at: int) -> str:
        """An output's name, "" where nobody wants it."""
        return self.node.outputs[at] if at < len(self.node.outputs) else ""

    def stated(self, key: str, default: Any) -> Any:
        """An attribute.

        Raises:
            InvalidGraph: it is not there, and `default` is `REQUIRED`.
        """
        found = self.node.attributes.get(key, default)
        if found is REQUIRED:
            raise InvalidGraph(f"{self.node.label}: the attribute {key!r} is missing and has no default")
        return found

    def name(self, what: str) -> str:
        return fresh_name(self.node, f"{what}{len(self.nodes)}")

    def constant(self, value: Any, dtype: DType) -> str:
        name = self.name("constant")
        self.nodes.append(constant_node(name, value, dtype))
        return name

    def apply(self, op: str, *inputs: str, made: str = "", outputs: int = 1, **attributes: Any) -> str:
        """The first output of a node, called `made` where that is stated; others have a number behind."""
        first = made or self.name(op)
        self.apply_to((first, *(f"{first}:{at}" for at in range(1, outputs))), op, *inputs, **attributes)
        return first

    def apply_to(
        self, outputs: Sequence[str], op: str, *inputs: str, domain: str = "", **attributes: Any
    ) -> None:
        """Adds a node whose outputs are called so, "" where one is not wanted."""
        kept = {key: value for key, value in attributes.items() if value is not None}
        label = f"{self.node.name}/{op}" if self.node.name else ""
        version = 1 if domain else NEWEST
        self.nodes.append(Node(op, inputs, tuple(outputs), kept, label, domain, version, self.within))

    def numbers(self, at: int) -> str:
        """The quantised input at a position, behind which its scale and zero point stand, dequantised."""
        return self.apply("DequantizeLinear", *(name for name in map(self.given, range(at, at + 3)) if name))

    def finish(self, value: str, scale: int, like: int = 0) -> list[Node]:
        """The nodes, with the result quantised by the scale and zero point at a position.

        Args:
            value: the result as numbers.
            scale: the position.
            like: of an input that has the result's type, where there is no zero point.
        """
        zero = self.given(scale + 1)
        if not zero:
            zero = self.apply("CastLike", self.constant(0, INT32), self.given(like))
        self.apply("QuantizeLinear", value, self.given(scale), zero, made=self.node.outputs[0])
        return self.nodes


Write = Callable[[Writer], Sequence[Node]]


class Extension(Operator):
    """An operator that becomes others as a model is loaded."""

    def __init__(
        self,
        name: str,
        inputs: tuple[int, int],
        write: Write,
        attributes: Mapping[str, Any] | None = None,
        types: Mapping[str, AttributeType] | None = None,
        outputs: tuple[int, int] = (1, 1),
        domain: str = "com.microsoft",
    ) -> None:
        super().__init__(name)
        self.domain = domain
        self.inputs, self.outputs, self.write = inputs, outputs, write
        self.attributes, self.attribute_types = dict(attributes or {}), dict(types or {})

    def upgrade(self, node: Node) -> Sequence[Node]:
        return self.write(Writer(node))
