"""A plan makes the same bits in each of its runs, and so does that of another session: kernel by kernel.

Ranges, whose parts are added up, are forced where rules take them for large GPUs alone. Between two runs
there is one of other numbers, so that what is left in memory is something else each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest

import vkml
from tests.kernels import test_halo_units
from tests.kernels.test_row_spreads import is_slow_compiler, unroll_ranges_less
from tests.quantized.few_bits import Model, random_weights
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.kernels import (
    half_weights,
    halo_tiles,
    halo_units,
    matrix_tiles,
    matrix_units,
    range_sums,
    row_spread,
    selection,
    sliced,
    softmax_ranges,
    top_k,
)
from vkml.kernels.spec import Dispatch
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph
from vkml.passes.gradient_bodies import DOMAIN

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
Patch = pytest.MonkeyPatch
RUNS = 5
RANGES = 3


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and how its kernels come to be what they are."""

    model: Callable[[], bytes]
    feed: Callable[[int], Feed]
    """By a seed."""
    launches: tuple[str, ...]
    """Patterns of what there is among the launches: label and variant."""
    force: Callable[[str, Patch], None] = lambda device, patch: None
    precision: str = "highest"


def of_nodes(write: Callable[[Sketch], list[str]], opset: int = 20) -> Callable[[], bytes]:
    def model() -> bytes:
        sketch = Sketch("repeated", opset)
        return save_graph(sketch.finish(*write(sketch)))

    return model


def rows(*shape: int) -> Callable[[int], Feed]:
    return lambda seed: {"x": normal(seed, *shape) * 3}


def reduced(op: str, shape: tuple[int, ...], axis: int) -> Callable[[], bytes]:
    return of_nodes(lambda s: [s.node(op, s.input("x", shape), s.constant(np.array([axis])), keepdims=0)])


# --- products, and convolutions -----------------------------------------------------------------------------


def fragment_of(device: str) -> Any:
    found = device_registry.target_of(vulkan.find_device(device, True)).fragment
    if found is None:
        pytest.skip("no fp16 matrix units on this device")
    return found


def by_packed_halves(device: str, patch: Patch, *, is_joined: bool = False) -> None:
    fragment_of(device)
    tile = matrix_tiles.Tile(16, 16, 2, 2, 32, 2, 1.0, 1.0)
    patch.setattr(half_weights, "forced", (tile, RANGES))
    patch.setattr(range_sums, "forced", is_joined)


def by_packed_halves_joined(device: str, patch: Patch) -> None:
    by_packed_halves(device, patch, is_joined=True)


def halves(sketch: Sketch) -> list[str]:
    x = sketch.input("x", (20, 301), dtypes.FLOAT16)
    made = sketch.node("MatMul", x, sketch.constant(normal(2, 301, 37).astype(np.float16)))
    return [sketch.node("Relu", sketch.node("Cast", made, to=1))]


