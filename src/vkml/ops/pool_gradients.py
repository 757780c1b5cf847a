"""Gradients of pooling: what windows have averaged goes back to all their elements, a maximum to one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import ShapeError
from vkml.ir import scalar
from vkml.ir.dtypes import FLOAT32, FLOATS, INT32, INT64, DType
from vkml.ir.gradients import Emitter, T, pointwise, reshaped
from vkml.ir.graph import Constant, Node
from vkml.ir.lowering import BodyWriter, Lowering, V, given
from vkml.ir.operator import INTS, REQUIRED, Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ir.windows import Windows
from vkml.ops.checks import present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.pointwise import widened
from vkml.ops.resample import resampled, transposed_table, window_table
from vkml.ops.windows import pad_for_windows, spatial_attribute, tap_views

_MOST_TAPS = 256
"""Of the windows that `MaxPoolGradient` is lowered for without a template: each tap is a view of its own."""
_TAPS_OF_A_LAUNCH = 9
"""Each has an address among the launch's arguments, for which devices have room for 16 at least."""
_MOST_TILE_TAPS = 9
"""Of windows whose greatest element each of their elements looks for itself."""


def spread(build: Emitter[T], cotangent: T, windows: Windows) -> T:
    """To every element of the image, the sum over the windows that hold it of what they have."""
    axes = zip(
        windows.spatial,
        windows.kernel,
        windows.strides,
        windows.dilations,
        windows.pads_begin,
        windows.output,
        strict=True,
    )
    tables = [transposed_table(*window_table(size, *window), size) for size, *window in axes]
    return resampled(build, cotangent, [None, None, *tables])


def averages_gradient(build: Emitter[T], cotangent: T, windows: Windows, counts: Array) -> T:
    """The cotangent of an image whose windows were averaged over so many elements, [*output]."""
    same = counts.size and (counts == counts.flat[0]).all()
    divisor = build.constant(counts.flat[0] if same else counts, build.type_of(cotangent).dtype)
    return spread(build, build.apply("Div", cotangent, divisor), windows)


def norms_gradient(build: Emitter[T], x: T, norm: T, cotangent: T, p: float, back: Callable[[T], T]) -> T:
    """The cotangent of elements of which p-norms were taken; 0 where the norm is 0.

    Args:
        build: the emitter.
        x: the elements.
        norm: the norms.
        cotangent: theirs.
        p: the exponent.
        back: gives each element the sum of what the norms that it is in have.
    """
    scaled = pointwise(
        build,
        lambda dy, y: scalar.where(scalar.compare("equal", y, 0.0), 0.0, dy * scalar.power(y, 1 - p)),
        cotangent,
        norm,
    )
    return pointwise(
        build,
        lambda x, dy: (
            dy * x if p == 2 else dy * scalar.unary("sign", x) * scalar.power(scalar.absolute(x), p - 1)
        ),
        x,
        back(scaled),
    )


def maximum_gradient(build: Emitter[T], x: T, cotangent: T, windows: Windows) -> T:
    """The cotangent of an image of whose windows the greatest elements were taken: the first of equals."""
    return build.apply(
        "MaxPoolGradient",
        x,
        cotangent,
        domain="vkml",
        kernel_shape=windows.kernel,
        strides=windows.strides,
        dilations=windows.dilations,
        pads=windows.pads_begin,
    )


def plane_maximum_gradient(build: Emitter[T], x: T, cotangent: T) -> T:
    """The cotangent of an image whose planes gave their greatest elements: the first of equals."""
    dims = build.type_of(x).dims
    size = math.prod(dims[2:])
    planes = reshaped(build, x, [*dims[:2], size])
    greatest = build.apply("ArgMax", planes, axis=2)
    is_greatest = build.apply("Equal", greatest, build.constant(np.arange(size), INT64))
    zero = build.constant(0, build.type_of(cotangent).dtype)
    found = build.apply("Where", is_greatest, reshaped(build, cotangent, [*dims[:2], 1]), zero)
    return reshaped(build, found, dims)


