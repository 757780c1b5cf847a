"""Launches whose code finds open sizes among the words behind its operands' addresses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vkml.cpu.native.kernel import Kernel, Launch
from vkml.dataclasses import dataclass
from vkml.ir.size import Size

_CHUNK_SECONDS = 40e-6
"""What a chunk takes at most, so that threads finish together."""
_LEAST_CHUNK_SECONDS = 4e-6
_CHUNKS_PER_THREAD = 4


@dataclass(frozen=True)
class Open:
    """A number that is in the word of that position behind the operands' addresses."""

    position: int


Word = int | Open
"""A number that code knows, or finds in a word."""
SPAN, ROWS = Open(0), Open(1)
"""Rows that a chunk works on at most, and rows in all."""


class Parameters:
    """Collects the open sizes that code reads; equal ones once.

    Attributes:
        sizes: in the order of their words, which follow those of `SPAN` and `ROWS`.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._words: dict[int, Open] = {}

    def word(self, value: int) -> Word:
        """A size as the code of a kernel has it; numbers that no instruction can state are words, too."""
        if not isinstance(value, Size) and -(1 << 31) <= value < 1 << 31:
            return int(value)
        found = self._words.get(value)
        if found is None:
            found = self._words[value] = Open(2 + len(self.sizes))
            self.sizes.append(value)
        return found

    def words(self, values: Sequence[int]) -> tuple[Word, ...]:
        return tuple(map(self.word, values))


@dataclass(frozen=True, eq=False)
class OpenLaunch:
    """A kernel for rows of which chunks take a share each; sizes are integers or open.

    Its operands' addresses are followed by the words of `SPAN` and `ROWS` and one for each parameter; its
    table says the number of the chunk.
    """

    kernel: Kernel
    rows: int
    """That chunks share."""
    parameters: tuple[int, ...]
    work: int
    """Estimated, in units of `unit_seconds`."""
    unit_seconds: float
    scratch_bytes: int = 0

    def cut(self, rows: int, work: int, scratch_bytes: int, threads: int) -> Launch:
        """The launch cut into chunks that suit sizes.

        Args:
            rows: that `rows` is for these.
            work: that `work` is.
            scratch_bytes: that `scratch_bytes` is.
            threads: that will share the work.
        """
        seconds = work * self.unit_seconds
        share = min(_CHUNK_SECONDS, max(_LEAST_CHUNK_SECONDS, seconds / (threads * _CHUNKS_PER_THREAD)))
        chunks = max(1, min(rows, math.ceil(seconds / share)))
        kernel = replace(self.kernel, scratch_bytes=scratch_bytes)
        return Launch(kernel, np.arange(chunks, dtype=np.int64)[:, None].copy(), seconds + 1e-7)
