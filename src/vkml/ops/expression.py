"""Expression: any scalar form as an operator, of which derivatives are made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.ir.dtypes import DType, from_code
from vkml.ir.graph import Node
from vkml.ir.operator import INT, MANY, REQUIRED, Array, Operator, operator
from vkml.ir.scalar import Scalar, substituted
from vkml.ir.types import Known, TensorType
from vkml.ops.broadcasting import broadcast_shapes
from vkml.ops.checks import present, required
from vkml.ops.limits import check_size
from vkml.ops.scalar_evaluation import evaluate


@operator("Expression")
class Expression(Operator):
    """Applies the attribute ``form`` to elements at the same (broadcast) places; vkml makes it, no file does.

    Its argument n is an element of input n; the result is of the type ``to``.
    """

    domain = "vkml"
    inputs = (1, MANY)
    attributes = {"form": REQUIRED, "to": REQUIRED}
    attribute_types = {"to": INT}
    is_pointwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        dims = [required(node, inputs, at).dims for at in range(len(inputs))]
        return [check_size(node, from_code(node.attributes["to"]), broadcast_shapes(node, *dims))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        arrays = np.broadcast_arrays(*(present(inputs, at) for at in range(len(inputs))))
        [found] = evaluate([node.attributes["form"]], arrays)
        dtype = from_code(node.attributes["to"]).storage
        return [np.broadcast_to(found, arrays[0].shape).astype(dtype)]

    def scalar(
        self, node: Node, arguments: Sequence[Scalar | None], types: Sequence[DType | None], result: DType
    ) -> Scalar | None:
        def given(part: Scalar) -> Scalar | None:
            return present(arguments, int(part.value)) if part.operation == "argument" else None

        return substituted(node.attributes["form"], given)
