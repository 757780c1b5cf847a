"""Convolutions of which many taps lie in the padding, dilated ones mostly, and how the CPU computes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.lowering.cpu
from tests.ops.byte_convolutions import check_bytes
from tests.ops.checking import run_operator
from vkml.cpu.native import depthwise, product, region_product, winograd
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.engine.sketch import Sketch
from vkml.ir import Node, dtypes
from vkml.ir.windows import Windows
from vkml.lowering import kept
from vkml.lowering.native_taps import Rules, border_of, way_of
from vkml.onnx import save_graph
from vkml.ops.conv import conv_geometry

Array = np.ndarray[Any, Any]
SETS = [
    pytest.param(
        each,
        id=each.value,
        marks=pytest.mark.skipif(
            instruction_set() is None or (each is not instruction_set() and each is InstructionSet.AVX512),
            reason="no machine code here" if instruction_set() is None else "no AVX-512",
        ),
    )
    for each in InstructionSet
]


@pytest.fixture(params=SETS)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> InstructionSet:
    """The instruction set that programs made in the test use."""
    chosen: InstructionSet = request.param
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: chosen)
    return chosen


def square(
    images: int, channels: int, size: int, filters: int, dilation: int, kernel: int = 3, **more: Any
) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of input and filters, and attributes, of a convolution that keeps the size of its image."""
    attributes = {"dilations": [dilation] * 2, "pads": [dilation * (kernel // 2)] * 4, **more}
    return (
        (images, channels, size, size),
        (filters, channels // more.get("group", 1), kernel, kernel),
        attributes,
    )


CASES = {
    "half in the padding": square(2, 40, 16, 33, 12),
    "nothing but the middle": square(1, 24, 9, 40, 9),
    "more than the image": square(1, 24, 9, 40, 36),
    "many channels": square(1, 600, 8, 20, 5),
    "Winograd, even": square(1, 32, 16, 48, 2),
    "Winograd, odd": square(2, 20, 19, 24, 4),
    "5 × 5": square(1, 16, 14, 24, 6, kernel=5),
    "even window": square(1, 16, 14, 24, 5, kernel=4),
    "stride 2": square(1, 16, 17, 24, 7, strides=[2, 2]),
    "strides that leave out": square(1, 16, 9, 24, 2, strides=[5, 4], pads=[11, 12, 13, 14]),
    "groups": square(1, 48, 12, 36, 9, group=3),
    "depthwise": square(2, 37, 12, 37, 8, group=37),
    "depthwise, along y": square(1, 37, 12, 37, 8, group=37, dilations=[8, 1], pads=[8, 1, 8, 1]),
    "depthwise, more than the image": square(1, 37, 6, 37, 8, group=37),
    "along y": square(1, 24, 12, 40, 9, dilations=[9, 1], pads=[9, 1, 9, 1]),
    "along x": square(1, 24, 12, 40, 9, dilations=[1, 9], pads=[1, 9, 1, 9]),
    "one side": square(1, 24, 12, 40, 9, pads=[18, 0, 0, 18]),
    "far into the padding": square(1, 24, 5, 16, 3, pads=[20, 1, 2, 30]),
    "1-D": ((2, 24, 50), (40, 24, 3), {"dilations": [32], "pads": [32, 32]}),
    "1-D, causal": ((2, 24, 50), (40, 24, 2), {"dilations": [32], "pads": [32, 0]}),
    "one place": square(1, 24, 1, 40, 1),
}


def made(name: str, dtype: type = np.float32) -> tuple[Array, Array, Array, dict[str, Any]]:
    """Input, filters, bias and attributes of a case."""
    shape, filters, attributes = CASES[name]
    random = np.random.default_rng(len(name))
    scale = np.prod(filters[1:]) ** 0.5
    return (
        random.standard_normal(shape).astype(dtype),
        (random.standard_normal(filters) / scale).astype(dtype),
        random.standard_normal(filters[0]).astype(dtype),
        attributes,
    )


def run(
    x: Array,
    weight: Array,
    bias: Array | None,
    attributes: dict[str, Any],
    *,
    device: str = "cpu",
    precision: str = "high",
    is_known: bool = True,
) -> Array:
    """Relu → Conv → Relu: the image is a value of the program's own, with a border where one is wanted."""
    sketch = Sketch("dilated", 17)
    image = sketch.node("Relu", sketch.input("x", x.shape, dtypes.from_numpy(x.dtype)))
    feed = {"x": x}
    if is_known:
        filters = sketch.constant(weight)
    else:
        filters, feed["w"] = sketch.input("w", weight.shape, dtypes.from_numpy(weight.dtype)), weight
    given = [image, filters, *([] if bias is None else [sketch.constant(bias)])]
    y = sketch.node("Relu", sketch.node("Conv", *given, **attributes))
    model = save_graph(sketch.finish(y))
    with vkml.InferenceSession(model, devices=device, precision=precision) as session:
        [found] = session.run(None, feed)
        # Computed filters of one channel, and float16's, are NumPy's.
        if device == "cpu" and is_known and x.dtype == np.float32 and instruction_set() is not None:
            assert "numpy" not in {step.variant for step in session.report().steps}
    made: Array = found
    return made


def expected(x: Array, weight: Array, bias: Array | None, attributes: dict[str, Any]) -> Array:
    wide = [each if each is None else each.astype(np.float64) for each in (np.maximum(x, 0), weight, bias)]
    return np.maximum(run_operator("Conv", wide, attributes)[0], 0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "computed"])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_cases(device_name: str, name: str, is_known: bool, precision: str) -> None:
    x, weight, bias, attributes = made(name)
    wanted = expected(x, weight, bias, attributes)
    found = run(x, weight, bias, attributes, device=device_name, precision=precision, is_known=is_known)
    bound = 3e-6 if precision == "highest" else 2e-5 if device_name == "cpu" else 2e-3
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound * np.abs(wanted).max())


@pytest.mark.parametrize("name", CASES)
def test_both_instruction_sets(instructions: InstructionSet, name: str) -> None:
    x, weight, bias, attributes = made(name)
    wanted = expected(x, weight, bias, attributes)
    for precision, bound in (("highest", 3e-6), ("high", 2e-5)):
        found = run(x, weight, bias, attributes, precision=precision)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=bound * np.abs(wanted).max())


def test_float16(device_name: str) -> None:
    x, weight, bias, attributes = made("half in the padding", np.float16)
    found = run(x, weight, bias, attributes, device=device_name)
    wanted = expected(x, weight, bias, attributes)
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, float]]]:
    """Receives each launch that a convolution becomes: its kind, and how many products it computes."""
    found: list[tuple[str, float]] = []
    monkeypatch.setattr(kept, "_kept", {})

    def watch(module: Any, name: str, count: Any) -> None:
        real = getattr(module, name)

        def counted(*args: Any, **options: Any) -> Any:
            found.append((name, count(options)))
            return real(*args, **options)

        monkeypatch.setattr(module, name, counted)

    def of_regions(options: Any) -> float:
        y, x = (
            sum(s.size * s.taps for s in spans)
            for spans in (options["arrangement"].y, options["arrangement"].x)
        )
        return float(np.prod(options["batch"])) * y * x * options["inner"] * options["columns"]

    def of_taps(options: Any, *channels: str) -> float:
        images = options["images"] if "images" in options else float(np.prod(options["batch"]))
        sizes = [options[each] for each in ("height", "width", *channels)]
        return float(np.prod([images, len(options["taps"]), *sizes]))

    watch(region_product, "region_product", of_regions)
    watch(product, "product", lambda options: of_taps(options, "inner", "columns"))
    watch(depthwise, "depthwise", lambda options: of_taps(options, "channels"))
    watch(winograd, "winograd", lambda options: 0.0)
    yield found


