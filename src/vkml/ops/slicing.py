"""Operators that cut tensors apart, join them or repeat them: Concat, Split, Slice, Pad, Tile and kin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOAT32, INT64
from vkml.ir.graph import Constant, Node
from vkml.ir.operator import MANY, REQUIRED, Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import (
    contiguous,
    has_unknown_value,
    integers,
    list_value,
    normalise_axes,
    normalise_axis,
    optional,
    present,
    refuse_packed,
    require_rank,
    require_same_dtype,
    required,
    unknown_shape,
)
from vkml.ops.limits import check_size
from vkml.ops.upgrading import NEWEST, attributes_to_inputs, constant_node, fresh_name, renew


def _values(node: Node, inputs: Sequence[Known | None], index: int, what: str) -> tuple[int, ...] | None:
    """The integers of a constant input whose value is known; None where the input is absent."""
    found: Known | None = optional(inputs, index)
    return None if found is None else list_value(node, found, what)


def _arrays(inputs: Sequence[Array | None], *indices: int) -> list[tuple[int, ...] | None]:
    found = [optional(inputs, index) for index in indices]
    return [None if array is None else integers(array) for array in found]


def concat_geometry(node: Node, shapes: Sequence[Sequence[int]]) -> tuple[int, tuple[int, ...]]:
    """The axis that Concat joins along and the output's shape."""
    axis = normalise_axis(node, node.attributes["axis"], len(shapes[0]))
    for index, shape in enumerate(shapes):
        if len(shape) != len(shapes[0]) or any(
            a != b for place, (a, b) in enumerate(zip(shapes[0], shape, strict=True)) if place != axis
        ):
            raise ShapeError(
                f"{node.label}: input {index} of shape {list(shape)} cannot be joined to input 0 of shape "
                f"{list(shapes[0])} along axis {axis}"
            )
    total = sum(shape[axis] for shape in shapes)
    return axis, (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


@operator()
class Concat(Operator):
    """Joins tensors along an axis."""

    inputs = (1, MANY)
    attributes = {"axis": REQUIRED}

    def upgrade(self, node: Node) -> Node:
        return renew(node, attributes={"axis": node.attributes.get("axis", 1)}) if node.version < 4 else node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        parts = [required(node, inputs, index) for index in range(len(inputs))]
        refuse_packed(node, *parts)
        for index, part in enumerate(parts):
            require_rank(node, part, 1, what=f"input {index}")
            require_same_dtype(node, parts[0], part, f"input {index}")
        return [check_size(node, parts[0].dtype, concat_geometry(node, [part.dims for part in parts])[1])]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        parts = [present(inputs, index) for index in range(len(inputs))]
        axis, _ = concat_geometry(node, [part.shape for part in parts])
        return [np.concatenate(parts, axis=axis)]

    def lower(self, build: Any, node: Node, inputs: Sequence[Any]) -> Sequence[Any] | None:
        return build.concat(inputs, concat_geometry(node, [part.shape for part in inputs])[0])  # type: ignore[no-any-return]


def split_geometry(
    node: Node, x_shape: Sequence[int], lengths: Sequence[int] | None
) -> tuple[int, tuple[int, ...]]:
    """The axis that Split cuts and the length of each part."""
    axis = normalise_axis(node, node.attributes["axis"], len(x_shape))
    size, count = x_shape[axis], len(node.outputs)
    if lengths is not None:
        if len(lengths) != count or sum(lengths) != size or any(length < 0 for length in lengths):
            raise ShapeError(
                f"{node.label}: lengths {list(lengths)} do not cut axis {axis} of size {size} into {count} outputs"
            )
        return axis, tuple(lengths)
    stated = node.attributes["num_outputs"]
    if stated is not None and stated != count:
        raise InvalidGraph(f"{node.label}: num_outputs is {stated}, the node has {count} outputs")
    part = -(-size // count)
    parts = tuple(max(min(part, size - index * part), 0) for index in range(count))
    return axis, parts


@operator()
class Split(Operator):
    """Cuts a tensor along an axis into parts of given or equal lengths (the last may be shorter)."""

    inputs = (1, 2)
    outputs = (1, MANY)
    attributes = {"axis": 0, "num_outputs": None}
    value_inputs = (1,)

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        return attributes_to_inputs(node, [("split", 1, INT64)]) if node.version < 13 else node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        refuse_packed(node, x)
        if has_unknown_value(inputs, (1,)):
            axis = normalise_axis(node, node.attributes["axis"], x.rank)
            cut = TensorType(x.dtype, (*x.dims[:axis], None, *x.dims[axis + 1 :]))
            return [cut] * len(node.outputs)
        axis, parts = split_geometry(node, x.dims, _values(node, inputs, 1, "split"))
        return [static(x.dtype, (*x.dims[:axis], part, *x.dims[axis + 1 :])) for part in parts]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        axis, parts = split_geometry(node, x.shape, _arrays(inputs, 1)[0])
        return [contiguous(part) for part in np.split(x, np.cumsum(parts)[:-1], axis=axis)]

    def lower(self, build: Any, node: Node, inputs: Sequence[Any]) -> Sequence[Any] | None:
        x = inputs[0]
        lengths = None if len(inputs) < 2 or inputs[1] is None else integers(inputs[1].buffer.constant.array)
        axis, parts = split_geometry(node, x.shape, lengths)
        made, start = [], 0
        for part in parts:
            starts = [start if a == axis else 0 for a in range(len(x.shape))]
            shape = [part if a == axis else size for a, size in enumerate(x.shape)]
            made.append(x.slice(starts, [1] * len(shape), shape))
            start += part
        return made


@dataclass(frozen=True)
class SliceGeometry:
    """Output element i along an axis is input element ``starts + i * steps``; one entry an axis of the input."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int, ...]


def slice_geometry(
    node: Node,
    x_shape: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> SliceGeometry:
    """Resolves Slice's inputs: negative and out-of-range bounds, negative steps, missing axes.

    Raises:
        ShapeError: The lists differ in length, a step is 0, or an axis is wrong.
    """
    found = normalise_axes(node, range(len(starts)) if axes is None else axes, len(x_shape))
    strides = (1,) * len(starts) if steps is None else tuple(steps)
    if not len(starts) == len(ends) == len(found) == len(strides):
        raise ShapeError(
            f"{node.label}: starts, ends, axes and steps have {len(starts)}, {len(ends)}, {len(found)} and "
            f"{len(strides)} entries; they must have equally many"
        )
    begin, step, size = [0] * len(x_shape), [1] * len(x_shape), list(x_shape)
    for axis, start, end, stride in zip(found, starts, ends, strides, strict=True):
        if stride == 0:
            raise ShapeError(f"{node.label}: the step along axis {axis} is 0")
        full = x_shape[axis]
        first, last = start + full * (start < 0), end + full * (end < 0)
        if stride > 0:
            first, last = min(max(first, 0), full), min(max(last, 0), full)
        else:
            # Unlike in NumPy, a start before the tensor is moved onto its first element.
            first, last = max(min(first, full - 1), 0), max(min(last, full - 1), -1)
        begin[axis], step[axis] = first, stride
        size[axis] = max(-((first - last) // stride), 0) if full else 0
    return SliceGeometry(tuple(begin), tuple(step), tuple(size))


def slices_of(geometry: SliceGeometry) -> tuple[slice, ...]:
    """The geometry as NumPy slices."""
    made = []
    for start, step, size in zip(geometry.starts, geometry.steps, geometry.sizes, strict=True):
        end = start + size * step
        made.append(slice(0, 0) if size == 0 else slice(start, end if end >= 0 else None, step))
    return tuple(made)


@operator()
class Slice(Operator):
    """Cuts a strided box out of a tensor."""

    inputs = (3, 5)
    value_inputs = (1, 2, 3, 4)

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version < 10:
            return attributes_to_inputs(node, [("starts", 1, INT64), ("ends", 2, INT64), ("axes", 3, INT64)])
        return node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        required(node, inputs, 1)
        required(node, inputs, 2)
        refuse_packed(node, x)
        if has_unknown_value(inputs, (1, 2, 3, 4)):
            axes = _values(node, inputs, 3, "axes") if not has_unknown_value(inputs, (3,)) else None
            cut = range(x.rank) if axes is None else normalise_axes(node, axes, x.rank)
            return [TensorType(x.dtype, tuple(None if a in cut else size for a, size in enumerate(x.dims)))]
        starts, ends = _values(node, inputs, 1, "starts"), _values(node, inputs, 2, "ends")
        axes, steps = _values(node, inputs, 3, "axes"), _values(node, inputs, 4, "steps")
        return [static(x.dtype, slice_geometry(node, x.dims, starts or (), ends or (), axes, steps).sizes)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        starts, ends, axes, steps = _arrays(inputs, 1, 2, 3, 4)
        return [
            contiguous(x[slices_of(slice_geometry(node, x.shape, starts or (), ends or (), axes, steps))])
        ]

    def lower(self, build: Any, node: Node, inputs: Sequence[Any]) -> Sequence[Any] | None:
        given = [None if view is None else integers(view.buffer.constant.array) for view in inputs[1:]]
        starts, ends, axes, steps = (*given, None, None)[:4]
        geometry = slice_geometry(node, inputs[0].shape, starts or (), ends or (), axes, steps)
        return [inputs[0].slice(geometry.starts, geometry.steps, geometry.sizes)]


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
        left = size + min(begins[axis], 0) + min(ends[axis], 0)
        adds = max(begins[axis], ends[axis]) > 0
        if left < 0 or (left == 0 and adds and mode != "constant"):
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
        refuse_packed(node, x)
        if node.attributes["mode"] not in PAD_MODES:
            raise InvalidGraph(
                f"{node.label}: mode {node.attributes['mode']!r} is not one of {', '.join(PAD_MODES)}"
            )
        fill: Known | None = optional(inputs, 2)
        if fill is not None:
            if not (fill.dtype == FLOAT32 and x.dtype.is_float):
                require_same_dtype(node, x, fill, "constant_value")
            if fill.type.elements != 1:
                raise ShapeError(
                    f"{node.label}: constant_value must be a scalar, its shape is {list(fill.dims)}"
                )
        if has_unknown_value(inputs, (1, 3)):
            return [unknown_shape(x.dtype, x.rank)]
        pads, axes = _values(node, inputs, 1, "pads"), _values(node, inputs, 3, "axes")
        return [check_size(node, x.dtype, pad_geometry(node, x.dims, pads or (), axes).output)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, fill = present(inputs, 0), optional(inputs, 2)
        pads, axes = _arrays(inputs, 1, 3)
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
        result = np.full(geometry.output, value, dtype=x.dtype)
        source = tuple(
            slice(max(-b, 0), size - max(-e, 0))
            for b, size, e in zip(geometry.begins, x.shape, geometry.ends, strict=True)
        )
        target = tuple(
            slice(max(b, 0), size - max(e, 0))
            for b, size, e in zip(geometry.begins, geometry.output, geometry.ends, strict=True)
        )
        result[target] = x[source]
        return [result]


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
        refuse_packed(node, x)
        repeats = list_value(node, repeats_input, "repeats")
        if repeats is None:
            return [unknown_shape(x.dtype, x.rank)]
        if len(repeats) != x.rank or any(count < 0 for count in repeats):
            raise ShapeError(
                f"{node.label}: repeats {list(repeats)} must hold a count of 0 or more for each axis of {list(x.dims)}"
            )
        return [
            check_size(node, x.dtype, [size * count for size, count in zip(x.dims, repeats, strict=True)])
        ]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [np.tile(present(inputs, 0), integers(present(inputs, 1)))]


@operator()
class Trilu(Operator):
    """Keeps one triangle of the last two axes and zeroes the other."""

    inputs = (1, 2)
    attributes = {"upper": 1}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, k = required(node, inputs, 0), optional(inputs, 1)
        refuse_packed(node, x)
        require_rank(node, x, 2)
        if k is not None and k.type.elements != 1:
            raise ShapeError(f"{node.label}: k must be a scalar, its shape is {list(k.dims)}")
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, k = present(inputs, 0), optional(inputs, 1)
        rows, columns = x.shape[-2:]
        # Clamped: a hostile k near the ends of int64 would overflow the comparison.
        diagonal = 0 if k is None else max(min(int(k.reshape(())), columns), -rows)
        distance = np.arange(columns)[None, :] - np.arange(rows)[:, None]
        keep = distance >= diagonal if node.attributes["upper"] else distance <= diagonal
        return [np.where(keep, x, np.zeros((), dtype=x.dtype))]


@operator()
class ReverseSequence(Operator):
    """Reverses the first elements of each sequence in a batch, as many as its length says."""

    inputs = (2, 2)
    attributes = {"batch_axis": 1, "time_axis": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, lengths = required(node, inputs, 0), required(node, inputs, 1)
        refuse_packed(node, x)
        require_rank(node, x, 2)
        batch, time = node.attributes["batch_axis"], node.attributes["time_axis"]
        if {batch, time} != {0, 1}:
            raise InvalidGraph(
                f"{node.label}: batch_axis {batch} and time_axis {time} must be 0 and 1 in some order"
            )
        if lengths.dims != (x.dims[batch],):
            raise ShapeError(
                f"{node.label}: sequence_lens has shape {list(lengths.dims)}, not [{x.dims[batch]}]"
            )
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, lengths = present(inputs, 0), present(inputs, 1)
        batch_first = node.attributes["batch_axis"] == 0
        steps = x.shape[1 if batch_first else 0]
        wrong = np.flatnonzero((lengths < 0) | (lengths > steps))
        if wrong.size:
            raise IndexOutOfRange(
                f"{node.label}: sequence length {int(lengths[wrong[0]])} of sequence {int(wrong[0])} is outside 0 … {steps}"
            )
        time = np.arange(steps)[None, :]
        source = np.where(time < lengths[:, None], lengths[:, None] - 1 - time, time)
        rows = np.arange(lengths.size)[:, None]
        if batch_first:
            return [x[rows, source]]
        return [x[source.T, rows.T]]
