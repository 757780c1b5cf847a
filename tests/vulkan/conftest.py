"""These tests count what the driver holds, so nothing of earlier tests may be left in the process."""

from __future__ import annotations

import gc

import pytest

import vkml
from vkml.vulkan import live_objects


@pytest.fixture(autouse=True)
def no_other_devices() -> None:
    """Closes the devices that sessions of other tests have opened and share."""
    if live_objects():
        gc.collect()
        vkml.close_devices()
