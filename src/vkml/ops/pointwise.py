"""Base classes of pointwise operators: a NumPy function and a Slang expression over broadcast inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.ir.dtypes import BOOL, FLOAT64, DType
from vkml.ir.graph import Node
from vkml.ir.operator import INT, INTS, MANY, Array, Operator
from vkml.ir.types import Known, TensorType
from vkml.ops.broadcasting import align_to_axis, broadcast_shapes, require_types
from vkml.ops.checks import present, required
from vkml.ops.limits import check_size
from vkml.ops.slang_literals import slang_literal
from vkml.ops.upgrading import renew

Slang = str | Callable[..., str | None]
"""A template with places ``{x}``, ``{y}``, ``{attribute}``, or a function of arguments, dtype, attributes."""


def widened(array: Array) -> Array:
    """float16 as float32, so that a chain of steps rounds once; everything else unchanged."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


class Pointwise(Operator):
    """An operator on elements at the same (broadcast) place, all of one element type."""

    is_pointwise = True

    def __init__(
        self,
        name: str,
        compute: Callable[..., Any],
        slang: Slang,
        allowed: Sequence[DType],
        *,
        result: DType | None = None,
        attributes: Mapping[str, Any] | None = None,
        has_double: bool = True,
        neutral_elements: Mapping[int, float] | None = None,
    ) -> None:
        """States the operator.

        Args:
            name: ONNX's name.
            compute: NumPy function of the inputs (float16 arrives as float32) and of the attributes by name.
            slang: Slang form.
            allowed: element types of the inputs.
            result: element type of the output where it is not that of the inputs.
            attributes: attribute → default.
            has_double: whether the Slang form works in double (SPIR-V has no transcendental functions in it).
            neutral_elements: see `Operator`.
        """
        super().__init__(name)
        self.compute = compute
        self.slang = slang
        self.allowed = tuple(allowed)
        self.result = result
        self.attributes = dict(attributes or {})
        self.has_double = has_double
        self.neutral_elements = dict(neutral_elements or {})

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        known = [required(node, inputs, index) for index in range(len(inputs))]
        dtype = require_types(node, known, self.allowed)
        return [check_size(node, self.result or dtype, broadcast_shapes(node, *(k.dims for k in known)))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        arrays = [present(inputs, index) for index in range(len(inputs))]
        dtype = arrays[0].dtype if self.result is None else self.result.storage
        with np.errstate(all="ignore"):
            value = self.compute(*(widened(array) for array in arrays), **node.attributes)
            return [np.asarray(value).astype(dtype, copy=False)]

    def expression(
        self, node: Node, arguments: Sequence[str], types: Sequence[DType], result: DType
    ) -> str | None:
        if FLOAT64 in types and not self.has_double:
            return None
        if not isinstance(self.slang, str):
            return self.slang(arguments, types[0], node.attributes)
        places = dict(zip("xyz", arguments, strict=False))
        literals = {
            key: slang_literal(value, types[0])
            for key, value in node.attributes.items()
            if isinstance(value, float)
        }
        return self.slang.format(**places, **literals)


class Unary(Pointwise):
    """A pointwise operator of one input."""

    inputs = (1, 1)
    attribute_types = {"consumed_inputs": INTS}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        return renew(node, drop=("consumed_inputs",)) if node.version < 6 else node


class Binary(Pointwise):
    """A pointwise operator of two inputs, broadcast both ways."""

    inputs = (2, 2)
    attribute_types = {"axis": INT, "broadcast": INT, "consumed_inputs": INTS}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 7:
            return node
        axis = node.attributes.get("axis")
        if node.attributes.get("broadcast") and axis is not None:
            return align_to_axis(node, int(axis))
        # Without an axis the shapes' ends are matched, as NumPy does.
        return renew(node, drop=("axis", "broadcast", "consumed_inputs"))


class Variadic(Pointwise):
    """A pointwise operator of one or more inputs."""

    inputs = (1, MANY)
    attribute_types = {"consumed_inputs": INTS}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        return renew(node, drop=("consumed_inputs",)) if node.version < 6 else node


class Predicate(Unary):
    """A test of every element; the result is bool."""

    def __init__(
        self, name: str, compute: Callable[..., Any], slang: Slang, allowed: Sequence[DType], **rest: Any
    ):
        super().__init__(name, compute, slang, allowed, result=BOOL, **rest)
