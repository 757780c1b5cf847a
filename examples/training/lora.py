"""Adapts a trained model to another task with LoRA: `python examples/training/lora.py --device vulkan:0`.

A small transformer learns to say a sequence backwards; adapters of rank 4 then teach it to sort.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

import vkml
from vkml import nn, optim

LENGTH, SYMBOLS, WIDTH = 6, 8, 32
Task = Callable[[np.ndarray], np.ndarray]


class Rewriter(nn.Module):
    """Symbols [batch, LENGTH] to scores of a symbol for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, x: vkml.Tensor) -> vkml.Tensor:
        return self.head(self.layers(self.embedding(x) + self.position.weight))  # type: ignore[no-any-return]


def train(model: nn.Module, task: Task, steps: int, device: str, seed: int) -> float:
    """Trains what requires grad; the share of symbols that are right in the end."""
    rng = np.random.default_rng(seed)
    optimizer = optim.Adam([value for value in model.parameters() if value.requires_grad], lr=5e-3)

    def step(x: vkml.Tensor, y: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    captured = vkml.jit(step, device=device, freeze=True)  # what is not trained is prepared once

    for _ in range(steps):
        x = rng.integers(0, SYMBOLS, (64, LENGTH))
        captured(x, task(x))
    return right(model, task, device)


def right(model: nn.Module, task: Task, device: str) -> float:
    """The share of symbols that a model gets right, in percent."""
    x = np.random.default_rng(1).integers(0, SYMBOLS, (500, LENGTH))
    with vkml.no_grad():
        return 100 * float((model(vkml.tensor(x, device=device)).argmax(-1).numpy() == task(x)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=vkml.devices()[0].name)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    device, steps, seed = vars(parser.parse_args()).values()

    vkml.manual_seed(seed)
    model = Rewriter().to(device)
    print(f"backwards, all weights: {train(model, lambda x: x[:, ::-1].copy(), steps, device, seed):.1f} %")
    nn.lora.apply(model, r=4, alpha=8, targets=["out_proj", "linear1", "linear2", "head"])
    print(f"sorted, before: {right(model, lambda x: np.sort(x, 1), device):.1f} %")
    print(f"sorted, adapters: {train(model, lambda x: np.sort(x, 1), steps, device, seed):.1f} %")
    with nn.lora.disable_adapter(model):
        print(f"backwards, without adapters: {right(model, lambda x: x[:, ::-1].copy(), device):.1f} %")


if __name__ == "__main__":
    main()
