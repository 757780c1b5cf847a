"""Schedules of learning rates, number for number against PyTorch's."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from vkml import optim
from vkml.optim import lr_scheduler
from vkml.tensors import Tensor
from vkml.tensors.creation import tensor

torch = pytest.importorskip("torch")
STEPS = 40


class Factor:
    """A function with a state."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: int) -> float:
        return self.rate**step


def _doubled(step: int) -> float:
    return 1 / (1 + step)


Make = Callable[[Any, Any], Any]
"""From a module of schedules and an optimizer to a schedule."""
SCHEDULES: dict[str, Make] = {
    "step": lambda m, o: m.StepLR(o, 7, 0.5),
    "multistep": lambda m, o: m.MultiStepLR(o, [3, 10, 10, 25], 0.3),
    "constant": lambda m, o: m.ConstantLR(o, 0.4, 6),
    "linear": lambda m, o: m.LinearLR(o, 0.1, 0.8, 11),
    "exponential": lambda m, o: m.ExponentialLR(o, 0.9),
    "polynomial": lambda m, o: m.PolynomialLR(o, 30, 2.5),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, 9, 1e-3),
    "restarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 4, 2, 1e-3),
    "restarts alike": lambda m, o: m.CosineAnnealingWarmRestarts(o, 6),
    "lambda": lambda m, o: m.LambdaLR(o, [_doubled, Factor(0.9)]),
    "multiplicative": lambda m, o: m.MultiplicativeLR(o, lambda step: 0.95 if step % 2 else 1.01),
    "cyclic": lambda m, o: m.CyclicLR(o, 0.01, [0.1, 0.2], 4, 7),
    "cyclic 2": lambda m, o: m.CyclicLR(o, 0.01, 0.1, 5, mode="triangular2", base_momentum=0.7),
    "cyclic range": lambda m, o: m.CyclicLR(
        o, 0.01, 0.1, 5, mode="exp_range", gamma=0.97, cycle_momentum=False
    ),
    "cyclic own": lambda m, o: m.CyclicLR(o, 0.01, 0.1, 5, scale_fn=lambda x: 0.5**x, scale_mode="cycle"),
    "one cycle": lambda m, o: m.OneCycleLR(o, [0.1, 0.3], STEPS),
    "one cycle in three": lambda m, o: m.OneCycleLR(
        o, 0.1, epochs=4, steps_per_epoch=10, three_phase=True, anneal_strategy="linear", pct_start=0.4
    ),
    "sequential": lambda m, o: m.SequentialLR(
        o, [m.LinearLR(o, 0.1, total_iters=5), m.ExponentialLR(o, 0.9), m.CosineAnnealingLR(o, 7)], [5, 20]
    ),
    "chained": lambda m, o: m.ChainedScheduler([m.ConstantLR(o, 0.1, 8), m.ExponentialLR(o, 0.9)]),
    "nested": lambda m, o: m.SequentialLR(
        o, [m.ChainedScheduler([m.ConstantLR(o, 0.5, 3), m.StepLR(o, 2)]), m.PolynomialLR(o, 9)], [12]
    ),
}  # fmt: skip
OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "sgd": lambda module, groups: module.SGD(groups, lr=0.05, momentum=0.9),
    "adam": lambda module, groups: module.Adam(groups, lr=0.05),
}


def _optimizer(module: Any, make: Any, name: str = "sgd") -> Any:
    params = [make([1.0], requires_grad=True), make([2.0], requires_grad=True)]
    return OPTIMIZERS[name](module, [{"params": params[:1]}, {"params": params[1:], "lr": 0.3}])


