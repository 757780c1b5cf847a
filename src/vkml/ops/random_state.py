"""Where operators that state no seed draw from: a stream of the process, which differs from run to run."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import numpy as np

from vkml.forks import renew_in_child
from vkml.ir.dtypes import UINT32
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ops.philox import STATE_WORDS

_WORD = 1 << 32


class _Stream:
    """Keys and the numbers of draws; each draw has 2^64 blocks of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key, self._draws = int.from_bytes(os.urandom(8), "little"), 0

    def begin(self, seed: int) -> None:
        with self._lock:
            self._key, self._draws = seed % (1 << 64), 0

    def next(self) -> list[int]:
        with self._lock:
            self._draws += 1
            key, draws = self._key, self._draws
        return [key % _WORD, key // _WORD, 0, 0, draws % _WORD, draws // _WORD % _WORD]


_stream = _Stream()


def _renew() -> None:
    """A child draws other numbers than its parent."""
    global _stream
    _stream = _Stream()


renew_in_child(_renew)


def set_seed(seed: int) -> None:
    """Has operators that state no seed draw the same numbers in every process that does the same.

    Args:
        seed: a whole number, of which 64 bits count.
    """
    _stream.begin(seed)


@operator("RandomState")
class RandomState(Operator):
    """The state from which a node draws in this run, another one each time. vkml makes it, no file does."""

    domain = "vkml"
    inputs = (0, 0)
    is_deterministic = False

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [static(UINT32, (STATE_WORDS,))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [np.array(_stream.next(), np.uint32)]
