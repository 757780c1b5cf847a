"""Sizes that grow by the same number are bound before they come, while the device works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml.onnx
from vkml import InferenceSession, OrtValue
from vkml.engine.binding import Addresses, Binding
from vkml.engine.recorded import RecordedProgram
from vkml.engine.sketch import Sketch

Array = np.ndarray[Any, Any]
ENDS = np.array([0]), np.array([1])


def growing() -> bytes:
    """What was, with one row more; and its sums."""
    sketch = Sketch("growing", 17)
    past, row = sketch.input("past", ("n", 6)), sketch.input("row", (1, 6))
    present = sketch.node("Concat", past, row, axis=0)
    axes = sketch.constant(np.array([0]))
    return vkml.onnx.save_graph(sketch.finish(present, sketch.node("ReduceSum", present, axes)))


class Watch:
    """Counts how runs find their bindings: there already, or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[bool] = []
        self.is_preparing = False
        bind, prepare, make_room = (
            RecordedProgram.bind,
            RecordedProgram.prepare_next,
            RecordedProgram._make_room,
        )
        watch = self

        def noting(self: RecordedProgram, values: tuple[int, ...], outside: Addresses = ()) -> Binding:
            if self.program.symbols and not watch.is_preparing:
                watch.found.append((values, outside) in self._bindings)
            return bind(self, values, outside)

        def preparing(self: RecordedProgram, running: Binding) -> None:
            watch.is_preparing = True
            try:
                prepare(self, running)
            finally:
                watch.is_preparing = False

        def making(self: RecordedProgram, *given: Any) -> Any:
            assert not watch.is_preparing, "memory is made anew under a run"
            return make_room(self, *given)

        monkeypatch.setattr(RecordedProgram, "bind", noting)
        monkeypatch.setattr(RecordedProgram, "prepare_next", preparing)
        monkeypatch.setattr(RecordedProgram, "_make_room", making)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def rows(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-9, 9, (count, 6)).astype(np.float32)


def check(session: InferenceSession, count: int) -> None:
    past, row = rows(count), rows(1, count)
    present, sums = session.run(None, {"past": past, "row": row})
    whole = np.concatenate([past, row])
    np.testing.assert_array_equal(present, whole)
    np.testing.assert_allclose(sums, whole.sum(0, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("step", [1, 3, -2])
def test_what_grows_is_there_before_it_comes(vulkan_device_name: str, watch: Watch, step: int) -> None:
    with InferenceSession(growing(), devices=vulkan_device_name) as session:
        for at in range(40):
            check(session, 90 + at * step)
    assert sum(watch.found[4:]) >= 33  # but where memory had to grow


def test_other_sizes_than_expected(vulkan_device_name: str, watch: Watch) -> None:
    with InferenceSession(growing(), devices=vulkan_device_name) as session:
        for count in (9, 10, 11, 12, 40, 41, 42, 7, 5, 3, 100, 101, 102, 102, 102, 8, 6, 4, 2, 1, 8):
            check(session, count)


def test_values_on_the_device_take_turns(vulkan_device_name: str, watch: Watch) -> None:
    """What one run returns is fed to the next, as keys and values of a text are."""
    with InferenceSession(growing(), devices=vulkan_device_name) as session:
        name, sums = [value.name for value in session.get_outputs()]
        start = rows(80)
        binding, expected = session.io_binding(), start
        past = OrtValue.ortvalue_from_numpy(start, vulkan_device_name)
        for at in range(40):
            row = rows(1, at)
            binding.bind_ortvalue_input("past", past)
            binding.bind_cpu_input("row", row)
            binding.bind_output(name, vulkan_device_name)
            binding.bind_output(sums)
            session.run_with_iobinding(binding)
            past, found = binding.get_outputs()
            expected = np.concatenate([expected, row])
            np.testing.assert_array_equal(past.numpy(), expected)
            np.testing.assert_allclose(found.numpy(), expected.sum(0, keepdims=True), rtol=1e-6)
    assert sum(watch.found[4:]) >= 20


def test_an_interrupt_while_the_next_sizes_are_bound(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with InferenceSession(growing(), devices=vulkan_device_name) as session:
        for count in (20, 21, 22):
            check(session, count)

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(RecordedProgram, "prepare_next", interrupted)
            with pytest.raises(KeyboardInterrupt):
                check(session, 23)
        for count in (23, 24, 25, 20):
            check(session, count)


def test_sizes_for_which_there_is_no_plan_are_not_expected(vulkan_device_name: str, watch: Watch) -> None:
    """With n rows of x there are 100 - n of the second output: for 110 nothing can be bound."""
    sketch = Sketch("shrinking", 17)
    x, most = sketch.input("x", ("n", 6)), sketch.constant(np.array([100]))
    rest = sketch.node(
        "Sub", most, sketch.node("Slice", sketch.node("Shape", x), *map(sketch.constant, ENDS))
    )
    wide = sketch.node("Concat", rest, sketch.constant(np.array([6])), axis=0)
    ones = sketch.node("Expand", sketch.constant(np.ones((1, 6), np.float32)), wide)
    model = vkml.onnx.save_graph(sketch.finish(sketch.node("Neg", x), sketch.node("Exp", ones)))
    with InferenceSession(model, devices=vulkan_device_name) as session:
        for count in range(38, 99, 12):
            given = rows(count)
            negative, rest_of_rows = session.run(None, {"x": given})
            np.testing.assert_array_equal(negative, -given)
            assert rest_of_rows.shape == (100 - count, 6)
