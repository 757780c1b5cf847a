"""Optimizers, step for step against PyTorch's in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from vkml import optim
from vkml.tensors.creation import tensor

torch = pytest.importorskip("torch")
STEPS = 100
LR = {"lr": 0.02}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.5, "dampening": 0.3, "maximize": False}),
    ("Adam", LR),
    ("Adam", {**LR, "betas": (0.8, 0.95), "weight_decay": 0.1, "eps": 1e-6}),
    ("Adam", {**LR, "amsgrad": True, "foreach": False}),
    ("Adam", {**LR, "betas": (0.0, 0.0), "decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("AdamW", {**LR, "weight_decay": 0.1}),
    ("AdamW", {**LR, "amsgrad": True, "maximize": True}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.05, "weight_decay": 0.1, "initial_accumulator_value": 0.3}),
    ("Adagrad", {"lr": 0.1, "eps": 1e-3, "maximize": True}),
    ("RMSprop", LR),
    ("RMSprop", {**LR, "alpha": 0.8, "momentum": 0.9, "weight_decay": 0.1}),
    ("RMSprop", {**LR, "centered": True, "eps": 1e-4}),
    ("RMSprop", {**LR, "centered": True, "momentum": 0.5, "maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}),
    ("Adadelta", {"maximize": True}),
    ("Adamax", LR),
    ("Adamax", {**LR, "betas": (0.7, 0.9), "weight_decay": 0.1, "eps": 1e-4}),
    ("Adamax", {**LR, "maximize": True}),
    ("NAdam", LR),
    ("NAdam", {**LR, "weight_decay": 0.1, "momentum_decay": 0.02, "betas": (0.8, 0.9)}),
    ("NAdam", {**LR, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", LR),
    ("RAdam", {**LR, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-4}),
    ("RAdam", {**LR, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("Adafactor", {"lr": 0.1}),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1, "beta2_decay": -0.5, "eps": (1e-5, 1e-2), "d": 2.0}),
    ("Adafactor", {"lr": 0.01, "maximize": True}),
    ("Rprop", {}),
    ("Rprop", {**LR, "etas": (0.3, 1.1), "step_sizes": (1e-3, 0.05), "maximize": True}),
    ("ASGD", {"lr": 0.1}),
    ("ASGD", {"lr": 0.1, "lambd": 0.05, "alpha": 0.5, "t0": 20, "weight_decay": 0.1}),
    ("ASGD", {"lr": 0.05, "t0": 1, "maximize": True}),
    ("Muon", LR),
    ("Muon", {**LR, "nesterov": False, "weight_decay": 0.01, "momentum": 0.8, "ns_steps": 3}),
    ("Muon", {**LR, "adjust_lr_fn": "match_rms_adamw", "ns_coefficients": (3.0, -3.2, 1.2)}),
]
SHAPES = ((4, 3), (3,), (), (2, 3, 4))
MATRICES = ((4, 3), (3, 5), (6, 6))


@pytest.fixture(autouse=True)
def _doubles() -> Iterator[None]:
    """PyTorch's counters and products of single numbers are of the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def _start(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape) for shape in (MATRICES if name == "Muon" else SHAPES)]


def _walk(
    start: list[np.ndarray], make: Callable[[Any], Any], optimizer: Callable[[Any], Any], steps: int = STEPS
) -> tuple[list[list[np.ndarray]], Any]:
    """What parameters are after each step towards a goal, and the optimizer."""
    rng = np.random.default_rng(4)
    goal = [rng.standard_normal(array.shape) for array in start]
    params = [make(array) for array in start]
    made, path = optimizer(params), []
    for _ in range(steps):
        made.zero_grad()
        # Noise keeps gradients from becoming nothing but rounding, which optimizers make whole steps of.
        off = [p - make(g + rng.standard_normal(g.shape)).detach() for p, g in zip(params, goal, strict=True)]
        loss = sum((x**2).sum() for x in off)
        loss.backward()
        made.step()
        path.append([param.detach().numpy().copy() for param in params])
    return path, made


def _ours(array: np.ndarray) -> Any:
    return tensor(array, requires_grad=True)


def _theirs(array: np.ndarray) -> Any:
    return torch.tensor(array, requires_grad=True)


def _compare(name: str, found: list[list[np.ndarray]], wanted: list[list[np.ndarray]]) -> None:
    # Muon's products are of bfloat16, where the order of a sum decides now and then how it is rounded.
    loose = 2e-3 if name == "Muon" else 1e-8
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=loose, atol=loose, err_msg=f"step {number}")


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_a_hundred_steps(name: str, settings: dict[str, Any]) -> None:
    start = _start(name)
    found, ours = _walk(start, _ours, lambda params: getattr(optim, name)(params, **settings))
    wanted, theirs = _walk(start, _theirs, lambda params: getattr(torch.optim, name)(params, **settings))
    _compare(name, found, wanted)
    mine, state = ours.state_dict(), theirs.state_dict()
    assert [set(group) for group in mine["param_groups"]] == [set(group) for group in state["param_groups"]]
    assert {at: set(found) for at, found in mine["state"].items()} == {
        at: set(found) for at, found in state["state"].items()
    }
    for at, values in state["state"].items():
        for key, value in values.items():
            loose = 1e-2 if name == "Muon" else 1e-6
            np.testing.assert_allclose(
                mine["state"][at][key].numpy(), value.numpy(), rtol=loose, atol=1e-2 * loose, err_msg=key
            )


