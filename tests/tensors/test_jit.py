"""Captured functions: what they compute, write and refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, optim
from vkml.errors import CaptureError

Array = np.ndarray[Any, Any]
OPTIMIZERS: dict[str, Callable[[list[Tensor]], optim.Optimizer]] = {
    "sgd": lambda params: optim.SGD(params, lr=0.1, momentum=0.5),
    "adam": lambda params: optim.Adam(params, lr=0.1, weight_decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_that_are_not_captured(device_name: str, name: str) -> None:
    def trained(wrap: Callable[[Any], Any]) -> tuple[list[float], Array]:
        weight = vkml.zeros(3, requires_grad=True, device=device_name)
        optimizer = OPTIMIZERS[name]([weight])

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = ((weight - x) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        act = wrap(step)
        losses = [
            act(vkml.tensor([1.0, 2.0, 3.0 + number % 3], device=device_name)).item() for number in range(20)
        ]
        return losses, weight.detach().numpy()

    found, weight = trained(vkml.jit)
    wanted, exact = trained(lambda function: function)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_allclose(weight, exact, rtol=1e-5)


def test_the_function_is_called_twice_for_arguments_of_a_kind() -> None:
    calls = []

    @vkml.jit
    def scaled(x: Tensor, factors: dict[str, float], more: Array) -> tuple[Tensor, list[Tensor]]:
        calls.append(x.shape)
        return x * factors["twice"], [x + more, x]

    for number in range(4):
        x = vkml.tensor([1.0, number])
        twice, [total, same] = scaled(x, {"twice": 2.0}, np.full(2, number, np.float32))
        assert twice.tolist() == [2.0, 2.0 * number]
        assert total.tolist() == [1.0 + number, 2.0 * number]
        assert same.tolist() == [1.0, number]
    assert len(calls) == 2
    assert scaled(vkml.ones(2), {"twice": 3.0}, np.zeros(2, np.float32))[0].tolist() == [3.0, 3.0]
    assert len(calls) == 3
    scaled(vkml.ones(5), {"twice": 2.0}, np.zeros(5, np.float32))
    assert len(calls) == 4


def test_what_is_written_is_seen_by_later_runs_and_by_others(device_name: str) -> None:
    total = vkml.zeros(2, device=device_name)
    row = total[0:1]

    @vkml.jit
    def add(x: Tensor) -> Tensor:
        total.add_(x)
        return total * 2

    for number in range(1, 5):
        assert add(vkml.ones(2, device=device_name)).tolist() == [2.0 * number] * 2
        assert total.tolist() == [float(number)] * 2
    assert row.tolist() == [4.0]
    total.zero_()
    assert add(vkml.ones(2, device=device_name)).tolist() == [2.0, 2.0]


def test_one_within_another_is_part_of_it() -> None:
    inner = vkml.jit(lambda x: x + 1)

    @vkml.jit
    def outer(x: Tensor) -> Tensor:
        return inner(x) * inner(x * 2)

    for number in range(5):
        assert outer(vkml.full((2,), float(number))).tolist() == [(number + 1.0) * (2 * number + 1)] * 2
        assert inner(vkml.full((2,), float(number))).tolist() == [number + 1.0] * 2


def test_clones_of_what_is_written_stay(device_name: str) -> None:
    total = vkml.zeros(2, device=device_name)

    @vkml.jit
    def add(x: Tensor) -> None:
        total.add_(x)

    one = vkml.ones(2, device=device_name)
    copies = []
    for _ in range(5):
        add(one)
        copies.append(total.clone())
    assert [copy.tolist()[0] for copy in copies] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert one.tolist() == [1.0, 1.0]

    @vkml.jit
    def take(x: Tensor) -> None:
        total.copy_(x)

    for _ in range(3):
        take(one)
        add(one)
    assert total.tolist() == [2.0, 2.0] and one.tolist() == [1.0, 1.0]


def test_what_a_capture_cannot_repeat() -> None:
    weight = vkml.zeros(2, requires_grad=True)

    @vkml.jit
    def looks(x: Tensor) -> Tensor:
        return x * x.sum().item()

    @vkml.jit
    def adds(x: Tensor) -> Tensor:
        loss = (weight * x).sum()
        loss.backward()
        return loss

    x = vkml.ones(2)
    for function, words in ((looks, "look at"), (adds, "zero_grad")):
        function(x)
        with pytest.raises(CaptureError, match=words):
            function(x)
    assert vkml.ones(1).item() == 1  # nothing is captured any more


def test_tensors_made_within_are_made_anew_each_time() -> None:
    @vkml.jit
    def doubled(x: Tensor) -> Tensor:
        total = vkml.zeros(2)
        total.add_(x)
        total.mul_(2)
        return total + 1

    for number in range(5):
        assert doubled(vkml.full((2,), float(number))).tolist() == [2.0 * number + 1] * 2


def test_detached_state_is_that_of_each_run() -> None:
    state = vkml.ones(2)

    @vkml.jit
    def step(x: Tensor) -> Tensor:
        before = state.detach() * 1
        state.add_(x)
        return before

    assert [step(vkml.ones(2)).tolist()[0] for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_capture_that_fails_leaves_tensors_as_they_were() -> None:
    state, calls, kept = vkml.zeros(2), [0], []

    @vkml.jit
    def looks(x: Tensor) -> Tensor:
        state.add_(x)
        calls[0] += 1
        return x * (x.sum().item() if calls[0] > 1 else 1.0)

    @vkml.jit
    def keeps(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return x

    @vkml.jit
    def draws(x: Tensor) -> Tensor:
        return x + vkml.rand(2)

    x = vkml.ones(2)
    for function, words in ((looks, "look at"), (keeps, "keeps a tensor"), (draws, "random")):
        function(x)
        with pytest.raises(CaptureError, match=words):
            function(x)
    assert state.tolist() == [1.0, 1.0]
