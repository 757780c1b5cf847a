"""Convolutions of float32 on matrix units: against float64, at the limits of fp16, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

import vkml
from benchmarks.conv_units.layers import SETS
from tests.kernels.convolutions import (
    ROUNDED,
    Doubles,
    Shape,
    check_holes,
    check_magnitudes,
    check_not_finite,
    check_small_elements,
    check_what_is_not_finite,
    convolved,
    error,
    graph,
    kernels,
    normal,
    run,
    tf32,
    worst_pixel,
    worst_result,
)
from tests.kernels.gpu_targets import GPU
from vkml import nn
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.kernels import conv_units, matrix_units, packed_weights, range_sums
from vkml.kernels.matrix_tiles import Choice, Tile
from vkml.kernels.packed_weights import Fragment
from vkml.kernels.spec import KernelSpec
from vkml.kernels.views import View
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph

SMALL = Tile(16, 16, 2, 1, 32, 1, 1.0, 1.0)
"""Lavapipe compiles for seconds."""
FLAT = Tile(16, 16, 4, 1, 32, 1, 1.0, 1.0)
"""Fewer loads a thread: for fragments of few lanes, as lavapipe's are."""
SLICED = Tile(16, 16, 2, 2, 32, 2, 1.0, 1.0)


def fitting(choice: Choice, device: str) -> Choice:
    """One whose loads come out even with the device's fragment."""
    from vkml import vulkan

    fragment = device_registry.target_of(vulkan.find_device(device, True)).fragment
    assert fragment is not None
    return choice if conv_units.fits(choice.tile, fragment) else replace(choice, tile=SMALL)


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    yield
    matrix_units.forced = None


CASES = {
    "3x3": (Choice(SMALL, 1), Shape(1, 32, 36, (7, 12), (3, 3), pads=(1, 1, 1, 1))),
    "several images, odd pixels": (Choice(SMALL, 1), Shape(3, 16, 20, (5, 7), (3, 3), pads=(1, 1, 1, 1))),
    "strides, dilations, uneven pads": (
        Choice(SMALL, 1),
        Shape(2, 24, 17, (9, 14), (3, 2), (2, 3), (0, 2, 3, 1), (2, 1)),
    ),
    "1x1": (Choice(SMALL, 1), Shape(2, 64, 40, (6, 6), (1, 1))),
    "1x1 of stride 2": (Choice(SMALL, 1), Shape(2, 40, 33, (8, 10), (1, 1), (2, 2))),
    "three channels": (
        Choice(FLAT, 1),
        Shape(2, 3, 20, (4, 9, 10), (2, 3, 3), (1, 2, 2), (1, 1, 1, 0, 1, 1)),
    ),
    "one dimension": (Choice(SMALL, 1), Shape(2, 16, 24, (37,), (5,), (2,), (2, 2))),
    "three dimensions": (Choice(SMALL, 1), Shape(1, 8, 16, (3, 5, 6), (2, 3, 3), pads=(1, 1, 1, 0, 1, 1))),
    "ranges of K": (Choice(SMALL, 3), Shape(1, 32, 36, (7, 12), (3, 3), pads=(1, 1, 1, 1))),
    "ranges of K, odd pixels": (Choice(SMALL, 2), Shape(3, 16, 20, (5, 7), (3, 3), pads=(1, 1, 1, 1))),
    "more ranges than steps": (Choice(SMALL, 4), Shape(1, 40, 20, (4, 4), (1, 1))),
    "slices": (Choice(SLICED, 1), Shape(2, 24, 36, (7, 8), (3, 3), pads=(1, 1, 1, 1))),
    "slices and ranges of K": (Choice(SLICED, 2), Shape(2, 24, 36, (7, 7), (3, 3), pads=(1, 1, 1, 1))),
}


@pytest.mark.parametrize("name", CASES)
def test_convolution(device: str, name: str) -> None:
    choice, shape = CASES[name]
    matrix_units.forced = fitting(choice, device)
    x, weight = shape.x(), shape.weight()
    [found] = run(graph(shape, weight), device, x)
    exact = shape.exact(x, weight)
    assert found.shape == exact.shape
    assert error(found, exact) <= 1.1 * error(shape.exact(tf32(x), tf32(weight)), exact)