@pytest.mark.parametrize(
    ("case", "precision", "kind", "share"),
    [
        (square(2, 96, 16, 64, 12), "high", "region_product", 1 / 4),
        (square(2, 96, 16, 64, 12), "highest", "region_product", 1 / 4),
        (square(2, 96, 16, 64, 24), "highest", "product", 1 / 9),
        (square(2, 96, 16, 64, 36), "high", "product", 1 / 9),
        (
            square(1, 96, 24, 64, 12, dilations=[1, 12], pads=[1, 12, 1, 12]),
            "high",
            "region_product",
            70 / 108,
        ),
        (square(1, 96, 32, 64, 12, strides=[2, 2]), "high", "region_product", 9 / 16),
        (square(1, 96, 16, 64, 12, group=2), "high", "region_product", 1 / 4),
        (square(1, 96, 32, 64, 2), "high", "winograd", 0),
        (square(1, 96, 32, 64, 4), "high", "winograd", 0),
        (square(1, 96, 32, 64, 2), "highest", "product", 1),
        (square(1, 96, 16, 96, 12, group=96), "highest", "depthwise", 1 / 4),
        (square(1, 96, 16, 96, 24, group=96), "high", "depthwise", 1 / 9),
        (((1, 96, 64), (64, 96, 3), {"dilations": [32], "pads": [32, 32]}), "high", "region_product", 2 / 3),
        (square(1, 96, 1, 64, 1), "high", "product", 1 / 9),
        (square(1, 96, 14, 64, 1), "highest", "product", 1),
    ],
)
def test_what_lies_in_the_padding_is_not_multiplied(
    instructions: InstructionSet,
    products: list[tuple[str, float]],
    case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]],
    precision: str,
    kind: str,
    share: float,
) -> None:
    shape, filters, attributes = case
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal(each).astype(np.float32) for each in (shape, filters))
    found = run(x, weight, None, attributes, precision=precision)
    whole = found.size * np.prod(filters[1:])
    assert {each for each, _ in products} == {kind}
    assert sum(count for _, count in products) == pytest.approx(share * whole)


