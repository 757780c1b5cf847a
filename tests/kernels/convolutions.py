"""Convolutions for tests of kernels on matrix units: what they compute, and how far from it results are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import vkml
from tests.kernels.gpu_targets import GPU
from vkml.engine.sketch import Sketch
from vkml.ir import Constant, TensorType, dtypes
from vkml.ir.windows import Windows
from vkml.kernels import halo_units, matrix_units
from vkml.kernels.spec import KernelSpec
from vkml.kernels.views import Buffer, BufferKind, contiguous
from vkml.lowering.target import Target
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
ROUNDED = 2.0**-10  # both operands are rounded, by 2^-11 at the most


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@dataclass(frozen=True)
class Shape:
    """A convolution."""

    batch: int
    channels: int
    filters: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1

    @property
    def rank(self) -> int:
        return len(self.spatial)

    def attributes(self) -> dict[str, tuple[int, ...]]:
        """Those of windows."""
        ones = (1,) * self.rank
        return {
            "strides": self.strides or ones,
            "pads": self.pads or (0,) * (2 * self.rank),
            "dilations": self.dilations or ones,
        }

    def x(self, seed: int = 1) -> Floats:
        return normal(seed, self.batch, self.channels, *self.spatial)

    def weight(self, seed: int = 2) -> Floats:
        return normal(seed, self.filters, self.channels // self.group, *self.kernel)

    def rows(self, x: npt.NDArray[np.floating]) -> Doubles:
        """(batch, *output, channels, *kernel): the windows."""
        given = self.attributes()
        pads = given["pads"]
        halo = [(0, 0), (0, 0), *zip(pads[: self.rank], pads[self.rank :], strict=True)]
        padded = np.pad(x.astype(np.float64), halo)
        extents = [(k - 1) * d + 1 for k, d in zip(self.kernel, given["dilations"], strict=True)]
        seen = np.lib.stride_tricks.sliding_window_view(padded, extents, tuple(range(2, 2 + self.rank)))
        steps = [slice(None, None, s) for s in given["strides"]]
        taps = [slice(None, None, d) for d in given["dilations"]]
        return np.moveaxis(seen[(slice(None), slice(None), *steps, *taps)], 1, 1 + self.rank)

    def exact(self, x: npt.NDArray[np.floating], weight: npt.NDArray[np.floating]) -> Doubles:
        axes = tuple(range(1, 2 + self.rank))
        found = []
        with np.errstate(all="ignore"):
            for images, filters in zip(np.split(x, self.group, 1), np.split(weight, self.group), strict=True):
                along = tuple(axis + self.rank for axis in axes)
                found.append(np.tensordot(self.rows(images), filters.astype(np.float64), (along, axes)))
        return np.moveaxis(np.concatenate(found, -1), -1, 1)


def graph(shape: Shape, weight: Floats, batch: int | str | None = None) -> bytes:
    sketch = Sketch("conv")
    first = shape.batch if batch is None else batch
    x = sketch.input("x", (first, shape.channels, *shape.spatial))
    y = sketch.node("Conv", x, sketch.constant(weight), group=shape.group, **shape.attributes())
    return save_graph(sketch.finish(y))


def is_on_units(variant: str) -> bool:
    """Whether a launch multiplies fp16 on matrix units, and not pieces of float32."""
    return variant.startswith("matrix units") and "pieces" not in variant


def is_as_forced(variants: list[str]) -> bool:
    """Whether one of the launches has the tile that is forced, of halos or not."""
    forced = halo_units.forced or matrix_units.forced
    assert forced is not None
    return any(is_on_units(variant) and forced.tile.label() in variant for variant in variants)


def run(model: bytes, device: str, *feeds: Floats, precision: str = "high") -> list[Floats]:
    """First outputs, on units as is forced where `precision` is high, with guard zones round everything."""
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(model, options, devices=device, precision=precision) as session:
        found = [session.run(None, {"x": feed})[0] for feed in feeds]
        variants = [step.variant for step in session.report().steps]
    assert is_as_forced(variants) if precision == "high" else not any(map(is_on_units, variants)), variants
    return found


def error(found: npt.NDArray[np.floating], exact: Doubles) -> float:
    """Relative L2 error."""
    return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))


def tf32(x: Floats) -> Doubles:
    """Rounded to ten bits of mantissa."""
    bits = x.view(np.uint32)
    bits = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


def convolved(
    device: str,
    shape: Shape,
    x: Floats,
    weight: Floats,
    *,
    is_transposed: bool = False,
    is_constant: bool = False,
) -> Floats:
    """By weights that are inputs, of which filters may lie side by side, or a constant; with guard zones."""
    sketch = Sketch("conv of two values")
    order = [*range(1, weight.ndim), 0]
    given = sketch.input("x", x.shape)
    if is_constant:
        weights = sketch.constant(weight)
    else:
        weights = sketch.input("w", weight.transpose(order).shape if is_transposed else weight.shape)
    if is_transposed:
        weights = sketch.node("Transpose", weights, perm=[weight.ndim - 1, *range(weight.ndim - 1)])
        weight = weight.transpose(order).copy()
    y = sketch.node("Conv", given, weights, group=shape.group, **shape.attributes())
    model = save_graph(sketch.finish(y))
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(model, options, devices=device, precision="high") as session:
        [found] = session.run(None, {"x": x} if is_constant else {"x": x, "w": weight})
        variants = [step.variant for step in session.report().steps]
    assert is_as_forced(variants), variants
    return found


def worst_result(shape: Shape, found: Floats, x: Floats, weight: Floats) -> float:
    """The largest error of a result, in what the magnitudes of its products add up to."""
    sizes = shape.exact(abs(x), abs(weight))
    return float(np.max(np.abs(found - shape.exact(x, weight)) / np.where(sizes == 0, 1, sizes)))


def check_small_elements(device: str, shape: Shape) -> None:
    """Large elements of images meet weights of zero, or the other way round: small ones have lost bits."""
    for factor in (1e6, 1e12, 1e25):
        x, weight = shape.x(), shape.weight()
        x[:, ::2] *= np.float32(factor)
        weight[:, ::2] = 0
        assert worst_result(shape, convolved(device, shape, x, weight), x, weight) < ROUNDED, factor
        x, weight = shape.x(), shape.weight()
        x[:, ::2] = 0
        weight[:, ::2] *= np.float32(factor)
        assert worst_result(shape, convolved(device, shape, x, weight), x, weight) < ROUNDED, factor


def check_holes(device: str, shape: Shape) -> None:
    """Constant filters that read either the large channels of images or the small ones."""
    for factor in (1e6, 1e12, 1e25):
        x, weight = shape.x(), shape.weight()
        x[:, ::2] *= np.float32(factor)
        weight[::2, ::2] = 0
        weight[1::2, 1::2] *= np.float32(1e-9)
        found = convolved(device, shape, x, weight, is_constant=True)
        assert worst_result(shape, found, x, weight) < ROUNDED, factor


def check_magnitudes(device: str, shape: Shape) -> None:
    """Elements that lie 2^50 apart, of images and of weights that a run computes."""
    random = np.random.default_rng(5)
    x, weight = shape.x(), shape.weight()
    x *= np.exp(random.uniform(-17, 17, x.shape)).astype(np.float32)
    weight *= np.exp(random.uniform(-20, 20, (shape.filters, *[1] * (weight.ndim - 1)))).astype(np.float32)
    assert worst_result(shape, convolved(device, shape, x, weight), x, weight) < ROUNDED
    weight *= np.exp(random.uniform(-17, 17, weight.shape)).astype(np.float32)
    assert worst_result(shape, convolved(device, shape, shape.x(), weight), shape.x(), weight) < ROUNDED
    tiny = (shape.x() * np.float32(1e-30)).astype(np.float32)
    assert worst_result(shape, convolved(device, shape, tiny, shape.weight()), tiny, shape.weight()) < ROUNDED


def check_what_is_not_finite(device: str, shape: Shape) -> None:
    """Infinities, NaN, and sums that overflow: each result is that of ordinary arithmetic."""
    x, weight = shape.x(), shape.weight()
    x[0, 3, 1, 2], x[0, 4, 4, 5], x[0, 0, 3, 3] = np.inf, np.nan, 1e37
    weight[2, 1, 0, 0], weight[7, 3, 1, 1], weight[9, 0, 0, 0] = -np.inf, np.nan, 1e37
    weight[11], weight[12, :] = 0, 1e-30
    found = convolved(device, shape, x, weight)
    with np.errstate(all="ignore"):
        exact = shape.exact(x, weight)
        exact[np.abs(exact) > np.finfo(np.float32).max] *= np.inf
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_array_equal(np.isposinf(found), np.isposinf(exact))
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(exact))


def check_not_finite(found: Floats, exact: Doubles, tolerance: float, least: float) -> None:
    """Infinities and NaN are where they belong, and results beside them what they are.

    Args:
        found: results.
        exact: in float64.
        tolerance: of finite results, relative,
        least: and absolute.
    """
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    infinite = np.isinf(rounded)
    assert infinite.any()
    np.testing.assert_array_equal(np.isinf(found), infinite)
    np.testing.assert_array_equal(found[infinite], rounded[infinite])
    plain = np.isfinite(rounded) & (np.abs(rounded) < 1e30)
    np.testing.assert_allclose(found[plain], rounded[plain], rtol=tolerance, atol=least)


def worst_pixel(found: npt.NDArray[np.floating], exact: Doubles) -> float:
    """The largest relative L2 error of a pixel's results."""
    gap = np.linalg.norm(found.astype(np.float64) - exact, axis=1)
    return float((gap / np.linalg.norm(exact, axis=1)).max())


