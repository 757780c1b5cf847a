"""Gradients of what is deeper than is left pending: computed together, not one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml.tensors import tensor as tensors
from vkml.tracing import evaluation

LAYERS = 16


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each run; what is deeper than 12 stays not pending: drivers compile long chains slowly."""
    monkeypatch.setattr(tensors, "MOST_PENDING", 12)
    found: list[int] = []
    act = evaluation._evaluate

    def counted(*given: Any) -> None:
        found.append(len(found))
        act(*given)

    monkeypatch.setattr(evaluation, "_evaluate", counted)
    return found


def _by_backward(loss: Any, weights: list[Any]) -> list[Any]:
    loss.backward()
    return [weight.grad for weight in weights]


def _by_grad(loss: Any, weights: list[Any]) -> list[Any]:
    return list(vkml.autograd.grad(loss, weights))


@pytest.mark.parametrize("gradients", [_by_backward, _by_grad])
def test_they_are_computed_together(
    gradients: Callable[[Any, list[Any]], list[Any]], runs: list[int], device_name: str
) -> None:
    values = np.linspace(0.5, 1.5, LAYERS).astype(np.float32)
    weights = [vkml.tensor(value, device=device_name, requires_grad=True) for value in values]
    x = vkml.tensor([0.1, 0.2], device=device_name)
    for weight in weights:
        x = (x * weight).sin()
    loss = x.sum()
    forward = len(runs)
    found = gradients(loss, weights)
    assert len(runs) - forward <= 1, f"{len(runs) - forward} runs for the gradients"
    wanted, inner, at = np.zeros(LAYERS), [], np.array([0.1, 0.2])
    for value in values.astype(np.float64):
        inner.append(at)
        at = np.sin(at * value)
    back = np.ones(2)
    for layer in range(LAYERS - 1, -1, -1):
        back = back * np.cos(inner[layer] * values[layer])
        wanted[layer] = (back * inner[layer]).sum()
        back = back * values[layer]
    np.testing.assert_allclose([one.item() for one in found], wanted, rtol=1e-4)
    assert loss.item() == pytest.approx(at.sum(), rel=1e-5)
    assert len(runs) - forward <= 2, "gradients were computed again"
