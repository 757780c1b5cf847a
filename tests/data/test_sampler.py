"""Orders of indices."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import vkml
from vkml.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


def seeded(seed: int) -> Any:
    return vkml.Generator().manual_seed(seed)


def test_in_order() -> None:
    assert list(SequentialSampler(range(4))) == [0, 1, 2, 3]
    assert list(BatchSampler(SequentialSampler(range(5)), 2, False)) == [[0, 1], [2, 3], [4]]
    assert list(BatchSampler(SequentialSampler(range(5)), 2, True)) == [[0, 1], [2, 3]]
    assert len(BatchSampler(range(5), 2, False)) == 3 and len(BatchSampler(range(5), 2, True)) == 2


def test_random_orders_are_the_same_everywhere() -> None:
    sampler = RandomSampler(range(10), generator=seeded(1))
    assert [list(sampler) for _ in range(2)] == ORDERS
    assert list(RandomSampler(range(10), num_samples=4, generator=seeded(1))) == ORDERS[0][:4]
    twice = list(RandomSampler(range(4), num_samples=10, generator=seeded(2)))
    assert sorted(twice[:4]) == sorted(twice[4:8]) == [0, 1, 2, 3] and twice[:4] != twice[4:8]
    replaced = list(RandomSampler(range(10), replacement=True, num_samples=12, generator=seeded(1)))
    assert replaced == REPLACED
    assert list(SubsetRandomSampler([5, 7, 9, 11], generator=seeded(3))) == SUBSET


ORDERS = [[6, 2, 3, 1, 0, 9, 5, 8, 7, 4], [4, 1, 5, 8, 0, 3, 2, 9, 6, 7]]
REPLACED = [4, 4, 2, 3, 9, 0, 7, 1, 8, 7, 5, 6]
SUBSET = [5, 7, 11, 9]
WEIGHTED = [4, 4, 3, 4, 4, 1, 4, 4]


def test_the_own_generator_is_that_of_the_cpu() -> None:
    vkml.manual_seed(5)
    found = list(RandomSampler(range(20)))
    vkml.manual_seed(5)
    assert found == list(RandomSampler(range(20))) != list(RandomSampler(range(20)))


@pytest.mark.parametrize("replacement", [True, False])
def test_weights(replacement: bool) -> None:
    weights = [0.0, 1.0, 2.0, 0.0, 5.0, 0.0]
    found: Counter[int] = Counter()
    sampler = WeightedRandomSampler(weights, 2, replacement)
    for seed in range(2000):
        sampler.seed_next(seed)
        drawn = list(sampler)
        found.update(drawn[:1])
        assert replacement or len(set(drawn)) == 2
    assert set(found) == {1, 2, 4}
    for index in (1, 2, 4):
        assert abs(found[index] / 2000 - weights[index] / 8) < 0.04


def test_weighted_draws_are_the_same_everywhere() -> None:
    weights = [0.1, 0.9, 0.4, 0.7, 3.0, 0.6]
    assert list(WeightedRandomSampler(weights, 8, generator=seeded(1))) == WEIGHTED
    order = list(WeightedRandomSampler(weights, 6, False, generator=seeded(1)))
    assert sorted(order) == [0, 1, 2, 3, 4, 5]


def test_weights_without_replacement_are_those_left() -> None:
    """The second of two is drawn among what the first has left: closed form."""
    weights, pairs = [1.0, 2.0, 3.0], Counter()  # type: ignore[var-annotated]
    sampler = WeightedRandomSampler(weights, 2, False)
    for seed in range(4000):
        sampler.seed_next(seed)
        pairs[tuple(sampler)] += 1
    for first in range(3):
        for second in set(range(3)) - {first}:
            chance = weights[first] / 6 * weights[second] / (6 - weights[first])
            assert abs(pairs[first, second] / 4000 - chance) < 0.03


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("size", "replicas"), [(10, 3), (9, 3), (2, 5), (0, 2)])
def test_distributed(size: int, replicas: int, drop_last: bool) -> None:
    torch = pytest.importorskip("torch")
    for rank in range(replicas):
        ours = DistributedSampler(range(size), replicas, rank, shuffle=False, drop_last=drop_last)
        if size < replicas and drop_last:
            assert list(ours) == [] and len(ours) == 0
            continue
        theirs = torch.utils.data.DistributedSampler(
            range(size), replicas, rank, shuffle=False, drop_last=drop_last
        )
        assert list(ours) == list(theirs) and len(ours) == len(theirs)


def test_distributed_shares_are_all() -> None:
    samplers = [DistributedSampler(range(10), 2, rank, seed=4) for rank in range(2)]
    first = [list(sampler) for sampler in samplers]
    assert sorted(first[0] + first[1]) == list(range(10))
    for sampler in samplers:
        sampler.set_epoch(1)
    assert [list(sampler) for sampler in samplers] != first
    with pytest.raises(ValueError, match="Invalid rank 2"):
        DistributedSampler(range(10), 2, 2)
    with pytest.raises(RuntimeError, match="num_replicas"):
        DistributedSampler(range(10))


@pytest.mark.parametrize(
    "make",
    [
        lambda generator: RandomSampler(range(30), generator=generator),
        lambda generator: RandomSampler(range(30), True, 7, generator=generator),
        lambda generator: SubsetRandomSampler(range(5, 30), generator=generator),
        lambda generator: WeightedRandomSampler(np.arange(30), 9, generator=generator),
        lambda generator: BatchSampler(RandomSampler(range(30), generator=generator), 4, False),
    ],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_an_epoch_comes_once_more(make: Any, is_own: bool) -> None:
    """Also where the order is drawn from a generator that has gone on since, or of another process."""
    sampler = make(seeded(7) if is_own else None)
    list(sampler)
    state = sampler.state_dict()
    wanted = list(sampler)
    following = list(sampler) if is_own else None
    other = make(seeded(99) if is_own else None)
    other.load_state_dict(state)
    assert list(other) == wanted
    assert not is_own or list(other) == following


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: BatchSampler(range(3), 0, False), ValueError, "batch_size=0"),
        (lambda: BatchSampler(range(3), True, False), ValueError, "batch_size=True"),
        (lambda: BatchSampler(range(3), 2, 1), ValueError, "drop_last=1"),  # type: ignore[arg-type]
        (lambda: RandomSampler(range(0)), ValueError, "num_samples=0"),
        (lambda: RandomSampler(range(3), replacement=1), TypeError, "replacement=1"),  # type: ignore[arg-type]
        (lambda: WeightedRandomSampler([1.0], 0), ValueError, "num_samples=0"),
        (lambda: WeightedRandomSampler([[1.0]], 1), ValueError, "1d sequence"),
        (lambda: WeightedRandomSampler([0.0, 0.0], 1), ValueError, "not all 0"),
        (lambda: WeightedRandomSampler([-1.0, 2.0], 1), ValueError, "at least 0"),
        (lambda: WeightedRandomSampler([float("nan")], 1), ValueError, "finite"),
        (lambda: WeightedRandomSampler([0.0, 2.0], 2, False), ValueError, "2 items are wanted"),
    ],
)
def test_impossible_orders(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()
