"""Normalisations: over batches, channels, groups or trailing axes, then scaled and shifted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, NotImplemented, ShapeError
from vkml.ir.dtypes import FLOAT32, FLOAT64, FLOATS, INT64, DType
from vkml.ir.gradients import Emitter, T, converted, pointwise, reshaped
from vkml.ir.gradients import widened as widened_value
from vkml.ir.graph import Node
from vkml.ir.lowering import BodyWriter, Lowering, V, all_given, given
from vkml.ir.operator import INT, INTS, REQUIRED, Array, Operator, operator
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import (
    normalise_axis,
    optional,
    present,
    require_dtype,
    require_rank,
    require_same_dtype,
    required,
)
from vkml.ops.moments import mean_along
from vkml.ops.norm_gradients import (
    affine_vjp,
    batch_vjp,
    by_statistics,
    channel_lanes,
    inverse_root,
)
from vkml.ops.pointwise import widened
from vkml.ops.upgrading import NEWEST, constant_node, fresh_name, renew


def per_channel(vector: Array, rank: int) -> Array:
    """A vector shaped to meet axis 1 of a tensor of `rank` axes."""
    return widened(vector).reshape(-1, *(1,) * (rank - 2))


def _channel_view(build: Lowering[V], view: V, rank: int) -> V:
    """A vector's view shaped to meet axis 1 of a tensor of `rank` axes."""
    return build.reshape(view, (view.shape[0], *(1,) * (rank - 2)))


def _check_vector(node: Node, found: Known, length: int, what: str) -> None:
    require_dtype(node, found, FLOATS, what)
    if found.dims != (length,):
        raise ShapeError(f"{node.label}: {what} must have shape [{length}], it has {list(found.dims)}")


