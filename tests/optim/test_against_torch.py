"""Optimizers, step for step against PyTorch's in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vkml import optim
from vkml.tensors.creation import tensor

torch = pytest.importorskip("torch")
STEPS = 100
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.5, "dampening": 0.3, "maximize": False}),
    ("Adam", {"lr": 0.02}),
    ("Adam", {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1, "eps": 1e-6}),
    ("Adam", {"lr": 0.02, "amsgrad": True}),
    ("AdamW", {"lr": 0.02, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_a_hundred_steps(name: str, settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    start = [rng.standard_normal(shape) for shape in ((4, 3), (3,), ())]
    goal = [rng.standard_normal(array.shape) for array in start]

    def walk(make: Callable[[Any], Any], optimizer: Any) -> list[list[np.ndarray]]:
        params = [make(array) for array in start]
        steps = optimizer(params, **settings)
        path = []
        for _ in range(STEPS):
            steps.zero_grad()
            loss = sum(((p - make(g).detach()) ** 4).sum() for p, g in zip(params, goal, strict=True))
            loss.backward()
            steps.step()
            path.append([param.detach().numpy().copy() for param in params])
        return path

    found = walk(lambda array: tensor(array, requires_grad=True), getattr(optim, name))
    wanted = walk(lambda array: torch.tensor(array, requires_grad=True), getattr(torch.optim, name))
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12, err_msg=f"step {number}")


def test_wrong_arguments() -> None:
    x = tensor([1.0], requires_grad=True)
    for wrong in ({"lr": -1.0}, {"momentum": -0.1}, {"nesterov": True}):
        with pytest.raises(ValueError):
            optim.SGD([x], **wrong)
    with pytest.raises(ValueError, match="at least one"):
        optim.SGD([])
    with pytest.raises(TypeError, match="tensors"):
        optim.SGD([1.0])
    with pytest.raises(ValueError, match="leaves"):
        optim.SGD([x * 2])
    with pytest.raises(ValueError, match="several groups"):
        optim.SGD([{"params": x}, {"params": [x]}])


def test_groups_have_settings_of_their_own_and_states_travel() -> None:
    one, other = (tensor([1.0, 2.0], requires_grad=True) for _ in range(2))

    def step(steps: optim.SGD) -> None:
        steps.zero_grad()
        (one.sum() + other.sum()).backward()
        steps.step()

    steps = optim.SGD([{"params": [one]}, {"params": [other], "lr": 0.5}], lr=0.1, momentum=0.9)
    step(steps)
    np.testing.assert_allclose(one.detach().numpy(), [0.9, 1.9], rtol=1e-6)
    np.testing.assert_allclose(other.detach().numpy(), [0.5, 1.5], rtol=1e-6)
    state = steps.state_dict()
    again = optim.SGD([{"params": [one]}, {"params": [other]}], lr=7.0)
    again.load_state_dict(state)
    step(again)
    np.testing.assert_allclose(one.detach().numpy(), [0.9 - 0.19, 1.9 - 0.19], rtol=1e-6)
    np.testing.assert_allclose(other.detach().numpy(), [0.5 - 0.95, 1.5 - 0.95], rtol=1e-6)
