"""Several threads that use the same tensors and captured functions."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkml
from tests.patience import patience
from tests.robustness.test_threads import in_threads
from vkml import Tensor
from vkml.tensors.capture_cache import CaptureCache
from vkml.tensors.open_captures import Family
from vkml.tracing import evaluation


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns at the interpreter as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_look_at_what_is_not_computed_yet(either_device_name: str, frequent_switches: None) -> None:
    values = np.arange(64, dtype=np.float32)
    start = vkml.tensor(values, device=either_device_name)
    for _ in range(100):
        shared = (start * 2 + 1) / 4

        def look(number: int, shared: Tensor = shared) -> None:
            x = shared if number else shared + 1  # of which the other is a part
            np.testing.assert_array_equal(x.numpy(), (values * 2 + 1) / 4 + (not number))

        in_threads(look, 3)


def test_what_one_thread_computes_another_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers among them: they are not drawn again."""
    run, runs = evaluation.Program.run, []
    began, goes_on = threading.Event(), threading.Event()

    def slow(self: evaluation.Program, *arguments: Any) -> Any:
        runs.append(threading.get_ident())
        began.set()
        assert goes_on.wait(patience(60))
        return run(self, *arguments)

    monkeypatch.setattr(evaluation.Program, "run", slow)
    drawn = vkml.rand(50)
    more = drawn * 2
    found: dict[str, Any] = {}
    first = threading.Thread(target=lambda: found.update(first=drawn.numpy()))
    first.start()
    assert began.wait(patience(60))
    second = threading.Thread(target=lambda: found.update(second=more.numpy()))
    second.start()
    second.join(0.3)
    assert second.is_alive() and len(runs) == 1
    other = (vkml.tensor([1.0]) + 1).relu()
    third = threading.Thread(target=lambda: found.update(third=other.numpy()))
    third.start()
    goes_on.set()
    for thread in (first, second, third):
        thread.join()
    np.testing.assert_array_equal(found["second"], found["first"] * 2)
    assert found["third"] == [2] and not evaluation._under_way


def test_an_evaluation_that_fails_lets_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run, failures = evaluation.Program.run, [KeyboardInterrupt]

    def failing(self: evaluation.Program, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return run(self, *arguments)

    monkeypatch.setattr(evaluation.Program, "run", failing)
    x = vkml.tensor([1.0, 2.0]) * 3
    with pytest.raises(KeyboardInterrupt):
        x.numpy()
    assert not evaluation._under_way
    in_threads(lambda number: np.testing.assert_array_equal(x.numpy(), [3, 6]), 2)


def test_a_step_holds_what_it_writes_while_it_waits(vulkan_device_name: str) -> None:
    """Another thread gives its parameters other values, and another tensor the memory that they had."""
    one = vkml.tensor(np.ones((64, 64), np.float32), device=vulkan_device_name)
    first, second = one * 1, one * 1
    for each in (first, second):
        each.numpy()

    @vkml.jit(device=vulkan_device_name)
    def step(x: Tensor) -> Tensor:
        with vkml.no_grad():
            first.add_(x)
            second.add_(x)
            return first.sum() + second.sum()

    x = np.ones((64, 64), np.float32)
    for _ in range(4):
        step(x)
    [captured] = [kept.capture for kept in step._captures._kept.values()]
    shortcut = captured._shortcut
    assert shortcut is not None
    waits, goes_on = threading.Event(), threading.Event()
    call = shortcut._call

    def late(arrays: Any) -> Any:
        waits.set()
        assert goes_on.wait(patience(60))
        return call(arrays)

    shortcut._call = late
    thread = threading.Thread(target=step, args=(x,))
    thread.start()
    assert waits.wait(patience(60))
    with vkml.no_grad():
        first.copy_(one * 5)
        second.copy_(one * 5)
    for each in (first, second):
        each.numpy()
    others = [one * 7 for _ in range(4)]
    for other in others:
        other.sum().item()
    goes_on.set()
    thread.join()
    assert all((other.numpy() == 7).all() for other in others)


def test_threads_drop_and_note_the_same_captures(frequent_switches: None) -> None:
    captures: CaptureCache[int] = CaptureCache()

    def use(number: int) -> None:
        for turn in range(3000):
            key = turn % 40
            if captures.get(key) is None and captures.is_due(key):
                captures.put(key, number)
            captures.drop(key)

    in_threads(use, 3)
    family: Family[int] = Family(None)

    def note(number: int) -> None:
        for turn in range(3000):
            family.is_due((((turn * 7 + number) % 300, 4),))

    in_threads(note, 3)
