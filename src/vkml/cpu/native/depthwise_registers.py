"""What vector registers hold while a tile of a depthwise convolution is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vkml.cpu.native.expression import Epilogue, numbers_of, registers_needed
from vkml.cpu.native.tail import spare_registers
from vkml.cpu.native.tiles import MASK
from vkml.cpu.native.vectors import VectorCode


class Registers:
    """Who has which vector register while tiles are computed: sums have the first ones.

    Args:
        code: that will be written.
        places: of the tile, each with a sum.
        taps: of the window.
        epilogue: that ends a tile.
        steps: of its leaves, from place to place.
        is_partial: whether the vector of channels is not full.

    Attributes:
        mask: of the last lanes: a mask register, or a vector with AVX2.
        values: two that take turns with what is read of A.
        kept: leaves that are the same at all places of a line.
        constants: of the epilogue, by `float.hex`.
        weights: tap → register, where all have one.
        spare: what the epilogue may use.
    """

    def __init__(
        self,
        code: VectorCode,
        *,
        places: int,
        taps: int,
        epilogue: Epilogue,
        steps: Sequence[int],
        is_partial: bool,
    ) -> None:
        free = list(range(places, code.registers))
        self.mask = MASK
        if is_partial and not code.has_avx512:
            self.mask = free.pop()
        expression = epilogue.expression
        needed = registers_needed(expression, 1, has_avx512=code.has_avx512) + spare_registers(epilogue)
        need = max(3, needed)
        self.kept: dict[int, int] = {}
        self.constants: dict[str, int] = {}
        for operand in range(1, expression.operands):
            if steps[operand - 1] == 0 and len(free) > need:
                self.kept[operand] = free.pop()
        for number in numbers_of(expression):
            if len(free) > max(need, 4):
                self.constants[number] = free.pop()
        self.weights: dict[int, int] = {}
        if len(free) >= need + taps:
            self.weights = {tap: free.pop() for tap in range(taps)}
        self.spare = free
        self.values = free[:2]
        self._room = free[2:]

    def weight_plan(self, taps: Sequence[int]) -> Iterator[tuple[int | None, bool]]:
        """For each use in turn: the weight's register and whether it is there; None: leave it in memory.

        A weight takes the register of the one that is needed latest, if that is later than itself again.
        """
        if self.weights:
            yield from ((self.weights[tap], True) for tap in taps)
            return
        never = len(taps)
        following = [never] * len(taps)
        latest: dict[int, int] = {}
        for at in range(len(taps) - 1, -1, -1):
            following[at] = latest.get(taps[at], never)
            latest[taps[at]] = at
        held: dict[int, int] = {}
        coming: dict[int, int] = {}
        room = list(self._room)
        for at, tap in enumerate(taps):
            is_there = tap in held
            if not is_there and following[at] < never:
                if room:
                    held[tap] = room.pop()
                else:
                    victim = max(held, key=coming.__getitem__)
                    if coming[victim] > following[at]:
                        held[tap] = held.pop(victim)
            coming[tap] = following[at]
            yield held.get(tap), is_there