GRADIENTS = {
    "rows of 16": (Choice(FLAT, 1), Shape(8, 4, 20, (7, 16), (3, 3), pads=(1, 1, 1, 1))),
    "strides, dilations, few samples": (
        Choice(FLAT, 2),
        Shape(3, 5, 17, (9, 14), (3, 2), (2, 3), (1, 2, 1, 2), (2, 1)),
    ),
    "first layer": (Choice(SLICED, 2), Shape(2, 3, 20, (22, 22), (7, 7), (2, 2), (3, 3, 3, 3))),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_weights(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over samples and places, as in training; the output's gradient is packed as it lies."""
    choice, shape = GRADIENTS[name]
    copies: list[View] = []
    kept = VulkanBuilder.copy
    monkeypatch.setattr(VulkanBuilder, "copy", lambda *given: (copies.append(given[1]), kept(*given)))
    x = shape.x()
    windows = shape.rows(x)
    for scale in (1.0, 1e-12):
        matrix_units.forced = fitting(choice, device)
        incoming = normal(3, shape.batch, shape.filters, *windows.shape[1:3]) * np.float32(scale)
        given = shape.attributes()
        weight = vkml.tensor(shape.weight(), device=device, requires_grad=True)
        image = vkml.tensor(x, device=device)
        made = nn.functional.conv2d(
            image, weight, None, given["strides"], given["pads"][:2], given["dilations"]
        )
        made.backward(vkml.tensor(incoming, device=device))
        assert weight.grad is not None
        found = weight.grad.numpy()

        def gradient(windows: Doubles, incoming: npt.NDArray[np.floating]) -> Doubles:
            return np.einsum("nfhw,nhwckl->fckl", incoming.astype(np.float64), windows, optimize=True)

        exact = gradient(windows, incoming)
        assert error(found, exact) <= 1.1 * error(gradient(shape.rows(tf32(x)), tf32(incoming)), exact)
        assert error(found, exact) > 1e-5  # on matrix units
    assert not any(view.elements == incoming.size for view in copies)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, 24, 16, (6, 7), (3, 3), (1, 1), (1, 1, 1, 1)),
        Shape(2, 5, 16, (7, 8), (3, 2), (2, 2), (1, 0, 1, 0)),
    ],
    ids=["weights turned round", "stride 2"],
)
def test_gradients_of_images(device: str, shape: Shape) -> None:
    """Convolutions by weights that are packed as they lie; a stride leaves places between."""
    matrix_units.forced = fitting(Choice(FLAT, 1), device)
    strides, (top, left, bottom, right), (height, width) = shape.strides, shape.pads, shape.spatial
    image, weight = vkml.tensor(shape.x(), device=device, requires_grad=True), shape.weight()
    made = nn.functional.conv2d(image, vkml.tensor(weight, device=device), None, strides, (top, left))
    incoming = normal(3, *made.shape)
    made.backward(vkml.tensor(incoming, device=device))
    assert image.grad is not None
    found = image.grad.numpy()

    def gradient(weight: npt.NDArray[np.floating], incoming: Doubles) -> Doubles:
        whole = np.zeros((shape.batch, shape.channels, height + top + bottom, width + left + right))
        down, across = ((size - 1) * s + 1 for size, s in zip(incoming.shape[2:], strides, strict=True))
        for y, x in itertools.product(*map(range, shape.kernel)):
            part = np.einsum("fc,nfhw->nchw", weight[:, :, y, x].astype(np.float64), incoming)
            whole[:, :, y : y + down : strides[0], x : x + across : strides[1]] += part
        return whole[:, :, top : top + height, left : left + width]

    exact = gradient(weight, incoming.astype(np.float64))
    rounded = gradient(tf32(weight), tf32(incoming))
    assert 1e-5 < error(found, exact) <= 1.1 * error(rounded, exact)


@pytest.mark.parametrize(
    ("splits", "shape"),
    [(2, Shape(1, 8, 16, (97, 93), (96, 92))), (5, Shape(1, 32, 8, (97, 98), (97, 97)))],
    ids=["70656", "301088"],
)
def test_long_sums_are_added_up_in_ranges(device: str, splits: int, shape: Shape) -> None:
    """As in gradients of weights, whose windows are the outputs of all images."""
    matrix_units.forced = Choice(SMALL, splits)
    x, weight = shape.x(), shape.weight()
    [found] = run(graph(shape, weight), device, x)
    exact = shape.exact(x, weight)
    assert error(found, exact) <= 1.1 * error(shape.exact(tf32(x), tf32(weight)), exact)


IMAGE = Shape(1, 32, 20, (6, 9), (3, 3), pads=(1, 1, 1, 1))


