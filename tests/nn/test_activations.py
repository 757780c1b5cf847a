"""Activations against PyTorch's, and against what they are by definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import compare, normal
from vkml.nn import functional

CASES: list[tuple[str, dict[str, Any]]] = [
    ("relu", {}), ("sigmoid", {}), ("tanh", {}), ("gelu", {}), ("gelu", {"approximate": "tanh"}),
    ("silu", {}), ("mish", {}), ("leaky_relu", {}), ("leaky_relu", {"negative_slope": 0.3}), ("elu", {}),
    ("elu", {"alpha": 0.7}), ("selu", {}), ("celu", {"alpha": 1.7}), ("hardswish", {}), ("hardsigmoid", {}),
    ("softsign", {}), ("hardtanh", {}), ("hardtanh", {"min_val": -0.4, "max_val": 2.0}), ("relu6", {}),
    ("threshold", {"threshold": 0.3, "value": -2.0}), ("softplus", {}),
    ("softplus", {"beta": 3.0, "threshold": 1.5}), ("logsigmoid", {}), ("hardshrink", {"lambd": 0.8}),
    ("softshrink", {}), ("tanhshrink", {}), ("softmin", {"dim": 1}), ("softmax", {"dim": 0}),
    ("log_softmax", {"dim": -1}), ("glu", {}), ("glu", {"dim": 0}), ("normalize", {}),
    ("normalize", {"p": 1.0, "dim": 0}), ("rrelu", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "named"), CASES)
def test_against_torch(name: str, named: dict[str, Any], device_name: str) -> None:
    torch = pytest.importorskip("torch")
    x = normal(np.random.default_rng(3), 4, 6) * 3
    compare(
        lambda x: getattr(functional, name)(x, **named),
        lambda x: getattr(torch.nn.functional, name)(x, **named),
        [x],
        device_name,
    )


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (2, 4, 3, 2), (4,)])
@pytest.mark.parametrize("slopes", [1, 4])
def test_prelu(shape: tuple[int, ...], slopes: int, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(4)
    if slopes > 1 and len(shape) == 1:
        with pytest.raises(RuntimeError, match="prelu"):
            functional.prelu(vkml.ones(*shape), vkml.ones(slopes))
        return
    inputs = [normal(random, *shape), normal(random, slopes)]
    compare(functional.prelu, torch.nn.functional.prelu, inputs, device_name)


def test_far_from_zero(device_name: str) -> None:
    """Nothing overflows on the way to a finite result, and gradients are numbers."""
    x = vkml.tensor([-200.0, -50.0, 0.0, 50.0, 200.0], device=device_name, requires_grad=True)
    ends = {
        "softplus": ([0, math.exp(-50), math.log(2), 50, 200], [0, math.exp(-50), 0.5, 1, 1]),
        "logsigmoid": ([-200, -50, -math.log(2), -math.exp(-50), 0], [1, 1, 0.5, math.exp(-50), 0]),
        "mish": ([0, 0, 0, 50, 200], [0, 0, 0.6, 1, 1]),
        "selu": ([-1.7580993] * 2 + [0, 52.535049, 210.1402], [0, 0, None, 1.0507, 1.0507]),
    }
    for name, (values, slopes) in ends.items():
        x.grad = None
        found = getattr(functional, name)(x)
        np.testing.assert_allclose(found.detach().numpy(), values, rtol=1e-5, atol=1e-6, err_msg=name)
        found.sum().backward()
        assert x.grad is not None
        for one, wanted in zip(x.grad.tolist(), slopes, strict=True):
            assert wanted is None or one == pytest.approx(wanted, rel=1e-4, abs=1e-6), name


def test_in_place(device_name: str) -> None:
    for name in ("relu", "elu", "selu", "celu", "leaky_relu", "hardtanh", "rrelu"):
        x = vkml.tensor([-2.0, 3.0], device=device_name)
        wanted = getattr(functional, name)(x).numpy()
        assert getattr(functional, f"{name}_")(x) is x
        np.testing.assert_array_equal(x.numpy(), wanted)
    x = vkml.tensor([-2.0, 3.0], requires_grad=True)
    y = x * 2
    functional.relu(y, inplace=True)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 2]
    with pytest.raises(RuntimeError, match="leaf"):
        functional.relu_(x)


def test_random_slopes(device_name: str) -> None:
    vkml.manual_seed(0)
    x = -vkml.ones(2000, device=device_name)
    found = functional.rrelu(x, 0.1, 0.4, training=True).numpy()
    assert found.min() >= -0.4 and found.max() <= -0.1
    assert found.mean() == pytest.approx(-0.25, abs=0.01)
    assert found.std() == pytest.approx(0.3 / math.sqrt(12), rel=0.1)


def test_gumbel(device_name: str) -> None:
    """How often a class is drawn is its probability; gradients are those of the soft sample."""
    vkml.manual_seed(0)
    odds = np.array([0.5, 0.3, 0.15, 0.05], np.float32)
    logits = vkml.tensor(np.log(odds), device=device_name).expand(4000, 4)
    drawn = functional.gumbel_softmax(logits, tau=0.7, hard=True).numpy()
    assert set(np.unique(drawn)) == {0.0, 1.0} and (drawn.sum(1) == 1).all()
    np.testing.assert_allclose(drawn.mean(0), odds, atol=0.03)
    x = vkml.tensor(np.zeros((3, 4), np.float32), device=device_name, requires_grad=True)
    (functional.gumbel_softmax(x, hard=True) * vkml.tensor(odds, device=device_name)).sum().backward()
    assert x.grad is not None and 0 < np.abs(x.grad.numpy()).max() < 1


def test_wrong_arguments() -> None:
    x = vkml.ones(2, 3)
    with pytest.raises(RuntimeError, match="odd"):
        functional.glu(x)
    with pytest.raises(RuntimeError, match="approximate"):
        functional.gelu(x, "erf")
    with pytest.raises(RuntimeError, match="lambda"):
        functional.softshrink(x, -1)
    with pytest.raises(ValueError, match="min_val"):
        functional.hardtanh(x, 1, -1)
    with pytest.raises(RuntimeError, match="not implemented for int64"):
        functional.gelu(vkml.ones(3, dtype=vkml.int64))
