"""``python -m tests.whole_models.full --device vulkan:0``: trainings at full size, PASS or FAIL each."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# PyTorch is loaded before any device is used: lavapipe crashes otherwise (tests/nn/conftest.py).
with contextlib.suppress(ImportError):
    import torch  # noqa: F401
import vkml
from benchmarks.language_models import SMOLLM2_135M, adding, character_transformer, lora
from benchmarks.training_models import perceptron, resnet18
from tests.whole_models import tasks

WINDOW = 20
ORDERS = 3
"""How often PyTorch trains the character transformer."""


def _torch() -> tuple[Any, str]:
    """PyTorch, and where it trains: on a GPU if it has one, in float32 without TF32's rounding."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return torch, "cuda" if torch.cuda.is_available() else "cpu"


def _both(build: Any, batches: Any, device: str, **named: Any) -> tuple[list[float], list[float]]:
    torch, place = _torch()
    state, batches = tasks.weights_of(build), list(batches)
    found, _ = tasks.train(vkml, build, state, batches, device, **named)
    wanted, _ = tasks.train(torch, build, state, batches, place, **named)
    return found, wanted


def _apart(found: list[float], wanted: list[float], window: int = WINDOW) -> float:
    """The greatest relative difference of losses, smoothed over a window."""
    ours, theirs = tasks.smoothed(found, window), tasks.smoothed(wanted, window)
    return float(np.abs(ours / theirs - 1).max())


def digits(device: str) -> tuple[bool, str]:
    right = 100 * tasks.digits_accuracy(device, 30)
    return right >= 98.5, f"{right:.2f} % of the test set right, at least 98.5 wanted"


def mlp(device: str) -> tuple[bool, str]:
    found, wanted = _both(perceptron, tasks.perceptron_batches(300), device, optimizer="SGD", lr=0.05)
    apart = _apart(found, wanted)
    return apart < 0.01 and found[-1] < 0.5 * found[0], f"{100 * apart:.3f} % from torch's, 1 allowed"


def transformer(device: str) -> tuple[bool, str]:
    _, vocabulary = tasks.text()

    def build(layers: Any) -> Any:
        return character_transformer(layers, vocabulary)

    torch, place = _torch()
    state, batches = tasks.weights_of(build), list(tasks.lines_of_text(32, 64, 2000))
    found, _ = tasks.train(vkml, build, state, batches, device, lr=1e-3)
    # Sums in another order are other trainings after some hundred steps, PyTorch's own, too: so it trains
    # several times on the same batches, whose examples come in another order each time.
    orders = [batches, *(tasks.reordered(batches, seed) for seed in range(1, ORDERS))]
    theirs = [tasks.train(torch, build, state, order, place, lr=1e-3)[0] for order in orders]
    apart = float(np.mean([_apart(found, wanted) for wanted in theirs]))
    own = [_apart(one, other) for one, other in itertools.combinations(theirs, 2)]
    return apart < max(0.01, *own), (
        f"loss {np.mean(found[-WINDOW:]):.3f}, {100 * apart:.3f} % from torch's on {place}, which are "
        f"{100 * min(own):.3f} to {100 * max(own):.3f} % from each other by the order of sums; "
        "1 %, or as far as these, allowed"
    )


def lstm(device: str) -> tuple[bool, str]:
    def build(layers: Any) -> Any:
        return adding(layers, 64)

    losses, _ = tasks.train(
        vkml, build, tasks.weights_of(build), tasks.sums(64, 50, 3000), device,
        optimizer="Adam", loss="MSELoss", lr=3e-3,
    )  # fmt: skip
    last = float(np.mean(losses[-100:]))
    return last < 0.01, f"squared error {last:.5f}, below 0.01 wanted (1/6 for who says 1)"


def resnet(device: str) -> tuple[bool, str]:
    found, wanted = _both(
        resnet18, tasks.images(16, 224, 5), device, optimizer="SGD", lr=0.01, momentum=0.9
    )  # fmt: skip
    apart = _apart(found, wanted, 1)
    return apart < 0.01 and found[-1] < found[0], f"{100 * apart:.3f} % from torch's in 5 steps, 1 allowed"


def adapters(device: str) -> tuple[bool, str]:
    found, wanted = _both(lora, tasks.tokens(SMOLLM2_135M, 1, 10), device, lr=2e-4)
    apart = _apart(found, wanted, 1)
    return apart < 0.01 and found[-1] < found[0], f"{100 * apart:.3f} % from torch's in 10 steps, 1 allowed"


TASKS: dict[str, Callable[[str], tuple[bool, str]]] = {
    each.__name__: each for each in (digits, mlp, transformer, lstm, resnet, adapters)
}


def main() -> int:
    """Runs them; 1 where one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.whole_models.full", description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all by default")
    parser.add_argument("--device", default=vkml.devices()[0].name)
    parser.add_argument("--precision", choices=("highest", "high", "medium"), default="highest")
    options = parser.parse_args()
    vkml.set_float32_matmul_precision(options.precision)
    failed = 0
    for name in options.tasks or TASKS:
        begin = time.perf_counter()
        is_right, text = TASKS[name](options.device)
        failed += not is_right
        print(
            f"{'PASS' if is_right else 'FAIL'} {name}: {text} ({time.perf_counter() - begin:.0f} s)",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
