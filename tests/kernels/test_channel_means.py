"""Means over all pixels of what a 1×1 convolution makes, as one launch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.test_separable import given, run
from vkml.engine.sketch import Sketch
from vkml.ir import Graph
from vkml.kernels import channel_means
from vkml.kernels.expanded import Expansion


def network(
    inputs: int,
    filters: int,
    size: tuple[int, int],
    *,
    batch: int = 1,
    adds: bool = False,
    after: bool = True,
) -> Graph:
    """A 1×1 convolution and its epilogue, the mean of each channel, a product."""
    rng = np.random.default_rng(inputs)
    sketch = Sketch("network")
    x = first = sketch.input("x", (batch, inputs, *size))
    weight = (rng.standard_normal((filters, inputs, 1, 1)) / np.sqrt(inputs)).astype(np.float32)
    bias = sketch.constant(rng.standard_normal(filters).astype(np.float32))
    x = sketch.node("Conv", x, sketch.constant(weight), bias)
    if adds:
        x = sketch.node("Add", x, first)
    x = sketch.node("GlobalAveragePool", sketch.node("Relu", x))
    return sketch.finish(sketch.node("Sigmoid", x) if after else x)


CASES = {
    "one slice": (network(3, 8, (9, 17)), (8, 128)),
    "slices": (network(24, 8, (5, 5)), (4, 256)),
    "residual": (network(16, 16, (4, 7), adds=True), (16, 128)),
    "batch": (network(8, 12, (4, 4), batch=3, after=False), (4, 128)),
    "a pixel": (network(8, 32, (1, 1)), (32, 128)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_launch_is_what_two_are(
    name: str, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, (channels, threads) = CASES[name]
    x = given(graph)
    with monkeypatch.context() as rule:
        rule.setattr(channel_means, "choose", lambda target, link: None)
        expected, apart = run(graph, vulkan_device_name, x)
    assert apart == ["conv", "reduce"]
    shape = Expansion(x.shape[1], channels, x.shape[2] * x.shape[3], threads)
    monkeypatch.setattr(channel_means, "forced", shape)
    made, together = run(graph, vulkan_device_name, x)
    assert together == ["channel_means"]
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
