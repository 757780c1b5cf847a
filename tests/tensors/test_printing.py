"""Tensors in text: as PyTorch writes them."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from vkml import xp

RANDOM = np.random.default_rng(5)
TENSORS = [
    np.array(3.5, np.float32),
    np.array([1.0, 2.0], np.float32),
    np.array([1.5, -2.25, 100.0], np.float32),
    np.array([1e-5, 1.0]),
    np.array([1e9, 1.0], np.float32),
    np.array([0.0, np.nan, np.inf, -np.inf], np.float32),
    np.array([1.0, np.nan, -np.inf], np.float32),
    np.array([1.25, np.nan, -np.inf], np.float32),
    np.array([[1, -20], [300, 4]]),
    np.array([True, False]),
    np.array([1, 2], np.int32),
    np.zeros(0, np.float32),
    np.zeros((0, 3), np.float32),
    np.zeros((2, 0), np.int64),
    RANDOM.random((2, 3, 4)).astype(np.float32),
    RANDOM.random(40).astype(np.float32),
    RANDOM.random((30, 50)).astype(np.float32),
    np.arange(2000),
    np.arange(1001.0, dtype=np.float32).reshape(7, 11, 13),
    np.array([1e-3, 5.0]),
    np.array(True),
    np.array([0.1, 0.2], np.float16),
    RANDOM.random((3, 17)),
    np.array([1e20, 1e-20]),
]


@pytest.mark.parametrize("array", TENSORS, ids=range(len(TENSORS)))
def test_like_torch(array: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    assert repr(vkml.tensor(array)) == repr(torch.tensor(array)).replace("torch.", "vkml.")
    if array.dtype.kind == "f":
        expected = repr(torch.tensor(array, requires_grad=True)).replace("torch.", "vkml.")
        assert repr(vkml.tensor(array, requires_grad=True)) == expected


def test_what_stands_behind_the_elements(vulkan_device_name: str) -> None:
    assert repr(vkml.tensor([1.0, 2.5])) == "tensor([1.0000, 2.5000])"
    assert repr(vkml.tensor([[1, 2]], dtype=vkml.int8)) == "tensor([[1, 2]], dtype=vkml.int8)"
    assert repr(vkml.zeros(0, 2)) == "tensor([], size=(0, 2))"
    assert repr(vkml.ones(1, device=vulkan_device_name)) == f"tensor([1.], device='{vulkan_device_name}')"
    assert repr(vkml.ones(1, requires_grad=True)) == "tensor([1.], requires_grad=True)"
    assert repr(xp.asarray([[1], [2]])) == "Array([[1],\n       [2]])"
    assert "..., " in repr(vkml.arange(5000))
