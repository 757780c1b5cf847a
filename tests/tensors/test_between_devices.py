"""Captured functions whose tensors are on several devices."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from vkml import Tensor


def test_a_captured_step_goes_there_and_back(vulkan_device_name: str) -> None:
    """A weight of the CPU's, a product on the device, the loss on the CPU: as it is without a capture."""

    def losses(is_captured: bool) -> list[float]:
        w = vkml.tensor(np.arange(6, dtype=np.float32).reshape(2, 3) / 4, requires_grad=True)
        optimizer = vkml.optim.SGD([w], lr=0.05, momentum=0.9)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            there = (w.to(vulkan_device_name) * x.to(vulkan_device_name)).exp()
            assert there.device == vulkan_device_name
            loss = ((there.to("cpu") - 1) * w).pow(2).sum()
            loss.backward()
            assert w.grad is not None and w.grad.device == "cpu"
            optimizer.step()
            return loss

        run = vkml.jit(step) if is_captured else step
        return [run(vkml.full((2, 3), 0.1 * n)).item() for n in range(1, 7)]

    np.testing.assert_allclose(losses(True), losses(False), rtol=2e-6)


def test_results_stay_where_they_are_made(vulkan_device_name: str) -> None:
    state = vkml.zeros(3, device=vulkan_device_name)
    count = vkml.zeros(3)

    @vkml.jit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        there = x.to(vulkan_device_name) * 2
        state.add_(there)
        count.add_((state + 1).to("cpu"))
        return there, there.to("cpu") + count

    for number in range(1, 5):
        there, here = step(vkml.full((3,), float(number)))
        assert (there.device, here.device, state.device, count.device) == (
            vulkan_device_name, "cpu", vulkan_device_name, "cpu",
        )  # fmt: skip
        sums = [sum(range(n + 1)) * 2 for n in range(1, number + 1)]
        assert there.tolist() == [2 * number] * 3 and state.tolist() == [sums[-1]] * 3
        assert count.tolist() == [sum(sums) + number] * 3
        assert here.tolist() == [2 * number + sum(sums) + number] * 3


def test_numbers_are_filled_in_where_the_tensor_is(vulkan_device_name: str) -> None:
    state = vkml.zeros(3, device=vulkan_device_name)

    @vkml.jit
    def step(x: Tensor) -> Tensor:
        state.fill_(4)
        ones = vkml.ones(3).to(vulkan_device_name)
        return (state * x.to(vulkan_device_name) + ones).to("cpu")

    for number in range(4):
        assert step(vkml.full((3,), float(number))).tolist() == [4.0 * number + 1] * 3
    assert state.device == vulkan_device_name and state.tolist() == [4.0] * 3


def test_operands_on_two_devices_are_refused_in_a_capture_too(vulkan_device_name: str) -> None:
    x = vkml.ones(3, device=vulkan_device_name)

    @vkml.jit
    def step(y: Tensor) -> Tensor:
        return x + y

    for _ in range(2):
        with pytest.raises(ValueError, match=f"on {vulkan_device_name} and cpu"):
            step(vkml.ones(3))
