"""Optimizers against their formulas in NumPy, on all devices, eager and captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, optim
from vkml.errors import CaptureError

Array = np.ndarray[Any, Any]
Formula = Callable[[Array], Iterator[tuple[Array, None]]]
START = np.array([[1.0, -2.0, 0.5], [0.1, 3.0, -0.7]])
STEPS = 12


def _gradients() -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(START.shape) for _ in range(STEPS)]


def _sgd(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    s["m"] = 0.9 * s["m"] + g if t > 1 else g
    return p - 0.1 * s["m"]


def _adamw(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.99 * s.get("v", 0) + 0.01 * g * g
    root = np.sqrt(s["v"] / (1 - 0.99**t)) + 1e-8
    return p * (1 - 0.1 * 0.05) - 0.1 * s["m"] / (1 - 0.9**t) / root


def _adagrad(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    s["v"] = s.get("v", 0.25) + g * g
    return p - 0.1 / (1 + (t - 1) * 0.1) * g / (np.sqrt(s["v"]) + 1e-10)


def _rmsprop(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g * g
    s["a"] = 0.9 * s.get("a", 0) + 0.1 * g
    s["m"] = 0.5 * s.get("m", 0) + g / (np.sqrt(s["v"] - s["a"] ** 2) + 1e-2)
    return p - 0.02 * s["m"]


def _adadelta(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g * g
    step = np.sqrt(s.get("u", 0) + 1e-6) / np.sqrt(s["v"] + 1e-6) * g
    s["u"] = 0.9 * s.get("u", 0) + 0.1 * step * step
    return p - step


def _adamax(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["u"] = np.maximum(0.99 * s.get("u", 0), np.abs(g) + 1e-8)
    return p - 0.1 / (1 - 0.9**t) * s["m"] / s["u"]


def _nadam(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    now, later = (0.9 * (1 - 0.5 * 0.96 ** (at * 4e-3)) for at in (t, t + 1))
    s["p"] = s.get("p", 1) * now
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.99 * s.get("v", 0) + 0.01 * g * g
    root = np.sqrt(s["v"] / (1 - 0.99**t)) + 1e-8
    return p - 0.1 * ((1 - now) * g / (1 - s["p"]) + later * s["m"] / (1 - s["p"] * later)) / root


def _radam(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.99 * s.get("v", 0) + 0.01 * g * g
    mean, most = s["m"] / (1 - 0.9**t), 2 / (1 - 0.99) - 1
    rho = most - 2 * t * 0.99**t / (1 - 0.99**t)
    if rho <= 5:
        return p - 0.1 * mean
    share = np.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
    return p - 0.1 * mean * share * np.sqrt(1 - 0.99**t) / (np.sqrt(s["v"]) + 1e-8)


def _lion(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    m = s.get("m", 0)
    s["m"] = 0.99 * m + 0.01 * g
    return p * (1 - 0.1 * 0.05) - 0.1 * np.sign(0.9 * m + 0.1 * g)


def _adafactor(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    keep = 1 - t**-0.8
    s["r"] = keep * s.get("r", 0) + (1 - keep) * (g * g).mean(1, keepdims=True)
    s["c"] = keep * s.get("c", 0) + (1 - keep) * (g * g).mean(0, keepdims=True)
    step = g / np.sqrt(s["r"] * s["c"] / s["r"].mean())
    step = step / max(1.0, np.sqrt((step * step).mean()))
    return p - max(1e-3, np.sqrt((p * p).mean())) * min(0.1, t**-0.5) * step


def _rprop(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    agreement = np.sign(g * s.get("g", 0 * g))
    s["s"] = np.clip(s.get("s", 0 * g + 0.01) * np.choose(agreement.astype(int) + 1, [0.5, 1, 1.2]), 1e-6, 50)
    s["g"] = np.where(agreement < 0, 0, g)
    return p - np.sign(s["g"]) * s["s"]


def _asgd(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    eta = 0.1 / (1 + 0.05 * 0.1 * (t - 1)) ** 0.75
    return p * (1 - 0.05 * eta) - eta * g


CASES: dict[str, tuple[Callable[..., optim.Optimizer], Callable[..., Array]]] = {
    "SGD": (lambda params: optim.SGD(params, lr=0.1, momentum=0.9), _sgd),
    "AdamW": (lambda params: optim.AdamW(params, lr=0.1, betas=(0.9, 0.99), weight_decay=0.05), _adamw),
    "Adagrad": (
        lambda params: optim.Adagrad(params, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.25),
        _adagrad,
    ),
    "RMSprop": (
        lambda params: optim.RMSprop(params, lr=0.02, alpha=0.9, eps=1e-2, momentum=0.5, centered=True),
        _rmsprop,
    ),
    "Adadelta": (lambda params: optim.Adadelta(params), _adadelta),
    "Adamax": (lambda params: optim.Adamax(params, lr=0.1, betas=(0.9, 0.99)), _adamax),
    "NAdam": (lambda params: optim.NAdam(params, lr=0.1, betas=(0.9, 0.99)), _nadam),
    "RAdam": (lambda params: optim.RAdam(params, lr=0.1, betas=(0.9, 0.99)), _radam),
    "Rprop": (lambda params: optim.Rprop(params), _rprop),
    "ASGD": (lambda params: optim.ASGD(params, lr=0.1, lambd=0.05), _asgd),
    "Lion": (lambda params: optim.Lion(params, lr=0.1, weight_decay=0.05), _lion),
    "Adafactor": (lambda params: optim.Adafactor(params, lr=0.1), _adafactor),
}


@pytest.mark.parametrize("wrap", ["eager", "captured"])
@pytest.mark.parametrize("name", CASES)
def test_formulas(device_name: str, name: str, wrap: str) -> None:
    make, formula = CASES[name]
    weight = vkml.tensor(START, dtype=vkml.float32, device=device_name, requires_grad=True)
    optimizer = make([weight])

    def step(gradient: Tensor) -> None:
        optimizer.zero_grad()
        (weight * gradient).sum().backward()
        optimizer.step()

    act = step if wrap == "eager" else vkml.jit(step)
    wanted, state = START, {}
    for number, gradient in enumerate(_gradients(), 1):
        act(vkml.tensor(gradient, dtype=vkml.float32, device=device_name))
        wanted = formula(wanted, gradient, state, number)
        np.testing.assert_allclose(
            weight.detach().numpy(), wanted, rtol=2e-4, atol=2e-5, err_msg=f"step {number}"
        )
    for kept in optimizer.state[weight].values():
        assert kept.device == weight.device


def test_muon_makes_orthogonal(device_name: str) -> None:
    """Singular values come near 1, directions stay, tall matrices are as good as wide ones."""
    rng = np.random.default_rng(0)
    for shape in ((6, 4), (4, 6)):
        weight = vkml.zeros(*shape, device=device_name, requires_grad=True)
        gradient = rng.standard_normal(shape).astype(np.float32)
        weight.grad = vkml.tensor(gradient, device=device_name)
        optim.Muon([weight], lr=1.0, weight_decay=0.0).step()
        scale = np.sqrt(max(1, shape[0] / shape[1]))
        step = -weight.detach().numpy() / scale
        values = np.linalg.svd(step, compute_uv=False)
        assert values.min() > 0.6 and values.max() < 1.3
        left, _, right = np.linalg.svd(gradient, full_matrices=False)
        assert np.trace((left @ right).T @ step) > 0.8 * min(shape)
    with pytest.raises(ValueError, match="matrices"):
        optim.Muon([vkml.zeros(3, requires_grad=True)])


def _counting(params: list[Tensor], make: Callable[[list[Tensor]], optim.Optimizer]) -> tuple[Any, Any, Any]:
    """An optimizer, a captured step with it, and how often the step's Python ran."""
    optimizer, calls = make(params), [0]

    @vkml.jit
    def step(gradient: Tensor) -> None:
        calls[0] += 1
        optimizer.zero_grad()
        sum((param * gradient).sum() for param in params).backward()
        optimizer.step()

    return optimizer, step, calls


