"""Products on matrix units at precision `high`: as exact as TF32, special values, epilogues, the choice."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pytest

import vkml
from vkml.engine import devices as device_registry
from vkml.engine import fragment_check
from vkml.engine import weights as weight_store
from vkml.engine.sketch import Sketch
from vkml.engine.weights import WeightStore
from vkml.ir import Constant, TensorType, dtypes
from vkml.kernels import gemm, matrix_tiles, matrix_units
from vkml.kernels.matrix_tiles import Choice, Tile
from vkml.kernels.packed_weights import Fragment, PackedWeights, count_elements, padded
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.target import Target
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

SMALL = Tile(16, 16, 2, 1, 32, 1, 1.0, 1.0)
"""Lavapipe compiles for seconds."""
SLICED = Tile(16, 16, 2, 2, 32, 2, 1.0, 1.0)
GPU = Target(
    frozenset(matrix_units.MATRIX_UNIT_NEEDS),
    shared_bytes=49152,
    max_invocations=1024,
    subgroup_size=32,
    processors=132,
    strict_fp32=False,
    fragment=Fragment(16, 8, 16, 32),
)


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    yield
    matrix_units.forced = None


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def product(weights: Floats, rows: int | str, *, is_transposed: bool = False) -> bytes:
    """x · weights, as MatMul or as Gemm of the transposed weights."""
    sketch = Sketch("product")
    x = sketch.input("x", (rows, weights.shape[0]))
    if is_transposed:
        held = sketch.constant(np.ascontiguousarray(weights.T))
        return save_graph(sketch.finish(sketch.node("Gemm", x, held, transB=1)))
    return save_graph(sketch.finish(sketch.node("MatMul", x, sketch.constant(weights))))


def run(model: bytes, device: str, *feeds: dict[str, Floats], precision: str = "high") -> list[Floats]:
    """First outputs, on matrix units where `precision` is high, with guard zones round everything."""
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(model, options, devices=device, precision=precision) as session:
        found = [session.run(None, feed)[0] for feed in feeds]
        variants = [step.variant for step in session.report().steps]
    has_units = any(variant.startswith("matrix units") for variant in variants)
    assert has_units == (precision == "high"), variants
    return found


def errors(found: npt.NDArray[np.floating], exact: Doubles) -> tuple[float, float]:
    """Relative L2 error of all, and the largest of a row."""
    difference = found.astype(np.float64) - exact
    rows = np.linalg.norm(difference, axis=1) / np.linalg.norm(exact, axis=1)
    return float(np.linalg.norm(difference) / np.linalg.norm(exact)), float(rows.max())


def tf32(x: Floats) -> Doubles:
    """Rounded to ten bits of mantissa."""
    bits = x.view(np.uint32)
    bits = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


CASES = {
    "vectors": (Choice(SMALL, 1, True), (37, 100, 44), False),
    "edges": (Choice(SMALL, 1, True), (37, 101, 45), False),
    "one row more than a tile, transposed weights": (Choice(SMALL, 1, True), (17, 64, 33), True),
    "ranges of K": (Choice(SMALL, 3, True), (20, 200, 36), False),
    "ranges of K, edges": (Choice(SMALL, 2, True), (20, 131, 37), True),
    "ranges of K, of which one were too long a sum": (Choice(SMALL, 2, True), (17, 70000, 20), False),
    "slices": (Choice(SLICED, 1, True), (20, 300, 36), False),
    "own scales": (Choice(SMALL, 1), (37, 100, 44), False),
    "own scales, edges": (Choice(SMALL, 2), (37, 101, 45), False),
    "own scales, slices": (Choice(SLICED, 1), (20, 301, 36), False),
}


@pytest.mark.parametrize("name", CASES)
def test_product(device: str, name: str) -> None:
    choice, (m, k, n), is_transposed = CASES[name]
    matrix_units.forced = choice
    x, weights = normal(1, m, k), normal(2, k, n)
    [found] = run(product(weights, m, is_transposed=is_transposed), device, {"x": x})
    exact = x.astype(np.float64) @ weights
    assert errors(found, exact)[0] <= 1.05 * errors(tf32(x) @ tf32(weights), exact)[0]


@pytest.mark.parametrize("has_pass", [True, False], ids=["pass", "own scales"])
def test_badly_scaled_rows_and_columns_are_as_exact_as_tf32(device: str, has_pass: bool) -> None:
    matrix_units.forced = Choice(SMALL, 1, has_pass)
    rng = np.random.default_rng(5)
    m, k, n = 24, 128, 32
    sizes = (10.0 ** rng.uniform(-6, 6, m)).astype(np.float32)
    x = normal(3, m, k) * sizes[:, None]
    x[3, 5] = 1e9  # alone above the rest
    x[4] *= np.exp(3 * rng.standard_normal(k, np.float32))
    x[5] = 1e37 * normal(6, k).clip(-1, 1)
    weights = normal(4, k, n) * (10.0 ** rng.uniform(-6, 6, n)).astype(np.float32) * np.float32(1e-7)
    [found] = run(product(weights, m), device, {"x": x})
    exact = x.astype(np.float64) @ weights
    whole, row = errors(tf32(x) @ tf32(weights), exact)
    assert np.isfinite(found).all()
    assert errors(found, exact)[0] <= 1.2 * whole
    assert errors(found, exact)[1] <= 1.2 * row


@pytest.mark.parametrize("tile", [SMALL, SLICED], ids=["one slice", "slices"])
def test_rows_that_begin_unlike_the_rest_of_them(device: str, tile: Tile) -> None:
    """With zeros, with much smaller or larger numbers; each is as exact as with TF32, and zeros are zero."""
    matrix_units.forced = Choice(tile, 1)
    m, k, n = 40, 400, 32
    x, weights = normal(3, m, k), normal(4, k, n)
    x[1, :200], x[2, :390], x[3], x[4, 100:] = 0, 0, 0, 0
    for row, factor in enumerate((1e-30, 1e-9, 1e-3, 1e3, 1e9, 1e30), 6):
        x[row, :300] *= np.float32(factor)
    x[20, :300], x[20, 300:] = 0, x[20, 300:] * np.float32(1e-20)
    [found] = run(product(weights, m), device, {"x": x})
    exact = x.astype(np.float64) @ weights
    rounded = tf32(x) @ tf32(weights)
    assert not found[3].any()
    for row in range(m):
        if row != 3:
            assert errors(found[[row]], exact[[row]])[0] <= 2 * errors(rounded[[row]], exact[[row]])[0], row


@pytest.mark.parametrize("has_pass", [True, False], ids=["pass", "own scales"])
def test_infinities_and_nan_come_out_where_they_belong(device: str, has_pass: bool) -> None:
    matrix_units.forced = Choice(SMALL, 1, has_pass)
    m, k, n = 18, 70, 20
    x, weights = normal(7, m, k), normal(8, k, n)
    weights[6, 3] = 1e-30  # too small for fp16 beside the others, and yet not zero
    weights[6, 4] = 0
    x[1, 6], x[2, 6], x[3, 2] = np.inf, -np.inf, np.nan
    x[4, 6], x[4, 7] = np.inf, -np.inf
    x[5] = 0
    x[6, 0] = 3e38
    [found] = run(product(weights, m), device, {"x": x})
    with np.errstate(all="ignore"):
        exact = (x.astype(np.float64) @ weights.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    infinite = np.isinf(exact)
    np.testing.assert_array_equal(np.isinf(found), infinite)
    np.testing.assert_array_equal(found[infinite], exact[infinite])
    assert np.isinf(found[1, 3])
    assert np.isnan(found[1, 4])
    assert not found[5].any()
    rest = [0, 6, *range(7, m)]
    np.testing.assert_allclose(found[rest], exact[rest], rtol=1e-3, atol=0.02)


def test_epilogues_see_every_element(device: str) -> None:
    """A bias along n, a factor along m, a residual, a number; results in float32 and in another type."""
    matrix_units.forced = Choice(SMALL, 1, True)
    for m, k, n in ((19, 64, 36), (19, 64, 35)):
        x, weights, bias = normal(1, m, k), normal(2, k, n), normal(3, n)
        factor, residual = normal(4, m, 1), normal(5, m, n)
        sketch = Sketch("epilogue")
        y = sketch.node("MatMul", sketch.input("x", (m, k)), sketch.constant(weights))
        y = sketch.node("Add", y, sketch.constant(bias))
        y = sketch.node("Mul", y, sketch.input("factor", (m, 1)))
        kept = sketch.node("Add", y, sketch.input("residual", (m, n)))
        half = sketch.node("Cast", sketch.node("Mul", kept, sketch.constant(np.float32(0.5))), to=10)
        is_positive = sketch.node("Greater", kept, sketch.constant(np.float32(0)))
        model = save_graph(sketch.finish(kept, half, is_positive))
        options = vkml.SessionOptions(guard_bytes=256)
        with vkml.InferenceSession(model, options, devices=device) as session:
            found = session.run(None, {"x": x, "factor": factor, "residual": residual})
            kernels = [step.kernel for step in session.report().steps]
        assert kernels == ["split_rows", "matmul"]  # one kernel did it all
        exact = (x.astype(np.float64) @ weights + bias) * factor + residual
        assert errors(found[0], exact)[0] < 3.5e-4
        np.testing.assert_array_equal(found[1], (found[0] * np.float32(0.5)).astype(np.float16))
        np.testing.assert_array_equal(found[2], found[0] > 0)


def test_one_plan_serves_all_numbers_of_rows(device: str) -> None:
    matrix_units.forced = Choice(SMALL, 1, True)
    weights = normal(2, 24, 36)  # too small for the kernel of few rows, which a report takes open sizes for
    feeds = [{"x": normal(m, m, 24)} for m in (9, 16, 33, 100, 40)]
    for found, feed in zip(run(product(weights, "rows"), device, *feeds), feeds, strict=True):
        assert errors(found, feed["x"].astype(np.float64) @ weights)[0] < 3.5e-4


def test_products_of_the_same_rows_share_their_scales_and_results_repeat(device: str) -> None:
    matrix_units.forced = Choice(SMALL, 1, True)
    sketch = Sketch("shared")
    x = sketch.input("x", (20, 64))
    sums = [sketch.node("MatMul", x, sketch.constant(normal(seed, 64, 32))) for seed in (1, 2, 3)]
    model = save_graph(sketch.finish(*sums))
    feed = {"x": normal(9, 20, 64)}
    with vkml.InferenceSession(model, devices=device) as session:
        first, second = session.run(None, feed), session.run(None, feed)
        kernels = [step.kernel for step in session.report().steps]
    assert kernels.count("split_rows") == 1
    assert kernels.count("matmul") == 3
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        np.testing.assert_array_equal(a, b)
        assert errors(a, feed["x"].astype(np.float64) @ normal(index + 1, 64, 32))[0] < 3.5e-4


def test_highest_is_strict(device: str) -> None:
    matrix_units.forced = Choice(SMALL, 1, True)
    x, weights = normal(1, 20, 64), normal(2, 64, 32)
    [found] = run(product(weights, 20), device, {"x": x}, precision="highest")
    assert errors(found, x.astype(np.float64) @ weights)[0] < 1e-6


def test_packed_weights_hold_the_weights_scaled_exactly(device: str) -> None:
    """Whatever the driver's order: the columns' numbers, brought to 2^14 … 2^15, and zeros."""
    from vkml import vulkan

    info = vulkan.find_device(device, True)
    fragment = device_registry.target_of(info).fragment
    assert fragment is not None
    k, n = 70, 21
    weights = normal(1, k, n) * np.float32(10.0) ** np.arange(-10, 11, dtype=np.float32)
    weights[3, 2] = weights[:, 2].max() * 1e-20
    packed = packing_of(weights, fragment)
    opened = device_registry.open_device(info)
    store = WeightStore(lambda: opened)
    try:
        lease = store.add([packed])
        [arena] = lease
        words = opened.download(arena.memory, 0, packed.type.bytes).view(np.uint32)
        store.release(lease)
    finally:
        store.close()
    check_packed(words, weights)


def test_weights_are_packed_several_at_a_time(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same kernel, with others between them that are uploaded as they are."""
    from vkml import vulkan

    info = vulkan.find_device(device, True)
    fragment = device_registry.target_of(info).fragment
    assert fragment is not None
    monkeypatch.setattr(weight_store, "_UPLOAD_STEP", 30_000)
    runs: list[int] = []
    real = weight_store.run_once
    monkeypatch.setattr(
        weight_store, "run_once", lambda on, these, *rest: (runs.append(len(these)), real(on, these, *rest))
    )
    shapes = [(70, 21), (64, 32), (300, 40), (5, 3), (33, 16), (128, 17)]
    arrays = [normal(at, *shape) for at, shape in enumerate(shapes)]
    packed = [packing_of(array, fragment) for array in arrays]
    plain = [Constant(dtypes.FLOAT32, array.shape, array) for array in arrays]
    opened = device_registry.open_device(info)
    told: list[tuple[int, int]] = []
    store = WeightStore(lambda: opened, lambda stage, done, size: told.append((done, size)))
    try:
        mixed = [each for pair in zip(packed, plain, strict=True) for each in pair]
        assert len(store.packing_kernels(mixed)) == len(packed)
        lease = store.add(mixed)
        assert store.packing_kernels(mixed) == []
        assert runs == [2, 1, 3] and len(told) == len(mixed) and told == sorted(told)
        assert told[-1] == (lease[0].memory.size, lease[0].memory.size)
        for array, words, constant in zip(arrays, packed, plain, strict=True):
            for each in (words, constant):
                at = store.address(each) - lease[0].memory.address
                held = opened.download(lease[0].memory, at, each.type.bytes)
                if each is words:
                    check_packed(held.view(np.uint32), array)
                else:
                    np.testing.assert_array_equal(held.view(np.float32), array.reshape(-1))
        store.release(lease)
    finally:
        store.close()


