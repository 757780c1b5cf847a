"""Products of float16 and bfloat16 on matrix units: against float64, however they lie, and the rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkml
from tests.kernels.layouts import LAYOUTS, LONG, normal
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.ir import Constant, DType, TensorType, dtypes
from vkml.kernels import half_product, half_weights, padded_lines, sliced, split_product
from vkml.kernels.bfloat16_units import NEEDS
from vkml.kernels.gemm import CYCLES, LAUNCH, matrix_product
from vkml.kernels.half_product import Tile
from vkml.kernels.matrix_tiles import LONGEST_SUM
from vkml.kernels.packed_weights import Fragment
from vkml.kernels.slang import compile_kernel
from vkml.kernels.slang import opcodes as op
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.target import Target
from vkml.lowering.trials import Trials
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
BLOCK = 32
GPU = Target(
    frozenset({*NEEDS, "int16"}),
    256,
    49152,
    1024,
    32,
    65535,
    132,
    strict_fp32=False,
    fragment=Fragment(16, 8, 16, 32),
    bfloat16_fragment=Fragment(16, 16, 16, 32, "bfloat16"),
)


@pytest.fixture(params=[0, 1], ids=["sums stay", "sums leave"])
def tile(
    request: pytest.FixtureRequest, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tile]:
    """One of two by two subgroups, of some fragments each; forced.

    Where sums leave, these are one row of fragments: more take lavapipe's compiler long.
    """
    fragments = device_registry.fragments_of(vulkan.find_device(vulkan_device_name, True))
    if not fragments:
        pytest.skip("no fp16 matrix units on this device")
    fragment = fragments[0]
    n = max(16, fragment.n)
    m = fragment.m if request.param else max(16, fragment.m)
    made = Tile(2 * m, 2 * n, BLOCK, m, n, request.param, 100, 0.5)
    monkeypatch.setattr(sliced, "choose", lambda target, product: None)  # what is small is its own, on GPUs
    monkeypatch.setattr(half_product, "forced", (made, 1))
    yield made


def halves(seed: int, *shape: int) -> Array:
    return normal(seed, *shape).astype(np.float16)


def run(device: str, sketch: Sketch, value: str, feed: dict[str, Array]) -> Array:
    with vkml.InferenceSession(save_graph(sketch.finish(value)), devices=device) as session:
        [found] = session.run(None, feed)
        variants = [step.variant for step in session.report().steps if "halves" in step.variant]
        kernels = [step.kernel for step in session.report().steps]
    assert len(variants) == 1 and {*kernels} <= {"padded_lines", "matmul", "add_partials"}, (
        variants,
        kernels,
    )
    return found


def bound(k: int) -> float:
    """On the error of fp32 sums, in what the magnitudes of operands add up to: each addition rounds once."""
    return k * 2.0**-24


def check(found: Array, a: Array, b: Array, bias: Array | float = 0.0) -> None:
    """Results of float32 are as good as fp32 sums; those of float16 are these, rounded."""
    exact, sizes = a @ b + bias, abs(a) @ abs(b) + abs(bias)
    error = abs(found.astype(np.float64) - exact) - (bound(a.shape[-1]) + 2.0**-24) * sizes
    if found.dtype == np.float16:
        error -= 2.0**-11 * abs(exact) + 2.0**-25
    assert np.all(error <= 0), float(np.max(error))


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("name", LAYOUTS | LONG)
def test_every_layout(
    tile: Tile, vulkan_device_name: str, name: str, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines along k and across, that begin at multiples of 16 bytes and anywhere; a bias behind the sum.

    The type of results follows from the rest: any two of layout, sums, ranges and type meet in all ways.
    """
    to = ["float32", "float16"][([*LAYOUTS, *LONG].index(name) + bool(tile.promoted) + splits) % 2]
    monkeypatch.setattr(half_product, "forced", (tile, splits))
    batch, left, right, turned = (LAYOUTS | LONG)[name]
    feed = {"a": halves(1, *batch, *left), "b": halves(2, *batch, *right)}
    sketch = Sketch("product")
    values, factors = [], []
    for operand in "ab":
        value = sketch.input(operand, feed[operand].shape, dtypes.FLOAT16)
        array = feed[operand].astype(np.float64)
        if operand in turned:
            perm = [*range(len(batch)), len(batch) + 1, len(batch)]
            value, array = sketch.node("Transpose", value, perm=perm), array.swapaxes(-1, -2)
        values.append(value)
        factors.append(array)
    a, b = factors
    value, bias = sketch.node("MatMul", *values), normal(3, b.shape[-1])
    if to == "float32":
        value = sketch.node("Cast", value, to=dtypes.FLOAT32.code)
    else:
        bias = bias.astype(np.float16)
    value = sketch.node("Add", value, sketch.constant(bias))
    check(run(vulkan_device_name, sketch, value, feed), a, b, bias.astype(np.float64))


