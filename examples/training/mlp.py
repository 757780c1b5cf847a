"""Trains a perceptron on scikit-learn's digits: `python examples/training/mlp.py --device vulkan:0`."""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits

import vkml
from vkml import nn, optim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=vkml.devices()[0].name)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = options.device

    data = load_digits()
    x, y = (data.data / 16).astype(np.float32), data.target
    rng = np.random.default_rng(options.seed)
    order = rng.permutation(len(x))
    test, train = order[:360], order[360:]

    vkml.manual_seed(options.seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)).to(device)
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    loss_of = nn.CrossEntropyLoss()

    def step(x: vkml.Tensor, y: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss: vkml.Tensor = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    captured = vkml.jit(step, device=device)  # forward, backward and update as one plan

    for epoch in range(options.epochs):
        model.train()
        batches = rng.permutation(train)[: len(train) // 64 * 64].reshape(-1, 64)
        losses = [captured(x[batch], y[batch]).item() for batch in batches]
        if (epoch + 1) % 5 == 0 or epoch + 1 == options.epochs:
            model.eval()
            with vkml.no_grad():
                found = model(vkml.tensor(x[test], device=device)).argmax(1).numpy()
            right = 100 * (found == y[test]).mean()
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, {right:.1f} % of the test set right")


if __name__ == "__main__":
    main()
