"""Reductions over axes: ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, norms, logarithmic sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.ir.dtypes import (
    BOOL,
    COMPLEXES,
    FLOATS,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT32,
    UINT64,
    DType,
)
from vkml.ir.gradients import Emitter, T, reshaped
from vkml.ir.graph import Constant, Node
from vkml.ir.lowering import BodyWriter, Lowering, V, given, known
from vkml.ir.operator import INTS, Array, Operator, register
from vkml.ir.scalar import arithmetic_type
from vkml.ir.types import Known, TensorType
from vkml.ops.broadcasting import require_types
from vkml.ops.checks import (
    has_unknown_value,
    integers,
    list_value,
    normalise_axes,
    optional,
    present,
    required,
)
from vkml.ops.elementwise import divide
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.reduce_gradients import GRADIENTS
from vkml.ops.upgrading import attributes_to_inputs

SUMMABLE: tuple[DType, ...] = (*FLOATS, INT32, INT64, UINT32, UINT64)
ORDERED: tuple[DType, ...] = (*SUMMABLE, INT8, UINT8, BOOL)
"""What ReduceMax and ReduceMin take."""

Axes = tuple[int, ...]


def reduction_axes(node: Node, rank: int, axes: Sequence[int] | None) -> Axes:
    """The axes a reduction runs over, ascending; empty where it runs over none (`noop_with_empty_axes`)."""
    if axes is None or len(axes) == 0:
        return () if node.attributes["noop_with_empty_axes"] else tuple(range(rank))
    return tuple(sorted(normalise_axes(node, axes, rank)))


def reduced_shape(shape: Sequence[int], axes: Axes, keepdims: bool) -> tuple[int, ...]:
    """The shape after reducing `axes`."""
    if keepdims:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


class Reduction(Operator):
    """A reduction; `compute(array, axes)` keeps the reduced axes as sizes of 1."""

    inputs = (1, 2)
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    value_inputs = (1,)
    attribute_types = {"axes": INTS}

    def __init__(
        self,
        name: str,
        compute: Callable[[Array, Axes], Any],
        allowed: Sequence[DType],
        axes_opset: int = 18,
        *,
        is_anchor: bool = True,
        takes_complex: bool = False,
        is_shape_arithmetic: bool = False,
    ) -> None:
        """States the reduction; before `axes_opset` its axes were an attribute."""
        super().__init__(name)
        self.is_anchor = is_anchor
        self.reduction = name.removeprefix("Reduce") if is_anchor else ""
        self.is_shape_arithmetic = is_shape_arithmetic
        self.compute = compute
        self.allowed = tuple(allowed)
        self.taken = (*self.allowed, *COMPLEXES) if takes_complex else self.allowed
        self.axes_opset = axes_opset

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= self.axes_opset:
            return node
        return attributes_to_inputs(node, [("axes", 1, INT64)])

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        data = required(node, inputs, 0)
        dtype = require_types(node, [data], self.taken)
        given = optional(inputs, 1)
        if given is not None and has_unknown_value(inputs, (1,)):
            return [TensorType(dtype, (None,) * data.rank if node.attributes["keepdims"] else None)]
        stated = None if given is None else list_value(node, given, "axes")
        axes = reduction_axes(node, data.rank, stated)
        return [check_size(node, dtype, reduced_shape(data.dims, axes, bool(node.attributes["keepdims"])))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        data, stated = present(inputs, 0), optional(inputs, 1)
        axes = reduction_axes(node, data.ndim, None if stated is None else integers(stated))
        shape = reduced_shape(data.shape, axes, bool(node.attributes["keepdims"]))
        with np.errstate(all="ignore"):
            value = np.asarray(self.compute(widened(data), axes))
            return [value.astype(data.dtype, copy=False).reshape(shape)]

    def reduced_axes(self, node: Node, rank: int, constants: Mapping[str, Constant]) -> Axes | None:
        stated = None
        if len(node.inputs) > 1 and node.inputs[1]:
            constant = constants.get(node.inputs[1])
            if constant is None or constant.is_open:
                return None
            stated = integers(constant.array)
        return reduction_axes(node, rank, stated) or None

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        data = given(inputs, 0)
        stated = None if len(inputs) < 2 or inputs[1] is None else integers(known(build, given(inputs, 1)))
        axes = reduction_axes(node, len(data.shape), stated)
        if 0 in data.shape or (self.name in ("ReduceLogSum", "ReduceLogSumExp") and data.dtype.is_integer):
            return None
        if self.name == "ReduceLogSumExp":
            return [_lower_log_sum_exp(build, data, axes)]
        return build.reduce(self.name.removeprefix("Reduce"), data, axes)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        data, axes = present(inputs, 0), optional(inputs, 1)
        type_ = build.type_of(data)
        stated = None if axes is None else build.elements_of(axes)
        if type_.is_open or type_.elements or (axes is not None and stated is None):
            return None
        # Of nothing, which is known without a run.
        [made] = self.evaluate(node, [np.zeros(type_.dims, type_.dtype.storage), stated])
        return [build.constant(made, type_.dtype)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, given = present(inputs, 0), optional(inputs, 1)
        dims = build.type_of(x).dims
        stated = None if given is None else build.elements_of(given)
        axes = reduction_axes(node, len(dims), None if stated is None else integers(stated))
        kept = reduced_shape(dims, axes, True)
        result, cotangent = (reshaped(build, y, kept) for y in (outputs[0], present(cotangents, 0)))
        return [GRADIENTS[self.name](build, x, result, cotangent, axes)]


def total(x: Array, axes: Axes) -> Array:
    """The sum over axes, kept as sizes of 1; integers wrap around.

    float32 over trailing axes adds pairwise; over others, where NumPy would add in sequence, in float64.
    """
    if x.dtype != np.float32:
        return np.asarray(np.sum(x, axis=axes, dtype=x.dtype, keepdims=True))
    if axes == tuple(range(x.ndim - len(axes), x.ndim)) and x.size:
        kept = reduced_shape(x.shape, axes, True)
        return np.asarray(np.add.reduce(x.reshape(math.prod(kept), -1), axis=1)).reshape(kept)
    return np.asarray(np.sum(x, axis=axes, dtype=np.float64, keepdims=True).astype(np.float32))


def count(x: Array, axes: Axes) -> int:
    """How many elements meet in each result."""
    return math.prod(x.shape[axis] for axis in axes)


def mean(x: Array, axes: Axes) -> Any:
    """The mean over axes; that of no elements is NaN, for integers 0."""
    if x.dtype.kind in "fc":
        return total(x, axes) / x.dtype.type(count(x, axes))
    wide = np.uint64 if x.dtype.kind == "u" else np.int64
    return divide(total(x.astype(wide), axes), np.asarray(count(x, axes), wide))


def greatest(x: Array, axes: Axes) -> Any:
    """The maximum over axes, NaN where there is one; the type's least value for no elements."""
    return np.max(x, axis=axes, keepdims=True, initial=_extreme(x.dtype, -1))


