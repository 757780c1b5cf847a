"""Operators of ai.onnx.ml that prepare features: scaled, normalised, filled in, chosen, joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOAT32, FLOAT64, INT64, STRING
from vkml.ir.gradients import Emitter, T, converted, reshaped
from vkml.ir.graph import Node
from vkml.ir.operator import FLOATS, INTS, MANY, OPTIONAL, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, require_rank, required
from vkml.ops.limits import check_size
from vkml.ops.scores import DOMAIN, FEATURES, as_floats


class _OfFeatures(Operator):
    """An operator on tensors whose last axis is that of features."""

    domain = DOMAIN

    def features(self, node: Node, inputs: Sequence[Known | None]) -> Known:
        x = required(node, inputs, 0)
        require_dtype(node, x, FEATURES, "X")
        require_rank(node, x, 1, what="X")
        return x


def _for_each_feature(node: Node, name: str, width: Any, dtype: Any) -> Array:
    """An attribute that states a number for each feature, or one for all."""
    found = np.asarray(node.attributes[name] or (), dtype)
    if len(found) not in (1, width):
        raise InvalidGraph(f"{node.label}: {name} has {len(found)} numbers for {width} features")
    return found


def _floats(build: Emitter[T], x: T) -> T:
    """Features as the floats that `as_floats` makes of them."""
    return x if build.type_of(x).dtype == FLOAT64 else converted(build, x, FLOAT32)


@operator()
class ArrayFeatureExtractor(Operator):
    """Elements at indices along the last axis; a list is taken for one row."""

    domain = DOMAIN
    inputs = (2, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, indices = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, (*FEATURES, STRING), "X")
        require_dtype(node, indices, (INT64,), "Y")
        require_rank(node, x, 1, what="X")
        if indices.type.elements == 0:
            raise ShapeError(f"{node.label}: no index is given")
        before = x.dims[:-1] if x.rank > 1 else (1,)
        return [check_size(node, x.dtype, (*before, indices.type.elements))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices = present(inputs, 0), present(inputs, 1).reshape(-1)
        width = x.shape[-1]
        if indices.min() < 0 or indices.max() >= width:
            wrong = int(indices.min() if indices.min() < 0 else indices.max())
            raise IndexOutOfRange(f"{node.label}: index {wrong} is outside of {width} features")
        return [np.take(x if x.ndim > 1 else x.reshape(1, -1), indices, axis=-1)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, indices = present(inputs, 0), reshaped(build, present(inputs, 1), [-1])
        type_ = build.type_of(x)
        if type_.dtype == STRING:
            return None
        # Counted from the end there is no feature: an index below 0 is one behind the last.
        beyond = build.constant(type_.dims[-1], INT64)
        is_below = build.apply("Less", indices, build.constant(0, INT64))
        rows = x if len(type_.dims) > 1 else reshaped(build, x, [1, *type_.dims])
        return [build.apply("Gather", rows, build.apply("Where", is_below, beyond, indices), axis=-1)]


@operator()
class Binarizer(_OfFeatures):
    """1 above a threshold, 0 up to it."""

    attributes = {"threshold": 0.0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FEATURES, "X")
        return [x.type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        return [(x > node.attributes["threshold"]).astype(x.dtype)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x = present(inputs, 0)
        dtype, threshold = build.type_of(x).dtype, node.attributes["threshold"]
        # An integer is above a number where it is above its floor.
        bound = threshold if dtype.is_float else math.floor(min(max(threshold, -(2.0**31)), 2.0**31 - 1))
        if dtype.is_integer and bound != math.floor(threshold):
            return None
        return [converted(build, build.apply("Greater", x, build.constant(bound, dtype)), dtype)]


@operator()
class Scaler(_OfFeatures):
    """``(x - offset) * scale``, each a number for all features or one for each."""

    attributes = {"offset": OPTIONAL, "scale": OPTIONAL}
    attribute_types = {"offset": FLOATS, "scale": FLOATS}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = self.features(node, inputs)
        for name in ("offset", "scale"):
            _for_each_feature(node, name, x.dims[-1], np.float32)
        return [TensorType(FLOAT32, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = as_floats(present(inputs, 0))
        offset, scale = (
            _for_each_feature(node, name, x.shape[-1], np.float32) for name in ("offset", "scale")
        )
        with np.errstate(all="ignore"):
            return [((x - offset) * scale).astype(np.float32, copy=False)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x = _floats(build, present(inputs, 0))
        type_ = build.type_of(x)
        offset, scale = (
            build.constant(_for_each_feature(node, name, type_.dims[-1], np.float32), type_.dtype)
            for name in ("offset", "scale")
        )
        return [converted(build, build.apply("Mul", build.apply("Sub", x, offset), scale), FLOAT32)]


@operator()
class Normalizer(_OfFeatures):
    """Each row divided by its largest element, by the sum of absolute values, or by its length.

    Rows whose divisor is 0 stay as they are.
    """

    attributes = {"norm": "MAX"}

    def check(self, node: Node) -> None:
        if node.attributes["norm"] not in ("MAX", "L1", "L2"):
            raise InvalidGraph(f"{node.label}: norm must be MAX, L1 or L2, not {node.attributes['norm']!r}")

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [TensorType(FLOAT32, self.features(node, inputs).dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = as_floats(present(inputs, 0))
        norm = node.attributes["norm"]
        if not x.size:
            return [x.astype(np.float32, copy=False)]
        with np.errstate(all="ignore"):
            if norm == "MAX":
                divisor = x.max(axis=-1, keepdims=True)
            elif norm == "L1":
                divisor = np.abs(x).sum(axis=-1, keepdims=True)
            else:
                divisor = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
            made = np.where(divisor == 0, x, x / divisor)
        return [made.astype(np.float32, copy=False)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x = _floats(build, present(inputs, 0))
        type_ = build.type_of(x)
        if type_.elements == 0:
            return None
        op = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}[node.attributes["norm"]]
        divisor = build.apply(op, x, build.constant([-1], INT64), keepdims=1)
        is_nothing = build.apply("Equal", divisor, build.constant(0, type_.dtype))
        return [
            converted(build, build.apply("Where", is_nothing, x, build.apply("Div", x, divisor)), FLOAT32)
        ]


@operator()
class Imputer(_OfFeatures):
    """One value, often NaN, replaced by another, the same for all features or one for each."""

    attributes = {
        "imputed_value_floats": OPTIONAL,
        "imputed_value_int64s": OPTIONAL,
        "replaced_value_float": 0.0,
        "replaced_value_int64": 0,
    }
    attribute_types = {"imputed_value_floats": FLOATS, "imputed_value_int64s": INTS}

    def _new(self, node: Node, width: Any, dtype: np.dtype[Any]) -> Array:
        name = "imputed_value_floats" if dtype.kind == "f" else "imputed_value_int64s"
        return _for_each_feature(node, name, width, dtype)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = self.features(node, inputs)
        self._new(node, x.dims[-1], x.dtype.storage)
        return [x.type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        old = node.attributes["replaced_value_float" if x.dtype.kind == "f" else "replaced_value_int64"]
        is_old = np.isnan(x) if old != old else x == old
        return [np.where(is_old, self._new(node, x.shape[-1], x.dtype), x)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x = present(inputs, 0)
        type_ = build.type_of(x)
        old = node.attributes["replaced_value_float" if type_.dtype.is_float else "replaced_value_int64"]
        if old != old:
            is_old = build.apply("IsNaN", x)
        else:
            is_old = build.apply("Equal", x, build.constant(old, type_.dtype))
        new = build.constant(self._new(node, type_.dims[-1], type_.dtype.storage), type_.dtype)
        return [build.apply("Where", is_old, new, x)]


@operator()
class FeatureVectorizer(Operator):
    """Inputs side by side as floats, cut or filled with zeros to the width that is stated for each."""

    domain = DOMAIN
    inputs = (1, MANY)
    attributes = {"inputdimensions": OPTIONAL}
    attribute_types = {"inputdimensions": INTS}

    def _widths(self, node: Node, found: Sequence[Any]) -> tuple[Any, ...]:
        stated = node.attributes["inputdimensions"]
        if stated and (len(stated) != len(found) or min(stated) < 0):
            raise InvalidGraph(f"{node.label}: inputdimensions are {list(stated)} for {len(found)} inputs")
        return tuple(stated) if stated else tuple(found)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        known = [required(node, inputs, at) for at in range(len(inputs))]
        for each in known:
            require_dtype(node, each, FEATURES, "an input")
            require_rank(node, each, 1, 2, "an input")
        rows = {1 if each.rank == 1 else each.dims[0] for each in known}
        if len(rows) > 1:
            raise ShapeError(f"{node.label}: inputs have {sorted(rows)} rows; they must have the same number")
        widths = self._widths(node, [each.dims[-1] for each in known])
        return [check_size(node, FLOAT32, (rows.pop(), sum(widths)))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        arrays = [present(inputs, at) for at in range(len(inputs))]
        arrays = [each if each.ndim > 1 else each.reshape(1, -1) for each in arrays]
        parts = []
        for each, width in zip(arrays, self._widths(node, [each.shape[1] for each in arrays]), strict=True):
            part = each[:, :width].astype(np.float32)
            parts.append(np.pad(part, ((0, 0), (0, width - part.shape[1]))))
        return [np.concatenate(parts, axis=1)]
