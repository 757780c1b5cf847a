"""Captured functions follow modules, leaves and optimizers whose structure changes after the capture."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn, optim
from vkml.tensors.capture_cache import MOST, PATIENCE

CALLS = 3
"""The first is not captured, the second captures, the third runs the capture."""


def test_a_captured_forward_pass_follows_eval_and_train() -> None:
    dropout = nn.Dropout(0.5)
    act = vkml.jit(lambda x: dropout(x))
    ones = vkml.ones(200)
    for _ in range(CALLS):
        assert (act(ones) == 0).any().item()
    dropout.eval()
    for _ in range(CALLS):
        assert act(ones).tolist() == [1.0] * 200
    dropout.training = True
    for _ in range(CALLS):
        assert (act(ones) == 0).any().item()


def model_and_step(make: Callable[..., optim.Optimizer]) -> tuple[nn.Sequential, optim.Optimizer, Any]:
    vkml.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = make(model.parameters())

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def replaced(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model[2] = nn.Linear(4, 2, bias=False).requires_grad_(False)
    nn.init.constant_(model[2].weight, 0.3)


def another_parameter(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model[0].weight = nn.Parameter(vkml.full((4, 3), 0.2), requires_grad=False)


def frozen(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model[0].requires_grad_(False)


def thawed(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model[0].requires_grad_(True)


def hooked(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model[1].register_forward_hook(lambda module, given, made: made * 0.5)


def gradients_hooked(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)


def backward_hooked(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model[1].register_full_backward_hook(lambda module, given, made: (given[0] * 0.5,))


def table_written(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model._modules["1"] = nn.Sigmoid()


def another_group(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model.add_module("more", nn.Linear(2, 2))
    nn.init.constant_(model.more.weight, 0.1)
    nn.init.zeros_(model.more.bias)
    optimizer.add_param_group({"params": list(model.more.parameters()), "lr": 0.01})


def more_params(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model.add_module("more", nn.Linear(2, 2, bias=False))
    nn.init.constant_(model.more.weight, 0.1)
    optimizer.param_groups[0]["params"].append(model.more.weight)


def state_loaded(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def state_cleared(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    optimizer.state.clear()


CHANGES = (
    replaced, another_parameter, frozen, hooked, gradients_hooked, backward_hooked, table_written,
    another_group, more_params, state_loaded, state_cleared,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_captured_step_does_what_the_step_does_now(change: Callable[..., None]) -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[Any]:
        model, optimizer, step = model_and_step(lambda params: optim.Adam(params, lr=0.05))
        act = wrap(step)
        xs = [
            vkml.tensor(np.random.default_rng(at).standard_normal((5, 3)).astype(np.float32))
            for at in range(9)
        ]
        losses = [act(x).item() for x in xs[:4]]
        change(model, optimizer)
        losses += [act(x).item() for x in xs[4:]]
        return [losses, *(value.detach().tolist() for value in model.state_dict().values())]

    for found, wanted in zip(trained(vkml.jit), trained(lambda step: step), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_captured_step_freezes_and_thaws() -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[Any]:
        model, optimizer, step = model_and_step(lambda params: optim.SGD(params, lr=0.05, momentum=0.9))
        frozen(model, optimizer)
        act, x = wrap(step), vkml.ones(2, 3)
        for turn in range(3):
            for _ in range(CALLS):
                act(x)
            (thawed if turn % 2 == 0 else frozen)(model, optimizer)
        return [value.detach().tolist() for value in model.state_dict().values()]

    for found, wanted in zip(trained(vkml.jit), trained(lambda step: step), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_what_changes_elsewhere_costs_no_capture() -> None:
    calls = []
    model = nn.Linear(2, 2)

    @vkml.jit
    def act(x: Tensor) -> Tensor:
        calls.append(1)
        return model(x)

    other = nn.Sequential(nn.Linear(2, 2))
    with vkml.no_grad():
        for _ in range(5):
            act(vkml.ones(1, 2))
            other.eval()
            other[0].weight.requires_grad_(False)
            other.append(nn.ReLU())
    assert len(calls) == 2


def test_methods_are_captured_for_each_object() -> None:
    class Trainer:
        def __init__(self, start: float) -> None:
            self.weight = vkml.tensor([start], requires_grad=True)
            self.optimizer = optim.SGD([self.weight], lr=0.5)
            self.calls = 0

        @vkml.jit
        def step(self, x: Tensor) -> Tensor:
            """One step."""
            self.calls += 1
            self.optimizer.zero_grad()
            loss = (self.weight * x).sum()
            loss.backward()
            self.optimizer.step()
            return loss

    class Other(Trainer):
        @vkml.jit
        def step(self, x: Tensor) -> Tensor:
            return super().step.__wrapped__(x * 2)

    for kind, factor in ((Trainer, 1), (Other, 2)):
        first, second = kind(1.0), kind(10.0)
        for _ in range(4):
            first.step(vkml.ones(1))
            second.step(vkml.ones(1))
        assert first.weight.item() == 1.0 - 2 * factor and second.weight.item() == 10.0 - 2 * factor
        assert first.calls == second.calls == 2
    assert Trainer.step.__doc__ == "One step."


def test_what_is_captured_is_copied_without_its_captures() -> None:
    model = nn.Linear(2, 2)
    model.compile()
    with vkml.no_grad():
        for _ in range(CALLS):
            before = model(vkml.ones(1, 2))
        copied = copy.deepcopy(model)
        copied.weight.zero_()
        copied.bias.fill_(3.0)
        for _ in range(CALLS):
            assert copied(vkml.ones(1, 2)).tolist() == [[3.0, 3.0]]
        assert model(vkml.ones(1, 2)).tolist() == before.tolist()


def test_anomalies_are_found_in_what_is_captured() -> None:
    weight = vkml.tensor([-1.0], requires_grad=True)

    @vkml.jit
    def step(x: Tensor) -> Tensor:
        weight.grad = None
        loss = (weight * x).log().sum()
        loss.backward()
        return loss

    for _ in range(CALLS):
        step(np.ones(1, np.float32))
    with vkml.autograd.detect_anomaly(), pytest.raises(vkml.AnomalyFound, match="Log makes NaN"):
        step(np.ones(1, np.float32))
    assert step(-np.ones(1, np.float32)).item() == 0.0


def test_more_forms_than_are_kept_do_not_throw_each_other_out() -> None:
    calls = 0

    @functools.partial(vkml.jit, dynamic=False)
    def act(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return (x * 2).sum()

    def turn(sizes: range) -> int:
        before = calls
        for size in sizes:
            assert act(vkml.ones(size)).item() == 2 * size
        return calls - before

    many = range(1, 3 * MOST + 1)
    turn(many)  # seen
    assert turn(many) == len(many)  # captured, or as it is written
    assert [turn(many) for _ in range(3)] == [len(many) - MOST] * 3
    # Others that come instead get their room.
    others = range(100, 100 + MOST)
    for _ in range(2 + PATIENCE // MOST):
        turn(others)
    assert turn(others) == 0


def test_leaves_that_a_capture_makes_are_its_own() -> None:
    """A penalty of gradients by the inputs, as of Wasserstein critics."""

    def trained(wrap: Callable[[Any], Any]) -> list[Any]:
        vkml.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))
        optimizer = optim.Adam(model.parameters(), lr=1e-2)

        def step(x: Tensor) -> Tensor:
            x = x.clone().requires_grad_()
            optimizer.zero_grad()
            (slope,) = vkml.autograd.grad(model(x).sum(), x, create_graph=True)
            loss = ((slope.norm(dim=1) - 1) ** 2).mean() + model(x).mean()
            loss.backward()
            optimizer.step()
            return loss + (x.grad**2).sum()

        act = wrap(step)
        losses = [act(vkml.tensor(np.full((3, 4), at, np.float32))).item() for at in range(5)]
        return [losses, *(value.detach().tolist() for value in model.state_dict().values())]

    for found, wanted in zip(trained(vkml.jit), trained(lambda step: step), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def check_change(change: Callable[[nn.Sequential], Any]) -> None:
    """A captured model gives what the model gives, of its type and where it is, after a change of that."""
    vkml.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2))
    act = vkml.jit(lambda places: model(places.to(model[1].weight.device)))
    places = vkml.tensor([[1, 2, 3]])
    with vkml.no_grad():
        for _ in range(CALLS):
            act(places)
        change(model)
        wanted = model(places.to(model[1].weight.device))
        for _ in range(CALLS):
            found = act(places)
            assert (found.dtype, found.device, found.shape) == (wanted.dtype, wanted.device, wanted.shape)
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5)


def of_other_sizes(model: nn.Sequential) -> None:
    model[1].weight.data = vkml.zeros(3, 4)
    model[1].bias.data = vkml.arange(3.0)


@pytest.mark.parametrize("change", [nn.Module.half, nn.Module.double, of_other_sizes])
def test_parameters_of_another_type(change: Callable[[nn.Sequential], Any]) -> None:
    check_change(change)


def test_parameters_elsewhere(vulkan_device_name: str) -> None:
    check_change(lambda model: model.to(vulkan_device_name))
