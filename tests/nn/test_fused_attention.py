"""Attention of tensors on matrix units: one kernel forwards, two backwards, no scores in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import vkml
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine import planning
from vkml.engine.cpu_bound import CpuBound
from vkml.kernels import attention, attention_gradients
from vkml.kernels.attention_variants import Variant
from vkml.nn import functional
from vkml.passes.fuse import members

Array = np.ndarray[Any, Any]


@pytest.fixture
def forced(vulkan_device_name: str) -> Iterator[str]:
    """A device with matrix units, small ones, too."""
    fragment = device_registry.target_of(vulkan.find_device(vulkan_device_name, True), "high").fragment
    if fragment is None:
        pytest.skip("no fp16 matrix units on this device")
    variant = attention.forced = Variant(fragment, 16, fragment.m, fragment.k, 2)
    attention_gradients.forced = variant, variant
    yield vulkan_device_name
    attention.forced = attention_gradients.forced = None


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tensors_attend_in_one_kernel(forced: str, dtype: Any) -> None:
    """`scaled_dot_product_attention` keeps no scores, nor do its gradients."""
    arrays = [np.random.default_rng(at).standard_normal((1, 2, 24, 16)).astype(dtype) for at in range(3)]
    found: dict[str, list[Array]] = {}
    plans: list[Any] = []
    make = planning._make_plan

    def noted(*arguments: Any) -> Any:
        plans.append(make(*arguments))
        return plans[-1]

    for device in (forced, "cpu"):
        given = [vkml.tensor(x, device=device, requires_grad=True) for x in arrays]
        with patch.object(planning, "_make_plan", noted):
            made = functional.scaled_dot_product_attention(given[0], given[1], given[2], is_causal=True)
            (made * made).sum().backward()
            grads = [x.grad for x in given]
            found[device] = [made.detach().numpy(), *(x.numpy() for x in grads if x is not None)]
    on_unit = [each for each in plans if not any(isinstance(x, CpuBound) for x in each.programs)]
    nodes = [node for each in on_unit for node in each.graph.nodes]
    counts = Counter(member.op for node in nodes for member in members(node))
    assert (counts["Attention"], counts["AttentionGradient"]) == (1, 1)
    assert not counts["Softmax"] and not counts["MatMul"]
    for mine, right in zip(found[forced], found["cpu"], strict=True):
        np.testing.assert_allclose(mine, right, rtol=2e-3, atol=2e-3 * float(np.abs(right).max()))


def test_nothing_is_kept_for_gradients_that_nobody_wants(forced: str) -> None:
    """The kernel then has an epilogue, which one of two results has not."""
    given = [vkml.tensor(np.ones((1, 2, 24, 16), np.float32), device=forced) for _ in range(3)]
    plans: list[Any] = []
    make = planning._make_plan

    def noted(*arguments: Any) -> Any:
        plans.append(make(*arguments))
        return plans[-1]

    with patch.object(planning, "_make_plan", noted):
        (functional.scaled_dot_product_attention(*given) * 0.7 + given[0]).numpy()
    [made] = plans
    [fused] = made.graph.nodes
    first = members(fused)[0]
    assert (first.op, len(first.outputs)) == ("Attention", 1)


def test_a_step_that_is_captured_is_bit_identical_each_time(forced: str) -> None:
    arrays = [np.random.default_rng(at).standard_normal((2, 2, 40, 16), np.float32) for at in range(3)]

    def step(q: vkml.Tensor, k: vkml.Tensor, v: vkml.Tensor) -> Any:
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return vkml.autograd.grad((made * made).sum(), [q, k, v])

    captured = vkml.jit(step)
    given = [vkml.tensor(x, device=forced) for x in arrays]
    first, again = ([x.numpy().tobytes() for x in captured(*given)] for _ in range(2))
    eager = [x.numpy().tobytes() for x in step(*given)]
    assert first == again == eager
