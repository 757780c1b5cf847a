"""Convolutions and pools over three axes, and how the CPU computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
import vkml.lowering.cpu
from tests.ops.byte_convolutions import check_bytes
from tests.ops.checking import run_operator
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.ir.windows import Windows
from vkml.kernels.views import View
from vkml.lowering import kept, native_images
from vkml.lowering.native_builder import NativeBuilder
from vkml.lowering.native_taps import Rules, Way, way_of
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
if instruction_set() is None:
    pytest.skip("no machine code here", allow_module_level=True)


@pytest.fixture(
    params=[
        InstructionSet.AVX2,
        pytest.param(
            InstructionSet.AVX512,
            marks=pytest.mark.skipif(instruction_set() is not InstructionSet.AVX512, reason="no AVX-512"),
        ),
    ],
    ids=lambda value: value.value,
)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> InstructionSet:
    """The instruction set that programs made in the test use."""
    chosen: InstructionSet = request.param
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: chosen)
    return chosen


def run(
    instructions: InstructionSet,
    x: Array,
    weight: Array,
    attributes: dict[str, Any],
    *,
    bias: Array | None = None,
    is_known: bool = True,
    is_image: bool = True,
    precision: str = "high",
) -> list[Array]:
    """Results of two runs of Conv → Add → Relu in machine code; of a Relu's result, if that is an image."""
    sketch = Sketch("solid", 17)
    dtype = dtypes.from_numpy(x.dtype)
    image, feed = sketch.input("x", x.shape, dtype), {"x": x}
    image = sketch.node("Relu", image) if is_image else image
    if is_known:
        filters = sketch.constant(weight)
    else:
        filters, feed["w"] = sketch.input("w", weight.shape, dtype), weight
    y = sketch.node("Conv", image, filters, *([] if bias is None else [sketch.constant(bias)]), **attributes)
    ending = expected(x, weight, attributes, bias, is_image=is_image)
    addend = np.random.default_rng(0).standard_normal(ending.shape).astype(x.dtype)
    feed["addend"] = addend
    y = sketch.node("Relu", sketch.node("Add", y, sketch.input("addend", addend.shape, dtype)))
    model = save_graph(sketch.finish(y))
    with vkml.InferenceSession(model, devices="cpu", precision=precision) as session:
        found = [session.run(None, feed)[0] for _ in range(2)]
        assert {step.variant for step in session.report().steps} == {instructions.value}
    wanted = np.maximum(ending + addend.astype(np.float64), 0)
    bound = {np.dtype(np.float32): 2e-5, np.dtype(np.float16): 2e-3}[x.dtype]
    for each in found:
        assert each.dtype == x.dtype
        np.testing.assert_allclose(each, wanted, rtol=0, atol=bound * np.abs(wanted).max())
    return found


def expected(
    x: Array, weight: Array, attributes: dict[str, Any], bias: Array | None, *, is_image: bool
) -> Array:
    wide = [np.maximum(x, 0) if is_image else x, weight, *([] if bias is None else [bias])]
    [made] = run_operator("Conv", [each.astype(np.float64) for each in wide], attributes)
    return made


