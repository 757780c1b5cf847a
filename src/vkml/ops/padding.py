"""Operators that make a tensor larger by padding or repeating it: Pad and Tile."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOAT32, FLOATS, INT64
from vkml.ir.gradients import Emitter, T, converted, padded, reshaped, summed, zeros
from vkml.ir.graph import Constant, Node
from vkml.ir.lowering import CannotLower, Lowering, Table, V, given, known
from vkml.ir.operator import FLOAT, INTS, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import (
    array_values,
    contiguous,
    has_unknown_value,
    input_values,
    integers,
    list_value,
    normalise_axes,
    optional,
    present,
    require_same_dtype,
    required,
    unknown_shape,
)
from vkml.ops.limits import check_size
from vkml.ops.resample import box_mask, resampled, transposed_table
from vkml.ops.upgrading import NEWEST, attributes_to_inputs, constant_node, fresh_name, renew

PAD_MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True)
class PadGeometry:
    """Padding along every axis; a negative entry crops, before anything is added."""

    begins: tuple[int, ...]
    ends: tuple[int, ...]
    output: tuple[int, ...]


def pad_geometry(
    node: Node, x_shape: Sequence[int], pads: Sequence[int], axes: Sequence[int] | None = None
) -> PadGeometry:
    """Resolves Pad's inputs; `pads` holds all begins, then all ends.

    Raises:
        ShapeError: Lengths do not fit, more is cropped than there is, or nothing is there to repeat.
    """
    rank = len(x_shape)
    found = normalise_axes(node, range(rank) if axes is None else axes, rank)
    if len(pads) != 2 * len(found):
        raise ShapeError(
            f"{node.label}: pads has {len(pads)} entries for {len(found)} axes; two an axis are needed"
        )
    begins, ends = [0] * rank, [0] * rank
    for place, axis in enumerate(found):
        begins[axis], ends[axis] = pads[place], pads[len(found) + place]
    mode = node.attributes["mode"]
    for axis, size in enumerate(x_shape):
        # Asked so, an open number of places that may be 0 and is never less decides nothing.
        left = size + min(0, begins[axis]) + min(0, ends[axis])
        if mode == "constant" and left < 0 <= size + begins[axis] + ends[axis]:
            # One end takes away more than there is, and the other adds it again: nothing but the constant.
            begins[axis], ends[axis] = -size, size + begins[axis] + ends[axis]
            continue
        if left < 0 or (mode != "constant" and left == 0 and max(begins[axis], ends[axis]) > 0):
            raise ShapeError(
                f"{node.label}: pads {begins[axis]} and {ends[axis]} leave {left} elements of axis {axis} "
                f"(size {size}) for mode {mode!r}"
            )
    output = tuple(b + size + e for b, size, e in zip(begins, x_shape, ends, strict=True))
    return PadGeometry(tuple(begins), tuple(ends), output)


def pad_sources(mode: str, size: int, begin: int, end: int) -> Array:
    """For each output place along one axis, the input place it copies; -1 where it is the constant."""
    first, last = max(-begin, 0), size - max(-end, 0)
    count = last - first
    places = np.arange(-max(begin, 0), count + max(end, 0))
    if mode == "constant":
        return np.where((places >= 0) & (places < count), places + first, -1)
    if mode == "edge":
        places = places.clip(0, max(count - 1, 0))
    elif mode == "wrap":
        places = places % max(count, 1)
    else:
        period = max(2 * (count - 1), 1)
        places = places % period
        places = np.minimum(places, period - places) if count > 1 else np.zeros_like(places)
    return places + first


@operator()
class Pad(Operator):
    """Adds elements around a tensor (or crops, where pads are negative)."""

    inputs = (2, 4)
    attributes = {"mode": "constant"}
    value_inputs = (1, 3)
    attribute_types = {"paddings": INTS, "pads": INTS, "value": FLOAT}

    def saved(self, node: Node, tracks: Sequence[bool]) -> tuple[Collection[int], Collection[int]]:
        # PyTorch's kernels of these modes are given the input for its sizes.
        return (0,) if node.attributes["mode"] in ("reflect", "edge") else (), ()

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 11:
            return node
        key = "paddings" if node.version < 2 else "pads"
        value = node.attributes.get("value", 0.0)
        # The data's type is not known here; `infer` takes a float32 constant for every float type.
        return attributes_to_inputs(
            renew(node, attributes={"value": float(value)}), [(key, 1, INT64), ("value", 2, FLOAT32)]
        )

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        required(node, inputs, 1)
        if node.attributes["mode"] not in PAD_MODES:
            raise InvalidGraph(
                f"{node.label}: mode {node.attributes['mode']!r} is not one of {', '.join(PAD_MODES)}"
            )
        fill: Known | None = optional(inputs, 2)
        if fill is not None:
            if not (fill.dtype == FLOAT32 and x.dtype in FLOATS):
                require_same_dtype(node, x, fill, "constant_value")
            if fill.type.elements != 1:
                raise ShapeError(
                    f"{node.label}: constant_value must be a scalar, its shape is {list(fill.dims)}"
                )
        if has_unknown_value(inputs, (1, 3)):
            return [unknown_shape(x.dtype, x.rank)]
        pads, axes = input_values(node, inputs, 1, "pads"), input_values(node, inputs, 3, "axes")
        return [check_size(node, x.dtype, pad_geometry(node, x.dims, pads or (), axes).output)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, fill = present(inputs, 0), optional(inputs, 2)
        pads, axes = array_values(inputs, 1, 3)
        geometry = pad_geometry(node, x.shape, pads or (), axes)
        mode = node.attributes["mode"]
        if mode != "constant":
            result = x
            for axis, size in enumerate(x.shape):
                begin, end = geometry.begins[axis], geometry.ends[axis]
                if begin or end:
                    result = result.take(pad_sources(mode, size, begin, end), axis=axis)
            return [contiguous(result)]
        value = _zero(x.dtype) if fill is None else fill.reshape(())
        return [_pad_with(x, geometry, value)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        pads, _, axes = (*(_stated(build, view) for view in inputs[1:]), None, None)[:3]
        geometry = pad_geometry(node, x.shape, pads or (), axes)
        fill = optional(inputs, 2)
        return _lower_pad(build, x, geometry, node.attributes["mode"], fill)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, cotangent, fill = build.type_of(present(inputs, 0)), present(cotangents, 0), optional(inputs, 2)
        stated = [None if value is None else build.elements_of(value) for value in inputs]
        pads, axes = array_values([*stated, None, None], 1, 3)
        geometry, mode = pad_geometry(node, x.dims, pads or (), axes), node.attributes["mode"]
        by_x = by_fill = None
        if needed[0] and mode == "constant":
            by_x = padded(build, cotangent, [-b for b in geometry.begins], [-e for e in geometry.ends])
        elif needed[0]:
            by_x = resampled(build, cotangent, _collecting_tables(geometry, mode, x.dims))
        if fill is not None and needed[2] and mode == "constant":
            total = _sum_outside(build, cotangent, geometry, x.dims)
            type_ = build.type_of(fill)
            by_fill = reshaped(build, converted(build, total, type_.dtype), type_.dims)
        return [by_x, None, by_fill]


def _collecting_tables(geometry: PadGeometry, mode: str, x: Sequence[int]) -> list[Table | None]:
    """Tables by which each element collects what was taken of it."""
    tables: list[Table | None] = []
    for size, begin, end in zip(x, geometry.begins, geometry.ends, strict=True):
        sources = pad_sources(mode, size, begin, end)[:, None]
        changes = begin != 0 or end != 0
        tables.append(transposed_table(sources, np.ones(sources.shape), size) if changes else None)
    return tables


def _sum_outside(build: Emitter[T], cotangent: T, geometry: PadGeometry, x: Sequence[int]) -> T:
    """The sum of a cotangent where the output is what fills it."""
    insides: list[Array | None] = []
    for axis, (size, begin) in enumerate(zip(x, geometry.begins, strict=True)):
        places = np.arange(geometry.output[axis])
        insides.append((places >= max(begin, 0)) & (places < begin + size))
    mask = box_mask(build, insides)
    zero = build.constant(0, build.type_of(cotangent).dtype)
    outside = zero if mask is None else build.apply("Where", mask, zero, cotangent)
    return summed(build, outside, range(len(build.type_of(outside).dims)))


def _stated(build: Lowering[V], view: V | None) -> tuple[int, ...] | None:
    """The integers of a constant input of a lowering; None where it is absent or computed."""
    if view is None or not view.dtype.is_integer:
        return None
    stated = build.contents(view)
    return None if stated is None else integers(stated)


def _lower_pad(
    build: Lowering[V], x: V, geometry: PadGeometry, mode: str, fill: V | None
) -> Sequence[V | None]:
    cropped = x.slice(
        [max(-begin, 0) for begin in geometry.begins],
        [1] * len(x.shape),
        [
            size + min(b, 0) + min(e, 0)
            for size, b, e in zip(x.shape, geometry.begins, geometry.ends, strict=True)
        ],
    )
    if cropped.shape == tuple(geometry.output):
        return [cropped]
    return build.pad(cropped, [max(b, 0) for b in geometry.begins], mode, fill)


def _pad_with(x: Array, geometry: PadGeometry, value: object) -> Array:
    """`x` cropped and padded with one value."""
    result: Array = np.full(geometry.output, value, dtype=x.dtype)
    source = tuple(
        slice(max(-b, 0), size - max(-e, 0))
        for b, size, e in zip(geometry.begins, x.shape, geometry.ends, strict=True)
    )
    target = tuple(
        slice(max(b, 0), size - max(e, 0))
        for b, size, e in zip(geometry.begins, geometry.output, geometry.ends, strict=True)
    )
    result[target] = x[source]
    return result


def _zero(dtype: np.dtype[np.generic]) -> object:
    return "" if dtype == np.object_ else 0


@operator()
class Tile(Operator):
    """Repeats a tensor along each axis."""

    inputs = (2, 2)
    value_inputs = (1,)

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 6:
            return node
        # Opset 1 repeats one axis: inputs (x, tiles, axis), the last two scalars of x's type.
        x, tiles, axis = node.inputs
        names = {key: fresh_name(node, key) for key in ("shape", "rank", "ones", "one", "repeats")}
        made = [
            Node("Shape", (x,), (names["shape"],), version=NEWEST),
            Node("Shape", (names["shape"],), (names["rank"],), version=NEWEST),
            constant_node(names["one"], [1]),
            Node(
                "ConstantOfShape",
                (names["rank"],),
                (names["ones"],),
                {"value": Constant(INT64, (1,), np.ones(1, np.int64))},
                version=NEWEST,
            ),
        ]
        for key, source in (("tiles", tiles), ("axis", axis)):
            cast, flat = fresh_name(node, key + "_int"), fresh_name(node, key + "_list")
            made.append(Node("Cast", (source,), (cast,), {"to": INT64.code}, version=NEWEST))
            made.append(Node("Reshape", (cast, names["one"]), (flat,), version=NEWEST))
        scatter = (names["ones"], fresh_name(node, "axis_list"), fresh_name(node, "tiles_list"))
        made.append(Node("ScatterElements", scatter, (names["repeats"],), version=NEWEST))
        return [*made, renew(node, inputs=(x, names["repeats"]))]

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, repeats_input = required(node, inputs, 0), required(node, inputs, 1)
        repeats = list_value(node, repeats_input, "repeats")
        if repeats is None:
            return [unknown_shape(x.dtype, x.rank)]
        if len(repeats) != x.rank or any(count < 0 for count in repeats):
            raise ShapeError(
                f"{node.label}: repeats {list(repeats)} must hold a count of 0 or more "
                f"for each axis of {list(x.dims)}"
            )
        return [
            check_size(node, x.dtype, [size * count for size, count in zip(x.dims, repeats, strict=True)])
        ]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, repeats = present(inputs, 0), integers(present(inputs, 1))
        whole = [size * count for size, count in zip(x.shape, repeats, strict=True)]
        if 0 in whole:
            return [np.empty(whole, dtype=x.dtype)]
        # In one step: numpy.tile goes axis by axis, through tensors that may be larger than the result.
        split = tuple(part for size in x.shape for part in (1, size))
        spread = tuple(part for pair in zip(repeats, x.shape, strict=True) for part in pair)
        return [contiguous(np.broadcast_to(x.reshape(split), spread)).reshape(whole)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, repeats = given(inputs, 0), integers(known(build, given(inputs, 1)))
        made = build.output(build.result())
        # Every axis as (repeats, size), the repeats steps of 0 through the input.
        split = tuple(part for size in x.shape for part in (1, size))
        spread = tuple(part for pair in zip(repeats, x.shape, strict=True) for part in pair)
        target = made.reshape(spread)
        if target is None:
            raise CannotLower("Tile cannot write into these strides")
        build.copy(build.reshape(x, split).expand(spread), target)
        return [made]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, repeats = build.type_of(present(inputs, 0)), build.elements_of(present(inputs, 1))
        assert repeats is not None, "the repeats decide the shape"
        if 0 in build.type_of(outputs[0]).dims:
            return [zeros(build, x)]
        split = [part for pair in zip(integers(repeats), x.dims, strict=True) for part in pair]
        copies = [2 * axis for axis in range(len(x.dims)) if split[2 * axis] != 1]
        apart = reshaped(build, present(cotangents, 0), split)
        return [reshaped(build, summed(build, apart, copies), x.dims)]


def center_crop_pad_geometry(
    node: Node, x_shape: Sequence[int], shape: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """CenterCropPad as pads: begins and ends along every axis, negative where it crops."""
    stated = node.attributes["axes"]
    axes = range(len(x_shape)) if stated is None else normalise_axes(node, stated, len(x_shape))
    if len(shape) != len(axes) or any(size < 0 for size in shape):
        raise ShapeError(f"{node.label}: shape {list(shape)} must hold a size for each of {len(axes)} axes")
    begins, ends = [0] * len(x_shape), [0] * len(x_shape)
    for axis, size in zip(axes, shape, strict=True):
        change = size - x_shape[axis]
        # An odd change takes (or adds) the smaller half in front, also when it is negative.
        begins[axis] = change // 2 if change > 0 else -(-change // 2)
        ends[axis] = change - begins[axis]
    return tuple(begins), tuple(ends)


@operator()
class CenterCropPad(Operator):
    """Crops or zero-pads axes around their centre to given sizes."""

    inputs = (2, 2)
    attributes = {"axes": None}
    value_inputs = (1,)
    attribute_types = {"axes": INTS}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        required(node, inputs, 1)
        if has_unknown_value(inputs, (1,)):
            return [unknown_shape(x.dtype, x.rank)]
        begins, ends = center_crop_pad_geometry(node, x.dims, input_values(node, inputs, 1, "shape") or ())
        return [check_size(node, x.dtype, [b + n + e for b, n, e in zip(begins, x.dims, ends, strict=True)])]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        begins, ends = center_crop_pad_geometry(node, x.shape, array_values(inputs, 1)[0] or ())
        output = tuple(b + n + e for b, n, e in zip(begins, x.shape, ends, strict=True))
        return [_pad_with(x, PadGeometry(begins, ends, output), _zero(x.dtype))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        shape = integers(known(build, given(inputs, 1)))
        begins, ends = center_crop_pad_geometry(node, x.shape, shape)
        return _lower_pad(build, x, PadGeometry(begins, ends, build.result().dims), "constant", None)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, shape = build.type_of(present(inputs, 0)), build.elements_of(present(inputs, 1))
        assert shape is not None, "the sizes decide the shape"
        begins, ends = center_crop_pad_geometry(node, x.dims, integers(shape))
        return [padded(build, present(cotangents, 0), [-b for b in begins], [-e for e in ends])]
