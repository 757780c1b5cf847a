"""Rows as GPUs spread them over threads: in registers, in parts, across memory; forced on software."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkml
import vkml.engine.devices
from tests.vulkan_cases import Cases, Fixed
from vkml import vulkan
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.kernels import row_spread as rows
from vkml.kernels import softmax_ranges
from vkml.lowering.kept import forget_lowerings
from vkml.lowering.target import Target
from vkml.onnx import save_graph

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


def is_slow_compiler(device_name: str) -> bool:
    """Whether the driver compiles for minutes what is unrolled as for GPUs."""
    return "SwiftShader" in vulkan.find_device(device_name, True).title


def unroll_ranges_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """As slow compilers can take it."""
    monkeypatch.setattr(softmax_ranges, "THREADS", 64)
    monkeypatch.setattr(softmax_ranges, "BATCH", 2)


@pytest.fixture(autouse=True, params=[0, 512], ids=["few threads", "many threads"])
def large_gpu(
    vulkan_device_name: str,
    many_processors: None,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[None]:
    """Rules take the device for one of 132 processors, which rows fill, or do not."""
    monkeypatch.setattr(rows, "FILLED", request.param)
    if is_slow_compiler(vulkan_device_name):
        monkeypatch.setattr(rows, "MOST_KEPT", 8)
        unroll_ranges_less(monkeypatch)
    forget_lowerings()
    yield
    forget_lowerings()


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def softmax(x: Array, axis: int) -> Doubles:
    powers = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    made: Doubles = powers / powers.sum(axis, keepdims=True)
    return made


def run(device: str, sketch: Sketch, feed: dict[str, Array], *outputs: str) -> tuple[list[Array], list[Any]]:
    """What comes out, and the launches."""
    options = vkml.SessionOptions(guard_bytes=256)
    made = save_graph(sketch.finish(*outputs))
    with vkml.InferenceSession(made, options, devices=device) as session:
        return session.run(None, feed), list(session.report().steps)


def softmax_of(device: str, x: Array, axis: int, op: str = "Softmax") -> tuple[Array, str]:
    """What comes out, and the variant of the last launch: the only one but of long rows across memory."""
    sketch = Sketch("softmax")
    given = sketch.input("x", x.shape, dtypes.from_numpy(x.dtype))
    [found], steps = run(device, sketch, {"x": x}, sketch.node(op, given, axis=axis))
    assert len(steps) == (2 if "of the axis" in steps[-1].variant else 1)
    return found, steps[-1].variant


@pytest.mark.parametrize(
    "shape", [(3, 1024), (70, 768), (5, 1000), (2, 1023), (300, 12), (2, 8192), (9, 1)], ids=str
)
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_rows_in_registers(vulkan_device_name: str, shape: tuple[int, int], name: str) -> None:
    x = (normal(1, *shape) * 3).astype(name)
    limit = 3e-6 if name == "float32" else 1.5e-3
    wanted = softmax(x, 1)
    found, variant = softmax_of(vulkan_device_name, x, 1)
    assert variant.endswith("in registers") or rows.MOST_KEPT < 32
    np.testing.assert_allclose(found, wanted, rtol=limit, atol=1e-7)
    found, _ = softmax_of(vulkan_device_name, x, 1, "LogSoftmax")
    np.testing.assert_allclose(found, np.log(wanted), rtol=limit, atol=3e-6 if name == "float32" else 3e-3)


@pytest.mark.parametrize("shape", [(3, 40000), (2, 33001)], ids=str)
def test_rows_in_parts(vulkan_device_name: str, shape: tuple[int, int]) -> None:
    """Passes go forwards and backwards: each sees each element once."""
    x = normal(2, *shape) * 3
    x[0, 0], x[1, -1] = 30, 25
    found, variant = softmax_of(vulkan_device_name, x, 1)
    assert "parts" in variant
    np.testing.assert_allclose(found, softmax(x, 1), rtol=4e-6, atol=1e-9)
    layer = Sketch("layer")
    scale, bias = normal(3, shape[1]), normal(4, shape[1])
    normed = layer.node(
        "LayerNormalization", layer.input("x", shape), layer.constant(scale), layer.constant(bias)
    )
    [found], _ = run(vulkan_device_name, layer, {"x": x}, normed)
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((300, 70), 0),
        ((9000, 18), 0),
        ((2, 50, 3, 40), 1),
        ((5, 17, 33), 1),
        ((1, 4000, 16), 1),
        ((16, 64), 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_rows_across_memory(vulkan_device_name: str, shape: tuple[int, ...], axis: int, name: str) -> None:
    """Without a copy: threads beside each other have rows beside each other."""
    x = (normal(3, *shape) * 3).astype(name)
    found, variant = softmax_of(vulkan_device_name, x, axis)
    beside = shape[axis + 1 :] and np.prod(shape) // shape[axis] >= rows.SEGMENT // x.itemsize
    if name == "float32" or rows.MOST_KEPT == 32:  # SwiftShader has no halves
        assert ("beside each other" in variant or "of the axis" in variant) == beside, variant
    limit = 3e-6 if name == "float32" else 1.5e-3
    np.testing.assert_allclose(found, softmax(x, axis), rtol=limit, atol=1e-7)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", [7, 300, 40000])
def test_special_values(vulkan_device_name: str, axis: int, length: int) -> None:
    x = normal(4, 17, length)
    middle = length // 2
    x[0, middle], x[1, -1], x[2, 0] = np.nan, np.inf, -np.inf
    x[3], x[4] = -np.inf, np.inf
    x[5, : length - 1] = -np.inf
    x[6] = 1e4 * x[6]
    wanted = np.full(x.shape, np.nan)
    for row in (2, *range(5, 17)):
        wanted[row] = softmax(x[row], 0)
    found, _ = softmax_of(vulkan_device_name, x if axis else np.ascontiguousarray(x.T), axis)
    np.testing.assert_allclose(found if axis else found.T, wanted, rtol=4e-6, atol=1e-7)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_what_follows_is_done_as_rows_are_stored(vulkan_device_name: str, axis: int) -> None:
    shape = (4, 36, 40)
    x, whole, half = normal(5, *shape), normal(6, *shape), normal(9, *shape).astype(np.float16)
    if rows.MOST_KEPT < 32:  # SwiftShader has no halves
        half = half.astype(np.float32)
    type_ = dtypes.from_numpy(half.dtype)
    # What repeats along some of the axes that count rows has no place in the space of rows and columns.
    last = normal(7, 1, 1, 40) if axis else normal(7, 1, 1, 1)
    sketch = Sketch("epilogue")
    made = sketch.node("Softmax", sketch.input("x", shape), axis=axis)
    made = sketch.node("Mul", made, sketch.input("whole", shape))
    made = sketch.node("Add", made, sketch.input("last", last.shape))
    made = sketch.node("Add", sketch.node("Cast", made, to=type_.code), sketch.input("half", shape, type_))
    feed = {"x": x, "whole": whole, "last": last, "half": half}
    [found], steps = run(vulkan_device_name, sketch, feed, made)
    assert len(steps) == 1, steps
    exact = softmax(x, axis) * whole + last
    np.testing.assert_allclose(found, exact.astype(np.float16) + half, rtol=2e-3, atol=4e-3)


def test_rows_across_memory_reach_their_place_in_a_whole(vulkan_device_name: str) -> None:
    """Results that are parts of a larger tensor."""
    x = normal(10, 3, 20, 24)
    for axis in (0, 1, 2):
        for joined in (0, 1, 2):
            second = normal(12, *(8 if a == joined else d for a, d in enumerate(x.shape)))
            sketch = Sketch("joined")
            made = sketch.node("Softmax", sketch.input("x", x.shape), axis=axis)
            made = sketch.node("Concat", made, sketch.input("other", second.shape), axis=joined)
            [found], _ = run(vulkan_device_name, sketch, {"x": x, "other": second}, made)
            wanted = np.concatenate([softmax(x, axis), second], joined)
            np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_softmax_of_views(vulkan_device_name: str, is_strided: bool) -> None:
    cases = Cases(41)
    for op in ("Softmax", "LogSoftmax"):
        for name in ("float32", "float16"):
            for shape in ((6, 40, 20), (3, 7, 130)):
                for axis in (0, 1, 2):
                    atol = 1e-6 if name == "float32" else None
                    cases.add(op, cases.array(name, shape), axis=axis, atol=atol)
    cases.check(vulkan_device_name, is_strided=is_strided)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_normalisations(vulkan_device_name: str, is_strided: bool) -> None:
    cases = Cases(42)
    for name in ("float32", "float16"):
        tolerance = 1e-5 if name == "float32" else 4e-3
        for shape in ((5, 1024), (3, 66), (2, 3, 260), (33, 12)):
            tail = shape[1:]
            x, scale, bias = (cases.array(name, given) for given in (shape, tail, tail))
            cases.add("LayerNormalization", x, scale, bias, axis=1, atol=tolerance)
            cases.add("LayerNormalization", x, scale[..., :1], bias[..., :1], axis=1, atol=tolerance)
            cases.add("RMSNormalization", x, scale, axis=1, atol=tolerance)
        for space in ((64, 128), (6, 6), (3, 5)):
            x = cases.array(name, (2, 6, *space))
            scale, bias = (cases.array(name, (6,)) for _ in range(2))
            tolerance = 2e-5 if name == "float32" else 8e-3
            cases.add("GroupNormalization", x, scale, bias, num_groups=3, atol=tolerance)
            cases.add("InstanceNormalization", x, scale, bias, atol=tolerance)
        cases.add("MeanVarianceNormalization", cases.array(name, (4, 5, 6, 7)), atol=tolerance)
    cases.check(vulkan_device_name, is_strided=is_strided)


@pytest.mark.parametrize("shape", [(4, 1024), (3, 8192), (2, 40000)], ids=str)
def test_statistics_of_rows_far_from_zero(vulkan_device_name: str, shape: Sequence[int]) -> None:
    """Distances from the mean are taken first, and their squares added up."""
    x = normal(13, *shape) + 1000
    sketch = Sketch("far")
    made = sketch.node(
        "LayerNormalization", sketch.input("x", x.shape), sketch.constant(np.ones(shape[1], np.float32))
    )
    [found], _ = run(vulkan_device_name, sketch, {"x": x}, made)
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    # The mean is rounded to a 16,384th of a distance.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1.5e-4)


def test_labels_of_long_rows(vulkan_device_name: str) -> None:
    for length in (1000, 40001):
        x, labels = normal(14, 5, length), np.array([0, length - 1, 7, -100, 3])
        sketch = Sketch("labels")
        given = sketch.input("x", x.shape), sketch.input("labels", labels.shape, dtypes.INT64)
        made = sketch.node("SoftmaxCrossEntropyLoss", *given, reduction="none", ignore_index=-100)
        [found], _ = run(vulkan_device_name, sketch, {"x": x, "labels": labels}, made)
        wanted = -np.log(softmax(x, 1)[range(5), labels.clip(0)]) * (labels >= 0)
        np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_running_totals(vulkan_device_name: str, op: str, is_strided: bool) -> None:
    cases = Cases(43)
    directions = [(0, 0), (0, 1), (1, 1), (1, 0)]  # exclusive, reverse
    shapes = [((5, 1024), 1), ((3, 67), 1), ((2, 300, 20), 1), ((700, 33), 0), ((40, 12), 1)]
    types = ["float32", "float16", "int32", "int64"]
    for (i, name), (j, (shape, axis)) in itertools.product(enumerate(types), enumerate(shapes)):
        # Each costs a compilation: half of them, so that types and shapes meet all; on SwiftShader one.
        for exclusive, reverse in directions[(i + j) % 2 :: 2] if rows.MOST_KEPT == 32 else directions[:1]:
            # Factors near 1, and sums that do not cancel.
            x = (
                1 + cases.random.standard_normal(shape) / 1000
                if op == "CumProd"
                else cases.random.random(shape)
            )
            if name[0] == "i":
                x = cases.random.integers(-1000, 1000, shape) | 1
            cases.add(
                op,
                x.astype(name),
                Fixed(np.array([axis], np.int64)),
                exclusive=exclusive,
                reverse=reverse,
                rtol={"float32": 2e-5, "float16": 2e-3}.get(name),
            )
    cases.check(vulkan_device_name, is_strided=is_strided)


@pytest.mark.parametrize("shape", [(3, 40000), (2, 33001), (9000, 40)], ids=str)
def test_running_totals_of_long_rows(vulkan_device_name: str, shape: tuple[int, int]) -> None:
    """A total goes on from each part of a row to the next."""
    for axis in (0, 1):
        for reverse in (0, 1):
            x = np.random.default_rng(15).random(shape, np.float32)
            sketch = Sketch("totals", 23)
            axes = sketch.constant(np.array(axis, np.int64))
            made = sketch.node("CumSum", sketch.input("x", shape), axes, reverse=reverse)
            [found], _ = run(vulkan_device_name, sketch, {"x": x}, made)
            wide = x.astype(np.float64)
            wide = np.flip(wide, axis) if reverse else wide
            wanted = wide.cumsum(axis)
            np.testing.assert_allclose(found, np.flip(wanted, axis) if reverse else wanted, rtol=3e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_devices_without_shuffles(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch, axis: int
) -> None:
    """Threads are joined in shared memory alone."""
    before = vkml.engine.devices.target_of

    def target_of(*given: Any) -> Target:
        target = before(*given)
        return replace(target, capabilities=target.capabilities - {"subgroup_shuffle"})

    monkeypatch.setattr(vkml.engine.devices, "target_of", target_of)
    forget_lowerings()
    for shape in ((70, 300), (33, 1001)):
        x = normal(16, *shape)
        found, _ = softmax_of(vulkan_device_name, x, axis)
        np.testing.assert_allclose(found, softmax(x, axis), rtol=3e-6, atol=1e-7)
        sketch = Sketch("totals", 23)
        made = sketch.node("CumSum", sketch.input("x", shape), sketch.constant(np.array(axis, np.int64)))
        [found], [step] = run(vulkan_device_name, sketch, {"x": abs(x)}, made)
        np.testing.assert_allclose(found, abs(x).astype(np.float64).cumsum(axis), rtol=3e-6)
        assert step.kernel == "scan"
