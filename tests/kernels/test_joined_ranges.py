"""Ranges of K that the workgroup that is last at a tile adds: bits of a second launch, run after run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.engine.trial_timing import Bench
from vkml.engine.weights import WeightStore
from vkml.ir import Graph, TensorType, dtypes
from vkml.kernels import (
    bfloat16_units,
    byte_units,
    gemm,
    gemv,
    half_product,
    matrix_tiles,
    matrix_units,
    range_sums,
    sliced,
    split_product,
)
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.target import Target
from vkml.lowering.trials import Trials
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph
from vkml.vulkan.info import DeviceInfo

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
Model = tuple[Graph, Feed]
RUNS = 3


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def product(m: int, k: int, n: int, *batch: int, is_constant: bool = False, dtype: Any = np.float32) -> Model:
    """A product with a bias and Relu behind it."""
    shapes = (*batch, m, k), (*batch, k, n), (n,)
    a, b, bias = (normal(seed, *shape).astype(dtype) for seed, shape in enumerate(shapes, 1))
    sketch = Sketch("product")
    kind = dtypes.from_numpy(a.dtype)
    left = sketch.input("a", a.shape, kind)
    right = sketch.constant(b) if is_constant else sketch.input("b", b.shape, kind)
    made = sketch.node("Add", sketch.node("MatMul", left, right), sketch.constant(bias))
    feed = {"a": a} if is_constant else {"a": a, "b": b}
    return sketch.finish(sketch.node("Relu", made)), feed


def convolution(channels: int, filters: int, size: int, batch: int) -> Model:
    x, weight = normal(1, batch, channels, size, size), normal(2, filters, channels, 3, 3)
    sketch = Sketch("convolution")
    given = sketch.input("x", x.shape), sketch.constant(weight), sketch.constant(normal(3, filters))
    made = sketch.node("Conv", *given, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    return sketch.finish(sketch.node("Relu", made)), {"x": x}


def bytes_product(m: int, k: int, n: int) -> Model:
    random = np.random.default_rng(4)
    a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
    sketch = Sketch("bytes")
    made = sketch.node("MatMulInteger", sketch.input("a", a.shape, dtypes.INT8), sketch.constant(b))
    return sketch.finish(made), {"a": a}


def of_tiles(device: str, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gemm, "forced", (next(t for t in gemm.TILES if (t.m, t.n, t.k) == (32, 32, 16)), 3))


def of_few_rows(device: str, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gemv, "forced", gemv.Shape(64, 16, 2, 3))


def of_units(device: str, patch: pytest.MonkeyPatch) -> None:
    fragments(device)  # skips where there are none
    tile = matrix_tiles.Tile(16, 16, 2, 2, 32, 2, 1.0, 1.0)
    patch.setattr(matrix_units, "forced", matrix_tiles.Choice(tile, 3))


def of_pieces(device: str, patch: pytest.MonkeyPatch) -> None:
    [fragment, *_] = fragments(device)
    tile = matrix_tiles.Tile(fragment.m, 16, 2, 1, 32, 1, 1.0, 0.5, 2)
    patch.setattr(split_product, "forced", (tile, 3))


def of_halves(device: str, patch: pytest.MonkeyPatch) -> None:
    [fragment, *_] = fragments(device)
    m, n = (max(16, size) for size in (fragment.m, fragment.n))
    patch.setattr(half_product, "forced", (half_product.Tile(2 * m, 2 * n, 32, m, n, 0, 100, 0.5), 3))


def of_bfloat16(device: str, patch: pytest.MonkeyPatch) -> None:
    """Where units have no bfloat16, pieces are float16, which suffices for these numbers."""
    found = fragments(device, "bfloat16")
    if not found:
        known = device_registry.fragments_of

        def fragments_of(info: DeviceInfo, element: str = "float16", sums: str = "float32") -> Any:
            return known(info)

        patch.setattr(device_registry, "fragments_of", fragments_of)
        patch.setattr(bfloat16_units, "NEEDS", bfloat16_units.NEEDS[:-1])
        found = fragments(device)
    times = found[0].k // 8
    patch.setattr(
        bfloat16_units, "forced", (bfloat16_units.Tile(*[s * times for s in (16, 16, 8, 8, 8)], 3, 2), 3)
    )


def of_bytes(device: str, patch: pytest.MonkeyPatch) -> None:
    found = fragments(device, "int8", "int32")
    if not found:
        pytest.skip("no int8 matrix units on this device")
    m, n = (max(16, size) for size in (found[0].m, found[0].n))
    tile = byte_units.Tile(2 * m, 2 * n, max(8, found[0].k // 4), m, n, 100, 100, 0.5)
    patch.setattr(gemm, "forced", (tile, 3))


def fragments(device: str, element: str = "float16", sums: str = "float32") -> list[Any]:
    found = device_registry.fragments_of(vulkan.find_device(device, True), element, sums)
    if not found and element == "float16":
        pytest.skip("no fp16 matrix units on this device")
    return found


Force = Callable[[str, pytest.MonkeyPatch], None]
CASES: dict[str, tuple[Force, Model, str]] = {
    "tiles": (of_tiles, product(70, 200, 68), "highest"),
    "tiles, odd": (of_tiles, product(45, 131, 37), "highest"),
    "few rows": (of_few_rows, product(1, 300, 132), "highest"),
    "few rows, odd": (of_few_rows, product(3, 131, 37), "highest"),
    "units": (of_units, product(37, 260, 44, is_constant=True), "high"),
    "units, odd": (of_units, product(20, 201, 37, is_constant=True), "high"),
    "convolution on units": (of_units, convolution(32, 36, 8, 1), "high"),
    "convolution on units, odd": (of_units, convolution(16, 20, 7, 3), "high"),
    "pieces": (of_pieces, product(37, 260, 44), "highest"),
    "pieces, batches": (of_pieces, product(20, 101, 37, 3), "highest"),
    "halves": (of_halves, product(40, 264, 48, dtype=np.float16), "high"),
    "bfloat16": (of_bfloat16, product(37, 100, 44), "highest"),
    "bytes": (of_bytes, bytes_product(70, 260, 36), "high"),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sliced, "choose", lambda target, product: None)
    device_registry.target_of.cache_clear()
    forget_lowerings()
    yield
    device_registry.target_of.cache_clear()
    forget_lowerings()


def session(model: Graph, device: str, precision: str) -> vkml.InferenceSession:
    options = vkml.SessionOptions(guard_bytes=256)
    return vkml.InferenceSession(save_graph(model), options, devices=device, precision=precision)


def kernels(made: vkml.InferenceSession) -> list[str]:
    return [step.kernel for step in made.report().steps]


@pytest.mark.parametrize("name", CASES)
def test_the_last_workgroup_makes_the_bits_of_a_second_launch(
    vulkan_device_name: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force, (graph, feed), precision = CASES[name]
    force(vulkan_device_name, monkeypatch)
    made = {}
    for is_joined in (False, True):
        monkeypatch.setattr(range_sums, "forced", is_joined)
        with session(graph, vulkan_device_name, precision) as each:
            made[is_joined] = [each.run(None, feed)[0] for _ in range(RUNS)]
            assert ("add_partials" in kernels(each)) == (not is_joined), kernels(each)
    first = made[False][0]
    assert np.count_nonzero(first) > first.size // 4
    for found in (*made[False], *made[True]):
        assert np.array_equal(found, first)


def test_runs_at_the_same_time_count_apart(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flight has counters of its own."""
    of_tiles(vulkan_device_name, monkeypatch)
    monkeypatch.setattr(range_sums, "forced", True)
    graph, feed = product(70, 200, 68)
    with session(graph, vulkan_device_name, "highest") as made:
        [expected] = made.run(None, feed)
        found: list[Array] = []

        def run() -> None:
            found.extend(made.run(None, feed)[0] for _ in range(8))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 32
    assert all(np.array_equal(each, expected) for each in found)


