"""Gradients between devices, and what changes in place after it was read."""

from __future__ import annotations

import numpy as np

import vkml


def test_gradients_flow_between_devices(vulkan_device_name: str) -> None:
    w = vkml.tensor([1.0, -2.0], requires_grad=True)
    there = (w * 2).to(vulkan_device_name)
    back = (there * there).sin().to("cpu")
    loss = (back * w).sum()
    loss.backward()
    x = np.array([1.0, -2.0])
    expected = np.sin(4 * x * x) + x * np.cos(4 * x * x) * 8 * x
    assert there.device == vulkan_device_name and w.grad is not None and w.grad.device == "cpu"
    np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-4)


def test_second_order_between_devices(vulkan_device_name: str) -> None:
    w = vkml.tensor([0.5], requires_grad=True)
    y = (w.to(vulkan_device_name) ** 3).sum()
    [first] = vkml.autograd.grad(y, w, create_graph=True)
    assert first is not None and first.device == "cpu"
    [second] = vkml.autograd.grad(first.sum(), w)
    assert second is not None
    np.testing.assert_allclose([first.item(), second.item()], [0.75, 3.0], rtol=1e-5)


def test_what_was_moved_is_no_leaf(vulkan_device_name: str) -> None:
    w = vkml.tensor([0.5], requires_grad=True)
    moved = w.to(vulkan_device_name)
    assert not moved.is_leaf and moved.requires_grad
    with vkml.no_grad():
        assert not w.to(vulkan_device_name).requires_grad


def test_gradients_of_what_changes_in_place_afterwards(device_name: str) -> None:
    """Torch refuses each of these; gradients are those of the values that were read."""
    w = vkml.tensor([1.0, 2.0], device=device_name, requires_grad=True)
    h = w * 1
    square = h * h
    h.zero_()
    square.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, 4.0]
    w.grad = None
    e = w.exp()
    e.add_(1)
    e.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), np.exp([1.0, 2.0]), rtol=1e-5)
    w.grad = None
    h = w * 1
    part, product = h[:1], (h * h).sum()
    part.mul_(5)
    (product + h.sum()).backward()
    assert w.grad.tolist() == [2.0 + 5.0, 4.0 + 1.0]
