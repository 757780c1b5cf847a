"""Operators that cut tensors apart, join them or repeat them: Concat, Split, Slice, Pad, Tile and kin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import INT64
from vkml.ir.gradients import Emitter, T, padded, reshaped, reversed_along, zeros
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, V, all_given, given, known
from vkml.ir.operator import INT, INTS, MANY, REQUIRED, Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import (
    array_values,
    contiguous,
    has_unknown_value,
    input_values,
    integers,
    normalise_axes,
    normalise_axis,
    present,
    require_rank,
    require_same_dtype,
    required,
)
from vkml.ops.limits import check_size
from vkml.ops.upgrading import attributes_to_inputs, renew


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
    is_shape_arithmetic = True
    keeps_elements = True
    attribute_types = {"axis": INT}

    def upgrade(self, node: Node) -> Node:
        return renew(node, attributes={"axis": node.attributes.get("axis", 1)}) if node.version < 4 else node

    def concatenation_axis(self, node: Node, rank: int) -> int:
        return normalise_axis(node, node.attributes["axis"], rank)

    def keeps_layout(self, node: Node) -> bool:
        return bool(node.attributes["axis"] == 1)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        parts = [required(node, inputs, index) for index in range(len(inputs))]
        for index, part in enumerate(parts):
            require_rank(node, part, 1, what=f"input {index}")
            require_same_dtype(node, parts[0], part, f"input {index}")
        return [check_size(node, parts[0].dtype, concat_geometry(node, [part.dims for part in parts])[1])]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        parts = [present(inputs, index) for index in range(len(inputs))]
        axis, _ = concat_geometry(node, [part.shape for part in parts])
        return [np.concatenate(parts, axis=axis)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        parts = all_given(inputs)
        return build.concat(parts, concat_geometry(node, [part.shape for part in parts])[0])

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        cotangent, sizes = (
            present(cotangents, 0),
            [build.type_of(present(inputs, at)).dims for at in range(len(inputs))],
        )
        axis, _ = concat_geometry(node, sizes)
        if len(sizes) == 1:
            return [cotangent]
        lengths = build.constant([dims[axis] for dims in sizes], INT64)
        parts = build.apply_all("Split", [cotangent, lengths], len(sizes), axis=axis)
        return [part if wanted else None for part, wanted in zip(parts, needed, strict=True)]


def split_geometry(
    node: Node, x_shape: Sequence[int], lengths: Sequence[int] | None
) -> tuple[int, tuple[int, ...]]:
    """The axis that Split cuts and the length of each part."""
    axis = normalise_axis(node, node.attributes["axis"], len(x_shape))
    size, count = x_shape[axis], len(node.outputs)
    if lengths is not None:
        if len(lengths) != count or sum(lengths) != size or any(length < 0 for length in lengths):
            raise ShapeError(
                f"{node.label}: lengths {list(lengths)} do not cut axis {axis} of size {size} "
                f"into {count} outputs"
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
    is_shape_arithmetic = True
    attribute_types = {"num_outputs": INT, "split": INTS}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        return attributes_to_inputs(node, [("split", 1, INT64)]) if node.version < 13 else node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        if has_unknown_value(inputs, (1,)):
            axis = normalise_axis(node, node.attributes["axis"], x.rank)
            cut = TensorType(x.dtype, (*x.dims[:axis], None, *x.dims[axis + 1 :]))
            return [cut] * len(node.outputs)
        axis, parts = split_geometry(node, x.dims, input_values(node, inputs, 1, "split"))
        return [static(x.dtype, (*x.dims[:axis], part, *x.dims[axis + 1 :])) for part in parts]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        axis, parts = split_geometry(node, x.shape, array_values(inputs, 1)[0])
        return [contiguous(part) for part in np.split(x, np.cumsum(parts)[:-1], axis=axis)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        lengths = None if len(inputs) < 2 or inputs[1] is None else integers(known(build, given(inputs, 1)))
        axis, parts = split_geometry(node, x.shape, lengths)
        made, start = [], 0
        for part in parts:
            starts = [start if a == axis else 0 for a in range(len(x.shape))]
            shape = [part if a == axis else size for a, size in enumerate(x.shape)]
            made.append(x.slice(starts, [1] * len(shape), shape))
            start += part
        return made

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        axis = normalise_axis(node, node.attributes["axis"], len(build.type_of(outputs[0]).dims))
        parts = [
            zeros(build, build.type_of(made)) if part is None else part
            for part, made in zip(cotangents, outputs, strict=True)
        ]
        return [build.apply("Concat", *parts, axis=axis)]


@dataclass(frozen=True)
class SliceGeometry:
    """Output element i along an axis is input element ``starts + i * steps``; one entry an axis."""

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


def put_back(build: Emitter[T], part: T, geometry: SliceGeometry, dims: Sequence[int]) -> T:
    """A tensor of shape `dims`, 0 but where `geometry` has cut `part` out of it."""
    if 0 in geometry.sizes:
        return zeros(build, replace(build.type_of(part), shape=tuple(dims)))
    backwards = [axis for axis, step in enumerate(geometry.steps) if step < 0 and geometry.sizes[axis] > 1]
    if backwards:
        part = reversed_along(build, part, backwards)
    starts, steps = list(geometry.starts), [abs(step) for step in geometry.steps]
    for axis in backwards:
        starts[axis] -= (geometry.sizes[axis] - 1) * steps[axis]
    sizes = list(geometry.sizes)
    if any(step > 1 and size > 1 for step, size in zip(steps, sizes, strict=True)):
        # Every element with step - 1 zeros behind it; those behind the last may reach beyond the tensor.
        steps = [step if size > 1 else 1 for step, size in zip(steps, sizes, strict=True)]
        apart = reshaped(build, part, [entry for size in sizes for entry in (size, 1)])
        apart = padded(
            build, apart, [0] * 2 * len(sizes), [entry for step in steps for entry in (0, step - 1)]
        )
        sizes = [size * step for size, step in zip(sizes, steps, strict=True)]
        part = reshaped(build, apart, sizes)
    behind = [full - start - size for full, start, size in zip(dims, starts, sizes, strict=True)]
    return padded(build, part, starts, behind)


@operator()
class Slice(Operator):
    """Cuts a strided box out of a tensor."""

    inputs = (3, 5)
    value_inputs = (1, 2, 3, 4)
    is_shape_arithmetic = True
    attribute_types = {"axes": INTS, "ends": INTS, "starts": INTS}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version < 10:
            return attributes_to_inputs(node, [("starts", 1, INT64), ("ends", 2, INT64), ("axes", 3, INT64)])
        return node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        required(node, inputs, 1)
        required(node, inputs, 2)
        if has_unknown_value(inputs, (1, 2, 3, 4)):
            axes = input_values(node, inputs, 3, "axes") if not has_unknown_value(inputs, (3,)) else None
            cut = range(x.rank) if axes is None else normalise_axes(node, axes, x.rank)
            return [TensorType(x.dtype, tuple(None if a in cut else size for a, size in enumerate(x.dims)))]
        starts, ends = input_values(node, inputs, 1, "starts"), input_values(node, inputs, 2, "ends")
        axes, steps = input_values(node, inputs, 3, "axes"), input_values(node, inputs, 4, "steps")
        return [static(x.dtype, slice_geometry(node, x.dims, starts or (), ends or (), axes, steps).sizes)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        starts, ends, axes, steps = array_values(inputs, 1, 2, 3, 4)
        return [
            contiguous(x[slices_of(slice_geometry(node, x.shape, starts or (), ends or (), axes, steps))])
        ]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        stated = [None if view is None else integers(known(build, view)) for view in inputs[1:]]
        starts, ends, axes, steps = (*stated, None, None)[:4]
        geometry = slice_geometry(node, given(inputs, 0).shape, starts or (), ends or (), axes, steps)
        cut = given(inputs, 0).slice(geometry.starts, geometry.steps, geometry.sizes)
        if not cut.is_reversed:
            return [cut]
        # Pointwise kernels alone read backwards.
        made = build.output(cut.type)
        build.copy(cut, made)
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
        x = build.type_of(present(inputs, 0))
        stated = [None if value is None else build.elements_of(value) for value in inputs]
        starts, ends, axes, steps = array_values([*stated, None, None], 1, 2, 3, 4)
        geometry = slice_geometry(node, x.dims, starts or (), ends or (), axes, steps)
        return [put_back(build, present(cotangents, 0), geometry, x.dims)]
