"""Halos: which covers which, what two are joined to, and that readers find the fill they need."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.lowering.cpu
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.engine.sketch import Sketch
from vkml.kernels.views import View
from vkml.lowering.native_builder import NativeBuilder
from vkml.lowering.native_layout import Border
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
SIDES = ("top", "bottom", "left", "right", "front", "back")
FULL = Border(2, 2, 2, 2, 0.0, 2, 2)


@pytest.mark.parametrize("side", SIDES)
def test_a_halo_covers_no_wider_one(side: str) -> None:
    assert FULL.covers(FULL)
    assert FULL.covers(replace(FULL, **{side: 1}))
    assert FULL.covers(replace(FULL, **{side: 0}))
    assert not FULL.covers(replace(FULL, **{side: 3}))


def test_a_halo_covers_none_of_another_fill() -> None:
    assert not FULL.covers(replace(FULL, fill=-np.inf))
    assert not replace(FULL, fill=-np.inf).covers(FULL)
    assert replace(FULL, fill=-np.inf).covers(Border(1, 1, 1, 1, -np.inf))


def test_joined_halos_cover_both() -> None:
    def border(sizes: tuple[int, ...]) -> Border:
        return Border(**dict(zip(SIDES, sizes, strict=True)))

    sizes = list(itertools.product((0, 1, 2), repeat=6))[::23]
    for one in sizes:
        for other in sizes:
            joined = border(one).joined(border(other))
            assert joined.covers(border(one))
            assert joined.covers(border(other))
            assert joined == border(tuple(map(max, one, other)))  # and is no wider than they need


def test_of_two_fills_that_of_zeros_is_kept() -> None:
    lowest = Border(3, 3, 3, 3, -np.inf)
    assert lowest.joined(FULL) == FULL
    assert FULL.joined(lowest) == FULL
    assert Border().joined(lowest) == lowest
    assert lowest.joined(Border()) == lowest


needs_machine_code = pytest.mark.skipif(instruction_set() is None, reason="no machine code here")
SETS = [pytest.param(InstructionSet.AVX2, marks=needs_machine_code)]
if instruction_set() is InstructionSet.AVX512:
    SETS.append(pytest.param(InstructionSet.AVX512))


def run_all(model: bytes, feeds: Sequence[dict[str, Array]], variant: str) -> list[list[Array]]:
    """Results of one session, all of whose steps are of a variant."""
    with vkml.InferenceSession(model, devices="cpu") as session:
        results = [session.run(None, feed) for feed in feeds]
        assert {step.variant for step in session.report().steps} == {variant}
    return results


READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("Conv", {"kernel_shape": (1, 1)}),
    "top": ("Conv", {"kernel_shape": (3, 1), "pads": (2, 0, 0, 0)}),
    "bottom": ("Conv", {"kernel_shape": (3, 1), "pads": (0, 0, 2, 0)}),
    "left": ("Conv", {"kernel_shape": (1, 3), "pads": (0, 2, 0, 0)}),
    "right": ("Conv", {"kernel_shape": (1, 3), "pads": (0, 0, 0, 2)}),
    "all": ("Conv", {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    "wide": ("Conv", {"kernel_shape": (5, 5), "pads": (2, 2, 2, 2)}),
    "depthwise": ("Conv", {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "group": 8}),
    "lowest": ("MaxPool", {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    "average": ("AveragePool", {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
}
SOLID_READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "solid plain": ("Conv", {"kernel_shape": (1, 1, 1)}),
    "front": ("Conv", {"kernel_shape": (3, 1, 1), "pads": (2, 0, 0, 0, 0, 0)}),
    "back": ("Conv", {"kernel_shape": (3, 1, 1), "pads": (0, 0, 0, 2, 0, 0)}),
    "flat": ("Conv", {"kernel_shape": (1, 3, 3), "pads": (0, 1, 1) * 2}),
    "solid": ("Conv", {"kernel_shape": (3, 3, 3), "pads": (1,) * 6}),
    "solid depthwise": ("Conv", {"kernel_shape": (3, 3, 3), "pads": (1,) * 6, "group": 8}),
    "solid lowest": ("MaxPool", {"kernel_shape": (3, 3, 3), "pads": (1,) * 6}),
    "solid average": ("AveragePool", {"kernel_shape": (3, 3, 3), "pads": (1,) * 6}),
}
"""Of images of so many planes that those beside them are not left out."""


def read(sketch: Sketch, rng: np.random.Generator, image: str, reader: str) -> str:
    """The result of a reader of an image of eight channels."""
    op, attributes = {**READERS, **SOLID_READERS}[reader]
    shape = (8, 8 // attributes.get("group", 1), *attributes["kernel_shape"])
    weights = [sketch.constant(rng.standard_normal(shape).astype("f4"))] if op == "Conv" else []
    return sketch.node(op, image, *weights, **attributes)


def negative(sketch: Sketch, image: str, rank: int = 2) -> str:
    """An image mostly below zero, where a maximum with zeros round it is another."""
    return sketch.node("Conv", image, sketch.constant(-np.ones((8, 8, *(1,) * rank), "f4")))


def check(
    sketch: Sketch,
    outputs: Sequence[str],
    instructions: InstructionSet,
    patch: pytest.MonkeyPatch,
    shape: tuple[int, ...] = (2, 8, 6, 7),
) -> None:
    """Two runs of machine code, the second over what the first left in memory, against NumPy."""
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.random(shape).astype("f4") + 1} for _ in range(2)]
    model = save_graph(sketch.finish(*outputs))
    patch.setattr(vkml.lowering.cpu, "instruction_set", lambda: instructions)
    found = run_all(model, feeds, instructions.value)
    patch.setattr(vkml.lowering.cpu, "instruction_set", lambda: None)
    for mine, theirs in zip(found, run_all(model, feeds, "numpy"), strict=True):
        for one, wanted in zip(mine, theirs, strict=True):
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(one / scale, wanted / scale, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(READERS, 2)))
def test_two_readers_of_one_image_find_what_they_need_round_it(
    first: str, second: str, instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their wishes for its halo are joined; what is not covered is copied."""
    rng = np.random.default_rng(0)
    sketch = Sketch("readers", 20)
    image = negative(sketch, sketch.input("x", (2, 8, 6, 7)))
    check(sketch, [read(sketch, rng, image, name) for name in (first, second)], instructions, monkeypatch)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(SOLID_READERS, 2)))
