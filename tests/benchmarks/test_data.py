"""`python -m benchmarks.data` measures loaders that go through all of a dataset."""

from __future__ import annotations

from pathlib import Path

from benchmarks import data
from vkml.data import placing


def test_loaders_are_measured(tmp_path: Path) -> None:
    found = data.measure(data.pictures(tmp_path, 20, 16), 4, (0, 2), None, ("vkml",), 1)
    assert [(one["peer"], one["workers"]) for one in found] == [("vkml", 0), ("vkml", 2)]
    assert all(one["items_per_second"] > 0 for one in found)
    seen = sum(len(batch[1]) for batch in data.PEERS["vkml"](data.Items(20), 4, 2, None))
    assert seen == 20


def test_steps_are_measured(device_name: str) -> None:
    before = placing.DIRECT_BYTES
    for least in data.WAYS.values():
        assert data.step_seconds(8, 16, device_name, least, 0.01) > 0
    assert before == placing.DIRECT_BYTES