def _settings(optimizer: Any) -> list[Any]:
    names = ("lr", "momentum", "betas", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")
    return [[float(g[n]) if n == "lr" else g.get(n) for n in names] for g in optimizer.param_groups]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_numbers(name: str, optimizer: str) -> None:
    """Exactly the same, after each step, with momentum; and when it goes on from a state."""
    make = SCHEDULES[name]
    ours, theirs = _optimizer(optim, tensor, optimizer), _optimizer(torch.optim, torch.tensor, optimizer)
    mine, other = make(lr_scheduler, ours), make(torch.optim.lr_scheduler, theirs)
    assert _settings(ours) == _settings(theirs)
    for number in range(STEPS - 1):
        for one in (ours, theirs, mine, other):
            one.step()
        assert _settings(ours) == _settings(theirs), number
        assert mine.get_last_lr() == other.get_last_lr()
        if number == STEPS // 2:
            _check_state(mine.state_dict(), other.state_dict())
            groups, state = ours.state_dict()["param_groups"], mine.state_dict()
            ours = _optimizer(optim, tensor, optimizer)
            mine = make(lr_scheduler, ours)
            mine.load_state_dict(state)
            for group, saved in zip(ours.param_groups, groups, strict=True):
                group.update({key: value for key, value in saved.items() if key != "params"})
            ours.step()


def _check_state(found: Any, wanted: Any) -> None:
    """The same keys and numbers, within schedules, too."""
    assert type(found).__name__ == type(wanted).__name__
    if isinstance(wanted, dict):
        assert set(found) == set(wanted)
        for key in wanted:
            _check_state(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            _check_state(one, other)
    elif isinstance(wanted, int | float | str | None):
        assert found == wanted


@pytest.mark.parametrize("settings", [
    {}, {"mode": "max", "patience": 2, "threshold": 0.1}, {"patience": 1, "cooldown": 3, "factor": 0.5},
    {"threshold_mode": "abs", "threshold": 0.05, "patience": 3, "min_lr": [0.01, 0.02]},
    {"mode": "max", "threshold_mode": "abs", "patience": 0, "eps": 1e-3},
])  # fmt: skip
def test_plateaus(settings: dict[str, Any]) -> None:
    ours, theirs = _optimizer(optim, tensor), _optimizer(torch.optim, torch.tensor)
    mine = lr_scheduler.ReduceLROnPlateau(ours, **settings)
    other = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **settings)
    for number in range(60):
        metric = 1 + math.sin(number / 3) * math.exp(-number / 20)
        mine.step(tensor(metric, dtype=None).double() if number % 2 else metric)
        other.step(float(tensor(metric).double().item()) if number % 2 else metric)
        assert _settings(ours) == _settings(theirs), number
        if number == 30:
            _check_state(mine.state_dict(), other.state_dict())
            again = lr_scheduler.ReduceLROnPlateau(ours, **settings)
            again.load_state_dict(mine.state_dict())
            mine = again


@pytest.mark.parametrize(
    "name", ["step", "multistep", "constant", "linear", "exponential", "polynomial", "cosine"]
)
def test_steps_by_number(name: str) -> None:
    """PyTorch's deprecated way: closed forms."""
    ours, theirs = _optimizer(optim, tensor), _optimizer(torch.optim, torch.tensor)
    mine, other = SCHEDULES[name](lr_scheduler, ours), SCHEDULES[name](torch.optim.lr_scheduler, theirs)
    for epoch in (3, 10, 5, 27):
        with pytest.warns(UserWarning, match="epoch parameter"):
            mine.step(epoch)
        with pytest.warns(UserWarning):
            other.step(epoch)
        assert _settings(ours) == _settings(theirs)


def test_restarts_between_steps() -> None:
    ours, theirs = _optimizer(optim, tensor), _optimizer(torch.optim, torch.tensor)
    mine, other = (
        SCHEDULES["restarts"](*pair) for pair in ((lr_scheduler, ours), (torch.optim.lr_scheduler, theirs))
    )
    for epoch in (0.5, 3.9, 4.0, 17.3, 2.0):
        mine.step(epoch)
        other.step(epoch)
        assert _settings(ours) == _settings(theirs)
    with pytest.raises(ValueError, match="non-negative"):
        mine.step(-1)


def _warned(module: Any, make: Any, schedules: Any, script: Callable[[Any, Any], None]) -> list[str]:
    optimizer = _optimizer(module, make)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        script(schedules, optimizer)
    return [str(one.message)[:40] for one in found]


def _too_early(schedules: Any, optimizer: Any) -> None:
    optimizer.step()  # before there is a schedule: does not count
    schedule = schedules.StepLR(optimizer, 2)
    schedule.step()
    schedule.step()


def _overridden(schedules: Any, optimizer: Any) -> None:
    schedule = schedules.StepLR(optimizer, 2)
    optimizer.step = lambda: None
    optimizer.step()
    schedule.step()


def _right(schedules: Any, optimizer: Any) -> None:
    schedule = schedules.StepLR(optimizer, 2)
    optimizer.step()
    schedule.step()
    schedules.ExponentialLR(optimizer, 0.5).step()


def _asked(schedules: Any, optimizer: Any) -> None:
    schedules.StepLR(optimizer, 2).get_lr()


@pytest.mark.parametrize("script", [_too_early, _overridden, _right, _asked])
def test_warnings(script: Callable[[Any, Any], None]) -> None:
    found = _warned(optim, tensor, lr_scheduler, script)
    assert found == _warned(torch.optim, torch.tensor, torch.optim.lr_scheduler, script)


def test_rates_that_are_tensors() -> None:
    rate = tensor(0.5)
    optimizer = optim.SGD([tensor([1.0], requires_grad=True)], lr=rate)
    schedule = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    found = []
    for _ in range(3):
        found.append(rate.item())
        optimizer.step()
        schedule.step()
    assert found == [0.25, 0.375, 0.5] and optimizer.param_groups[0]["lr"] is rate
    assert isinstance(schedule.get_last_lr()[0], Tensor) and schedule.get_last_lr()[0] is not rate


WRONG: list[tuple[Make, str]] = [
    (lambda m, o: m.StepLR(3, 2), "not an Optimizer"),
    (lambda m, o: m.LambdaLR(o, [_doubled]), "Expected 2 lr_lambdas"),
    (lambda m, o: m.MultiplicativeLR(o, 3.0), "should be a function"),
    (lambda m, o: m.ConstantLR(o, 1.5), "between 0 and 1"),
    (lambda m, o: m.LinearLR(o, 0.0), "greater than 0"),
    (lambda m, o: m.CosineAnnealingWarmRestarts(o, 0), "positive integer"),
    (lambda m, o: m.CyclicLR(o, 0.1, [0.1], 3), "same length"),
    (lambda m, o: m.CyclicLR(o, 0.1, 0.2, mode="square"), "invalid"),
    (lambda m, o: m.OneCycleLR(o, 0.1), "total_steps"),
    (lambda m, o: m.OneCycleLR(o, 0.1, 10, pct_start=2.0), "pct_start"),
    (lambda m, o: m.SequentialLR(o, [m.StepLR(o, 2)], [3]), "milestone"),
    (lambda m, o: m.SequentialLR(o, [m.ReduceLROnPlateau(o)], []), "ReduceLROnPlateau"),
    (lambda m, o: m.ChainedScheduler([]), "at least one"),
    (lambda m, o: m.ReduceLROnPlateau(o, factor=1.0), "Factor"),
    (lambda m, o: m.ReduceLROnPlateau(o, mode="mean"), "unknown"),
    (lambda m, o: m.StepLR(o, 2, last_epoch=4), "initial_lr"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), WRONG)
def test_what_cannot_be_meant(make: Make, words: str) -> None:
    for module, optimizer in (
        (lr_scheduler, _optimizer(optim, tensor)),
        (torch.optim.lr_scheduler, _optimizer(torch.optim, torch.tensor)),
    ):
        with pytest.raises((TypeError, ValueError, KeyError), match=words) as found:
            make(module, optimizer)
        kinds = found.type if module is lr_scheduler else kinds  # noqa: F821
        assert found.type is kinds


def test_too_many_steps_of_a_cycle() -> None:
    optimizer = _optimizer(optim, tensor)
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.1, 3)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    with pytest.raises(ValueError, match="total steps is 3"):
        schedule.step()


def test_averaging_rates() -> None:
    for strategy, epochs in (("cos", 5), ("linear", 3), ("cos", 0)):
        ours, theirs = _optimizer(optim, tensor), _optimizer(torch.optim, torch.tensor)
        mine = optim.swa_utils.SWALR(ours, [0.01, 0.02], epochs, strategy)
        other = torch.optim.swa_utils.SWALR(theirs, [0.01, 0.02], epochs, strategy)
        for _ in range(8):
            assert _settings(ours) == _settings(theirs)
            for one in (ours, theirs, mine, other):
                one.step()
        json.dumps(mine.state_dict())  # nothing in it that could not be saved
