"""Dropout: how much is dropped, what is left, and that gradients see the same mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml import nn
from vkml.nn import functional


@pytest.mark.parametrize("name", ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d"])
def test_what_is_left_is_scaled(name: str, device_name: str) -> None:
    vkml.manual_seed(1)
    shape = {"Dropout": (40, 50), "Dropout1d": (40, 50, 3)}.get(name, (40, 50, 3, 2))
    shape = (*shape, 2) if name == "Dropout3d" else shape
    layer = getattr(nn, name)(0.3)
    x = vkml.ones(*shape, device=device_name, requires_grad=True)
    found = layer(x)
    assert found.device == device_name
    found.sum().backward()
    values = found.detach().numpy()
    kept = values != 0
    assert kept.mean() == pytest.approx(0.7, abs=0.04)
    np.testing.assert_allclose(values[kept], 1 / 0.7, rtol=1e-6)
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), values)
    if name != "Dropout":  # whole channels
        flat = kept.reshape(40, 50, -1)
        assert (flat.all(2) == flat.any(2)).all()
    assert (layer(x).detach().numpy() != values).any()
    assert layer.eval()(x) is x


@pytest.mark.parametrize("name", ["AlphaDropout", "FeatureAlphaDropout"])
def test_mean_and_variance_stay(name: str, device_name: str) -> None:
    vkml.manual_seed(2)
    x = vkml.tensor(
        np.random.default_rng(0).standard_normal((200, 300, 1)).astype(np.float32), device=device_name
    )
    found = getattr(nn, name)(0.4)(x).numpy()
    assert found.mean() == pytest.approx(0, abs=0.03) and found.var() == pytest.approx(1, abs=0.05)
    _, counts = np.unique(found, return_counts=True)
    assert counts.max() / found.size == pytest.approx(0.4, abs=0.02)  # all that is dropped is one number


def test_captured(device_name: str) -> None:
    """A captured step draws another mask in each run, the same forward and backward."""
    vkml.manual_seed(4)
    weight = vkml.ones(200, device=device_name, requires_grad=True)

    @vkml.jit
    def step(x: vkml.Tensor) -> tuple[vkml.Tensor, vkml.Tensor]:
        weight.grad = None
        found = functional.dropout(weight * x, 0.5)
        found.sum().backward()
        assert weight.grad is not None
        return found.detach(), weight.grad

    masks = []
    for _ in range(5):
        found, gradient = step(vkml.full([200], 3.0, device=device_name))
        np.testing.assert_array_equal(found.numpy(), gradient.numpy())
        assert set(found.tolist()) == {0, 6}
        masks.append(found.numpy())
    assert all((one != other).any() for at, one in enumerate(masks) for other in masks[:at])


def test_limits(device_name: str) -> None:
    x = vkml.tensor([1.0, -2.0], device=device_name)
    assert functional.dropout(x, 1.0).tolist() == [0, 0] and functional.dropout(x, 0.0) is x
    assert functional.dropout(x, 0.5, training=False) is x
    y = x.clone()
    assert functional.dropout(y, 0.5, inplace=True) is y and set(np.abs(y.numpy())) <= {0, 2, 4}
    infinite = functional.dropout(vkml.full([100], float("inf"), device=device_name), 0.5).numpy()
    assert set(infinite) == {0, np.inf}


def test_without_a_batch() -> None:
    vkml.manual_seed(3)
    for name, shape in (("dropout1d", (400, 3)), ("dropout3d", (400, 2, 2, 2))):
        kept = getattr(functional, name)(vkml.ones(*shape)).numpy().reshape(400, -1) != 0
        assert (kept.all(1) == kept.any(1)).all() and 0.4 < kept.mean() < 0.6


def test_wrong_arguments() -> None:
    cases: list[tuple[Any, type[Exception]]] = [
        (lambda: nn.Dropout(1.5), ValueError), (lambda: functional.dropout(vkml.ones(2), -0.1), ValueError),
        (lambda: functional.dropout1d(vkml.ones(2)), RuntimeError),
        (lambda: functional.dropout(vkml.ones(2, dtype=vkml.int64)), RuntimeError),
    ]  # fmt: skip
    for act, kind in cases:
        with pytest.raises(kind):
            act()


def test_texts() -> None:
    torch = pytest.importorskip("torch")
    for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"):
        assert repr(getattr(nn, name)(0.3)) == repr(getattr(torch.nn, name)(0.3))
