"""Functions of plain Vulkan bindings against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.array_functions.cases import conv, normal, pooled, sigmoid, softmax
from vkml.compat import vulkan_backend as vb
from vkml.errors import InvalidArgument, OperandError

Array = np.ndarray[Any, Any]


@pytest.fixture
def started(device_name: str) -> Iterator[str]:
    assert vb.init_vulkan(device_name)
    assert vb.is_vulkan_initialized()
    yield device_name
    vb.cleanup_vulkan()
    assert not vb.is_vulkan_initialized()


def planes(x: Array) -> Array:
    """[height, width, channels] as [1, channels, height, width], in float64."""
    return x.transpose(2, 0, 1)[None].astype(np.float64)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 3, 4)])
def test_element_by_element(shape: tuple[int, ...]) -> None:
    a, b = normal(*shape), normal(*shape, seed=1) + 3
    for act, right in (
        (vb.vulkan_add, a + b), (vb.vulkan_sub, a - b), (vb.vulkan_mul, a * b), (vb.vulkan_div, a / b),
    ):  # fmt: skip
        c = np.zeros_like(a)
        assert act(a, b, c) is None
        np.testing.assert_allclose(c, right, 1e-5, 1e-6)
    for act, right in (
        (vb.vulkan_relu, np.maximum(a, 0)), (vb.vulkan_sigmoid, sigmoid(a)), (vb.vulkan_tanh, np.tanh(a)),
        (vb.vulkan_softmax, softmax(a)),
    ):  # fmt: skip
        y = np.zeros_like(a)
        act(a, y)
        np.testing.assert_allclose(y, right, 1e-4, 1e-6)
        vb.vulkan_relu(a, a_there := a.copy())
        vb.vulkan_relu(a_there, a_there)
        np.testing.assert_array_equal(a_there, np.maximum(a, 0))


@pytest.mark.usefixtures("started")
def test_products() -> None:
    m, k, n = 5, 7, 3
    a, b = normal(m, k), normal(k, n)
    for left, right, c in (
        (a, b, np.zeros((m, n), np.float32)), (a.ravel(), b.ravel(), np.zeros(m * n, np.float32)),
        (a.astype(np.float64), b.T.copy().T, np.zeros((m, n), np.float32)),
    ):  # fmt: skip
        vb.vulkan_matmul(left, right, c, m, k, n)
        np.testing.assert_allclose(c.reshape(m, n), a @ b, 1e-4, 1e-5)
    c = np.zeros((m, n), np.float32)
    vb.vulkan_matmul(a, b, c)
    np.testing.assert_allclose(c, a @ b, 1e-4, 1e-5)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("is_flat", [True, False])
def test_images(is_flat: bool) -> None:
    height, width, channels, count, size = 6, 8, 3, 4, 3
    x, kernel = normal(height, width, channels), normal(count, size, size, channels)
    given = (x.ravel(), kernel.ravel()) if is_flat else (x, kernel)
    wide = np.pad(planes(x), ((0, 0), (0, 0), (1, 1), (1, 1)))
    right = conv(wide, kernel.transpose(0, 3, 1, 2).astype(np.float64), np.zeros(count), 2)
    rows, columns = right.shape[2:]
    out = np.zeros(rows * columns * count if is_flat else (rows, columns, count), np.float32)
    vb.vulkan_conv2d(*given, out, width, height, channels, count, size, 1, 2)
    np.testing.assert_allclose(planes(out.reshape(rows, columns, count)), right, 1e-4, 1e-4)
    out = np.zeros((height // 2, width // 2, channels), np.float32)
    for act, function in (
        (vb.vulkan_maxpool, np.max), (vb.vulkan_pooling, np.max), (vb.vulkan_avgpool, np.mean),
    ):  # fmt: skip
        act(given[0], out, width, height, channels, 2, 2, 2, 2)
        np.testing.assert_allclose(planes(out), pooled(planes(x), 2, function), 1e-5, 1e-6)
    # Along the width windows are wider, and steps larger.
    out = np.zeros((height - 1, (width - 3) // 2 + 1, channels), np.float32)
    vb.vulkan_maxpool(given[0], out, width, height, channels, 3, 2, 2, 1)
    assert out[1, 2, 0] == x[1:3, 4:7, 0].max()


@pytest.mark.usefixtures("started")
def test_normalisation_and_dropout() -> None:
    x, gamma, beta = normal(4, 6), normal(6), normal(6, seed=1)

    def right(rows: Array, axis: int | None, g: Array, b: Array) -> Array:
        mean = rows.mean(axis, keepdims=True)
        return (rows - mean) / np.sqrt(rows.var(axis, keepdims=True) + 1e-3) * g + b

    out = np.zeros_like(x)
    vb.vulkan_layernorm(x, gamma, beta, out, 6, 1e-3)
    np.testing.assert_allclose(out, right(x, 1, gamma, beta), 1e-4, 1e-4)
    flat, g, b = x.ravel(), normal(24), normal(24, seed=1)
    out = np.zeros(24, np.float32)
    vb.vulkan_batchnorm(flat, g, b, out, 24, 1e-3)
    np.testing.assert_allclose(out, right(flat, None, g, b), 1e-4, 1e-4)
    x, out = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    vb.vulkan_dropout(x, out, 0.25, seed=3)
    assert set(np.unique(out)) == {0, np.float32(1 / 0.75)} and 0.2 < (out == 0).mean() < 0.3
    again = np.zeros_like(out)
    vb.vulkan_dropout(x, again, 0.25, seed=3)
    np.testing.assert_array_equal(again, out)


def test_before_it_is_initialized() -> None:
    vb.cleanup_vulkan()
    x = normal(3)
    with pytest.raises(RuntimeError, match=r"Call init_vulkan\(\) first"):
        vb.vulkan_add(x, x, x)
    with pytest.raises(InvalidArgument):
        vb.init_vulkan("tpu")
    assert not vb.init_vulkan("vulkan:99") and not vb.is_vulkan_initialized()
    assert vb.init_vulkan() is True
    vb.cleanup_vulkan()


def test_what_does_not_fit() -> None:
    vb.init_vulkan("cpu")
    x, y = normal(6), np.zeros(6, np.float32)
    read_only = y.copy()
    read_only.flags.writeable = False
    for act, text in (
        (lambda: vb.vulkan_add(x, normal(5), y), r"\[5, 6\] elements"),
        (lambda: vb.vulkan_add(x, x, np.zeros(5, np.float32)), "output has 5 elements"),
        (lambda: vb.vulkan_relu(x, np.zeros(6)), "float32, not float64"),
        (lambda: vb.vulkan_relu(x, [0.0] * 6), "not list"),
        (lambda: vb.vulkan_relu(x, np.zeros(12, np.float32)[::2]), "C order"),
        (lambda: vb.vulkan_relu(x, read_only), "writable"),
        (lambda: vb.vulkan_relu(np.array(["a"] * 6), y), "not of numbers"),
        (lambda: vb.vulkan_matmul(x, x, y, 2, 3, 3), r"\[3, 3\] are 9"),
        (lambda: vb.vulkan_matmul(x, x, y), "m, k and n are needed"),
        (lambda: vb.vulkan_layernorm(x, x, x, y, 4), "no rows of 4"),
        (lambda: vb.vulkan_maxpool(x, y, 3, 2, 1, 4, 1, 1, 1), "the result is"),
        (lambda: vb.vulkan_maxpool(x, y, 3, 2, 1, 2, 2, 0, 1), "from window to window"),
        (lambda: vb.vulkan_conv2d(x, x[:4], y, 3, 2, 1, 1, 2, 0, 0), "from window to window"),
        (lambda: vb.vulkan_dropout(x, y, 1.5), "from 0 to 1"),
    ):
        with pytest.raises(OperandError, match=text) as found:
            act()
        assert isinstance(found.value, RuntimeError | ValueError)
    vb.cleanup_vulkan()
