"""Copies of tensors and modules by `copy` and `pickle`."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import nn


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int64", "uint8", "bool", "complex64"])
def test_tensors_keep_their_elements_and_type(name: str) -> None:
    x = vkml.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 0.0]]).to(getattr(vkml, name))
    found = again(x)
    assert found.dtype == x.dtype and found.device == x.device and not found.requires_grad
    assert found.numpy().tobytes() == x.numpy().tobytes() and found.shape == x.shape


def test_they_stay_on_their_device(device_name: str) -> None:
    x = vkml.arange(6.0, device=device_name).reshape(2, 3).T  # recorded, and no elements yet
    found = again(x)
    assert found.device == x.device
    np.testing.assert_array_equal(found.numpy(), x.numpy())


def test_what_wants_gradients_comes_back_as_a_leaf() -> None:
    x = vkml.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    for found in (again(x), again(x * 2)):
        assert found.requires_grad and found.is_leaf and found.grad is None
    x.note = "kept"
    assert again(x).note == "kept"


def test_views_come_back_apart() -> None:
    x = vkml.arange(4.0)
    whole, part = again((x, x[1:]))
    part[0] = 9.0
    np.testing.assert_array_equal(whole.numpy(), [0, 1, 2, 3])
    np.testing.assert_array_equal(part.numpy(), [9, 2, 3])


def test_shallow_copies_are_leaves_of_their_own() -> None:
    x = nn.Parameter(vkml.arange(3.0))
    x.sum().backward()
    found = copy.copy(x)
    assert type(found) is nn.Parameter and found.requires_grad and found.is_leaf and found.grad is None
    (found * 2).sum().backward()
    np.testing.assert_array_equal(found.grad.numpy(), [2, 2, 2])
    np.testing.assert_array_equal(x.grad.numpy(), [1, 1, 1])
    assert not copy.copy(vkml.ones(2)).requires_grad


class Tied(nn.Module):
    """Two layers with one weight, normalisation, and a hook's table."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: vkml.Tensor) -> vkml.Tensor:
        made: vkml.Tensor = self.norm(self.second(self.first(x).relu()))
        return made


def test_modules_compute_and_train_as_before() -> None:
    vkml.manual_seed(0)
    model, x = Tied(), vkml.randn(8, 4)
    model(x)
    found = again(model)
    assert found.second.weight is found.first.weight and type(found.first.weight) is nn.Parameter
    assert list(found.state_dict()) == list(model.state_dict()) and found.training
    other = copy.deepcopy(model)
    for each in (found, other):
        optimizer = vkml.optim.SGD(each.parameters(), lr=0.1)
        step = vkml.jit(lambda x, each=each, optimizer=optimizer: trained(each, optimizer, x))
        for _ in range(4):
            step(x)
    for name, value in other.state_dict().items():
        np.testing.assert_array_equal(found.state_dict()[name].numpy(), value.numpy(), err_msg=name)
    found.eval()
    assert not found.norm.training and model.norm.training


def trained(model: nn.Module, optimizer: vkml.optim.Optimizer, x: vkml.Tensor) -> vkml.Tensor:
    optimizer.zero_grad()
    loss: vkml.Tensor = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss
