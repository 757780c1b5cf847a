"""Base classes of pointwise operators: a NumPy function and a scalar form over broadcast inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.ir.dtypes import BFLOAT16, BOOL, COMPLEXES, FLOAT16, DType
from vkml.ir.graph import Node
from vkml.ir.operator import INT, INTS, MANY, Array, Operator
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType
from vkml.ops.broadcasting import align_to_axis, broadcast_shapes, require_types
from vkml.ops.checks import present, required
from vkml.ops.limits import check_size
from vkml.ops.upgrading import renew

Form = Callable[..., Scalar | None]
"""A scalar form: a function of the inputs' elements and, by name, of the attributes."""


def widened(array: Array) -> Array:
    """16-bit floats as float32, so that a chain of steps rounds once; everything else unchanged."""
    # Those of `ml_dtypes` are asked for where an array has one alone: loading it takes 10 ms.
    is_narrow = array.dtype == FLOAT16.storage or (
        array.dtype.isbuiltin == 2 and array.dtype == BFLOAT16.storage
    )
    return array.astype(np.float32) if is_narrow else array


class Pointwise(Operator):
    """An operator on elements at the same (broadcast) place, all of one element type."""

    is_pointwise = True

    def __init__(
        self,
        name: str,
        compute: Callable[..., Any],
        form: Form,
        allowed: Sequence[DType],
        *,
        result: DType | None = None,
        attributes: Mapping[str, Any] | None = None,
        neutral_elements: Mapping[int, float] | None = None,
        slopes: Sequence[Form] = (),
        takes_complex: bool = False,
        always_saved: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        """States the operator.

        Args:
            name: ONNX's name.
            compute: NumPy function of the inputs (float16 arrives as float32) and of the attributes by name.
            form: scalar form.
            allowed: element types of the inputs.
            result: element type of the output where it is not that of the inputs.
            attributes: attribute → default.
            neutral_elements: see `Operator`.
            slopes: derivatives by each input, functions of what the scalar form is of; see `Operator.slope`.
            takes_complex: whether inputs may be complex, though ONNX has no such operator: NumPy computes it.
            always_saved: see `Operator`.
        """
        super().__init__(name)
        self.always_saved = always_saved
        self.compute = compute
        self.form = form
        self.allowed = tuple(allowed)
        self.taken = (*self.allowed, *COMPLEXES) if takes_complex else self.allowed
        self.result = result
        self.attributes = dict(attributes or {})
        self.neutral_elements = dict(neutral_elements or {})
        self.slopes = tuple(slopes)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        known = [required(node, inputs, index) for index in range(len(inputs))]
        dtype = require_types(node, known, self.taken)
        return [check_size(node, self.result or dtype, broadcast_shapes(node, *(k.dims for k in known)))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        arrays = [present(inputs, index) for index in range(len(inputs))]
        dtype = arrays[0].dtype if self.result is None else self.result.storage
        with np.errstate(all="ignore"):
            value = self.compute(*(widened(array) for array in arrays), **node.attributes)
            return [np.asarray(value).astype(dtype, copy=False)]

    def scalar(
        self, node: Node, arguments: Sequence[Scalar | None], types: Sequence[DType | None], result: DType
    ) -> Scalar | None:
        return self.form(*arguments, **node.attributes)

    def slope(
        self, node: Node, form: Scalar, arguments: Sequence[Scalar | None], position: int
    ) -> Scalar | None:
        if not self.slopes:
            return super().slope(node, form, arguments, position)
        return self.slopes[position](*arguments, **node.attributes)


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
        self, name: str, compute: Callable[..., Any], form: Form, allowed: Sequence[DType], **rest: Any
    ):
        super().__init__(name, compute, form, allowed, result=BOOL, **rest)