def scaled(random: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """Filters whose results are of the order of one."""
    return (random.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(dtype)


ONES = [1] * 6
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "pointwise": ((2, 20, 3, 4, 5), (37, 20, 1, 1, 1), {}),
    "pointwise, strided": ((1, 20, 5, 6, 7), (37, 20, 1, 1, 1), {"strides": [2, 2, 2]}),
    "in the plane": ((2, 20, 3, 9, 11), (24, 20, 1, 3, 3), {"pads": [0, 1, 1] * 2}),
    "across planes": ((2, 20, 7, 5, 6), (24, 20, 3, 1, 1), {"pads": [1, 0, 0] * 2}),
    "every other plane": ((1, 20, 9, 5, 6), (24, 20, 3, 1, 1), {"pads": [1, 0, 0] * 2, "strides": [2, 1, 1]}),
    "Winograd": ((2, 17, 20, 9, 10), (37, 17, 3, 3, 3), {"pads": ONES}),
    "Winograd of few planes": ((1, 37, 4, 14, 13), (40, 37, 3, 3, 3), {"pads": ONES}),
    "Winograd, one span of which has too few tiles": ((1, 32, 4, 8, 8), (32, 32, 3, 3, 3), {"pads": ONES}),
    "two planes": ((1, 24, 2, 9, 9), (24, 24, 3, 3, 3), {"pads": ONES}),
    "one plane": ((1, 24, 1, 9, 9), (24, 24, 3, 3, 3), {"pads": ONES}),
    "stem": ((1, 3, 5, 18, 19), (20, 3, 3, 7, 7), {"pads": [1, 3, 3] * 2, "strides": [1, 2, 2]}),
    "no padding": ((2, 9, 6, 7, 8), (11, 9, 3, 2, 4), {}),
    "uneven padding": ((1, 9, 6, 7, 8), (11, 9, 3, 3, 3), {"pads": [2, 0, 1, 0, 2, 3]}),
    "same": ((1, 9, 6, 7, 8), (11, 9, 3, 2, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 1, 3]}),
    "dilated": ((1, 16, 9, 9, 10), (16, 16, 3, 3, 3), {"dilations": [2, 2, 3], "pads": [2, 2, 3] * 2}),
    "far planes": ((1, 20, 6, 9, 8), (24, 20, 3, 3, 3), {"dilations": [4, 1, 1], "pads": [4, 1, 1] * 2}),
    "planes of padding alone": ((1, 9, 2, 5, 6), (11, 9, 2, 3, 3), {"pads": [4, 1, 1] * 2}),
    "groups": ((2, 12, 5, 6, 7), (27, 4, 3, 3, 3), {"pads": ONES, "group": 3}),
    "groups, few planes": ((1, 34, 2, 6, 7), (38, 17, 3, 1, 3), {"pads": [1, 0, 1] * 2, "group": 2}),
    "depthwise": ((2, 37, 20, 6, 7), (37, 1, 3, 3, 3), {"pads": ONES, "group": 37}),
    "depthwise, few planes": ((2, 37, 3, 6, 7), (37, 1, 3, 3, 3), {"pads": ONES, "group": 37}),
    "depthwise, strided": ((1, 20, 9, 8, 7), (20, 1, 3, 5, 2), {"strides": [2, 3, 1], "group": 20}),
    "one channel, as of lambda layers": ((1, 1, 6, 7, 9), (16, 1, 5, 5, 1), {"pads": [2, 2, 0] * 2}),
    "small": ((1, 1, 1, 2, 1), (1, 1, 1, 1, 1), {}),
    "many taps": ((1, 150, 5, 4, 5), (70, 150, 3, 3, 5), {"pads": [1, 1, 2] * 2}),
    "as large as the image": ((3, 18, 4, 5, 6), (20, 18, 4, 5, 6), {}),
}  # fmt: skip


FEW_FILTERS = [name for name in CASES if name.startswith("depthwise")]
"""Of which a group has too few to be packed during the run, in the plane, too."""


@pytest.mark.parametrize(
    ("name", "is_known"),
    [*((name, True) for name in CASES), *((name, False) for name in CASES if name not in FEW_FILTERS)],
)
@pytest.mark.parametrize("precision", ["high", "highest"])
def test_cases(instructions: InstructionSet, name: str, is_known: bool, precision: str) -> None:
    shape, filters, attributes = CASES[name]
    random = np.random.default_rng(len(name))
    run(
        instructions,
        random.standard_normal(shape).astype(np.float32),
        scaled(random, filters),
        attributes,
        bias=random.standard_normal(filters[0]).astype(np.float32) if len(name) % 3 else None,
        is_known=is_known,
        precision=precision,
    )