SLICED = {
    "whole tiles": ((16, 64), (64, 32), slice(0, 64), ""),
    "whole tiles, columns": ((64, 16), (32, 64), slice(0, 64), "ab"),
    "lines at multiples of 16 bytes": ((19, 80), (80, 24), slice(8, 77), ""),
    "lines anywhere": ((19, 80), (80, 21), slice(3, 72), ""),
    "columns at multiples of 16 bytes": ((80, 24), (21, 80), slice(8, 77), "ab"),
    "columns anywhere": ((80, 19), (21, 80), slice(3, 72), "ab"),
    "less than a line": ((5, 16), (16, 3), slice(9, 12), ""),
}
"""The shapes of both operands, the range of k, and which of them are transposed in the model."""


@pytest.mark.parametrize("name", SLICED)
def test_views_read_nothing_beyond_them(tile: Tile, vulkan_device_name: str, name: str) -> None:
    """Ranges of k of larger matrices, which are NaN elsewhere: none of it reaches a result."""
    left, right, kept, turned = SLICED[name]
    a, b = halves(1, *left), halves(2, *right)
    axes = {"a": 0 if "a" in turned else 1, "b": 1 if "b" in turned else 0}
    sketch, values, factors = Sketch("slices"), [], []
    for operand, array in (("a", a), ("b", b)):
        axis = axes[operand]
        outside = np.ones(array.shape[axis], bool)
        outside[kept] = False
        array[(slice(None),) * axis + (outside,)] = np.nan
        value = sketch.input(operand, array.shape, dtypes.FLOAT16)
        bounds = [sketch.constant(np.array([number])) for number in (kept.start, kept.stop, axis)]
        value = sketch.node("Slice", value, *bounds)
        used = array[(slice(None),) * axis + (kept,)].astype(np.float64)
        if operand in turned:
            value, used = sketch.node("Transpose", value, perm=[1, 0]), used.T
        values.append(value)
        factors.append(used)
    value = sketch.node("MatMul", *values)
    check(run(vulkan_device_name, sketch, value, {"a": a, "b": b}), *factors)


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("sizes", [(33, 75, 21), (600, 70, 515)], ids=["small", "large"])
def test_odd_sizes_give_the_bits_of_padded_ones(
    tile: Tile, vulkan_device_name: str, turned: str, sizes: tuple[int, int, int]
) -> None:
    """Behind a bias and a residual, of operands whose lines are padded and of others."""
    m, k, n = sizes
    a, b, residual, bias = halves(1, m, k), halves(2, k, n), halves(3, m, n), halves(4, n)

    def of(a: Array, b: Array, residual: Array, bias: Array) -> Array:
        feed = {name: x.T.copy() if name in turned else x for name, x in (("a", a), ("b", b))}
        sketch, values = Sketch("product"), []
        for name, array in feed.items():
            value = sketch.input(name, array.shape, dtypes.FLOAT16)
            values.append(sketch.node("Transpose", value, perm=[1, 0]) if name in turned else value)
        value = sketch.node("Add", sketch.node("MatMul", *values), sketch.constant(bias))
        value = sketch.node("Add", value, sketch.input("r", residual.shape, dtypes.FLOAT16))
        return run(vulkan_device_name, sketch, value, {**feed, "r": residual})

    def up(array: Array) -> Array:
        return np.pad(array, [(0, -size % 8) for size in array.shape])

    whole = of(up(a), up(b), up(residual), up(bias))
    np.testing.assert_array_equal(of(a, b, residual, bias), whole[:m, :n])


