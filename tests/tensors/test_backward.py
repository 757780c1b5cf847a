"""`backward`: hooks, gradients of what is no leaf, and histories that are gone."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from vkml.errors import NotDifferentiable
from vkml.vulkan import Device


def test_hooks_change_what_flows_on() -> None:
    w = vkml.ones(3, requires_grad=True)
    seen = []
    w.register_hook(lambda grad: seen.append(grad.tolist()))
    h = w * 2
    h.retain_grad()
    h.register_hook(lambda grad: grad * 10)
    (h.sum() + (h * h).sum()).backward()
    assert h.grad is not None and w.grad is not None
    assert h.grad.tolist() == [50.0] * 3  # once, of the whole gradient: 10 (1 + 2 h)
    assert w.grad.tolist() == [100.0] * 3 and seen == [[100.0] * 3]
    with pytest.raises(NotDifferentiable, match="requires grad"):
        vkml.ones(1).register_hook(lambda grad: grad)


def test_what_was_released_is_no_silent_loss_of_gradients() -> None:
    w = vkml.ones(3, requires_grad=True)
    h = w * 2
    first, second = h.sum(), (h * h).sum()
    first.backward(retain_graph=True)
    second.backward()
    assert w.grad is not None and w.grad.tolist() == [2.0 + 8.0] * 3
    third = (h * w).sum()
    with pytest.raises(NotDifferentiable, match="retain_graph"):
        third.backward()
    with pytest.raises(NotDifferentiable, match="backward"):
        second.backward()


def test_arrays_are_read_when_they_are_given() -> None:
    array = np.ones(3, np.float32)
    results = [make(array) * 2 for make in (vkml.as_tensor, vkml.from_numpy, vkml.tensor)]
    results.append(vkml.ones(3) + array)
    array[:] = 7
    assert [result.tolist() for result in results] == [[2.0] * 3] * 4


def test_wrong_arguments() -> None:
    for act in (
        lambda: vkml.tensor("abc"),
        lambda: vkml.zeros(2, dtype="float32"),
        lambda: vkml.ones(2).to(dtype=np.float32),
        lambda: vkml.rand(2, dtype="float32"),
        lambda: vkml.ones(2) * [1, 2],
    ):
        with pytest.raises(TypeError):
            act()


def test_a_loss_comes_to_the_host_with_the_run(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `backward` was called on is looked at next: few elements need no copy of their own."""
    x = vkml.tensor([1.0, 2.0], device=vulkan_device_name, requires_grad=True)
    optimizer = vkml.optim.SGD([x], lr=0.5)
    loss = (x * x).sum()
    loss.backward()
    optimizer.step()

    def refuse(*given: object) -> None:
        raise AssertionError("a value was fetched from the device")

    monkeypatch.setattr(Device, "download", refuse)
    assert loss.item() == 5.0 and loss.device == vulkan_device_name
    with pytest.raises(AssertionError, match="fetched"):
        x.tolist()
    monkeypatch.undo()
    assert (x.detach() + loss.detach()).tolist() == [5.0, 5.0]
