"""A fixture for tests whose sessions must record a barrier wherever one is needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.recording_notes import Notes
from tests.recordings import missing_barriers


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    """What a test's sessions record, submit and wait for; at its end no barrier may be missing."""
    made = Notes(monkeypatch)
    yield made
    assert missing_barriers(made.history, waits_show=True) == []
