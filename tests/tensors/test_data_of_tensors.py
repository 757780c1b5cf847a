"""`Tensor.data`: elements of which gradients know nothing."""

from __future__ import annotations

import numpy as np

import vkml
from vkml import nn


def test_what_is_written_to_data_is_in_the_tensor(device_name: str) -> None:
    """A loop as tutorials have it, without an optimizer."""
    weight = vkml.tensor([3.0, -1.0], requires_grad=True, device=device_name)
    for _ in range(3):
        (weight * weight).sum().backward()
        assert weight.grad is not None
        weight.data -= 0.25 * weight.grad.data
        weight.grad = None
    assert weight.is_leaf and weight.requires_grad
    np.testing.assert_allclose(weight.detach().numpy(), [3 / 8, -1 / 8])
    weight.data[1] = 7.0
    weight.data.clamp_(max=5.0)
    np.testing.assert_allclose(weight.detach().numpy(), [3 / 8, 5])


def test_data_has_no_history() -> None:
    x = vkml.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    assert not x.data.requires_grad and not y.data.requires_grad
    (y * y.data).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [9, 18])
    with vkml.no_grad():
        fixed = x * 1
    fixed.data[0] = 4
    assert fixed.tolist() == [4, 2]


def test_what_is_written_to_data_keeps_its_history() -> None:
    x = vkml.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    y.data[0] = 5
    y.data.add_(1)
    assert y.requires_grad and not y.is_leaf and y.tolist() == [6, 7]
    (y * y).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [36, 42]  # 2 y · 3


def test_data_that_is_set_may_have_another_shape() -> None:
    layer = nn.Linear(2, 2)
    layer.weight.data = vkml.ones(3, 2)
    assert layer.bias is not None
    layer.bias.data = vkml.zeros(3)
    assert isinstance(layer.weight, nn.Parameter) and layer.weight.requires_grad and layer.weight.is_leaf
    made = layer(vkml.ones(1, 2))
    assert made.tolist() == [[2, 2, 2]]
    made.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.shape == (3, 2)


def test_data_is_seen_by_a_capture() -> None:
    weight = nn.Parameter(vkml.ones(2))
    double = vkml.jit(lambda x: x * weight)
    for _ in range(3):
        assert double(vkml.ones(2)).tolist() == [1, 1]
    weight.data.mul_(2)
    assert double(vkml.ones(2)).tolist() == [2, 2]
