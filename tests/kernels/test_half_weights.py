"""Products of float16 and bfloat16 by weights in the order of fragments: against float64, and the rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vkml
from tests.kernels.layouts import LAYOUTS, LONG, normal
from tests.kernels.test_half_product import BFLOAT16_GPU, GPU, check, halves, launches_of, run, view
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.engine.weights import WeightStore
from vkml.ir import Constant, DType, TensorType, dtypes
from vkml.kernels import half_product, half_weights, sliced
from vkml.kernels.gemm import Product, matrix_product
from vkml.kernels.matrix_tiles import LONGEST_SUM, Tile
from vkml.kernels.packed_weights import Fragment, PackedWeights, count_elements, padded
from vkml.kernels.slang import compile_kernel
from vkml.kernels.slang import opcodes as op
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.target import Target
from vkml.lowering.trials import Trials
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
TILES = {
    "two subgroups": Tile(16, 16, 2, 1, 32, 1, 1.0, 1.0),
    "lanes take lines out of turn": Tile(16, 16, 4, 1, 32, 2, 1.0, 1.0),
    "slices of k": Tile(16, 16, 2, 2, 32, 2, 1.0, 1.0),
}


@pytest.fixture
def fragment(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fragment]:
    """The device's, of float16."""
    fragments = device_registry.fragments_of(vulkan.find_device(vulkan_device_name, True))
    if not fragments:
        pytest.skip("no fp16 matrix units on this device")
    monkeypatch.setattr(sliced, "choose", lambda target, product: None)  # what is small is its own, on GPUs
    yield fragments[0]


@pytest.fixture
def tile(fragment: Fragment, monkeypatch: pytest.MonkeyPatch) -> Tile:
    """Forced."""
    made = TILES["two subgroups"]
    monkeypatch.setattr(half_weights, "forced", (made, 1))
    return made


def run_packed(device: str, sketch: Sketch, value: str, feed: dict[str, Array]) -> Array:
    """The only output, of a model whose product reads packed weights; nothing beyond operands is touched."""
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(
        save_graph(sketch.finish(value)), options, devices=device, precision="high"
    ) as session:
        [found] = session.run(None, feed)
        variants = [step.variant for step in session.report().steps if "matrix units" in step.variant]
    assert len(variants) == 1 and "weights in fragments" in variants[0], variants
    return np.asarray(found)


CASES = (
    *[(name, "two subgroups", 1, "float32") for name in LAYOUTS | LONG if not (LAYOUTS | LONG)[name][0]],
    ("rows of odd lengths", "two subgroups", 1, "float16"),
    ("columns", "two subgroups", 1, "float16"),
    ("rows", "lanes take lines out of turn", 1, "float32"),
    ("rows of odd lengths", "lanes take lines out of turn", 2, "float32"),
    ("columns of odd lengths", "lanes take lines out of turn", 1, "float32"),
    ("long rows", "slices of k", 1, "float16"),
    ("long rows", "slices of k", 2, "float32"),
    ("long columns", "slices of k", 2, "float16"),
)
"""Layout, tile, ranges of K and type of the results: lavapipe compiles for seconds."""


