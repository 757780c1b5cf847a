"""Hooks of modules: functions that are called around `forward`, until their handle is removed."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


class RemovableHandle:
    """Takes a hook away again; a context, at whose end it does."""

    def __init__(self, owner: object, table: str, hook: Hook, prepend: bool = False) -> None:
        hooks: Hooks = owner.__dict__[table]
        self.id = next(_numbers)
        self._owner, self._table = weakref.ref(owner), table
        before = {} if prepend else dict(hooks)
        after = dict(hooks) if prepend else {}
        hooks.clear()
        hooks.update({**before, self.id: hook, **after})

    def remove(self) -> None:
        """Has the hook not be called any more."""
        owner = self._owner()
        if owner is not None:
            owner.__dict__[self._table].pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def before(module: Any, hooks: Hooks, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Arguments as the hooks before `forward` leave them."""
    for hook in list(hooks.values()):
        if hook.with_kwargs:
            changed = hook.act(module, arguments, named)
            if changed is None:
                continue
            if not (isinstance(changed, tuple) and len(changed) == 2):
                raise RuntimeError(
                    "a forward pre-hook with with_kwargs=True returns None or a pair of arguments and named ones, "
                    f"not {changed!r}"
                )
            arguments, named = changed
        else:
            changed = hook.act(module, arguments)
            if changed is not None:
                arguments = changed if isinstance(changed, tuple) else (changed,)
    return arguments, named


def after(
    module: Any, hooks: Hooks, arguments: tuple[Any, ...], named: dict[str, Any], made: Any, *,
    failed: bool = False,
) -> Any:  # fmt: skip
    """A result as the hooks after `forward` leave it; of one that raised those alone that are always called."""
    for hook in list(hooks.values()):
        if failed and not hook.always_call:
            continue
        given = (arguments, named) if hook.with_kwargs else (arguments,)
        changed = hook.act(module, *given, made)
        if changed is not None:
            made = changed
    return made