@pytest.mark.parametrize(
    ("precision", "kind", "share"), [("high", "region_product", 1 / 4), ("highest", "product", 1)]
)
def test_computed_weights_are_taken_for_finite(
    instructions: InstructionSet,
    products: list[tuple[str, float]],
    precision: str,
    kind: str,
    share: float,
) -> None:
    """Not where sums must be those that the operator states."""
    shape, filters, attributes = square(1, 96, 16, 64, 12)
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal(each).astype(np.float32) for each in (shape, filters))
    found = run(x, weight, None, attributes, precision=precision, is_known=False)
    assert {each for each, _ in products} == {kind}
    whole = found.size * np.prod(filters[1:])
    assert sum(count for _, count in products) == pytest.approx(share * whole)


@pytest.mark.parametrize("number", [np.inf, np.nan])
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("is_depthwise", [False, True])
def test_infinite_weights_meet_the_padding(number: float, precision: str, is_depthwise: bool) -> None:
    """Infinities times zeros of the padding are NaN, whichever node was lowered first."""
    filters = 24
    shape, _, attributes = square(1, 24, 9, filters, 8, group=24 if is_depthwise else 1)
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    finite = random.standard_normal((filters, 1 if is_depthwise else 24, 3, 3)).astype(np.float32)
    infinite = finite.copy()
    infinite[3, 0, 0, 0] = number
    for weight in (finite, infinite, finite):
        with np.errstate(invalid="ignore"):
            wanted = run_operator("Conv", [np.maximum(x, 0), weight], attributes)[0]
        found = run(x, weight, None, attributes, precision=precision)
        wanted = np.where(np.isnan(wanted), np.nan, np.maximum(wanted, 0))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        assert np.isnan(found[:, 3]).any() == (weight is infinite)