def packing_of(weights: Floats, fragment: Fragment) -> PackedWeights:
    """Of a matrix (k, n), which a model holds transposed."""
    k, n = weights.shape
    constant = Constant(dtypes.FLOAT32, (n, k), np.ascontiguousarray(weights.T))
    view = contiguous(Buffer(BufferKind.CONSTANT, constant.type.bytes, "w", constant), constant.type)
    return PackedWeights(constant, view.transpose((1, 0)), fragment, 128)


def check_packed(words: npt.NDArray[np.uint32], weights: Floats) -> None:
    """Fails unless the words are those of a matrix (k, n), in any order of fragments."""
    k, n = weights.shape
    columns = padded(n, 16)
    exponents = words[:columns].view(np.int32)[:n]
    _, powers = np.frexp(np.abs(weights).max(axis=0))
    np.testing.assert_array_equal(exponents, 15 - powers)
    with np.errstate(under="ignore"):
        halfs = np.ldexp(weights, exponents).astype(np.float16)
    halfs[(halfs == 0) & (weights != 0)] = np.float16(2.0**-24)
    held = words[2 * columns : 2 * columns + columns * padded(k, 64) // 2].view(np.float16)
    assert np.count_nonzero(held) == k * n
    np.testing.assert_array_equal(np.sort(held[held != 0]), np.sort(halfs, axis=None))


def test_a_device_says_how_it_keeps_fragments(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are packed for lanes that share a fragment; where each held all of it, there would be more."""
    from vkml import vulkan

    info = vulkan.find_device(device, True)
    target = device_registry.target_of(info)
    assert target.fragment is not None
    assert target.holds_elements_once(target.fragment)
    monkeypatch.setattr(fragment_check, "_known", {})
    one_too_many = count_elements

    def counted(view: View, fragment: Fragment, push_bytes: int) -> Dispatch:
        made = one_too_many(view, fragment, push_bytes)
        text = made.kernel.text
        parts = tuple(part.replace("GetLength())", "GetLength()) * 2") for part in text.parts)
        assert parts != text.parts
        return replace(made, kernel=replace(made.kernel, text=replace(text, parts=parts)))

    monkeypatch.setattr(fragment_check, "count_elements", counted)
    assert not target.holds_elements_once(target.fragment)


def test_what_a_device_said_is_kept(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So that the next process plans while its device opens."""
    from vkml import vulkan

    def refuse() -> NoReturn:
        raise AssertionError("nobody waits for the device")

    info = vulkan.find_device(device, True)
    fragment = device_registry.target_of(info).fragment
    assert fragment is not None
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    opened = functools.partial(device_registry.open_device, info)
    answers = []
    for opens in (opened, refuse):
        monkeypatch.setattr(fragment_check, "_known", {})
        monkeypatch.setattr(fragment_check, "_layouts", {})
        answers.append(
            (
                fragment_check.holds_elements_once(info, opens, fragment),
                fragment_check.fragment_layouts(info, opens, fragment),
            )
        )
    assert answers[0] == answers[1]
    for entry in tmp_path.rglob("elements-*"):
        entry.write_bytes(entry.read_bytes()[:-1])  # what is damaged counts as absent
    monkeypatch.setattr(fragment_check, "_known", {})
    with pytest.raises(AssertionError, match="waits for the device"):
        fragment_check.holds_elements_once(info, refuse, fragment)


def operands(
    m: int = 256, k: int = 1024, n: int = 512, *, weights: Floats | None = None
) -> tuple[gemm.Product, View, View]:
    """A product, its rows and its constant weights, as lowering has them."""
    held = np.ones((k, n), np.float32) if weights is None else weights
    constant = Constant(dtypes.FLOAT32, (1, k, n), held.reshape(1, k, n))
    a = contiguous(Buffer(BufferKind.INPUT, 4 * m * k, "x"), TensorType(dtypes.FLOAT32, (1, m, k)))
    b = contiguous(Buffer(BufferKind.CONSTANT, 4 * k * n, "w", constant), constant.type)
    return gemm.matrix_product(a, b, TensorType(dtypes.FLOAT32, (m, n))), a, b


def test_what_is_for_matrix_units() -> None:
    product, a, b = operands()
    assert matrix_units.refusal(VulkanBuilder(GPU), product, a, b) == ""
    refused = {
        "strict": (replace(GPU, strict_fp32=True), a, b),
        "no matrix units": (replace(GPU, fragment=None), a, b),
        "small": (replace(GPU, fragment=Fragment(8, 8, 8, 8)), a, b),
        "more than once": (replace(GPU, holds_elements_once=lambda fragment: False), a, b),
        "lacks": (replace(GPU, capabilities=frozenset()), a, b),
        "no constant": (GPU, a, replace(b, buffer=Buffer(BufferKind.ACTIVATION, 1))),
        "transposed": (GPU, replace(a, strides=(0, 1, 256)), b),
    }
    for reason, (target, left, right) in refused.items():
        assert reason in matrix_units.refusal(VulkanBuilder(target), product, left, right)
    assert "too small" in matrix_units.refusal(VulkanBuilder(GPU), *operands(16, 64, 64))


def test_who_finds_the_scales() -> None:
    """Workgroups guess them for few rows; a pass finds those of rows that several products read, or that meet
    weights of many magnitudes, and those of large products."""

    def rule(m: int = 128, k: int = 768, n: int = 768, products: int = 1, spread: float = 1.0) -> Choice:
        weights = normal(1, k, n)
        weights[::16] *= np.float32(spread)
        product, a, b = operands(m, k, n, weights=weights)
        a.buffer.products = products
        assert matrix_units.refusal(VulkanBuilder(GPU), product, a, b) == ""
        found = matrix_units.rule_of(VulkanBuilder(GPU), product, a, b)
        assert found is not None
        return found

    assert not rule().has_pass and not rule(1024, 1024, 1024).has_pass and not rule(spread=1 / 16).has_pass
    assert rule(products=2).has_pass and rule(spread=1e-4).has_pass and rule(8192, 512, 16384).has_pass


@pytest.mark.parametrize("value", [np.inf, np.nan, 0.0, 1e-9], ids=str)
def test_weights_that_scales_do_not_suit_are_strict(value: float) -> None:
    weights = normal(1, 1024, 512)
    weights[7] = value
    assert "weights" in matrix_units.refusal(VulkanBuilder(GPU), *operands(weights=weights))
    weights[7] = 1e-3
    assert not matrix_units.refusal(VulkanBuilder(GPU), *operands(weights=weights))


def test_columns_of_holes_are_looked_at() -> None:
    """One column of many that reads few rows, however large the others, is enough; a dead one is none."""

    def refusal(weights: Floats) -> str:
        return matrix_units.refusal(VulkanBuilder(GPU), *operands(k=len(weights), weights=weights))

    for k in (1024, 4096):
        weights = normal(1, k, 512)
        weights[: k // 10, 3] = 0
        weights[:, 5] = 0
        assert refusal(weights) == ""
        weights[: k // 5, 3] *= np.float32(1e-6)
        assert "next to nothing" in refusal(weights)
        near_one = normal(1, k, 512) * np.float32(1e-6) + np.eye(k, 512, dtype=np.float32)
        assert "next to nothing" in refusal(near_one)
        assert "next to nothing" in refusal(np.asfortranarray(weights))
        for row in (k // 10 - 1, k // 2 + 5):  # not among those that are looked at
            weights = normal(1, k, 512)
            weights[:, 7] = 0
            weights[row, 7] = 1
            assert "next to nothing" in refusal(weights)


@pytest.mark.parametrize("has_pass", [False, True])
def test_a_selection_keeps_the_digits_of_small_elements(device: str, has_pass: bool) -> None:
    """Each result is one element of a row whose magnitudes fall: nothing covers what fp16 cuts off."""
    matrix_units.forced = Choice(SMALL, 1, has_pass)
    rows = normal(2, 40, 64) * np.float32(10) ** np.linspace(0, -30, 64, dtype=np.float32)
    model = product(np.eye(64, dtype=np.float32), 40)
    with vkml.InferenceSession(model, devices=device, precision="high") as session:
        [found] = session.run(None, {"x": rows})
    np.testing.assert_allclose(found, rows, rtol=2.0**-10)


def test_every_tile_fits_a_gpu_and_the_rule_takes_wide_ones_for_large_products() -> None:
    assert GPU.fragment is not None
    assert all(tile.fits(GPU.fragment, GPU) for tile in matrix_tiles.TILES)
    large, small = (
        matrix_units.choose(GPU, GPU.fragment, operands(m, 768, n)[0]) for m, n in ((4096, 3072), (128, 768))
    )
    assert large is not None
    assert small is not None
    assert (large.tile.m, large.tile.n) == (64, 512)
    assert small.tile.m < 64
    long = matrix_units.choose(GPU, GPU.fragment, operands(128, 3072, 768)[0])
    assert long is not None
    assert long.splits > 1


@pytest.mark.parametrize(
    ("m", "n", "k"), [(147, 64, 802816), (576, 64, 200704), (64, 64, 65536), (64, 64, 65537)]
)
def test_long_sums_are_ranges_that_fill_the_device(m: int, n: int, k: int) -> None:
    """The gradients of ResNet-18's first weights, 64 images a step; at the limit, and beyond it."""
    fragment = GPU.fragment
    assert fragment is not None
    choice = matrix_units.choose(GPU, fragment, operands(m, k, n)[0])
    assert choice is not None
    assert choice.longest_sum(k) <= matrix_tiles.LONGEST_SUM
    groups = -(-m // choice.tile.m) * -(-n // choice.tile.n) * choice.splits
    assert groups >= 64


def test_one_range_of_a_long_sum_is_refused() -> None:
    matrix_units.forced = Choice(SMALL, 1, True)
    reason = matrix_units.refusal(VulkanBuilder(GPU), *operands(16, 65537, 16))
    assert "sums of more than 65536" in reason
    matrix_units.forced = Choice(SLICED, 1, True)
    assert matrix_units.refusal(VulkanBuilder(GPU), *operands(16, 65537, 16)) == ""


def test_packed_weights_are_made_once_and_keep_no_original_alive() -> None:
    assert GPU.fragment is not None
    _, _, b = operands(weights=normal(1, 1024, 512))
    matrix = View(b.buffer, b.dtype, b.shape[1:], b.strides[1:])
    first, second = (
        VulkanBuilder(GPU).packed_weights(matrix, GPU.fragment).buffer.constant for _ in range(2)
    )
    assert first is second
    original = weakref.ref(b.buffer.constant)
    del b, matrix, first, second
    gc.collect()
    assert original() is None