def by_halos(tile: halo_tiles.Tile) -> Callable[[str, Patch], None]:
    def force(device: str, patch: Patch) -> None:
        fragment = fragment_of(device)
        filters = max(tile.sub_n, 8 * fragment.lanes // fragment.k)
        patch.setattr(halo_units, "forced", halo_tiles.Choice(replace(tile, sub_n=filters), RANGES))

    return force


def convolution(sketch: Sketch) -> list[str]:
    """Of 48 channels, which are three blocks."""
    x, weight = sketch.input("x", (2, 48, 9, 17)), sketch.constant(normal(2, 20, 48, 3, 3))
    return [sketch.node("Relu", sketch.node("Conv", x, weight, pads=(1, 1, 1, 1)))]


def convolution_by_values(sketch: Sketch) -> list[str]:
    x, weight = sketch.input("x", (2, 48, 9, 17)), sketch.input("w", (20, 48, 3, 3))
    return [sketch.node("Conv", x, weight, pads=(1, 1, 1, 1))]


def few_bits(rows_: int) -> Case:
    def model() -> bytes:
        made = Model(700, rows=rows_)
        return made.bytes(made.product("x", random_weights(700, 90, has_zeros=True)))

    return Case(model, lambda seed: {"x": normal(seed, rows_, 700)}, ("block_product: * lanes, *",))


def few_bits_on_units() -> Case:
    """Fragments are made in each run; ranges of K besides."""

    def model() -> bytes:
        made = Model(260, rows=37)
        return made.bytes(made.product("x", random_weights(260, 40, has_zeros=True)))

    def force(device: str, patch: Patch) -> None:
        fragment = fragment_of(device)
        tile = matrix_tiles.Tile(2 * fragment.m, 2 * fragment.n, 2, 1, 32, 1, 1.0, 1.0)
        patch.setattr(matrix_units, "forced", matrix_tiles.Choice(tile, RANGES))
        patch.setattr(range_sums, "forced", False)

    launches = "unpack_fragments: *", "matmul: matrix units, * 3 K ranges", "add_partials: *"
    return Case(model, lambda seed: {"x": normal(seed, 37, 260)}, launches, force, "high")


# --- rows ---------------------------------------------------------------------------------------------------


def in_ranges(device: str, patch: Patch) -> None:
    patch.setattr(row_spread, "MOST_KEPT", 2)
    patch.setattr(softmax_ranges, "ranges_of", lambda *_: RANGES)
    if is_slow_compiler(device):
        unroll_ranges_less(patch)


def in_parts(device: str, patch: Patch) -> None:
    """Rows that no workgroup has registers for."""
    patch.setattr(row_spread, "MOST_KEPT", 8)


def sums_and_moments(sketch: Sketch) -> list[str]:
    """Of channels, as training takes them, and of all elements."""
    x = sketch.input("x", (16, 5, 60, 61))
    given = [sketch.constant(np.ones(5, np.float32)) for _ in range(4)]
    normed = sketch.node_with_outputs("BatchNormalization", 3, x, *given, training_mode=1)
    return [*normed, sketch.node("ReduceMean", x, keepdims=0)]


def running_totals(sketch: Sketch) -> list[str]:
    x = sketch.input("x", (3, 5000))
    along = sketch.node("CumSum", x, sketch.constant(np.array(1)), reverse=1)
    turned = sketch.node("Transpose", x, perm=(1, 0))
    return [along, sketch.node("CumSum", turned, sketch.constant(np.array(0)), exclusive=1)]


def by_chunks(device: str, patch: Patch) -> None:
    lanes = device_registry.target_of(vulkan.find_device(device, True)).subgroup_size
    patch.setattr(selection, "forced", selection.Chunks(2 * lanes, 8))


def by_sorting(device: str, patch: Patch) -> None:
    patch.setattr(selection, "MOST_SELECTED", 0)
    patch.setattr(top_k, "CHUNK", 64)


def first_of_rows(count: int, length: int) -> Callable[[], bytes]:
    return of_nodes(
        lambda s: s.node_with_outputs("TopK", 2, s.input("x", (3, length)), s.constant(np.array([count])))
    )


def few_numbers(length: int) -> Callable[[int], Feed]:
    """Many of which are equal, and one NaN."""

    def feed(seed: int) -> Feed:
        x = np.random.default_rng(seed).integers(0, 50, (3, length)).astype(np.float32) + np.float32(seed)
        x[:, 100 * seed] = np.nan
        return {"x": x}

    return feed


# --- scatters, and gradients --------------------------------------------------------------------------------


def added(op: str, updates: tuple[int, ...], **attributes: Any) -> Case:
    """Many updates meet in each element."""

    def write(sketch: Sketch) -> list[str]:
        shape = (*updates[:-1], 1) if op == "ScatterND" else updates
        indices = sketch.input("indices", shape, dtypes.INT64)
        given = sketch.input("x", (7, 40)), indices, sketch.input("updates", updates)
        return [sketch.node(op, *given, reduction="add", **attributes)]

    def feed(seed: int) -> Feed:
        random = np.random.default_rng(seed)
        shape = (*updates[:-1], 1) if op == "ScatterND" else updates
        return {
            "x": normal(seed, 7, 40),
            "indices": random.integers(0, 7, shape),
            "updates": normal(seed + 1, *updates) * np.exp(3 * normal(seed + 2, *updates)),
        }

    kernel = "scatter_slices" if op == "ScatterND" else "scatter_elements"
    return Case(of_nodes(write), feed, (f"{kernel}: add",))


def gradient_of_maxima(sketch: Sketch) -> list[str]:
    x, w = sketch.input("x", (2, 5, 61, 90)), sketch.input("w", (2, 5, 31, 45))
    greatest = sketch.node("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    y = sketch.node("Mul", greatest, w)
    return [sketch.node("Gradient", x, w, domain=DOMAIN, xs=("x",), zs=("w",), y=y)]


def images_of_few_numbers(seed: int) -> Feed:
    x = np.random.default_rng(seed).integers(0, 4, (2, 5, 61, 90)).astype(np.float32)
    return {"x": x, "w": normal(seed, 2, 5, 31, 45)}


def half_rows(seed: int) -> Feed:
    return {"x": normal(seed, 20, 301).astype(np.float16)}


def images(seed: int) -> Feed:
    return {"x": normal(seed, 2, 48, 9, 17)}


def images_and_weights(seed: int) -> Feed:
    return {**images(seed), "w": normal(seed + 1, 20, 48, 3, 3)}


ROWS, LINE = by_halos(test_halo_units.ROWS), by_halos(test_halo_units.LINE)
CASES: dict[str, Case] = {
    "weights in fragments, ranges of K": Case(
        of_nodes(halves),
        half_rows,
        ("matmul: *halves, weights in fragments, * 3 K ranges", "add_partials: *"),
        by_packed_halves,
        "high",
    ),
    "weights in fragments, ranges of K joined": Case(
        of_nodes(halves),
        half_rows,
        ("matmul: *halves, weights in fragments, * 3 K ranges",),
        by_packed_halves_joined,
        "high",
    ),
    "halo in rows, ranges of channels": Case(
        of_nodes(convolution), images, ("conv: *fragments by * 3 K ranges", "add_partials: *"), ROWS, "high"
    ),
    "halo in a line, ranges of channels": Case(
        of_nodes(convolution), images, ("conv: *in a line fragments by * 3 K ranges",), LINE, "high"
    ),
    "halo, ranges of channels, weights of a run": Case(
        of_nodes(convolution_by_values),
        images_and_weights,
        ("conv: *fragments by * 3 K ranges",),
        ROWS,
        "high",
    ),
    "few bits, a row": few_bits(1),
    "few bits, several rows": few_bits(6),
    "few bits on units, ranges of K": few_bits_on_units(),
    "sums of long rows": Case(
        reduced("ReduceSum", (2, 50000), 1), rows(2, 50000), ("reduce: *[0-9] ranges",)
    ),
    "sums of long columns": Case(
        reduced("ReduceSum", (9000, 40), 0), rows(9000, 40), ("reduce: * 32 rows, 70 ranges",)
    ),
    "logarithms of sums": Case(
        reduced("ReduceLogSumExp", (2, 50000), 1), rows(2, 50000), ("reduce: *[0-9] ranges",)
    ),
    "moments": Case(of_nodes(sums_and_moments), rows(16, 5, 60, 61), ("reduce: *[0-9] ranges",)),
    "softmax in ranges": Case(
        of_nodes(lambda s: [s.node("Softmax", s.input("x", (2, 333, 20)), axis=1)]),
        rows(2, 333, 20),
        ("softmax_sums: 3 ranges of the axis*", "softmax: 3 ranges of the axis*"),
        in_ranges,
    ),
    "softmax of long rows": Case(
        of_nodes(lambda s: [s.node("Softmax", s.input("x", (3, 40000)), axis=1)]),
        rows(3, 40000),
        ("softmax: *threads a row, 1 row a workgroup* parts",),
        in_parts,
    ),
    "running totals": Case(
        of_nodes(running_totals), rows(3, 5000), ("scan: *threads a row, 1 row a workgroup*",)
    ),
    "TopK of chunks": Case(first_of_rows(5, 5000), few_numbers(5000), ("top_k: chunks of *",), by_chunks),
    "TopK of sorted runs": Case(
        first_of_rows(200, 1000),
        few_numbers(1000),
        ("top_k_sort: chunks of 64", "top_k_merge: *"),
        by_sorting,
    ),
    "added slices": added("ScatterND", (300, 40)),
    "added elements": added("ScatterElements", (500, 40), axis=0),
    "the gradient of maxima": Case(
        of_nodes(gradient_of_maxima), images_of_few_numbers, ("max_pool_gradient: *",)
    ),
}


@pytest.fixture(autouse=True)
def fresh(many_processors: None, monkeypatch: Patch) -> Iterator[None]:
    """Rules take the device for a large GPU; nothing that was lowered otherwise is left."""
    monkeypatch.setattr(sliced, "choose", lambda target, product: None)
    forget_lowerings()
    yield
    forget_lowerings()


@pytest.fixture
def launched(monkeypatch: Patch) -> list[str]:
    """Label and variant of each launch, also of bodies, of which a report says nothing."""
    found: list[str] = []
    emit = VulkanBuilder.emit

    def noting(build: VulkanBuilder, dispatch: Dispatch) -> None:
        emit(build, dispatch)
        found.append(f"{dispatch.kernel.label}: {dispatch.kernel.variant}")

    monkeypatch.setattr(VulkanBuilder, "emit", noting)
    return found


@pytest.mark.parametrize("name", CASES)
def test_bits_repeat(vulkan_device_name: str, name: str, launched: list[str], monkeypatch: Patch) -> None:
    case = CASES[name]
    case.force(vulkan_device_name, monkeypatch)
    model, feed, other = case.model(), dict(case.feed(1)), dict(case.feed(2))
    options = vkml.SessionOptions(guard_bytes=256)
    found: list[list[Array]] = []
    for runs in (RUNS, 1):
        forget_lowerings()
        with vkml.InferenceSession(
            model, options, devices=vulkan_device_name, precision=case.precision
        ) as session:
            for _ in range(runs):
                between = session.run(None, other)
                found.append(session.run(None, feed))
            lacks_int64 = any("int64" in why for _, why in session.report().fallbacks)
    target = device_registry.target_of(vulkan.find_device(vulkan_device_name, True))
    if not lacks_int64 or "int64" in target.capabilities:
        for pattern in case.launches:
            assert any(fnmatchcase(each, pattern) for each in launched), (pattern, launched)
    for number, first in enumerate(found[0]):
        assert np.count_nonzero(first) > first.size // 8 and first.tobytes() != between[number].tobytes()
        for made in found[1:]:
            assert made[number].dtype == first.dtype and made[number].tobytes() == first.tobytes()
