"""Corners of the CPU's machine code that random graphs found, or do not reach."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.lowering.cpu
import vkml.lowering.native
from tests.counting import lines_run
from vkml.cpu.native import executable
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]

if instruction_set() is None:
    pytest.skip("no machine code here", allow_module_level=True)

SETS = [
    InstructionSet.AVX2,
    pytest.param(
        InstructionSet.AVX512,
        marks=pytest.mark.skipif(instruction_set() is not InstructionSet.AVX512, reason="no AVX-512"),
    ),
]


@pytest.fixture(params=SETS, ids=lambda value: value.value)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> InstructionSet:
    """The instruction set that programs made in the test use."""
    chosen: InstructionSet = request.param
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: chosen)
    return chosen


def compare(
    sketch: Sketch, outputs: Sequence[str], feed: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> list[Array]:
    """Asserts that machine code gives what NumPy gives; returns that."""
    model = save_graph(sketch.finish(*outputs))
    with vkml.InferenceSession(model, devices="cpu") as session:
        found = session.run(None, feed)
    with monkeypatch.context() as patch:
        patch.setattr(vkml.lowering.cpu, "instruction_set", lambda: None)
        with vkml.InferenceSession(model, devices="cpu") as session:
            wanted = session.run(None, feed)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    return list(found)


def test_any_byte_but_zero_is_true(instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = Sketch("truths", 20)
    b, c = (sketch.input(name, (37,), dtypes.BOOL) for name in "bc")
    x = sketch.input("x", (37,))
    one = sketch.input("one", (1,), dtypes.BOOL)
    outputs = [
        sketch.node("Where", b, x, sketch.node("Neg", x)),
        sketch.node("Where", one, x, sketch.node("Neg", x)),
        *(sketch.node(op, b, c) for op in ("And", "Or", "Xor")),
        sketch.node("Not", b),
        sketch.node("Cast", b, to=1),
    ]
    truths = np.resize(np.array([2, 0, 255, 1, 0, 128, 0], np.uint8), 37).view(bool)
    feed = {"b": truths, "c": np.roll(truths, 1), "x": np.arange(1, 38, dtype=np.float32),
            "one": truths[:1]}  # fmt: skip
    found = compare(sketch, outputs, feed, monkeypatch)
    for array in found:
        assert array.dtype != bool or array.view(np.uint8).max() <= 1


def test_casts_to_float16_and_back_round(
    instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch = Sketch("rounds", 20)
    x = sketch.node("Add", sketch.input("x", (89,)), sketch.constant(np.float32(1e-3)))
    back = sketch.node("Cast", sketch.node("Cast", x, to=10), to=1)
    feed = {"x": np.linspace(-70000, 70000, 89).astype(np.float32)}
    [found] = compare(sketch, [sketch.node("Mul", back, sketch.constant(np.float32(3)))], feed, monkeypatch)
    assert np.isinf(found[[0, -1]]).all()


def test_borders_along_an_axis_of_size_one(
    instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros above and below a single line are read as such, though its stride is nowhere stated."""
    rng = np.random.default_rng(0)
    sketch = Sketch("line", 20)
    x = sketch.input("x", (2, 5, 1, 9))
    y = sketch.node("AveragePool", x, kernel_shape=(1, 3), pads=(0, 1, 0, 1))
    first = sketch.constant(rng.standard_normal((4, 5, 3, 3)).astype(np.float32))
    second = sketch.constant(rng.standard_normal((4, 5, 1, 2)).astype(np.float32))
    outputs = [
        sketch.node("Conv", y, first, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        sketch.node("Conv", y, first, kernel_shape=(3, 3), pads=(0, 1, 2, 1)),
        sketch.node("Conv", y, second, kernel_shape=(1, 2), pads=(0, 1, 0, 1), strides=(2, 2)),
    ]
    compare(sketch, outputs, {"x": rng.standard_normal((2, 5, 1, 9)).astype(np.float32)}, monkeypatch)


def test_windows_and_sums_of_nothing(instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = Sketch("nothing", 20)
    x, empty = sketch.input("x", (1, 2, 1, 1)), sketch.input("empty", (1, 2, 0, 5))
    channels = sketch.input("channels", (1, 0, 4, 4))
    weight = sketch.constant(np.zeros((3, 0, 3, 3), np.float32))
    outputs = [
        # The corners' windows hold padding only.
        sketch.node("AveragePool", x, kernel_shape=(2, 2), dilations=(2, 2), pads=(1, 1, 1, 1)),
        sketch.node("GlobalAveragePool", empty),
        sketch.node("ReduceMean", empty, sketch.constant(np.array([2, 3]))),
        sketch.node("Conv", channels, weight, sketch.constant(np.ones(3, np.float32)), kernel_shape=(3, 3)),
    ]
    feed = {
        "x": np.ones((1, 2, 1, 1), np.float32),
        "empty": np.ones((1, 2, 0, 5), np.float32),
        "channels": np.ones((1, 0, 4, 4), np.float32),
    }
    with np.errstate(all="ignore"):
        compare(sketch, outputs, feed, monkeypatch)


def test_numpy_works_where_memory_cannot_be_made_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = Sketch("refused", 20)
    model = save_graph(sketch.finish(sketch.node("Relu", sketch.input("x", (3,)))))
    monkeypatch.setattr(executable, "_protect", lambda: lambda *_: -1)
    with vkml.InferenceSession(model, devices="cpu") as session:
        assert session.run(None, {"x": np.array([-1, 0, 2], np.float32)})[0].tolist() == [0, 0, 2]
        assert {step.variant for step in session.report().steps} == {"numpy"}


def test_an_arena_and_results_that_do_not_fit_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = Sketch("large", 20)
    x = sketch.input("x", ("n", 1024))
    model = save_graph(sketch.finish(sketch.node("Softmax", sketch.node("Softmax", x, axis=-1), axis=-1)))
    with vkml.InferenceSession(model, devices="cpu") as session:
        monkeypatch.setattr("vkml.engine.plan_memory.free_memory", lambda: 80 << 20)
        x = np.zeros((1 << 14, 1024), np.float32)  # 64 MiB a result: one fits, two do not
        with pytest.raises(vkml.OutOfMemory, match="free"):
            session.run(None, {"x": x})
        session.run(None, {"x": np.zeros((4, 1024), np.float32)})


def test_an_arena_beyond_the_limit_is_not_even_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A halo is filled when its arena is made: what `memory_limit` forbids would be in use by then."""
    sketch = Sketch("large", 20)
    x = sketch.node("Softmax", sketch.input("x", (1, 1024, 128, "n")), axis=-1)
    y = sketch.node("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    model = save_graph(sketch.finish(y))
    options = vkml.SessionOptions(memory_limit=0.5)
    with vkml.InferenceSession(model, options, devices="cpu") as session:
        monkeypatch.setattr("vkml.engine.plan_memory.free_memory", lambda: 200 << 20)
        x = np.zeros((1, 1024, 128, 128), np.float32)
        tracemalloc.start()
        try:
            with pytest.raises(vkml.OutOfMemory, match=r"200.0 MiB are free \(limit: 50 % of that\)"):
                session.run(None, {"x": x})
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()


def test_many_refused_nodes_take_work_in_proportion() -> None:
    """Every second node is NumPy's: all that was left used to be looked at anew for each."""

    def model(count: int) -> bytes:
        sketch = Sketch("mixed", 20)
        y = sketch.input("x", (3, 5))
        places = sketch.constant(np.arange(3).reshape(3, 1))
        for _ in range(count):
            y = sketch.node("GatherND", sketch.node("Tanh", y), places)
        return save_graph(sketch.finish(y))

    def run(model: bytes) -> None:
        with vkml.InferenceSession(model, devices="cpu") as session:
            session.run(None, {"x": np.ones((3, 5), np.float32)})
            variants.update(step.variant for step in session.report().steps)

    variants: set[str] = set()
    run(model(4))  # what is made once a process
    small, large = (lines_run(run, model(count)) for count in (60, 240))
    assert large < 6 * small
    assert sorted(variants) == sorted({"numpy", instruction_set().value})


def test_numbers_of_code_are_told_apart_by_their_bits(instructions: InstructionSet) -> None:
    """Code is kept for the next model: that of a factor 0 is not that of a factor -0."""
    for factor in (0.0, -0.0, np.nan, 0.0):
        sketch = Sketch("factor")
        doubled = sketch.node("Abs", sketch.input("x", (3,)))
        model = save_graph(sketch.finish(sketch.node("Mul", doubled, sketch.constant(np.float32(factor)))))
        with vkml.InferenceSession(model, devices="cpu") as session:
            [found] = session.run(None, {"x": np.ones(3, np.float32)})
        np.testing.assert_array_equal(np.signbit(found), np.signbit(np.full(3, factor)))
        np.testing.assert_array_equal(found, np.full(3, factor, np.float32))
