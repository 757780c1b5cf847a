"""Small networks in training, against PyTorch from the same weights."""

from __future__ import annotations

import numpy as np
import pytest

from vkml import nn, optim
from vkml.tensors.creation import tensor
from vkml.tracing import evaluation

torch = pytest.importorskip("torch")


def _alike(device: str) -> tuple[nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(
        torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16), torch.nn.Tanh(),
        torch.nn.Linear(16, 5),
    )  # fmt: skip
    ours = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 5))
    missing, more = ours.load_state_dict({k: v.detach().numpy() for k, v in theirs.state_dict().items()})
    assert not missing and not more
    return ours.to(device), theirs


def test_a_perceptron_learns_as_torchs_does(device_name: str) -> None:
    ours, theirs = _alike(device_name)
    steps = optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    their_steps = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(30):
        x = rng.standard_normal((16, 20)).astype(np.float32)
        y = rng.integers(0, 5, 16)
        steps.zero_grad()
        loss = nn.functional.cross_entropy(ours(tensor(x, device=device_name)), tensor(y, device=device_name))
        loss.backward()
        steps.step()
        their_steps.zero_grad()
        their_loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        their_loss.backward()
        their_steps.step()
        losses.append((loss.item(), their_loss.item()))
    found, wanted = np.array(losses).T
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    for name, value in ours.state_dict().items():
        np.testing.assert_allclose(
            value.numpy(), theirs.state_dict()[name].numpy(), rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_a_loop_plans_once(device_name: str) -> None:
    """Steps that are alike share a program, whatever is looked at in between."""
    ours, _ = _alike(device_name)
    steps = optim.Adam(ours.parameters(), lr=0.01)
    x = np.ones((4, 20), np.float32)
    y = np.zeros(4, np.int64)
    counts = []
    for _ in range(6):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(ours(tensor(x, device=device_name)), tensor(y, device=device_name))
        loss.backward()
        steps.step()
        loss.item()
        counts.append(len(evaluation._programs))
    assert counts[2:] == [counts[2]] * 4, counts
