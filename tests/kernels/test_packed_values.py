"""Products of halves whose right operand is packed in the run: the bits of constant weights, and the rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkml
from tests.kernels.test_half_product import BFLOAT16_GPU, GPU, check, halves, launches_of, view
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.ir import TensorType, dtypes
from vkml.kernels import half_weights, packed_weights, sliced
from vkml.kernels.matrix_tiles import Tile
from vkml.kernels.slang import compile_kernel
from vkml.kernels.views import View
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.target import Target
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
TILE = Tile(16, 16, 2, 1, 32, 1, 1.0, 1.0)


@pytest.fixture
def tile(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tile]:
    """Forced, on devices that have units for it."""
    if not device_registry.fragments_of(vulkan.find_device(vulkan_device_name, True)):
        pytest.skip("no fp16 matrix units on this device")
    monkeypatch.setattr(sliced, "choose", lambda target, product: None)  # what is small is its own, on GPUs
    monkeypatch.setattr(half_weights, "forced", (TILE, 1))
    yield TILE


def product(device: str, a: Array, b: Array, turned: str = "", *, is_constant: bool = False) -> Array:
    """Of operands that lie transposed where it says so; nothing beyond them is touched."""
    sketch, values, feed = Sketch("product"), [], {}
    for name, array in (("a", a), ("b", b)):
        perm = [*range(array.ndim - 2), array.ndim - 1, array.ndim - 2]
        held = np.ascontiguousarray(array.transpose(perm)) if name in turned else array
        if is_constant and name == "b":
            value = sketch.constant(held)
        else:
            value, feed[name] = sketch.input(name, held.shape, dtypes.FLOAT16), held
        values.append(sketch.node("Transpose", value, perm=perm) if name in turned else value)
    model = save_graph(sketch.finish(sketch.node("MatMul", *values)))
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(model, options, devices=device, precision="high") as session:
        [found] = session.run(None, feed)
        steps = session.report().steps
    assert "weights in fragments" in next(step for step in steps if step.kernel == "matmul").variant
    assert ("pack_weights" in [step.kernel for step in steps]) != is_constant
    return np.asarray(found)


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize(("m", "k", "n"), [(33, 72, 24), (19, 75, 21)], ids=["vectors", "anywhere"])
def test_the_bits_of_constant_weights(
    tile: Tile, vulkan_device_name: str, m: int, k: int, n: int, turned: str
) -> None:
    """Read in words of 16 bytes along k and across it, or one by one; what is not finite among them."""
    a, b = halves(1, m, k), halves(2, k, n)
    b[3, 5], b[7, 2], b[9, 9] = np.inf, np.nan, np.float16(2.0**-24)
    found = product(vulkan_device_name, a, b, turned)
    np.testing.assert_array_equal(found, product(vulkan_device_name, a, b, turned, is_constant=True))
    is_finite = np.isfinite(b).all(axis=0)
    check(found[:, is_finite], a.astype(np.float64), b[:, is_finite].astype(np.float64))


def test_several_chunks_of_k_a_workgroup(
    tile: Tile, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weights, "_PACKING_GROUPS", 1)
    a, b = halves(1, 18, 1096), halves(2, 1096, 24)
    check(product(vulkan_device_name, a, b), a.astype(np.float64), b.astype(np.float64))
    check(product(vulkan_device_name, a, b, "b"), a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize(
    ("left", "right", "turned"),
    [
        ((3, 18, 40), (3, 40, 24), ""),
        ((3, 18, 40), (3, 40, 24), "b"),
        ((2, 17, 43), (2, 43, 21), "a"),
        ((18, 40), (4, 40, 24), ""),
        ((4, 18, 43), (43, 21), ""),
    ],
)
def test_batches(
    tile: Tile, vulkan_device_name: str, left: tuple[int, ...], right: tuple[int, ...], turned: str
) -> None:
    """Each with matrices of its own, or one for all on either side; in two ranges of K, too."""
    a, b = halves(1, *left), halves(2, *right)
    for splits in (1, 2):
        half_weights.forced = (tile, splits)  # the fixture puts it back
        found = product(vulkan_device_name, a, b, turned)
        check(found, a.astype(np.float64), b.astype(np.float64))


def is_packed(target: Target, a: View, b: View) -> bool:
    """Whether the rule packs the right operand in the run."""
    forget_lowerings()
    return any(launch.kernel.label == "pack_weights" for launch in launches_of(target, a, b))


def test_the_rule() -> None:
    """Large products, where packing is little beside what it spares; never where float32 is strict."""
    large = view(dtypes.FLOAT16, 1, 4096, 4096)
    assert is_packed(GPU, large, large)
    assert is_packed(GPU, large, large.transpose((0, 2, 1)))
    bfloat = view(dtypes.BFLOAT16, 1, 4096, 4096)
    assert is_packed(BFLOAT16_GPU, bfloat, bfloat)
    odd = view(dtypes.FLOAT16, 1, 4095, 4095)
    assert is_packed(GPU, odd, odd)
    small = view(dtypes.FLOAT16, 1, 1024, 1024)
    for target, a, b in (
        (replace(GPU, strict_fp32=True), large, large),
        (replace(GPU, holds_elements_once=lambda fragment: False), large, large),
        (GPU, small, small),
        (GPU, view(dtypes.FLOAT16, 1, 256, 4096), large),
    ):
        assert not is_packed(target, a, b), (a, b)


def test_operands_are_packed_once() -> None:
    """For all products that read these columns; packing is part of the estimate of each."""
    a, b = view(dtypes.FLOAT16, 1, 4096, 4096), view(dtypes.FLOAT16, 1, 4096, 4096)
    forget_lowerings()
    build = VulkanBuilder(GPU)
    for _ in range(2):
        with build.step(TensorType(dtypes.FLOAT16, (1, 4096, 4096))):
            build.matmul(a, b)
    assert [launch.kernel.label for launch in build.launches] == ["pack_weights", "matmul", "matmul"]
    one = half_weights.packing(b)
    assert one > packed_weights.packing(4096 * 4096, 0) > 0
    assert (
        half_weights.packing(b.expand((3, 4096, 4096)))
        == one
        < half_weights.packing(view(dtypes.FLOAT16, 3, 4096, 4096))
    )


@pytest.mark.parametrize("is_turned", [False, True], ids=["across k", "along k"])
@pytest.mark.parametrize("columns", [2048, 2047], ids=["vectors", "anywhere"])
@pytest.mark.parametrize("dtype", [dtypes.FLOAT16, dtypes.BFLOAT16], ids=str)
def test_what_packs_suits_the_gpu(
    dtype: dtypes.DType, columns: int, is_turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module is one that vkml's compiler makes."""
    monkeypatch.setattr(half_weights, "forced", (half_weights.TILES[0], 1))
    b = view(dtype, 1, columns, 1024).transpose((0, 2, 1)) if is_turned else view(dtype, 1, 1024, columns)
    forget_lowerings()
    launches = launches_of(GPU, view(dtype, 1, 2048, 1024), b)
    assert [launch.kernel.label for launch in launches] == ["pack_weights", "matmul"]
    for launch in launches:
        assert compile_kernel(launch.kernel.source)