def kernels(
    shape: Shape,
    target: Target = GPU,
    *,
    weight: Floats | None = None,
    keeps_pieces: bool = False,
    is_constant: bool = True,
) -> list[KernelSpec]:
    """What a two-dimensional convolution becomes, of weights that are there before the run or not."""
    given, build = shape.attributes(), VulkanBuilder(target, keeps_pieces=keeps_pieces)
    extents = [(k - 1) * d + 1 for k, d in zip(shape.kernel, given["dilations"], strict=True)]
    output = [
        (size + given["pads"][axis] + given["pads"][axis + 2] - extents[axis]) // given["strides"][axis] + 1
        for axis, size in enumerate(shape.spatial)
    ]
    windows = Windows(
        shape.spatial,
        shape.kernel,
        given["strides"],
        given["dilations"],
        given["pads"][:2],
        given["pads"][2:],
        tuple(output),
    ).over(3)
    dims = (shape.filters, shape.channels // shape.group, *windows.kernel)
    held = Constant(
        dtypes.FLOAT32, dims, np.ones(dims, np.float32) if weight is None else weight.reshape(dims)
    )
    image = TensorType(dtypes.FLOAT32, (shape.batch, shape.channels, *windows.spatial))
    x = contiguous(Buffer(BufferKind.INPUT, image.bytes, "x"), image)
    result = TensorType(dtypes.FLOAT32, (shape.batch, shape.filters, *windows.output))
    with build.step(result):
        kind, constant = (BufferKind.CONSTANT, held) if is_constant else (BufferKind.INPUT, None)
        weights = contiguous(Buffer(kind, held.type.bytes, "w", constant), held.type)
        build.conv(x, weights, None, windows, group=shape.group)
    return [dispatch.kernel for dispatch in build.launches]