@pytest.mark.parametrize("zero", [0, 7])
@pytest.mark.parametrize("group", [1, 2, 30])
@pytest.mark.parametrize(("dilation", "share"), [(1, 1.0), (8, (11 + 2 * 3) ** 2 / 33**2), (12, 1 / 9)])
def test_bytes(
    instructions: InstructionSet,
    products: list[tuple[str, float]],
    zero: int,
    group: int,
    dilation: int,
    share: float,
) -> None:
    """Round an image are its zero points, which are left out where they are 0."""
    random = np.random.default_rng(0)
    channels, filters = (30, 30) if group == 30 else (24, 34)
    steps = random.integers(0, 256, (2, channels, 11, 11)).astype(np.uint8)
    weight = random.integers(-128, 128, (filters, channels // group, 3, 3)).astype(np.int8)
    attributes = {"pads": [dilation] * 4, "dilations": [dilation] * 2, "group": group}
    found = check_bytes(steps, weight, zero, attributes, instructions)
    if group == 30:
        assert {kind for kind, _ in products} == {"depthwise"}
        return
    # Four bytes a product.
    whole = found.size * 9 * channels // group / 4
    leaves_out = zero == 0 and share < 1
    assert {kind for kind, _ in products} == {"region_product" if leaves_out and dilation == 8 else "product"}
    assert sum(count for _, count in products) == pytest.approx((share if leaves_out else 1) * whole)


def test_errors_do_not_grow_with_the_number_of_taps() -> None:
    """Many products of one sign, of which a single sum would be wrong by three times as much."""
    shape, filters, attributes = square(1, 4000, 6, 8, 3)
    random = np.random.default_rng(0)
    x, weight = (random.random(each).astype(np.float32) for each in (shape, filters))
    wanted = expected(x, weight, None, attributes)
    error = run(x, weight, None, attributes) / wanted - 1
    assert np.sqrt(np.square(error).mean()) < 1e-6


def test_open_batch() -> None:
    shape, filters, attributes = square(1, 24, 10, 40, 7)
    random = np.random.default_rng(0)
    weight = random.standard_normal(filters).astype(np.float32)
    sketch = Sketch("open", 17)
    image = sketch.node("Relu", sketch.input("x", ("batch", *shape[1:])))
    model = save_graph(sketch.finish(sketch.node("Conv", image, sketch.constant(weight), **attributes)))
    with vkml.InferenceSession(model, devices="cpu") as session:
        for images in (1, 2, 5, 3):
            x = random.standard_normal((images, *shape[1:])).astype(np.float32)
            wide = [np.maximum(x, 0).astype(np.float64), weight.astype(np.float64)]
            [found] = session.run(None, {"x": x})
            np.testing.assert_allclose(found, run_operator("Conv", wide, attributes)[0], rtol=0, atol=1e-4)


def test_open_sizes() -> None:
    _, filters, attributes = square(1, 24, 10, 40, 3)
    random = np.random.default_rng(0)
    weight = random.standard_normal(filters).astype(np.float32)
    sketch = Sketch("open", 17)
    image = sketch.node("Relu", sketch.input("x", (1, 24, "height", "width")))
    model = save_graph(sketch.finish(sketch.node("Conv", image, sketch.constant(weight), **attributes)))
    with vkml.InferenceSession(model, devices="cpu") as session:
        for size in ((10, 12), (16, 13), (30, 12), (7, 9), (2, 40), (13, 12)):
            x = random.standard_normal((1, 24, *size)).astype(np.float32)
            wide = [np.maximum(x, 0).astype(np.float64), weight.astype(np.float64)]
            [found] = session.run(None, {"x": x})
            np.testing.assert_allclose(found, run_operator("Conv", wide, attributes)[0], rtol=0, atol=1e-3)


# --- geometry -----------------------------------------------------------------------------------------------

RULES = Rules.of_floats(InstructionSet.AVX2, 2, is_known=True, is_strict=True)


@pytest.mark.parametrize("seed", range(200))
def test_taps_that_meet_the_image(seed: int) -> None:
    """What is left of a window, and the border round the image, by looking at every tap of every result."""
    random = np.random.default_rng(seed)

    def draw(low: int, high: int) -> tuple[int, int]:
        return int(random.integers(low, high)), int(random.integers(low, high))

    windows = Windows(draw(1, 9), draw(1, 5), draw(1, 4), draw(1, 10), draw(-3, 12), draw(-3, 12), draw(1, 9))
    way = way_of(windows, images=1, channels=16, filters=16, group=1, is_depthwise=False, rules=RULES)
    border = ((way.border.top, way.border.bottom), (way.border.left, way.border.right))
    for axis in (0, 1):
        size, step = windows.spatial[axis], windows.dilations[axis]
        begins = np.arange(windows.output[axis]) * windows.strides[axis] - windows.pads_begin[axis]
        places = begins[:, None] + np.arange(windows.kernel[axis]) * step
        is_live = ((places >= 0) & (places < size)).any(0)
        live = np.flatnonzero(is_live) if is_live.any() else np.array([0])
        first, last = int(live[0]), int(live[-1])
        assert (way.first[axis], way.windows.kernel[axis]) == (first, last - first + 1)
        assert way.windows.pads_begin[axis] == windows.pads_begin[axis] - first * step
        left = places[:, first : last + 1]
        spans = None if way.regions is None else (way.regions.y, way.regions.x)[axis]
        if spans is None or len(spans) == 1:
            assert border[axis] == (max(0, -left.min()), max(0, left.max() - size + 1))
            continue
        assert border[axis] == (0, 0)
        for span in spans:
            read = left[span.start : span.stop]
            is_read = (read >= 0) & (read < size)
            assert is_read[:, span.first : span.last].all()
            assert is_read.sum() == span.size * span.taps


def test_borders_are_as_wide_as_what_is_read() -> None:
    def border(dilation: int, **more: Any) -> tuple[int, int]:
        shape, filters, attributes = square(1, 64, 16, 64, dilation, **more)
        defaults = {"auto_pad": "NOTSET", "group": 1, "kernel_shape": None, "strides": None}
        geometry = conv_geometry(Node("Conv", (), (), {**defaults, **attributes}), shape, filters)
        found = border_of(geometry, RULES, 0.0)
        return found.top, found.right

    assert border(1) == (1, 1)
    assert border(2, kernel=1, pads=[0] * 4) == (0, 0)
    assert border(12) == (0, 0)
    assert border(24) == (0, 0)
    assert border(12, dilations=[12, 1], pads=[12, 1, 12, 1])[0] == 0
    assert border(12, group=64) == (0, 0)
    assert border(2, group=64) == (2, 2)
