"""Random integers of orders and items: literal numbers, and `vkml.Generator`'s."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import vkml
from vkml.data import random_stream, streams


def test_a_block_is_that_of_the_paper() -> None:
    """Known answers of Random123's philox4x32_10: all bits clear, all bits set."""
    assert streams.block(0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    full = (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert streams.block((1 << 64) - 1, (1 << 128) - 1) == full


@pytest.mark.parametrize("seed", [0, 7, (1 << 64) - 3])
@pytest.mark.parametrize("count", [0, 1, 6, 5000])
def test_orders_are_those_of_a_generator(seed: int, count: int) -> None:
    words = vkml.Tensor(vkml.Generator().manual_seed(seed).draw(max(count, 1))).numpy()
    np.testing.assert_array_equal(streams.random_words(seed, max(count, 1)), words)
    found = streams.permutation(seed, count)
    np.testing.assert_array_equal(
        found, vkml.randperm(count, generator=vkml.Generator().manual_seed(seed)).numpy()
    )


def test_orders_are_the_same_everywhere() -> None:
    assert streams.permutation(1, 10).tolist() == [8, 3, 1, 0, 4, 6, 5, 2, 9, 7]
    assert streams.derived(3, 4, 5) == 1146498842273934422
    assert streams.integers(1, 5, 10).tolist() == [5, 5, 4, 7, 7]
    large = streams.permutation(20, 300_000)
    assert np.array_equal(np.sort(large), np.arange(300_000))
    assert large[:4].tolist() == LARGE_ORDER


LARGE_ORDER = [265240, 296856, 240586, 184792]


@pytest.mark.parametrize("below", [1, 2, 10, (1 << 32) - 1, (1 << 40) + 7])
def test_integers_are_those_of_exact_arithmetic(below: int) -> None:
    words = streams.wide_words(5, 100).tolist()
    exact = [word * below >> 64 if below <= 1 << 32 else word % below for word in words]
    assert streams.integers(5, 100, below).tolist() == exact


def test_what_streams_draw() -> None:
    stream = streams.Stream(1)
    assert [stream.below(6) for _ in range(8)] == [4, 5, 5, 3, 5, 1, 4, 5]
    found = [stream.below(3) for _ in range(3000)]
    assert all(900 < found.count(number) < 1100 for number in range(3))
    assert {streams.Stream(seed).below(1) for seed in range(5)} == {0}
    wide = [stream.below(1 << 40) for _ in range(200)]
    assert min(wide) < 1 << 37 and max(wide) > 7 << 37
    floats = [stream.random() for _ in range(1000)]
    assert 0 <= min(floats) < 0.01 and 0.99 < max(floats) < 1 and 0.45 < sum(floats) / 1000 < 0.55
    assert all(2 <= stream.uniform(2, 3) < 3 for _ in range(100))
    with pytest.raises(ValueError, match="no number from 0 to -1"):
        stream.below(0)


def test_derived_seeds_differ() -> None:
    found = {streams.derived(seed, *path) for seed in (0, 1) for path in ((0,), (1,), (0, 0), (1, 0), (-1,))}
    assert len(found) == 10


def test_a_thread_has_the_stream_of_its_item() -> None:
    seen = []

    def load() -> None:
        with streams.item(5):
            seen.append([random_stream().word() for _ in range(3)])

    threads = [threading.Thread(target=load) for _ in range(3)]
    with streams.item(6):
        first = random_stream().word()
        for thread in threads:
            thread.start()
            thread.join()
        assert (first, random_stream().word()) == streams.block(6, 0)[:2]
        with streams.item(6, 1):
            assert random_stream().word() == streams.block(streams.derived(6, 1), 0)[0]
        assert random_stream().word() == streams.block(6, 0)[2]
    assert seen == [list(streams.block(5, 0)[:3])] * 3


def test_outside_of_loaders_streams_begin_with_the_generator() -> None:
    vkml.manual_seed(3)
    found = [random_stream().word(), random_stream().word()]
    vkml.manual_seed(3)
    assert found == [random_stream().word(), random_stream().word()]
    assert found[0] != found[1]
