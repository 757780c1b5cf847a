"""Averages of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn
from vkml.optim import swa_utils

RANDOM = np.random.default_rng(3)
WEIGHTS = [RANDOM.standard_normal((2, 3)).astype(np.float32) for _ in range(6)]
KINDS: dict[str, dict[str, Any]] = {
    "mean": {},
    "mean by parameter": {"avg_fn": swa_utils.get_swa_avg_fn()},
    "exponential": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.8)},
    "exponential by parameter": {"avg_fn": swa_utils.get_ema_avg_fn(0.8)},
}


def _wanted(kind: str) -> np.ndarray:
    found = WEIGHTS[0].astype(np.float64)
    for count, weight in enumerate(WEIGHTS[1:], 1):
        share = 0.2 if kind.startswith("exp") else 1 / (count + 1)
        found = found + (weight - found) * share
    return found


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_averages(device_name: str, kind: str, is_captured: bool) -> None:
    model = nn.Linear(3, 2, device=device_name)
    averaged = swa_utils.AveragedModel(model, **KINDS[kind])

    def update(weight: Tensor) -> None:
        with vkml.no_grad():
            model.weight.copy_(weight)
        averaged.update_parameters(model)

    act: Callable[[Tensor], None] = vkml.jit(update) if is_captured else update
    for weight in WEIGHTS:
        act(vkml.tensor(weight, device=device_name))
    np.testing.assert_allclose(averaged.module.weight.detach().numpy(), _wanted(kind), rtol=1e-5)
    np.testing.assert_array_equal(model.weight.detach().numpy(), WEIGHTS[-1])
    assert averaged.n_averaged.item() == len(WEIGHTS)
    x = vkml.ones(1, 3, device=device_name)
    assert averaged(x).tolist() == averaged.module(x).tolist()
    assert set(averaged.state_dict()) == {"n_averaged", "module.weight", "module.bias"}


class _Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(vkml.zeros(2))
        self.register_buffer("count", vkml.zeros(1))


@pytest.mark.parametrize("use_buffers", [False, True])
def test_buffers(use_buffers: bool) -> None:
    model = _Counted()
    averaged = swa_utils.AveragedModel(model, use_buffers=use_buffers)
    for number in (1.0, 2.0, 6.0):
        model.count.fill_(number)
        averaged.update_parameters(model)
    assert averaged.module.count.item() == pytest.approx(3.0 if use_buffers else 6.0)


def test_states_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    model, other = nn.Linear(3, 2), torch.nn.Linear(3, 2)
    for make in ("get_swa_multi_avg_fn", "get_ema_multi_avg_fn"):
        averaged = swa_utils.AveragedModel(model, multi_avg_fn=getattr(swa_utils, make)())
        theirs = torch.optim.swa_utils.AveragedModel(
            other, multi_avg_fn=getattr(torch.optim.swa_utils, make)()
        )
        for weight in WEIGHTS:
            with vkml.no_grad(), torch.no_grad():
                model.weight.copy_(weight)
                other.weight.copy_(torch.tensor(weight))
                model.bias.copy_(other.bias.detach().numpy())
            averaged.update_parameters(model)
            theirs.update_parameters(other)
        found, wanted = averaged.state_dict(), theirs.state_dict()
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_cannot_be_meant() -> None:
    with pytest.raises(ValueError, match="decay"):
        swa_utils.get_ema_avg_fn(1.5)
    with pytest.raises(ValueError, match="only one"):
        swa_utils.AveragedModel(
            nn.Linear(1, 1), avg_fn=swa_utils.get_swa_avg_fn(), multi_avg_fn=swa_utils.get_swa_multi_avg_fn()
        )
