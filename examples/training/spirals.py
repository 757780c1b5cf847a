"""Trains a perceptron to tell two spirals apart: `python examples/training/spirals.py --device vulkan:0`."""

from __future__ import annotations

import argparse

import numpy as np

import vkml
from vkml import nn, optim


def spirals(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of two spirals, [count, 2], and which of the two each belongs to, [count]."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, 2, count)
    turn = np.sqrt(rng.random(count)) * 3 * np.pi
    angle = turn + np.pi * which
    points = np.stack([np.cos(angle), np.sin(angle)], 1) * turn[:, None] / 10
    return (points + rng.normal(0, 0.02, points.shape)).astype(np.float32), which


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=vkml.devices()[0].name)
    parser.add_argument("--steps", type=int, default=1500)
    device, steps = vars(parser.parse_args()).values()

    vkml.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)).to(
        device
    )
    optimizer = optim.Adam(model.parameters(), lr=3e-3)
    loss_of = nn.CrossEntropyLoss()

    @vkml.jit  # forward, backward and update as one plan
    def step(x: vkml.Tensor, y: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss: vkml.Tensor = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for number in range(steps):
        points, which = spirals(256, number)
        loss = step(vkml.tensor(points, device=device), vkml.tensor(which, device=device))
        if number % 250 == 0 or number == steps - 1:
            print(f"step {number:5d}   loss {loss.item():.4f}")

    points, which = spirals(2000, -1 % 2**32)
    with vkml.no_grad():
        found = model(vkml.tensor(points, device=device)).argmax(1)
    accuracy = (found.numpy() == which).mean()
    print(f"{100 * accuracy:.1f} % of 2000 points that it has not seen are told apart on {device}")


if __name__ == "__main__":
    main()