def test_settings_that_change_are_captured_once_more(device_name: str) -> None:
    """Whatever has been a constant becomes an input when it changes; later changes cost nothing."""
    weight = vkml.zeros(2, device=device_name, requires_grad=True)
    optimizer, step, calls = _counting([weight], lambda params: optim.SGD(params, lr=1.0))
    one, wanted = vkml.ones(2, device=device_name), 0.0
    for rate, count in (
        (1.0, 1),
        (1.0, 2),
        (1.0, 2),
        (0.5, 3),
        (0.25, 3),
        (2.0, 3),
        (2.0, 3),
        (0.0, 4),
        (1.0, 5),
    ):
        optimizer.param_groups[0]["lr"] = rate
        step(one)
        wanted -= rate
        assert weight.tolist() == [wanted] * 2, rate
        assert calls[0] == count, rate


def test_schedules_change_captured_steps(device_name: str) -> None:
    """A scheduler that there is before the capture makes no other one necessary, momentum's likewise."""

    def trained(is_captured: bool) -> tuple[Array, int]:
        weight = vkml.zeros(3, device=device_name, requires_grad=True)
        other = vkml.ones(2, 3, device=device_name, requires_grad=True)
        calls = 0
        optimizer = optim.Adam([{"params": [weight]}, {"params": [other], "weight_decay": 0.1}], lr=0.1)
        schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=STEPS)

        def step(goal: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = ((weight - goal) ** 2).sum() + ((other * goal) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        act = vkml.jit(step) if is_captured else step
        for number in range(STEPS):
            act(vkml.tensor([1.0, 2.0, 3.0 + number % 2], device=device_name))
            schedule.step()
        return np.concatenate([weight.detach().numpy(), other.detach().numpy().ravel()]), calls

    found, calls = trained(True)
    wanted, _ = trained(False)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert calls == 2


def test_a_learning_rate_that_is_a_tensor(device_name: str) -> None:
    rate = vkml.tensor(1.0)
    weight = vkml.zeros(2, device=device_name, requires_grad=True)
    optimizer, step, calls = _counting([weight], lambda params: optim.SGD(params, lr=rate))
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for _ in range(4):
        step(vkml.ones(2, device=device_name))
        schedule.step()
    assert weight.tolist() == [-1.875] * 2
    assert calls == [2] and optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.0625
    with pytest.raises(ValueError, match="one element"):
        optim.SGD([weight], lr=vkml.ones(2))


def test_optimizers_of_a_capture_are_all_watched() -> None:
    """Two of them change at once: one capture more, not two."""
    one, other = (vkml.zeros(1, requires_grad=True) for _ in range(2))
    optimizers = [optim.SGD([one], lr=1.0), optim.Adam([other], lr=1.0)]
    calls = [0]

    @vkml.jit
    def step(x: Tensor) -> None:
        calls[0] += 1
        for optimizer in optimizers:
            optimizer.zero_grad()
        ((one + other) * x).sum().backward()
        for optimizer in optimizers:
            optimizer.step()

    for rate in (1.0, 1.0, 0.5, 0.25):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        step(vkml.ones(1))
    assert calls == [3]
    assert one.item() == -2.75


def test_hooks_and_closures() -> None:
    weight = vkml.ones(1, requires_grad=True)
    optimizer = optim.SGD([weight], lr=0.5)
    seen: list[Any] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (weight * 2).sum()
        loss.backward()
        return loss

    def before(of: Any, arguments: Any, named: Any) -> Any:
        seen.append(("before", of is optimizer, weight.item()))
        return (closure,), {}

    removed = optimizer.register_step_pre_hook(before)
    with optimizer.register_step_post_hook(lambda *_: seen.append(("after", weight.item()))):
        assert optimizer.step().item() == 2.0
    assert seen == [("before", True, 1.0), ("after", 0.0)]
    removed.remove()
    removed.remove()
    optimizer.step(closure)
    assert len(seen) == 2 and weight.item() == -1.0
    optimizer.register_step_pre_hook(lambda *_: 3)
    with pytest.raises(RuntimeError, match="pre hook"):
        optimizer.step()

    class Own(optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            seen.append("step")

    own = Own([weight], {})
    own.register_step_post_hook(lambda *_: seen.append("own"))
    own.step()
    assert seen[2:] == ["step", "own"]


def test_lbfgs_without_torch(device_name: str) -> None:
    """A quadratic form in as many steps as it has directions, and what cannot be asked for."""
    rng = np.random.default_rng(2)
    root = rng.standard_normal((5, 5))
    form = vkml.tensor(root @ root.T + np.eye(5), dtype=vkml.float32, device=device_name)
    goal = vkml.tensor(rng.standard_normal(5), dtype=vkml.float32, device=device_name)
    x = vkml.zeros(5, device=device_name, requires_grad=True)
    steps = optim.LBFGS([x], line_search_fn="strong_wolfe", max_iter=30)

    def closure() -> Tensor:
        steps.zero_grad()
        off = x - goal
        loss = (off * (form @ off)).sum()
        loss.backward()
        return loss

    steps.step(closure)
    np.testing.assert_allclose(x.detach().numpy(), goal.numpy(), atol=2e-3)
    with pytest.raises(TypeError, match="closure"):
        steps.step()
    with pytest.raises(ValueError, match="one group"):
        optim.LBFGS([{"params": [x]}, {"params": [goal.clone()]}])
    with pytest.raises(ValueError, match="strong_wolfe"):
        optim.LBFGS([x], line_search_fn="armijo")
    captured = vkml.jit(lambda: steps.step(closure))
    captured()
    with pytest.raises(CaptureError):
        captured()


def test_names_and_sets() -> None:
    one, other = (vkml.ones(1, requires_grad=True) for _ in range(2))
    optimizer = optim.SGD([("one", one), ("other", other)])
    assert optimizer.param_groups[0]["param_names"] == ["one", "other"]
    with pytest.raises(ValueError, match="names"):
        optimizer.add_param_group({"params": [vkml.ones(1, requires_grad=True)]})
    with pytest.raises(TypeError, match="order"):
        optim.SGD([{"params": {one}}])
    with pytest.raises(TypeError, match="iterable"):
        optim.SGD(one)
    assert "lr: 0.001" in repr(optimizer)
    with pytest.raises(ValueError, match="parameters a group"):
        optim.SGD([one]).load_state_dict(optimizer.state_dict())
    with pytest.raises(vkml.NotImplemented, match="differentiable"):
        optim.Adam([one], differentiable=True)


def test_shares_of_halves_keep_their_digits() -> None:
    """Momentum is computed in float32 and rounded once: of 16 bits, 0.9 would be 0.8999."""
    rng = np.random.default_rng(2)
    first, second = (rng.standard_normal(500).astype(np.float16) for _ in range(2))
    weight = vkml.zeros(500, dtype=vkml.float16, requires_grad=True)
    optimizer = optim.SGD([weight], lr=0.1, momentum=0.9)
    for gradient in (first, second):
        weight.grad = vkml.tensor(gradient)
        optimizer.step()
    wanted = first.astype(np.float32) * np.float32(0.9) + second.astype(np.float32)
    found = optimizer.state[weight]["momentum_buffer"].numpy()
    np.testing.assert_array_equal(found, wanted.astype(np.float16))


@pytest.mark.parametrize("dtype", [vkml.float16, vkml.bfloat16])
def test_rates_are_not_rounded_to_parameters_of_16_bits(dtype: Any, device_name: str) -> None:
    before = vkml.tensor([300.0, -1.0, 0.5], dtype=dtype)
    grad = vkml.tensor([3.0, -1.7, 31.0], dtype=dtype)
    wanted = before.float().numpy() - grad.float().numpy() * np.float32(0.1)
    for varies in (False, True):
        param = vkml.nn.Parameter(before.to(device_name))
        param.grad = grad.to(device_name)
        optimizer = vkml.optim.SGD([param], lr=0.1)
        if varies:
            vkml.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        optimizer.step()
        assert param.detach().to("cpu").tolist() == vkml.tensor(wanted).to(dtype).tolist()