def test_each_step_of_muon() -> None:
    """From the same parameters and momentum: all but a few elements are the same to the last bits."""
    start = _start("Muon")
    rng = np.random.default_rng(8)
    ours, theirs = [_ours(x) for x in start], [_theirs(x) for x in start]
    steps, their_steps = optim.Muon(ours, lr=0.02), torch.optim.Muon(theirs, lr=0.02)
    off = []
    for _ in range(STEPS):
        for one, other in zip(ours, theirs, strict=True):
            gradient = rng.standard_normal(one.shape)
            with torch.no_grad():
                one.detach_().copy_(other.detach().numpy()).requires_grad_()
            one.grad, other.grad = tensor(gradient), torch.tensor(gradient)
        steps.step()
        their_steps.step()
        off += [
            np.abs(one.detach().numpy() - other.detach().numpy()).ravel()
            for one, other in zip(ours, theirs, strict=True)
        ]
    found = np.concatenate(off)
    assert np.mean(found > 1e-9) < 2e-3
    assert found.max() < 0.02 * np.sqrt(4 / 3) * 2**-6, "more than the last digit of a bfloat16"


def _grouped(module: Any, name: str, **more: Any) -> Callable[[Any], Any]:
    def make(params: list[Any]) -> Any:
        groups = [
            {"params": params[:1], "lr": 0.05},
            {"params": iter(params[1:]), "weight_decay": 0.2},
        ]
        return getattr(module, name)(groups, lr=0.01, **more)

    return make


NAMES = sorted({name for name, _ in SETTINGS})


@pytest.mark.parametrize("name", NAMES)
def test_groups_and_states_of_torchs(name: str) -> None:
    """Groups have their settings; after some steps the other one's state is taken, both ways."""
    start = _start(name)
    found, ours = _walk(start, _ours, _grouped(optim, name), 10)
    wanted, theirs = _walk(start, _theirs, _grouped(torch.optim, name), 10)
    _compare(name, found, wanted)
    state = theirs.state_dict()
    state["state"] = {
        at: {key: value.numpy() for key, value in values.items()} for at, values in state["state"].items()
    }
    back = ours.state_dict()
    back["state"] = {
        at: {key: torch.tensor(value.numpy()) for key, value in values.items()}
        for at, values in back["state"].items()
    }

    def resumed(module: Any, state: Any) -> Callable[[Any], Any]:
        def make(params: list[Any]) -> Any:
            made = _grouped(module, name)(params)
            made.load_state_dict(state)
            return made

        return make

    there = wanted[-1]
    found, _ = _walk(there, _ours, resumed(optim, state), 10)
    wanted, _ = _walk(there, _theirs, resumed(torch.optim, back), 10)
    _compare(name, found, wanted)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("more", [{}, {"max_iter": 4, "history_size": 3, "max_eval": 7}])
def test_lbfgs(search: str | None, more: dict[str, Any]) -> None:
    """Rosenbrock's function of several variables, and as many calls of the closure.

    Steps of a fixed size are chaotic there: after some 75 calls rounding grows tenfold with each.
    """
    count = 3 if search is None else 8
    rng = np.random.default_rng(0)
    start = [rng.standard_normal(4), rng.standard_normal((2, 3))]

    def walk(make: Callable[[Any], Any], optimizer: Any) -> tuple[list[Any], list[float], Any]:
        params = [make(array) for array in start]
        lr = 0.02 if search is None else 1.0
        steps = optimizer(params, lr=lr, line_search_fn=search, **more)
        path, losses = [], []

        def closure() -> Any:
            steps.zero_grad()
            x, y = params[0], params[1].reshape(-1)
            loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
            loss = loss + ((y - 1) ** 2 * (1 + y**2)).sum()
            loss.backward()
            return loss

        for _ in range(count):
            losses.append(float(steps.step(closure).detach()))
            path.append([param.detach().numpy().copy() for param in params])
        return path, losses, next(iter(steps.state.values()))

    found, losses, state = walk(_ours, optim.LBFGS)
    wanted, theirs, their_state = walk(_theirs, torch.optim.LBFGS)
    np.testing.assert_allclose(losses, theirs, rtol=1e-6, atol=1e-15)
    for ours, other in zip(found, wanted, strict=True):
        for one, two in zip(ours, other, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-9)
    for key in ("func_evals", "n_iter"):
        assert state[key] == their_state[key]
    if search and not more:
        assert losses[-1] < 1e-6 * losses[0]


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