def test_a_device_whose_workgroups_see_nothing_of_each_other_has_a_second_launch(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_tiles(vulkan_device_name, monkeypatch)
    real = device_registry.target_of

    def target_of(info: DeviceInfo, precision: str = "highest") -> Target:
        found = real(info, precision)
        return replace(found, capabilities=found.capabilities - {range_sums.JOIN_NEEDS[1]})

    target_of.cache_clear = real.cache_clear  # type: ignore[attr-defined]
    monkeypatch.setattr(device_registry, "target_of", target_of)
    graph, feed = product(70, 200, 68)
    with session(graph, vulkan_device_name, "highest") as made:
        [found] = made.run(None, feed)
        assert "add_partials" in kernels(made)
    exact = feed["a"].astype(np.float64) @ feed["b"] + normal(3, 68)
    assert np.allclose(found, np.maximum(exact, 0), atol=1e-4)


def test_plans_of_open_sizes_have_counters_for_all_tiles(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_tiles(vulkan_device_name, monkeypatch)
    monkeypatch.setattr(range_sums, "forced", True)
    weights = normal(2, 96, 40)
    sketch = Sketch("open")
    made = sketch.node("MatMul", sketch.input("a", ("rows", 96)), sketch.constant(weights))
    with session(sketch.finish(sketch.node("Relu", made)), vulkan_device_name, "highest") as each:
        for rows in (8, 33, 200, 5, 300, 7):
            a = normal(rows, rows, 96)
            [found] = each.run(None, {"a": a})
            assert "add_partials" not in kernels(each)
            assert np.allclose(found, np.maximum(a.astype(np.float64) @ weights, 0), atol=1e-4), rows


def test_no_candidate_writes_to_the_counters_of_another(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured in turns has memory in common, but for what must be 0 whenever it is run."""
    monkeypatch.setattr(range_sums, "forced", True)
    info = vulkan.find_device(vulkan_device_name, True)
    trials = Trials()
    target = replace(device_registry.target_of(info, "highest"), processors=132)
    build = VulkanBuilder(target, trials)

    def operand(*shape: int) -> View:
        return build.buffer(BufferKind.INPUT, TensorType(dtypes.FLOAT32, shape))

    with build.step(TensorType(dtypes.FLOAT32, (1, 64, 64))):
        build.matmul(operand(1, 64, 2048), operand(1, 2048, 64))
    [found] = trials.found.values()
    device = device_registry.open_device(info)
    bench = Bench(device, WeightStore(lambda: device), is_cold=False)
    try:
        bench.prepare(found)
        counters: dict[Buffer, range] = {}
        others: list[range] = []
        for trial in found:
            addresses = bench.addresses(trial)
            for buffer in {view.buffer for launch in trial.launches for view in launch.writes}:
                span = range(addresses[buffer], addresses[buffer] + buffer.bytes)
                if buffer.kind is BufferKind.COUNTERS:
                    counters[buffer] = span
                else:
                    others.append(span)
    finally:
        bench.close()
    assert len(counters) > 1 and others
    spans = [*counters.values()]
    for number, one in enumerate(spans):
        for other in (*spans[:number], *others):
            assert one.stop <= other.start or other.stop <= one.start
