"""Elementwise kernels of operands that lie along different axes: each thread's block of rows and columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.ops  # fills the registry
from tests.engine.open_graphs import open_plans
from tests.vulkan_cases import Cases
from vkml.engine.sketch import Sketch
from vkml.ir import TensorType, dtypes
from vkml.ir.dtypes import DType
from vkml.kernels import blocks
from vkml.kernels.blocks import LEAST_SIDE, Blocks, blocks_of
from vkml.kernels.pointwise import pointwise
from vkml.kernels.views import Buffer, BufferKind, View, collapse, contiguous
from vkml.lowering.builder import identity
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
TYPES = ("float32", "float16", "uint8", "int64")
"""One of each size."""
TRANSPOSES = {
    "vectors both ways": ((512, 256), (1, 0)),
    "tiles that are not full": ((360, 372), (1, 0)),
    "vectors of two": ((362, 366), (1, 0)),
    "vectors one way": ((512, 257), (1, 0)),
    "vectors the other way": ((257, 512), (1, 0)),
    "single elements": ((363, 365), (1, 0)),
    "few columns": ((5, 4, 6600), (0, 2, 1)),
    "few rows": ((5, 6600, 4), (0, 2, 1)),
    "few of both, many batches": ((900, 12, 13), (0, 2, 1)),
    "channels last": ((2, 8, 100, 84), (0, 2, 3, 1)),
    "channels first": ((2, 100, 84, 8), (0, 3, 1, 2)),
    "five axes": ((7, 8, 6, 16, 28), (4, 2, 0, 3, 1)),
    "five odd axes": ((7, 19, 5, 17, 15), (4, 2, 0, 3, 1)),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_transposes(dtype: str, is_strided: bool, vulkan_device_name: str) -> None:
    cases = Cases(91)
    for shape, perm in TRANSPOSES.values():
        assert chosen(shape, perm, dtypes.from_numpy(np.dtype(dtype))) is not None
        cases.add("Transpose", cases.array(dtype, shape), perm=list(perm))
    cases.check(vulkan_device_name, is_strided=is_strided)


IN_WORDS = {
    "vectors of eight": ((2048, 2056), (1, 0)),
    "vectors of four": ((2052, 2060), (1, 0)),
    "vectors of eight and of four": ((3, 1192, 1180), (0, 2, 1)),
    "vectors of two": ((2050, 2062), (1, 0)),
    "vectors of two and single elements": ((2050, 2051), (1, 0)),
    "few columns": ((2, 12, 174800), (0, 2, 1)),
}
"""Transposes of so many elements that those of one or two bytes move as bits of words."""


@pytest.mark.parametrize("dtype", ["float16", "uint8", "bool", "int16"])
@pytest.mark.parametrize("name", IN_WORDS)
def test_elements_as_bits_of_words(name: str, dtype: str, vulkan_device_name: str) -> None:
    shape, perm = IN_WORDS[name]
    x = np.random.default_rng(7).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    sketch = Sketch("transpose")
    kind = dtypes.from_numpy(x.dtype)
    value = sketch.node("Transpose", sketch.input("x", shape, kind), perm=list(perm))
    data = save_graph(sketch.finish(value))
    with vkml.InferenceSession(data, devices=vulkan_device_name) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.transpose(perm))
    made = chosen(shape, perm, kind)
    assert made is not None
    is_even = "single" not in name and ("two" not in name or x.itemsize == 2)
    assert made.is_in_words == is_even


def run(graph: Any, feed: dict[str, Array], device: str) -> tuple[list[Array], list[str]]:
    """What a session on a device makes, between guard zones, and its launches' variants."""
    with vkml.InferenceSession(save_graph(graph), devices=device, precision="highest") as session:
        found = session.run(None, feed)
        assert not session.report().fallbacks
        return found, [step.variant for step in session.report().steps]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-99, 99, shape).astype(np.float32)


@pytest.mark.parametrize("sides", [(384, 384), (363, 363), (366, 366)])
def test_a_tensor_and_its_transpose(sides: tuple[int, int], vulkan_device_name: str) -> None:
    """Operands along both axes, of a row, of a column and of one number, and two results of two types."""
    x, row, column = numbers(*sides), numbers(sides[1], seed=1), numbers(sides[0], 1, seed=2)
    sketch = Sketch("both ways")
    given = sketch.input("x", x.shape)
    made = sketch.node("Add", given, sketch.node("Transpose", given, perm=[1, 0]))
    made = sketch.node("Add", made, sketch.input("row", row.shape))
    made = sketch.node("Mul", made, sketch.input("column", column.shape))
    made = sketch.node("Sub", made, sketch.input("one", ()))
    cast = sketch.node("Cast", made, to=dtypes.INT32.code)
    feed = {"x": x, "row": row, "column": column, "one": np.array(3, np.float32)}
    found, names = run(sketch.finish(made, cast), feed, vulkan_device_name)
    wanted = (x + x.T + row) * column - np.float32(3)
    np.testing.assert_array_equal(found[0], wanted)
    np.testing.assert_array_equal(found[1], wanted.astype(np.int32))
    assert any("4 × 4 elements" in name for name in names)


