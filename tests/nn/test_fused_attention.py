"""Attention of tensors on matrix units: one kernel forwards, steps backwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import vkml
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine import plan
from vkml.kernels import attention
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
    attention.forced = Variant(fragment, 16, fragment.m, fragment.k, 2)
    yield vulkan_device_name
    attention.forced = None


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tensors_attend_in_one_kernel(forced: str, dtype: Any) -> None:
    """`scaled_dot_product_attention` keeps no scores in the forward pass; its gradient is the steps'."""
    arrays = [np.random.default_rng(at).standard_normal((1, 2, 24, 16)).astype(dtype) for at in range(3)]
    found: dict[str, list[Array]] = {}
    plans: list[Any] = []
    make = plan._make_plan

    def noted(*arguments: Any) -> Any:
        plans.append(make(*arguments))
        return plans[-1]

    for device in (forced, "cpu"):
        given = [vkml.tensor(x, device=device, requires_grad=True) for x in arrays]
        with patch.object(plan, "_make_plan", noted):
            made = functional.scaled_dot_product_attention(given[0], given[1], given[2], is_causal=True)
            (made * made).sum().backward()
            grads = [x.grad for x in given]
            found[device] = [made.detach().numpy(), *(x.numpy() for x in grads if x is not None)]
    counts = [
        [member.op for node in each.graph.nodes for member in members(node)].count("Attention")
        for each in plans
    ]
    assert sum(counts) == 1
    for mine, right in zip(found[forced], found["cpu"], strict=True):
        np.testing.assert_allclose(mine, right, rtol=2e-3, atol=2e-3 * float(np.abs(right).max()))
