"""Products of float32 in scaled pieces of float16: as exact as float32 or as TF32, whatever the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkml
from tests.kernels.layouts import LAYOUTS, LONG, laid_out, normal
from tests.kernels.test_half_product import launches_of, view
from tests.kernels.test_half_weights import products_of
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.ir import TensorType, dtypes
from vkml.kernels import gemm, sliced, split_product
from vkml.kernels.gemm import Product
from vkml.kernels.matrix_tiles import Tile
from vkml.kernels.packed_weights import MATRIX_UNIT_NEEDS, Fragment
from vkml.kernels.slang import compile_kernel
from vkml.lowering import vulkan as lowering
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.target import Target
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
GPU = Target(
    frozenset({*MATRIX_UNIT_NEEDS, "bfloat16_cooperative_matrix"}),
    256,
    49152,
    1024,
    32,
    65535,
    132,
    fragment=Fragment(16, 8, 16, 32),
    bfloat16_fragment=Fragment(16, 16, 16, 32, "bfloat16"),
)


@pytest.fixture(params=[2, 1], ids=["two pieces", "one piece"])
def tile(
    request: pytest.FixtureRequest, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tile]:
    """One of two subgroups of some fragments of the device's; forced.

    Two pieces have one row of fragments: of two, lavapipe's compiler takes five times as long.
    """
    fragments = device_registry.fragments_of(vulkan.find_device(vulkan_device_name, True))
    if not fragments:
        pytest.skip("no fp16 matrix units on this device")
    rows = fragments[0].m if request.param == 2 else max(16, fragments[0].m)
    made = Tile(rows, 16, 2, 1, 32, 1, 1.0, 0.5, request.param)
    monkeypatch.setattr(sliced, "choose", lambda target, product: None)  # what is small is its own, on GPUs
    monkeypatch.setattr(split_product, "forced", (made, 1))
    yield made


def bound(tile: Tile) -> float:
    """On the error of results, in what the magnitudes of operands add up to."""
    return 5e-7 if tile.pieces == 2 else 2.0**-10  # both operands are rounded, by 2^-11 at the most


def run(device: str, sketch: Sketch, value: str, feed: dict[str, Array]) -> Array:
    with vkml.InferenceSession(save_graph(sketch.finish(value)), devices=device) as session:
        [found] = session.run(None, feed)
        variants = [step.variant for step in session.report().steps if "scaled fp16" in step.variant]
    assert len(variants) == 1, "another kernel"
    return found


def product(device: str, a: Array, b: Array) -> Array:
    sketch = Sketch("product")
    value = sketch.node("MatMul", sketch.input("a", a.shape), sketch.input("b", b.shape))
    return run(device, sketch, value, {"a": a, "b": b})


def worst(found: Array, a: Array, b: Array) -> float:
    """The largest error, in what the magnitudes of operands add up to: fp32 rounds to 6e-8 of it once."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    sizes = abs(a) @ abs(b)
    return float(np.max(np.abs(found - a @ b) / np.where(sizes == 0, 1, sizes)))


def is_odd(name: str, tile: Tile) -> bool:
    """Of two kinds that a layout has, which it has with a tile: with the other number of pieces the other."""
    return ([*LAYOUTS, *LONG].index(name) + tile.pieces) % 2 == 1


