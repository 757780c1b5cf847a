"""Depthwise convolutions on Vulkan: blocks of every form, over rows of whole vectors and of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.vulkan_cases import Cases, Fixed
from vkml.engine.sketch import Sketch
from vkml.kernels import depthwise, window_blocks
from vkml.kernels.window_blocks import Block
from vkml.lowering.kept import forget_lowerings
from vkml.onnx import save_graph

BLOCKS = [Block(1, 1, 1), Block(2, 1, 1), Block(1, 2, 2), Block(2, 2, 4), Block(2, 4, 2), Block(4, 4, 4)]
GEOMETRIES: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((3, 3), {"pads": [1, 1, 1, 1]}),
    ((3, 3), {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
    ((5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
    ((7, 3), {"pads": [3, 1, 3, 1]}),
    ((2, 4), {"pads": [1, 3, 2, 0], "dilations": [2, 1], "strides": [1, 2]}),
    ((3, 2), {"dilations": [3, 3], "strides": [2, 1]}),
    ((1, 3), {"strides": [3, 1]}),
]


@pytest.fixture(params=BLOCKS, ids=str)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Block:
    """What threads have wherever they can."""
    monkeypatch.setattr(window_blocks, "forced", request.param)
    forget_lowerings()
    made: Block = request.param
    return made


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[Block]:
    """What threads of some launch have."""
    found: set[Block] = set()
    real = depthwise.block_of

    def block_of(*given: Any) -> Block:
        found.add(real(*given))
        return real(*given)

    monkeypatch.setattr(depthwise, "block_of", block_of)
    return found


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_blocks(vulkan_device_name: str, block: Block, taken: set[Block], is_strided: bool) -> None:
    cases = Cases(91)
    for number, (kernel, attributes) in enumerate(GEOMETRIES):
        others = [("float32", (9, 11)), ("float16", (8, 16))]
        for name, space in (("float32", (13, 12)), others[number % 2]):
            multiplier = 1 + number % 2
            x, weight = cases.array(name, (2, 3, *space)), cases.array(name, (3 * multiplier, 1, *kernel))
            bias = cases.array(name, (3 * multiplier,))
            cases.add("Conv", x, Fixed(weight), Fixed(bias), group=3, **attributes)
    cases.check(vulkan_device_name, is_strided=is_strided)
    # What lies apart in memory is read one by one.
    is_read_so = block.columns == block.vector == 1 or not is_strided
    assert (block if is_read_so else Block(1, 1, 1)) in taken


def test_one_and_three_axes(vulkan_device_name: str, block: Block) -> None:
    cases = Cases(92)
    cases.add("Conv", cases.array("float32", (2, 4, 24)), Fixed(cases.array("float32", (4, 1, 4))), group=4)
    x, weight = cases.array("float32", (1, 3, 4, 7, 8)), cases.array("float32", (3, 1, 2, 3, 3))
    cases.add("Conv", x, Fixed(weight), group=3, pads=[1, 1, 1, 0, 1, 1])
    # Too large to be laid out, in rows, in columns, in both.
    for kernel in ((70, 3), (3, 70), (66, 67)):
        x, weight = cases.array("float32", (1, 2, 72, 72)), cases.array("float32", (2, 1, *kernel))
        cases.add("Conv", x, Fixed(weight), group=2, pads=[1, 2, 3, 4], rtol=1e-4, atol=1e-3)
    cases.check(vulkan_device_name)


def test_what_is_not_finite_stays_in_its_windows(vulkan_device_name: str, block: Block) -> None:
    """Elements that are fetched in the place of padding do not count."""
    cases = Cases(93)
    x = cases.array("float32", (1, 2, 12, 12), special=True)
    x[0, 1, ::11, ::11] = np.nan, np.inf
    for attributes in ({"pads": [1, 1, 1, 1]}, {"pads": [2, 2, 2, 2], "strides": [2, 2]}):
        weight = cases.array("float32", (2, 1, 3, 3))
        cases.add("Conv", x, Fixed(weight), group=2, **attributes)
    cases.check(vulkan_device_name)


def test_what_follows_is_done_as_results_are_stored(vulkan_device_name: str, block: Block) -> None:
    random = np.random.default_rng(94)
    x, other = (random.standard_normal((2, 4, 10, 12), np.float32) for _ in range(2))
    weight, bias = random.standard_normal((4, 1, 3, 3), np.float32), random.standard_normal(4, np.float32)
    sketch = Sketch("epilogue")
    made = sketch.node(
        "Conv",
        sketch.input("x", x.shape),
        sketch.constant(weight),
        sketch.constant(bias),
        group=4,
        pads=[1, 1, 1, 1],
    )
    made = sketch.node("Add", sketch.node("Relu", made), sketch.input("other", other.shape))
    made = sketch.node("Concat", made, sketch.input("joined", other.shape), axis=3)
    options = vkml.SessionOptions(guard_bytes=256)
    model = save_graph(sketch.finish(made))
    with vkml.InferenceSession(model, options, devices=vulkan_device_name) as session:
        [found] = session.run(None, {"x": x, "other": other, "joined": other})
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    exact = (
        sum(
            padded[:, :, i : i + 10, j : j + 12] * weight[:, 0, i, j, None, None]
            for i in range(3)
            for j in range(3)
        )
        + bias[:, None, None]
    )
    np.testing.assert_allclose(found[..., :12], np.maximum(exact, 0) + other, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[..., 12:], other)
