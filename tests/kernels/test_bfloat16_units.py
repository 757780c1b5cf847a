"""Products of float32 in pieces of bfloat16: against float64, whatever the layout, and when they are chosen.

Lavapipe's units have no bfloat16: there the same kernel takes pieces of float16, whose exponents suffice for
these numbers. That bfloat16 is asked for is read from the module, what its pieces hold is shown in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkml
from tests.kernels.layouts import LAYOUTS, laid_out, normal
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.ir import TensorType, dtypes
from vkml.kernels import bfloat16_units, gemm, sliced
from vkml.kernels.bfloat16_units import NEEDS, Tile
from vkml.kernels.gemm import Product
from vkml.kernels.packed_weights import Fragment
from vkml.kernels.slang import compile_kernel
from vkml.kernels.slang import opcodes as op
from vkml.kernels.views import Buffer, BufferKind, contiguous
from vkml.lowering.target import Target
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph
from vkml.vulkan.info import DeviceInfo

Array = np.ndarray[Any, Any]
THREE = Tile(16, 16, 8, 8, 8, 3, 2)
"""Of a fragment each subgroup, or lavapipe compiles for a minute."""
TWO = Tile(16, 8, 16, 8, 8, 2, 1 << 30)
WIDE = Tile(16, 32, 8, 8, 16, 3, 1)


def scaled(tile: Tile, device: str) -> Tile:
    """A tile of so many fragments of the device's, where these are larger than lavapipe's."""
    from vkml import vulkan

    times = device_registry.fragments_of(vulkan.find_device(device, True), "bfloat16")[0].k // 8
    names = ("m", "n", "k", "sub_m", "sub_n")
    return replace(tile, **{name: getattr(tile, name) * times for name in names})


GPU = Target(
    frozenset(NEEDS), 256, 49152, 1024, 32, 65535, 132, bfloat16_fragment=Fragment(16, 16, 16, 32, "bfloat16")
)


@pytest.fixture
def device(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One with units; where these have no bfloat16, pieces are float16."""
    from vkml import vulkan

    info = vulkan.find_device(vulkan_device_name, True)
    if not device_registry.fragments_of(info, "bfloat16"):
        if not device_registry.fragments_of(info):
            pytest.skip("no fp16 matrix units on this device")
        known = device_registry.fragments_of

        def fragments_of(info: DeviceInfo, element: str = "float16", sums: str = "float32") -> list[Fragment]:
            return known(info)

        monkeypatch.setattr(device_registry, "fragments_of", fragments_of)
        monkeypatch.setattr(bfloat16_units, "NEEDS", NEEDS[:-1])
    monkeypatch.setattr(sliced, "choose", lambda target, product: None)  # what is small is its own, on GPUs
    device_registry.target_of.cache_clear()
    yield vulkan_device_name
    device_registry.target_of.cache_clear()
    bfloat16_units.forced = None


def check(found: Array, exact: Array, sizes: Array, pieces: int) -> None:
    """Errors against what the magnitudes of operands would give: a few of the last bits that pieces hold."""
    error = np.max(np.abs(found - exact) / sizes)
    assert error < (2e-6 if pieces == 3 else 3e-5), error


def run(device: str, sketch: Sketch, value: str, feed: dict[str, Array], precision: str) -> tuple[Array, str]:
    """The result, and how the product was made."""
    with vkml.InferenceSession(
        save_graph(sketch.finish(value)), devices=device, precision=precision
    ) as session:
        [found] = session.run(None, feed)
        variants = [step.variant for step in session.report().steps if "pieces of bfloat16" in step.variant]
    assert len(variants) == 1, "another kernel"
    return found, variants[0]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("tile", "splits"), [(THREE, 1), (TWO, 2)], ids=["three", "two"])
def test_every_layout(device: str, name: str, tile: Tile, splits: int) -> None:
    """Operands along either direction, of one element a load or four; a sum, and a bias behind it."""
    bfloat16_units.forced = scaled(tile, device), splits
    made = laid_out(name)
    found, variant = run(device, made.sketch, made.value, made.feed, "highest")
    assert f"{tile.pieces} pieces" in variant and f"{splits} K range" in variant
    check(found, made.a @ made.b + made.bias, abs(made.a) @ abs(made.b), tile.pieces)


@pytest.mark.parametrize(
    ("image", "filters", "kernel", "stride", "pads"),
    [((2, 32, 9, 11), 20, 3, 1, 1), ((1, 3, 15, 13), 16, 5, 2, 2), ((2, 20, 6, 8), 33, 1, 1, 0)],
    ids=["taps first", "channels first", "pixels"],
)
@pytest.mark.parametrize("is_known", [True, False], ids=["weights", "values"])
def test_convolutions(
    device: str,
    image: tuple[int, ...],
    filters: int,
    kernel: int,
    stride: int,
    pads: int,
    is_known: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vkml.kernels import conv

    monkeypatch.setattr(conv, "LEAST_PIXELS", 1)
    bfloat16_units.forced = scaled(WIDE, device), 2
    x, weight = normal(1, *image), normal(2, filters, image[1], kernel, kernel)
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pads] * 4}

    def graph(dtype: Any) -> tuple[Sketch, str, dict[str, Array]]:
        sketch = Sketch("convolution")
        feed = {"x": x.astype(dtype), "w": weight.astype(dtype)}
        names = [sketch.input("x", x.shape, dtypes.from_numpy(np.dtype(dtype)))]
        if is_known:
            names.append(sketch.constant(feed.pop("w")))
        else:
            names.append(sketch.input("w", weight.shape, dtypes.from_numpy(np.dtype(dtype))))
        return sketch, sketch.node("Conv", *names, **attributes), feed

    found, _ = run(device, *graph(np.float32), "highest")
    sketch, value, feed = graph(np.float64)
    with vkml.InferenceSession(save_graph(sketch.finish(value)), devices="cpu") as session:
        [exact] = session.run(None, feed)
    check(found, exact, np.full_like(exact, image[1] * kernel * kernel), 3)


