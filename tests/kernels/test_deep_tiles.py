"""Tiles as GPUs have them that software would not choose: steps of 64, weights four ahead, four slices of K.

Of products and convolutions on matrix units; and products of halves in blocks of 64, ordinary ones of 8 × 8
results a thread. Two variants are missing here, for lavapipe cannot run them. Steps of 64 where workgroups
guess the scales of rows themselves (matrix_units_rows.slang): a row's part of a step is then what a subgroup
of 16 lanes fetches, and lavapipe's have 8. The three tiles of `gemm` that take more than 32 KiB of shared
memory: sums, and the tiles of operands, are float32 for float16 operands, too, so none is smaller; on a
device without so much, tiles of the same results a thread, steps of K and vectors take their places.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vkml
from tests.kernels import test_conv_pieces, test_half_product, test_half_weights, test_matrix_units
from tests.kernels import test_split_product as split
from tests.kernels.convolutions import (
    ROUNDED,
    Shape,
    check_what_is_not_finite,
    convolved,
    error,
    graph,
    run,
    tf32,
    worst_result,
)
from tests.kernels.layouts import LAYOUTS, LONG, Array, laid_out, normal
from tests.kernels.test_tiles import lavapipe
from tests.vulkan_cases import Cases, Fixed
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.kernels import gemm, half_product, half_weights, matrix_units, sliced, split_product
from vkml.kernels.matrix_tiles import LINE_TILES, Choice, Tile
from vkml.kernels.packed_weights import Fragment
from vkml.kernels.spec import Dispatch
from vkml.lowering.vulkan_builder import VulkanBuilder

__all__ = ["lavapipe"]

AHEAD = Tile(16, 16, 2, 1, 64, 4, 1.0, 1.0)
"""Half as many rows and columns as the smallest tile of a GPU: lavapipe compiles for seconds, not for ten."""
SLICES = replace(AHEAD, slices=4)
PAIRS = replace(AHEAD, slices=2, ahead=2)


@pytest.fixture
def fragment(device: str, monkeypatch: pytest.MonkeyPatch) -> Fragment:
    """The device's, of float16, where small products are on units, too."""
    monkeypatch.setattr(sliced, "choose", lambda target, product: None)
    found = device_registry.target_of(vulkan.find_device(device, True)).fragment
    assert found is not None
    return found


def test_these_are_what_tiles_of_gpus_have() -> None:
    """Each way to go through K that has a step of 64."""
    depths = {(tile.slices, tile.step_k, tile.ahead) for tile in LINE_TILES}
    assert depths == {(1, 64, 2)} | {
        (tile.slices, tile.step_k, tile.ahead)
        for tile in (AHEAD, SLICES, PAIRS, replace(AHEAD, slices=2), LINE_TILES[-1])
    }
    of_pieces = {(tile.step_k, tile.ahead) for tile in split_product.TILES if tile.pieces == 2}
    assert of_pieces == {(64, 2), (32, 2)}


# --- products of float32 by constant weights, at precision high ---------------------------------------------

UNITS = {
    "four ahead": (Choice(AHEAD, 1, True), (37, 192, 44), False),
    "ranges of K, of which one is shorter": (Choice(AHEAD, 3, True), (20, 261, 36), False),
    "two slices": (Choice(PAIRS, 1, True), (20, 300, 36), False),
    "four slices, of which one has nothing": (Choice(SLICES, 1, True), (20, 131, 37), True),
    "four slices, ranges of K": (Choice(SLICES, 2, True), (20, 701, 36), False),
    "a GPU's own tile": (Choice(LINE_TILES[-1], 1, True), (20, 400, 70), False),
}


