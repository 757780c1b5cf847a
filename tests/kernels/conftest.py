"""Sessions of these tests have guard zones round what kernels write; kernels are launches of their own."""

from __future__ import annotations

from typing import Any

import pytest

import vkml

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
