"""Pooling: reductions over sliding windows or over all spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOATS, INT8, INT64, UINT8
from vkml.ir.gradients import Emitter, T, expanded
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, V, given
from vkml.ir.operator import REQUIRED, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ir.windows import Windows
from vkml.ops.checks import present, require_dtype, require_rank, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.pool_gradients import (
    averages_gradient,
    maximum_gradient,
    norms_gradient,
    plane_maximum_gradient,
    spread,
)
from vkml.ops.upgrading import renew
from vkml.ops.windows import (
    WINDOW_ATTRIBUTES,
    check_window_padding,
    pad_for_windows,
    resolve_windows,
    tap_views,
    window_view,
)

VIEW_TAPS = 64
"""Above this many taps a reduction over the window view beats one whole-output operation a tap."""


@dataclass(frozen=True)
class PoolGeometry(Windows):
    """Windows over [batch, channels, *spatial]."""

    batch: int
    channels: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *self.output)


def pool_geometry(node: Node, x_shape: Sequence[int]) -> PoolGeometry:
    """Resolves a pooling node's attributes against its input's shape [N, C, *spatial].

    Raises:
        ShapeError: Attribute lengths do not fit the rank, or a window is larger than its padded axis.
    """
    spatial = tuple(x_shape[2:])
    kernel = tuple(int(k) for k in node.attributes["kernel_shape"])
    if len(kernel) != len(spatial) or not spatial:
        raise ShapeError(
            f"{node.label}: kernel_shape {list(kernel)} does not fit an input of shape {list(x_shape)}"
        )
    windows = resolve_windows(node, spatial, kernel, ceil_mode=bool(node.attributes["ceil_mode"]))
    planes = x_shape[0] * x_shape[1]
    check_window_padding(node, windows, planes, planes)
    return PoolGeometry(
        windows.spatial,
        windows.kernel,
        windows.strides,
        windows.dilations,
        windows.pads_begin,
        windows.pads_end,
        windows.output,
        x_shape[0],
        x_shape[1],
    )


def window_counts(geometry: Windows, *, include_padding: bool) -> Array:
    """How many elements each window averages over, shape `output`.

    Padding counts where `include_padding`, but never what ceil_mode adds beyond the stated padding.
    """
    counts = np.ones((), dtype=np.int64)
    for axis, size in enumerate(geometry.spatial):
        begin, end = geometry.pads_begin[axis], geometry.pads_end[axis]
        starts = np.arange(geometry.output[axis]) * geometry.strides[axis] - begin
        places = starts[:, None] + np.arange(geometry.kernel[axis]) * geometry.dilations[axis]
        low, high = (-begin, size + end) if include_padding else (0, size)
        inside = ((places >= low) & (places < high)).sum(axis=1)
        counts = counts[..., None] * inside
    return counts


def _sum_windows(padded: Array, geometry: PoolGeometry) -> Array:
    if geometry.taps > VIEW_TAPS:
        rank = len(geometry.kernel)
        return np.asarray(window_view(padded, geometry).sum(axis=tuple(range(-rank, 0)), dtype=padded.dtype))
    total = np.zeros(geometry.output_shape, dtype=padded.dtype)
    for _, view in tap_views(padded, geometry):
        total += view
    return total


def _lowest(dtype: np.dtype[np.generic]) -> float:
    return -math.inf if dtype.kind == "f" else int(np.iinfo(dtype.type).min)  # type: ignore[type-var]


class _Pool(Operator):
    """A reduction of sliding windows."""

    attribute_types = WINDOW_ATTRIBUTES

    def windows(self, node: Node, inputs: Sequence[TensorType | None]) -> Windows | None:
        x = inputs[0]
        return pool_geometry(node, x.dims) if x is not None and x.is_static else None


@operator()
class MaxPool(_Pool):
    """Greatest element of each window, and on request its index in the input."""

    outputs = (1, 2)
    attributes = {
        "auto_pad": "NOTSET",
        "ceil_mode": 0,
        "dilations": None,
        "kernel_shape": REQUIRED,
        "pads": None,
        "storage_order": 0,
        "strides": None,
    }
    is_anchor = True
    is_linked = True
    is_spatial = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, (*FLOATS, INT8, UINT8), "the input")
        require_rank(node, x, 3)
        shape = pool_geometry(node, x.dims).output_shape
        return [check_size(node, x.dtype, shape), check_size(node, INT64, shape)][: len(node.outputs)]

    def halo_fill(self, node: Node) -> float:
        return -math.inf

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        geometry = pool_geometry(node, x.shape)
        wide = widened(x)
        padded = pad_for_windows(wide, geometry, _lowest(wide.dtype))
        if len(node.outputs) > 1 and node.outputs[1]:
            best, index = _max_with_indices(padded, geometry, bool(node.attributes["storage_order"]))
            return [best.astype(x.dtype, copy=False), index]
        if geometry.taps > VIEW_TAPS:
            rank = len(geometry.kernel)
            greatest = np.asarray(window_view(padded, geometry).max(axis=tuple(range(-rank, 0))))
            return [greatest.astype(x.dtype, copy=False)]
        best = np.full(geometry.output_shape, _lowest(wide.dtype), dtype=wide.dtype)
        for _, view in tap_views(padded, geometry):
            np.maximum(best, view, out=best)
        return [best.astype(x.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        if not any(node.outputs[1:]):
            return _lower_pool(build, node, x, "max")
        geometry = pool_geometry(node, x.shape)
        if len(geometry.kernel) > 3:
            return None
        windows, shape = geometry.over(3), geometry.output_shape
        values = build.output(TensorType(x.dtype, shape)) if node.outputs[0] else None
        places = build.output(TensorType(INT64, shape), 1)
        planes = build.reshape(x, (*x.shape[:2], *windows.spatial))
        is_column_major = bool(node.attributes["storage_order"])
        build.max_pool_places(planes, windows, values, places, is_column_major=is_column_major)
        return [values, places]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        [cotangent, *_] = cotangents
        if cotangent is None:
            return [None]
        x = present(inputs, 0)
        return [maximum_gradient(build, x, cotangent, pool_geometry(node, build.type_of(x).dims))]


def _max_with_indices(padded: Array, geometry: PoolGeometry, column_major: bool) -> list[Array]:
    rank = len(geometry.spatial)
    best = np.full(geometry.output_shape, _lowest(padded.dtype), dtype=padded.dtype)
    index = np.full(geometry.output_shape, -1, dtype=np.int64)
    weights = [1] * rank
    for axis in range(1, rank) if column_major else range(rank - 2, -1, -1):
        before = axis - 1 if column_major else axis + 1
        weights[axis] = weights[before] * geometry.spatial[before]
    for tap, view in tap_views(padded, geometry):
        place = np.zeros((), dtype=np.int64)
        inside = np.ones((), dtype=bool)
        for axis, size in enumerate(geometry.spatial):
            along = (
                np.arange(geometry.output[axis]) * geometry.strides[axis]
                - geometry.pads_begin[axis]
                + tap[axis] * geometry.dilations[axis]
            )
            place = place[..., None] + along * weights[axis]
            inside = inside[..., None] & (along >= 0) & (along < size)
        better = ((view > best) | (index < 0)) & inside
        best = np.where(better, view, best)
        index = np.where(better, place, index)
    planes = np.arange(geometry.batch * geometry.channels).reshape(geometry.batch, geometry.channels)
    offset = (planes * math.prod(geometry.spatial)).reshape(*planes.shape, *(1,) * rank)
    return [best, np.where(index < 0, index, index + offset)]


@operator()
class AveragePool(_Pool):
    """Mean of each window."""

    always_saved = (0,), ()
    attributes = {
        "auto_pad": "NOTSET",
        "ceil_mode": 0,
        "count_include_pad": 0,
        "dilations": None,
        "kernel_shape": REQUIRED,
        "pads": None,
        "strides": None,
    }
    is_anchor = True
    is_linked = True
    is_spatial = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 3)
        return [check_size(node, x.dtype, pool_geometry(node, x.dims).output_shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        geometry = pool_geometry(node, x.shape)
        total = _sum_windows(pad_for_windows(widened(x), geometry, 0), geometry)
        counts = window_counts(geometry, include_padding=bool(node.attributes["count_include_pad"]))
        with np.errstate(invalid="ignore"):
            return [(total / counts.astype(total.dtype)).astype(x.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return _lower_pool(build, node, given(inputs, 0), "average")

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        geometry = pool_geometry(node, build.type_of(present(inputs, 0)).dims)
        counts = window_counts(geometry, include_padding=bool(node.attributes["count_include_pad"]))
        return [averages_gradient(build, present(cotangents, 0), geometry, counts)]


def _lower_pool(build: Lowering[V], node: Node, x: V, how: str | float) -> Sequence[V | None] | None:
    geometry = pool_geometry(node, x.shape)
    if len(geometry.kernel) > 3:
        return None
    windows = geometry.over(3)
    return build.pool(
        build.reshape(x, (*x.shape[:2], *windows.spatial)),
        how,
        windows,
        counts_padding=bool(node.attributes.get("count_include_pad")),
    )


@operator()
class LpPool(_Pool):
    """The p-norm of each window."""

    attributes = {
        "auto_pad": "NOTSET",
        "ceil_mode": 0,
        "dilations": None,
        "kernel_shape": REQUIRED,
        "p": 2,
        "pads": None,
        "strides": None,
    }
    retyped_attributes = frozenset({"p"})

    def upgrade(self, node: Node) -> Node:
        return _integer_p(node)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 3)
        _check_p(node)
        return [check_size(node, x.dtype, pool_geometry(node, x.dims).output_shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, p = present(inputs, 0), node.attributes["p"]
        geometry = pool_geometry(node, x.shape)
        powers = np.abs(widened(x)) ** p
        total = _sum_windows(pad_for_windows(powers, geometry, 0), geometry)
        return [(total ** (1 / p)).astype(x.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return _lower_pool(build, node, given(inputs, 0), float(node.attributes["p"]))

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, cotangent, p = present(inputs, 0), present(cotangents, 0), float(node.attributes["p"])
        geometry = pool_geometry(node, build.type_of(x).dims)
        return [norms_gradient(build, x, outputs[0], cotangent, p, lambda dy: spread(build, dy, geometry))]


def _integer_p(node: Node) -> Node:
    """Opset 1 had a float `p`; the newest form wants an integer, and `_check_p` accepts both."""
    p = node.attributes.get("p")
    return renew(node, attributes={"p": int(p)}) if isinstance(p, float) and p == int(p) else node


def _check_p(node: Node) -> None:
    if not node.attributes["p"] > 0:
        raise InvalidGraph(f"{node.label}: p is {node.attributes['p']}; it must be positive")


class _GlobalPool(Operator):
    """A reduction over all spatial axes, which stay as axes of size 1."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 2)
        return [check_size(node, x.dtype, (*x.dims[:2], *(1,) * (x.rank - 2)))]

    def reduce(self, node: Node, x: Array, axes: tuple[int, ...]) -> Array:
        raise NotImplementedError

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        result = self.reduce(node, widened(x), tuple(range(2, x.ndim)))
        return [np.asarray(result).astype(x.dtype, copy=False)]


