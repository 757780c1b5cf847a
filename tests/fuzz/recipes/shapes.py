"""Movement of data: shapes, slices, concatenations, padding, and what makes tensors of nothing."""

from __future__ import annotations

import math

import numpy as np
from onnx import numpy_helper

from tests.fuzz.graphs import GraphBuilder, Skip, codes_of
from tests.fuzz.recipes.registry import axis_of, data_input, recipe, some_axes
from tests.fuzz.tensors import INT32, INT64, NATIVE, STRING, numpy_type, random_tensor


@recipe("Shape", "Size")
def shape(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    attributes = {}
    if op == "Shape" and build.chance(0.4):
        attributes = {"start": build.pick(None, 0, 1, -1), "end": build.pick(None, -1, 2, 9)}
    build.node(op, [data], attributes)


@recipe("Reshape")
def reshape(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    left, sizes = data.elements, []
    while left > 1 and len(sizes) < 4:
        divisors = [size for size in range(1, min(left, 64) + 1) if left % size == 0]
        sizes.append(build.pick(*divisors))
        left //= sizes[-1]
    sizes.append(left)
    build.rng.shuffle(sizes)
    if math.prod(sizes) != data.elements:
        raise Skip("too many elements")
    if build.chance(0.4) and data.elements:
        sizes[build.integer(0, len(sizes) - 1)] = -1
    if build.chance(0.2) and data.elements and data.rank and sizes[0] == data.dims[0]:
        sizes[0] = 0
    if not data.elements and build.chance(0.5):
        sizes = list(data.dims)[::-1]
        build.node(op, [data, build.decided(sizes)], {"allowzero": 1})
        return
    build.node(op, [data, build.decided(sizes)])


@recipe("reshape_by_shape")
def reshape_by_shape(build: GraphBuilder, op: str) -> None:
    """What exporters write: Shape, Gather or Slice of it, Concat, Reshape."""
    data = build.take(NATIVE, 2, 4, accept=lambda value: value.elements > 0)
    [sizes] = build.node("Shape", [data])
    if build.chance(0.5):
        [first] = build.node("Gather", [sizes, build.constant(np.array([0]))], {"axis": 0})
    else:
        [first] = build.node("Slice", [sizes, build.constant([0]), build.constant([1])])
    [target] = build.node("Concat", [first, build.constant([-1])], {"axis": 0})
    build.node("Reshape", [data, target])


@recipe("Flatten")
def flatten(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    low = -data.rank if build.opset >= 11 else 0
    build.node(op, [data], {"axis": build.integer(low, data.rank) if build.chance(0.8) else None})


@recipe("Transpose")
def transpose(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    order = [int(axis) for axis in build.rng.permutation(data.rank)]
    build.node(op, [data], {"perm": order if build.chance(0.85) and order else None})


@recipe("Squeeze")
def squeeze(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, accept=lambda value: 1 in value.dims)
    single = [axis for axis, size in enumerate(data.dims) if size == 1]
    if not single or build.chance(0.2):
        build.node(op, [data])
        return
    axes = [axis - build.pick(0, data.rank) * (build.opset >= 11) for axis in single if build.chance(0.7)]
    build.node(op, [data, build.decided(np.array(axes or single[:1], np.int64))])


@recipe("Unsqueeze")
def unsqueeze(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 0, 4)
    rank = data.rank + build.integer(1, 2)
    axes = [int(axis) for axis in build.rng.permutation(rank)[: rank - data.rank]]
    axes = [axis - build.pick(0, rank) * (build.opset >= 11) for axis in axes]
    build.node(op, [data, build.decided(np.array(axes, np.int64))])


@recipe("Expand")
def expand(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 0, 4)
    sizes = [size if size != 1 or build.chance(0.4) else build.integer(1, 5) for size in data.dims]
    if build.chance(0.3):
        sizes = sizes[build.integer(0, len(sizes)) :]
    elif build.chance(0.3):
        sizes = [build.integer(1, 3), *sizes]
    build.node(op, [data, build.decided(np.array(sizes, np.int64))])


@recipe("Tile")
def tile(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    repeats = [build.pick(1, 1, 1, 2, 3, 0 if build.chance(0.1) else 1) for _ in data.dims]
    build.node(op, [data, build.decided(np.array(repeats, np.int64))])


@recipe("Concat")
def concat(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axis = axis_of(build, data.rank)
    at = axis % data.rank

    def fits(value: object) -> bool:
        dims = value.dims  # type: ignore[attr-defined]
        return all(a == b or place == at for place, (a, b) in enumerate(zip(dims, data.dims, strict=True)))

    parts = [data]
    for _ in range(build.integer(0, 3)):
        other = (*data.dims[:at], build.integer(0 if build.chance(0.05) else 1, 4), *data.dims[at + 1 :])
        found = build.having([data.code], data.rank, data.rank, fits) if build.chance(0.7) else None
        parts.append(found or build.new(data.code, other))
    build.rng.shuffle(parts)  # type: ignore[arg-type]
    build.node(op, parts, {"axis": axis})


@recipe("Split")
def split(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axis = axis_of(build, data.rank)
    size, count = data.dims[axis], build.integer(1, 4)
    if build.chance(0.5):
        cuts = sorted(build.integer(0, size) for _ in range(count - 1))
        sizes = [after - before for before, after in zip([0, *cuts], [*cuts, size], strict=True)]
        build.node(op, [data, build.decided(np.array(sizes, np.int64))], {"axis": axis}, count)
    elif build.opset >= 18:
        build.node(op, [data], {"axis": axis, "num_outputs": count}, count)
    elif size % count:
        raise Skip("no equal parts")
    else:
        build.node(op, [data], {"axis": axis}, count)


@recipe("Slice")
def slice_(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axes = some_axes(build, data.rank) or [0]
    starts, ends, steps = [], [], []
    for axis in axes:
        size = data.dims[axis]
        step = build.pick(1, 1, 1, 2, -1, -2, 3) if build.opset >= 10 else 1
        start, end = sorted(
            (build.integer(-size, size), build.integer(-size, size + 1)), key=lambda at: at % (size + 1)
        )
        if build.chance(0.2):
            start, end = build.pick(0, -(2**31), 1), build.pick(2**31 - 1, 2**63 - 1, size)
        if step < 0:
            start, end = end, start
            if build.chance(0.5):
                start, end = build.pick(-1, 2**31 - 1), build.pick(-(2**63), -(2**31), -size - 1)
        starts.append(start)
        ends.append(end)
        steps.append(step)
    code = INT64 if build.chance(0.8) or max(map(abs, starts + ends)) >= 2**31 else INT32
    numbers = [build.decided(np.array(values), code) for values in (starts, ends, axes)]
    more = (
        [build.decided(np.array(steps), code)]
        if any(step != 1 for step in steps) or build.chance(0.2)
        else []
    )
    build.node(op, [data, *numbers, *more])


@recipe("Pad")
def pad(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    mode = build.pick("constant", "constant", "edge", "reflect", "wrap" if build.opset >= 19 else "constant")
    axes = None
    chosen = list(range(data.rank))
    if build.opset >= 18 and build.chance(0.3):
        chosen = some_axes(build, data.rank)
        axes = build.constant(np.array(chosen), build.pick(INT32, INT64))
    most = [max(data.dims[axis] - 1, 0) if mode == "reflect" else 3 for axis in chosen]
    pads = [build.integer(0, min(size, 3)) for size in most * 2]
    if build.chance(0.25) and pads:
        at = build.integer(0, len(pads) - 1)
        pads[at] = -build.integer(0, max(min(2, data.dims[chosen[at % len(chosen)]] - 1), 0))
    if mode in ("edge", "wrap") and not data.elements:
        raise Skip("nothing to repeat")
    fill = None
    if mode == "constant" and build.chance(0.6):
        fill = build.constant(random_tensor(build.rng, data.code, ()), data.code)
    inputs = [data, build.decided(np.array(pads, np.int64)), fill, axes]
    build.node(op, inputs, {"mode": mode if mode != "constant" or build.chance(0.3) else None})


@recipe("CenterCropPad")
def center_crop_pad(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axes = some_axes(build, data.rank) if build.chance(0.5) else None
    count = data.rank if axes is None else len(axes)
    sizes = build.decided(np.array([build.integer(1, 9) for _ in range(count)]), build.pick(INT32, INT64))
    build.node(op, [data, sizes], {"axes": axes or None} if count else {})


@recipe("DepthToSpace", "SpaceToDepth")
def depth_to_space(build: GraphBuilder, op: str) -> None:
    block = build.pick(1, 2, 2, 3)
    code = build.code(codes_of(op, build.opset, 0))
    rest = (build.integer(1, 3), build.integer(1, 4), build.integer(1, 4))
    if op == "DepthToSpace":
        shape_ = (build.integer(1, 2), rest[0] * block * block, *rest[1:])
    else:
        shape_ = (build.integer(1, 2), rest[0], rest[1] * block, rest[2] * block)
    mode = build.pick(None, "DCR", "CRD") if op == "DepthToSpace" and build.opset >= 11 else None
    build.node(op, [build.take([code], shape=shape_)], {"blocksize": block, "mode": mode})


@recipe("ReverseSequence")
def reverse_sequence(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 2)
    time = build.integer(0, 1)
    steps, batch = data.dims[time], data.dims[1 - time]
    if not steps:
        raise Skip("no time")
    lengths = build.decided(np.asarray(build.rng.integers(1, steps + 1, batch), np.int64))
    build.node(op, [data, lengths], {"time_axis": time, "batch_axis": 1 - time})


@recipe("Constant")
def constant(build: GraphBuilder, op: str) -> None:
    key = build.pick("value", "value", "value_float", "value_floats", "value_int", "value_ints")
    if build.opset < 12 or key == "value":
        code = build.pick(*NATIVE, STRING if build.chance(0.3) else 1)
        array = random_tensor(build.rng, code, build.shape(0, 3))
        build.node(op, [], {"value": numpy_helper.from_array(array)})
        return
    numbers = [float(build.integer(-5, 5)) for _ in range(build.integer(1, 4))]
    value = numbers if key.endswith("s") else numbers[0]
    if "int" in key:
        value = [int(number) for number in numbers] if key.endswith("s") else int(numbers[0])
    build.node(op, [], {key: value})


@recipe("ConstantOfShape")
def constant_of_shape(build: GraphBuilder, op: str) -> None:
    value = None
    if build.chance(0.7):
        value = numpy_helper.from_array(random_tensor(build.rng, build.pick(*NATIVE), (1,)))
    build.node(op, [build.decided(np.array(build.shape(0, 3), np.int64))], {"value": value})


@recipe("Range")
def range_(build: GraphBuilder, op: str) -> None:
    code = build.code([code for code in codes_of(op, build.opset, 0) if code in NATIVE])
    start, step = build.integer(-5, 5), build.pick(1, 1, 2, -1, 3)
    limit = start + step * build.integer(0, 12) + build.integer(-1, 1)
    build.node(op, [build.decided(np.array(number), code) for number in (start, limit, step)])


@recipe("EyeLike")
def eye_like(build: GraphBuilder, op: str) -> None:
    dtype = build.pick(None, *NATIVE)
    build.node(op, [data_input(build, op, 2, 2)], {"dtype": dtype, "k": build.pick(None, 0, 1, -1, 3)})


@recipe("OneHot")
def one_hot(build: GraphBuilder, op: str) -> None:
    depth = build.integer(1, 6)
    codes = [code for code in codes_of(op, build.opset, 0) if code in NATIVE]
    data = build.rng.integers(-depth - 1, depth + 1, build.shape(0, 3))
    code = build.code(codes)
    positions = build.decided(np.abs(data) if numpy_type(code).kind == "u" else data, code)
    kinds = (INT64, INT64, INT32, 1)
    values = build.new(build.pick(*NATIVE), (2,))
    axis = build.integer(-positions.rank - 1, positions.rank) if build.chance(0.6) else None
    build.node(op, [positions, build.decided(np.array(depth), build.pick(*kinds)), values], {"axis": axis})