def test_an_epilogue_with_a_residual(tile: Tile, vulkan_device_name: str) -> None:
    """Bias, activation and residual of a product with a constant, of one matrix for all batches."""
    feed = {"a": halves(1, 3, 20, 40), "c": halves(2, 3, 20, 22)}
    weight, bias = halves(3, 40, 22), halves(4, 22)
    sketch = Sketch("epilogue")
    a, c = (sketch.input(name, array.shape, dtypes.FLOAT16) for name, array in feed.items())
    value = sketch.node("Add", sketch.node("MatMul", a, sketch.constant(weight)), sketch.constant(bias))
    value = sketch.node("Add", sketch.node("Relu", value), c)
    found = run(vulkan_device_name, sketch, value, feed)
    wide = {name: array.astype(np.float64) for name, array in feed.items()}
    exact = np.maximum(wide["a"] @ weight.astype(np.float64) + bias, 0) + wide["c"]
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2.0**-10, atol=2.0**-9)


def test_batches(tile: Tile, vulkan_device_name: str) -> None:
    """Each with matrices of its own, at multiples of 16 bytes and anywhere; one for all, on either side."""
    shapes = (
        ((18, 40), (4, 40, 24)),
        ((4, 18, 43), (43, 21)),
        ((3, 18, 40), (3, 40, 24)),
        ((3, 17, 43), (3, 43, 21)),
    )
    for left, right in shapes:
        feed = {"a": halves(1, *left), "b": halves(2, *right)}
        sketch = Sketch("product")
        values = (sketch.input(name, array.shape, dtypes.FLOAT16) for name, array in feed.items())
        found = run(vulkan_device_name, sketch, sketch.node("MatMul", *values), feed)
        check(found, *(array.astype(np.float64) for array in feed.values()))


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_gemm(tile: Tile, vulkan_device_name: str, turned: str) -> None:
    left, right = (35, 48), (48, 24)
    feed = {
        "a": halves(1, *(left[::-1] if "a" in turned else left)),
        "b": halves(2, *(right[::-1] if "b" in turned else right)),
    }
    sketch, bias = Sketch("gemm"), halves(3, right[1])
    values = [sketch.input(name, array.shape, dtypes.FLOAT16) for name, array in feed.items()]
    value = sketch.node(
        "Gemm", *values, sketch.constant(bias), transA=int("a" in turned), transB=int("b" in turned)
    )
    a, b = (array.astype(np.float64) for array in feed.values())
    a, b = a.T if "a" in turned else a, b.T if "b" in turned else b
    check(run(vulkan_device_name, sketch, value, feed), a, b, bias.astype(np.float64))


