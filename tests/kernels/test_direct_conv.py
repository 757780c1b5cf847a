"""Direct convolutions, pooled at once or not: what is computed so, and that it is what two launches make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.test_separable import given, run
from vkml.engine.sketch import Sketch
from vkml.ir import Graph
from vkml.kernels import direct_conv
from vkml.kernels.direct_conv import Shape


def network(
    channels: int,
    filters: int,
    size: tuple[int, int],
    *,
    kernel: tuple[int, int] = (3, 3),
    pool: str = "",
    batch: int = 1,
    after: bool = False,
    finish: bool = True,
    **windows: Any,
) -> Graph:
    """A convolution, what is pointwise behind it, and pooling whose attributes begin with pool_."""
    rng = np.random.default_rng(channels + filters)
    sketch = Sketch("network")
    x = sketch.input("x", (batch, channels, *size))
    weight = (rng.standard_normal((filters, channels, *kernel)) / np.sqrt(channels * 9)).astype(np.float32)
    bias = sketch.constant(rng.standard_normal(filters).astype(np.float32))
    conv = {name: value for name, value in windows.items() if not name.startswith("pool_")}
    x = sketch.node("Conv", x, sketch.constant(weight), bias, **conv)
    if finish:
        x = sketch.node("Tanh", x)
    if pool:
        x = sketch.node(pool, x, **{name[5:]: v for name, v in windows.items() if name.startswith("pool_")})
    if after:
        x = sketch.node("Sub", sketch.constant(np.float32(1)), x)
    return sketch.finish(x)


def pooled(*numbers: Any, pool: str = "MaxPool", by: tuple[int, int] = (2, 2), **more: Any) -> Graph:
    more.setdefault("pool_strides", by)
    return network(*numbers, pool=pool, pool_kernel_shape=by, **more)


CASES = {
    "as it is": (network(3, 8, (9, 11), pads=(1, 1, 1, 1)), Shape(32, 1, 4)),
    "nothing behind": (network(3, 5, (9, 11), finish=False), Shape(32, 2, 1)),
    "slices": (network(8, 6, (7, 5), pads=(1, 1, 1, 1)), Shape(16, 8, 2)),
    "slices of uneven channels": (network(7, 6, (7, 5), pads=(1, 1, 1, 1)), Shape(16, 4, 2)),
    "strides and uneven pads": (network(4, 4, (10, 13), strides=(2, 3), pads=(0, 2, 1, 0)), Shape(16, 2, 1)),
    "batch": (network(2, 4, (5, 5), batch=3), Shape(32, 1, 4)),
    "pooled": (pooled(2, 4, (8, 10), pads=(1, 1, 1, 1)), Shape(32, 1, 2)),
    "pooled, slices": (pooled(8, 16, (14, 14), kernel=(5, 5), pads=(2, 2, 2, 2), by=(3, 3)), Shape(16, 8, 1)),
    "pooled, slices, filters": (pooled(8, 16, (14, 14), pads=(1, 1, 1, 1), by=(3, 3)), Shape(16, 4, 4)),
    "pooled, stride": (
        pooled(3, 4, (15, 15), strides=(2, 2), pads=(1, 1, 1, 1), after=True), Shape(16, 2, 1)
    ),
    "pooled, batch": (pooled(3, 4, (8, 8), batch=3, pads=(1, 1, 1, 1)), Shape(32, 2, 1)),
    "pooled, pads": (pooled(3, 4, (8, 8), pool_pads=(1, 1, 1, 1)), Shape(16, 2, 2)),
    "pooled, some left": (pooled(3, 4, (9, 9), pads=(1, 1, 1, 1), pool_ceil_mode=1), Shape(16, 1, 2)),
    "pooled, apart": (pooled(3, 4, (10, 10), pads=(1, 1, 1, 1), pool_strides=(3, 4)), Shape(16, 1, 2)),
    "means": (pooled(3, 4, (8, 8), pool="AveragePool", pads=(1, 1, 1, 1)), Shape(16, 2, 2)),
    "means, pads": (
        pooled(3, 4, (8, 8), pool="AveragePool", pool_pads=(1, 0, 1, 1), after=True), Shape(16, 1, 1)
    ),
    "all of an image": (pooled(3, 4, (6, 6), pool="AveragePool", by=(4, 4)), Shape(32, 1, 2)),
}  # fmt: skip


def run_apart(
    graph: Graph, device: str, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> tuple[np.ndarray, list[str]]:
    """Results, and launches, where none is a direct convolution, whatever the device."""
    with monkeypatch.context() as rule:
        rule.setattr(direct_conv, "choose", lambda target, sizes: None)
        return run(graph, device, x)


@pytest.mark.parametrize("name", CASES)
def test_one_launch_is_what_two_are(
    name: str, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, shape = CASES[name]
    x = given(graph)
    expected, apart = run_apart(graph, vulkan_device_name, x, monkeypatch)
    # Tiles may have ranges of K, whose sums are added up.
    launches = [label for label in apart if label != "add_partials"]
    assert len(launches) == 1 + any("Pool" in node.op for node in graph.nodes)
    monkeypatch.setattr(direct_conv, "forced", shape)
    made, together = run(graph, vulkan_device_name, x)
    assert together == ["conv"]
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_what_is_not_a_number_is_the_greatest(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, shape = CASES["pooled"]
    x = given(graph)
    x[0, 0, 0, 0], x[0, 1, 4, 5], x[0, 0, 7, 9] = np.nan, np.inf, -np.inf
    expected, _ = run_apart(graph, vulkan_device_name, x, monkeypatch)
    monkeypatch.setattr(direct_conv, "forced", shape)
    made, together = run(graph, vulkan_device_name, x)
    assert together == ["conv"] and np.isnan(made).any()
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "graph",
    [
        pooled(3, 4, (8, 8), by=(3, 3), pool_strides=(2, 2)),
        pooled(3, 4, (8, 8), pool="AveragePool", pool_pads=(1, 1, 1, 1), pool_count_include_pad=1),
        pooled(3, 4, (8, 8), pool="LpPool", pool_p=2),
    ],
    ids=["windows that share results", "padding that counts", "norms"],
)
def test_other_pooling_is_a_launch(
    graph: Graph, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = given(graph)
    expected, apart = run_apart(graph, vulkan_device_name, x, monkeypatch)
    monkeypatch.setattr(direct_conv, "forced", Shape(16, 1, 1))
    made, launches = run(graph, vulkan_device_name, x)
    assert len(launches) == len(apart) == 2
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
