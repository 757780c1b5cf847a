"""Convolutions on matrix units whose elements are two pieces of fp16: as exact as float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkml
from tests.kernels import test_conv_units, test_halo_units
from tests.kernels.convolutions import (
    Floats,
    Shape,
    check_not_finite,
    error,
    graph,
    kernels,
    normal,
    worst_result,
)
from tests.kernels.gpu_targets import GPU
from tests.kernels.test_conv_units import FLAT, SLICED, SMALL, fitting
from tests.kernels.test_halo_units import IMAGES, LINE, PAIRS, ROWS, SAME
from vkml import nn
from vkml.engine.sketch import Sketch
from vkml.kernels import conv_units, halo_tiles, halo_units, matrix_tiles, matrix_units
from vkml.onnx import save_graph

Choice = halo_tiles.Choice | matrix_tiles.Choice
FLOAT = 4e-7
"""Relative L2 error that float32 has with sums of some hundred products."""
STRICT = replace(GPU, strict_fp32=True)
FORMS: dict[str, tuple[Choice, Shape]] = {
    "tiles with a halo, rows": (halo_tiles.Choice(ROWS, 1), IMAGES),
    "tiles with a halo, a line": (halo_tiles.Choice(LINE, 1), IMAGES),
    "tiles with a halo, pairs": (halo_tiles.Choice(PAIRS, 1), replace(IMAGES, channels=3)),
    "windows": (matrix_tiles.Choice(SMALL, 1), IMAGES),
    "windows, taps innermost": (matrix_tiles.Choice(FLAT, 1), replace(IMAGES, channels=3)),
    "windows, slices": (matrix_tiles.Choice(SLICED, 1), IMAGES),
}
OF_A_RUN = [form for form in FORMS if form != "tiles with a halo, pairs"]
"""Those for weights that a run computes: `halo_units` pads constant ones alone to pairs."""
EVERY = pytest.mark.parametrize("form", FORMS)
EVERY_OF_A_RUN = pytest.mark.parametrize("form", OF_A_RUN)
ONE_OF_EACH = pytest.mark.parametrize("form", ["tiles with a halo, rows", "windows"])


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    yield
    halo_units.forced = matrix_units.forced = None


def force(device: str, choice: Choice, down: int = 1) -> None:
    """Has convolutions computed so, in pieces, with as many filters a subgroup as are packed together.

    Lavapipe compiles a tile with a halo of two fragments one below the other for 25 seconds, of one for 11.
    """
    if isinstance(choice, halo_tiles.Choice):
        tile = replace(choice.tile, pieces=2, sub_n=16, down=down)
        halo_units.forced = replace(choice, tile=tile)
    else:
        choice = fitting(choice, device)
        matrix_units.forced = replace(choice, tile=replace(choice.tile, pieces=2))


def form_of(device: str, form: str, down: int = 1) -> Shape:
    """Forces one of `FORMS`; the shape that suits it."""
    choice, shape = FORMS[form]
    force(device, choice, down)
    return shape


def run(model: bytes, device: str, *feeds: Floats, **more: Floats) -> list[Floats]:
    """First outputs, in pieces, with guard zones round everything."""
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(model, options, devices=device, precision="highest") as session:
        found = [session.run(None, {"x": feed, **more})[0] for feed in feeds]
        variants = [step.variant for step in session.report().steps]
    assert any("two pieces" in variant for variant in variants), variants
    return found


OF_HALOS = (
    "rows",
    "a line, ranges of channels",
    "an empty range",
    "strides, dilations, uneven pads",
    "three channels",
    "three channels, 7x7 of stride 2",
    "one dimension",
)
OF_WINDOWS = "3x3", "1x1 of stride 2", "three channels", "ranges of K, odd pixels", "slices"
"""Lavapipe compiles for ten seconds and more what pieces are in."""
CASES: dict[str, tuple[Choice, Shape]] = {
    **{f"tiles with a halo, {name}": test_halo_units.CASES[name] for name in OF_HALOS},
    **{f"windows, {name}": test_conv_units.CASES[name] for name in OF_WINDOWS},
}


@pytest.mark.parametrize("name", CASES)
def test_convolution(device: str, name: str) -> None:
    choice, shape = CASES[name]
    force(device, choice, down=2 if name == "tiles with a halo, rows" else 1)
    x, weight = shape.x(), shape.weight()
    [found] = run(graph(shape, weight), device, x)
    assert error(found, shape.exact(x, weight)) <= FLOAT


@EVERY
def test_magnitudes_of_images_do_not_matter(device: str, form: str) -> None:
    shape = form_of(device, form)
    weight = shape.weight()
    xs = [np.ldexp(shape.x(), power).astype(np.float32) for power in (-110, -40, 40, 100)]
    for found, x in zip(run(graph(shape, weight), device, *xs), xs, strict=True):
        assert error(found, shape.exact(x, weight)) <= FLOAT


@EVERY
def test_badly_scaled_pixels_and_filters(device: str, form: str) -> None:
    """Over twelve decades, some above the rest: no scale takes a tile, and results are computed again."""
    shape = form_of(device, form, down=2 if form == "tiles with a halo, rows" else 1)
    rng = np.random.default_rng(5)
    x, weight = shape.x(), shape.weight()
    x *= (10.0 ** rng.uniform(-6, 6, (2, 1, 9, 17))).astype(np.float32)
    x[:, :, :4] *= np.float32(1e-9)
    x[0, 1, 7, 3] = 1e12
    x[1, :, 8, 14] = 1e36 * normal(6, shape.channels).clip(-1, 1)
    weight *= (10.0 ** rng.uniform(-6, 6, (20, 1, 1, 1))).astype(np.float32) * np.float32(1e-7)
    [found] = run(graph(shape, weight), device, x)
    exact = shape.exact(x, weight)
    assert np.isfinite(found).all()
    assert error(found, exact) <= FLOAT
    assert worst_result(shape, found, x, weight) <= 5e-7


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("factor", [1e-12, 1e-3, 1e3, 1e12])
@ONE_OF_EACH
def test_what_comes_later_may_be_larger_or_smaller(
    device: str, form: str, splits: int, factor: float
) -> None:
    """The scale is guessed by what is read first: the others do not fit it."""
    choice, _ = FORMS[form]
    force(device, replace(choice, splits=splits))
    x, weight = IMAGES.x(), IMAGES.weight()
    x[:, 8:] *= np.float32(factor)
    [found] = run(graph(IMAGES, weight), device, x)
    assert error(found, IMAGES.exact(x, weight)) <= FLOAT


@EVERY
@pytest.mark.parametrize("decades", [4, 8, 14])
def test_small_elements_that_the_large_ones_leave_alone(device: str, form: str, decades: int) -> None:
    """Large channels meet weights of zero, large weights channels of zeros: what counts are the smallest."""
    shape = form_of(device, form)
    x, weight = shape.x(), shape.weight()
    small = np.float32(10.0**-decades)
    x[:, 0] *= small
    weight[:, 1:] = 0
    weight[1::2, :1] *= small
    weight[1::2, -1] = 1
    x[:, -1] = 0
    [found] = run(graph(shape, weight), device, x)
    exact = shape.exact(x, weight)
    assert error(found[:, ::2], exact[:, ::2]) <= FLOAT
    assert error(found[:, 1::2], exact[:, 1::2]) <= FLOAT


@ONE_OF_EACH
def test_filters_of_next_to_nothing(device: str, form: str) -> None:
    """Whose results are zeros in pieces, beside one of zeros, whose results are."""
    form_of(device, form)
    x, weight = IMAGES.x(), IMAGES.weight()
    x[:, :1], x[:, 1:] = np.copysign(1e14, x[:, :1]), np.copysign(1e30, x[:, 1:])
    weight[2:4] = 0
    weight[2, 0] = 1e-36
    [found] = run(graph(IMAGES, weight), device, x)
    exact = IMAGES.exact(x, weight)
    assert error(found[:, 2], exact[:, 2]) <= FLOAT
    assert not found[:, 3].any()
    assert error(found[:, 4:], exact[:, 4:]) <= FLOAT


@EVERY
def test_infinities_and_nan_come_out_where_they_belong(device: str, form: str) -> None:
    """Not in the windows beside those that see them, whose fragments may."""
    shape = form_of(device, form)
    x, weight = shape.x(), shape.weight()
    weight[3, 1] = 1e-30
    weight[4, 1] = 0
    x[0, 1, 5, 5], x[0, 2, 2, 9] = np.nan, np.inf
    x[1, 0, 3, 3], x[1, 1, 3, 5] = np.inf, -np.inf
    x[1, 0, 8, 16] = 3e38
    [found] = run(graph(shape, weight), device, x)
    check_not_finite(found, shape.exact(x, weight), 1e-4, 1e-4)


@pytest.mark.parametrize("value", [np.inf, np.nan, 0.0, 1e-30, 1e30], ids=str)
@ONE_OF_EACH
def test_weights_of_any_kind(device: str, form: str, value: float) -> None:
    form_of(device, form)
    x, weight = IMAGES.x(), IMAGES.weight()
    weight[5, 7, 1, 1] = value
    weight[6] = value
    [found] = run(graph(IMAGES, weight), device, x)
    with np.errstate(all="ignore"):
        exact = IMAGES.exact(x, weight).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    for filter_ in range(20):
        plain = np.isfinite(exact[:, filter_])
        np.testing.assert_array_equal(found[:, filter_][~plain], exact[:, filter_][~plain])
        if plain.all() and exact[:, filter_].any():
            assert error(found[:, filter_], exact[:, filter_].astype(np.float64)) <= FLOAT, filter_


def by_values(device: str, shape: Shape, x: Floats, weight: Floats) -> Floats:
    """By weights that are inputs, as a training's are."""
    sketch = Sketch("conv of two values")
    given = sketch.input("x", x.shape), sketch.input("w", weight.shape)
    model = save_graph(sketch.finish(sketch.node("Conv", *given, **shape.attributes())))
    [found] = run(model, device, x, w=weight)
    return found


