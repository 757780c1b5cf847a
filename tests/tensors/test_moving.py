"""Gradients between devices."""

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
