"""Convolutions of float32 on matrix units: against float64, at the limits of fp16, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

import vkml
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.kernels import matrix_units
from vkml.kernels.matrix_units import Choice, Tile
from vkml.onnx import save_graph

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

SMALL = Tile(16, 16, 2, 1, 32, 1, 1.0, 1.0)
"""Lavapipe compiles for seconds."""
SLICED = Tile(16, 16, 2, 2, 32, 2, 1.0, 1.0)


@pytest.fixture
def device(vulkan_device_name: str) -> str:
    from vkml import vulkan

    target = device_registry.target_of(vulkan.find_device(vulkan_device_name, True))
    if target.fragment is None:
        pytest.skip("no fp16 matrix units on this device")
    return vulkan_device_name


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    yield
    matrix_units.forced = None


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

    @property
    def rank(self) -> int:
        return len(self.spatial)

    def attributes(self) -> dict[str, tuple[int, ...]]:
        ones = (1,) * self.rank
        return {
            "strides": self.strides or ones,
            "pads": self.pads or (0,) * (2 * self.rank),
            "dilations": self.dilations or ones,
        }

    def x(self, seed: int = 1) -> Floats:
        return normal(seed, self.batch, self.channels, *self.spatial)

    def weight(self, seed: int = 2) -> Floats:
        return normal(seed, self.filters, self.channels, *self.kernel)

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
        with np.errstate(all="ignore"):
            found = np.tensordot(
                self.rows(x), weight.astype(np.float64), (tuple(a + self.rank for a in axes), axes)
            )
        return np.moveaxis(found, -1, 1)


def graph(shape: Shape, weight: Floats, batch: int | str | None = None) -> bytes:
    sketch = Sketch("conv")
    first = shape.batch if batch is None else batch
    x = sketch.input("x", (first, shape.channels, *shape.spatial))
    return save_graph(sketch.finish(sketch.node("Conv", x, sketch.constant(weight), **shape.attributes())))


def run(model: bytes, device: str, *feeds: Floats, precision: str = "high") -> list[Floats]:
    """First outputs, on matrix units where `precision` is high, with guard zones round everything."""
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(model, options, devices=device, precision=precision) as session:
        found = [session.run(None, {"x": feed})[0] for feed in feeds]
        variants = [step.variant for step in session.report().steps]
    has_units = any(variant.startswith("matrix units") for variant in variants)
    assert has_units == (precision == "high"), variants
    return found


def error(found: npt.NDArray[np.floating], exact: Doubles) -> float:
    """Relative L2 error."""
    return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))


def tf32(x: Floats) -> Doubles:
    """Rounded to ten bits of mantissa."""
    bits = x.view(np.uint32)
    bits = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


CASES = {
    "3x3": (Choice(SMALL, 1), Shape(1, 32, 36, (7, 12), (3, 3), pads=(1, 1, 1, 1))),
    "several images, odd pixels": (Choice(SMALL, 1), Shape(3, 16, 20, (5, 7), (3, 3), pads=(1, 1, 1, 1))),
    "strides, dilations, uneven pads": (
        Choice(SMALL, 1),
        Shape(2, 24, 17, (9, 14), (3, 2), (2, 3), (0, 2, 3, 1), (2, 1)),
    ),
    "1x1": (Choice(SMALL, 1), Shape(2, 64, 40, (6, 6), (1, 1))),
    "1x1 of stride 2": (Choice(SMALL, 1), Shape(2, 40, 33, (8, 10), (1, 1), (2, 2))),
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
    matrix_units.forced, shape = CASES[name]
    x, weight = shape.x(), shape.weight()
    [found] = run(graph(shape, weight), device, x)
    exact = shape.exact(x, weight)
    assert found.shape == exact.shape
    assert error(found, exact) <= 1.1 * error(shape.exact(tf32(x), tf32(weight)), exact)
