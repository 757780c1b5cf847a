"""Functions that are called by tensors, modules and optimizers, until their handle is removed."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

from vkml.dataclasses import dataclass
from vkml.tensors.structure import note_change

_numbers = itertools.count()


@dataclass(frozen=True)
class Hook:
    """A function to be called.

    Attributes:
        act: the function.
        with_kwargs: whether it takes named arguments, too.
        always_call: whether it is called where `forward` raises.
    """

    act: Callable[..., Any]
    with_kwargs: bool = False
    always_call: bool = False


Hooks = dict[int, Hook]
"""By the order in which they are called."""


class GradientHooks:
    """What is called with the gradient by a value; of a leaf, by each value that it is given."""

    __slots__ = ("__weakref__", "table")

    def __init__(self) -> None:
        self.table: Hooks = {}


class RemovableHandle:
    """Takes a hook away again; a context, at whose end it does."""

    def __init__(self, owner: object, table: str, hook: Hook, prepend: bool = False) -> None:
        hooks: Hooks = getattr(owner, table)
        self.id = next(_numbers)
        self._owner, self._table = weakref.ref(owner), table
        before = {} if prepend else dict(hooks)
        after = dict(hooks) if prepend else {}
        hooks.clear()
        hooks.update({**before, self.id: hook, **after})
        note_change()

    def remove(self) -> None:
        """Has the hook not be called any more."""
        owner = self._owner()
        if owner is not None:
            getattr(owner, self._table).pop(self.id, None)
            note_change()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
