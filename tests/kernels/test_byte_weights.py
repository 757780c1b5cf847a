"""Products of bytes by constant weights in the order of fragments: exact, and the rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import vkml
from tests.kernels.test_byte_product import FRAGMENT, GPU, bytes_of, launches_of
from tests.vulkan_cases import Array
from vkml import vulkan
from vkml.engine.devices import target_of
from vkml.engine.sketch import Sketch
from vkml.ir import DType, TensorType, dtypes
from vkml.kernels import byte_weights
from vkml.kernels.byte_weights import in_fragments, pairs_of
from vkml.kernels.gemm import matrix_product
from vkml.kernels.matrix_units import Tile
from vkml.kernels.slang import compile_kernel
from vkml.kernels.slang import opcodes as op
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.target import Target
from vkml.onnx import save_graph

TILES = {
    "two subgroups": Tile(16, 16, 2, 1, 32, 1, 1.0, 1.0),
    "lanes take lines out of turn": Tile(16, 16, 4, 1, 32, 2, 1.0, 1.0),
    "slices of k": Tile(16, 16, 2, 2, 32, 2, 1.0, 1.0),
}
"""Small, for lavapipe compiles fragments for seconds."""


@pytest.fixture
def units(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A device whose matrix units multiply int8; a tile is forced."""
    if target_of(vulkan.find_device(vulkan_device_name, True)).byte_fragment is None:
        pytest.skip("no int8 matrix units on this device")
    monkeypatch.setattr(byte_weights, "forced", (TILES["two subgroups"], 1))
    yield vulkan_device_name


def run(device: str, sketch: Sketch, value: str, feed: dict[str, Array], count: int = 1) -> Array:
    """The only output, of a model with so many products by weights in fragments; nothing beyond operands is
    touched."""
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(save_graph(sketch.finish(value)), options, devices=device) as session:
        [found] = session.run(None, feed)
        variants = [step.variant for step in session.report().steps if "fragments" in step.variant]
    assert len(variants) == count, variants
    return np.asarray(found)


def wide(array: Array) -> Array:
    return array.astype(np.int64)


