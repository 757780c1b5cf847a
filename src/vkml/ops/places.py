"""Places that NumPy finds: of running extremes, of modes, in sorted rows; and divisors. No kernel does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import ShapeError
from vkml.ir.dtypes import INT64, INTEGERS, NUMBERS
from vkml.ir.graph import Node
from vkml.ir.operator import REQUIRED, Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ops.broadcasting import broadcast_shapes, require_types
from vkml.ops.checks import normalise_axis, present, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened


def _running(rows: Array, is_max: bool) -> Array:
    """Where the greatest (or least) element up to each lies, the last of equals; NaN is beyond all."""
    places = np.broadcast_to(np.arange(rows.shape[-1]), rows.shape)
    extremes = (np.maximum if is_max else np.minimum).accumulate(rows, axis=-1)
    is_new = (rows == extremes) | (np.isnan(rows) if rows.dtype.kind == "f" else False)
    return np.maximum.accumulate(np.where(is_new, places, 0), axis=-1)


def _modes(rows: Array) -> Array:
    """Where the most frequent element of each row lies last, the least of several."""
    found = np.zeros(rows.shape[:-1], np.int64)
    for at in np.ndindex(found.shape):
        _, inverse, counts = np.unique(rows[at], return_inverse=True, return_counts=True)
        found[at] = np.flatnonzero(inverse == counts.argmax())[-1]
    return found


@operator("PlacesAlong")
class PlacesAlong(Operator):
    """Places along ``axis``: of running extremes ("cummax", "cummin") or of the most frequent ("mode")."""

    domain = "vkml"
    attributes = {"axis": REQUIRED, "function": REQUIRED}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_types(node, [x], NUMBERS)
        axis = normalise_axis(node, node.attributes["axis"], x.rank)
        if node.attributes["function"] == "mode":
            if not x.dims[axis]:
                raise ShapeError(f"{node.label}: axis {axis} has no elements")
            return [TensorType(INT64, (*x.dims[:axis], *x.dims[axis + 1 :]))]
        return [TensorType(INT64, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        axis, function = normalise_axis(node, node.attributes["axis"], x.ndim), node.attributes["function"]
        rows = np.moveaxis(widened(x), axis, -1)
        if function == "mode":
            return [_modes(rows)]
        found = _running(rows, function == "cummax")
        return [np.ascontiguousarray(np.moveaxis(found, -1, axis)).astype(np.int64)]


@operator("SearchSorted")
class SearchSorted(Operator):
    """Where each value would go into a row that is sorted: [..., n] or [n], and values of the same rows.

    With ``right``, behind its equals.
    """

    domain = "vkml"
    inputs = (2, 2)
    attributes = {"right": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        rows, values = required(node, inputs, 0), required(node, inputs, 1)
        require_types(node, [rows, values], NUMBERS)
        if rows.rank != 1 and rows.dims[:-1] != values.dims[:-1]:
            raise ShapeError(
                f"{node.label}: rows of {list(rows.dims)} and values of {list(values.dims)} differ before "
                "the last axis"
            )
        return [static(INT64, values.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        rows, values = (widened(present(inputs, at)) for at in range(2))
        side = "right" if node.attributes["right"] else "left"
        if rows.ndim == 1:
            return [np.asarray(np.searchsorted(rows, values, side), np.int64)]  # type: ignore[call-overload]
        found = np.empty(values.shape, np.int64)
        for at in np.ndindex(values.shape[:-1]):
            found[at] = np.searchsorted(rows[at], values[at], side)  # type: ignore[call-overload]
        return [found]


@operator("CommonDivisor")
class CommonDivisor(Operator):
    """NumPy's ``function`` of two integers: "gcd" or "lcm"."""

    domain = "vkml"
    inputs = (2, 2)
    attributes = {"function": REQUIRED}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, y = required(node, inputs, 0), required(node, inputs, 1)
        require_types(node, [x, y], INTEGERS)
        return [check_size(node, x.dtype, broadcast_shapes(node, x.dims, y.dims))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [np.asarray(getattr(np, node.attributes["function"])(present(inputs, 0), present(inputs, 1)))]
