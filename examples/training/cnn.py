"""Trains a convolutional network on scikit-learn's digits: `python examples/training/cnn.py`."""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits

import vkml
from vkml import nn, optim


class Digits(nn.Module):
    """Images [batch, 1, 8, 8] to scores of the ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(1024, 10))

    def forward(self, x: vkml.Tensor) -> vkml.Tensor:
        scores: vkml.Tensor = self.head(self.features(x))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=vkml.devices()[0].name)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = options.device

    data = load_digits()
    x, y = (data.images / 16).astype(np.float32)[:, None], data.target
    rng = np.random.default_rng(options.seed)
    order = rng.permutation(len(x))
    test, train = order[:360], order[360:]

    vkml.manual_seed(options.seed)
    model = Digits().to(device)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    steps = options.epochs * (len(train) // 64)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps + 1)

    def step(x: vkml.Tensor, y: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    captured = vkml.jit(step, device=device)

    for epoch in range(options.epochs):
        losses = []
        for batch in rng.permutation(train)[: len(train) // 64 * 64].reshape(-1, 64):
            losses.append(captured(x[batch], y[batch]).item())
            schedule.step()
        if (epoch + 1) % 5 == 0 or epoch + 1 == options.epochs:
            model.eval()
            with vkml.no_grad():
                found = model(vkml.tensor(x[test], device=device)).argmax(1).numpy()
            model.train()
            right = 100 * (found == y[test]).mean()
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, {right:.1f} % of the test set right")


if __name__ == "__main__":
    main()