@EVERY_OF_A_RUN
def test_weights_that_a_run_computes(device: str, form: str) -> None:
    shape = form_of(device, form)
    x = shape.x()
    for scale in (1.0, 1e-12, 1e12):
        weight = shape.weight() * np.float32(scale)
        weight[2, 0] *= np.float32(1e-9)
        found = by_values(device, shape, x, weight)
        assert error(found, shape.exact(x, weight)) <= FLOAT
        assert worst_result(shape, found, x, weight) <= 5e-7


@pytest.fixture
def strictly() -> Iterator[None]:
    before = vkml.get_float32_matmul_precision()
    vkml.set_float32_matmul_precision("highest")
    yield
    vkml.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", test_conv_units.GRADIENTS)
def test_gradients_of_weights(
    device: str, name: str, strictly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums over samples and places, as in training: what comes in is a weight that a run computes."""
    choice, shape = test_conv_units.GRADIENTS[name]
    force(device, choice)
    guarded: set[tuple[int, ...]] = set()
    kept = conv_units.define_guard

    def define_guard(writer: Any, weight: Any, packed: Any) -> None:
        guarded.add(weight.shape)
        kept(writer, weight, packed)

    monkeypatch.setattr(conv_units, "define_guard", define_guard)
    settings, x = shape.attributes(), shape.x()
    windows = shape.rows(x)
    for scale in (1.0, 1e-12):
        incoming = normal(3, shape.batch, shape.filters, *windows.shape[1:3]) * np.float32(scale)
        weight = vkml.tensor(shape.weight(), device=device, requires_grad=True)
        strides, pads, dilations = settings["strides"], settings["pads"][:2], settings["dilations"]
        image = vkml.tensor(x, device=device)
        made = nn.functional.conv2d(image, weight, None, strides, pads, dilations)
        made.backward(vkml.tensor(incoming, device=device))
        assert weight.grad is not None
        exact = np.einsum("nfhw,nhwckl->fckl", incoming.astype(np.float64), windows, optimize=True)
        assert error(weight.grad.numpy(), exact) <= FLOAT
    assert (shape.filters, shape.batch, 1, *windows.shape[1:3]) in guarded


@ONE_OF_EACH
@pytest.mark.parametrize("factor", [1e6, 1e12, 1e25])
def test_small_weights_beside_large_ones_of_a_run(device: str, form: str, factor: float) -> None:
    shape = form_of(device, form)
    x, weight = shape.x(), shape.weight()
    x[:, ::2] = 0
    weight[:, ::2] *= np.float32(factor)
    assert worst_result(shape, by_values(device, shape, x, weight), x, weight) <= 5e-7


def check_small_weights_that_cancel(device: str, form: str, is_constant: bool) -> None:
    """Pieces of the smallest are a few multiples of 2^-36: results may be 0 that are none."""
    shape = form_of(device, form)
    rng = np.random.default_rng(8)
    x = np.sign(shape.x())
    weight = (
        rng.integers(-3, 4, shape.weight().shape) * 2.0**-49 * rng.uniform(0.5, 1.5, shape.weight().shape)
    )
    weight[:, 2] = 1
    x[:, 2] = 0
    x[:, :, :3] = 0  # windows of zeros are not such
    weight = weight.astype(np.float32)
    found = run(graph(shape, weight), device, x)[0] if is_constant else by_values(device, shape, x, weight)
    assert worst_result(shape, found, x, weight) <= 5e-7
    assert not found[:, :, 0].any()


@EVERY
def test_small_weights_that_cancel(device: str, form: str) -> None:
    check_small_weights_that_cancel(device, form, is_constant=True)


@EVERY_OF_A_RUN
def test_small_weights_of_a_run_that_cancel(device: str, form: str) -> None:
    check_small_weights_that_cancel(device, form, is_constant=False)


@EVERY
def test_one_plan_serves_all_batches(device: str, form: str) -> None:
    shape = form_of(device, form)
    weight, shapes = shape.weight(), [replace(shape, batch=batch) for batch in (2, 3, 5)]
    images = [each.x() for each in shapes]
    results = run(graph(shape, weight, "batch"), device, *images)
    for found, x, each in zip(results, images, shapes, strict=True):
        assert error(found, each.exact(x, weight)) <= FLOAT


@ONE_OF_EACH
def test_pixels_of_zeros(device: str, form: str) -> None:
    form_of(device, form)
    x, weight = IMAGES.x(), IMAGES.weight()
    x[:, :, ::3] = 0
    x[0, :, :, :9] = 0
    x[0, 5, 3, 3] = 1e-20
    found, nothing = run(graph(IMAGES, weight), device, x, np.zeros_like(x))
    exact = IMAGES.exact(x, weight)
    assert error(found, exact) <= FLOAT
    assert not nothing.any()
    assert error(found[0, :, 2:5, 2:5], exact[0, :, 2:5, 2:5]) <= FLOAT


@pytest.mark.parametrize("splits", [1, 2])
@ONE_OF_EACH
def test_epilogues_see_every_element(device: str, form: str, splits: int) -> None:
    choice, _ = FORMS[form]
    force(device, replace(choice, splits=splits))
    x, weight, bias, residual = IMAGES.x(), IMAGES.weight(), normal(3, 20), normal(4, 2, 20, 9, 17)
    sketch = Sketch("epilogue")
    given = sketch.input("x", x.shape), sketch.constant(weight), sketch.constant(bias)
    y = sketch.node("Conv", *given, **IMAGES.attributes())
    y = sketch.node("Relu", sketch.node("Add", y, sketch.input("residual", residual.shape)))
    [found] = run(save_graph(sketch.finish(y)), device, x, residual=residual)
    exact = np.maximum(IMAGES.exact(x, weight) + bias[:, None, None] + residual, 0)
    assert error(found, exact) <= FLOAT


LARGE = Shape(8, 64, 64, (56, 56), (3, 3), pads=SAME)


def test_what_they_are_for() -> None:
    """Strict float32; constant weights if the device keeps them whole, too, and what a run computes."""
    assert "two pieces" in kernels(LARGE, STRICT, keeps_pieces=True)[0].variant
    assert "two pieces" not in kernels(LARGE, STRICT)[0].variant
    assert "two pieces" not in kernels(LARGE, keeps_pieces=True)[0].variant
    pointwise = replace(LARGE, kernel=(1, 1), pads=())
    assert "two pieces" in kernels(pointwise, STRICT, keeps_pieces=True)[0].variant
    for shape in (LARGE, pointwise):
        *packing, product = kernels(shape, STRICT, is_constant=False)
        assert [each.label for each in packing] == ["column_magnitudes", "pack_weights"]
        assert "two pieces" in product.variant


def test_computed_weights_of_small_convolutions_are_not_packed() -> None:
    """Two launches would take longer than what they save."""
    small = replace(LARGE, batch=1, spatial=(7, 7))
    assert "pack_weights" not in [each.label for each in kernels(small, STRICT, is_constant=False)]