@operator()
class GlobalAveragePool(_GlobalPool):
    """Mean over all spatial axes."""

    is_anchor = True
    is_linked = True

    def reduce(self, node: Node, x: Array, axes: tuple[int, ...]) -> Array:
        count = math.prod(x.shape[axis] for axis in axes)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(x.sum(axis=axes, keepdims=True) / np.asarray(count, dtype=x.dtype))

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return build.reduce("Mean", given(inputs, 0), range(2, len(given(inputs, 0).shape)))

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x = build.type_of(present(inputs, 0))
        count = build.constant(math.prod(x.dims[2:]), x.dtype)
        return [expanded(build, build.apply("Div", present(cotangents, 0), count), x.dims)]


@operator()
class GlobalMaxPool(_GlobalPool):
    """Greatest element over all spatial axes."""

    def reduce(self, node: Node, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(x.max(axis=axes, keepdims=True, initial=_lowest(x.dtype)))

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return build.reduce("Max", given(inputs, 0), range(2, len(given(inputs, 0).shape)))

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [plane_maximum_gradient(build, present(inputs, 0), present(cotangents, 0))]


@operator()
class GlobalLpPool(_GlobalPool):
    """The p-norm over all spatial axes."""

    attributes = {"p": 2}
    retyped_attributes = frozenset({"p"})

    def upgrade(self, node: Node) -> Node:
        return _integer_p(node)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        _check_p(node)
        return super().infer(node, inputs)

    def reduce(self, node: Node, x: Array, axes: tuple[int, ...]) -> Array:
        p = node.attributes["p"]
        return np.asarray((np.abs(x) ** p).sum(axis=axes, keepdims=True) ** (1 / p))

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        return build.norm(x, range(2, len(x.shape)), float(node.attributes["p"]))

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, cotangent, p = present(inputs, 0), present(cotangents, 0), float(node.attributes["p"])
        return [norms_gradient(build, x, outputs[0], cotangent, p, lambda dy: dy)]
