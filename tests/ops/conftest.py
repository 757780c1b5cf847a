"""Devices with matrix units."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.kernels import attention
from vkml.kernels.attention_variants import Variant


@pytest.fixture
def unit(vulkan_device_name: str) -> Iterator[str]:
    """A device with matrix units, small ones, too."""
    fragment = device_registry.target_of(vulkan.find_device(vulkan_device_name, True), "high").fragment
    if fragment is None:
        pytest.skip("no fp16 matrix units on this device")
    attention.forced = Variant(fragment, 16, fragment.m, fragment.k, 2)
    yield vulkan_device_name
    attention.forced = None
