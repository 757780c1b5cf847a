"""Fine-tunes an ONNX model on negatives of its images: `python examples/training/finetune_onnx.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import vkml
from vkml import nn, optim

MODEL = Path(__file__).parents[1] / "digits" / "digits.onnx"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=vkml.devices()[0].name)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = options.device

    data = load_digits()
    x, y = (
        (1 - data.images / 16).astype(np.float32)[:, None],
        data.target,
    )  # white on black becomes black on white
    rng = np.random.default_rng(options.seed)
    order = rng.permutation(len(x))
    test, train = order[:360], order[360:]

    model = nn.from_onnx(MODEL).to(device)  # its initializers are parameters
    print(", ".join(f"{name} {list(value.shape)}" for name, value in model.named_parameters()))
    optimizer = optim.Adam(model.parameters(), lr=2e-3)

    def right() -> float:
        with vkml.no_grad():
            found = model(vkml.tensor(x[test], device=device)).argmax(1).numpy()
        return 100 * float((found == y[test]).mean())

    def step(x: vkml.Tensor, y: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(x).clamp(min=1e-7).log(), y)  # the model ends with Softmax
        loss.backward()
        optimizer.step()
        return loss

    captured = vkml.jit(step, device=device)

    print(f"before: {right():.1f} % of the test set right")
    for epoch in range(options.epochs):
        batches = rng.permutation(train)[: len(train) // 64 * 64].reshape(-1, 64)
        loss = np.mean([captured(x[batch], y[batch]).item() for batch in batches])
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {right():.1f} % right")


if __name__ == "__main__":
    main()
