"""Structure that captures go by: what modules are made of and what leaves are, and its changes."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
_numbers = itertools.count(1)


class Holder(Protocol):
    """What has a structure: a module."""

    def structure(self) -> Sequence[Any]:
        """What it is made of, all of which stay the same objects, or equal, while nothing changes."""


class _Latest:
    number = 0


_latest = _Latest()


def note_change() -> None:
    """Has all captures look whether what they have gone by is still as it was."""
    _latest.number = next(_numbers)


def _noted(act: F) -> F:
    def change(self: Table, *arguments: Any, **named: Any) -> Any:
        note_change()
        return act(self, *arguments, **named)

    return cast(F, change)


class Table(dict[str, Any]):
    """Parts of a module by their names, whose changes are noted whoever makes them."""

    __slots__ = ()

    __setitem__ = _noted(dict.__setitem__)
    __delitem__ = _noted(dict.__delitem__)
    __ior__ = _noted(dict.__ior__)
    clear = _noted(dict.clear)
    update = _noted(dict.update)
    setdefault = _noted(dict.setdefault)
    popitem = _noted(dict.popitem)

    def pop(self, name: str, *default: Any) -> Any:
        """Takes a part away."""
        if name in self:  # modules ask all their tables for each attribute that is assigned
            note_change()
        return super().pop(name, *default)


class Structure:
    """What a capture has gone by.

    Args:
        holders: modules that it called; those that are gone by now were its own.
        leaves: tensors of before that it read or wrote.
    """

    def __init__(self, holders: Iterable[weakref.ref[Any]], leaves: Collection[Tensor]) -> None:
        alive = [holder for reference in holders if (holder := reference()) is not None]
        self._holders = [(weakref.ref(holder), list(holder.structure())) for holder in alive]
        self._leaves = [(tensor, _leaf_structure(tensor)) for tensor in leaves]
        self._number = _latest.number

    def holds(self) -> bool:
        """Whether all is as it was; one comparison of numbers where nothing has changed anywhere."""
        number = _latest.number
        if number == self._number:
            return True
        for tensor, before in self._leaves:
            if _leaf_structure(tensor) != before:
                return False
        for reference, parts in self._holders:
            holder = reference()
            if holder is not None and not _is_same(holder.structure(), parts):
                return False
        self._number = number
        return True


def _leaf_structure(tensor: Tensor) -> tuple[Any, ...]:
    behind = tensor.__dict__.get("_accumulated", ())
    value = tensor._traced
    hooks = () if value.hooks is None else value.hooks.table
    return value.tracks, value.type.key, value.device, tuple(hooks), tuple(behind)


def _is_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    return len(now) == len(before) and all(one is other for one, other in zip(now, before, strict=True))
