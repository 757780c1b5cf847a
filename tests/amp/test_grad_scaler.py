"""Scaled losses: overflow leaves steps out, the scale grows and falls, all of it in captures, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import GradScaler, optim

OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "SGD": lambda m, p: m.SGD(p, lr=0.1),
    "SGD momentum": lambda m, p: m.SGD(p, lr=0.1, momentum=0.9),
    "SGD dampened": lambda m, p: m.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "Adam": lambda m, p: m.Adam(p, lr=0.1, amsgrad=True),
    "RMSprop": lambda m, p: m.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "NAdam": lambda m, p: m.NAdam(p, lr=0.1),
    "Adagrad": lambda m, p: m.Adagrad(p, lr=0.1),
}
FACTORS = [float("inf"), 1.0, 2.0, float("nan"), 0.5, -1.0, 3.0, 1.0, float("-inf"), 2.0]


def _trained(
    module: Any, make: Any, scaler: Any, name: str, wrap: Any, factor: Any
) -> tuple[list[Any], list[float]]:
    weight = make([1.0, -2.0])
    optimizer = OPTIMIZERS[name](module, [weight])

    def step(factor: Any) -> None:
        optimizer.zero_grad()
        scaler.scale((weight * weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    act, path, scales = wrap(step), [], []
    for number in FACTORS:
        act(factor(number))
        path.append(weight.detach().numpy().copy())
        scales.append(scaler.get_scale())
    return path, scales


SETTINGS = {"init_scale": 4.0, "growth_interval": 2, "growth_factor": 4.0, "backoff_factor": 0.25}


@pytest.mark.parametrize(
    ("name", "is_captured"),
    # Momentum that is dampened begins in a step that is not captured.
    [(name, how) for name in OPTIMIZERS for how in (False, True) if name != "SGD dampened" or not how],
)
def test_against_torch(device_name: str, name: str, is_captured: bool) -> None:
    """The first step overflows, too, before there is any state."""
    torch = pytest.importorskip("torch")
    wanted, scales = _trained(
        torch.optim, lambda x: torch.tensor(x, requires_grad=True), torch.amp.GradScaler("cpu", **SETTINGS),
        name, lambda act: act, torch.tensor,
    )  # fmt: skip
    found, ours = _trained(
        optim, lambda x: vkml.tensor(x, device=device_name, requires_grad=True), GradScaler(**SETTINGS),
        name, vkml.jit if is_captured else lambda act: act,
        lambda number: vkml.tensor(number, device=device_name),
    )  # fmt: skip
    assert ours == scales
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_without_torch(device_name: str) -> None:
    weight = vkml.tensor([2.0], device=device_name, requires_grad=True)
    optimizer, scaler = optim.SGD([weight], lr=0.5), GradScaler(init_scale=8.0, growth_interval=2)
    for factor, value, scale in ((1.0, 1.5, 8.0), (float("inf"), 1.5, 4.0), (1.0, 1.0, 4.0), (1.0, 0.5, 8.0)):
        optimizer.zero_grad()
        loss = scaler.scale((weight * factor).sum())
        loss.backward()
        scaler.unscale_(optimizer)
        if np.isfinite(factor):
            assert weight.grad is not None and weight.grad.item() == 1.0
        scaler.step(optimizer)
        scaler.update()
        assert (weight.item(), scaler.get_scale()) == (value, scale)


def test_order_and_settings() -> None:
    weight = vkml.ones(1, requires_grad=True)
    optimizer, scaler = optim.SGD([weight], lr=0.5), GradScaler()
    with pytest.raises(RuntimeError, match=r"scaler\.scale"):
        scaler.step(optimizer)
    one, [other, more] = scaler.scale((weight.sum(), [weight.sum(), weight * 2]))
    assert one.item() == other.item() == 2.0**16 and more.item() == 2.0**17
    with pytest.raises(RuntimeError, match="No inf checks"):
        scaler.step(optimizer)
    scaler = GradScaler()
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="after step"):
        scaler.unscale_(optimizer)
    scaler.update(3.0)
    assert scaler.get_scale() == 3.0
    state = scaler.state_dict()
    assert set(state) == {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
    again = GradScaler(init_scale=1.0)
    again.load_state_dict(state)
    assert again.scale(vkml.ones(1)).item() == 3.0
    scaler.load_state_dict({**state, "scale": 5.0})
    assert scaler.get_scale() == 5.0
    with pytest.raises(RuntimeError, match="empty"):
        again.load_state_dict({})
    with pytest.raises(RuntimeError, match="Closure"):
        scaler.step(optimizer, closure=lambda: None)
    for wrong in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}):
        with pytest.raises(ValueError):
            GradScaler(**wrong)
    half = vkml.ones(1, dtype=vkml.float16, requires_grad=True)
    narrow = optim.SGD([half], lr=0.1)
    GradScaler().scale(half.sum())
    half.grad = vkml.ones(1, dtype=vkml.float16)
    with pytest.raises(ValueError, match="FP16"):
        scaler.unscale_(narrow)


def test_off() -> None:
    weight = vkml.ones(1, requires_grad=True)
    optimizer, scaler = optim.SGD([weight], lr=0.5), GradScaler(enabled=False)
    loss = weight.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert weight.item() == 0.5 and scaler.get_scale() == 1.0 and scaler.state_dict() == {}


def test_optimizers_that_look_themselves() -> None:
    """LBFGS' step is left out by the host, and so is a dampened first one."""
    weight = vkml.ones(1, requires_grad=True)
    for optimizer in (optim.LBFGS([weight]), optim.SGD([weight], lr=0.1, momentum=0.9, dampening=0.5)):
        scaler = GradScaler()
        scaler.scale((weight * float("inf")).sum()).backward()
        assert scaler.step(optimizer) is None
        scaler.update()
        assert weight.item() == 1.0 and not optimizer.state and scaler.get_scale() == 2.0**15


def test_several_optimizers() -> None:
    one, other = (vkml.ones(1, requires_grad=True) for _ in range(2))
    optimizers = [optim.SGD([one], lr=0.5), optim.SGD([other], lr=0.5)]
    scaler = GradScaler()
    scaler.scale((one + other * float("inf")).sum()).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert (one.item(), other.item(), scaler.get_scale()) == (0.5, 1.0, 2.0**15)
