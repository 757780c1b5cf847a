"""Models that are trained, written once for the layers of vkml's `nn` and of PyTorch's."""

from __future__ import annotations

from typing import Any


def perceptron(layers: Any) -> Any:
    """784-256-128-10, the founding model."""
    return layers.Sequential(
        layers.Linear(784, 256), layers.ReLU(), layers.Linear(256, 128), layers.ReLU(), layers.Linear(128, 10)
    )


def digits(layers: Any) -> Any:
    """Two convolutions and two linear layers, for images of 1 × 8 × 8."""
    return layers.Sequential(
        layers.Conv2d(1, 32, 3, padding=1), layers.ReLU(),
        layers.Conv2d(32, 64, 3, padding=1), layers.ReLU(), layers.MaxPool2d(2),
        layers.Flatten(), layers.Linear(1024, 128), layers.ReLU(), layers.Linear(128, 10),
    )  # fmt: skip


def resnet18(layers: Any) -> Any:
    """For images of 3 × 224 × 224 in 1000 classes (He et al., 2016)."""

    class Block(layers.Module):  # type: ignore[misc]
        def __init__(self, given: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = layers.Conv2d(given, width, 3, stride, 1, bias=False)
            self.bn1 = layers.BatchNorm2d(width)
            self.relu = layers.ReLU()
            self.conv2 = layers.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn2 = layers.BatchNorm2d(width)
            self.downsample = None
            if stride != 1 or given != width:
                shortcut = layers.Conv2d(given, width, 1, stride, bias=False), layers.BatchNorm2d(width)
                self.downsample = layers.Sequential(*shortcut)

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + (x if self.downsample is None else self.downsample(x)))

    widths = (64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [
        Block(given, width, 2 if width > given else 1)
        for given, width in zip((64, *widths), widths, strict=False)
    ]
    return layers.Sequential(
        layers.Conv2d(3, 64, 7, 2, 3, bias=False), layers.BatchNorm2d(64), layers.ReLU(),
        layers.MaxPool2d(3, 2, 1), *blocks, layers.AdaptiveAvgPool2d(1), layers.Flatten(),
        layers.Linear(512, 1000),
    )  # fmt: skip


def transformer(layers: Any) -> Any:
    """Six layers of 512 features, 8 heads, 2048 inside, a vocabulary of 1000."""

    class Model(layers.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = layers.Embedding(1000, 512)
            self.layers = layers.ModuleList(
                [layers.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True) for _ in range(6)]
            )
            self.head = layers.Linear(512, 1000)

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(x).flatten(0, 1)

    return Model()
