"""Mean and variance of elements that are read once, and batch normalisation in training, against float64."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import vkml
from tests.autograd.checking import check, device_called, host, placed
from vkml import nn, tracing
from vkml.engine import planning
from vkml.kernels import reduce
from vkml.lowering import vulkan
from vkml.lowering.kept import forget_lowerings
from vkml.nn import functional as F
from vkml.tracing import apply_all

Array = np.ndarray[Any, Any]


def moments(x: Array, axes: tuple[int, ...], device: str) -> list[Array]:
    found = apply_all("Moments", [placed(x, device_called(device))], 2, domain="vkml", axes=axes)
    tracing.evaluate(found)
    return [host(value) for value in found]


def drawn(*shape: int, seed: int = 0, mean: float = 0.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) + mean).astype(np.float32)


def compare(x: Array, axes: tuple[int, ...], device: str, rtol: float = 1e-5) -> None:
    mean, variance = moments(x, axes, device)
    wide = x.astype(np.float64)
    scale = np.abs(wide).max() if x.size else 0.0
    np.testing.assert_allclose(mean, wide.mean(axes, keepdims=True), rtol, 1e-6 * scale)
    np.testing.assert_allclose(variance, wide.var(axes, keepdims=True), rtol, strict=False)
    assert mean.shape == variance.shape and mean.dtype == variance.dtype == np.promote_types(x.dtype, "f4")


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((5, 3), (0,)),
        ((64, 6, 7, 7), (0, 2, 3)),
        ((3, 5, 8, 8), (0, 2, 3)),
        ((2, 1, 1, 1), (0, 2, 3)),
        ((7, 129), (1,)),
        ((70, 2, 40), (0, 1)),
        ((3, 4, 5), (0, 1, 2)),
    ],
    ids=str,
)
def test_axes(shape: tuple[int, ...], axes: tuple[int, ...], device_name: str) -> None:
    compare(drawn(*shape, mean=0.5), axes, device_name)


def test_large_means_keep_the_variance(device_name: str) -> None:
    """The mean of squares less the square of the mean would be off by the variance itself."""
    x = drawn(4, 5000, mean=3000.0)
    compare(x, (1,), device_name, rtol=1e-4)
    mean, variance = moments(np.full((2, 333), 1e30, np.float32), (1,), device_name)
    np.testing.assert_allclose(mean, 1e30, 1e-6)
    np.testing.assert_allclose(variance, 0.0, atol=1e48)  # and squares of distances do not overflow


def test_infinities(device_name: str) -> None:
    """As sums have them: infinite where all infinities are alike, of which no variance is known."""
    x = drawn(4, 600)
    x[0, 7], x[1, 599], x[2, [3, 400]], x[3, 5] = np.inf, -np.inf, [np.inf, -np.inf], np.nan
    mean, variance = moments(x, (1,), device_name)
    np.testing.assert_array_equal(mean.reshape(-1), [np.inf, -np.inf, np.nan, np.nan])
    assert np.isnan(variance).all()


def test_rows_in_ranges(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accumulators of several workgroups, one of which has fewer elements, or none of its own."""
    monkeypatch.setattr(reduce, "_splits", lambda build, walk: 7)
    forget_lowerings()
    compare(drawn(3, 2, 9, 23, mean=100.0), (0, 2, 3), vulkan_device_name, rtol=1e-4)
    compare(drawn(70, 40), (0,), vulkan_device_name)
    forget_lowerings()


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_element_types(dtype: Any, device_name: str) -> None:
    compare(drawn(3, 37).astype(dtype), (1,), device_name)


def test_of_nothing(device_name: str) -> None:
    for made in moments(np.zeros((2, 0), np.float32), (1,), device_name):
        assert made.shape == (2, 1) and np.isnan(made).all()
    assert moments(np.zeros((0, 2), np.float32), (1,), device_name)[0].shape == (0, 1)


@pytest.mark.parametrize("counted", [(0,), (1,), (0, 1)], ids=str)
def test_gradients(counted: tuple[int, ...], device_name: str) -> None:
    [x] = [np.random.default_rng(1).standard_normal((3, 4, 2))]
    check("Moments", [x], {"axes": (0, 2)}, domain="vkml", outputs=2, counted=counted, device=device_name)


def block(x: Array, weight: Array, bias: Array, skip: Array, cotangent: Array) -> list[Array]:
    """relu(batch_norm(x) + skip) in float64, and the gradients of its product with a cotangent."""
    axes, count = (0, 2, 3), x.size // x.shape[1]
    mean, inverse = x.mean(axes, keepdims=True), 1 / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    normal, factor = (x - mean) * inverse, weight.reshape(1, -1, 1, 1)
    made = normal * factor + bias.reshape(1, -1, 1, 1) + skip
    incoming = np.where(made > 0, cotangent, 0)
    total, along = incoming.sum(axes, keepdims=True), (incoming * normal).sum(axes, keepdims=True)
    by_x = factor * inverse * (incoming - total / count - normal * along / count)
    return [np.maximum(made, 0), by_x, along.reshape(-1), total.reshape(-1), incoming]


@pytest.mark.parametrize("shape", [(3, 5, 7, 7), (4, 3, 4, 8), (5, 2, 1, 1)], ids=str)
def test_a_block_trains_as_in_float64(shape: tuple[int, ...], device_name: str) -> None:
    wide = [np.random.default_rng(seed).standard_normal(shape) for seed in range(3)]
    weight, bias = (np.random.default_rng(seed).standard_normal(shape[1]) for seed in (3, 4))
    given = [wide[0] * 2 + 5, weight, bias, wide[1], wide[2]]
    tensors = [vkml.tensor(array.astype(np.float32)).to(device_name) for array in given]
    for tensor in tensors[:4]:
        tensor.requires_grad_()
    layer = nn.BatchNorm2d(shape[1]).to(device_name)
    x, weight_, bias_, skip, cotangent = tensors
    made = F.relu(F.batch_norm(x, layer.running_mean, layer.running_var, weight_, bias_, True) + skip)
    (made * cotangent).sum().backward()
    found = [made, *[tensor.grad for tensor in tensors[:4]]]
    for value, wanted in zip(found, block(*given), strict=True):
        np.testing.assert_allclose(value.numpy(), wanted, 1e-3, 2e-5 * np.abs(wanted).max())
    np.testing.assert_allclose(layer.running_mean.numpy(), given[0].mean((0, 2, 3)) * 0.1, 1e-5)
    unbiased = given[0].var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(layer.running_var.numpy(), 0.9 + 0.1 * unbiased, 1e-5)


def test_launches_of_a_step(vulkan_device_name: str) -> None:
    """Statistics; both sums of the gradient, behind the ReLU's mask; the rest of it.

    The last two read the incoming gradient and the layer's input, of which they make the mask. What went on
    is not wanted here, and not computed.
    """
    layer = nn.BatchNorm2d(4).to(vulkan_device_name)
    x, y = (vkml.tensor(drawn(8, 4, 40, 40, seed=seed)).to(vulkan_device_name) for seed in range(2))

    programs = []

    def lower(*given: Any) -> Any:
        programs.append(vulkan.lower(*given))
        return programs[-1]

    with patch.object(planning, "lower", lower):
        x.requires_grad_()
        F.relu(layer(x)).backward(y)
        assert x.grad is not None
        x.grad.numpy()
    dispatches = max(programs, key=lambda program: len(program.dispatches)).dispatches
    large = [
        sum(view.elements == x.numel() and any(view.strides[2:]) for view in dispatch.reads)
        for dispatch in dispatches
    ]
    assert [count for count in large if count] == [1, 2, 2]