@operator("MaxPoolGradient")
class MaxPoolGradient(Operator):
    """The gradient of a maximum over windows of x [N, C, *spatial], from its output's [N, C, *output].

    Of equal elements the first one of a window gets what the window has. ``pads`` are those in front; how
    many windows there are, the output's gradient says. vkml makes it, no file does. MaxPool's indices and a
    scatter would do the same, but sums of a scatter are in order only if one thread makes them.
    """

    domain = "vkml"
    inputs = (2, 2)
    attributes = {"dilations": REQUIRED, "kernel_shape": REQUIRED, "pads": REQUIRED, "strides": REQUIRED}
    attribute_types = {"dilations": INTS, "kernel_shape": INTS, "pads": INTS, "strides": INTS}

    def keeps_layout(self, node: Node) -> bool:
        return True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, cotangent = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, FLOATS, "the input")
        require_same_dtype(node, x, cotangent, "the output's gradient")
        require_rank(node, x, 3)
        if len(cotangent.dims) != len(x.dims) or cotangent.dims[:2] != x.dims[:2]:
            raise ShapeError(
                f"{node.label}: a gradient {list(cotangent.dims)} is not one of windows of {list(x.dims)}"
            )
        _windows(node, x.dims, cotangent.dims)
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, cotangent = widened(present(inputs, 0)), widened(present(inputs, 1))
        windows = _windows(node, x.shape, cotangent.shape)
        lowest = -math.inf
        best, at = np.full(cotangent.shape, lowest, x.dtype), np.full(cotangent.shape, -1)
        image = pad_for_windows(x, windows, lowest)
        for number, ((_, view), inside) in enumerate(
            zip(tap_views(image, windows), _insides(windows), strict=True)
        ):
            better = ((view > best) | (at < 0)) & inside
            best, at = np.where(better, view, best), np.where(better, number, at)
        result = np.zeros_like(image)
        for number, (_, view) in enumerate(tap_views(result, windows)):
            view += np.where(at == number, cotangent, 0)
        kept = (slice(b, b + size) for b, size in zip(windows.pads_begin, windows.spatial, strict=True))
        made = result[(slice(None), slice(None), *kept)]
        return [np.ascontiguousarray(made).astype(present(inputs, 0).dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, cotangent = given(inputs, 0), given(inputs, 1)
        windows = _windows(node, x.shape, cotangent.shape)
        if 0 in (*x.shape, *cotangent.shape):
            return None
        output = build.output(build.result())
        if _are_tiles(windows) and _lower_tiles(build, x, cotangent, output, windows):
            return [output]
        if _lower_at_once(build, x, cotangent, output, windows):
            return [output]
        if windows.taps > _MOST_TAPS:
            return None
        classes = [_classes(windows, axis) for axis in range(len(windows.kernel))]
        # Windows before the first one and behind the last one that an element looks into.
        before = [max([0, *(shift - c.first for c in found for _, shift in c.taps)]) for found in classes]
        behind = [
            max([0, *(c.first + c.count - shift - size for c in found for _, shift in c.taps)])
            for found, size in zip(classes, windows.output, strict=True)
        ]
        held = (*x.shape[:2], *(b + n + e for b, n, e in zip(before, windows.output, behind, strict=True)))
        places = build.scratch(TensorType(INT32, held))
        incoming = cotangent
        inner = _box(before, windows.output, x.shape[:2])
        if any(before) or any(behind):
            build.copy(_filled(build, INT32, -1, held), places)
            incoming = build.scratch(TensorType(cotangent.dtype, held))
            build.copy(_filled(build, cotangent.dtype, 0, held), incoming)
            build.copy(cotangent, incoming.slice(*inner))
        inner_places = places.slice(*inner)
        first_taps, starting = _first_inside(build, windows, inner_places.shape)
        _find_places(build, _tap_operands(build, x, windows), first_taps, starting, inner_places)
        for chosen in itertools.product(*classes):
            starts = [0, 0, *(c.start for c in chosen)]
            shape = [*x.shape[:2], *(c.count for c in chosen)]
            target = output.slice(starts, [1, 1, *windows.strides], shape)
            if 0 not in shape:
                _collect(build, places, incoming, target, chosen, before, windows)
        return [output]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        if not needed[1]:
            return [None, None]
        x, incoming = present(inputs, 0), build.type_of(present(inputs, 1))
        type_ = build.type_of(x)
        windows = _windows(node, type_.dims, incoming.dims)
        ends = tuple(max(reach, 0) for reach in windows.reach_end)
        _, places = build.apply_all(
            "MaxPool",
            [x],
            2,
            kernel_shape=windows.kernel,
            strides=windows.strides,
            dilations=windows.dilations,
            pads=(*windows.pads_begin, *ends),
        )
        flat = reshaped(build, places, [incoming.elements])
        everything = reshaped(build, present(cotangents, 0), [type_.elements])
        found = reshaped(build, build.apply("GatherElements", everything, flat), incoming.dims)
        pairs = zip((*windows.pads_begin, *ends), 2 * windows.extents, strict=True)
        if any(pad >= extent for pad, extent in pairs):  # windows of padding alone have no greatest element
            is_nowhere = build.apply("Less", places, build.constant(0, INT64))
            found = build.apply("Where", is_nowhere, build.constant(0, incoming.dtype), found)
        return [None, found]


def _windows(node: Node, x: Sequence[int], cotangent: Sequence[int]) -> Windows:
    rank = len(x) - 2
    kernel, strides, dilations, pads = (
        spatial_attribute(node, key, rank, 1, least)
        for key, least in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 0))
    )
    return Windows(tuple(x[2:]), kernel, strides, dilations, pads, (0,) * rank, tuple(cotangent[2:]))


