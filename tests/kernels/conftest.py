"""Sessions of these tests have guard zones round what kernels write; kernels are launches of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import vkml
from vkml.engine import devices as device_registry

GUARD_BYTES = 256


@pytest.fixture(autouse=True)
def guard_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes it the default of `SessionOptions.guard_bytes`."""
    initialise = vkml.SessionOptions.__init__

    def guarded(self: vkml.SessionOptions, *arguments: Any, **settings: Any) -> None:
        initialise(self, *arguments, **{"guard_bytes": GUARD_BYTES, **settings})

    monkeypatch.setattr(vkml.SessionOptions, "__init__", guarded)
    assert vkml.SessionOptions().guard_bytes == GUARD_BYTES


@pytest.fixture(autouse=True)
def single_launches(launches_of_their_own: None) -> None:
    """What kernels are, and how many, is what these tests look at."""


@pytest.fixture
def device(vulkan_device_name: str) -> str:
    """One that multiplies fp16 on matrix units."""
    from vkml import vulkan

    target = device_registry.target_of(vulkan.find_device(vulkan_device_name, True))
    if target.fragment is None:
        pytest.skip("no fp16 matrix units on this device")
    return vulkan_device_name


@pytest.fixture
def many_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules take each device for one of 132."""
    real = device_registry.target_of
    monkeypatch.setattr(
        device_registry,
        "target_of",
        lambda info, precision="highest": replace(real(info, precision), processors=132),
    )
