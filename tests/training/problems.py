"""Small things to learn, and models that learn them."""

from __future__ import annotations

from typing import Any

import numpy as np

import vkml
from vkml import nn

Array = np.ndarray[Any, Any]


def classes(samples: int, count: int = 3, seed: int = 0) -> tuple[Array, Array]:
    """Points [samples, 6], and to which of some classes, parted by planes, each belongs."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, 6)).astype(np.float32)
    return x, (x @ np.random.default_rng(99).standard_normal((6, count))).argmax(1)


def line(samples: int, seed: int = 0) -> tuple[Array, Array]:
    """Points [samples, 4], and numbers [samples, 1] that follow from them but for a constant."""
    x = np.random.default_rng(seed).standard_normal((samples, 4)).astype(np.float32)
    return x, (x @ np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)) + np.float32(0.25)


def perceptron(count: int = 3, dropout: float = 0.0) -> nn.Module:
    """Two layers for `classes`, the same each time."""
    vkml.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, count))


def weights(model: nn.Module) -> Array:
    """All parameters and buffers as one vector."""
    return np.concatenate(
        [value.detach().numpy().astype(np.float64).ravel() for value in model.state_dict().values()]
    )
