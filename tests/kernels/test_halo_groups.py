"""Convolutions of groups in tiles with a halo: filters of several groups share a tile, and its channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import vkml
from tests.kernels.convolutions import (
    ROUNDED,
    Floats,
    Shape,
    check_not_finite,
    error,
    graph,
    is_as_forced,
    kernels,
    normal,
    run,
    tf32,
    worst_result,
)
from tests.kernels.gpu_targets import like_h200
from tests.kernels.test_conv_pieces import FLOAT
from tests.kernels.test_halo_units import LINE, ROWS, SAME, WIDE, force, on_halos
from vkml.engine.sketch import Sketch
from vkml.ir import TensorType, dtypes
from vkml.kernels import halo_units
from vkml.kernels.halo_tiles import Band, Choice, Tile
from vkml.kernels.views import Buffer, BufferKind, contiguous
from vkml.onnx import save_graph


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    yield
    halo_units.forced = None


SMALL = Tile(1, 8, 4, 1, 1, 16, 2, 3)
"""Four subgroups, one below the other."""
MANY = Shape(2, 48, 48, (9, 17), (3, 3), pads=SAME, group=12)
CASES = {
    "groups of 4": (Choice(ROWS, 1), MANY),
    "groups of 8 in a line": (Choice(LINE, 1), replace(MANY, channels=64, filters=64, group=8)),
    "rows of four, by small tiles": (Choice(SMALL, 1), replace(MANY, spatial=(9, 20))),
    "groups that tiles cut": (Choice(ROWS, 1), replace(MANY, channels=72, filters=72, group=3)),
    "ranges of channels": (Choice(LINE, 2), replace(MANY, channels=96, filters=24, group=6)),
    "more filters than channels": (Choice(ROWS, 1), replace(MANY, channels=32, filters=80, group=16)),
    "strides, dilations, uneven pads": (
        Choice(replace(WIDE, subs_m=1, subs_n=4, block=16), 1),
        Shape(2, 48, 48, (9, 14), (3, 2), (2, 3), (0, 2, 3, 1), (2, 1), group=12),
    ),
    "each group by itself": (Choice(ROWS, 1), Shape(1, 32, 64, (7, 12), (3, 3), pads=SAME, group=2)),
    "one dimension": (Choice(LINE, 1), Shape(2, 64, 64, (37,), (5,), pads=(2, 2), group=16)),
}


def check(device: str, choice: Choice, shape: Shape, x: Floats, weight: Floats) -> None:
    force(device, choice)
    [found] = run(graph(shape, weight), device, x)
    exact = shape.exact(x, weight)
    assert found.shape == exact.shape
    assert error(found, exact) <= 1.1 * error(shape.exact(tf32(x), tf32(weight)), exact)


@pytest.mark.parametrize("name", CASES)
def test_convolution(device: str, name: str) -> None:
    choice, shape = CASES[name]
    check(device, choice, shape, shape.x(), shape.weight())


def check_results(device: str, choice: Choice, shape: Shape, x: Floats, weight: Floats) -> None:
    """Each result is near to its own products, however large those of other groups are."""
    force(device, choice)
    [found] = run(graph(shape, weight), device, x)
    assert worst_result(shape, found, x, weight) < ROUNDED


FACTORS = (1e6, 1e12, 1e25)
SOME = (
    "groups of 4",
    "rows of four, by small tiles",
    "groups of 8 in a line",
    "groups that tiles cut",
    "ranges of channels",
    "each group by itself",
)
MARKED = pytest.mark.parametrize("name", SOME)


@MARKED
def test_groups_of_other_magnitudes(device: str, name: str) -> None:
    """fp16 holds less, or nothing, of small images that share a scale with large ones."""
    choice, shape = CASES[name]
    for factor in FACTORS:
        x, weight = shape.x(), shape.weight()
        x.reshape(shape.batch, shape.group, -1)[:, 1::2] *= np.float32(factor)
        check_results(device, choice, shape, x, weight)
        x, weight = shape.x(), shape.weight()
        weight.reshape(shape.group, -1)[1::2] *= np.float32(factor)
        check_results(device, choice, shape, x, weight)


@MARKED
def test_magnitudes_inside_of_groups(device: str, name: str) -> None:
    """Filters that read either the large channels of their group or the small ones."""
    choice, shape = CASES[name]
    x, weight = shape.x(), shape.weight()
    x[:, ::2] *= np.float32(1e9)
    weight[::2, ::2] = 0
    check_results(device, choice, shape, x, weight)


@MARKED
def test_what_is_not_finite_stays_in_its_group(device: str, name: str) -> None:
    choice, shape = CASES[name]
    force(device, choice)
    x, weight = shape.x(), shape.weight()
    x[0, 1, 3, 5], x[0, 2, 2, 9], x[0, 7, 5, 2] = np.nan, np.inf, 1e37
    x[-1, 9, 3, 3], x[-1, 8, 3, 5] = np.inf, -np.inf
    weight[3, 1, 1, 1], weight[4, 1], weight[7, 0, 0, 0] = np.inf, 0, np.nan
    [found] = run(graph(shape, weight), device, x)
    check_not_finite(found, shape.exact(x, weight), 1e-3, 0.05)


def test_groups_of_nothing(device: str) -> None:
    """Images of zeros beside others, and filters of zeros: results are zero."""
    choice, shape = CASES["groups of 8 in a line"]
    force(device, choice)
    x, weight = shape.x(), shape.weight()
    x[:, :8] = 0
    weight[16:24] = 0
    weight[24:32, 2] = 0
    [found] = run(graph(shape, weight), device, x)
    assert error(found, shape.exact(x, weight)) < 3.5e-4
    assert not found[:, :8].any()
    assert not found[:, 16:24].any()


def test_epilogues(device: str) -> None:
    choice, shape = CASES["groups of 4"]
    force(device, choice)
    x, weight, bias, residual = shape.x(), shape.weight(), normal(3, 48), normal(4, 2, 48, 9, 17)
    sketch = Sketch("epilogue")
    given, constants = sketch.input("x", x.shape), (sketch.constant(weight), sketch.constant(bias))
    y = sketch.node("Conv", given, *constants, group=shape.group, **shape.attributes())
    y = sketch.node("Relu", sketch.node("Add", y, sketch.input("residual", residual.shape)))
    options = vkml.SessionOptions(guard_bytes=256)
    model = save_graph(sketch.finish(y))
    with vkml.InferenceSession(model, options, devices=device) as session:
        [found] = session.run(None, {"x": x, "residual": residual})
        [step] = session.report().steps
    assert is_as_forced([step.variant])
    exact = np.maximum(shape.exact(x, weight) + bias[:, None, None] + residual, 0)
    assert error(found, exact) < 3.5e-4


def in_pieces(device: str, name: str, x: Floats, weight: Floats) -> Floats:
    choice, shape = CASES[name]
    force(device, replace(choice, tile=replace(choice.tile, pieces=2, sub_n=16)))
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(graph(shape, weight), options, devices=device, precision="highest") as session:
        [found] = session.run(None, {"x": x})
        [step] = session.report().steps
    assert "two pieces" in step.variant
    return np.asarray(found)


@pytest.mark.parametrize("name", ["groups of 4", "each group by itself", "rows of four, by small tiles"])
def test_pieces_are_as_exact_as_float32(device: str, name: str) -> None:
    shape = CASES[name][1]
    x, weight = shape.x(), shape.weight()
    assert error(in_pieces(device, name, x, weight), shape.exact(x, weight)) <= FLOAT


@pytest.mark.parametrize("factor", [1e6, 1e25])
def test_pieces_of_other_magnitudes(device: str, factor: float) -> None:
    """Each result is as near to its own products as ordinary arithmetic brings it."""
    shape = CASES["groups of 4"][1]
    x, weight = shape.x(), shape.weight()
    x.reshape(shape.batch, shape.group, -1)[:, 1::2] *= np.float32(factor)
    weight[::3] *= np.float32(1e-9)
    assert worst_result(shape, in_pieces(device, "groups of 4", x, weight), x, weight) < 2.0**-21


def test_pieces_of_what_is_not_finite(device: str) -> None:
    shape = CASES["groups of 4"][1]
    x, weight = shape.x(), shape.weight()
    x[0, 1, 3, 5], x[0, 6, 2, 9], weight[9, 1, 1, 1] = np.nan, np.inf, np.inf
    check_not_finite(in_pieces(device, "groups of 4", x, weight), shape.exact(x, weight), 1e-5, 1e-4)


LAYER = Shape(32, 256, 256, (28, 28), (3, 3), pads=SAME, group=32)


@pytest.mark.parametrize("is_strict", [False, True], ids=["high", "highest"])
@pytest.mark.parametrize("per_group", [4, 8, 16, 24, 64])
def test_layers_of_groups_find_a_tile(per_group: int, is_strict: bool) -> None:
    channels = 192 if per_group == 24 else 256
    shape = replace(LAYER, channels=channels, filters=channels, group=channels // per_group)
    [conv] = kernels(shape, like_h200(is_strict), keeps_pieces=True)
    assert "block" in conv.variant, (conv.variant, conv.reason)


def test_groups_of_no_channels_have_no_tile() -> None:
    assert not on_halos(Shape(1, 0, 4, (8, 8), (3, 3), pads=SAME, group=2))


def test_what_has_too_few_channels_for_a_tile() -> None:
    assert not on_halos(replace(LAYER, channels=8, filters=256, group=4))


@pytest.mark.parametrize("per_group", [4, 8, 24, 40])
def test_bands_hold_the_channels_of_all_their_filters(per_group: int) -> None:
    channels = 5 * per_group * 2
    dims = (3 * channels, per_group, 3, 3)
    held = TensorType(dtypes.FLOAT32, dims)
    weight = contiguous(Buffer(BufferKind.INPUT, held.bytes, "w"), held)
    group = channels // per_group
    for tile in (ROWS, replace(ROWS, sub_n=32), replace(ROWS, sub_n=64, block=32)):
        band = Band.of(weight, tile, group)
        assert band.channels % tile.block == 0
        for n in range(dims[0]):
            start = n // (dims[0] // group) * per_group
            first = band.first(n)
            assert first <= start or band.last < 0
            assert start + per_group <= first + band.channels
            assert first + band.channels <= channels or band.last < 0