def test_what_pieces_cannot_hold_is_computed_from_the_operands(device: str) -> None:
    """Infinities, NaN, and sums that overflow: each result is that of ordinary arithmetic."""
    bfloat16_units.forced = scaled(THREE, device), 1
    a, b = normal(1, 40, 48), normal(2, 48, 36)
    a[3, 5], a[7, 9], a[11, 0], b[0, 0] = np.inf, np.nan, 3e38, 3e38
    a[20, 1:] = 0
    b[4, 8] = -np.inf
    sketch = Sketch("product")
    value = sketch.node("MatMul", sketch.input("a", a.shape), sketch.input("b", b.shape))
    found, _ = run(device, sketch, value, {"a": a, "b": b}, "highest")
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64)
        exact[np.abs(exact) > np.finfo(np.float32).max] *= np.inf
        # 0 times infinity is NaN in a sum of products.
        np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
        np.testing.assert_array_equal(np.isposinf(found), np.isposinf(exact))
        np.testing.assert_array_equal(np.isneginf(found), np.isneginf(exact))
    finite = np.isfinite(exact)
    sizes = np.nan_to_num(np.abs(a), posinf=0).astype(np.float64) @ np.nan_to_num(np.abs(b), posinf=0)
    check(found[finite], exact[finite], sizes[finite] + 1e-30, 3)


def test_three_pieces_are_all_of_an_element() -> None:
    """As `cut` and `whole` have it in the kernel's text, for magnitudes of 2^-100 to 2^127."""
    random = np.random.default_rng(0)
    x = np.ldexp(random.uniform(-1, 1, 10000), random.integers(-100, 127, 10000)).astype(np.float32)
    left, pieces = x, []
    for _ in range(3):
        bits = (left.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
        pieces.append(bits.view(np.float32))
        left = left - pieces[-1]
    assert not left.any()
    for number, piece in enumerate(pieces):
        assert np.all(np.abs(piece) <= np.abs(x) * (1 + 2.0**-8) * 2.0 ** (-8 * number))


def source_of(tile: Tile) -> str:
    """The text of a product's kernel for the GPU."""
    build = VulkanBuilder(GPU)
    kinds = [TensorType(dtypes.FLOAT32, dims) for dims in ((1, 256, 64), (1, 64, 128), (1, 256, 128))]
    a, b = (contiguous(Buffer(BufferKind.INPUT, kind.bytes, "x"), kind) for kind in kinds[:2])
    with build.step(kinds[2]):
        product = gemm.matrix_product(a, b, kinds[2])
        gemm.matmul(build, product, a, b, gemm.choose(build.target, product))
    return build.launches[-1].kernel.source


def size(m: int, n: int, k: int, batch: int = 1) -> Product:
    result = TensorType(dtypes.FLOAT32, (batch, m, n))
    return Product(batch, m, n, k, dtypes.FLOAT32, result, (batch, m, n), "batch, m, n", "matmul")


def test_the_rule() -> None:
    """Units for what is large, with as many pieces as precision asks for; ordinary arithmetic elsewhere."""
    windows = replace(size(4096, 4096, 4096), gathered=0.6)
    large, _ = gemm.choose(GPU, windows)
    assert isinstance(large, Tile) and large.pieces == 3 and large.promoted * large.k <= 64
    assert isinstance(gemm.choose(GPU, replace(windows, gathered_units=0.25))[0], gemm.Tile)
    short, _ = gemm.choose(replace(GPU, strict_fp32=False), size(4096, 4096, 4096))
    assert isinstance(short, Tile) and short.pieces == 2
    few, splits = gemm.choose(GPU, replace(size(256, 256, 8192), gathered=0.6))
    assert isinstance(few, Tile) and splits > 4
    assert isinstance(gemm.choose(GPU, size(4, 4, 16))[0], gemm.Tile)
    for other in (
        replace(GPU, bfloat16_fragment=None),
        replace(GPU, capabilities=GPU.capabilities - {"bfloat16_cooperative_matrix"}),
        replace(GPU, shared_bytes=10000),
    ):
        assert isinstance(gemm.choose(other, windows)[0], gemm.Tile)
    without = replace(GPU, bfloat16_fragment=None)
    assert gemm.estimate_ordinary(GPU, windows) < gemm.estimate_ordinary(without, windows)
    halfs = replace(size(4096, 4096, 4096), accumulator=dtypes.FLOAT64)
    assert bfloat16_units.choose(GPU, halfs) is None


@pytest.mark.parametrize("tile", bfloat16_units.TILES, ids=Tile.label)
def test_every_tile_suits_the_gpu_and_is_compiled_for_bfloat16(
    tile: Tile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bfloat16_units, "forced", (tile, 1))
    assert GPU.bfloat16_fragment is not None
    assert tile.fits(GPU.bfloat16_fragment, GPU)
    words = np.frombuffer(compile_kernel(source_of(tile)), np.uint32)[5:]
    found, at = set(), 0
    while at < words.size:
        found.add(tuple(int(word) for word in words[at : at + min(4, words[at] >> 16)]))
        at += int(words[at] >> 16)
    assert {(2 << 16 | op.CAPABILITY, each) for each in (op.BFLOAT16, op.BFLOAT16_MATRIX)} <= found
    assert any(entry[0] == 4 << 16 | op.TYPE_FLOAT and entry[2:] == (16, 0) for entry in found)
