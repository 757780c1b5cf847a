"""Every session of these tests has guard zones round what its kernels write."""

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
