"""The launches of a program: push constants and grids, of which open sizes change some numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vkml.ir.size import Size
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, View
from vkml.lowering.numbers import Numbers

if TYPE_CHECKING:
    from vkml.vulkan import Pipeline


class _Words:
    """Integers, to some of which computed numbers are added."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._known: list[int] = []
        self._computed: list[tuple[int, int]] = []
        """Positions here and among the computed numbers."""

    def __len__(self) -> int:
        return len(self._known)

    def append(self, value: int | Size) -> None:
        if isinstance(value, Size):
            self._computed.append((len(self._known), self._numbers.add(value).position))
            value = 0
        self._known.append(value)

    def copy(self) -> list[int]:
        return self._known.copy()

    def complete(self, words: list[int], computed: Sequence[int]) -> list[int]:
        """Adds the computed numbers to a copy of the words."""
        for at, position in self._computed:
            words[at] += computed[position]
        return words


class Launches:
    """All launches of a program, level by level.

    The push constants of all of them are one list of words: with memory its addresses are filled in once,
    with sizes the few words are that hang on these.

    Args:
        levels: the dispatches.
        pipelines: by the identity of the dispatches' kernels.
        numbers: collects what has to be computed from open sizes.
    """

    def __init__(
        self,
        levels: Sequence[Sequence[Dispatch]],
        pipelines: Mapping[int, Pipeline],
        numbers: Numbers,
    ) -> None:
        self._words, self._grids = _Words(numbers), _Words(numbers)
        self._buffers: list[tuple[int, Buffer]] = []
        """Words that are addresses, and of which buffer."""
        self.levels: list[list[tuple[Pipeline, int, int]]] = []
        """Of each launch the pipeline, and where its push constants begin and end."""
        formats = ["<"]
        end = 0
        for level in levels:
            self.levels.append([])
            for dispatch in level:
                start, end = end, end + dispatch.kernel.push_bytes
                formats.append(self._append(dispatch))
                for count in dispatch.groups:
                    self._grids.append(count)
                self.levels[-1].append((pipelines[id(dispatch.kernel)], start, end))
        self._format = struct.Struct("".join(formats))

    def _append(self, dispatch: Dispatch) -> str:
        """Adds a dispatch's push constants, addresses first; returns their format."""
        count = 0
        for argument in dispatch.arguments:
            if isinstance(argument, View):
                self._buffers.append((len(self._words), argument.buffer))
                self._words.append(argument.byte_offset)
                count += 1
            elif isinstance(argument, Buffer):
                self._buffers.append((len(self._words), argument))
                self._words.append(0)
                count += 1
            else:
                self._words.append(argument)
        return f"{count}Q{len(dispatch.arguments) - count}i"

    def placed(self, addresses: Mapping[Buffer, int]) -> list[int]:
        """The words of all push constants with buffers at these addresses."""
        words = self._words.copy()
        for at, buffer in self._buffers:
            words[at] += addresses[buffer]
        return words

    def numbers(self, placed: Sequence[int], computed: Sequence[int]) -> tuple[bytes, list[int]]:
        """The push constants of all launches, and three numbers of workgroups for each.

        Args:
            placed: from `placed`.
            computed: the numbers.
        """
        push = self._format.pack(*self._words.complete(list(placed), computed))
        return push, self._grids.complete(self._grids.copy(), computed)