def _standardise(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """``(x - mean) / sqrt(variance + epsilon)`` over `axes`, with the mean and the inverse deviation."""
    with np.errstate(all="ignore"):
        mean = mean_along(x, axes)
        centred = x - mean
        variance = mean_along(np.square(centred), axes)
        inverse = 1 / np.sqrt(variance + x.dtype.type(epsilon))
        return centred * inverse, mean, inverse


@operator()
class BatchNormalization(Operator):
    """Normalises each channel, by stored statistics or (training_mode) by those of the batch."""

    inputs = (5, 5)
    outputs = (1, 3)
    statistic_inputs = (3, 4)
    is_stepwise = True
    """In training: then its steps stand for it everywhere."""
    attributes = {"epsilon": 1e-5, "momentum": 0.9, "training_mode": 0}
    attribute_types = {"consumed_inputs": INTS, "is_test": INT, "spatial": INT}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 14:
            return node
        # Before opset 14 the number of outputs told training from inference; `is_test` of opset 6 agrees.
        is_training = any(node.outputs[1:]) and not node.attributes.get("is_test", 0)
        is_spatial = bool(node.attributes.get("spatial", 1))
        dropped = ("consumed_inputs", "is_test", "spatial")
        if is_spatial:
            outputs = node.outputs[:3] if is_training else node.outputs[:1]
            mode = {"training_mode": int(is_training)}
            return renew(node, outputs=outputs, drop=dropped, attributes=mode)
        if is_training:
            raise NotImplemented(f"{node.label}: training with spatial=0 is not supported")
        return _per_activation(node)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 1)
        channels = x.dims[1] if x.rank > 1 else 1
        for index, what in ((1, "scale"), (2, "B"), (3, "input_mean"), (4, "input_var")):
            _check_vector(node, required(node, inputs, index), channels, what)
        if len(node.outputs) > 1 and not node.attributes["training_mode"]:
            raise InvalidGraph(f"{node.label}: running statistics are outputs of training_mode=1 only")
        statistics = required(node, inputs, 3).dtype, required(node, inputs, 4).dtype
        made = [static(x.dtype, x.dims), *(static(dtype, (channels,)) for dtype in statistics)]
        return made[: len(node.outputs)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, scale, bias, mean, variance = (present(inputs, index) for index in range(5))
        epsilon, momentum = node.attributes["epsilon"], node.attributes["momentum"]
        wide, rank = widened(x), x.ndim
        running: list[Array] = []
        if node.attributes["training_mode"]:
            axes = (0, *range(2, rank))
            old_mean, old_variance = mean, variance
            with np.errstate(all="ignore"):
                kept = mean_along(wide, axes)
                mean, variance = kept.reshape(-1), mean_along(np.square(wide - kept), axes).reshape(-1)
            for old, new in ((old_mean, mean), (old_variance, variance)):
                mixed = widened(old) * momentum + new * (1 - momentum)
                running.append(np.asarray(mixed).astype(old.dtype))
        with np.errstate(all="ignore"):
            # One multiply and one add an element: the channel's factors are folded first.
            factor = widened(scale) / np.sqrt(widened(variance) + wide.dtype.type(epsilon))
            offset = widened(bias) - widened(mean) * factor
            result = wide * per_channel(factor, rank) + per_channel(offset, rank)
        return [result.astype(x.dtype, copy=False), *running][: len(node.outputs)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        if FLOAT64 in {view.dtype for view in all_given(inputs)} != {FLOAT64}:
            return None
        if node.attributes["training_mode"]:
            return None  # its steps are others
        vectors = [_channel_view(build, view, len(x.shape)) for view in all_given(inputs)[1:]]

        def write(body: BodyWriter, x: str, scale: str, bias: str, mean: str, variance: str) -> str:
            deviation = body(
                "Sqrt", body("Add", variance, body.constant(node.attributes["epsilon"], variance))
            )
            factor = body("Div", scale, deviation)
            offset = body("Sub", bias, body("Mul", mean, factor))
            return str(body("Add", body("Mul", x, factor), offset))

        return [build.compute(write, [x, *vectors], build.output(build.result()), label="batch_norm")]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        if not node.attributes["training_mode"]:
            return None
        x, scale, bias, *stored = (present(inputs, index) for index in range(5))
        type_ = build.type_of(x)
        lanes, momentum = channel_lanes(type_.dims), node.attributes["momentum"]
        axes = tuple(axis for axis in range(type_.rank) if axis != 1)
        found = build.apply_all("Moments", [x], 2, domain="vkml", axes=axes)
        inverse = inverse_root(build, found[1], node.attributes["epsilon"])
        scale, bias = (reshaped(build, vector, lanes) for vector in (scale, bias))

        def normalised(x: Scalar, scale: Scalar, bias: Scalar, mean: Scalar, inverse: Scalar) -> Scalar:
            return (x - mean) * (scale * inverse) + bias

        def mixed(old: Scalar, new: Scalar) -> Scalar:
            made: Scalar = old * momentum + new * (1 - momentum)
            return made

        made = pointwise(build, normalised, x, scale, bias, found[0], inverse, dtype=type_.dtype)
        running = [
            pointwise(build, mixed, old, reshaped(build, new, build.type_of(old).dims))
            for old, new in zip(stored, found, strict=True)
        ]
        return [made, *running][: len(node.outputs)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        epsilon = node.attributes["epsilon"]
        if node.attributes["training_mode"]:
            momentum = node.attributes["momentum"]
            return batch_vjp(build, inputs, cotangents, needed, epsilon=epsilon, momentum=momentum)
        given = [present(inputs, at) for at in range(5)]
        return by_statistics(build, given, present(cotangents, 0), epsilon, needed)


def _per_activation(node: Node) -> list[Node]:
    """BatchNormalization with spatial=0: every place of [C, *spatial] has its own statistics."""
    x, scale, bias, mean, variance = node.inputs
    names = {
        key: fresh_name(node, key)
        for key in ("constant", "epsilon", "shifted", "deviation", "centred", "ratio", "scaled")
    }
    epsilon = constant_node(names["constant"], node.attributes.get("epsilon", 1e-5), FLOAT32)
    steps = (
        ("CastLike", (names["constant"], variance), names["epsilon"]),
        ("Add", (variance, names["epsilon"]), names["shifted"]),
        ("Sqrt", (names["shifted"],), names["deviation"]),
        ("Sub", (x, mean), names["centred"]),
        ("Div", (names["centred"], names["deviation"]), names["ratio"]),
        ("Mul", (names["ratio"], scale), names["scaled"]),
        ("Add", (names["scaled"], bias), node.outputs[0]),
    )
    return [epsilon, *(Node(op, sources, (target,), version=NEWEST) for op, sources, target in steps)]


@operator()
class InstanceNormalization(Operator):
    """Normalises each channel of each sample over its spatial axes."""

    inputs = (3, 3)
    attributes = {"epsilon": 1e-5}
    attribute_types = {"consumed_inputs": INTS}

    def upgrade(self, node: Node) -> Node:
        return renew(node, drop=["consumed_inputs"]) if node.version < 6 else node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 3)
        for index, what in ((1, "scale"), (2, "B")):
            vector = required(node, inputs, index)
            require_same_dtype(node, x, vector, what)
            _check_vector(node, vector, x.dims[1], what)
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, scale, bias = (present(inputs, index) for index in range(3))
        normal, _, _ = _standardise(widened(x), tuple(range(2, x.ndim)), node.attributes["epsilon"])
        result = normal * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)
        return [result.astype(x.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        scale, bias = (
            _channel_view(build, view, len(x.shape)).expand(x.shape) for view in all_given(inputs)[1:]
        )
        epsilon = node.attributes["epsilon"]
        return build.normalise(x, len(x.shape) - 2, epsilon, scale, bias, is_centred=True)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        dims = build.type_of(present(inputs, 0)).dims
        lanes = [channel_lanes(dims)] * 2
        return affine_vjp(
            build, inputs, cotangents, needed, view=dims, axes=range(2, len(dims)), lanes=lanes,
            epsilon=node.attributes["epsilon"],
        )  # fmt: skip


@operator()
class GroupNormalization(Operator):
    """Normalises groups of channels of each sample, then scales and shifts.

    Opset 21 has one scale a channel; opset 18 had one a group. Both are accepted, told apart by their length.
    """

    inputs = (3, 3)
    attributes = {"epsilon": 1e-5, "num_groups": REQUIRED, "stash_type": 1}
    attribute_types = {"num_groups": INT}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, groups = required(node, inputs, 0), int(node.attributes["num_groups"])
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 2)
        channels = x.dims[1]
        if groups < 1 or channels % groups:
            raise ShapeError(f"{node.label}: {channels} channels do not divide into {groups} groups")
        for index, what in ((1, "scale"), (2, "bias")):
            vector = required(node, inputs, index)
            require_same_dtype(node, x, vector, what)
            if vector.dims not in ((channels,), (groups,)):
                raise ShapeError(
                    f"{node.label}: {what} must have one entry for each of {channels} channels, "
                    f"its shape is {list(vector.dims)}"
                )
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, scale, bias = (present(inputs, index) for index in range(3))
        batch, channels = x.shape[:2]
        groups = int(node.attributes["num_groups"])
        grouped = widened(x).reshape(batch, groups, channels // groups * math.prod(x.shape[2:]))
        normal, _, _ = _standardise(grouped, (2,), node.attributes["epsilon"])
        normal = normal.reshape(x.shape)
        factors = [
            vector if vector.size == channels else vector.repeat(channels // groups)
            for vector in (scale, bias)
        ]
        result = normal * per_channel(factors[0], x.ndim) + per_channel(factors[1], x.ndim)
        return [result.astype(x.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, groups = given(inputs, 0), int(node.attributes["num_groups"])
        batch, channels = x.shape[:2]
        per_group = channels // groups
        grouped = build.reshape(x, (batch, groups, per_group, math.prod(x.shape[2:])))
        factors = []
        for view in all_given(inputs)[1:]:
            is_per_channel = view.shape[0] == channels
            lanes = build.reshape(view, (groups, per_group, 1) if is_per_channel else (groups, 1, 1))
            factors.append(lanes.expand(grouped.shape))
        epsilon = node.attributes["epsilon"]
        return build.normalise(grouped, 2, epsilon, factors[0], factors[1], is_centred=True)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        dims, groups = build.type_of(present(inputs, 0)).dims, int(node.attributes["num_groups"])
        view = (dims[0], groups, dims[1] // groups, math.prod(dims[2:]))
        sizes = [build.type_of(present(inputs, at)).elements for at in (1, 2)]
        lanes = [(groups, size // groups, 1) for size in sizes]
        return affine_vjp(
            build, inputs, cotangents, needed, view=view, axes=(2, 3), lanes=lanes,
            epsilon=node.attributes["epsilon"],
        )  # fmt: skip


@dataclass(frozen=True)
class RowGeometry:
    """A normalisation over trailing axes as ``rows`` independent rows of ``columns`` elements."""

    axis: int
    rows: int
    columns: int
    statistics: tuple[int, ...]
    """Shape of the mean and the inverse deviation: the input's, with 1 on the normalised axes."""


def row_geometry(node: Node, x_shape: Sequence[int]) -> RowGeometry:
    """Resolves `axis` of LayerNormalization and RMSNormalization."""
    axis = normalise_axis(node, node.attributes["axis"], len(x_shape))
    statistics = (*x_shape[:axis], *(1,) * (len(x_shape) - axis))
    return RowGeometry(axis, math.prod(x_shape[:axis]), math.prod(x_shape[axis:]), statistics)


def _check_row_vector(node: Node, x: Known, vector: Known, what: str) -> None:
    """Scale and bias broadcast one-way to the input."""
    require_dtype(node, vector, FLOATS, what)
    aligned = zip(reversed(vector.dims), reversed(x.dims), strict=False)
    if vector.rank > x.rank or any(size not in (1, full) for size, full in aligned):
        raise ShapeError(
            f"{node.label}: {what} of shape {list(vector.dims)} does not broadcast to {list(x.dims)}"
        )


def _stash_dtype(node: Node) -> DType:
    code = node.attributes["stash_type"]
    if code != FLOAT32.code:
        raise NotImplemented(f"{node.label}: stash_type {code} is not supported; 1 (float) is")
    return FLOAT32


@operator()
class LayerNormalization(Operator):
    """Normalises over trailing axes, then scales and shifts; also gives mean and inverse deviation."""

    inputs = (2, 3)
    outputs = (1, 3)
    attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    is_anchor = True
    is_prologue = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, scale, bias = required(node, inputs, 0), required(node, inputs, 1), optional(inputs, 2)
        require_dtype(node, x, FLOATS, "the input")
        _check_row_vector(node, x, scale, "Scale")
        if bias is not None:
            _check_row_vector(node, x, bias, "B")
        statistics = static(_stash_dtype(node), row_geometry(node, x.dims).statistics)
        return [static(x.dtype, x.dims), statistics, statistics][: len(node.outputs)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, scale, bias = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        axes = tuple(range(row_geometry(node, x.shape).axis, x.ndim))
        normal, mean, inverse = _standardise(widened(x), axes, node.attributes["epsilon"])
        result = normal * widened(scale)
        if bias is not None:
            result = result + widened(bias)
        stash = _stash_dtype(node).storage
        made = [result.astype(x.dtype, copy=False), mean.astype(stash), inverse.astype(stash)]
        return made[: len(node.outputs)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        if len([name for name in node.outputs if name]) > 1:
            return None
        return _lower_rows(build, node, inputs, is_centred=True)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, scale, bias = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        type_ = build.type_of(x)
        axes = build.constant(range(row_geometry(node, type_.dims).axis, type_.rank), INT64)
        wide = widened_value(build, x)
        dtype = build.type_of(wide).dtype
        mean = build.apply("ReduceMean", wide, axes)
        centred = build.apply("Sub", wide, mean)
        square = build.apply("ReduceMean", build.apply("Mul", centred, centred), axes)
        epsilon = build.constant(node.attributes["epsilon"], dtype)
        deviation = build.apply("Sqrt", build.apply("Add", square, epsilon))
        inverse = build.apply("Reciprocal", deviation)
        made = build.apply("Mul", build.apply("Mul", centred, inverse), widened_value(build, scale))
        if bias is not None:
            made = build.apply("Add", made, widened_value(build, bias))
        stash = _stash_dtype(node)
        results = [
            converted(build, made, type_.dtype),
            converted(build, mean, stash),
            converted(build, inverse, stash),
        ]
        return results[: len(node.outputs)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return _rows_vjp(build, node, inputs, cotangents, needed, is_centred=True)


@operator()
class RMSNormalization(Operator):
    """Divides by the root of the mean square over trailing axes, then scales."""

    inputs = (2, 2)
    attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    is_anchor = True
    is_prologue = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, scale = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, FLOATS, "the input")
        _check_row_vector(node, x, scale, "scale")
        _stash_dtype(node)
        row_geometry(node, x.dims)
        return [static(scale.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, scale = present(inputs, 0), present(inputs, 1)
        axes = tuple(range(row_geometry(node, x.shape).axis, x.ndim))
        wide = widened(x)
        with np.errstate(all="ignore"):
            square = mean_along(np.square(wide), axes)
            result = wide / np.sqrt(square + wide.dtype.type(node.attributes["epsilon"])) * widened(scale)
        return [result.astype(scale.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return _lower_rows(build, node, inputs, is_centred=False)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return _rows_vjp(build, node, inputs, cotangents, needed, is_centred=False)


def _lower_rows(
    build: Lowering[V], node: Node, inputs: Sequence[V | None], *, is_centred: bool
) -> Sequence[V | None]:
    x, scale, bias = given(inputs, 0), given(inputs, 1), optional(inputs, 2)
    axes = len(x.shape) - row_geometry(node, x.shape).axis
    return build.normalise(
        x,
        axes,
        node.attributes["epsilon"],
        scale.expand(x.shape),
        None if bias is None else bias.expand(x.shape),
        is_centred=is_centred,
    )


def _rows_vjp(
    build: Emitter[T], node: Node, inputs: Sequence[T | None], cotangents: Sequence[T | None],
    needed: Sequence[bool], *, is_centred: bool,
) -> Sequence[T | None]:  # fmt: skip
    dims = build.type_of(present(inputs, 0)).dims
    lanes = [() if vector is None else build.type_of(vector).dims for vector in inputs[1:]]
    return affine_vjp(
        build, inputs, cotangents, needed, view=dims, axes=range(row_geometry(node, dims).axis, len(dims)),
        lanes=lanes, epsilon=node.attributes["epsilon"], is_centred=is_centred,
    )  # fmt: skip
