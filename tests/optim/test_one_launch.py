"""The updates of many parameters are one launch, and the same bits as a launch for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import optim
from vkml.engine.recorded import RecordedProgram
from vkml.kernels.spec import Dispatch
from vkml.lowering import horizontal

Array = np.ndarray[Any, Any]
SHAPES = [(3, 4), (5,), (7, 7), (2, 3, 4), (16,), (1,), (300, 4), (6, 5)]
OPTIMIZERS: dict[str, tuple[Callable[..., optim.Optimizer], int]] = {
    "SGD": (lambda params: optim.SGD(params, lr=0.1), 1),
    "Nesterov": (lambda params: optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01), 1),
    "Adam": (lambda params: optim.Adam(params, lr=0.1, amsgrad=True), 3),
    "AdamW": (lambda params: optim.AdamW(params, lr=0.1, weight_decay=0.05), 2),
}
"""And the launches of a captured step: Adam counts steps in one of its own, and with amsgrad has four
results, a group of operators three."""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[list[Dispatch]]:
    """The launches of every program that is made."""
    made: list[list[Dispatch]] = []
    build = RecordedProgram._build

    def note(self: RecordedProgram, *arguments: Any) -> None:
        made.append(self.program.dispatches)
        build(self, *arguments)

    monkeypatch.setattr(RecordedProgram, "_build", note)
    return made


def _trained(
    device: str,
    make: Callable[..., optim.Optimizer],
    wrap: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]] = SHAPES,
) -> list[Array]:
    """Parameters after three steps."""
    rng = np.random.default_rng(0)
    start = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    params = [vkml.tensor(values, device=device, requires_grad=True) for values in start]
    optimizer = make(params)

    def step(*gradients: vkml.Tensor) -> None:
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
        optimizer.step()
        optimizer.zero_grad()

    act = wrap(step)
    for _ in range(3):
        act(*[vkml.tensor(rng.standard_normal(x.shape).astype(np.float32), device=device) for x in start])
    return [param.detach().numpy() for param in params]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_step_is_one_launch_for_all_parameters(
    vulkan_device_name: str,
    name: str,
    programs: list[list[Dispatch]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, launches = OPTIMIZERS[name]
    together = _trained(vulkan_device_name, make, vkml.jit)
    assert len(programs[-1]) == launches
    assert all(len(each.members) == len(SHAPES) for each in programs[-1])
    monkeypatch.setattr(horizontal, "LEAST_MEMBERS", 1000)
    single = _trained(vulkan_device_name, make, vkml.jit)
    assert len(programs[-1]) >= launches * len(SHAPES)
    for one, other in zip(together, single, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_eager_step_is_one_launch_for_all_parameters(
    vulkan_device_name: str, programs: list[list[Dispatch]]
) -> None:
    make, _ = OPTIMIZERS["SGD"]
    shapes = SHAPES[1:]  # the plan of a structure is made once a process
    eager = _trained(vulkan_device_name, make, lambda step: step, shapes)
    assert [len(each.members) for each in programs[-1]] == [len(shapes)]
    for one, other in zip(eager, _trained("cpu", make, lambda step: step, shapes), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
