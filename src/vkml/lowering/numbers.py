"""The numbers of a program that depend on open sizes, all of them computed in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkml.ir.described import described
from vkml.ir.size import Size, binder
from vkml.ir.size_terms import Symbol, Terms


@described
class Number:
    """An integer that is known, or the position of one among those that are computed for the sizes."""

    known: int = 0
    position: int = -1

    def of(self, values: Sequence[int]) -> int:
        """The integer, `values` being what `Numbers.compiled` returned."""
        return self.known if self.position < 0 else values[self.position]


class Numbers:
    """Collects integers and sizes; equal sizes are computed once."""

    def __init__(self) -> None:
        self._known: dict[int, Number] = {}
        self._positions: dict[Terms, int] = {}
        self._sizes: list[Size] = []

    def add(self, value: int | Size) -> Number:
        """An integer or a size among the numbers."""
        if not isinstance(value, Size):
            known = self._known.get(value)
            if known is None:
                known = self._known[value] = Number(int(value))
            return known
        position = self._positions.setdefault(value.terms, len(self._sizes))
        if position == len(self._sizes):
            self._sizes.append(value)
        return Number(position=position)

    def compiled(self, symbols: Sequence[Symbol]) -> Callable[..., tuple[int, ...]]:
        """A function from the values of the symbols, in this order, to all computed numbers."""
        return binder(self._sizes, symbols)