@pytest.mark.parametrize(("name", "kind", "splits", "to"), CASES)
def test_every_layout(
    fragment: Fragment,
    vulkan_device_name: str,
    name: str,
    kind: str,
    splits: int,
    to: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines of rows along k and across, at multiples of 16 bytes and anywhere; weights either way; a bias."""
    tile = TILES[kind]
    rows_fetched = tile.subgroups * fragment.lanes * 8 // tile.step_k  # of A, by all threads once
    tile = replace(tile, sub_m=max(tile.sub_m, rows_fetched))
    monkeypatch.setattr(half_weights, "forced", (tile, splits))
    _, left, right, turned = (LAYOUTS | LONG)[name]
    x, weights = halves(1, *left), halves(2, *right)
    sketch = Sketch("product")
    rows, columns = sketch.input("a", left, dtypes.FLOAT16), sketch.constant(weights)
    a, b = x.astype(np.float64), weights.astype(np.float64)
    if "a" in turned:
        rows, a = sketch.node("Transpose", rows, perm=[1, 0]), a.T
    if "b" in turned:
        columns, b = sketch.node("Transpose", columns, perm=[1, 0]), b.T
    value, bias = sketch.node("MatMul", rows, columns), normal(3, b.shape[-1])
    if to == "float32":
        value = sketch.node("Cast", value, to=dtypes.FLOAT32.code)
    else:
        bias = bias.astype(np.float16)
    value = sketch.node("Add", value, sketch.constant(bias))
    check(run_packed(vulkan_device_name, sketch, value, {"a": x}), a, b, bias.astype(np.float64))


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("is_turned", [False, True], ids=["along k", "across k"])
def test_odd_sizes_give_the_bits_of_padded_ones(
    fragment: Fragment,
    vulkan_device_name: str,
    is_turned: bool,
    splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a bias and a residual, of rows whose lines are padded and of others."""
    monkeypatch.setattr(half_weights, "forced", (TILES["two subgroups"], splits))
    x, weights, residual, bias = halves(1, 33, 75), halves(2, 75, 21), halves(3, 33, 21), halves(4, 21)

    def of(x: Array, weights: Array, residual: Array, bias: Array) -> Array:
        sketch, fed = Sketch("product"), x.T.copy() if is_turned else x
        rows = sketch.input("a", fed.shape, dtypes.FLOAT16)
        rows = sketch.node("Transpose", rows, perm=[1, 0]) if is_turned else rows
        value = sketch.node("MatMul", rows, sketch.constant(weights))
        value = sketch.node("Add", value, sketch.constant(bias))
        value = sketch.node("Add", value, sketch.input("r", residual.shape, dtypes.FLOAT16))
        return run_packed(vulkan_device_name, sketch, value, {"a": fed, "r": residual})

    def up(array: Array) -> Array:
        return np.pad(array, [(0, -size % 8) for size in array.shape])

    whole = of(up(x), up(weights), up(residual), up(bias))
    np.testing.assert_array_equal(of(x, weights, residual, bias), whole[:33, :21])


SLICED = {
    "whole tiles": ((32, 64), slice(0, 64), False),
    "lines at multiples of 16 bytes": ((19, 80), slice(8, 77), False),
    "whole tiles of lines": ((32, 80), slice(8, 77), False),
    "lines anywhere": ((19, 83), slice(3, 72), False),
    "columns at multiples of 16 bytes": ((80, 24), slice(8, 77), True),
    "columns anywhere": ((80, 19), slice(3, 72), True),
    "less than a line": ((5, 16), slice(9, 12), False),
}
"""The shape of the rows, the range of k, and whether they are transposed in the model."""


@pytest.mark.parametrize("name", SLICED)
def test_views_read_nothing_beyond_them(tile: Tile, vulkan_device_name: str, name: str) -> None:
    """What lies beside the range of k is infinite."""
    shape, steps, turned = SLICED[name]
    x = halves(1, *shape)
    lines = x if turned else x.T
    lines[: steps.start], lines[steps.stop :] = np.inf, np.inf
    weights = halves(2, steps.stop - steps.start, 21)
    sketch = Sketch("product")
    value = sketch.input("a", shape, dtypes.FLOAT16)
    bounds = [sketch.constant(np.array([each], np.int64)) for each in (steps.start, steps.stop)]
    value = sketch.node("Slice", value, *bounds, sketch.constant(np.array([0 if turned else 1], np.int64)))
    used = lines[steps].T.astype(np.float64)
    if turned:
        value = sketch.node("Transpose", value, perm=[1, 0])
    value = sketch.node("MatMul", value, sketch.constant(weights))
    check(run_packed(vulkan_device_name, sketch, value, {"a": x}), used, weights.astype(np.float64))


@pytest.mark.parametrize(("m", "k"), [(64, 64), (65, 64), (64, 72)])
def test_only_whole_tiles_are_read_unseen(m: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind a matrix may be nobody's memory, which software drivers do not tell."""
    monkeypatch.setattr(sliced, "choose", lambda target, product: None)
    monkeypatch.setattr(half_weights, "forced", (half_weights.TILES[0], 1))
    forget_lowerings()
    [launch] = launches_of(GPU, *operands(m, k, 256)[1:])
    is_whole = "true" if (m, k) == (64, 64) else "false"
    assert f"static const bool IS_WHOLE = {is_whole};" in launch.kernel.source


def test_an_epilogue_with_a_residual(tile: Tile, vulkan_device_name: str) -> None:
    """Bias, activation and residual of one matrix for all batches, which are more rows of it."""
    feed = {"a": halves(1, 3, 20, 40), "c": halves(2, 3, 20, 22)}
    weights, bias = halves(3, 40, 22), halves(4, 22)
    sketch = Sketch("epilogue")
    a, c = (sketch.input(name, array.shape, dtypes.FLOAT16) for name, array in feed.items())
    value = sketch.node("Add", sketch.node("MatMul", a, sketch.constant(weights)), sketch.constant(bias))
    value = sketch.node("Add", sketch.node("Relu", value), c)
    found = run_packed(vulkan_device_name, sketch, value, feed)
    wide = {name: array.astype(np.float64) for name, array in feed.items()}
    exact = np.maximum(wide["a"] @ weights.astype(np.float64) + bias, 0) + wide["c"]
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2.0**-10, atol=2.0**-9)


def test_results_of_bfloat16(tile: Tile, vulkan_device_name: str) -> None:
    """The epilogue rounds them as any other type's."""
    x, weights = halves(1, 21, 48), halves(2, 48, 20)
    sketch = Sketch("product")
    value = sketch.node("MatMul", sketch.input("a", x.shape, dtypes.FLOAT16), sketch.constant(weights))
    value = sketch.node("Cast", value, to=dtypes.BFLOAT16.code)
    found = run_packed(vulkan_device_name, sketch, value, {"a": x}).astype(np.float64)
    exact = x.astype(np.float64) @ weights.astype(np.float64)
    # Rounded to float16, as the model says, then to bfloat16.
    np.testing.assert_allclose(found, exact, rtol=2.0**-8 + 2.0**-10, atol=2.0**-20)


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_gemm(tile: Tile, vulkan_device_name: str, turned: str) -> None:
    x = halves(1, *((48, 35) if "a" in turned else (35, 48)))
    weights = halves(2, *((24, 48) if "b" in turned else (48, 24)))
    sketch, bias = Sketch("gemm"), halves(3, 24)
    values = sketch.input("a", x.shape, dtypes.FLOAT16), sketch.constant(weights), sketch.constant(bias)
    value = sketch.node("Gemm", *values, transA=int("a" in turned), transB=int("b" in turned))
    a, b = x.astype(np.float64), weights.astype(np.float64)
    a, b = a.T if "a" in turned else a, b.T if "b" in turned else b
    check(run_packed(vulkan_device_name, sketch, value, {"a": x}), a, b, bias.astype(np.float64))


@pytest.mark.parametrize("kind", ["two subgroups", "slices of k"])
def test_what_is_not_finite(
    fragment: Fragment, vulkan_device_name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infinities and NaN on both sides, infinities that meet zeros, results that float16 has no room for."""
    monkeypatch.setattr(half_weights, "forced", (TILES[kind], 1))
    x, weights = halves(1, 40, 77), halves(2, 77, 36)
    x[3, 5], x[7, 9], x[11], x[20, 1:] = np.inf, np.nan, 60000, 0
    weights[4, 8], weights[:, 12], weights[6, 30] = -np.inf, 60000, np.nan
    weights[5, 9] = 0
    sketch = Sketch("product")
    value = sketch.node("MatMul", sketch.input("a", x.shape, dtypes.FLOAT16), sketch.constant(weights))
    found = run_packed(vulkan_device_name, sketch, value, {"a": x})
    with np.errstate(all="ignore"):
        exact = (x.astype(np.float64) @ weights.astype(np.float64)).astype(np.float16)
    assert np.isnan(exact).any() and np.isposinf(exact).any() and np.isneginf(exact).any()
    for is_such in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(is_such(found), is_such(exact))


def test_small_numbers_keep_their_bits(tile: Tile, vulkan_device_name: str) -> None:
    """Subnormal weights, beside the largest that there are."""
    x, weights = halves(1, 33, 64) * np.float16(1000), halves(2, 64, 24)
    weights[::2] = np.float16(2.0**-24) * np.sign(weights[::2])
    weights[1::4] = 0
    x[:, 3::4] = 0
    weights[3::4] = 65504
    sketch = Sketch("product")
    value = sketch.node("MatMul", sketch.input("a", x.shape, dtypes.FLOAT16), sketch.constant(weights))
    value = sketch.node("Cast", value, to=dtypes.FLOAT32.code)
    a, b = x.astype(np.float64), weights.astype(np.float64)
    check(run_packed(vulkan_device_name, sketch, value, {"a": x}), a, b)


@pytest.mark.parametrize("splits", [1, 2])
def test_one_plan_serves_all_numbers_of_rows(
    fragment: Fragment, vulkan_device_name: str, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_weights, "forced", (TILES["two subgroups"], splits))
    weights = halves(2, 26, 36)  # too small for the kernel of few rows, which a report takes open sizes for
    sketch = Sketch("product")
    value = sketch.node("MatMul", sketch.input("a", ("rows", 26), dtypes.FLOAT16), sketch.constant(weights))
    with vkml.InferenceSession(
        save_graph(sketch.finish(value)), devices=vulkan_device_name, precision="high"
    ) as session:
        for rows in (9, 16, 33, 100, 40):
            x = halves(rows, rows, 26)
            [found] = session.run(None, {"a": x})
            check(found, x.astype(np.float64), weights.astype(np.float64))
            assert any("weights in fragments" in step.variant for step in session.report().steps)


def test_weights_of_each_batch_are_read_as_they_lie(
    tile: Tile, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragments = device_registry.fragments_of(vulkan.find_device(vulkan_device_name, True))
    m, n = (2 * max(16, size) for size in (fragments[0].m, fragments[0].n))
    monkeypatch.setattr(half_product, "forced", (half_product.Tile(m, n, 32, m // 2, n // 2, 0, 1, 1), 1))
    x, weights = halves(1, 3, 18, 40), halves(2, 3, 40, 24)
    sketch = Sketch("product")
    value = sketch.node("MatMul", sketch.input("a", x.shape, dtypes.FLOAT16), sketch.constant(weights))
    found = run(vulkan_device_name, sketch, value, {"a": x})
    check(found, x.astype(np.float64), weights.astype(np.float64))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_packed_weights_hold_the_weights(
    fragment: Fragment, vulkan_device_name: str, is_transposed: bool
) -> None:
    """Whatever the driver's order: the bits of all elements, and zeros; of several chunks of k."""
    k, n = 530, 21
    weights = halves(1, k, n)
    weights[3, 2], weights[4, 2], weights[5, 2] = np.inf, np.float16(2.0**-24), -np.inf
    packed = PackedWeights(*constant_of(weights, is_transposed), fragment, 128)
    opened = device_registry.open_device(vulkan.find_device(vulkan_device_name, True))
    store = WeightStore(lambda: opened)
    try:
        [arena] = lease = store.add([packed])
        held = opened.download(arena.memory, 0, packed.type.bytes).view(np.uint16)
        store.release(lease)
    finally:
        store.close()
    held = held[: padded(n, 16) * padded(k, 64)]
    bits = np.sort(weights.view(np.uint16), axis=None)
    np.testing.assert_array_equal(np.sort(held)[-bits.size :], bits)
    assert np.count_nonzero(held) == np.count_nonzero(bits)


def constant_of(weights: Array, is_transposed: bool = False) -> tuple[Constant, View]:
    """A matrix (k, n), and how it is seen where a model holds it transposed."""
    dtype = dtypes.FLOAT16 if weights.dtype == np.float16 else dtypes.BFLOAT16
    held = np.ascontiguousarray(weights.T) if is_transposed else weights
    constant = Constant(dtype, held.shape, held)
    whole = contiguous(Buffer(BufferKind.CONSTANT, constant.type.bytes, "w", constant), constant.type)
    return constant, whole.transpose((1, 0)) if is_transposed else whole


def operands(m: int, k: int, n: int, dtype: DType = dtypes.FLOAT16) -> tuple[Product, View, View]:
    """A product, its rows and its constant weights, as lowering has them."""
    held = np.ones((1, k, n), np.float16 if dtype == dtypes.FLOAT16 else ml_dtypes.bfloat16)
    constant = Constant(dtype, held.shape, held)
    a = view(dtype, 1, m, k)
    b = contiguous(Buffer(BufferKind.CONSTANT, constant.type.bytes, "w", constant), constant.type)
    return matrix_product(a, b, TensorType(dtype, (1, m, n))), a, b


def is_packed(target: Target, a: View, b: View) -> bool:
    forget_lowerings()
    return any("weights in fragments" in launch.kernel.variant for launch in launches_of(target, a, b))


def test_the_rule() -> None:
    """Constant matrices of the rows' type, where sums may stay in the unit; before operands as they lie."""
    _, a, b = operands(4096, 1024, 4096)
    assert is_packed(GPU, a, b)
    assert is_packed(GPU, a.transpose((0, 1, 2)), replace(b, shape=(1, 1024, 1024)))
    assert is_packed(BFLOAT16_GPU, *operands(4096, 1024, 4096, dtypes.BFLOAT16)[1:])
    _, small, weights = operands(64, 64, 64)
    for target, left, right in (
        (replace(GPU, strict_fp32=True), a, b),
        (replace(GPU, holds_elements_once=lambda fragment: False), a, b),
        (replace(GPU, fragment=Fragment(8, 8, 8, 8)), a, b),
        (replace(GPU, fragment=None), a, b),
        (BFLOAT16_GPU, a, b),
        (GPU, replace(a, shape=(1, 2048, 1024), strides=(0, 2048, 2)), b),
        (GPU, small, weights),
        (GPU, view(dtypes.FLOAT16, 1, 2, 1024), b),
    ):
        assert not is_packed(target, left, right), (left, right)


def test_measurement_may_pick_them() -> None:
    """All tiles are candidates beside the rule's choice; not where float32 is strict."""
    _, a, b = operands(1024, 1024, 1024)
    for is_strict in (False, True):
        forget_lowerings()
        trials = Trials()
        build = VulkanBuilder(replace(GPU, strict_fp32=is_strict), trials)
        with build.step(TensorType(dtypes.FLOAT16, (1, 1024, 1024))):
            build.matmul(a, b)
        [found] = trials.found.values()
        packed = {trial.label for trial in found if "weights in fragments" in trial.label}
        assert (len(packed) > 1) == (not is_strict)


def test_sums_are_no_longer_than_units_add_well(monkeypatch: pytest.MonkeyPatch) -> None:
    product, a, b = operands(256, 1 << 18, 256)
    found = half_weights.choices(GPU, product, a, b)
    assert found
    assert all(choice.longest_sum(product.k) <= LONGEST_SUM for choice in found)
    monkeypatch.setattr(half_weights, "forced", (half_weights.TILES[0], 1))
    assert half_weights.choices(GPU, product, a, b) == []


def test_the_rule_takes_wide_tiles_for_large_products() -> None:
    large, small = (
        min(half_weights.choices(GPU, *operands(m, 768, n)), key=lambda choice: choice.time)
        for m, n in ((4096, 3072), (128, 768))
    )
    assert large.tile.sub_m == large.tile.sub_n == 64
    assert small.tile.m < 64


@pytest.mark.parametrize("dtype", [dtypes.FLOAT16, dtypes.BFLOAT16], ids=str)
@pytest.mark.parametrize("tile", half_weights.TILES, ids=Tile.label)
def test_every_tile_suits_the_gpu(tile: Tile, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module multiplies elements of that type, of rows that lie either way."""
    monkeypatch.setattr(half_weights, "forced", (tile, 1))
    _, a, b = operands(2048, 1024, 2048, dtype)
    modules = set()
    for left in (a, view(dtype, 1, 1024, 2048).transpose((0, 2, 1))):
        forget_lowerings()
        [launch] = launches_of(GPU, left, b)
        assert "weights in fragments" in launch.kernel.variant
        words = np.frombuffer(compile_kernel(launch.kernel.source), np.uint32)[5:]
        modules.add(words.tobytes())
        columns = 8 if dtype == dtypes.FLOAT16 else 16
        assert products_of(words, dtype) == tile.sub_m * tile.sub_n * tile.step_k // (16 * columns * 16)
    assert len(modules) == 2


@pytest.mark.parametrize("dtype", [dtypes.FLOAT16, dtypes.BFLOAT16], ids=str)
def test_what_packs_weights_is_of_their_type(dtype: DType) -> None:
    """As is what asks the device how lanes share a fragment."""
    fragment = GPU.fragment if dtype == dtypes.FLOAT16 else GPU.bfloat16_fragment
    assert fragment is not None
    _, _, b = operands(16, 70, 40, dtype)
    assert b.buffer.constant is not None
    packed = PackedWeights(b.buffer.constant, replace(b, shape=(70, 40), strides=(40, 1)), fragment, 128)
    answer = contiguous(Buffer(BufferKind.OUTPUT, 4), TensorType(dtypes.INT32, (1,)))
    for dispatch in (packed.dispatch, count_elements(answer, fragment, 128)):
        assert ("bfloat16_cooperative_matrix" in dispatch.kernel.needs) == (dtype == dtypes.BFLOAT16)
        words = np.frombuffer(compile_kernel(dispatch.kernel.source), np.uint32)[5:]
        assert products_of(words, dtype) == 0  # none, but fragments of that type


def products_of(words: Array, dtype: DType) -> int:
    """How many products of fragments a module does, of that type."""
    at, products, has_bfloat16 = 0, 0, False
    while at < words.size:
        length, opcode = divmod(int(words[at]), 1 << 16)
        products += opcode == op.MATRIX_MUL_ADD
        has_bfloat16 |= opcode == op.TYPE_FLOAT and length == 4  # an encoding behind the width
        at += length
    assert has_bfloat16 == (dtype == dtypes.BFLOAT16)
    return products