def test_two_readers_of_a_solid_image(
    first: str, second: str, instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, shape = np.random.default_rng(0), (2, 8, 60, 3, 4)
    sketch = Sketch("readers", 20)
    image = negative(sketch, sketch.input("x", shape), rank=3)
    outputs = [read(sketch, rng, image, name) for name in (first, second)]
    check(sketch, outputs, instructions, monkeypatch, shape)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize(
    ("readers", "copies"),
    [(["all"], 0), (["wide"], 0), (["wide", "all"], 0), (["all", "wide"], 0), (["top", "bottom"], 0),
     (["left", "plain", "right"], 0), (["all", "average"], 0), (["all", "lowest"], 1), (["lowest"], 0),
     (["solid", "solid depthwise", "flat"], 0), (["front", "solid plain", "back"], 0),
     (["solid lowest"], 0), (["solid average", "solid lowest"], 1)],
)  # fmt: skip
def test_an_image_is_copied_only_for_a_halo_of_another_fill(
    readers: list[str], copies: int, instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    sketch = Sketch("copies", 20)
    shape = (2, 8, 60, 3, 4) if readers[0] in SOLID_READERS else (2, 8, 6, 7)
    image = negative(sketch, sketch.input("x", shape), len(shape) - 2)
    made: list[View] = []
    copy = NativeBuilder.copy

    def noting(build: NativeBuilder, source: View, target: View, *change: Any) -> None:
        if source.buffer in build.bordered:
            made.append(source)
        copy(build, source, target, *change)

    monkeypatch.setattr(NativeBuilder, "copy", noting)
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: instructions)
    graph = sketch.finish(*(read(sketch, rng, image, reader) for reader in readers))
    run_all(save_graph(graph), [{"x": np.ones(shape, "f4")}], instructions.value)
    assert len(made) == copies


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize(
    ("first", "second"),
    [("all", "lowest"), ("lowest", "all"), ("top", "bottom"), ("right", "left"), ("all", "depthwise")],
)
def test_images_share_memory_only_where_their_halos_are_the_same(
    first: str, second: str, instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is dead when the other is made, both have the same size and strides."""
    rng = np.random.default_rng(0)
    sketch = Sketch("sequence", 20)
    value = sketch.input("x", (2, 8, 6, 7))
    for reader in (first, second, first, second):
        value = read(sketch, rng, negative(sketch, value), reader)
    check(sketch, [value], instructions, monkeypatch)
