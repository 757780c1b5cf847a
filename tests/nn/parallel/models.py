"""Models, batches and training loops that tests of several devices share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn
from vkml.nn import DataParallel

Array = np.ndarray[Any, Any]
Batches = Sequence[tuple[Array, Array]]


def pair_of(name: str) -> list[str]:
    """Two devices, by their kind; skips where there are none."""
    gpus = [device.name for device in vkml.devices(True) if device.name != "cpu"]
    if len(gpus) < 2:
        pytest.skip("fewer than two Vulkan devices on this machine")
    return {"gpus": gpus[:2], "gpu and cpu": [gpus[0], "cpu"], "cpu and gpu": ["cpu", gpus[1]]}[name]


PAIRS = ("gpus", "gpu and cpu", "cpu and gpu")


def mlp(dropout: float = 0.0) -> nn.Module:
    """Two layers of 10 inputs and 5 classes."""
    vkml.manual_seed(1)
    return nn.Sequential(nn.Linear(10, 33), nn.ReLU(), nn.Dropout(dropout), nn.Linear(33, 5))


def cnn() -> nn.Module:
    """Two convolutions over images of 8 × 8, without statistics of the batch."""
    vkml.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6),
        nn.ReLU(), nn.Flatten(), nn.Linear(24, 5),
    )  # fmt: skip


def batches(shape: Sequence[int], steps: int = 20, seed: int = 0) -> Batches:
    """Samples of normal numbers, and classes."""
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(shape).astype(np.float32), rng.integers(0, 5, shape[0])) for _ in range(steps)
    ]


def trained(
    model: nn.Module,
    data: Batches,
    is_captured: bool,
    optimizer: Callable[..., Any] = vkml.optim.SGD,
    look: Callable[[], None] = lambda: None,
    **settings: Any,
) -> list[float]:
    """Trains a model; returns the losses.

    Args:
        model: to be trained.
        data: batches.
        is_captured: whether by `vkml.jit`.
        optimizer: made with `settings`.
        look: called behind each step.
        settings: of the optimizer.
    """
    chosen = optimizer(model.parameters(), **(settings or {"lr": 0.1}))

    def step(x: Tensor, y: Tensor) -> Tensor:
        chosen.zero_grad()
        made = model(x)
        loss = nn.functional.cross_entropy(made, y.to(made.device))
        loss.backward()
        chosen.step()
        return loss

    run = vkml.jit(step) if is_captured else step
    losses = []
    for x, y in data:
        losses.append(run(vkml.tensor(x), vkml.tensor(y)).item())
        look()
    return losses


def require_equal(model: DataParallel) -> None:
    """Asserts that all devices have the same parameters, bit for bit, where they would compute with them."""
    model._follow()
    for replicas in model._replicas:
        for mirror in replicas.mirrors():
            assert mirror.tensor.device == replicas.device != mirror.master.device
            mine, other = mirror.tensor.numpy(), mirror.master.detach().numpy()
            assert mine.tobytes() == other.tobytes()