def _insides(windows: Windows) -> Iterator[Array]:
    """For each tap, in which windows it lies inside the image: [*output]."""
    for tap in itertools.product(*(range(k) for k in windows.kernel)):
        inside = np.ones((), np.bool_)
        for at, stride, dilation, begin, size, count in zip(
            tap,
            windows.strides,
            windows.dilations,
            windows.pads_begin,
            windows.spatial,
            windows.output,
            strict=True,
        ):
            along = np.arange(count) * stride + at * dilation - begin
            inside = inside[..., None] & (along >= 0) & (along < size)
        yield inside


def _are_tiles(windows: Windows) -> bool:
    """Whether every element lies in exactly one window, and these are small."""
    sizes = tuple(n * k for n, k in zip(windows.output, windows.kernel, strict=True))
    is_gapless = windows.strides == windows.kernel == windows.extents and not any(windows.pads_begin)
    return is_gapless and sizes == windows.spatial and windows.taps <= _MOST_TILE_TAPS


def _lower_tiles(build: Lowering[V], x: V, cotangent: V, output: V, windows: Windows) -> bool:
    """One launch where windows do not overlap: each element looks whether it is its window's. False where the
    output's strides do not allow it.
    """
    planes = x.shape[:2]
    split = [entry for pair in zip(windows.output, windows.kernel, strict=True) for entry in pair]
    target = output.reshape((*planes, *split))
    if target is None:
        return False
    apart = [entry for count in windows.output for entry in (count, 1)]
    numbers = np.arange(windows.taps, dtype=np.int32).reshape([n for k in windows.kernel for n in (1, k)])
    own = build.constant(Constant(INT32, numbers.shape, numbers), "taps")
    views = [
        build.reshape(view, (*planes, *apart)).expand(target.shape)
        for view in (cotangent, *_tap_operands(build, x, windows))
    ]

    def write(body: BodyWriter, own: str, value: str, *taps: str) -> str:
        is_here = body("Equal", _first_greatest(body, *taps), own)
        return body("Where", is_here, value, body.constant(0, value))

    build.compute(write, [own.expand(target.shape), *views], target, label="maximum_gradient")
    return True


def _lower_at_once(build: Lowering[V], x: V, cotangent: V, output: V, windows: Windows) -> bool:
    """One launch of a template where the device has one for such windows; False where it has none."""
    if len(windows.kernel) > 3:
        return False
    over_three = windows.over(3)
    target = output.reshape((*x.shape[:2], *over_three.spatial))
    if target is None:
        return False
    image = build.reshape(x, target.shape)
    incoming = build.reshape(cotangent, (*x.shape[:2], *over_three.output))
    return build.max_pool_gradient(image, incoming, target, over_three)


