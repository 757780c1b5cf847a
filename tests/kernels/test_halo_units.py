"""Convolutions whose tiles bring what they see to shared memory once: against float64, at fp16's limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import vkml
from benchmarks.conv_units.layers import SETS, Layer
from tests.kernels.convolutions import (
    ROUNDED,
    Shape,
    check_holes,
    check_magnitudes,
    check_not_finite,
    check_small_elements,
    check_what_is_not_finite,
    convolved,
    error,
    graph,
    is_as_forced,
    kernels,
    normal,
    run,
    tf32,
    worst_pixel,
    worst_result,
)
from tests.kernels.gpu_targets import GPU
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.kernels import halo_units
from vkml.kernels.halo_tiles import Choice, Tile
from vkml.onnx import save_graph

ROWS = Tile(2, 8, 2, 1, 2, 16, 2, 4)
"""Two rows of two fragments, and two blocks of channels; lavapipe compiles for seconds."""
LINE = Tile(2, 8, 2, 1, 0, 16, 1, 4)
PAIRS = Tile(2, 8, 2, 1, 2, 8, 2, 4)
"""Blocks of 8 channels: taps side by side are a step of k."""
WIDE = Tile(1, 8, 4, 2, 1, 8, 1, 4)
"""More subgroups, which share loads."""


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    yield
    halo_units.forced = None


def force(device: str, choice: Choice) -> None:
    """Has convolutions computed so, with as many filters a subgroup as the device's fragments ask for."""
    fragment = device_registry.target_of(vulkan.find_device(device, True)).fragment
    assert fragment is not None
    filters = max(choice.tile.sub_n, 8 * fragment.lanes // fragment.k)
    halo_units.forced = replace(choice, tile=replace(choice.tile, sub_n=filters))


SAME = (1, 1, 1, 1)
IMAGES = Shape(2, 32, 20, (9, 17), (3, 3), pads=SAME)
CASES = {
    "rows": (Choice(ROWS, 1), Shape(1, 32, 36, (7, 12), (3, 3), pads=SAME)),
    "a line": (Choice(LINE, 1), Shape(3, 16, 20, (5, 7), (3, 3), pads=SAME)),
    "a line, ranges of channels": (Choice(LINE, 2), IMAGES),
    "an empty range": (Choice(ROWS, 3), IMAGES),
    "a line, neighbours in fours": (Choice(LINE, 1), Shape(2, 16, 20, (5, 8), (3, 5), pads=(2, 4, 0, 0))),
    "a line, more results than pixels": (Choice(LINE, 1), Shape(2, 16, 9, (4, 5), (3, 3), pads=(2, 2, 2, 2))),
    "a line, fewer": (Choice(LINE, 1), Shape(2, 16, 9, (9, 10), (3, 3), (), (1, 0, 1, 2), (2, 2))),
    "strides, dilations, uneven pads": (
        Choice(replace(WIDE, subs_m=1), 1),
        Shape(2, 24, 17, (9, 14), (3, 2), (2, 3), (0, 2, 3, 1), (2, 1)),
    ),
    "three channels": (Choice(PAIRS, 1), Shape(2, 3, 20, (9, 17), (3, 3), pads=SAME)),
    "three channels, 7x7 of stride 2": (
        Choice(WIDE, 1),
        Shape(1, 3, 20, (15, 17), (7, 7), (2, 2), (3, 3, 3, 3)),
    ),
    "24 channels in a line": (
        Choice(replace(PAIRS, across=0), 1),
        Shape(2, 24, 20, (9, 17), (3, 5), pads=(1, 2, 1, 2)),
    ),
    "one dimension": (Choice(PAIRS, 1), Shape(2, 16, 24, (37,), (5,), (2,), (2, 2))),
}


@pytest.mark.parametrize("name", CASES)
def test_convolution(device: str, name: str) -> None:
    choice, shape = CASES[name]
    force(device, choice)
    x, weight = shape.x(), shape.weight()
    [found] = run(graph(shape, weight), device, x)
    exact = shape.exact(x, weight)
    assert found.shape == exact.shape
    assert error(found, exact) <= 1.1 * error(shape.exact(tf32(x), tf32(weight)), exact)


TILES = pytest.mark.parametrize("tile", [ROWS, LINE, PAIRS], ids=["rows", "a line", "pairs"])


def shape_for(tile: Tile) -> Shape:
    return replace(IMAGES, channels=3) if tile == PAIRS else IMAGES


@TILES
def test_magnitudes_of_images_do_not_matter(device: str, tile: Tile) -> None:
    force(device, Choice(tile, 1))
    shape = shape_for(tile)
    weight = shape.weight()
    powers = (-110, -40, 40, 100)
    xs = [np.ldexp(shape.x(), power).astype(np.float32) for power in powers]
    for found, x in zip(run(graph(shape, weight), device, *xs), xs, strict=True):
        exact = shape.exact(x, weight)
        assert error(found, exact) <= 1.1 * error(shape.exact(tf32(x), tf32(weight)), exact)


@TILES
def test_badly_scaled_pixels_are_as_exact_as_tf32(device: str, tile: Tile) -> None:
    """Pixels and filters over twelve decades, some above the rest: no scale takes a tile."""
    force(device, Choice(tile, 1))
    rng = np.random.default_rng(5)
    shape = shape_for(tile)
    x, weight = shape.x(), shape.weight()
    x *= (10.0 ** rng.uniform(-6, 6, (2, 1, 9, 17))).astype(np.float32)
    x[:, :, :4] *= np.float32(1e-9)
    x[0, 1, 7, 3] = 1e12
    x[1, :, 8, 14] = 1e36 * normal(6, shape.channels).clip(-1, 1)
    weight *= (10.0 ** rng.uniform(-6, 6, (20, 1, 1, 1))).astype(np.float32) * np.float32(1e-7)
    [found] = run(graph(shape, weight), device, x)
    exact, rounded = shape.exact(x, weight), shape.exact(tf32(x), tf32(weight))
    assert np.isfinite(found).all()
    assert error(found, exact) <= 1.2 * error(rounded, exact)
    assert worst_pixel(found, exact) <= 1.2 * worst_pixel(rounded, exact)


@pytest.mark.parametrize("splits", [1, 2])
def test_what_comes_later_may_be_larger_or_smaller(device: str, splits: int) -> None:
    """The scale is guessed by the first block of channels: the others do not fit it."""
    force(device, Choice(ROWS, splits))
    weight = IMAGES.weight()
    for factor in (1e-12, 1e12):
        x = IMAGES.x()
        x[:, 8:] *= np.float32(factor)
        [found] = run(graph(IMAGES, weight), device, x)
        exact = IMAGES.exact(x, weight)
        assert error(found, exact) <= 1.1 * error(IMAGES.exact(tf32(x), tf32(weight)), exact)


def test_weights_of_channels_that_differ_ask_for_exact_scales(device: str) -> None:
    """Large weights meet small channels and the other way round: the range leaves fp16 no room below."""
    force(device, Choice(ROWS, 1))
    x, weight = IMAGES.x(), IMAGES.weight()
    sizes = np.exp2(np.linspace(0, 22, 32)).astype(np.float32)
    x *= sizes[:, None, None] * np.float32(2.0**-30)
    weight /= sizes[:, None, None]
    [found] = run(graph(IMAGES, weight), device, x)
    exact = IMAGES.exact(x, weight)
    assert error(found, exact) <= 1.2 * error(IMAGES.exact(tf32(x), tf32(weight)), exact)


def test_pixels_of_zeros(device: str) -> None:
    """Loads of nothing but zeros suit no scale, windows of zeros any."""
    force(device, Choice(ROWS, 1))
    x, weight = IMAGES.x(), IMAGES.weight()
    x[:, :, ::3] = 0
    x[0, :, :, :9] = 0
    x[0, 5, 3, 3] = 1e-20
    found, nothing = run(graph(IMAGES, weight), device, x, np.zeros_like(x))
    exact = IMAGES.exact(x, weight)
    assert error(found, exact) <= 1.1 * error(IMAGES.exact(tf32(x), tf32(weight)), exact)
    assert not nothing.any()
    small = exact[0, :, 2:5, 2:5]
    assert error(found[0, :, 2:5, 2:5], small) < 1e-3


@TILES
def test_infinities_and_nan_come_out_where_they_belong(device: str, tile: Tile) -> None:
    """Not in the windows beside those that see them, whose fragments may."""
    force(device, Choice(tile, 1))
    shape = shape_for(tile)
    x, weight = shape.x(), shape.weight()
    weight[3, 1] = 1e-30  # too small for fp16 beside the others, and yet not zero
    weight[4, 1] = 0
    x[0, 1, 5, 5], x[0, 2, 2, 9] = np.nan, np.inf
    x[1, 0, 3, 3], x[1, 1, 3, 5] = np.inf, -np.inf
    x[1, 0, 8, 16] = 3e38
    [found] = run(graph(shape, weight), device, x)
    check_not_finite(found, shape.exact(x, weight), 1e-3, 0.05)


COMPUTED = {
    "rows": (Choice(ROWS, 1), IMAGES),
    "a line, ranges of channels": (Choice(LINE, 2), replace(IMAGES, spatial=(5, 7))),
}
BY_VALUES = pytest.mark.parametrize("name", COMPUTED)


@BY_VALUES
def test_weights_that_a_run_computes(device: str, name: str) -> None:
    """As in training."""
    choice, shape = COMPUTED[name]
    force(device, choice)
    x = shape.x()
    for scale in (1.0, 1e-12, 1e12):
        weight = shape.weight() * np.float32(scale)
        found, exact = convolved(device, shape, x, weight), shape.exact(x, weight)
        assert error(found, exact) <= 1.05 * error(shape.exact(tf32(x), tf32(weight)), exact)


@BY_VALUES
def test_small_elements_that_the_large_ones_leave_alone(device: str, name: str) -> None:
    """Large elements of images meet weights of zero, or the other way round: small ones have lost bits."""
    choice, shape = COMPUTED[name]
    force(device, choice)
    check_small_elements(device, shape)


@pytest.mark.parametrize("choice", [Choice(ROWS, 3), Choice(LINE, 3)], ids=["rows", "a line"])
def test_small_weights_beside_nothing(device: str, choice: Choice) -> None:
    """A range of no channels, and windows of zeros: nothing is left unwritten, and results are zeros."""
    force(device, choice)
    x, weight = IMAGES.x(), IMAGES.weight()
    x[:, :, ::2, :9] = 0
    x[1] = 0
    weight[:, 0, 0, 0] = 1e-30
    found = convolved(device, IMAGES, x, weight)
    assert worst_result(IMAGES, found, x, weight) < ROUNDED
    assert not found[1].any()


@BY_VALUES
def test_constant_filters_of_holes(device: str, name: str) -> None:
    """What fp16 cuts off of small elements is all that some filters read."""
    choice, shape = COMPUTED[name]
    force(device, choice)
    check_holes(device, shape)


@BY_VALUES
def test_computed_weights_and_images_of_any_magnitude(device: str, name: str) -> None:
    """Elements lie 2^50 apart."""
    choice, shape = COMPUTED[name]
    force(device, choice)
    check_magnitudes(device, shape)


@BY_VALUES
def test_what_is_not_finite_beside_computed_weights(device: str, name: str) -> None:
    """Infinities, NaN, and sums that overflow: each result is that of ordinary arithmetic."""
    choice, shape = COMPUTED[name]
    force(device, choice)
    check_what_is_not_finite(device, shape)


@pytest.mark.parametrize(("spatial", "splits"), [((6, 12), 1), ((5, 7), 2)], ids=str)
def test_epilogues_see_every_element(device: str, spatial: tuple[int, int], splits: int) -> None:
    """Bias, residual, activation, a second result in another type."""
    force(device, Choice(ROWS, splits))
    shape = replace(IMAGES, spatial=spatial)
    x, weight, bias, residual = shape.x(), shape.weight(), normal(3, 20), normal(4, 2, 20, *spatial)
    sketch = Sketch("epilogue")
    y = sketch.node(
        "Conv",
        sketch.input("x", x.shape),
        sketch.constant(weight),
        sketch.constant(bias),
        **shape.attributes(),
    )
    y = sketch.node("Relu", sketch.node("Add", y, sketch.input("residual", residual.shape)))
    half = sketch.node("Cast", sketch.node("Mul", y, sketch.constant(np.float32(0.5))), to=10)
    model = save_graph(sketch.finish(y, half))
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(model, options, devices=device) as session:
        found = session.run(None, {"x": x, "residual": residual})
        steps = session.report().steps
    assert [step.kernel for step in steps] == ["conv", *["add_partials"] * (splits > 1)]
    assert is_as_forced([steps[0].variant])
    exact = np.maximum(shape.exact(x, weight) + bias[:, None, None] + residual, 0)
    assert error(found[0], exact) < 3.5e-4
    np.testing.assert_array_equal(found[1], (found[0] * np.float32(0.5)).astype(np.float16))


def test_images_may_lie_in_any_order(device: str) -> None:
    force(device, Choice(LINE, 1))
    shape = Shape(2, 16, 20, (5, 8), (3, 3), pads=SAME)
    x, weight = shape.x(), shape.weight()
    sketch = Sketch("channels last")
    turned = sketch.node("Transpose", sketch.input("x", (2, 5, 8, 16)), perm=(0, 3, 1, 2))
    y = sketch.node("Conv", turned, sketch.constant(weight), **shape.attributes())
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    [found] = run(save_graph(sketch.finish(y)), device, given)
    assert error(found, shape.exact(x, weight)) < 3.5e-4


@pytest.mark.parametrize("tile", [ROWS, LINE], ids=["rows", "a line"])
def test_one_plan_serves_all_batches(device: str, tile: Tile) -> None:
    force(device, Choice(tile, 1))
    shape = Shape(1, 16, 20, (5, 8), (3, 3), pads=SAME)
    weight = shape.weight()
    shapes = [replace(shape, batch=batch) for batch in (2, 3, 5, 9)]
    images = [each.x() for each in shapes]
    for found, x, each in zip(
        run(graph(shape, weight, "batch"), device, *images), images, shapes, strict=True
    ):
        assert error(found, each.exact(x, weight)) < 3.5e-4


def test_highest_is_strict(device: str) -> None:
    force(device, Choice(ROWS, 1))
    x, weight = IMAGES.x(), IMAGES.weight()
    [found] = run(graph(IMAGES, weight), device, x, precision="highest")
    assert error(found, IMAGES.exact(x, weight)) < 1e-6


LARGE = Shape(8, 64, 64, (56, 56), (3, 3), pads=SAME)


def on_halos(shape: Shape, **given: object) -> bool:
    return "block" in kernels(shape, **given)[0].variant  # type: ignore[arg-type]


def test_what_halo_tiles_are_for() -> None:
    assert on_halos(LARGE)
    assert on_halos(replace(LARGE, kernel=(5, 5), pads=(2, 2, 2, 2)))
    refused = {
        "windows that do not overlap": replace(LARGE, kernel=(1, 1), pads=()),
        "strides that pass windows": replace(LARGE, kernel=(2, 2), strides=(2, 2), pads=()),
        "channels that are no blocks": replace(LARGE, channels=20),
        "rows of taps that are too long": replace(LARGE, kernel=(3, 33), pads=(1, 16, 1, 16)),
    }
    for reason, shape in refused.items():
        assert not on_halos(shape), reason
    first = Shape(1, 3, 32, (256, 256), (3, 3), pads=SAME)
    assert on_halos(first)
    assert not on_halos(replace(first, filters=64, kernel=(7, 7), strides=(2, 2), pads=(3, 3, 3, 3)))
    assert not on_halos(replace(LARGE, group=2), is_constant=False)
    assert not on_halos(LARGE, target=replace(GPU, strict_fp32=True))
    assert not on_halos(LARGE, target=replace(GPU, fragment=None))
    assert not on_halos(LARGE, target=replace(GPU, holds_elements_once=lambda fragment: False))
    assert not on_halos(LARGE, target=replace(GPU, capabilities=frozenset()))


@pytest.mark.parametrize("value", [np.inf, np.nan, 0.0, 1e-9], ids=str)
def test_weights_that_scales_do_not_suit_are_strict(value: float) -> None:
    weight = LARGE.weight()
    weight[:, 7, 1, 1] = value
    assert not on_halos(LARGE, weight=weight)
    weight[:, 7, 1, 1] = 1e-3
    assert on_halos(LARGE, weight=weight)


def test_no_range_of_a_long_sum_is_too_long() -> None:
    found = kernels(Shape(32, 16384, 16, (7, 7), (3, 3), pads=SAME))
    assert "block" in found[0].variant
    assert "3 K ranges" in found[0].variant or int(found[0].variant.split()[-3]) > 3
    assert found[-1].label == "add_partials"


def few_filters(layer: Layer) -> bool:
    return layer.kernel == 3 and layer.stride == 1 and layer.filters <= 32


def test_few_filters_waste_no_columns() -> None:
    layers = [each for each in itertools.chain.from_iterable(SETS.values()) if few_filters(each)]
    assert len(layers) == 2
    for layer in layers:
        shape = Shape(layer.batch, layer.channels, layer.filters, (layer.size,) * 2, (3, 3), pads=SAME)
        assert "fragments by 32" in kernels(shape)[0].variant


def test_every_layer_of_overlapping_windows_finds_a_tile() -> None:
    for layer in itertools.chain.from_iterable(SETS.values()):
        if layer.kernel == 1:
            continue
        shape = Shape(
            layer.batch,
            layer.channels,
            layer.filters,
            (layer.size,) * 2,
            (3, 3),
            (layer.stride,) * 2,
            SAME,
        )
        assert "matrix units" in kernels(shape)[0].variant
