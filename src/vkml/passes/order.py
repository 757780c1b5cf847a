"""An order of vertices in which each stays behind those it needs while edges are added, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class AcyclicOrder:
    """A directed graph that refuses edges which would close a cycle.

    Vertices keep positions of which every edge leads from a lower to a higher one. An edge that agrees with
    them cannot close a cycle and costs nothing; for another, only vertices between its ends are looked at and
    moved (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", 2006).

    Args:
        budget: edges that all searches together may follow; when it is used up, an edge that would need a
            search is refused.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._position: list[int] = []
        self._needs: list[list[int]] = []
        self._users: list[list[int]] = []

    def add(self, needs: Iterable[int]) -> int:
        """A new vertex behind all others, with edges from `needs`; returns its number."""
        vertex = len(self._position)
        self._position.append(vertex)
        self._needs.append([])
        self._users.append([])
        self._enter(needs, vertex)
        return vertex

    def connect(self, needs: Iterable[int], vertex: int) -> bool:
        """Adds edges from each of `needs` to a vertex; False, with none added, where they close a cycle."""
        needs = set(needs).difference(self._needs[vertex])
        late = [need for need in needs if self._position[need] > self._position[vertex]]
        if late:
            before = self._reached(late, self._needs, above=self._position[vertex])
            if before is None or vertex in before:
                return False
            upper = max(self._position[need] for need in late)
            after = self._reached([vertex], self._users, below=upper)
            if after is None:
                return False
            self._move(before, after)
        self._enter(needs, vertex)
        return True

    def _enter(self, needs: Iterable[int], vertex: int) -> None:
        for need in needs:
            self._needs[vertex].append(need)
            self._users[need].append(vertex)

    def _reached(
        self,
        start: Sequence[int],
        edges: Sequence[Iterable[int]],
        *,
        above: int = -1,
        below: int | None = None,
    ) -> set[int] | None:
        """What `edges` lead to from `start` at positions above … below; None: the budget is used up."""
        position = self._position
        limit = len(position) if below is None else below
        seen, waiting = set(start), list(start)
        while waiting:
            for other in edges[waiting.pop()]:
                self._budget -= 1
                if self._budget < 0:
                    return None
                if other not in seen and above <= position[other] <= limit:
                    seen.add(other)
                    waiting.append(other)
        return seen

    def _move(self, before: set[int], after: set[int]) -> None:
        """Gives the positions of both sets to `before` first, each set in its own order."""
        positions: Mapping[int, int] = {vertex: self._position[vertex] for vertex in (*before, *after)}
        order = [*sorted(before, key=positions.__getitem__), *sorted(after, key=positions.__getitem__)]
        for vertex, position in zip(order, sorted(positions.values()), strict=True):
            self._position[vertex] = position