@dataclass(frozen=True)
class _Class:
    """Elements along an axis that lie a stride apart: the same taps of windows read them."""

    start: int
    count: int
    first: int
    """The window that begins no later than the first of them and reads it by the class's first tap."""
    taps: tuple[tuple[int, int], ...]
    """Taps, and how many windows before `first` the one lies that reads the first element by it."""


def _classes(windows: Windows, axis: int) -> list[_Class]:
    """The elements of an axis by what they leave when divided by the stride."""
    stride, dilation, begin = windows.strides[axis], windows.dilations[axis], windows.pads_begin[axis]
    made = []
    for rest in range(stride):
        first = -(-(begin - rest) // stride)
        start = first * stride + rest - begin
        count = max(-(-(windows.spatial[axis] - start) // stride), 0)
        taps = [tap for tap in range(windows.kernel[axis]) if tap * dilation % stride == rest]
        shifts = tuple((tap, tap * dilation // stride) for tap in taps)
        made.append(_Class(start, count, first, shifts))
    return made


def _box(
    begins: Sequence[int], sizes: Sequence[int], planes: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Starts, steps and shape of a part of all planes."""
    return [0, 0, *begins], [1] * (2 + len(sizes)), [*planes, *sizes]


def _filled(build: Lowering[V], dtype: DType, number: float, shape: Sequence[int]) -> V:
    """A view of one number under a shape."""
    fill = Constant(dtype, (), np.asarray(number, dtype.storage))
    return build.constant(fill, f"fill {number}").expand(shape)


def _tap_operands(build: Lowering[V], x: V, windows: Windows) -> list[V]:
    """For each tap, what it reads in every window; -infinity round the image."""
    ends = [max(reach, 0) for reach in windows.reach_end]
    if any(windows.pads_begin) or any(ends):
        sizes = [b + n + e for b, n, e in zip(windows.pads_begin, windows.spatial, ends, strict=True)]
        whole = build.scratch(TensorType(x.dtype, (*x.shape[:2], *sizes)))
        build.copy(_filled(build, x.dtype, -math.inf, whole.shape), whole)
        build.copy(x, whole.slice(*_box(windows.pads_begin, windows.spatial, x.shape[:2])))
        x = whole
    shape = [*x.shape[:2], *windows.output]
    return [
        x.slice(
            [0, 0, *(at * d for at, d in zip(tap, windows.dilations, strict=True))],
            [1, 1, *windows.strides],
            shape,
        )
        for tap in itertools.product(*(range(k) for k in windows.kernel))
    ]


def _first_inside(
    build: Lowering[V], windows: Windows, shape: Sequence[int]
) -> tuple[list[V], frozenset[int]]:
    """The number of the first tap of each window that lies inside the image, and all of these numbers but 0.

    What is read of padding is -infinity, as elements may be, and NaN is greater than nothing. Where every
    window's first tap is inside, there is nothing to be told.
    """
    if not any(windows.pads_begin):
        return [], frozenset()
    numbers = np.full(windows.output, -1, np.int32)
    for number, inside in enumerate(_insides(windows)):
        numbers = np.where((numbers < 0) & inside, np.int32(number), numbers)
    starting = frozenset(numbers[numbers > 0].tolist())
    if not starting:
        return [], starting
    return [build.constant(Constant(INT32, numbers.shape, numbers), "first taps").expand(shape)], starting


def _first_greatest(
    body: BodyWriter, *taps: str, starts: Sequence[str] = (), starting: frozenset[int] = frozenset()
) -> str:
    """The number of the first of the greatest taps; see `_greatest`."""
    zero = body.cast(body.constant(0, taps[0]), INT32)
    return _greatest(body, taps[0], zero, taps[1:], 1, starts, starting)[1]


def _greatest(
    body: BodyWriter,
    best: str,
    at: str,
    taps: Sequence[str],
    first: int,
    starts: Sequence[str],
    starting: frozenset[int],
) -> tuple[str, str]:
    """The greatest of what there is and of taps, the first one with the number `first`, and its number.

    Of `starts`, where it has one, the tap of that number, one of `starting`, counts as greater than those
    before it.
    """
    for number, tap in enumerate(taps, first):
        is_better = body("Greater", tap, best)
        for start in starts if number in starting else ():
            is_better = body("Or", is_better, body("Equal", start, body.constant(number, start)))
        at = body("Where", is_better, body.constant(number, at), at)
        best = body("Where", is_better, tap, best)
    return best, at


def _find_places(
    build: Lowering[V], taps: Sequence[V], starts: Sequence[V], starting: frozenset[int], target: V
) -> None:
    """Writes the number of the first of the greatest taps, some taps a launch; see `_greatest`."""
    if len(taps) <= _TAPS_OF_A_LAUNCH:

        def write_all(body: BodyWriter, *leaves: str) -> str:
            first, begins = leaves[: len(taps)], leaves[len(taps) :]
            return _first_greatest(body, *first, starts=begins, starting=starting)

        build.compute(write_all, [*taps, *starts], target, label="places")
        return
    best, at = taps[0], _filled(build, INT32, 0, target.shape)
    chunks = range(1, len(taps), _TAPS_OF_A_LAUNCH - 2)
    for first in chunks:
        some = taps[first : first + _TAPS_OF_A_LAUNCH - 2]
        is_starting = not starting.isdisjoint(range(first, first + len(some)))
        leaves = [best, at, *some, *(starts if is_starting else ())]

        def write(
            body: BodyWriter, best: str, at: str, *taps: str, result: int, first: int, count: int
        ) -> str:
            return _greatest(body, best, at, taps[:count], first, taps[count:], starting)[result]

        is_last = first == chunks[-1]
        found = target if is_last else build.scratch(TensorType(INT32, tuple(target.shape)))
        at = build.compute(
            partial(write, result=1, first=first, count=len(some)), leaves, found, label="places"
        )
        if not is_last:
            greatest = build.scratch(TensorType(taps[0].dtype, tuple(target.shape)))
            chunk = partial(write, result=0, first=first, count=len(some))
            best = build.compute(chunk, leaves, greatest, label="greatest")


def _collect(
    build: Lowering[V],
    places: V,
    incoming: V,
    target: V,
    chosen: Sequence[_Class],
    before: Sequence[int],
    windows: Windows,
) -> None:
    """Sums, for the elements of a class, what the windows have of which one is the greatest element."""
    numbers: list[int] = []
    leaves: list[V] = []
    for taps in itertools.product(*(c.taps for c in chosen)):
        number = 0
        for (tap, _), size in zip(taps, windows.kernel, strict=True):
            number = number * size + tap
        numbers.append(number)
        starts = [b + c.first - shift for b, c, (_, shift) in zip(before, chosen, taps, strict=True)]
        part = _box(starts, target.shape[2:], target.shape[:2])
        leaves += [places.slice(*part), incoming.slice(*part)]
    if not numbers:
        build.copy(_filled(build, target.dtype, 0, target.shape), target)
        return

    def write(body: BodyWriter, *operands: str, numbers: Sequence[int]) -> str:
        total = operands[-1] if len(operands) % 2 else ""  # what other launches have summed
        for number, place, value in zip(numbers, operands[::2], operands[1::2], strict=False):
            is_here = body("Equal", place, body.constant(number, place))
            part = body("Where", is_here, value, body.constant(0, value))
            total = body("Add", total, part) if total else part
        return total

    each = _TAPS_OF_A_LAUNCH // 2
    wide = FLOAT32 if target.dtype.bits < 32 else target.dtype
    so_far: list[V] = []
    for first in range(0, len(numbers), each):
        some = leaves[2 * first : 2 * (first + each)]
        is_last = first + each >= len(numbers)
        found = target if is_last else build.scratch(TensorType(wide, tuple(target.shape)))
        chunk = partial(write, numbers=numbers[first : first + each])
        so_far = [build.compute(chunk, [*some, *so_far], found, label="maximum_gradient")]
