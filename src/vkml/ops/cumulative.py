"""Running totals along an axis: CumSum, CumProd."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import COMPLEXES, FLOATS, INT32, INT64, UINT32, UINT64, from_numpy
from vkml.ir.gradients import Emitter, T, conjugate
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, V, given, known
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.broadcasting import require_types
from vkml.ops.checks import normalise_axis, present, require_dtype, required


@operator("CumSum", "CumProd")
class Cumulative(Operator):
    """Sums or products of all elements up to each one, optionally without it, optionally from the end."""

    inputs = (2, 2)
    attributes = {"exclusive": 0, "reverse": 0}
    value_inputs = (1,)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        data, axis = required(node, inputs, 0), required(node, inputs, 1)
        require_types(node, [data], (*FLOATS, *COMPLEXES, INT32, INT64, UINT32, UINT64))
        require_dtype(node, axis, (INT32, INT64), "the axis")
        if axis.type.elements != 1:
            raise ShapeError(f"{node.label}: the axis must be a scalar, its shape is {list(axis.dims)}")
        if axis.value is not None:
            normalise_axis(node, int(axis.value.reshape(-1)[0]), data.rank)
        for key in self.attributes:
            if node.attributes[key] not in (0, 1):
                raise InvalidGraph(f"{node.label}: {key} must be 0 or 1, not {node.attributes[key]!r}")
        return [data.type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        data = present(inputs, 0)
        axis = normalise_axis(node, int(present(inputs, 1).reshape(-1)[0]), data.ndim)
        line = np.flip(data, axis) if node.attributes["reverse"] else data
        # Long float sums lose digits one after the other, so they run in float64.
        kind = from_numpy(data.dtype)
        wide = np.complex128 if kind.is_complex else np.float64 if kind.is_float else data.dtype
        accumulate, neutral = (np.cumsum, 0) if self.name == "CumSum" else (np.cumprod, 1)
        with np.errstate(all="ignore"):
            result = np.asarray(accumulate(line, axis=axis, dtype=wide)).astype(data.dtype)
        if node.attributes["exclusive"]:
            result = np.roll(result, 1, axis)
            first: list[slice | int] = [slice(None)] * data.ndim
            first[axis] = slice(0, 1)
            result[tuple(first)] = neutral
        return [np.asarray(np.flip(result, axis) if node.attributes["reverse"] else result, order="C")]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, axis = given(inputs, 0), int(known(build, given(inputs, 1)).reshape(-1)[0])
        return build.scan(
            x,
            normalise_axis(node, axis, len(x.shape)),
            is_product=self.name == "CumProd",
            is_exclusive=bool(node.attributes["exclusive"]),
            is_reverse=bool(node.attributes["reverse"]),
        )

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, axis, cotangent = present(inputs, 0), present(inputs, 1), present(cotangents, 0)
        elements = build.elements_of(axis)
        assert elements is not None, "infer asks for it"
        along = normalise_axis(node, int(elements.reshape(-1)[0]), build.type_of(x).rank)
        is_exclusive, is_reverse = node.attributes["exclusive"], node.attributes["reverse"]
        if self.name == "CumSum":
            made = build.apply("CumSum", cotangent, axis, exclusive=is_exclusive, reverse=1 - is_reverse)
            return [made, None]
        step = -1 if is_reverse else 1
        if is_exclusive:
            cotangent = _shifted(build, cotangent, along, step)
        x = conjugate(build, x)
        others = build.apply("CumProd", x, axis, exclusive=1, reverse=is_reverse)
        return [build.apply("Mul", others, _weighed(build, x, cotangent, along, step)), None]


def _shifted(build: Emitter[T], x: T, axis: int, by: int) -> T:
    """At each place along an axis the element so many places further on; zeros beyond the end."""
    rank = build.type_of(x).rank
    pads = [0] * (2 * rank)
    pads[axis], pads[axis + rank] = -by, by
    return build.apply("Pad", x, build.constant(pads, INT64))


def _weighed(build: Emitter[T], x: T, cotangent: T, axis: int, step: int) -> T:
    """r[i] = cotangent[i] + x[i + step] r[i + step].

    Twice as many terms in each round: nothing is divided by an element, which may be 0.
    """
    size = build.type_of(x).dims[axis]
    total, factor = cotangent, _shifted(build, x, axis, step)
    reach = 1
    while reach < size:
        more = build.apply("Mul", factor, _shifted(build, total, axis, reach * step))
        total = build.apply("Add", total, more)
        factor = build.apply("Mul", factor, _shifted(build, factor, axis, reach * step))
        reach *= 2
    return total
