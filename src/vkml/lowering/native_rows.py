"""Rows in machine code: reductions, softmax, normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.cpu.native import rows, windows
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue
from vkml.ir import Constant, TensorType, dtypes
from vkml.ir.lowering import BodyWriter, CannotLower
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size, array_of, typical
from vkml.kernels.views import View
from vkml.lowering.deferred import is_open
from vkml.lowering.native_epilogue import divided, rooted, scaled
from vkml.lowering.native_layout import require_floats

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder


_REDUCTIONS = {"Sum": "sum", "Mean": "sum", "Max": "max", "Min": "min", "Prod": "prod", "L1": "l1",
               "SumSquare": "sum_square", "L2": "sum_square"}  # fmt: skip
"""What is folded for each reduction."""
MOST_PLACES = 1024
"""Places folded with lanes along a kept axis: one running sum has an error that grows with their number."""
FIRST_PLACES = 64
"""Of more, so many are folded first, which the threads share."""


def reduce(build: NativeBuilder, name: str, x: View, axes: Sequence[int]) -> list[View]:
    """A reduction over axes: lanes along a kept axis where its elements are neighbours, else along rows."""
    require_floats(x)
    kind = _REDUCTIONS.get(name)
    if kind is None:
        raise CannotLower(f"Reduce{name} has no machine code")
    reduced = sorted({axis % len(x.shape) for axis in axes})
    kept = [axis for axis in range(len(x.shape)) if axis not in reduced]
    moved = x.transpose([*kept, *reduced])
    count = math.prod(x.shape[axis] for axis in reduced)
    if not count:
        raise CannotLower("a reduction of nothing has no machine code")
    moved = build.widened(moved)
    shape = moved.shape[: len(kept)]
    # Lanes lie along a kept axis whose elements are neighbours, in the result, too; where the reduced
    # places are few.
    lane_axis = next(
        (
            axis
            for axis in range(len(kept))
            if moved.strides[axis] == 1 and shape[axis] > 1 and math.prod(shape[axis + 1 :]) == 1
        ),
        None,
    )
    if kind in ("sum", "max", "min") and lane_axis is not None and not isinstance(count, Size):
        short = _shortened(build, moved, len(kept), lane_axis, kind)
        if short is not None:
            return _reduce_lanes(
                build, short, shape, lane_axis, kind, 1.0 / count if name == "Mean" else None
            )
    return _reduce_rows(build, moved, shape, count, kind, name)


def moments(build: NativeBuilder, x: View, axes: Sequence[int]) -> list[View]:
    """Mean and variance over axes, of what is centred: large means would leave no digits of squares."""
    result = build.result()
    with build.step(result):
        [mean] = build.reduce("Mean", x, axes)

    def squared(body: BodyWriter, x: str, mean: str) -> str:
        centred = body("Sub", body.cast(x, result.dtype), mean)
        return str(body("Mul", centred, centred))

    target = build.scratch(TensorType(result.dtype, x.shape))
    squares = build.compute(squared, [x, mean], target, label="squares")
    with build.step(result):
        [variance] = build.reduce("Mean", squares, axes)
    return [mean, variance]


def _shortened(build: NativeBuilder, moved: View, rank: int, lane_axis: int, kind: str) -> View | None:
    """A view with no more than `MOST_PLACES` to fold, of sums of some places each; None where there is none.

    Args:
        build: adds launches for these.
        moved: kept axes, then those that are folded.
        rank: how many are kept.
        lane_axis: one of them, whose elements are neighbours.
        kind: of the folding.
    """
    while math.prod(moved.shape[rank:]) > MOST_PLACES:
        apart: list[tuple[int, int]] = []
        together: list[tuple[int, int]] = []
        folded = 1
        for size, step in zip(moved.shape[: rank - 1 : -1], moved.strides[: rank - 1 : -1], strict=True):
            most = 1 if apart else max(d for d in range(1, FIRST_PLACES // folded + 1) if size % d == 0)
            together.insert(0, (most, step))
            folded *= most
            if most < size:
                apart.insert(0, (size // most, most * step))
        if folded == 1 or is_open((moved.shape, moved.strides)):
            return None
        kept = [*apart, *zip(moved.shape[:rank], moved.strides[:rank], strict=True)]
        shape, strides = zip(*kept, *together, strict=True)
        parts, dims = replace(moved, shape=shape, strides=strides), shape[: len(kept)]
        with build.step(TensorType(dtypes.FLOAT32, dims)):
            [made] = _reduce_lanes(build, parts, dims, lane_axis + len(apart), kind, None)
        moved = made.transpose([*range(len(apart), len(kept)), *range(len(apart))])
    return moved


def arg_reduce(build: NativeBuilder, x: View, axis: int, *, is_max: bool, takes_last: bool) -> list[View]:
    """The number of the first extreme along an axis, found as float32."""
    require_floats(x)
    result, count = build.result(), x.shape[axis]
    if takes_last:
        raise CannotLower("the last one of equal extremes has no machine code")
    if not x.elements or count > rows.MOST_NUMBERED:
        raise CannotLower("extremes of nothing, or of too many numbers, have no machine code")
    seen = build.widened(x.transpose([*(at for at in range(len(x.shape)) if at != axis), axis]))
    if count > 1 and seen.strides[-1] != 1:
        seen = build.contiguous(seen)
    made = build.scratch(TensorType(dtypes.FLOAT32, seen.shape[:-1]))
    launch = build.launch(
        rows.reduce_rows,
        kind="argmax" if is_max else "argmin",
        shape=seen.shape,
        strides=seen.strides,
        epilogue=Epilogue(IDENTITY, (), (Access((*made.strides, 1)),)),
        threads=build.threads,
    )
    build.enter(launch, [seen], [made])
    numbers, target = build.reshape(made, result.dims), build.output(result)
    build.compute(lambda body, number: body.cast(number, result.dtype), [numbers], target)
    return [target]


def _reduce_rows(
    build: NativeBuilder, moved: View, shape: tuple[int, ...], count: int, kind: str, name: str
) -> list[View]:
    rows_seen = moved.reshape((*shape, count))
    if rows_seen is None or (count > 1 and rows_seen.strides[-1] != 1):
        rows_seen = build.reshape(build.contiguous(moved), (*shape, count))
    ending = build.ending(
        build.result(), lambda view: view.reshape((*shape, 1)), lambda view: True, lambda view: True
    )
    epilogue = ending.epilogue
    if name == "Mean" and isinstance(count, Size):
        divisor = build.constant(Constant(dtypes.FLOAT32, (), array_of([count], ())), "count")
        epilogue = divided(epilogue, Access((0,) * (len(shape) + 1)))
        ending = replace(ending, leaves=[divisor, *ending.leaves])
    elif name == "Mean":
        epilogue = scaled(epilogue, 1.0 / count)
    elif name == "L2":
        epilogue = rooted(epilogue)
    length = rows.cut_of_rows(typical(math.prod(shape)), typical(count), build.threads)
    if length:
        rows_seen = _reduced_parts(build, rows_seen, length, kind)
        kind = kind if kind in ("max", "min", "prod") else "sum"
    launch = build.launch(
        rows.reduce_rows,
        kind=kind,
        shape=rows_seen.shape,
        strides=rows_seen.strides,
        epilogue=epilogue,
        threads=build.threads,
    )
    return build.finish(launch, [rows_seen], ending)


def _reduced_parts(build: NativeBuilder, seen: View, length: int, kind: str) -> View:
    """What parts of that length of each row, and a shorter last one, are reduced to."""
    *lead, count = seen.shape
    parts, rest = divmod(count, length)
    made = build.scratch(TensorType(dtypes.FLOAT32, (*lead, parts + (rest > 0))))
    for first, number, size in ((0, parts, length), (parts, 1, rest)):
        if not size:
            continue
        source = replace(
            seen,
            shape=(*lead, number, size),
            strides=(*seen.strides[:-1], length, 1),
            offset=seen.offset + first * length,
        )
        corner = (*(0 for _ in lead), first)
        target = made.slice(corner, (1,) * len(corner), (*lead, number))
        launch = build.launch(
            rows.reduce_rows,
            kind=kind,
            shape=source.shape,
            strides=source.strides,
            epilogue=Epilogue(IDENTITY, (), (Access((*target.strides, 1)),)),
            threads=build.threads,
        )
        build.enter(launch, [source], [target])
    return made


def _reduce_lanes(
    build: NativeBuilder,
    moved: View,
    shape: tuple[int, ...],
    lane_axis: int,
    kind: str,
    share: float | None,
) -> list[View]:
    rank = len(shape)
    order = [axis for axis in range(rank) if axis != lane_axis] + [lane_axis]

    def arrange(view: View) -> View | None:
        seen = view.reshape(shape)
        if seen is None:
            return None
        lead = [(seen.shape[axis], seen.strides[axis]) for axis in order]
        if is_open(shape):
            # Tiles are cut along the last axes but one: code for them is code for their sizes.
            lead[-1:-1] = [(1, 0), (1, 0)]
        while len(lead) < 3:
            lead.insert(0, (1, 0))
        return replace(
            seen, shape=tuple(size for size, _ in lead), strides=tuple(stride for _, stride in lead)
        )

    kept_shape = replace(moved, shape=shape, strides=moved.strides[:rank])
    base = arrange(kept_shape)
    assert base is not None
    ending = build.ending(build.result(), arrange, lambda view: view.shape[-1] == 1 or view.strides[-1] == 1)
    sizes, steps = moved.shape[rank:], moved.strides[rank:]
    places = [0]  # from the first; steps over open axes are open, too
    for size, step in zip(sizes, steps, strict=True):
        places = [place + at * step for place in places for at in range(size)]
    epilogue = ending.epilogue if share is None else scaled(ending.epilogue, share)
    launch = build.launch(
        windows.windows,
        kind=kind,
        batch=base.shape[:-3],
        height=base.shape[-3],
        width=base.shape[-2],
        columns=base.shape[-1],
        taps=tuple(places),
        a=base.strides[:-1],
        epilogue=epilogue,
        threads=build.threads,
    )
    return build.finish(launch, [moved, moved], ending)


def softmax(build: NativeBuilder, x: View, axes: int, *, is_logarithm: bool) -> list[View]:
    """Softmax, or its logarithm, over the last axes."""
    x = build.widened(x)
    result = build.result()
    lead = x.shape[: len(x.shape) - axes]
    columns = math.prod(x.shape[len(x.shape) - axes :])
    seen = build.reshape(x, (*lead, columns))
    if columns > 1 and seen.strides[-1] != 1:
        seen = build.contiguous(seen)
    ending = build.ending(
        result,
        lambda view: view.reshape((*lead, columns)),
        lambda view: columns == 1 or view.strides[-1] == 1,
    )
    launch = build.launch(
        rows.softmax,
        shape=seen.shape,
        strides=seen.strides,
        is_logarithm=is_logarithm,
        epilogue=ending.epilogue,
        threads=build.threads,
    )
    return build.finish(launch, [seen], ending)


def cross_entropy(build: NativeBuilder, x: View, labels: View, ignored: int | None) -> list[View]:
    """The negated log-softmax over the last axis at the labels; 0 where a label is the ignored one."""
    lead, axis = x.shape[:-1], len(x.shape) - 1
    wide = arithmetic_type(x.dtype)

    def place(body: BodyWriter, label: str) -> str:
        """Negative labels do not count from the end: they are outside, too."""
        zero = body.constant(0, label)
        found = body("Where", body("Less", label, zero), body.constant(x.shape[-1], label), label)
        if ignored is not None:
            found = body("Where", body("Equal", label, body.constant(ignored, label)), zero, found)
        return found

    there = build.compute(place, [labels], build.scratch(labels.type))
    with build.step(TensorType(wide, x.shape)):
        [logs] = build.softmax(x, 1, is_logarithm=True)
    with build.step(TensorType(wide, (*lead, 1))):
        [picked] = build.gather_elements(logs, build.reshape(there, (*lead, 1)), axis)

    def write(body: BodyWriter, picked: str, label: str) -> str:
        loss = body("Neg", picked)
        if ignored is not None:
            is_out = body("Equal", label, body.constant(ignored, label))
            loss = body("Where", is_out, body.constant(0, picked), loss)
        return loss

    return [build.compute(write, [build.reshape(picked, lead), labels], build.output(build.result()))]


def normalise(
    build: NativeBuilder,
    x: View,
    axes: int,
    epsilon: float,
    scale: View | None,
    bias: View | None,
    *,
    is_centred: bool,
) -> list[View]:
    """Layer or root-mean-square normalisation over the last axes."""
    x = build.widened(x)
    scale, bias = (None if view is None else build.widened(view) for view in (scale, bias))
    lead = x.shape[: len(x.shape) - axes]
    columns = math.prod(x.shape[len(x.shape) - axes :])
    shape = (*lead, columns)
    seen = build.reshape(x, shape)
    if columns > 1 and seen.strides[-1] != 1:
        seen = build.contiguous(seen)
    factors = [None if view is None else build.reshape(view, shape) for view in (scale, bias)]
    # The kernel walks them by 0 or 1.
    factors = [
        build.contiguous(view)
        if view is not None and columns > 1 and view.strides[-1] not in (0, 1)
        else view
        for view in factors
    ]
    ending = build.ending(
        build.result(),
        lambda view: view.reshape(shape),
        lambda view: columns == 1 or view.strides[-1] == 1,
    )
    launch = build.launch(
        rows.normalise,
        shape=seen.shape,
        strides=seen.strides,
        is_centred=is_centred,
        epsilon=epsilon,
        scale=None if factors[0] is None else factors[0].strides,
        bias=None if factors[1] is None else factors[1].strides,
        epilogue=ending.epilogue,
        threads=build.threads,
    )
    return build.finish(launch, [seen, *(view for view in factors if view is not None)], ending)
