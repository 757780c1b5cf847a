"""Operators that read a tensor's shape or give its elements another one, without changing any element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.errors import ShapeError
from vkml.ir.dtypes import INT64
from vkml.ir.gradients import Emitter, T, reshaped, sum_to, transposed
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, V, given
from vkml.ir.operator import INT, INTS, Array, Operator, operator
from vkml.ir.size import array_of
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import (
    contiguous,
    integers,
    list_value,
    normalise_axes,
    normalise_axis,
    optional,
    present,
    required,
    unknown_shape,
)
from vkml.ops.limits import check_size
from vkml.ops.upgrading import attributes_to_inputs, renew


def shape_slice(node: Node, rank: int) -> slice:
    """Which of an input's `rank` sizes a Shape node returns."""
    start, end = node.attributes["start"], node.attributes["end"]
    return slice(*slice(start, end).indices(rank)[:2])


@operator()
class Shape(Operator):
    """The input's sizes, as int64."""

    attributes = {"start": 0, "end": None}
    is_shape_only = True
    attribute_types = {"end": INT}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        dims = required(node, inputs, 0).type.shape or ()
        return [static(INT64, (len(dims[shape_slice(node, len(dims))]),))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [self.evaluate_shape(node, present(inputs, 0).shape)]

    def evaluate_shape(self, node: Node, dims: Sequence[int]) -> Array:
        sizes = dims[shape_slice(node, len(dims))]
        return array_of(sizes, (len(sizes),))


@operator()
class Size(Operator):
    """The input's number of elements, as an int64 scalar."""

    is_shape_only = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        required(node, inputs, 0)
        return [static(INT64, ())]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [self.evaluate_shape(node, present(inputs, 0).shape)]

    def evaluate_shape(self, node: Node, dims: Sequence[int]) -> Array:
        return array_of([math.prod(dims)], ())


def reshape_geometry(node: Node, x_shape: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The output shape of Reshape.

    Args:
        node: Carries `allowzero`.
        x_shape: The input's shape.
        wanted: The requested shape: 0 copies the input's size (unless allowzero), one -1 takes what is left.

    Raises:
        ShapeError: The element counts differ, or the request is ambiguous.
    """

    def refusal(why: str) -> ShapeError:
        return ShapeError(f"{node.label}: cannot reshape {list(x_shape)} to {list(wanted)}: {why}")

    allow_zero = bool(node.attributes["allowzero"])
    if allow_zero and 0 in wanted and -1 in wanted:
        raise refusal("with allowzero, 0 and -1 may not stand together")
    if any(size < -1 for size in wanted) or list(wanted).count(-1) > 1:
        raise refusal("sizes must be positive, 0, or a single -1")
    shape = list(wanted)
    for axis, size in enumerate(wanted):
        if size == 0 and not allow_zero:
            if axis >= len(x_shape):
                raise refusal(f"0 at place {axis} copies a size that the input does not have")
            shape[axis] = x_shape[axis]
    elements = math.prod(x_shape)
    if -1 in shape:
        # Copied sizes cancel: an empty batch reshapes as a full one does, [0, 3, 4] to [0, 12] by [0, -1].
        copied = [] if allow_zero else [axis for axis, size in enumerate(wanted) if size == 0]
        rest = math.prod(size for axis, size in enumerate(x_shape) if axis not in copied)
        others = math.prod(size for size in wanted if size > 0)
        if others == 0 or rest % others:
            raise refusal(f"{rest} elements do not divide by {others}")
        shape[shape.index(-1)] = rest // others
    elif math.prod(shape) != elements:
        raise refusal(f"{elements} elements against {math.prod(shape)}")
    return tuple(shape)


@operator()
class Reshape(Operator):
    """The same elements under another shape."""

    inputs = (2, 2)
    attributes = {"allowzero": 0}
    value_inputs = (1,)
    is_view = True
    is_shape_arithmetic = True
    keeps_elements = True
    attribute_types = {"consumed_inputs": INTS, "shape": INTS}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version < 5:
            return attributes_to_inputs(renew(node, drop=["consumed_inputs"]), [("shape", 1, INT64)])
        return node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, target = required(node, inputs, 0), required(node, inputs, 1)
        wanted = list_value(node, target, "shape")
        if wanted is None:
            return [unknown_shape(x.dtype, target.type.elements)]
        return [check_size(node, x.dtype, reshape_geometry(node, x.dims, wanted))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        return [contiguous(x).reshape(reshape_geometry(node, x.shape, integers(present(inputs, 1))))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return [build.reshape(given(inputs, 0), build.result().dims)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [reshaped(build, present(cotangents, 0), build.type_of(present(inputs, 0)).dims)]


def flatten_geometry(node: Node, x_shape: Sequence[int]) -> tuple[int, int]:
    """The two sizes that Flatten gives a tensor."""
    axis = normalise_axis(node, node.attributes["axis"], len(x_shape), extra=1)
    return math.prod(x_shape[:axis]), math.prod(x_shape[axis:])


@operator()
class Flatten(Operator):
    """The same elements as a matrix, split at an axis."""

    attributes = {"axis": 1}
    is_view = True
    is_shape_arithmetic = True
    keeps_elements = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        return [check_size(node, x.dtype, flatten_geometry(node, x.dims))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        return [contiguous(x).reshape(flatten_geometry(node, x.shape))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return [build.reshape(given(inputs, 0), build.result().dims)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [reshaped(build, present(cotangents, 0), build.type_of(present(inputs, 0)).dims)]


def squeeze_geometry(node: Node, x_shape: Sequence[int], axes: Sequence[int] | None) -> tuple[int, ...]:
    """The shape without `axes`, which must have size 1; None means all axes of size 1."""
    if axes is None:
        return tuple(size for size in x_shape if size != 1)
    gone = normalise_axes(node, axes, len(x_shape))
    for axis in gone:
        if x_shape[axis] != 1:
            raise ShapeError(f"{node.label}: axis {axis} of {list(x_shape)} has size {x_shape[axis]}, not 1")
    return tuple(size for axis, size in enumerate(x_shape) if axis not in gone)


@operator()
class Squeeze(Operator):
    """Removes axes of size 1."""

    inputs = (1, 2)
    value_inputs = (1,)
    is_view = True
    is_shape_arithmetic = True
    keeps_elements = True
    attribute_types = {"axes": INTS}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 13:
            return node
        if not node.attributes.get("axes"):
            return renew(node, drop=["axes"])  # an attribute of none counts as none
        return attributes_to_inputs(node, [("axes", 1, INT64)])

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        axes_input: Known | None = optional(inputs, 1)
        if axes_input is None:
            return [static(x.dtype, squeeze_geometry(node, x.dims, None))]
        axes = list_value(node, axes_input, "axes")
        if axes is None:
            return [unknown_shape(x.dtype, max(x.rank - axes_input.type.elements, 0))]
        return [static(x.dtype, squeeze_geometry(node, x.dims, axes))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, axes = present(inputs, 0), optional(inputs, 1)
        return [
            contiguous(x).reshape(squeeze_geometry(node, x.shape, None if axes is None else integers(axes)))
        ]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return [build.reshape(given(inputs, 0), build.result().dims)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [reshaped(build, present(cotangents, 0), build.type_of(present(inputs, 0)).dims)]


def unsqueeze_geometry(node: Node, x_shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """The shape with axes of size 1 put in; `axes` count in the output."""
    added = normalise_axes(node, axes, len(x_shape) + len(axes))
    rest = iter(x_shape)
    return tuple(1 if axis in added else next(rest) for axis in range(len(x_shape) + len(axes)))


@operator()
class Unsqueeze(Operator):
    """Puts in axes of size 1."""

    inputs = (2, 2)
    value_inputs = (1,)
    is_view = True
    is_shape_arithmetic = True
    keeps_elements = True
    attribute_types = {"axes": INTS}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        return attributes_to_inputs(node, [("axes", 1, INT64)]) if node.version < 13 else node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, axes_input = required(node, inputs, 0), required(node, inputs, 1)
        axes = list_value(node, axes_input, "axes")
        if axes is None:
            return [unknown_shape(x.dtype, x.rank + axes_input.type.elements)]
        return [static(x.dtype, unsqueeze_geometry(node, x.dims, axes))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        return [contiguous(x).reshape(unsqueeze_geometry(node, x.shape, integers(present(inputs, 1))))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return [build.reshape(given(inputs, 0), build.result().dims)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [reshaped(build, present(cotangents, 0), build.type_of(present(inputs, 0)).dims)]


def permutation(node: Node, rank: int) -> tuple[int, ...]:
    """Which input axis each output axis of Transpose is; reversed order where `perm` is absent."""
    stated = node.attributes["perm"]
    if stated is None:
        return tuple(range(rank - 1, -1, -1))
    if len(stated) != rank:
        raise ShapeError(
            f"{node.label}: perm {list(stated)} has {len(stated)} entries for a tensor of rank {rank}"
        )
    return normalise_axes(node, stated, rank)


@operator()
class Transpose(Operator):
    """Permutes the axes."""

    attributes = {"perm": None}
    is_view = True
    is_shape_arithmetic = True
    keeps_elements = True
    attribute_types = {"perm": INTS}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        return [static(x.dtype, [x.dims[axis] for axis in permutation(node, x.rank)])]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        return [contiguous(x.transpose(permutation(node, x.ndim)))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return [given(inputs, 0).transpose(permutation(node, len(given(inputs, 0).shape)))]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        cotangent = present(cotangents, 0)
        order = permutation(node, build.type_of(cotangent).rank)
        back = sorted(range(len(order)), key=order.__getitem__)
        return [transposed(build, cotangent, back)]


def expand_geometry(node: Node, x_shape: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The input's shape and the wanted one, broadcast with each other (Expand never shrinks an axis)."""
    rank = max(len(x_shape), len(wanted))
    have = (1,) * (rank - len(x_shape)) + tuple(x_shape)
    want = (1,) * (rank - len(wanted)) + tuple(wanted)
    if any(size < 0 for size in want) or any(
        a != b and 1 not in (a, b) for a, b in zip(have, want, strict=True)
    ):
        raise ShapeError(f"{node.label}: shape {list(x_shape)} does not expand to {list(wanted)}")
    return tuple(b if a == 1 else a for a, b in zip(have, want, strict=True))


@operator()
class Expand(Operator):
    """Repeats axes of size 1, as broadcasting does."""

    inputs = (2, 2)
    is_repetition = True
    value_inputs = (1,)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, target = required(node, inputs, 0), required(node, inputs, 1)
        wanted = list_value(node, target, "shape")
        if wanted is None:
            return [unknown_shape(x.dtype, max(x.rank, target.type.elements))]
        return [check_size(node, x.dtype, expand_geometry(node, x.dims, wanted))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        return [contiguous(np.broadcast_to(x, expand_geometry(node, x.shape, integers(present(inputs, 1)))))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return [given(inputs, 0).expand(build.result().dims)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [sum_to(build, present(cotangents, 0), build.type_of(present(inputs, 0)).dims)]
