"""Shares of a batch by the speeds of devices."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.parallel.models import batches, mlp, pair_of, require_equal, trained
from vkml import nn
from vkml.nn import DataParallel
from vkml.nn.parallel import speeds
from vkml.nn.parallel.scatter_gather import sizes_of


@pytest.mark.parametrize("is_captured", [False, True])
def test_faster_devices_take_more_samples(monkeypatch: pytest.MonkeyPatch, is_captured: bool) -> None:
    """The first device takes three times as long; measuring changes neither module nor generators."""
    devices = pair_of("gpu and cpu")
    model = DataParallel(mlp(dropout=0.5).to(devices[0]), devices, shares="measured")
    ticks = count()

    def clock() -> float:
        number = next(ticks)  # two a pass, five passes a device
        return number * (3.0 if number < 10 else 1.0)

    monkeypatch.setattr(speeds, "time", type("Clock", (), {"perf_counter": staticmethod(clock)}))
    vkml.manual_seed(3)
    found = trained(model, batches((12, 10), 3), is_captured)
    np.testing.assert_allclose(model.shares, [0.25, 0.75])
    vkml.manual_seed(3)
    wanted = DataParallel(mlp(dropout=0.5).to(devices[0]), devices, shares=[1, 3])
    vkml.manual_seed(3)
    assert found == trained(wanted, batches((12, 10), 3), is_captured)
    require_equal(model)


def test_measuring_leaves_statistics_alone() -> None:
    devices = pair_of("gpu and cpu")
    model = DataParallel(nn.BatchNorm1d(3).to(devices[0]), devices, shares="measured")
    before = {name: value.tolist() for name, value in model.state_dict().items()}
    model._follow()
    model._measure(((vkml.ones(4, 3),), {}))
    assert model._is_measured and {k: v.tolist() for k, v in model.state_dict().items()} == before


def test_too_few_samples_are_not_measured() -> None:
    devices = pair_of("gpu and cpu")
    model = DataParallel(nn.Linear(3, 2).to(devices[0]), devices, shares="measured")
    model(vkml.ones(1, 3))
    assert not model._is_measured and model.shares == [0.5, 0.5]
    with pytest.raises(ValueError, match="'measured'"):
        DataParallel(nn.Linear(3, 2).to(devices[0]), devices, shares="equal")


def test_sizes_are_whole_numbers_near_their_shares() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        shares: Any = rng.random(int(rng.integers(1, 6)))
        shares = (shares / shares.sum()).tolist()
        total = int(rng.integers(0, 50))
        sizes = sizes_of(total, shares)
        assert sum(sizes) == total
        assert all(abs(size - total * share) < 1 for size, share in zip(sizes, shares, strict=True))
    assert sizes_of(7, [0.5, 0.5]) == [4, 3] and sizes_of(1, [0.2, 0.8]) == [0, 1]
