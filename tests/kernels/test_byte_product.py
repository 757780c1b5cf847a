"""Products and convolutions of 8-bit integers on Vulkan: exact, whatever their types, sizes and places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkml
from tests.vulkan_cases import Array, Cases, Fixed
from vkml import vulkan
from vkml.engine.devices import resolve, target_of
from vkml.engine.sketch import Sketch
from vkml.ir import Constant, DType, TensorType, dtypes
from vkml.ir.windows import Windows
from vkml.kernels import byte_product, byte_units, gemm
from vkml.kernels.byte_blocks import in_blocks, shape_of
from vkml.kernels.byte_units import Tile
from vkml.kernels.packed_weights import Fragment
from vkml.kernels.slang import compile_kernel
from vkml.kernels.slang import opcodes as op
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering import passes_over_operands
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.target import BYTE_NEEDS, Target
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph

RANDOM = np.random.default_rng(93)
ONES = (1, 1, 1, 1)


def bytes_of(dtype: type, *shape: int) -> Array:
    bounds = np.iinfo(dtype)
    return RANDOM.integers(bounds.min, bounds.max + 1, shape).astype(dtype)


def products(cases: Cases, a_type: type, b_type: type) -> None:
    """Of words, of bytes that are gathered one by one or four at a time, of constants and of fed values."""
    for m, k, n in ((5, 16, 7), (3, 9, 8), (1, 20, 12), (6, 2, 1), (2, 36, 40)):
        a, b = bytes_of(a_type, m, k), bytes_of(b_type, k, n)
        cases.add("MatMulInteger", a, Fixed(b))
        cases.add("MatMulInteger", a, b)
    cases.add("MatMulInteger", bytes_of(a_type, 2, 3, 8), bytes_of(b_type, 2, 8, 4))
    cases.add("MatMulInteger", bytes_of(a_type, 8), Fixed(bytes_of(b_type, 3, 8, 4)))


def convolutions(cases: Cases, x_type: type, w_type: type) -> None:
    """Windows and pixels, of whole words of channels and others, in one group and in two."""
    for channels, group, kernel in ((8, 1, 3), (3, 1, 3), (8, 2, 3), (6, 2, 1), (128, 1, 2)):
        x, weight = (
            bytes_of(x_type, 2, channels, 6, 5),
            bytes_of(w_type, 4, channels // group, kernel, kernel),
        )
        cases.add("ConvInteger", x, Fixed(weight), group=group, pads=ONES if kernel > 1 else (0, 0, 0, 0))
    # Pixels that are read four at a time, and windows of one and of three axes.
    cases.add("ConvInteger", bytes_of(x_type, 2, 5, 4, 4), Fixed(bytes_of(w_type, 3, 5, 1, 1)))
    cases.add("ConvInteger", bytes_of(x_type, 1, 4, 9), Fixed(bytes_of(w_type, 2, 4, 3)), strides=[2])
    cases.add("ConvInteger", bytes_of(x_type, 1, 4, 3, 4, 4), Fixed(bytes_of(w_type, 2, 4, 2, 2, 2)))


@pytest.mark.parametrize("b_type", [np.int8, np.uint8])
@pytest.mark.parametrize("a_type", [np.int8, np.uint8])
@pytest.mark.parametrize("is_strided", [False, True], ids=["whole", "strided"])
def test_all_types(vulkan_device_name: str, a_type: type, b_type: type, is_strided: bool) -> None:
    cases = Cases()
    products(cases, a_type, b_type)
    convolutions(cases, a_type, b_type)
    cases.check(vulkan_device_name, is_strided=is_strided)


@pytest.mark.parametrize("b_type", [np.int8, np.uint8])
@pytest.mark.parametrize("is_strided", [False, True], ids=["whole", "strided"])
def test_lines_are_padded_to_whole_words(
    vulkan_device_name: str, b_type: type, is_strided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By copies of operands whose bytes would be gathered one by one; so long products that are large."""
    copied: list[Any] = []
    emit = passes_over_operands.emit_padded_lines
    monkeypatch.setattr(
        passes_over_operands, "emit_padded_lines", lambda *given: (copied.append(given), emit(*given))[1]
    )
    monkeypatch.setattr(byte_product, "GATHERED", 1e-9)
    forget_lowerings()
    cases = Cases()
    products(cases, np.uint8, b_type)
    for m, k, n in ((17, 67, 21), (3, 130, 515), (530, 9, 33), (2, 1, 3)):
        cases.add("MatMulInteger", bytes_of(np.int8, m, k), bytes_of(b_type, k, n))
    cases.add("MatMulInteger", bytes_of(np.uint8, 3, 7, 9), bytes_of(b_type, 3, 9, 5))
    cases.add("MatMulInteger", bytes_of(np.uint8, 3, 7, 9), bytes_of(b_type, 9, 5))
    cases.check(vulkan_device_name, is_strided=is_strided)
    assert len(copied) > 8
    forget_lowerings()


