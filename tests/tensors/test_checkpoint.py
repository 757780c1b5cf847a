"""Checkpoints: the same gradients, less memory."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import vkml
from vkml import nn
from vkml.engine import planning
from vkml.errors import NotDifferentiable
from vkml.utils.checkpoint import checkpoint, checkpoint_sequential


def network(device: str, depth: int = 4) -> Any:
    vkml.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(depth)]).to(device)


def test_the_same_gradients(device_name: str) -> None:
    model = network(device_name)
    x = vkml.randn(3, 8, device=device_name, requires_grad=True)
    found = []
    for run in (
        model,
        lambda x: checkpoint(model, x, use_reentrant=False),
        lambda x: checkpoint_sequential(model, 3, x, use_reentrant=False),
        lambda x: checkpoint(lambda a: checkpoint(model[1:], model[0](a)), x),
    ):
        model.zero_grad()
        x.grad = None
        loss = (run(x) ** 2).sum()
        loss.backward()
        grads = [x.grad, *(p.grad for p in model.parameters())]
        found.append([loss.item(), *(g.numpy() for g in grads)])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_second_order() -> None:
    w, x = (vkml.tensor([0.3, -0.7], requires_grad=True) for _ in range(2))
    found = []
    for run in (lambda f, x: f(x), checkpoint):
        y = run(lambda x: (x * w).sin(), x).sum()
        [first] = vkml.autograd.grad(y, x, create_graph=True)
        assert first is not None
        found.append([g.numpy() for g in vkml.autograd.grad(first.sum(), [x, w]) if g is not None])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_nested_results_and_arguments() -> None:
    x, y = vkml.tensor([1.0, 2.0], requires_grad=True), vkml.tensor([3.0, 4.0], requires_grad=True)

    def run(parts: Any, *, factor: float) -> Any:
        return {"a": parts["x"] * parts["y"], "n": 3, "b": [parts["x"] * factor, parts["x"] > 0]}

    made = checkpoint(run, {"x": x * 1, "y": y}, factor=5.0)
    assert made["n"] == 3 and made["b"][1].tolist() == [True, True]
    (made["a"].sum() + made["b"][0].sum()).backward()
    assert x.grad.tolist() == [8.0, 9.0] and y.grad.tolist() == [1.0, 2.0]


def test_the_second_run_draws_the_same_numbers(device_name: str) -> None:
    x = vkml.ones(1000, device=device_name, requires_grad=True)
    y = checkpoint(lambda x: nn.functional.dropout(x, 0.5, True), x)
    following = vkml.rand(2, device=device_name)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
    assert following.numpy().tolist() != vkml.rand(2, device=device_name).numpy().tolist()


def test_tensors_that_were_changed_in_between() -> None:
    w = vkml.ones(2, requires_grad=True)
    x = vkml.ones(2, requires_grad=True)
    y = checkpoint(lambda x: (x * w).sin(), x).sum()
    with vkml.no_grad():
        w.mul_(3)
    with pytest.raises(NotDifferentiable, match="second run"):
        y.backward()


def test_arguments_that_were_changed_in_between() -> None:
    w = vkml.ones(2, requires_grad=True)
    x = vkml.ones(2)
    y = checkpoint(lambda given: (given["x"] * w).sin(), {"x": x}).sum()
    x.mul_(3)
    with pytest.raises(NotDifferentiable, match=r"modified by an inplace operation at .*x\.mul_\(3\)"):
        y.backward()


def test_nothing_to_differentiate() -> None:
    calls = []
    made = checkpoint(lambda x: calls.append(1) or x * 2, vkml.ones(2))
    assert not made.requires_grad and len(calls) == 1
    with vkml.no_grad():
        assert not checkpoint(lambda x: x * 2, vkml.ones(2, requires_grad=True)).requires_grad


def arena(run: Any, device: str) -> int:
    """Bytes of the arenas of the greatest plan that runs."""
    plans: list[Any] = []
    make = planning._make_plan

    def noted(*arguments: Any) -> Any:
        plans.append(make(*arguments))
        return plans[-1]

    with patch.object(planning, "_make_plan", noted):
        run()
    return max(sum(program.arena_bytes for program in each.programs) for each in plans)


def test_memory_is_freed(device_name: str) -> None:
    """Of 24 layers all activations are kept without checkpoints, with them those of a segment."""
    rows, width = 1024, 64
    layers = [nn.Linear(width, width, bias=False) for _ in range(24)]
    model = nn.Sequential(*[nn.Sequential(layer, nn.Tanh()) for layer in layers]).to(device_name)
    x = vkml.randn(rows, width, device=device_name)

    optimizer = vkml.optim.SGD(model.parameters(), lr=1e-3)

    def step(run: Any) -> None:
        optimizer.zero_grad()
        run(x).sum().backward()
        optimizer.step()  # which computes both ways in one plan

    whole = arena(lambda: step(model), device_name)
    parts = arena(lambda: step(lambda x: checkpoint_sequential(model, 6, x)), device_name)
    print(parts, whole)
    assert parts < 0.7 * whole


def test_in_a_captured_step(device_name: str) -> None:
    losses = []
    for is_captured in (False, True):
        model = network(device_name)
        optimizer = vkml.optim.SGD(model.parameters(), lr=0.05)

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            made = checkpoint(lambda a: nn.functional.dropout(model(a), 0.2, True), x)
            loss = (made**2).sum()
            loss.backward()
            optimizer.step()
            return loss

        run = vkml.jit(step) if is_captured else step
        vkml.manual_seed(3)
        x = vkml.ones(4, 8, device=device_name)
        losses.append([run(x).item() for _ in range(5)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
