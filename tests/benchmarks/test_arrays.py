"""The benchmark of functions of arrays runs."""

from __future__ import annotations

from benchmarks import arrays


def test_timings() -> None:
    found = list(arrays.timings(["cpu"], 0.001, 1))
    assert len(found) == len(arrays.ADDED) + len(arrays.MULTIPLIED)
    for timing in found:
        assert set(timing.seconds) == {"cpu", "numpy"} and min(timing.seconds.values()) > 0