def least(x: Array, axes: Axes) -> Any:
    """The minimum over axes, NaN where there is one; the type's greatest value for no elements."""
    return np.min(x, axis=axes, keepdims=True, initial=_extreme(x.dtype, 1))


def _extreme(dtype: np.dtype[Any], sign: int) -> Any:
    if dtype.kind == "f":
        return dtype.type(sign * np.inf)
    if dtype.kind == "b":
        return sign > 0
    info = np.iinfo(dtype)
    return dtype.type(info.max if sign > 0 else info.min)


def product(x: Array, axes: Axes) -> Any:
    """The product over axes; float32 multiplies in float64, integers wrap around."""
    return np.prod(x, axis=axes, keepdims=True, dtype=np.float64 if x.dtype == np.float32 else x.dtype)


def log_sum_exp(x: Array, axes: Axes) -> Any:
    """log(sum(e^x)), shifted by the maximum so that nothing overflows; of integers in float64."""
    x = _float(x)
    peak = np.asarray(greatest(x, axes))
    shift = np.where(np.isfinite(peak), peak, 0).astype(x.dtype)
    return np.log(total(np.exp(x - shift), axes)) + shift


def _lower_log_sum_exp(build: Lowering[V], x: V, axes: Axes) -> V:
    """As `log_sum_exp`, in four launches."""
    wide = arithmetic_type(x.dtype)
    kept = TensorType(wide, reduced_shape(x.shape, axes, True))

    def shift(body: BodyWriter, peak: str) -> str:
        is_infinite = body("Or", body("IsInf", peak), body("IsNaN", peak))
        return str(body("Where", is_infinite, body.constant(0, peak), peak))

    with build.step(kept):
        [peak] = build.reduce("Max", x, axes)
    exponentials = build.compute(
        lambda body, x, peak: body("Exp", body("Sub", x, shift(body, peak))),
        [x, peak.expand(x.shape)],
        build.scratch(TensorType(wide, x.shape)),
        label="exponentials",
    )
    with build.step(kept):
        [total] = build.reduce("Sum", exponentials, axes)
    output = build.output(build.result())
    return build.compute(
        lambda body, total, peak: body("Add", body("Log", total), shift(body, peak)),
        [build.reshape(total, output.shape), build.reshape(peak, output.shape)],
        output,
        label="log_sum_exp",
    )


def _float(x: Array) -> Array:
    return x if x.dtype.kind == "f" else x.astype(np.float64)


register(Reduction("ReduceSum", total, SUMMABLE, axes_opset=13, takes_complex=True, is_shape_arithmetic=True))
register(Reduction("ReduceMean", mean, SUMMABLE, takes_complex=True))
register(Reduction("ReduceMax", greatest, ORDERED, is_shape_arithmetic=True))
register(Reduction("ReduceMin", least, ORDERED, is_shape_arithmetic=True))
register(Reduction("ReduceProd", product, SUMMABLE, takes_complex=True, is_shape_arithmetic=True))
register(Reduction("ReduceL1", lambda x, axes: total(np.abs(x), axes), SUMMABLE))
register(Reduction("ReduceL2", lambda x, axes: np.sqrt(_float(total(x * x, axes))), SUMMABLE))
register(Reduction("ReduceSumSquare", lambda x, axes: total(x * x, axes), SUMMABLE))
register(Reduction("ReduceLogSum", lambda x, axes: np.log(_float(total(x, axes))), SUMMABLE, is_anchor=False))
register(Reduction("ReduceLogSumExp", log_sum_exp, SUMMABLE, is_anchor=False))
