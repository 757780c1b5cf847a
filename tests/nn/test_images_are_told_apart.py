"""Small convolutional networks in training: against PyTorch step by step, and on digits."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import close
from vkml import nn, optim
from vkml.tracing import evaluation

Array = np.ndarray[Any, Any]


def _network(f: Any, classes: int = 10) -> Any:
    return f.Sequential(
        f.Conv2d(1, 8, 3, padding=1), f.BatchNorm2d(8), f.ReLU(), f.MaxPool2d(2),
        f.Conv2d(8, 16, 3, padding=1, stride=1), f.BatchNorm2d(16), f.ReLU(), f.AdaptiveAvgPool2d(2),
        f.Flatten(), f.Linear(64, classes),
    )  # fmt: skip


def _bars(random: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Images [count, 1, 8, 8] of a bar in one of four directions, anywhere, in noise."""
    classes = random.integers(0, 4, count)
    images = random.standard_normal((count, 1, 8, 8)).astype(np.float32) * 0.3
    for image, kind in zip(images[:, 0], classes, strict=True):
        at, row, column = np.arange(5), random.integers(0, 4), random.integers(0, 4)
        down, right = [(0, 1), (1, 0), (1, 1), (1, -1)][kind]
        image[row + down * at, column + (4 if right < 0 else 0) + right * at] += 1.5
    return images, classes


def _trained(
    device: str, model: nn.Module, images: Array, classes: Array, epochs: int, batch: int
) -> list[float]:
    """Trains it through `vkml.jit`; the mean loss of each epoch."""
    optimizer = optim.Adam(model.parameters(), lr=3e-3)

    @vkml.jit
    def step(x: vkml.Tensor, y: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    random = np.random.default_rng(0)
    losses = []
    for _ in range(epochs):
        order = random.permutation(len(images))[: len(images) // batch * batch].reshape(-1, batch)
        found = [
            step(vkml.tensor(images[rows], device=device), vkml.tensor(classes[rows], device=device)).item()
            for rows in order
        ]
        losses.append(float(np.mean(found)))
    return losses


def _accuracy(device: str, model: nn.Module, images: Array, classes: Array) -> float:
    with vkml.no_grad():
        found = model.eval()(vkml.tensor(images, device=device)).numpy()
    return float((found.argmax(1) == classes).mean())


def test_bars(device_name: str) -> None:
    vkml.manual_seed(0)
    random = np.random.default_rng(1)
    images, classes = _bars(random, 512)
    model = _network(nn, 4).to(device_name)
    losses = _trained(device_name, model, images, classes, 6, 64)
    assert losses[-1] < losses[0] / 3, losses
    assert _accuracy(device_name, model, *_bars(random, 400)) > 0.93


def test_digits() -> None:
    """Those of scikit-learn, ten epochs on the CPU."""
    data = pytest.importorskip("sklearn.datasets").load_digits()
    vkml.manual_seed(0)
    images, classes = (data.images / 16).astype(np.float32)[:, None], data.target
    model = _network(nn)
    _trained("cpu", model, images[:1437], classes[:1437], 10, 64)
    assert _accuracy("cpu", model, images[1437:], classes[1437:]) > 0.94


def test_nothing_falls_back(
    vulkan_device_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training step's operations have kernels: none runs on the CPU."""
    monkeypatch.setattr(evaluation, "_warned", set())
    monkeypatch.setattr(evaluation, "_programs", OrderedDict())
    model = _network(nn).to(vulkan_device_name)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = vkml.randn(4, 1, 8, 8).to(vulkan_device_name), vkml.tensor([1, 2, 3, 4], device=vulkan_device_name)
    with caplog.at_level(logging.WARNING, "vkml"):
        for _ in range(2):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            loss.item()
    # A device without integers of 64 or 8 bits leaves what has them, bools among them, to the CPU.
    others = [line for line in caplog.messages if "on the CPU" in line and "needs int" not in line]
    assert not others, others


@pytest.mark.parametrize("through_jit", [False, True])
def test_against_torch(through_jit: bool, device_name: str) -> None:
    """Losses, parameters and running statistics of ten steps from the same weights."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = _network(torch.nn)
    ours = _network(nn)
    ours.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
    ours.to(device_name)
    steps, their_steps = optim.SGD(ours.parameters(), lr=0.05), torch.optim.SGD(theirs.parameters(), lr=0.05)

    def step(x: vkml.Tensor, y: vkml.Tensor) -> vkml.Tensor:
        steps.zero_grad()
        loss = nn.functional.cross_entropy(ours(x), y)
        loss.backward()
        steps.step()
        return loss

    act = vkml.jit(step) if through_jit else step
    random = np.random.default_rng(2)
    for _ in range(10):
        x, y = random.standard_normal((16, 1, 8, 8)).astype(np.float32), random.integers(0, 10, 16)
        found = act(vkml.tensor(x, device=device_name), vkml.tensor(y, device=device_name))
        their_steps.zero_grad()
        wanted = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        wanted.backward()
        their_steps.step()
        assert found.item() == pytest.approx(wanted.item(), rel=1e-4)
    for name, value in ours.state_dict().items():
        close(value.numpy(), theirs.state_dict()[name].numpy(), name, 2e-3)