def test_many_operands_have_small_blocks(vulkan_device_name: str) -> None:
    sketch = Sketch("six")
    feed = {f"x{index}": numbers(364, 364, seed=index) for index in range(6)}
    turned = [
        sketch.node("Transpose", sketch.input(name, x.shape), perm=[1, 0]) if index % 2 else
        sketch.input(name, x.shape)
        for index, (name, x) in enumerate(feed.items())
    ]  # fmt: skip
    found, names = run(sketch.finish(sketch.node("Sum", *turned)), feed, vulkan_device_name)
    wanted = np.sum([x.T if index % 2 else x for index, x in enumerate(feed.values())], axis=0)
    np.testing.assert_array_equal(found[0], wanted)
    assert any("2 × 2 elements" in name for name in names)


@pytest.mark.parametrize("shape", [(364, 368), (365, 367)])
@pytest.mark.parametrize("steps", [(-1, 1), (1, -1), (-1, -1), (-2, 1), (2, -1)])
def test_axes_that_run_backwards(
    shape: tuple[int, int], steps: tuple[int, int], vulkan_device_name: str
) -> None:
    x = numbers(*(size * abs(step) for size, step in zip(shape, steps, strict=True)))
    sketch = Sketch("backwards")
    bounds = [[-1 if step < 0 else 0 for step in steps], [(-1 if step < 0 else 1) * 2**31 for step in steps]]
    listed = [sketch.constant(np.array(value)) for value in (*bounds, [0, 1], steps)]
    turned = sketch.node("Transpose", sketch.input("x", x.shape[::-1]), perm=[1, 0])
    graph = sketch.finish(sketch.node("Neg", sketch.node("Slice", turned, *listed)))
    found, names = run(graph, {"x": np.ascontiguousarray(x.T)}, vulkan_device_name)
    np.testing.assert_array_equal(found[0], -x[:: steps[0], :: steps[1]])
    # Of steps other than 1 along the axis along which x lies, neighbours are none in memory.
    assert any("4 × 4 elements" in name for name in names) or steps[0] != 1


@pytest.mark.parametrize("start", [0, 1, 2, 4])
def test_parts_of_a_tensor(start: int, vulkan_device_name: str) -> None:
    """What is read begins between vectors, what is written is a part of a result."""
    x = numbers(368, 368 + start)
    sketch = Sketch("parts")
    listed = [sketch.constant(np.array([number])) for number in (start, 2**31, 1)]
    cut = sketch.node("Slice", sketch.input("x", x.shape), *listed)
    turned = sketch.node("Transpose", cut, perm=[1, 0])
    other = sketch.input("other", (368, 4 + start))
    both = sketch.node("Concat", other, turned, axis=1)
    feed = {"x": x, "other": numbers(368, 4 + start, seed=3)}
    found, names = run(sketch.finish(both), feed, vulkan_device_name)
    np.testing.assert_array_equal(found[0], np.concatenate([feed["other"], x[:, start:].T], axis=1))
    assert any("4 × 4 elements" in name for name in names)


def test_open_sizes(vulkan_device_name: str) -> None:
    """One plan, whose threads have blocks, for tensors of all sizes."""
    sketch = Sketch("open")
    x = sketch.input("x", ("batch", "rows", "columns"))
    graph = sketch.finish(sketch.node("Neg", sketch.node("Transpose", x, perm=[0, 2, 1])))
    with vkml.InferenceSession(save_graph(graph), devices=vulkan_device_name) as session:
        for shape in ((3, 400, 300), (2, 256, 512), (5, 37, 1001), (2, 3, 5), (4, 777, 2), (31, 63, 65)):
            given = numbers(*shape)
            np.testing.assert_array_equal(session.run(None, {"x": given})[0], -given.transpose(0, 2, 1))
        assert len(open_plans(session)) == 1
        served = session.report({"batch": 5, "rows": 37, "columns": 1001}).steps
        assert any("4 × 4 elements" in step.variant for step in served)