def test_what_is_small_gathers_its_bytes() -> None:
    """Where there are no units: a copy is a launch of its own."""
    for m, k, n, copies in (
        (4095, 4095, 4095, 2),
        (4095, 4096, 4096, 0),
        (4096, 4095, 4096, 1),
        (33, 51, 65, 0),
    ):
        operands = (TensorType(dtypes.INT8, shape) for shape in ((1, m, k), (1, k, n)))
        a, b = (contiguous(Buffer(BufferKind.INPUT, type_.bytes), type_) for type_ in operands)
        forget_lowerings()
        build = VulkanBuilder(replace(GPU, byte_fragment=None))
        with build.step(TensorType(dtypes.INT32, (1, m, n))):
            build.byte_matmul(a, b)
        labels = [launch.kernel.label for launch in build.launches]
        assert labels == ["padded_lines"] * copies + ["byte_matmul"], (m, k, n)


def test_zero_points(vulkan_device_name: str) -> None:
    """Whatever they are of: they are taken out of sums of the bytes' products."""
    cases = Cases()
    a, b = bytes_of(np.uint8, 2, 5, 8), bytes_of(np.int8, 8, 6)
    of_a, of_b = np.uint8(130), np.int8(-7)
    for zeros in ((of_a, of_b), (of_a, None), (None, of_b), (of_a, bytes_of(np.int8, 6))):
        cases.add(
            "MatMulInteger", a, Fixed(b), *(None if zero is None else np.asarray(zero) for zero in zeros)
        )
    cases.add("MatMulInteger", a, b, bytes_of(np.uint8, 2, 5, 1), bytes_of(np.int8, 1, 6))
    cases.add("MatMulInteger", a[0], b, bytes_of(np.uint8, 5), np.array([-3], np.int8))
    cases.add("MatMulInteger", a, b[:, 0], bytes_of(np.uint8, 2, 5, 1), np.asarray(of_b))
    cases.add("MatMulInteger", a[0, 0], b, np.asarray(of_a), bytes_of(np.int8, 6))
    cases.add("MatMulInteger", a[0, 0], b, np.asarray(of_a), bytes_of(np.int8, 1, 6))
    cases.add("MatMulInteger", a[0, 0], b[:, 0], np.array([9], np.uint8), np.asarray(of_b))
    # Sums of the rows of one number, which needs no memory.
    cases.add("MatMulInteger", Fixed(np.array([[8]], np.uint8)), b[:1, :1], None, np.asarray(of_b))
    x, weight = bytes_of(np.uint8, 1, 4, 5, 5), bytes_of(np.int8, 6, 4, 3, 3)
    small = Fixed((weight // 2).astype(np.int8))
    cases.add("ConvInteger", x, small, Fixed(np.asarray(of_a)), Fixed(np.asarray(of_b)), pads=ONES)
    cases.add("ConvInteger", x, small, np.asarray(of_a), auto_pad="SAME_UPPER", strides=(2, 2))
    cases.add("ConvInteger", x, Fixed(weight), np.asarray(of_a), bytes_of(np.int8, 6), pads=ONES)
    cases.add("ConvInteger", x, weight, Fixed(np.asarray(of_a)), pads=ONES)
    cases.add(
        "ConvInteger", x, Fixed(weight), np.asarray(of_a), Fixed(bytes_of(np.int8, 6)), dilations=(2, 1)
    )
    cases.check(vulkan_device_name, level=0)
    cases.check(vulkan_device_name)


def test_zero_points_of_zero_are_none(vulkan_device_name: str) -> None:
    """Bytes are multiplied as such, not as int32, whichever operator names them."""
    sketch, zero, one = Sketch("zeros"), np.int8(0), np.float32(0.05)
    x = sketch.input("x", (5, 12), dtypes.INT8)
    weight, zeros, scale = map(sketch.constant, (bytes_of(np.int8, 12, 8), zero, one))
    scaled = sketch.node("QLinearMatMul", x, scale, zeros, weight, scale, zeros, scale, zeros)
    summed = sketch.node("MatMulInteger", x, weight, zeros, zeros)
    data = save_graph(sketch.finish(scaled, summed))
    feed = {"x": bytes_of(np.int8, 5, 12)}
    with vkml.InferenceSession(data, devices=vulkan_device_name) as session:
        found = session.run(None, feed)
        kernels = [step.kernel for step in session.report().steps]
    if resolve(vulkan_device_name, "cpu").multiplies_bytes:
        assert kernels == ["byte_matmul", "byte_matmul"]
    expected = vkml.InferenceSession(data, devices="cpu").run(None, feed)
    for here, there in zip(found, expected, strict=True):
        np.testing.assert_array_equal(here, there)


def test_all_sizes_may_be_open(vulkan_device_name: str) -> None:
    sketch = Sketch("open")
    x = sketch.input("x", (None, None), dtypes.UINT8)
    y = sketch.input("y", (None, None), dtypes.INT8)
    made = sketch.node("MatMulInteger", x, y, sketch.constant(np.uint8(7)))
    with vkml.InferenceSession(save_graph(sketch.finish(made)), devices=vulkan_device_name) as session:
        for m, k, n in ((3, 8, 4), (5, 9, 7), (4, 12, 8), (7, 13, 6), (2, 16, 4)):
            a, b = bytes_of(np.uint8, m, k), bytes_of(np.int8, k, n)
            [found] = session.run(None, {"x": a, "y": b})
            np.testing.assert_array_equal(found, (a.astype(np.int64) - 7) @ b)


@pytest.fixture
def forced() -> Iterator[None]:
    yield
    gemm.forced = None


@pytest.mark.parametrize("splits", [1, 3])
def test_ranges_of_k(vulkan_device_name: str, forced: None, splits: int) -> None:
    """Large sums, in the one tile that software drivers compile in time."""
    gemm.forced = (next(tile for tile in gemm.TILES if (tile.m, tile.n, tile.k) == (32, 32, 16)), splits)
    cases = Cases()
    cases.add("MatMulInteger", bytes_of(np.uint8, 40, 532), Fixed(bytes_of(np.int8, 532, 36)))
    weight = Fixed(bytes_of(np.int8, 40, 128, 3, 3))
    cases.add("ConvInteger", bytes_of(np.uint8, 1, 128, 5, 7), weight, pads=ONES)
    cases.check(vulkan_device_name)


@pytest.mark.parametrize("tile", [tile for tile in gemm.TILES if (tile.m, tile.n, tile.k) == (16, 64, 16)])
def test_bytes_are_stored_by_fours(
    vulkan_device_name: str, forced: None, tile: gemm.Tile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a thread makes of neighbours is one store; its epilogue reads and computes for each."""
    gemm.forced = (tile, 1)
    by_fours: list[Any] = []
    emit = gemm.emit_vector_store
    monkeypatch.setattr(gemm, "emit_vector_store", lambda *given: (by_fours.append(given), emit(*given)))
    sketch = Sketch("bytes")
    operands = [
        np.float32(0.02),
        np.uint8(3),
        bytes_of(np.int8, 20, 68),
        np.linspace(0.01, 0.1, 68, dtype=np.float32),
        np.zeros(68, np.int8),
    ]
    scale, zero, weight, factors, none = map(sketch.constant, operands)
    x = sketch.input("x", (1, 10, 20), dtypes.UINT8)
    made = sketch.node("QLinearMatMul", x, scale, zero, weight, factors, none, scale, zero)
    filters = sketch.constant(bytes_of(np.int8, 12, 10, 1))
    sums = [sketch.constant(np.zeros((), np.int8)), scale, zero]
    conv = sketch.node("QLinearConv", x, scale, zero, filters, scale, sums[0], scale, zero)
    data = save_graph(sketch.finish(made, conv))
    feed = {"x": bytes_of(np.uint8, 1, 10, 20)}
    with vkml.InferenceSession(data, devices=vulkan_device_name) as session:
        found = session.run(None, feed)
        kernels = [step.kernel for step in session.report().steps]
    if resolve(vulkan_device_name, "cpu").multiplies_bytes:
        assert kernels == ["byte_matmul", "byte_conv"] and len(by_fours) == 2
    expected = vkml.InferenceSession(data, devices="cpu").run(None, feed)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def units(vulkan_device_name: str) -> Iterator[str]:
    """A device whose matrix units multiply int8."""
    fragment = target_of(vulkan.find_device(vulkan_device_name, True)).byte_fragment
    if fragment is None:
        pytest.skip("no int8 matrix units on this device")
    yield vulkan_device_name
    byte_units.forced = None


@pytest.mark.parametrize(
    ("a_type", "splits", "k"), [(np.int8, 1, 4), (np.uint8, 3, 4), (np.uint8, 1, 16), (np.int8, 2, 16)]
)
def test_matrix_units(units: str, a_type: type, splits: int, k: int) -> None:
    """From unsigned operands 128 is taken and given back.

    Tiles of 16 words along k are fetched and stored by four of them where operands lie so.
    """
    fragment = target_of(vulkan.find_device(units, True)).byte_fragment
    assert fragment is not None
    # Few fragments: lavapipe compiles more of them for long.
    tile = Tile(2 * fragment.m, 2 * fragment.n, max(k, fragment.k // 2), fragment.m, 2 * fragment.n)
    byte_units.forced = (tile, splits)
    cases = Cases()
    cases.add("MatMulInteger", bytes_of(a_type, 2, 9, 150), Fixed(bytes_of(np.int8, 2, 150, 7)))
    cases.add("MatMulInteger", bytes_of(a_type, 11, 144), Fixed(bytes_of(np.int8, 144, 18)))  # by whole words
    cases.add("MatMulInteger", bytes_of(a_type, 9, 80), Fixed(bytes_of(np.int8, 80, 20)))  # results by fours
    if a_type == np.int8:
        cases.add("MatMulInteger", bytes_of(a_type, 9, 144), bytes_of(np.int8, 144, 20))  # of four steps of k
    cases.check(units)
    graph, _, _ = cases.graph()
    with vkml.InferenceSession(save_graph(graph), devices=units) as session:
        variants = [step.variant for step in session.report().steps if "byte" in step.kernel]
    assert len(variants) == len(cases.cases) and all("matrix units" in variant for variant in variants)


@pytest.mark.parametrize(("a_type", "splits"), [(np.int8, 1), (np.uint8, 2)])
@pytest.mark.parametrize("is_strided", [False, True], ids=["whole", "strided"])
def test_convolutions_on_matrix_units(units: str, a_type: type, splits: int, is_strided: bool) -> None:
    """Of images whose channels lie side by side, or are copied so; what pads images is changed like them."""
    fragment = target_of(vulkan.find_device(units, True)).byte_fragment
    assert fragment is not None
    k = max(16 // splits, fragment.k // 2)
    byte_units.forced = Tile(2 * fragment.m, 2 * fragment.n, k, fragment.m, 2 * fragment.n), splits
    cases = Cases()

    def convolution(x: tuple[int, ...], weight: tuple[int, ...], zero: int, **attributes: Any) -> None:
        filters = Fixed(bytes_of(np.int8, *weight))
        cases.add("ConvInteger", bytes_of(a_type, *x), filters, Fixed(np.asarray(zero, a_type)), **attributes)

    convolution((2, 32, 6, 4), (12, 16, 3, 3), 7, group=2, pads=ONES)
    convolution((1, 48, 7, 5), (8, 48, 1, 1), 0)
    convolution((2, 16, 9, 8), (20, 16, 3, 2), 3, strides=(2, 1), dilations=(2, 3), pads=(2, 0, 1, 3))
    convolution((1, 80, 11), (5, 80, 4), 1, pads=(3, 3))
    convolution((1, 16, 3, 4, 5), (7, 16, 2, 1, 3), 2, pads=(1, 0, 1, 0, 0, 1))
    cases.check(units, is_strided=is_strided)
    graph, _, _ = cases.graph()
    with vkml.InferenceSession(save_graph(graph), devices=units) as session:
        variants = [step.variant for step in session.report().steps if "byte" in step.kernel]
    assert len(variants) == len(cases.cases) and all("matrix units" in variant for variant in variants)


def test_channels_stay_side_by_side(units: str) -> None:
    """From one convolution to the next, through what is fused behind it: one copy of what is fed."""
    fragment = target_of(vulkan.find_device(units, True)).byte_fragment
    assert fragment is not None
    byte_units.forced = Tile(2 * fragment.m, 2 * fragment.n, 16, fragment.m, 2 * fragment.n), 1
    sketch = Sketch("convolutions")
    scale, zero = sketch.constant(np.float32(0.02)), sketch.constant(np.uint8(3))
    x = sketch.input("x", (1, 32, 7, 6), dtypes.UINT8)

    def convolution(value: str, filters: int, channels: int, kernel: int) -> str:
        weight = sketch.constant(bytes_of(np.int8, filters, channels, kernel, kernel))
        factors = sketch.constant(np.linspace(0.001, 0.002, filters, dtype=np.float32))
        none = sketch.constant(np.zeros(filters, np.int8))
        pads = (kernel // 2,) * 4
        return sketch.node("QLinearConv", value, scale, zero, weight, factors, none, scale, zero, pads=pads)

    first = convolution(x, 16, 32, 3)
    last = convolution(convolution(first, 48, 16, 1), 9, 48, 3)
    data = save_graph(sketch.finish(last, convolution(first, 20, 16, 3)))
    feed = {"x": bytes_of(np.uint8, 1, 32, 7, 6)}
    with vkml.InferenceSession(data, devices=units) as session:
        found = session.run(None, feed)
        kernels = [step.kernel for step in session.report().steps]
    assert sorted(kernels) == ["byte_conv"] * 4 + ["copy"]
    expected = vkml.InferenceSession(data, devices="cpu").run(None, feed)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("a_type", "n"), [(np.uint8, 36), (np.int8, 36), (np.uint8, 37)])
def test_units_quantise_their_results(units: str, a_type: type, n: int) -> None:
    """Zero points, scales of columns and rounding are the epilogue, which stores fours if it can."""
    fragment = target_of(vulkan.find_device(units, True)).byte_fragment
    assert fragment is not None
    byte_units.forced = (Tile(fragment.m, 2 * fragment.n, 16, fragment.m, fragment.n), 1)
    a, b = bytes_of(a_type, 2, 11, 80), bytes_of(np.int8, 80, n)
    # onnxruntime's zero point of int8 is 0 where numbers are symmetric.
    of_a = a_type(131 if a_type == np.uint8 else 0)
    factors = np.linspace(0.01, 0.1, n, dtype=np.float32)
    sketch = Sketch("quantised")
    operands = np.float32(0.02), of_a, b, factors, np.zeros(n, np.int8), np.float32(0.9), a_type(3)
    scale, zero, weight, scales, none, to, shift = map(sketch.constant, operands)
    value = sketch.input("a", a.shape, dtypes.from_numpy(a.dtype))
    made = sketch.node("QLinearMatMul", value, scale, zero, weight, scales, none, to, shift)
    data = save_graph(sketch.finish(made))
    with vkml.InferenceSession(data, devices=units) as session:
        [found] = session.run(None, {"a": a})
        [step] = session.report().steps
    assert "matrix units, int8" in step.variant
    [expected] = vkml.InferenceSession(data, devices="cpu").run(None, {"a": a})
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("k", "n"), [(80, 36), (208, 41), (592, 36)])
@pytest.mark.parametrize("a_type", [np.int8, np.uint8])
def test_tiles_beyond_the_last_line(units: str, a_type: type, k: int, n: int, splits: int) -> None:
    """They begin further up; what is read in place of what lies behind a line's end does not count."""
    fragment = target_of(vulkan.find_device(units, True)).byte_fragment
    assert fragment is not None
    tile = Tile(2 * fragment.m, 2 * fragment.n, 32, fragment.m, 2 * fragment.n)
    byte_units.forced = (tile, splits)
    m = 3 * tile.m - 11
    sketch = Sketch("lines")
    a, b, other = bytes_of(a_type, m, k), bytes_of(np.int8, k, n), bytes_of(np.int8, n, k)
    x = sketch.input("x", a.shape, dtypes.from_numpy(a.dtype))
    # In blocks, and in lines as well.
    made = [sketch.node("MatMulInteger", x, sketch.constant(b))]
    if a_type == np.int8:
        y = sketch.input("y", other.shape, dtypes.INT8)
        made.append(sketch.node("MatMulInteger", x, sketch.node("Transpose", y, perm=(1, 0))))
    with vkml.InferenceSession(save_graph(sketch.finish(*made)), devices=units) as session:
        found = session.run(None, {"x": a, "y": other} if a_type == np.int8 else {"x": a})
        variants = [step.variant for step in session.report().steps if "byte_matmul" in step.kernel]
    assert len(variants) == len(made) and all("matrix units" in variant for variant in variants)
    for each, right in zip(found, (b, other.T), strict=False):
        np.testing.assert_array_equal(each, a.astype(np.int64) @ right.astype(np.int64))


@pytest.mark.parametrize(("k", "stages"), [(8, 2), (16, 1), (32, 1)])
@pytest.mark.parametrize("is_strided", [False, True], ids=["whole", "strided"])
def test_operands_in_blocks(
    units: str, is_strided: bool, k: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their lines begin at, along k and across it, once for all batches that have the same."""
    fragment = target_of(vulkan.find_device(units, True)).byte_fragment
    assert fragment is not None
    steps = max(k, fragment.k // 2)
    tile = Tile(2 * fragment.m, 2 * fragment.n, steps, fragment.m, 2 * fragment.n, stages=stages)
    byte_units.forced = tile, 1
    for rate in ("UNTURNED", "GATHERED"):
        monkeypatch.setattr(byte_product, rate, 1e-9)
    made: list[View] = []
    emit = passes_over_operands.emit_byte_blocks
    monkeypatch.setattr(
        passes_over_operands, "emit_byte_blocks", lambda *given: (made.append(given[1]), emit(*given))[1]
    )
    forget_lowerings()
    cases = Cases()
    odd = [((11, 75), (75, 21)), ((2, 9, 67), (2, 67, 13))]
    more = [((9, 64), (64, 64)), ((3, 130), (130, 515)), ((5, 3), (3, 2)), ((2, 9, 64), (64, 13))]
    given = odd + more if k <= fragment.k else odd  # with longer steps lavapipe takes seconds for each
    for left, right in given:
        cases.add("MatMulInteger", bytes_of(np.int8, *left), bytes_of(np.int8, *right))
    cases.add("MatMulInteger", bytes_of(np.uint8, 9, 144), Fixed(bytes_of(np.int8, 144, 20)))
    cases.check(units, is_strided=is_strided)
    # All of B but the constant, and A where lines are no whole words.
    assert len(made) >= (10 if given != odd else 4)
    forget_lowerings()


def test_constants_in_blocks() -> None:
    """Zeros behind the last step and the last row included."""
    for batch, k, rows in ((1, 64, 8), (2, 67, 13), (1, 5, 515), (1, 130, 16)):
        array = bytes_of(np.int8, batch, k, rows)
        blocks = in_blocks(array)
        assert blocks.shape == shape_of(batch, rows, k)
        found = blocks.view(np.int8).reshape(*blocks.shape[:3], 4, 8, 16)
        for b, step, row in ((0, 0, 0), (batch - 1, k - 1, rows - 1), (0, k // 2, rows // 3)):
            place = found[b, step // 64, row // 8, step // 16 % 4, row % 8, step % 16]
            assert place == array[b, step, row]
        assert np.abs(blocks.view(np.int8).astype(np.int64)).sum() == np.abs(array.astype(np.int64)).sum()


FRAGMENT = Fragment(16, 8, 32, 32, "int8")
GPU = Target(
    frozenset((*byte_units.NEEDS, *BYTE_NEEDS)), 256, 49152, 1024, 32, 65535, 132, byte_fragment=FRAGMENT
)


def launches_of(target: Target, m: int, k: int, n: int, types: tuple[DType, DType]) -> list[Dispatch]:
    """Of a product with a constant."""
    build = VulkanBuilder(target)
    x = TensorType(types[0], (1, m, k))
    a = contiguous(Buffer(BufferKind.INPUT, x.bytes, "x"), x)
    b = build.constant(Constant(types[1], (1, k, n), np.zeros((1, k, n), types[1].storage)), "b")
    with build.step(TensorType(dtypes.INT32, (1, m, n))):
        build.byte_matmul(a, b)
    return build.launches


@pytest.mark.parametrize("tile", byte_units.TILES, ids=Tile.label)
def test_every_tile_suits_the_gpu_and_multiplies_with_signs(
    tile: Tile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_units, "forced", (tile, 1))
    assert tile.fits(FRAGMENT, GPU) and tile.fits(replace(FRAGMENT, n=16), GPU)
    [launch] = launches_of(GPU, 256, 64, 128, (dtypes.UINT8, dtypes.INT8))
    words = np.frombuffer(compile_kernel(launch.kernel.source), np.uint32)[5:]
    at, signs = 0, []
    while at < words.size:
        if words[at] & 0xFFFF == op.MATRIX_MUL_ADD:
            signs.append(tuple(words[at + 6 : at + int(words[at] >> 16)]))
        at += int(words[at] >> 16)
    assert signs and set(signs) == {(15,)}


@pytest.mark.parametrize("has_units", [False, True])
def test_constants_are_read_in_blocks_by_units(has_units: bool) -> None:
    """Four words at once; ordinary arithmetic takes words of four columns."""
    target = GPU if has_units else replace(GPU, byte_fragment=None)
    [launch] = launches_of(target, 2048, 2048, 2048, (dtypes.INT8, dtypes.INT8))
    assert ("matrix units" in launch.kernel.variant) == has_units
    assert ("#define B_FORM BLOCKS" in launch.kernel.source) == has_units
    assert f"static const bool B_ALONG_N = {'false' if has_units else 'true'};" in launch.kernel.source
    assert "#define WIDTH_B 4" in launch.kernel.source
    assert ("#define STORED 4" in launch.kernel.source) == has_units


@pytest.mark.parametrize(
    ("x", "filters", "kernel", "is_last", "weight_type", "kernels"),
    [
        ((8, 128, 56, 56), 256, 3, False, dtypes.INT8, ["copy", "units"]),
        ((8, 128, 56, 56), 256, 1, True, dtypes.INT8, ["units"]),
        ((8, 128, 56, 56), 256, 3, False, dtypes.UINT8, ["dot products"]),
        ((8, 120, 56, 56), 256, 3, True, dtypes.INT8, ["dot products"]),
        ((8, 3, 224, 224), 64, 3, False, dtypes.INT8, ["dot products"]),
        ((1, 16, 7, 7), 16, 1, False, dtypes.INT8, ["dot products"]),
    ],
)
def test_which_convolutions_are_for_units(
    x: tuple[int, ...],
    filters: int,
    kernel: int,
    is_last: bool,
    weight_type: DType,
    kernels: list[str],
) -> None:
    """Those of whole words of 16 channels by int8; images are copied if their channels do not lie so."""
    one, pad = (1, 1, 1), (0, kernel // 2, kernel // 2)
    batch, channels, height, width = x
    spatial = (1, height, width)
    windows = Windows(spatial, (1, kernel, kernel), one, one, pad, pad, spatial)
    build = VulkanBuilder(GPU)
    shape = (batch, *spatial, channels) if is_last else (batch, channels, *spatial)
    type_ = TensorType(dtypes.UINT8, shape)
    images = contiguous(Buffer(BufferKind.INPUT, type_.bytes, "x"), type_)
    if is_last:
        images = images.transpose((0, 4, 1, 2, 3))
    constant = np.zeros((filters, channels, *windows.kernel), weight_type.storage)
    weight = build.constant(Constant(weight_type, constant.shape, constant), "w")
    with build.step(TensorType(dtypes.INT32, (batch, filters, *spatial))):
        [made] = build.byte_conv(images, weight, windows, group=1, fill=0)
    found = [
        "units"
        if "matrix units" in launch.kernel.variant
        else launch.kernel.label.replace("byte_conv", "dot products")
        for launch in build.launches
    ]
    assert found == kernels
    assert (made.strides[1] == 1) == ("units" in kernels)


def test_words_across_k_are_stored_by_four_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows of B as they lie, of which a thread fetches four words; so a line's are one store."""
    monkeypatch.setattr(byte_units, "forced", (byte_units.TILES[0], 1))
    build = VulkanBuilder(GPU)
    x, y = (TensorType(dtypes.INT8, (1, *shape)) for shape in ((256, 128), (128, 512)))
    a, b = (
        contiguous(Buffer(BufferKind.INPUT, each.bytes, name), each) for name, each in (("x", x), ("y", y))
    )
    with build.step(TensorType(dtypes.INT32, (1, 256, 512))):
        build.byte_matmul(a, b)
    [launch] = build.launches
    assert "#define STORED 4\n#define OF_FOUR_STEPS 1" in launch.kernel.source
    assert "#define A_FORM LINES" in launch.kernel.source and "#define B_FORM WORDS" in launch.kernel.source


def test_what_a_pass_brings_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of large products, for matrix units alone."""
    monkeypatch.setattr(byte_units, "forced", (byte_units.TILES[0], 1))
    for m, k, n, dtype, passes in (
        (4096, 4096, 4096, dtypes.INT8, ["byte_blocks"]),
        (4095, 4095, 4095, dtypes.INT8, ["byte_blocks", "byte_blocks"]),
        (4096, 4096, 4096, dtypes.UINT8, []),  # nothing is known of either sign: no units
        (256, 128, 512, dtypes.INT8, []),
    ):
        operands = (TensorType(dtype, shape) for shape in ((1, m, k), (1, k, n)))
        a, b = (contiguous(Buffer(BufferKind.INPUT, type_.bytes), type_) for type_ in operands)
        forget_lowerings()
        build = VulkanBuilder(GPU)
        with build.step(TensorType(dtypes.INT32, (1, m, n))):
            build.byte_matmul(a, b)
        assert [launch.kernel.label for launch in build.launches] == [*passes, "byte_matmul"]


def test_units_are_for_products_of_which_one_operand_is_signed_and_known() -> None:
    def variant(target: Target, *types: DType, m: int = 2048) -> str:
        return launches_of(target, m, 2048, 2048, (types[0], types[1]))[0].kernel.variant

    assert "matrix units" in variant(GPU, dtypes.UINT8, dtypes.INT8)
    assert "matrix units" in variant(GPU, dtypes.INT8, dtypes.INT8)
    assert "matrix units" not in variant(GPU, dtypes.UINT8, dtypes.UINT8)
    assert "matrix units" not in variant(GPU, dtypes.INT8, dtypes.UINT8)
    assert "matrix units" not in variant(replace(GPU, byte_fragment=None), dtypes.INT8, dtypes.INT8)


DOT_PRODUCTS = {
    (8192, 8192, 8192): 11071,
    (2048, 768, 3072): 118.5,
    (1024, 1024, 1024): 31.1,
    (128, 512, 2048): 6.4,
}
"""Microseconds of m, k and n by packed dot products on an H200."""
MEASURED: dict[tuple[int, int, int], dict[tuple[int, int, int], float]] = {
    (8192, 8192, 8192): {(128, 128, 128): 1692, (128, 128, 64): 1841},
    (4096, 4096, 4096): {(128, 128, 64): 241.7},
    (3136, 576, 64): {
        (128, 64, 64): 9.1,
        (64, 64, 128): 6.7,
        (64, 64, 64): 6.7,
        (32, 64, 128): 5.2,
        (32, 64, 64): 6.0,
        (32, 32, 128): 5.5,
    },
    (25088, 576, 64): {
        (128, 64, 64): 11.6,
        (64, 64, 128): 9.6,
        (64, 64, 64): 9.7,
        (32, 64, 128): 12.9,
        (32, 64, 64): 11.4,
        (32, 32, 128): 15.1,
    },
    (25088, 64, 256): {
        (128, 64, 64): 11.8,
        (64, 64, 128): 15.5,
        (64, 64, 64): 11.6,
        (32, 64, 128): 17.0,
        (32, 64, 64): 13.0,
        (32, 32, 128): 17.8,
    },
    (1568, 2304, 256): {
        (128, 128, 64): 27.2,
        (128, 64, 64): 21.6,
        (64, 64, 128): 12.2,
        (64, 64, 64): 16.4,
        (32, 64, 128): 12.8,
        (32, 64, 64): 16.3,
        (32, 32, 128): 11.8,
    },
    (25088, 1152, 128): {
        (128, 128, 64): 24.7,
        (128, 64, 64): 22.3,
        (64, 64, 128): 24.9,
        (64, 64, 64): 30.3,
        (32, 64, 128): 31.5,
        (32, 64, 64): 34.0,
        (32, 32, 128): 40.3,
    },
}
"""Microseconds of m, k and n by a constant on units of an H200, by tiles (m, n and k) without ranges of k: of
the first two as lines, of the others as windows of images (56², 14² and 28², of one, eight and 32 images)."""


def known_product(m: int, k: int, n: int) -> gemm.Product:
    """Of a matrix by another, of int8."""
    a, b = (TensorType(dtypes.INT8, (1, *shape)) for shape in ((m, k), (k, n)))
    views = (contiguous(Buffer(BufferKind.INPUT, each.bytes), each) for each in (a, b))
    product = gemm.matrix_product(*views, TensorType(dtypes.INT32, (1, m, n)))
    return replace(product, k=k // 4, accumulator=dtypes.INT32, signs=(True, True))


@pytest.mark.parametrize("sizes", DOT_PRODUCTS, ids=str)
def test_the_rule_knows_what_dot_products_take(sizes: tuple[int, int, int]) -> None:
    expected = gemm.estimate_ordinary(replace(GPU, byte_fragment=None), known_product(*sizes))
    assert abs(expected / DOT_PRODUCTS[sizes] - 1) < 0.16


@pytest.mark.parametrize("sizes", MEASURED, ids=str)
def test_the_rule_knows_what_units_take(sizes: tuple[int, int, int]) -> None:
    """Within 30 %; and what it picks takes no more than 14 % longer than the fastest."""
    product, measured = known_product(*sizes), MEASURED[sizes]
    found = {
        (choice.tile.m, choice.tile.n, 4 * choice.tile.k): gemm.LAUNCH + choice.cycles / gemm.CYCLES
        for choice in byte_units.choices(GPU, product)
        if choice.splits == 1
    }
    assert len(found) == len(byte_units.TILES)
    for size, taken in measured.items():
        assert 0.7 < found[size] / taken < 1.3, (size, found[size], taken)
    tile, splits = gemm.choose(GPU, product)
    assert isinstance(tile, byte_units.Tile) and splits == 1
    taken = measured.get((tile.m, tile.n, 4 * tile.k), found[tile.m, tile.n, 4 * tile.k])
    assert taken < 1.14 * min(measured.values())


@pytest.mark.parametrize("has_units", [False, True])
def test_weights_are_bytes_in_memory(has_units: bool) -> None:
    """In words as kernels read them, once; beside them the sums that units want."""
    target = GPU if has_units else replace(GPU, byte_fragment=None)
    [launch] = launches_of(target, 2048, 1024, 2048, (dtypes.UINT8, dtypes.INT8))
    constants = {view.buffer for view in launch.reads if view.buffer.is_constant}
    assert sorted(buffer.bytes for buffer in constants) == [*([4 * 2048] if has_units else []), 1024 * 2048]
