"""Shape and type rules shared by elementwise operators: broadcasting, element types, opset-1 alignment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import DType
from vkml.ir.graph import Node
from vkml.ir.types import Known
from vkml.ops.upgrading import NEWEST, constant_node, fresh_name, renew


def broadcast_shapes(node: Node, *shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape of several, by NumPy's rule.

    Raises:
        ShapeError: Two sizes on one axis differ and neither is 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if result[axis] == 1:
                result[axis] = size
            elif size not in (1, result[axis]):
                listed = " and ".join(str(list(s)) for s in shapes)
                raise ShapeError(
                    f"{node.label}: shapes {listed} do not broadcast: sizes {result[axis]} and {size} meet "
                    f"on axis {axis - rank} and neither is 1"
                )
    return tuple(result)


def require_types(node: Node, inputs: Sequence[Known], allowed: Sequence[DType]) -> DType:
    """The one element type that all of `inputs` share.

    Raises:
        InvalidGraph: The types differ, or the type is not one of `allowed`.
    """
    first = inputs[0].dtype
    if any(known.dtype != first for known in inputs):
        found = ", ".join(known.dtype.name for known in inputs)
        raise InvalidGraph(
            f"{node.label}: inputs have element types {found}; they must be the same, one of "
            f"{', '.join(dtype.name for dtype in allowed)}"
        )
    if first not in allowed:
        raise InvalidGraph(
            f"{node.label}: element type {first.name} is not allowed; {node.op} takes "
            f"{', '.join(dtype.name for dtype in allowed)}"
        )
    return first


def align_to_axis(node: Node, axis: int) -> list[Node]:
    """Rewrites the broadcasting of opsets 1 to 6, where the second input starts at `axis` of the first.

    A negative axis counts from the end of the first.

    The second input gets trailing axes of size 1 through shape arithmetic, which constant folding resolves
    once the shapes are known; the node follows in its newest form.
    """
    first, second = node.inputs[:2]
    names = {key: fresh_name(node, key) for key in ("shape", "after", "own_shape", "own_rank")}
    names |= {key: fresh_name(node, key) for key in ("missing", "ones", "target", "aligned")}

    def step(op: str, inputs: Sequence[str], output: str, **attributes: object) -> Node:
        made = tuple(names.get(name, name) for name in inputs)
        return Node(op, made, (names[output],), attributes, version=NEWEST)

    one = constant_node("one", np.ones(1, np.int64)).attributes["value"]
    return [
        step("Shape", [first], "shape", start=axis),
        step("Shape", ["shape"], "after"),
        step("Shape", [second], "own_shape"),
        step("Shape", ["own_shape"], "own_rank"),
        step("Sub", ["after", "own_rank"], "missing"),
        step("ConstantOfShape", ["missing"], "ones", value=one),
        step("Concat", ["own_shape", "ones"], "target", axis=0),
        step("Reshape", [second, "target"], "aligned"),
        renew(
            node,
            inputs=(first, names["aligned"], *node.inputs[2:]),
            drop=("axis", "broadcast", "consumed_inputs"),
        ),
    ]