@pytest.mark.parametrize("name", LAYOUTS | LONG)
def test_every_layout(
    tile: Tile, vulkan_device_name: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands along either direction, of one element a load or four; a sum, and a bias behind it."""
    monkeypatch.setattr(split_product, "forced", (tile, 2 if is_odd(name, tile) else 1))
    made = laid_out(name)
    found = run(vulkan_device_name, made.sketch, made.value, made.feed)
    assert worst(found - made.bias.astype(np.float64), made.a, made.b) < bound(tile)


@pytest.mark.parametrize("name", LAYOUTS | LONG)
def test_operands_of_two_bytes(tile: Tile, vulkan_device_name: str, name: str) -> None:
    """They are read as the numbers they are, one a load or four; results round to their type."""
    dtype = dtypes.FLOAT16 if is_odd(name, tile) else dtypes.BFLOAT16
    made = laid_out(name, dtype)
    found = run(vulkan_device_name, made.sketch, made.value, made.feed).astype(np.float64)
    unit = 2.0**-10 if dtype == dtypes.FLOAT16 else 2.0**-7  # sums and their bias are rounded, by half of it
    exact = made.a @ made.b
    limit = bound(tile) * (abs(made.a) @ abs(made.b)) + unit * (abs(exact) + abs(exact + made.bias))
    assert np.all(abs(found - exact - made.bias) <= limit)


def test_rows_of_very_different_magnitudes(tile: Tile, vulkan_device_name: str) -> None:
    """Each row has a scale of its own; elements of a row lie 2^50 apart."""
    random = np.random.default_rng(5)
    a, b = normal(1, 37, 300), normal(2, 300, 40)
    a *= np.exp(random.uniform(-35, 35, (37, 1))).astype(np.float32)
    a *= np.exp(random.uniform(-17, 17, a.shape)).astype(np.float32)
    b *= np.exp(random.uniform(-20, 20, (1, 40))).astype(np.float32)
    assert worst(product(vulkan_device_name, a, b), a, b) < bound(tile)


def test_small_elements_that_the_large_ones_leave_alone(tile: Tile, vulkan_device_name: str) -> None:
    """Large elements meet zeros: what is left of the row would have lost its bits, or vanished."""
    for factor in (1e6, 1e12, 1e25):
        a, b = normal(1, 33, 64), normal(2, 64, 24)
        a[:, ::2] *= np.float32(factor)
        b[::2] = 0
        assert worst(product(vulkan_device_name, a, b), a, b) < bound(tile), factor
        assert worst(product(vulkan_device_name, b.T.copy(), a.T.copy()), b.T, a.T) < bound(tile), factor


def test_constants_of_holes(tile: Tile, vulkan_device_name: str) -> None:
    """Columns that read either the large elements of a row or the small ones."""
    for factor in (1e6, 1e12, 1e25):
        a, b = normal(1, 33, 64), normal(2, 64, 24)
        a[:, ::2] *= np.float32(factor)
        b[::2, ::2] = 0
        b[1::2, 1::2] *= np.float32(1e-9)
        sketch = Sketch("product")
        value = sketch.node("MatMul", sketch.input("a", a.shape), sketch.constant(b))
        assert worst(run(vulkan_device_name, sketch, value, {"a": a}), a, b) < bound(tile), factor


def test_small_elements_that_cancel(tile: Tile, vulkan_device_name: str) -> None:
    """Pieces of the smallest are few multiples of the least there is: results may be 0 that are none."""
    random = np.random.default_rng(8)
    a = np.sign(normal(1, 33, 64))
    b = (random.integers(-3, 4, (64, 24)) * 2.0**-49 * random.uniform(0.5, 1.5, (64, 24))).astype(np.float32)
    a[:, 2], b[2] = 0, 1
    a[4] = 0
    found = product(vulkan_device_name, a, b)
    assert worst(found, a, b) < bound(tile)
    assert not found[4].any()
    turned = b.T.copy(), a.T.copy()
    assert worst(product(vulkan_device_name, *turned), *turned) < bound(tile)


def test_zeros_and_subnormal_numbers(tile: Tile, vulkan_device_name: str) -> None:
    a, b = normal(1, 33, 64), normal(2, 64, 24)
    a[4], b[:, 5], a[7, 1:] = 0, 0, 0
    found = product(vulkan_device_name, a, b)
    assert worst(found, a, b) < bound(tile)
    assert not found[4].any() and not found[:, 5].any()
    tiny = (a * np.float32(1e-30)).astype(np.float32)
    assert worst(product(vulkan_device_name, tiny, b), tiny, b) < bound(tile)


def test_what_is_not_finite(tile: Tile, vulkan_device_name: str) -> None:
    """Infinities, NaN, and sums that overflow: each result is that of ordinary arithmetic."""
    a, b = normal(1, 40, 48), normal(2, 48, 36)
    a[3, 5], a[7, 9], a[11, 0], b[0, 0] = np.inf, np.nan, 3e38, 3e38
    a[20, 1:] = 0
    b[4, 8] = -np.inf
    found = product(vulkan_device_name, a, b)
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64)
        exact[np.abs(exact) > np.finfo(np.float32).max] *= np.inf
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_array_equal(np.isposinf(found), np.isposinf(exact))
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(exact))


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_odd_sizes_give_the_bits_of_padded_ones(
    tile: Tile, vulkan_device_name: str, turned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies behind the last row and column is no reason to compute results beside it again.

    Lanes have one result each of odd rows, four of others, and one or more of a subgroup's rows in turns.
    """
    [fragment, *_] = device_registry.fragments_of(vulkan.find_device(vulkan_device_name, True))
    is_wide = (len(turned) + tile.pieces) % 2 == 1
    changed = tile if turned else replace(tile, sub_m=max(16, fragment.m))
    if is_wide:
        changed = replace(tile, sub_m=fragment.m, sub_n=2 * tile.sub_n)
    monkeypatch.setattr(split_product, "forced", (changed, 1))
    a, b = normal(1, 33, 75), normal(2, 75, 21)

    def of(a: Array, b: Array) -> Array:
        feed = {name: x.T.copy() if name in turned else x for name, x in (("a", a), ("b", b))}
        sketch, values = Sketch("product"), []
        for name, array in feed.items():
            value = sketch.input(name, array.shape)
            values.append(sketch.node("Transpose", value, perm=[1, 0]) if name in turned else value)
        return run(vulkan_device_name, sketch, sketch.node("MatMul", *values), feed)

    whole = of(np.pad(a, ((0, 3), (0, 1))), np.pad(b, ((0, 1), (0, 3))))
    np.testing.assert_array_equal(of(a, b), whole[:33, :21])


def test_operands_are_split_once(tile: Tile, vulkan_device_name: str) -> None:
    """Two products of the same rows share their pieces, two of the same columns would share theirs."""
    feed = {"a": normal(1, 40, 48), "b": normal(2, 48, 36), "c": normal(3, 48, 20)}
    sketch = Sketch("products")
    a, b, c = (sketch.input(name, array.shape) for name, array in feed.items())
    graph = sketch.finish(sketch.node("MatMul", a, b), sketch.node("MatMul", a, c))
    with vkml.InferenceSession(save_graph(graph), devices=vulkan_device_name) as session:
        found = session.run(None, feed)
        kernels = [step.kernel for step in session.report().steps]
    for result, other in zip(found, "bc", strict=True):
        assert worst(result, feed["a"], feed[other]) < bound(tile)
    assert kernels.count("split_rows") + kernels.count("split_columns") == 1
    assert kernels.count("pack_weights") == 2


@pytest.mark.parametrize("is_turned", [False, True], ids=["across k", "along k"])
def test_pieces_of_constants_are_made_once(
    tile: Tile, vulkan_device_name: str, is_turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits of those that each run makes, unless a graph has too many bytes of constants."""
    a, b = normal(1, 37, 300), normal(2, 300, 21)
    a[:, ::2] *= np.float32(1e-9)
    a[4, 3] = np.inf
    b[:, 3] *= np.float32(1e-20)
    b[::2, 5] *= np.float32(1e12)
    held = b.T.copy() if is_turned else b

    def of(is_constant: bool) -> tuple[Array, list[str]]:
        forget_lowerings()
        sketch = Sketch("product")
        value = sketch.constant(held) if is_constant else sketch.input("b", held.shape)
        value = sketch.node("Transpose", value, perm=[1, 0]) if is_turned else value
        graph = sketch.finish(sketch.node("MatMul", sketch.input("a", a.shape), value))
        feed = {"a": a} if is_constant else {"a": a, "b": held}
        with vkml.InferenceSession(save_graph(graph), devices=vulkan_device_name) as session:
            [found] = session.run(None, feed)
            return found, [step.kernel for step in session.report().steps]

    each, kernels = of(False)
    assert kernels == ["split_rows", "column_magnitudes", "pack_weights", "matmul"]
    once, kernels = of(True)
    assert kernels == ["split_rows", "matmul"]
    np.testing.assert_array_equal(once, each)
    monkeypatch.setattr(lowering, "MOST_KEPT", b.nbytes - 1)
    assert of(True)[1] == ["split_rows", "column_magnitudes", "pack_weights", "matmul"]


def size(m: int, n: int, k: int, batch: int = 1) -> Product:
    result = TensorType(dtypes.FLOAT32, (batch, m, n))
    return Product(batch, m, n, k, dtypes.FLOAT32, result, (batch, m, n), "batch, m, n", "matmul")


def test_the_rule() -> None:
    """Units for what is large; ordinary arithmetic where splitting costs more than it saves."""

    def is_chosen(target: Target, product: Product) -> bool:
        choice = split_product.choose(target, product)
        return choice is not None and choice.time < gemm.estimate_ordinary(target, product)

    assert is_chosen(GPU, size(4096, 4096, 4096)) and is_chosen(GPU, size(4096, 512, 2048))
    for small in (size(64, 256, 784), size(256, 256, 64), size(4, 4096, 4096)):
        assert not is_chosen(GPU, small), small
    long = split_product.choose(GPU, size(256, 256, 16384))
    assert long is not None and long.splits >= 4
    short = split_product.choose(replace(GPU, strict_fp32=False), size(4096, 4096, 4096))
    assert short is not None and short.tile.pieces == 1
    halfs = replace(size(4096, 4096, 4096), accumulator=dtypes.FLOAT64)
    lavapipe = replace(GPU, fragment=Fragment(8, 8, 8, 8))
    for target, product in (
        (replace(GPU, fragment=None), size(4096, 4096, 4096)),
        (replace(GPU, capabilities=frozenset()), size(4096, 4096, 4096)),
        (replace(GPU, shared_bytes=8000), size(4096, 4096, 4096)),
        (lavapipe, size(4096, 4096, 4096)),
        (GPU, halfs),
        (GPU, size(32768, 4096, 4096)),  # pieces of 512 MiB
    ):
        assert split_product.choose(target, product) is None


@pytest.mark.parametrize("tile", split_product.TILES, ids=Tile.label)
def test_every_tile_suits_the_gpu(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module has all products of a step: of two pieces three of the four."""
    assert GPU.fragment is not None and split_product.fits(tile, GPU.fragment, GPU)
    monkeypatch.setattr(split_product, "forced", (tile, 1))
    forget_lowerings()
    *passes, launch = launches_of(
        GPU, view(dtypes.FLOAT32, 1, 2048, 1024), view(dtypes.FLOAT32, 1, 1024, 2048)
    )
    labels = [each.kernel.label for each in passes]
    assert labels == ["split_rows", "column_magnitudes", "pack_weights"]
    words = np.frombuffer(compile_kernel(launch.kernel.source), np.uint32)[5:]
    products = tile.sub_m * tile.sub_n * tile.step_k // (16 * 8 * 16)
    assert products_of(words, dtypes.FLOAT16) == products * (3 if tile.pieces == 2 else 1)


def test_two_pieces_are_an_element() -> None:
    """To a unit of the last place, for magnitudes of a row's largest down to 2^-12."""
    random = np.random.default_rng(0)
    x = np.ldexp(random.uniform(0.5, 1, 100000), random.integers(-11, 16, 100000)).astype(np.float32)
    x *= random.choice(np.float32([-1, 1]), x.size)
    exponent = x.view(np.uint32) & np.uint32(0x7F800000)
    magic = (np.maximum(exponent, np.uint32(0x38800000)) + np.uint32(0x06C00000)).view(np.float32)
    upper = (x + magic) - magic
    assert np.array_equal(upper.astype(np.float16).astype(np.float32), upper)
    lower = ((x - upper) * np.float32(2048)).astype(np.float16)
    error = np.abs(upper.astype(np.float64) + lower.astype(np.float64) / 2048 - x)
    assert np.all(error <= np.abs(x) * 2.0**-23)