def test_operands_of_any_sizes(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones of all ranks, which end within tiles and between vectors, of all types and mixed ones."""
    monkeypatch.setattr(blocks, "forced", True)
    cases = Cases(92)
    rng = cases.random
    for name in ("float32", "float16", "float64", "uint8", "bool", "int16", "int64"):
        for rank in (2, 2, 3, 4, 5):
            shape = tuple(int(size) for size in rng.choice([1, 2, 3, 4, 5, 8, 12, 17, 24, 64], rank))
            perm = [int(axis) for axis in rng.permutation(rank)]
            cases.add("Transpose", cases.array(name, shape), perm=perm)
    for name in ("float32", "float16", "int32", "int64"):
        for rank in (2, 3, 4):
            shape = tuple(int(size) for size in rng.choice([1, 2, 3, 4, 8, 13, 24, 40], rank))
            cases.add("Mul", cases.array(name, shape), cases.array(name, cases.broadcastable(shape)))
            cases.add("Max", *[cases.array(name, shape) for _ in range(5)])
            picked = cases.array("bool", cases.broadcastable(shape))
            cases.add("Where", picked, cases.array(name, shape), cases.array(name, shape))
            cases.add("Cast", cases.array(name, shape), to=dtypes.FLOAT16.code)
    cases.check(vulkan_device_name)
    cases.check(vulkan_device_name, is_strided=True)


# --- what is chosen -----------------------------------------------------------------------------------------


def chosen(shape: tuple[int, ...], perm: tuple[int, ...], dtype: DType = dtypes.FLOAT32) -> Blocks | None:
    """The blocks of a transpose."""
    source, target = operands(shape, perm, dtype)
    sizes, strides = collapse(target.shape, [source.strides, target.strides])
    return blocks_of([source], [target], sizes, strides, is_copy=True)


def operands(shape: tuple[int, ...], perm: tuple[int, ...], dtype: DType) -> tuple[View, View]:
    type_ = TensorType(dtype, shape)
    bytes_ = dtype.bytes_for(math.prod(shape))
    source = contiguous(Buffer(BufferKind.ACTIVATION, bytes_), type_).transpose(perm)
    return source, contiguous(Buffer(BufferKind.ACTIVATION, bytes_), source.type)


def test_threads_have_blocks_where_operands_lie_apart() -> None:
    assert chosen((512, 512), (0, 1)) is None
    assert chosen((64, 64, 16, 64), (0, 2, 1, 3)) is None, "rows are kept whole"
    assert chosen((128, 128), (1, 0)) is None, "so few elements that each had better have a thread"
    assert chosen((LEAST_SIDE - 1, 1 << 17), (1, 0)) is None, "neighbours that are read share sectors"
    assert chosen((1 << 17, LEAST_SIDE - 1), (1, 0)) is None
    assert chosen((512, 512), (1, 0)) is not None


def test_only_copies_of_small_elements_move_bits() -> None:
    for dtype, is_copy, is_in_words in (
        (dtypes.FLOAT16, True, True),
        (dtypes.FLOAT16, False, False),
        (dtypes.FLOAT32, True, False),
    ):
        source, target = operands((2048, 2048), (1, 0), dtype)
        strides = [source.strides, target.strides]
        made = blocks_of([source], [target], target.shape, strides, is_copy=is_copy)
        assert made is not None
        assert made.is_in_words == is_in_words


def test_a_cast_is_no_copy(vulkan_device_name: str) -> None:
    x = np.random.default_rng(1).integers(0, 200, (2048, 2048)).astype(np.uint8)
    sketch = Sketch("cast")
    turned = sketch.node("Transpose", sketch.input("x", x.shape, dtypes.UINT8), perm=[1, 0])
    data = save_graph(sketch.finish(sketch.node("Cast", turned, to=dtypes.FLOAT16.code)))
    with vkml.InferenceSession(data, devices=vulkan_device_name) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.T.astype(np.float16))


@pytest.mark.parametrize(
    ("shape", "dtype", "widths"),
    [
        ((512, 512), dtypes.FLOAT32, (4, 4)),
        ((512, 512), dtypes.FLOAT16, (4, 4)),
        ((512, 512), dtypes.INT64, (2, 2)),
        ((511, 512), dtypes.FLOAT32, (4, 1)),
        ((512, 510), dtypes.FLOAT32, (2, 4)),
    ],
)
def test_vectors_are_as_wide_as_alignment_allows(
    shape: tuple[int, int], dtype: DType, widths: tuple[int, int]
) -> None:
    made = chosen(shape, (1, 0), dtype)
    assert made is not None
    assert (made.rows.width, made.columns.width) == widths
    assert made.rows.side == made.columns.side
    assert made.items == 256


def test_only_elements_of_a_thread_alone_are_written_over() -> None:
    """Threads at the end read elements of others for those that they lack, and nobody may write these."""
    for shape, is_alone in (((512, 512), True), ((513, 512), False), ((512, 513), False)):
        source, target = operands(shape, (1, 0), dtypes.FLOAT32)
        made = pointwise(identity(source.type), [source], [target], label="copy", push_limit=128)
        assert made.kernel.in_place == ({0} if is_alone else set())
