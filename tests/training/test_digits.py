"""scikit-learn's digits: a small convolutional network, trained by `vkml.fit` on each device."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

import vkml
from vkml import nn


def test_digits_are_learned(device_name: str) -> None:
    """All of them, to 98.5 % of those held out, in the tutorial; here a part of them in a few epochs."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    vkml.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 2 * 2, 10),
    )  # fmt: skip
    history = vkml.fit(
        model, (images[:640], digits.target[:640]), "cross_entropy", "adamw", 5, lr=5e-3, batch_size=64,
        seed=0, validation=(images[640:896], digits.target[640:896]), metrics="accuracy",
        device=device_name, progress=False,
    )  # fmt: skip
    assert history.is_captured
    assert history["val_accuracy"][-1] > 0.9
