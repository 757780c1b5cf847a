"""The loss of sequences without alignment: against PyTorch's, and all alignments one by one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import compare, normal
from vkml import nn
from vkml.nn import functional

RANDOM = np.random.default_rng(8)


def _collapsed(path: tuple[int, ...]) -> tuple[int, ...]:
    """Repetitions once, then without blanks."""
    return tuple(one for one, _ in itertools.groupby(path) if one)


def test_all_alignments(device_name: str) -> None:
    logits = normal(RANDOM, 5, 3)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    for target in ((1,), (1, 2), (1, 1), (2, 1, 2), ()):
        paths = [p for p in itertools.product(range(3), repeat=5) if _collapsed(p) == target]
        wanted = -math.log(sum(math.exp(sum(logs[t, c] for t, c in enumerate(p))) for p in paths))
        found = functional.ctc_loss(
            vkml.tensor(logs, device=device_name),
            vkml.tensor(np.array(target, np.int64), device=device_name), [5], [len(target)], reduction="sum",
        )  # fmt: skip
        assert found.item() == pytest.approx(wanted, rel=1e-4), target


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_against_torch(reduction: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    logits = normal(RANDOM, 7, 3, 5)
    lengths, sizes = np.array([7, 5, 6]), np.array([3, 1, 2])
    targets = np.array([[1, 2, 2], [4, 0, 0], [3, 1, 0]])
    flat = np.array([1, 2, 2, 4, 3, 1])
    named: dict[str, Any] = {"reduction": reduction}
    for given in (targets, flat):
        compare(
            lambda x, t: functional.ctc_loss(x.log_softmax(2), t, lengths, sizes, **named),
            lambda x, t: torch.nn.functional.ctc_loss(
                x.log_softmax(2), t, torch.tensor(lengths), torch.tensor(sizes), **named
            ),
            [logits, given],
            device_name,
        )
    compare(
        lambda x, t: nn.CTCLoss(blank=4, **named)(x.log_softmax(1), t, [7], [3]),
        lambda x, t: torch.nn.CTCLoss(blank=4, **named)(
            x.log_softmax(1), t, torch.tensor(7), torch.tensor(3)
        ),
        [logits[:, 0], np.array([1, 1, 2])],
        device_name,
    )


def test_targets_that_are_too_long(device_name: str) -> None:
    logs = vkml.full([2, 2, 3], math.log(1 / 3), device=device_name).requires_grad_()
    targets = vkml.tensor([[1, 1], [1, 2]], device=device_name)
    found = functional.ctc_loss(logs, targets, [2, 2], [2, 2], reduction="none").detach().numpy()
    assert found[0] == math.inf and found[1] == pytest.approx(2 * math.log(3), rel=1e-5)
    loss = functional.ctc_loss(logs, targets, [2, 2], [2, 2], reduction="sum", zero_infinity=True)
    loss.backward()
    assert loss.item() == pytest.approx(2 * math.log(3), rel=1e-5)
    assert (
        logs.grad is not None and not logs.grad.numpy()[:, 0].any() and np.isfinite(logs.grad.numpy()).all()
    )


def test_what_does_not_fit() -> None:
    logs = vkml.zeros(4, 2, 3)
    cases: list[tuple[Any, type[Exception]]] = [
        (lambda: functional.ctc_loss(logs, vkml.tensor([[1]]), [4, 4], [1, 1]), RuntimeError),
        (lambda: functional.ctc_loss(logs, vkml.tensor([1, 2, 1]), [4, 4], [1, 1]), RuntimeError),
        (lambda: functional.ctc_loss(logs, vkml.tensor([1, 2]), [4], [1, 1]), RuntimeError),
        (lambda: functional.ctc_loss(logs, vkml.tensor([1, 2]), [4, 4], [1, 1], blank=3), RuntimeError),
        (lambda: functional.ctc_loss(logs, vkml.tensor([1, 2]), [4, 4], [1, 1], reduction="max"), ValueError),
    ]
    for act, kind in cases:
        with pytest.raises(kind):
            act()