@pytest.mark.parametrize(
    ("kind", "splits", "a_type", "m", "k", "n"),
    [
        ("two subgroups", 1, np.int8, 32, 64, 32),
        ("two subgroups", 1, np.uint8, 19, 70, 21),
        ("two subgroups", 1, np.uint8, 1, 2, 1),
        ("two subgroups", 1, np.uint8, 33, 75, 21),
        ("two subgroups", 2, np.int8, 520, 203, 37),
        ("two subgroups", 2, np.uint8, 21, 400, 36),
        ("lanes take lines out of turn", 1, np.uint8, 35, 208, 68),
        ("slices of k", 1, np.int8, 18, 330, 40),
        ("slices of k", 2, np.uint8, 18, 330, 40),
    ],
)
def test_products(
    units: str,
    kind: str,
    splits: int,
    a_type: type,
    m: int,
    k: int,
    n: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole tiles and others, bytes with signs and without, ranges and slices of k."""
    monkeypatch.setattr(byte_weights, "forced", (TILES[kind], splits))
    a, b = bytes_of(a_type, m, k), bytes_of(np.int8, k, n)
    a[0], b[:, 0] = np.iinfo(a_type).max, -128  # the largest sums
    sketch = Sketch("product")
    value = sketch.input("a", a.shape, dtypes.from_numpy(a.dtype))
    found = run(units, sketch, sketch.node("MatMulInteger", value, sketch.constant(b)), {"a": a})
    np.testing.assert_array_equal(found, wide(a) @ wide(b))


@pytest.mark.parametrize("start", [0, 6, 13, 16])
def test_rows_that_lie_anywhere(units: str, start: int) -> None:
    """What lies beside them is not multiplied."""
    a, b = bytes_of(np.uint8, 19, 90), bytes_of(np.int8, 66, 24)
    sketch = Sketch("product")
    value = sketch.input("a", a.shape, dtypes.UINT8)
    bounds = [sketch.constant(np.array([each], np.int64)) for each in (start, start + 66, 1)]
    value = sketch.node("Slice", value, *bounds)
    found = run(units, sketch, sketch.node("MatMulInteger", value, sketch.constant(b)), {"a": a})
    np.testing.assert_array_equal(found, wide(a[:, start : start + 66]) @ wide(b))


@pytest.mark.parametrize("n", [36, 37])
def test_results_are_quantised_by_the_product(units: str, n: int) -> None:
    """Zero points, scales of columns and rounding are its epilogue, which stores bytes by fours if it can."""
    a, b = bytes_of(np.uint8, 2, 11, 68), bytes_of(np.int8, 68, n)
    factors = np.linspace(0.01, 0.1, n, dtype=np.float32)
    sketch = Sketch("quantised")
    operands = np.float32(0.02), np.uint8(131), b, factors, np.zeros(n, np.int8), np.float32(0.9), np.uint8(3)
    scale, zero, weight, scales, none, to, shift = map(sketch.constant, operands)
    value = sketch.input("a", a.shape, dtypes.UINT8)
    value = sketch.node("QLinearMatMul", value, scale, zero, weight, scales, none, to, shift)
    data = save_graph(sketch.finish(value))
    with vkml.InferenceSession(data, devices=units) as session:
        [found] = session.run(None, {"a": a})
        [*copies, step] = session.report().steps
    assert "fragments" in step.variant and [each.kernel for each in copies] == ["padded_lines"]
    [expected] = vkml.InferenceSession(data, devices="cpu").run(None, {"a": a})
    np.testing.assert_array_equal(found, expected)


def test_one_plan_serves_all_numbers_of_rows(units: str) -> None:
    b = bytes_of(np.int8, 72, 20)
    sketch = Sketch("open")
    value = sketch.input("a", ("rows", 72), dtypes.UINT8)
    data = save_graph(sketch.finish(sketch.node("MatMulInteger", value, sketch.constant(b))))
    with vkml.InferenceSession(data, devices=units) as session:
        for rows in (9, 16, 33, 5):
            a = bytes_of(np.uint8, rows, 72)
            [found] = session.run(None, {"a": a})
            np.testing.assert_array_equal(found, wide(a) @ wide(b))
            assert any("fragments" in step.variant for step in session.report().steps)


def test_other_operands_have_other_kernels(units: str) -> None:
    """Weights of each batch."""
    a, b = bytes_of(np.int8, 2, 9, 64), bytes_of(np.int8, 2, 64, 12)
    sketch = Sketch("product")
    value = sketch.node("MatMulInteger", sketch.input("a", a.shape, dtypes.INT8), sketch.constant(b))
    found = run(units, sketch, value, {"a": a}, 0)
    np.testing.assert_array_equal(found, wide(a) @ wide(b))


def test_weights_lie_fragment_after_fragment() -> None:
    """Along n, then along k, the columns of each one after the other; zeros up to whole steps, and behind."""
    b = bytes_of(np.int8, 130, 21)
    packed = in_fragments(b[None], columns=8, rows=32).view(np.int8)
    blocks = packed[: 256 * 32].reshape(8, 4, 8, 32)
    matrix = blocks.transpose(0, 3, 1, 2).reshape(256, 32)
    np.testing.assert_array_equal(matrix[:130, :21], b)
    assert np.count_nonzero(packed) == np.count_nonzero(b)
    # What the widest tile reads of steps that are fetched ahead.
    assert packed.size == 256 * 32 + 128 * (32 + 512)


def bytes_view(dtype: DType, *shape: int) -> View:
    type_ = TensorType(dtype, shape)
    return contiguous(Buffer(BufferKind.INPUT, type_.bytes, "a"), type_)


def test_what_lies_in_pairs() -> None:
    a = bytes_view(dtypes.UINT8, 1, 12, 64)
    for each in (a, replace(a, shape=(1, 12, 63))):
        pairs = pairs_of(each)
        assert (pairs.shape, pairs.strides, pairs.dtype) == ((1, 12, 32), (0, 32, 1), dtypes.UINT16)


def is_packed(target: Target, *types: DType, m: int = 2048, k: int = 2048, n: int = 2048) -> bool:
    forget_lowerings()
    launches = launches_of(target, m, k, n, (types[0], types[1]))
    return any("fragments" in launch.kernel.variant for launch in launches)


@pytest.mark.parametrize("tile", byte_weights.TILES, ids=Tile.label)
def test_every_tile_suits_the_gpu_and_multiplies_with_signs(
    tile: Tile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_weights, "forced", (tile, 1))
    forget_lowerings()
    [launch] = launches_of(GPU, 256, 512, 256, (dtypes.UINT8, dtypes.INT8))
    assert "fragments" in launch.kernel.variant
    words = np.frombuffer(compile_kernel(launch.kernel.source), np.uint32)[5:]
    at, signs = 0, []
    while at < words.size:
        length, opcode = divmod(int(words[at]), 1 << 16)
        if opcode == op.MATRIX_MUL_ADD:
            signs.append(tuple(words[at + 6 : at + length]))
        at += length
    assert set(signs) == {(15,)}
    assert len(signs) == tile.sub_m * tile.sub_n * 2 * tile.step_k // (16 * 8 * 32)


def test_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant int8 weights of one matrix, where units are expected to be faster."""
    assert not is_packed(GPU, dtypes.INT8, dtypes.INT8)  # not timed on a GPU yet
    monkeypatch.setattr(byte_weights, "offered", True)
    assert is_packed(GPU, dtypes.INT8, dtypes.INT8)
    assert is_packed(GPU, dtypes.UINT8, dtypes.INT8)
    assert not is_packed(GPU, dtypes.UINT8, dtypes.UINT8)
    assert not is_packed(GPU, dtypes.INT8, dtypes.UINT8)
    assert is_packed(GPU, dtypes.INT8, dtypes.INT8, k=2047)
    assert not is_packed(GPU, dtypes.INT8, dtypes.INT8, m=4, k=32, n=32)
    for target in (
        replace(GPU, byte_fragment=None),
        replace(GPU, byte_fragment=replace(FRAGMENT, m=8, n=8, k=16)),
        replace(GPU, capabilities=GPU.capabilities - {"int8"}),
    ):
        assert not is_packed(target, dtypes.INT8, dtypes.INT8)


def test_wide_tiles_are_for_large_products() -> None:
    def best(m: int, k: int, n: int) -> Tile:
        a, b = bytes_view(dtypes.INT8, 1, m, k), bytes_view(dtypes.INT8, 1, k, n)
        product = matrix_product(a, b, TensorType(dtypes.INT32, (1, m, n)))
        return min(byte_weights.choices(GPU, product, a, b), key=lambda choice: choice.time).tile

    assert best(8192, 8192, 8192).n == 256
    assert best(128, 512, 512).m < 64
