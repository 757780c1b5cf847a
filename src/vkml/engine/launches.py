"""The launches of a program: push constants and grids, of which open sizes change some numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from vkml.ir.size import Size
from vkml.kernels.dependent_launch import DEPENDENCY_BYTES, NONE, Dependency
from vkml.kernels.spec import Dispatch, KernelSpec
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
        dependents: kernels that take a `Dependency`, by the identity of those in whose place they are.
    """

    def __init__(
        self,
        levels: Sequence[Sequence[Dispatch]],
        pipelines: Mapping[int, Pipeline],
        numbers: Numbers,
        dependents: Mapping[int, KernelSpec] | None = None,
    ) -> None:
        self._words, self._grids = _Words(numbers), _Words(numbers)
        self._buffers: list[tuple[int, Buffer]] = []
        """Words that are addresses, and of which buffer."""
        self.levels: list[list[tuple[Pipeline, int, int]]] = []
        """Of each launch the pipeline, and where its push constants begin and end."""
        self.dependencies: list[list[int | None]] = []
        """Of each launch, where among all words those of its `Dependency` are."""
        formats = ["<"]
        end = 0
        for level in levels:
            self.levels.append([])
            self.dependencies.append([])
            for dispatch in level:
                kernel = (
                    dispatch.kernel
                    if dependents is None
                    else dependents.get(id(dispatch.kernel), dispatch.kernel)
                )
                start, end = end, end + kernel.push_bytes
                formats.append(self._append(dispatch))
                at = None
                if kernel.is_dependent:
                    at = len(self._words)
                    for word in NONE:
                        self._words.append(word)
                    between = kernel.push_bytes - dispatch.kernel.push_bytes - DEPENDENCY_BYTES
                    formats.append(f"{between}xQII")
                self.dependencies[-1].append(at)
                for count in dispatch.groups:
                    self._grids.append(count)
                self.levels[-1].append((pipelines[id(kernel)], start, end))
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

    def grids(self, computed: Sequence[int]) -> list[int]:
        """Three numbers of workgroups for each launch.

        Args:
            computed: the numbers.
        """
        return self._grids.complete(self._grids.copy(), computed)

    def push(
        self,
        placed: Sequence[int],
        computed: Sequence[int],
        dependencies: Iterable[tuple[int, Dependency]] = (),
    ) -> bytes:
        """The push constants of all launches.

        Args:
            placed: from `placed`.
            computed: the numbers.
            dependencies: of launches that have one, and where their words are; others wait for nothing.
        """
        words = self._words.complete(list(placed), computed)
        for at, dependency in dependencies:
            words[at : at + 3] = dependency
        return self._format.pack(*words)

    def numbers(self, placed: Sequence[int], computed: Sequence[int]) -> tuple[bytes, list[int]]:
        """What `push` and `grids` return, where no launch waits for others."""
        return self.push(placed, computed), self.grids(computed)
