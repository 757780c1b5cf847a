"""Normalisations against PyTorch's: values, gradients, running statistics."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import close, compare, compare_layers, normal, takes
from vkml import nn
from vkml.nn import functional

LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("BatchNorm1d", (4,), {}, (6, 4)), ("BatchNorm1d", (4,), {"momentum": None}, (3, 4, 5)),
    ("BatchNorm2d", (3,), {"eps": 0.1, "momentum": 0.3}, (2, 3, 4, 5)),
    ("BatchNorm2d", (3,), {"affine": False}, (2, 3, 4, 5)),
    ("BatchNorm2d", (3,), {"bias": False}, (2, 3, 4, 5)),
    ("BatchNorm3d", (2,), {"track_running_stats": False}, (2, 2, 3, 2, 3)),
    ("InstanceNorm1d", (3,), {}, (2, 3, 5)), ("InstanceNorm2d", (3,), {"affine": True}, (2, 3, 4, 5)),
    ("InstanceNorm2d", (3,), {"affine": True, "track_running_stats": True}, (2, 3, 4, 5)),
    ("InstanceNorm3d", (2,), {"affine": True}, (2, 3, 2, 3)), ("GroupNorm", (2, 4), {}, (2, 4, 5, 3)),
    ("GroupNorm", (3, 6), {"eps": 0.01}, (2, 6)), ("GroupNorm", (1, 4), {"affine": False}, (2, 4, 5)),
    ("LayerNorm", (5,), {}, (2, 3, 5)), ("LayerNorm", ((3, 5),), {"eps": 0.1, "bias": False}, (2, 3, 5)),
    ("LayerNorm", (5,), {"elementwise_affine": False}, (2, 5)), ("RMSNorm", (5,), {}, (2, 3, 5)),
    ("RMSNorm", ((3, 5),), {"eps": 0.01}, (2, 3, 5)),
    ("RMSNorm", (5,), {"elementwise_affine": False}, (4, 5)),
    ("LocalResponseNorm", (3,), {"alpha": 0.5}, (2, 6, 3, 2)),
    ("LocalResponseNorm", (4,), {"alpha": 0.5, "k": 2.0, "beta": 0.6}, (2, 6, 3)),
]  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "given", "named", "shape"), LAYERS)
def test_layers(
    name: str, given: Any, named: dict[str, Any], shape: tuple[int, ...], training: bool, device_name: str
) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch.nn, name)
    if not takes(kind, *named):
        pytest.skip(f"this PyTorch's {name} does not take all of {', '.join(named)}")
    ours, theirs = getattr(nn, name)(*given, **named), kind(*given, **named)
    x = normal(np.random.default_rng(1), *shape) * 2 + 0.5
    compare_layers(ours.train(training), theirs.train(training), [x], device_name)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics(momentum: float | None, device_name: str) -> None:
    """Over several batches, looked at only in the end; what is evaluated then goes by them."""
    random = np.random.default_rng(2)
    layer = nn.BatchNorm2d(3, momentum=momentum).to(device_name)
    mean, variance = np.zeros(3), np.ones(3)
    for step in range(4):
        x = normal(random, 4, 3, 5, 2) * 3 + 1
        layer(vkml.tensor(x, device=device_name))
        share = 1 / (step + 1) if momentum is None else momentum
        mean = mean * (1 - share) + x.mean((0, 2, 3)) * share
        variance = variance * (1 - share) + x.var((0, 2, 3), ddof=1) * share
    assert layer.num_batches_tracked.item() == 4
    close(layer.running_mean.numpy(), mean, "mean")
    close(layer.running_var.numpy(), variance, "variance")
    layer.eval()
    found = layer(vkml.tensor(x, device=device_name)).detach().numpy()
    lanes = (3, 1, 1)
    close(found, (x - mean.reshape(lanes)) / np.sqrt(variance.reshape(lanes) + 1e-5), "in evaluation")
    assert layer.num_batches_tracked.item() == 4


def test_statistics_keep_no_batches() -> None:
    """A step's loss is looked at, its running statistics never are: they are computed all the same."""
    layer = nn.BatchNorm1d(3)
    x = vkml.randn(8, 3)
    hidden = x * 2
    kept = weakref.ref(hidden.value)
    layer(hidden).sum().item()
    assert layer.running_mean.value.data is not None
    assert layer.running_var.value.data is not None
    assert layer.num_batches_tracked.value.data is not None
    del hidden
    assert kept() is None


def test_captured(device_name: str) -> None:
    """Running statistics move in each run of a captured step."""
    layer = nn.BatchNorm1d(3, momentum=None).to(device_name)
    step = vkml.jit(lambda x: layer(x).sum())
    random = np.random.default_rng(3)
    batches = [normal(random, 5, 3) for _ in range(5)]
    for batch in batches:
        step(vkml.tensor(batch, device=device_name))
    assert layer.num_batches_tracked.item() == 5
    close(layer.running_mean.numpy(), np.mean([x.mean(0) for x in batches], 0), "mean")


def test_functions_without_parameters(device_name: str) -> None:
    torch = pytest.importorskip("torch")
    x = normal(np.random.default_rng(4), 3, 4, 6)
    for ours, theirs in (
        (lambda x, f: f.batch_norm(x, None, None, training=True),) * 2,
        (lambda x, f: f.instance_norm(x),) * 2,
        (lambda x, f: f.group_norm(x, 2),) * 2,
        (lambda x, f: f.layer_norm(x, [4, 6]),) * 2,
        (lambda x, f: f.rms_norm(x, [6]),) * 2,
    ):
        compare(
            lambda x, ours=ours: ours(x, functional),
            lambda x, theirs=theirs: theirs(x, torch.nn.functional),
            [x],
            device_name,
        )


def test_by_hand(device_name: str) -> None:
    x = vkml.tensor([[1.0, 5.0], [3.0, 9.0]], device=device_name)
    assert functional.batch_norm(x, None, None, training=True, eps=0.0).tolist() == [[-1, -1], [1, 1]]
    # A device's reciprocal root may be a unit in the last place off.
    found = functional.layer_norm(x, [2], eps=0.0).numpy()
    np.testing.assert_allclose(found, [[-1, 1], [-1, 1]], rtol=2**-23)
    found = functional.rms_norm(vkml.tensor([3.0, 4.0], device=device_name), [2], eps=0.0)
    np.testing.assert_allclose(found.numpy(), np.array([3, 4]) / np.sqrt(12.5), rtol=1e-6)


def test_what_does_not_fit() -> None:
    x = vkml.ones(2, 4, 3)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        functional.batch_norm(vkml.ones(1, 4), None, None, training=True)
    with pytest.raises(RuntimeError, match="evaluation mode"):
        functional.batch_norm(x, None, None)
    with pytest.raises(RuntimeError, match=r"must be \[4\]"):
        functional.batch_norm(x, vkml.ones(3), vkml.ones(4))
    with pytest.raises(ValueError, match="expected 4D input"):
        nn.BatchNorm2d(4)(x)
    with pytest.raises(RuntimeError, match="divisible"):
        functional.group_norm(x, 3)
    with pytest.raises(ValueError, match="divisible"):
        nn.GroupNorm(3, 4)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        nn.LayerNorm(4)(x)
    with pytest.raises(ValueError, match="spatial element"):
        functional.instance_norm(vkml.ones(2, 3, 1))