@pytest.mark.parametrize("splits", [1, 2])
def test_what_is_not_finite(
    tile: Tile, vulkan_device_name: str, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infinities, NaN, infinities that meet zeros, and results that float16 has no room for."""
    monkeypatch.setattr(half_product, "forced", (tile, splits))
    a, b = halves(1, 40, 77), halves(2, 77, 36)
    a[3, 5], a[7, 9], a[11], a[20, 1:] = np.inf, np.nan, 60000, 0
    b[4, 8], b[:, 12] = -np.inf, 60000
    b[5, 9] = 0
    sketch = Sketch("product")
    values = (sketch.input(name, array.shape, dtypes.FLOAT16) for name, array in {"a": a, "b": b}.items())
    found = run(vulkan_device_name, sketch, sketch.node("MatMul", *values), {"a": a, "b": b})
    with np.errstate(all="ignore"):
        exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)
    assert np.isnan(exact).any() and np.isposinf(exact).any() and np.isneginf(exact).any()
    for is_such in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(is_such(found), is_such(exact))


def test_small_numbers_keep_their_bits(tile: Tile, vulkan_device_name: str) -> None:
    """Subnormal elements beside the largest that there are."""
    a, b = halves(1, 33, 64), halves(2, 64, 24)
    a[:, ::2] = np.float16(2.0**-24) * np.sign(a[:, ::2])
    a[:, 1::2] = 0
    b *= np.float16(10000)
    sketch = Sketch("product")
    values = (sketch.input(name, array.shape, dtypes.FLOAT16) for name, array in {"a": a, "b": b}.items())
    value = sketch.node("Cast", sketch.node("MatMul", *values), to=dtypes.FLOAT32.code)
    found = run(vulkan_device_name, sketch, value, {"a": a, "b": b})
    check(found, a.astype(np.float64), b.astype(np.float64))


def view(dtype: DType, *shape: int) -> View:
    made = TensorType(dtype, shape)
    return contiguous(Buffer(BufferKind.INPUT, made.bytes), made)


def launches_of(target: Target, a: View, b: View) -> list[Dispatch]:
    build = VulkanBuilder(target)
    with build.step(TensorType(a.dtype, (a.shape[0], a.shape[1], b.shape[2]))):
        build.matmul(a, b)
    return build.launches


def is_of_halves(target: Target, a: View, b: View) -> bool:
    forget_lowerings()
    return any("halves" in launch.kernel.variant for launch in launches_of(target, a, b))


@pytest.mark.parametrize(
    "module", [half_product, half_weights], ids=lambda module: module.__name__.split(".")[-1]
)
def test_words_begin_where_pointers_do(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never below them, where NVIDIA's driver faults, for rows that begin anywhere in memory."""
    monkeypatch.setattr(sliced, "choose", lambda target, product: None)
    monkeypatch.setattr(module, "forced", (module.TILES[0], 1))
    whole = view(dtypes.FLOAT16, 1, 300, 600)
    a = replace(whole, shape=(1, 256, 512), offset=600 * 7 + 13)
    constant = Constant(dtypes.FLOAT16, (1, 512, 256), np.ones((1, 512, 256), np.float16))
    b = contiguous(Buffer(BufferKind.CONSTANT, constant.type.bytes, "w", constant), constant.type)
    forget_lowerings()
    copy, product = launches_of(GPU, a, b)
    assert "halves" in product.kernel.variant and a in copy.reads
    [pointer] = [each for each in copy.arguments if isinstance(each, View) and each.buffer is a.buffer]
    assert pointer.byte_offset == a.byte_offset // 16 * 16 != a.byte_offset
    assert "- BEFORE" not in copy.kernel.source and "-BEFORE" not in copy.kernel.source
    padded = copy.writes[0]
    assert padded.shape == (1, 256, 512) and padded.buffer in {each.buffer for each in product.reads}


BFLOAT16_GPU = replace(GPU, fragment=None)


def test_the_rule() -> None:
    """Halves of one type whose lines memory runs along, on units that have that type."""
    half = view(dtypes.FLOAT16, 1, 4096, 4096)
    assert is_of_halves(GPU, half, half)
    assert is_of_halves(replace(GPU, strict_fp32=True), half, half)
    assert is_of_halves(GPU, view(dtypes.FLOAT16, 1, 256, 1024), view(dtypes.FLOAT16, 1, 1024, 1024))
    bfloat = view(dtypes.BFLOAT16, 1, 4096, 4096)
    assert is_of_halves(BFLOAT16_GPU, bfloat, bfloat)
    odd = view(dtypes.FLOAT16, 1, 4095, 4095)
    assert is_of_halves(GPU, odd, odd)
    strided = replace(half, shape=(1, 2048, 2048), strides=(0, 8192, 2))
    single = view(dtypes.FLOAT32, 1, 4096, 4096)
    for target, a, b in (
        (GPU, single, single),
        (GPU, strided, replace(half, shape=(1, 2048, 4096))),
        (GPU, view(dtypes.FLOAT16, 1, 64, 64), view(dtypes.FLOAT16, 1, 64, 64)),
        (GPU, view(dtypes.FLOAT16, 1, 2, 4096), half),
        (BFLOAT16_GPU, half, half),
        (replace(GPU, bfloat16_fragment=None), bfloat, bfloat),
        (replace(GPU, shared_bytes=9216), half, half),
        (replace(GPU, fragment=Fragment(8, 8, 8, 8)), half, half),
    ):
        assert not is_of_halves(target, a, b), (a, b)


def test_copies_are_part_of_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the operands whose lines begin anywhere, which others that read them share."""
    whole, odd = view(dtypes.FLOAT16, 1, 4096, 4096), view(dtypes.FLOAT16, 1, 4096, 4095)
    for a, b, copies in ((whole, whole, 0), (whole, odd, 1), (odd.transpose((0, 2, 1)), odd, 2)):
        product = matrix_product(a, b, TensorType(dtypes.FLOAT16, (1, a.shape[1], b.shape[2])))
        found = half_product.choose(GPU, product, a, b)
        assert found is not None
        microseconds = copies * (LAUNCH + 2 * 4096 * (4095 + 4096) / padded_lines.COPIED)
        without = replace(product, m=4096, n=4096, k=4096)
        least = half_product.choose(GPU, without, whole, whole)
        assert least is not None
        assert found.cycles - least.cycles == pytest.approx(CYCLES * microseconds, rel=1e-3)
    for other in (half_weights, split_product):
        monkeypatch.setattr(other, "choices", lambda *given, **how: [])
    forget_lowerings()
    build = VulkanBuilder(GPU)
    for _ in range(2):
        with build.step(TensorType(dtypes.FLOAT16, (1, 4096, 4095))):
            build.matmul(whole, odd)
    assert [launch.kernel.label for launch in build.launches] == ["padded_lines", "matmul", "matmul"]


def test_operands_too_large_to_copy_are_left_to_others() -> None:
    """A copy is as large once more, or larger where its lines are short."""
    short = view(dtypes.FLOAT16, 1, 1 << 28, 3)
    assert not padded_lines.can_be_padded(short) and padded_lines.can_be_padded(
        replace(short, shape=(1, 1 << 26, 3))
    )
    huge = view(dtypes.FLOAT16, 1, 40000, 40001)
    assert not padded_lines.can_be_padded(huge) and not half_product.is_readable(huge)
    assert half_product.is_readable(replace(huge, shape=(1, 40000, 40000), strides=(0, 40000, 1)))


def test_measurement_may_pick_them() -> None:
    """All tiles are candidates beside the rule's choice, at the precision that is wanted."""
    for is_strict in (False, True):
        forget_lowerings()
        trials = Trials()
        build = VulkanBuilder(replace(GPU, strict_fp32=is_strict), trials)
        with build.step(TensorType(dtypes.FLOAT16, (1, 1024, 1024))):
            build.matmul(view(dtypes.FLOAT16, 1, 1024, 1024), view(dtypes.FLOAT16, 1, 1024, 1024))
        [found] = trials.found.values()
        halves_of = [trial.label for trial in found if "halves" in trial.label]
        assert len(set(halves_of)) > 1
        assert all(("sums of" in label) == is_strict for label in halves_of)


def test_sums_are_no_longer_than_units_add_well() -> None:
    """At `high` ranges of K are bounded; at `highest` sums leave the unit."""
    a, b = view(dtypes.FLOAT16, 1, 256, 1 << 18), view(dtypes.FLOAT16, 1, 1 << 18, 256)
    product = matrix_product(a, b, TensorType(dtypes.FLOAT16, (1, 256, 256)))
    for choice in half_product.choices(GPU, product, a, b):
        assert not choice.tile.promoted
        assert np.isfinite(choice.cycles) == ((1 << 18) / choice.splits <= LONGEST_SUM)
    strict = half_product.choices(replace(GPU, strict_fp32=True), product, a, b)
    assert strict and all(each.tile.promoted * each.tile.k == half_product.PROMOTED for each in strict)


@pytest.mark.parametrize("dtype", [dtypes.FLOAT16, dtypes.BFLOAT16], ids=str)
@pytest.mark.parametrize("tile", half_product.TILES, ids=Tile.label)
def test_every_tile_suits_the_gpu(tile: Tile, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module multiplies elements of that type, of lines that run either way."""
    monkeypatch.setattr(half_product, "forced", (tile, 1))
    a, b = view(dtype, 1, 2048, 1024), view(dtype, 1, 1024, 2048)
    turned = view(dtype, 1, 1024, 2048).transpose((0, 2, 1)), view(dtype, 1, 2048, 1024).transpose((0, 2, 1))
    modules = set()
    for left, right in ((a, b), turned):
        forget_lowerings()
        [launch] = launches_of(GPU, left, right)
        assert "halves" in launch.kernel.variant
        words = np.frombuffer(compile_kernel(launch.kernel.source), np.uint32)[5:]
        modules.add(words.tobytes())
        at, products, has_bfloat16 = 0, 0, False
        while at < words.size:
            length, opcode = divmod(int(words[at]), 1 << 16)
            products += opcode == op.MATRIX_MUL_ADD
            has_bfloat16 |= opcode == op.TYPE_FLOAT and length == 4  # an encoding behind the width
            at += length
        assert products and has_bfloat16 == (dtype == dtypes.BFLOAT16)
    assert len(modules) == 2