@pytest.mark.parametrize("name", UNITS)
def test_products_on_units(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choice, (m, k, n), is_transposed = UNITS[name]
    monkeypatch.setattr(matrix_units, "forced", choice)
    x, weights = normal(1, m, k), normal(2, k, n)
    # Rows and columns have scales of their own: 2^±20.
    x *= np.exp2(np.linspace(-20, 20, m)).astype(np.float32)[:, None]
    weights *= np.exp2(np.linspace(20, -20, n)).astype(np.float32)
    model = test_matrix_units.product(weights, m, is_transposed=is_transposed)
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(model, options, devices=device, precision="high") as session:
        [found] = session.run(None, {"x": x})
        assert choice.label() in [step.variant for step in session.report().steps]
    exact = x.astype(np.float64) @ weights
    rounded = tf32(x) @ tf32(weights)
    for have, near in zip(
        test_matrix_units.errors(found, exact), test_matrix_units.errors(rounded, exact), strict=True
    ):
        assert have <= 1.1 * near


def test_what_is_not_finite_in_slices(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities and NaN of any slice reach the results of their rows and columns, and no other."""
    monkeypatch.setattr(matrix_units, "forced", Choice(SLICES, 1, True))
    x, weights = normal(7, 18, 500), normal(8, 500, 20)
    for slice_ in range(4):
        x[slice_, 128 * slice_ + 7] = np.inf
        x[4 + slice_, 128 * slice_ + 70] = np.nan
    x[8, 3], x[8, 450] = np.inf, -np.inf
    x[9] = 0
    [found] = test_matrix_units.run(test_matrix_units.product(weights, 18), device, {"x": x})
    with np.errstate(all="ignore"):
        exact = (x.astype(np.float64) @ weights.astype(np.float64)).astype(np.float32)
    for is_such in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(is_such(found), is_such(exact))
    assert not found[9].any()
    np.testing.assert_allclose(found[10:], exact[10:], rtol=1e-3, atol=0.05)


# --- products of float16 by weights in the order of fragments -----------------------------------------------

HALVES = (
    ("rows", AHEAD, 1, "float32"),
    ("columns of odd lengths", AHEAD, 1, "float16"),
    ("long rows", PAIRS, 2, "float32"),
    ("rows of odd lengths", SLICES, 1, "float32"),
    ("long rows", SLICES, 1, "float16"),
    ("long columns", SLICES, 2, "float32"),
)
"""Layout, tile, ranges of K and type of the results."""


@pytest.mark.parametrize(
    ("name", "tile", "splits", "to"),
    HALVES,
    ids=[f"{name}, {tile.slices} slices, {splits} ranges" for name, tile, splits, _ in HALVES],
)
def test_weights_in_fragments(
    fragment: Fragment,
    device: str,
    name: str,
    tile: Tile,
    splits: int,
    to: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines of rows along k and across, at multiples of 16 bytes and anywhere; weights either way."""
    monkeypatch.setattr(half_weights, "forced", (tile, splits))
    _, left, right, turned = (LAYOUTS | LONG)[name]
    x, weights = test_half_product.halves(1, *left), test_half_product.halves(2, *right)
    sketch = Sketch("product")
    rows, columns = sketch.input("a", left, dtypes.FLOAT16), sketch.constant(weights)
    a, b = x.astype(np.float64), weights.astype(np.float64)
    if "a" in turned:
        rows, a = sketch.node("Transpose", rows, perm=[1, 0]), a.T
    if "b" in turned:
        columns, b = sketch.node("Transpose", columns, perm=[1, 0]), b.T
    value = sketch.node("MatMul", rows, columns)
    if to == "float32":
        value = sketch.node("Cast", value, to=dtypes.FLOAT32.code)
    test_half_product.check(test_half_weights.run_packed(device, sketch, value, {"a": x}), a, b)


# --- products of float32 in pieces of float16 ---------------------------------------------------------------

PIECES = {
    "one, four ahead, ranges of K": ("long columns", AHEAD, 2),
    "one, four slices": ("long rows", SLICES, 1),
    "two": ("long rows", replace(AHEAD, ahead=2, pieces=2), 1),
    "two, columns": ("columns of odd lengths", replace(AHEAD, ahead=2, pieces=2), 1),
    "two, slices, ranges of K": ("long columns", replace(PAIRS, pieces=2), 2),
}
"""Layout, tile and ranges of K."""


def with_rows(tile: Tile, fragment: Fragment) -> Tile:
    """One row of fragments where elements are two pieces: of two, lavapipe compiles for half a minute."""
    return replace(tile, sub_m=fragment.m) if tile.pieces == 2 else tile


@pytest.mark.parametrize("name", PIECES)
def test_pieces(fragment: Fragment, device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, tile, splits = PIECES[name]
    tile = with_rows(tile, fragment)
    monkeypatch.setattr(split_product, "forced", (tile, splits))
    made = laid_out(layout)
    found = split.run(device, made.sketch, made.value, made.feed)
    assert split.worst(found - made.bias.astype(np.float64), made.a, made.b) < split.bound(tile)


@pytest.mark.parametrize("pieces", [1, 2])
def test_what_pieces_lose_is_computed_again(
    fragment: Fragment, device: str, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large elements of a row meet zeros: what is left had lost its bits, in each of several steps."""
    tile = with_rows(replace(PAIRS, pieces=pieces), fragment)
    monkeypatch.setattr(split_product, "forced", (tile, 1))
    a, b = normal(1, 20, 300), normal(2, 300, 24)
    a[:, ::2] *= np.float32(1e12)
    b[::2] = 0
    assert split.worst(split.product(device, a, b), a, b) < split.bound(tile)


# --- convolutions, windows of images ------------------------------------------------------------------------

SAME = (1, 1, 1, 1)
WINDOWS = {
    "a tap of several steps": (Choice(AHEAD, 1), Shape(1, 128, 20, (5, 7), (3, 3), pads=SAME)),
    "taps that share steps": (Choice(AHEAD, 1), Shape(2, 24, 20, (5, 7), (3, 3), (2, 1), SAME)),
    "taps innermost": (Choice(AHEAD, 1), Shape(2, 3, 20, (9, 10), (7, 7), (2, 2), (3, 3, 3, 3))),
    "ranges of K": (Choice(AHEAD, 3), Shape(2, 40, 17, (6, 5), (3, 2), pads=SAME)),
    "two slices": (Choice(PAIRS, 1), Shape(1, 64, 20, (5, 8), (3, 3), pads=SAME)),
    "four slices": (Choice(SLICES, 1), Shape(3, 64, 20, (5, 7), (3, 3), pads=SAME)),
    "four slices, ranges of K": (Choice(SLICES, 2), Shape(2, 24, 36, (7, 7), (3, 3), pads=SAME)),
    "a GPU's own tile": (Choice(LINE_TILES[-1], 1), Shape(2, 32, 70, (5, 7), (3, 3), pads=SAME)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choice, shape = WINDOWS[name]
    monkeypatch.setattr(matrix_units, "forced", choice)
    x, weight = shape.x(), shape.weight()
    [found] = run(graph(shape, weight), device, x)
    exact = shape.exact(x, weight)
    assert found.shape == exact.shape
    assert error(found, exact) <= 1.1 * error(shape.exact(tf32(x), tf32(weight)), exact)


GUARDED = Shape(1, 64, 20, (6, 7), (3, 3), pads=SAME)


@pytest.mark.parametrize("tile", [AHEAD, SLICES], ids=["four ahead", "four slices"])
def test_convolutions_by_weights_of_a_run(device: str, tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small elements that the large ones leave alone, first of images and then of weights."""
    monkeypatch.setattr(matrix_units, "forced", Choice(tile, 1))
    for is_of_images in (True, False):
        x, weight = GUARDED.x(), GUARDED.weight()
        large, none = (x, weight) if is_of_images else (weight, x)
        large[:, ::2] *= np.float32(1e12)
        none[:, ::2] = 0
        assert worst_result(GUARDED, convolved(device, GUARDED, x, weight), x, weight) < ROUNDED
    check_what_is_not_finite(device, GUARDED)


@pytest.mark.parametrize("name", ["taps innermost", "four slices"])
def test_scales_that_do_not_suit(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a workgroup, or each slice of it, reads first tells nothing of the rest: it begins anew."""
    choice, shape = WINDOWS[name]
    monkeypatch.setattr(matrix_units, "forced", choice)
    weight = shape.weight()
    for factor in (1e-12, 1e12):
        x = shape.x()
        x[:, shape.channels // 2 :] *= np.float32(factor)
        [found] = run(graph(shape, weight), device, x)
        exact = shape.exact(x, weight)
        assert error(found, exact) <= 1.1 * error(shape.exact(tf32(x), tf32(weight)), exact)


@pytest.mark.parametrize("slices", [1, 2])
def test_convolutions_in_pieces(
    fragment: Fragment, device: str, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile = with_rows(replace(AHEAD, slices=slices, ahead=2, pieces=2), fragment)
    monkeypatch.setattr(matrix_units, "forced", Choice(tile, 1))
    shape = Shape(1, 64, 20, (5, 7), (3, 3), pads=SAME)
    x, weight = shape.x(), shape.weight()
    [found] = test_conv_pieces.run(graph(shape, weight), device, x)
    assert error(found, shape.exact(x, weight)) <= test_conv_pieces.FLOAT


# --- products of float16 as operands lie --------------------------------------------------------------------

BLOCKS = (
    ("rows of odd lengths", 0, 1),
    ("columns", 0, 1),
    ("rows by columns, batches", 0, 2),
    ("long rows", 1, 1),
    ("long columns", 1, 2),
)
"""Layout, blocks of 64 after which sums leave the unit, and ranges of K."""


@pytest.mark.parametrize(("name", "promoted", "splits"), BLOCKS)
def test_blocks_of_64(
    fragment: Fragment, device: str, name: str, promoted: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, n = (fragment.m if promoted else max(16, fragment.m)), max(16, fragment.n)
    tile = half_product.Tile(2 * m, 2 * n, 64, m, n, promoted, 100, 0.5)
    monkeypatch.setattr(half_product, "forced", (tile, splits))
    made = laid_out(name, dtypes.FLOAT16)
    found = test_half_product.run(device, made.sketch, made.value, made.feed).astype(np.float64)
    sizes, exact = abs(made.a) @ abs(made.b), made.a @ made.b
    # The sum and what is added to it are rounded to float16, by half a unit each.
    rounded = 2.0**-11 * (abs(exact) + abs(exact + made.bias)) + 2.0**-24
    assert np.all(
        abs(found - exact - made.bias) <= rounded + test_half_product.bound(made.a.shape[-1]) * sizes
    )


# --- ordinary products --------------------------------------------------------------------------------------

STAND_INS = {
    (128, 128, 16): gemm.Tile(64, 128, 16, 8, 8, 1.0),
    (64, 64, 32): gemm.Tile(64, 32, 32, 4, 4, 1.0),
    (32, 256, 16): gemm.Tile(32, 128, 16, 4, 8, 1.0),
}
"""By m, n and k of a tile one of the same results a thread and the same k, of half as many threads."""


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("size", STAND_INS, ids=str)
def test_tiles_of_more_than_32_kib(
    lavapipe: str, size: tuple[int, int, int], splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Themselves where a device has so much shared memory; its matrix units are left alone."""
    [tile] = [each for each in gemm.TILES if (each.m, each.n, each.k) == size]
    assert tile.shared_bytes(4) > 32768
    target = device_registry.target_of(vulkan.find_device(lavapipe, True))
    plain = replace(target, fragment=None, wide_fragment=None, bfloat16_fragment=None)
    monkeypatch.setattr(device_registry, "target_of", lambda *given: plain)
    room = target.shared_bytes
    made = tile if tile.shared_bytes(4) <= room else STAND_INS[size]
    assert (made.k, made.thread_m, made.thread_n) == (tile.k, tile.thread_m, tile.thread_n)
    monkeypatch.setattr(gemm, "forced", (made, splits))
    launched = set()
    emit = VulkanBuilder.emit

    def noting(build: VulkanBuilder, dispatch: Dispatch) -> None:
        launched.add((dispatch.kernel.label, dispatch.kernel.variant.startswith(made.label())))
        emit(build, dispatch)

    monkeypatch.setattr(VulkanBuilder, "emit", noting)
    cases = Cases(seed=1)
    cases.add("MatMul", normal(1, 150, 132), normal(2, 132, 268), atol=5e-5)  # as in test_tiles.py
    cases.add("MatMul", halves(3, 70, 131), halves(4, 131, 69))  # read one by one, added up in float32
    cases.add("Conv", normal(5, 2, 32, 9, 7), Fixed(normal(6, 40, 32, 3, 3)), pads=(1, 1, 1, 1), atol=5e-5)
    cases.check(lavapipe)
    assert {each for each in launched if each[0] in ("matmul", "conv")} == {("matmul", True), ("conv", True)}


def halves(seed: int, *shape: int) -> Array:
    """Normal numbers of float16, small enough for sums not to round to few bits."""
    return (normal(seed, *shape) / 4).astype(np.float16)