@pytest.mark.parametrize("seed", range(40))
def test_random(instructions: InstructionSet, seed: int) -> None:
    random = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(random.integers(low, high + 1))

    group = draw(1, 3)
    channels, filters = group * draw(1, 20), group * draw(1, 40)
    if seed % 4 == 0:
        group = channels = filters = draw(2, 40)
    kernel = [draw(1, 4) for _ in range(3)] if seed % 3 else [3, 3, 3]
    dilations = [draw(1, 2) for _ in range(3)]
    spatial = [draw(1, 9) + (k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    attributes = {
        "group": group,
        "dilations": dilations,
        "strides": [draw(1, 3) if seed % 2 else 1 for _ in range(3)],
        "pads": [draw(0, 2) for _ in range(6)],
    }
    x = random.standard_normal((draw(1, 3), channels, *spatial)).astype(np.float32)
    weight = scaled(random, (filters, channels // group, *kernel))
    run(instructions, x, weight, attributes, is_image=bool(seed & 4))


@pytest.mark.parametrize("name", ["pointwise", "across planes", "uneven padding", "far planes"])
def test_sums_of_some_taps_at_a_time(
    instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(kept, "_kept", {})
    monkeypatch.setattr(native_images, "PANEL_BYTES", 1000)
    shape, filters, attributes = CASES[name]
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    run(instructions, x, scaled(random, filters), attributes, precision="highest")


def test_float16(instructions: InstructionSet) -> None:
    shape, filters, attributes = CASES["Winograd of few planes"]
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float16)
    run(instructions, x, scaled(random, filters, "float16"), attributes, is_image=False)


@pytest.mark.parametrize("number", [np.inf, np.nan])
@pytest.mark.parametrize("group", [1, 24])
def test_infinite_weights_meet_the_padding(instructions: InstructionSet, number: float, group: int) -> None:
    """Infinities times zeros of the planes beside the image are NaN, whichever node was lowered first."""
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 24, 2, 6, 5)).astype(np.float32)
    finite = scaled(random, (24, 24 // group, 3, 3, 3))
    infinite = finite.copy()
    infinite[3, 0, 0, 1, 1] = number
    sketch = Sketch("infinite", 17)
    image = sketch.node("Relu", sketch.input("x", x.shape))
    attributes = {"pads": ONES, "group": group}
    results = [
        sketch.node("Conv", image, sketch.constant(each), **attributes) for each in (finite, infinite, finite)
    ]
    with vkml.InferenceSession(save_graph(sketch.finish(*results)), devices="cpu") as session:
        found = session.run(None, {"x": x})
    for made, weight in zip(found, (finite, infinite, finite), strict=True):
        with np.errstate(invalid="ignore"):
            [wanted] = run_operator("Conv", [np.maximum(x, 0), weight], attributes)
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)
        assert np.isnan(made[:, 3, 0]).all() == (weight is infinite)


def test_windows_of_very_many_taps_are_numpys(
    instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_kept", {})
    monkeypatch.setattr(native_images, "MOST_TAPS", 26)
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((1, 4, 5, 5, 5)).astype(np.float32), scaled(random, (4, 4, 3, 3, 3))
    sketch = Sketch("many", 17)
    model = save_graph(
        sketch.finish(sketch.node("Conv", sketch.input("x", x.shape), sketch.constant(weight)))
    )
    with vkml.InferenceSession(model, devices="cpu") as session:
        [found] = session.run(None, {"x": x})
        assert {step.variant for step in session.report().steps} == {"numpy"}
    np.testing.assert_allclose(found, run_operator("Conv", [x, weight])[0], rtol=1e-5, atol=1e-5)


def test_open_batch(instructions: InstructionSet) -> None:
    random = np.random.default_rng(0)
    weight = scaled(random, (20, 18, 3, 3, 3))
    sketch = Sketch("open", 17)
    image = sketch.node("Relu", sketch.input("x", ("batch", 18, 4, 9, 8)))
    model = save_graph(sketch.finish(sketch.node("Conv", image, sketch.constant(weight), pads=ONES)))
    with vkml.InferenceSession(model, devices="cpu") as session:
        for images in (1, 3, 2):
            x = random.standard_normal((images, 18, 4, 9, 8)).astype(np.float32)
            [found] = session.run(None, {"x": x})
            wanted = expected(x, weight, {"pads": ONES}, None, is_image=True)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
        assert {step.variant for step in session.report().steps} == {instructions.value}


@pytest.mark.parametrize("zero", [0, 7])
@pytest.mark.parametrize("group", [1, 2, 30])
def test_bytes(instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch, zero: int, group: int) -> None:
    calls = []
    real = NativeBuilder.byte_conv

    def noting(build: NativeBuilder, *args: Any, **options: Any) -> Any:
        calls.append(build)
        return real(build, *args, **options)

    monkeypatch.setattr(kept, "_kept", {})
    monkeypatch.setattr(NativeBuilder, "byte_conv", noting)
    random = np.random.default_rng(0)
    channels, filters = (30, 30) if group == 30 else (24, 34)
    steps = random.integers(0, 256, (2, channels, 3, 6, 7)).astype(np.uint8)
    weight = random.integers(-128, 128, (filters, channels // group, 3, 3, 2)).astype(np.int8)
    attributes = {"pads": [1, 1, 0, 1, 1, 1], "strides": [1, 2, 1], "group": group}
    check_bytes(steps, weight, zero, attributes, instructions)
    assert calls


@pytest.mark.parametrize(
    ("shape", "kernel", "pads", "launches"),
    [
        ((1, 24, 1, 5, 5), (3, 3, 3), ONES, [9]),
        ((1, 24, 2, 5, 5), (3, 3, 3), ONES, [18, 18]),
        ((1, 24, 4, 5, 5), (3, 3, 3), ONES, [18, 27, 18]),
        ((1, 24, 60, 5, 5), (3, 3, 3), ONES, [27]),
        ((1, 24, 4, 5, 5), (1, 3, 3), [0, 1, 1] * 2, [9]),
    ],
)
def test_planes_beside_the_image_are_not_multiplied(
    instructions: InstructionSet,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    pads: list[int],
    launches: list[int],
) -> None:
    found: list[int] = []
    monkeypatch.setattr(kept, "_kept", {})
    real = native_images.product.product

    def product(*args: Any, **options: Any) -> Any:
        found.append(len(options["taps"]))
        return real(*args, **options)

    monkeypatch.setattr(native_images.product, "product", product)
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    run(instructions, x, scaled(random, (20, 24, *kernel)), {"pads": pads}, precision="highest")
    # What is asked whether a node has machine code by itself comes first.
    assert found[-len(launches) :] == launches
    assert len(found) % len(launches) == 0


def test_networks_copy_no_images(instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for channels nor for borders, with what is pointwise and several readers between."""
    monkeypatch.setattr(kept, "_kept", {})
    copied: list[tuple[int, ...]] = []
    real = NativeBuilder.copy

    def copy(build: NativeBuilder, source: View, target: View, *change: Any) -> None:
        copied.append(source.shape)
        real(build, source, target, *change)

    monkeypatch.setattr(NativeBuilder, "copy", copy)
    random = np.random.default_rng(0)
    sketch = Sketch("network", 17)
    shape = (1, 4, 40, 6, 7)
    first = sketch.node("Conv", sketch.input("x", shape), sketch.constant(scaled(random, (8, 4, 1, 1, 1))))
    second = sketch.node("MaxPool", first, kernel_shape=[3, 3, 3], pads=ONES)
    both = sketch.node("Mul", sketch.node("Sigmoid", second), sketch.node("Tanh", second))
    third = sketch.node("Conv", both, sketch.constant(scaled(random, (8, 8, 3, 3, 3))), pads=ONES)
    total = sketch.node("Add", third, both)
    scales = sketch.constant(np.array([1, 1, 2, 1, 2], np.float32))
    nearest = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    larger = sketch.node("Resize", total, "", scales, **nearest)
    fourth = sketch.node("Conv", larger, sketch.constant(scaled(random, (8, 8, 3, 3, 3))), pads=ONES)
    last = sketch.node("GlobalAveragePool", fourth)
    with vkml.InferenceSession(save_graph(sketch.finish(last)), devices="cpu") as session:
        session.run(None, {"x": random.standard_normal(shape).astype(np.float32)})
        assert {step.variant for step in session.report().steps} == {instructions.value}
    # Resize is a copy over an axis more for each that it repeats.
    assert {each for each in copied if len(each) == len(shape)} <= {shape}


POOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "greatest": ("MaxPool", {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    "greatest, padded": ("MaxPool", {"kernel_shape": [3, 2, 3], "pads": [1, 1, 1, 0, 1, 2]}),
    "greatest, dilated": ("MaxPool", {"kernel_shape": [2] * 3, "dilations": [2, 3, 1], "pads": [1] * 6}),
    "greatest, ceiling": ("MaxPool", {"kernel_shape": [2, 3, 2], "strides": [3, 2, 2], "ceil_mode": 1}),
    "mean": ("AveragePool", {"kernel_shape": [3, 3, 3], "pads": ONES}),
    "mean, padding counts": ("AveragePool", {"kernel_shape": [3] * 3, "pads": ONES, "count_include_pad": 1}),
    "mean, ceiling": ("AveragePool", {"kernel_shape": [2, 3, 2], "strides": [3, 2, 2], "ceil_mode": 1}),
    "mean of all": ("GlobalAveragePool", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("channels", [1, 7, 40])
def test_pools(instructions: InstructionSet, name: str, channels: int) -> None:
    """Of what lies with its channels side by side, all below zero, and of what does not."""
    op, attributes = POOLS[name]
    random = np.random.default_rng(channels)
    x = random.random((2, channels, 5, 6, 7)).astype(np.float32) + 1
    sketch = Sketch("pools", 17)
    given = sketch.input("x", x.shape)
    weight = -np.eye(channels, dtype=np.float32).reshape(channels, channels, 1, 1, 1)
    image = sketch.node("Conv", given, sketch.constant(weight))
    model = save_graph(
        sketch.finish(sketch.node(op, image, **attributes), sketch.node(op, given, **attributes))
    )
    with vkml.InferenceSession(model, devices="cpu") as session:
        found = session.run(None, {"x": x})
        assert {step.variant for step in session.report().steps} == {instructions.value}
    for made, values in zip(found, (-x, x), strict=True):
        np.testing.assert_allclose(made, run_operator(op, [values], attributes)[0], rtol=1e-5)


# --- geometry -----------------------------------------------------------------------------------------------


def way(windows: Windows, *, is_strict: bool, channels: int = 16, filters: int = 16) -> Way:
    rules = Rules.of_floats(InstructionSet.AVX2, 2, is_known=True, is_strict=is_strict)
    return way_of(
        windows, images=1, channels=channels, filters=filters, group=1, is_depthwise=False, rules=rules
    )


@pytest.mark.parametrize("seed", range(200))
def test_planes_that_are_read(seed: int) -> None:
    """By looking at every tap along z of every result."""
    random = np.random.default_rng(seed)

    def draw(low: int, high: int) -> tuple[int, int, int]:
        return int(random.integers(low, high)), 3, 3

    windows = Windows(draw(1, 9), draw(1, 5), draw(1, 4), draw(1, 5), draw(0, 6), draw(0, 6), draw(1, 9))
    found = way(windows, is_strict=True)
    over, size = found.windows, windows.spatial[0]
    begins = np.arange(windows.output[0]) * windows.strides[0] - windows.pads_begin[0]
    places = begins[:, None] + (found.first[0] + np.arange(over.kernel[0])) * windows.dilations[0]
    inside = (places >= 0) & (places < size)
    if not found.depths:
        assert (found.border.front, found.border.back) == (
            max(0, -places.min()),
            max(0, places.max() - size + 1),
        )
        return
    assert (found.border.front, found.border.back) == (0, 0)
    assert inside.sum() < inside.size
    results = []
    for span, part in found.depths:
        results += range(span.start, span.stop)
        assert inside[span.start : span.stop, span.first : span.last].all()
        assert inside[span.start : span.stop].sum() == span.size * span.taps
        assert (part.windows.kernel[0], part.windows.output[0]) == (span.taps, span.size)
        last = span.stop - 1
        assert part.windows.spatial[0] == places[last, span.last - 1] - places[span.start, span.first] + 1
        assert not part.depths and part.border == found.border
    assert results == list(range(windows.output[0]))


def test_parts_share_packed_weights() -> None:
    """Also where each by itself would be best with others."""
    windows = Windows((4, 14, 14), (3, 3, 3), (1,) * 3, (1,) * 3, (1,) * 3, (1,) * 3, (4, 14, 14))
    found = way(windows, is_strict=False, channels=32, filters=64)
    assert [span.taps for span, _ in found.depths] == [2, 3, 2]
    plans = [part.winograd for _, part in found.depths]
    assert len({plan and plan.key for plan in plans}) == 1 and None not in plans
