"""Sessions of these tests have guard zones round what kernels write; kernels are launches of their own."""

from __future__ import annotations

from typing import Any

import pytest

import vkml
from vkml.lowering import phases

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
def launches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones are no phases of others."""
    monkeypatch.setattr(phases, "forced", 0)
