"""Random integers of Philox for orders and items: of the same bits on all platforms and Python versions."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from vkml.ops.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, blocks_of

Array = np.ndarray[Any, Any]
_LOW = 0xFFFFFFFF
_AT_ONCE = 1 << 18
"""Blocks that are computed at a time: what a processor's cache holds."""


def block(seed: int, counter: int) -> tuple[int, int, int, int]:
    """The four words of one block.

    Args:
        seed: the key, of 64 bits.
        counter: the block's number, of 128 bits.
    """
    low, high = seed & _LOW, seed >> 32 & _LOW
    words = [counter >> 32 * at & _LOW for at in range(4)]
    for _ in range(ROUNDS):
        first, second = words[0] * MULTIPLIERS[0], words[2] * MULTIPLIERS[1]
        words = [second >> 32 ^ words[1] ^ low, second & _LOW, first >> 32 ^ words[3] ^ high, first & _LOW]
        low, high = low + KEY_STEPS[0] & _LOW, high + KEY_STEPS[1] & _LOW
    return words[0], words[1], words[2], words[3]


def derived(seed: int, *path: int) -> int:
    """A seed of 64 bits for a part of what another seed is for: an epoch, an item in it."""
    for number in path:
        low, high, *_ = block(seed, number % (1 << 64) | 1 << 64)
        seed = low | high << 32
    return seed


def random_words(seed: int, count: int) -> Array:
    """The first words, uint32, that a `vkml.Generator` of this seed draws in one draw of so many."""
    blocks = blocks_of(count)
    found = np.empty((4, blocks), np.uint32)
    needed = -(-count // blocks) if blocks else 0
    for start in range(0, blocks, _AT_ONCE):
        stop = min(start + _AT_ONCE, blocks)
        parts = _blocks(seed, np.arange(start, stop, dtype=np.uint64))
        for at in range(needed):
            found[at, start:stop] = parts[at]
    return found.reshape(-1)[:count]


def _blocks(seed: int, numbers: Array) -> list[Array]:
    """The words of blocks whose numbers have 64 bits, as uint64."""
    low, high = seed & _LOW, seed >> 32 & _LOW
    half, lower = np.uint64(32), np.uint64(_LOW)
    zeros = np.zeros_like(numbers)
    words = [numbers & lower, numbers >> half, zeros, zeros]
    for _ in range(ROUNDS):
        first, second = (words[at] * np.uint64(MULTIPLIERS[at // 2]) for at in (0, 2))
        words = [
            (second >> half) ^ words[1] ^ np.uint64(low), second & lower,
            (first >> half) ^ words[3] ^ np.uint64(high), first & lower,
        ]  # fmt: skip
        low, high = low + KEY_STEPS[0] & _LOW, high + KEY_STEPS[1] & _LOW
    return words


def wide_words(seed: int, count: int) -> Array:
    """Random words of 64 bits."""
    words = random_words(seed, 2 * count).astype(np.uint64)
    return words[:count] | words[count:] << np.uint64(32)


def permutation(seed: int, count: int) -> Array:
    """The numbers from 0 to `count` - 1 in any order: that of `vkml.randperm` of a generator of this seed."""
    return np.argsort(wide_words(seed, count), kind="stable")


def integers(seed: int, count: int, below: int) -> Array:
    """Numbers from 0 to `below` - 1, as equally likely as 64 random bits have it: int64."""
    words = wide_words(seed, count)
    if below <= 1 << 32:
        # The high word of a product of 64 by 32 bits, from two of 32 by 32.
        limit, half, lower = np.uint64(below), np.uint64(32), np.uint64(_LOW)
        carried = (words & lower) * limit >> half
        return ((words >> half) * limit + carried >> half).astype(np.int64)
    return (words % np.uint64(below)).astype(np.int64)


class Stream:
    """Random numbers one after the other, for what is done to one item.

    Args:
        seed: of 64 bits.

    Example:
        >>> from vkml.data.streams import Stream
        >>> stream = Stream(1)
        >>> [stream.below(6) for _ in range(8)]
        [4, 5, 5, 3, 5, 1, 4, 5]
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._number = 0
        self._words: list[int] = []

    def word(self) -> int:
        """32 bits."""
        if not self._words:
            self._words = list(reversed(block(self.seed, self._number)))
            self._number += 1
        return self._words.pop()

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1, all equally likely.

        Args:
            count: above 0.

        Raises:
            ValueError: it is not.
        """
        if count < 1:
            raise ValueError(f"there is no number from 0 to {count - 1}")
        bits = (count - 1).bit_length()
        while True:  # those beyond are drawn again: at most every second one
            found = 0
            for _ in range(-(-bits // 32)):
                found = found << 32 | self.word()
            found >>= -bits % 32
            if found < count:
                return found

    def random(self) -> float:
        """A float of [0, 1), of 53 bits."""
        return ((self.word() << 32 | self.word()) >> 11) * 2.0**-53

    def uniform(self, low: float, high: float) -> float:
        """A float of [low, high).

        Args:
            low: the least number.
            high: where numbers end.
        """
        return low + self.random() * (high - low)


class _Item(threading.local):
    path: tuple[int, ...] | None = None
    stream: Stream | None = None


_item = _Item()


class item:
    """A context in which `random_stream` of this thread is that of one item.

    Args:
        seed: of an epoch.
        path: what `derived` takes for the item; it is, when the stream is asked for.
    """

    __slots__ = ("_before", "_path")

    def __init__(self, seed: int, *path: int) -> None:
        self._path = (seed, *path)

    def __enter__(self) -> None:
        self._before = _item.path, _item.stream
        _item.path, _item.stream = self._path, None

    def __exit__(self, *_: object) -> None:
        _item.path, _item.stream = self._before


def random_stream() -> Stream:
    """Random numbers for the item that this thread is loading.

    In a `DataLoader` they follow from the loader's seed, the epoch and the item's index alone: which thread
    loads the item, and when, changes nothing. Elsewhere each call begins with a word of the CPU's generator.
    """
    if _item.stream is not None:
        return _item.stream
    if _item.path is None:
        return Stream(drawn_seed())
    _item.stream = Stream(derived(*_item.path))
    return _item.stream


def drawn_seed(generator: Any = None) -> int:
    """A seed of 64 bits from a `vkml.Generator`, the CPU's own where left out, which it advances."""
    from vkml.tensors import Tensor
    from vkml.tensors.generator import generator_of

    low, high = Tensor(generator_of(None, generator).draw(2)).tolist()
    return int(low) | int(high) << 32
