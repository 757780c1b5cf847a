"""Captures of which what they only read is a constant."""

from __future__ import annotations

import gc

import numpy as np

import vkml
from vkml import Tensor, nn, optim
from vkml.engine.plan import Plan


def _constants(bytes_: int) -> int:
    """Constants of so many bytes in the plans that there are."""
    gc.collect()
    plans = [each for each in gc.get_objects() if isinstance(each, Plan)]
    return sum(c.type.bytes == bytes_ for plan in plans for c in plan.graph.constants.values())


def test_frozen_weights_are_constants_of_the_plan(device_name: str) -> None:
    rng = np.random.default_rng(0)
    frozen = vkml.tensor(rng.standard_normal((37, 41), np.float32), device=device_name)
    learned = nn.Parameter(vkml.zeros(37, 3, device=device_name))
    optimizer = optim.SGD([learned], lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = ((x @ frozen).mean() + (x @ learned - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    before = _constants(37 * 41 * 4)
    plain, captured = vkml.jit(step), vkml.jit(step, freeze=True)
    x = vkml.tensor(rng.standard_normal((5, 37), np.float32), device=device_name)
    for _ in range(3):
        plain(x)
    assert _constants(37 * 41 * 4) == before
    for _ in range(2):
        captured(x)
    assert _constants(37 * 41 * 4) > before
    was = learned.detach().numpy()
    found = captured(x)
    assert not np.array_equal(learned.detach().numpy(), was)  # what is trained is no constant
    with vkml.no_grad():
        learned.copy_(vkml.tensor(was, device=device_name))
    np.testing.assert_allclose(found.item(), step(x).item(), rtol=1e-5)


def test_a_frozen_tensor_that_is_written_is_read_anew(device_name: str) -> None:
    weight = vkml.ones(4, 4, device=device_name)
    total = vkml.jit(lambda x: (x @ weight).sum(), freeze=True)
    x = vkml.ones(2, 4, device=device_name)
    for _ in range(3):
        assert total(x).item() == 32
    weight.mul_(2)
    assert total(x).item() == 64
    weight += 1
    assert total(x).item() == 96
    assert total(x).item() == 96


def test_a_frozen_tensor_that_another_capture_writes_in_place_is_read_anew(device_name: str) -> None:
    weight = nn.Parameter(vkml.ones(4, 4, device=device_name), requires_grad=False)

    @vkml.jit
    def double() -> None:
        weight.mul_(2)

    total = vkml.jit(lambda x: (x @ weight).sum(), freeze=True)
    x = vkml.ones(2, 4, device=device_name)
    for number in range(5):
        assert total(x).item() == 32 * 2**number
        double()


def test_what_requires_grad_is_never_frozen(device_name: str) -> None:
    """An optimizer of another function is about to write it."""
    weight = nn.Parameter(vkml.ones(31, 43, device=device_name))
    before = _constants(31 * 43 * 4)
    total = vkml.jit(lambda x: (x @ weight).sum(), freeze=True)
    x = vkml.ones(2, 31, device=device_name)
    for _ in range(3):
        total(x)
    assert _constants(31 * 43 * 4) == before


def test_numbers_are_read_in_every_run(device_name: str) -> None:
    """A rate that a schedule sets, or a vector, is no reason for another capture."""
    calls = 0
    rate, row = vkml.tensor(1.0, device=device_name), vkml.ones(4, device=device_name)

    @vkml.jit(freeze=True)
    def scaled(x: vkml.Tensor) -> vkml.Tensor:
        nonlocal calls
        calls += 1
        return (x * row).sum() * rate

    x = vkml.ones(2, 4, device=device_name)
    for number in range(5):
        rate.fill_(number)
        row.fill_(number + 1)
        assert scaled(x).item() == 8 * number * (number + 1)
    assert calls == 2
