"""Trains a transformer to write like the documentation: `python examples/training/transformer.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import vkml
from vkml import nn, optim

DOCS = Path(__file__).parents[2] / "docs"
WIDTH, DEPTH, HEADS, LENGTH, BATCH = 128, 4, 4, 64, 32


class Writer(nn.Module):
    """Characters [batch, LENGTH] to scores of the one behind each."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, DEPTH, norm=nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens: vkml.Tensor) -> vkml.Tensor:
        x = self.embedding(tokens) + self.position.weight
        scores: vkml.Tensor = self.head(self.layers(x, self.mask, is_causal=True))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=vkml.devices()[0].name)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    text = "".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md")))
    characters = sorted(set(text))
    numbers = np.array([characters.index(character) for character in text])
    rng = np.random.default_rng(options.seed)

    vkml.manual_seed(options.seed)
    model = Writer(len(characters)).to(options.device)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)

    def step(tokens: vkml.Tensor, behind: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), behind.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    captured = vkml.jit(step, device=options.device)

    for number in range(options.steps):
        starts = rng.integers(0, len(numbers) - LENGTH, (BATCH, 1)) + np.arange(LENGTH)
        loss = captured(numbers[starts], numbers[starts + 1])
        if (number + 1) % 200 == 0 or number + 1 == options.steps:
            print(f"step {number + 1}: loss {loss.item():.3f}")

    written = list(numbers[:LENGTH])
    model.eval()
    with vkml.no_grad():
        for _ in range(100):
            scores = model(vkml.tensor([written[-LENGTH:]], device=options.device))[0, -1]
            chances = nn.functional.softmax(scores / 0.7, 0).numpy().astype(np.float64)
            written.append(rng.choice(len(characters), p=chances / chances.sum()))
    print(repr("".join(characters[at] for at in written[LENGTH:])))


if __name__ == "__main__":
    main()