@pytest.mark.parametrize("name", ["3x3", "several images, odd pixels"])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12], ids=str)
def test_weights_that_a_run_computes(device: str, name: str, scale: float) -> None:
    """As in training."""
    choice, shape = CASES[name]
    matrix_units.forced = fitting(choice, device)
    x, weight = shape.x(), shape.weight() * np.float32(scale)
    found, exact = convolved(device, shape, x, weight), shape.exact(x, weight)
    assert error(found, exact) <= 1.05 * error(shape.exact(tf32(x), tf32(weight)), exact)


COMPUTED = {
    "channels in blocks": (Choice(SMALL, 1), Shape(2, 16, 20, (5, 7), (3, 3), pads=(1, 1, 1, 1))),
    "taps innermost": (
        Choice(FLAT, 1),
        Shape(2, 5, 17, (9, 10), (3, 2), (2, 1), (0, 2, 3, 1), (2, 1)),
    ),
    "slices and ranges of K": (Choice(SLICED, 2), Shape(1, 24, 20, (7, 8), (3, 3), pads=(1, 1, 1, 1))),
}


@pytest.mark.parametrize("is_transposed", [False, True])
def test_the_largest_of_weights_may_lie_anywhere(
    device: str, is_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Magnitudes are found in ranges of k by several workgroups; each that packs looks at all of them."""
    matrix_units.forced = Choice(SMALL, 1)
    monkeypatch.setattr(packed_weights, "_PACKING_GROUPS", 1)  # several chunks a workgroup
    shape = Shape(1, 3008, 20, (4, 4), (1, 1))
    for place in (5, 1029, 3003):
        x, weight = shape.x(), shape.weight()
        weight[::2, place] *= np.float32(3e5)
        found = convolved(device, shape, x, weight, is_transposed=is_transposed)
        assert worst_result(shape, found, x, weight) < ROUNDED


@pytest.mark.parametrize("name", COMPUTED)
def test_small_elements_that_the_large_ones_leave_alone(device: str, name: str) -> None:
    """Large elements of images meet weights of zero, or the other way round: small ones have lost bits."""
    choice, shape = COMPUTED[name]
    matrix_units.forced = fitting(choice, device)
    check_small_elements(device, shape)


@pytest.mark.parametrize("name", COMPUTED)
def test_constant_filters_of_holes(device: str, name: str) -> None:
    """What fp16 cuts off of small elements is all that some filters read."""
    choice, shape = COMPUTED[name]
    matrix_units.forced = fitting(choice, device)
    check_holes(device, shape)


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_weights_and_images_of_any_magnitude(device: str, name: str) -> None:
    """Elements lie 2^50 apart."""
    choice, shape = COMPUTED[name]
    matrix_units.forced = fitting(choice, device)
    check_magnitudes(device, shape)


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_not_finite_beside_computed_weights(device: str, name: str) -> None:
    """Infinities, NaN, and sums that overflow: each result is that of ordinary arithmetic."""
    choice, shape = COMPUTED[name]
    matrix_units.forced = fitting(choice, device)
    check_what_is_not_finite(device, shape)


def test_zeros_of_computed_weights(device: str) -> None:
    choice, shape = COMPUTED["channels in blocks"]
    matrix_units.forced = fitting(choice, device)
    x, weight = shape.x(), shape.weight()
    weight[5], x[1] = 0, 0
    found = convolved(device, shape, x, weight)
    assert worst_result(shape, found, x, weight) < ROUNDED
    assert not found[:, 5].any() and not found[1].any()


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("power", [-110, -40, 0, 40, 100])
def test_magnitudes_of_images_do_not_matter(device: str, power: int, splits: int) -> None:
    matrix_units.forced = Choice(SMALL, splits)
    x, weight = np.ldexp(IMAGE.x(), power).astype(np.float32), IMAGE.weight()
    [found] = run(graph(IMAGE, weight), device, x)
    exact = IMAGE.exact(x, weight)
    assert error(found, exact) <= 1.1 * error(IMAGE.exact(tf32(x), tf32(weight)), exact)


@pytest.mark.parametrize("choice", [Choice(SMALL, 1), Choice(SLICED, 1), Choice(SMALL, 2)], ids=str)
def test_badly_scaled_pixels_are_as_exact_as_tf32(device: str, choice: Choice) -> None:
    """Pixels and filters over twelve decades, one number alone above the rest: no first scale takes them."""
    matrix_units.forced = fitting(choice, device)
    rng = np.random.default_rng(5)
    shape = Shape(1, 64, 20, (4, 24), (1, 1))
    x, weight = shape.x(), shape.weight()
    x *= (10.0 ** rng.uniform(-6, 6, (1, 1, 4, 24))).astype(np.float32)
    x[0, 5, 1, 3] = 1e9
    x[0, :, 2, 4] = 1e36 * normal(6, 64).clip(-1, 1)
    weight *= (10.0 ** rng.uniform(-6, 6, (20, 1, 1, 1))).astype(np.float32) * np.float32(1e-7)
    [found] = run(graph(shape, weight), device, x)
    exact, rounded = shape.exact(x, weight), shape.exact(tf32(x), tf32(weight))
    assert np.isfinite(found).all()
    assert error(found, exact) <= 1.2 * error(rounded, exact)
    assert worst_pixel(found, exact) <= 1.2 * worst_pixel(rounded, exact)


def test_what_comes_later_may_be_larger_or_smaller(device: str) -> None:
    """The scale is guessed by the first channels: the others do not fit it."""
    matrix_units.forced = Choice(SMALL, 1)
    shape = Shape(1, 96, 20, (4, 8), (1, 1))
    for factor in (1e-12, 1e12):
        x, weight = shape.x(), shape.weight()
        x[:, 32:] *= np.float32(factor)
        [found] = run(graph(shape, weight), device, x)
        exact = shape.exact(x, weight)
        assert error(found, exact) <= 1.1 * error(shape.exact(tf32(x), tf32(weight)), exact)


def test_weights_of_channels_that_differ_ask_for_exact_scales(device: str) -> None:
    """Large weights meet small channels and the other way round: the range leaves fp16 no room below."""
    matrix_units.forced = Choice(SMALL, 1)
    shape = Shape(1, 32, 20, (4, 8), (1, 1))
    x, weight = shape.x(), shape.weight()
    sizes = np.exp2(np.linspace(0, 22, 32)).astype(np.float32)
    x *= sizes[:, None, None] * np.float32(2.0**-30)
    weight /= sizes[:, None, None]
    [found] = run(graph(shape, weight), device, x)
    exact = shape.exact(x, weight)
    assert error(found, exact) <= 1.2 * error(shape.exact(tf32(x), tf32(weight)), exact)


def test_infinities_and_nan_come_out_where_they_belong(device: str) -> None:
    matrix_units.forced = Choice(SMALL, 1)
    x, weight = IMAGE.x(), IMAGE.weight()
    weight[3, 6] = 1e-30  # too small for fp16 beside the others, and yet not zero
    weight[4, 6] = 0
    x[0, 6, 1, 1], x[0, 7, 1, 1] = np.inf, -np.inf
    x[0, 6, 4, 1], x[0, 2, 4, 7] = np.inf, np.nan
    x[0, 0, 0, 6] = 3e38
    [found] = run(graph(IMAGE, weight), device, x)
    check_not_finite(found, IMAGE.exact(x, weight), 1e-3, 0.1)


def test_zeros_stay_zeros(device: str) -> None:
    matrix_units.forced = Choice(SMALL, 1)
    [found] = run(graph(IMAGE, IMAGE.weight()), device, np.zeros((1, 32, 6, 9), np.float32))
    assert not found.any()


@pytest.mark.parametrize("spatial", [(6, 10), (5, 7)], ids=str)
@pytest.mark.parametrize("splits", [1, 2])
def test_epilogues_see_every_element(
    device: str, spatial: tuple[int, int], splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bias, residual, activation, a second result in another type."""
    matrix_units.forced = Choice(SMALL, splits)
    monkeypatch.setattr(range_sums, "forced", False)
    shape = Shape(2, 16, 20, spatial, (3, 3), pads=(1, 1, 1, 1))
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
        kernels = [step.kernel for step in session.report().steps]
    assert kernels == ["conv", *["add_partials"] * (splits > 1)]  # one kernel did it all
    exact = np.maximum(shape.exact(x, weight) + bias[:, None, None] + residual, 0)
    assert error(found[0], exact) < 3.5e-4
    np.testing.assert_array_equal(found[1], (found[0] * np.float32(0.5)).astype(np.float16))


def test_images_may_lie_in_any_order(device: str) -> None:
    matrix_units.forced = Choice(SMALL, 1)
    shape = Shape(2, 16, 20, (5, 8), (3, 3), pads=(1, 1, 1, 1))
    x, weight = shape.x(), shape.weight()
    sketch = Sketch("channels last")
    turned = sketch.node("Transpose", sketch.input("x", (2, 5, 8, 16)), perm=(0, 3, 1, 2))
    y = sketch.node("Conv", turned, sketch.constant(weight), **shape.attributes())
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    [found] = run(save_graph(sketch.finish(y)), device, given)
    assert error(found, shape.exact(x, weight)) < 3.5e-4


def test_one_plan_serves_all_batches(device: str) -> None:
    matrix_units.forced = Choice(SMALL, 1)
    shape = Shape(1, 16, 20, (5, 8), (3, 3), pads=(1, 1, 1, 1))
    weight = shape.weight()
    shapes = [replace(shape, batch=batch) for batch in (2, 3, 5, 9)]
    images = [each.x() for each in shapes]
    for found, x, each in zip(
        run(graph(shape, weight, "batch"), device, *images), images, shapes, strict=True
    ):
        assert error(found, each.exact(x, weight)) < 3.5e-4


def test_highest_is_strict(device: str) -> None:
    matrix_units.forced = Choice(SMALL, 1)
    x, weight = IMAGE.x(), IMAGE.weight()
    [found] = run(graph(IMAGE, weight), device, x, precision="highest")
    assert error(found, IMAGE.exact(x, weight)) < 1e-6


def is_on_units(found: list[KernelSpec]) -> bool:
    return found[0].variant.startswith("matrix units")


LARGE = Shape(8, 64, 64, (56, 56), (3, 3), pads=(1, 1, 1, 1))


def test_what_is_for_matrix_units() -> None:
    assert is_on_units(kernels(LARGE))
    assert is_on_units(kernels(replace(LARGE, channels=3, kernel=(7, 7), spatial=(224, 224))))
    refused = {
        "strict": kernels(LARGE, replace(GPU, strict_fp32=True)),
        "no matrix units": kernels(LARGE, replace(GPU, fragment=None)),
        "small": kernels(LARGE, replace(GPU, fragment=Fragment(8, 8, 8, 8))),
        "more than once": kernels(LARGE, replace(GPU, holds_elements_once=lambda fragment: False)),
        "lacks": kernels(LARGE, replace(GPU, capabilities=frozenset())),
        "groups": kernels(replace(LARGE, group=2, kernel=(1, 1), pads=())),
        "too small": kernels(replace(LARGE, batch=1, channels=8, filters=8, spatial=(5, 5))),
    }
    for reason, found in refused.items():
        assert not is_on_units(found), reason
        assert reason in found[0].reason, found[0].reason


def test_a_tile_that_does_not_fit_is_not_forced() -> None:
    """Its threads would bring less than a load each: nothing, and results are zeros."""
    matrix_units.forced = Choice(FLAT, 1)
    assert "no tile fits" in kernels(LARGE)[0].reason
    assert is_on_units(kernels(LARGE, replace(GPU, fragment=Fragment(16, 8, 16, 16))))


def test_no_range_of_a_long_sum_is_too_long() -> None:
    long = replace(LARGE, channels=8192, filters=512, batch=32, spatial=(5, 5))
    found = kernels(long)
    assert is_on_units(found)
    assert found[-1].label == "add_partials"
    matrix_units.forced = Choice(SMALL, 1)
    assert "sums of more" in kernels(long)[0].reason
    matrix_units.forced = Choice(SMALL, 2)
    assert is_on_units(kernels(long))


@pytest.mark.parametrize("value", [np.inf, np.nan, 0.0, 1e-9], ids=str)
def test_weights_that_scales_do_not_suit_are_strict(value: float) -> None:
    weight = LARGE.weight()
    weight[:, 7, 1, 1] = value
    assert "weights" in kernels(LARGE, weight=weight)[0].reason
    weight[:, 7, 1, 1] = 1e-3
    assert is_on_units(kernels(LARGE, weight=weight))


def test_64_filters_take_tiles_of_64() -> None:
    for channels, kernel in ((64, 1), (256, 1), (3, 7)):
        found = kernels(Shape(32, channels, 64, (62, 62), (kernel, kernel)))
        assert "64x64 tile, 64x32 a subgroup" in found[0].variant
    assert "64x128 tile" in kernels(Shape(32, 256, 128, (56, 56), (1, 1)))[0].variant


def test_every_layer_of_the_benchmark_finds_a_tile() -> None:
    for layer in itertools.chain.from_iterable(SETS.values()):
        half, rest = layer.kernel // 2, (layer.kernel - 1) // 2
        shape = Shape(
            layer.batch,
            layer.channels,
            layer.filters,
            (layer.size, layer.size),
            (layer.kernel, layer.kernel),
            (layer.stride, layer.stride),
            (half, half, rest, rest),
        )
        assert "no tile" not in kernels(shape)[0].reason
