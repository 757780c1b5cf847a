"""Counts of the Vulkan objects that exist, to prove that none is left behind."""

from __future__ import annotations

from collections import Counter

from vkml.forks import renew_in_child

# Without a lock: each change is one operation of a dictionary, and finalizers come in the midst of anything.
_live: dict[object, str] = {}
renew_in_child(_live.clear)


def created(kind: str, token: object) -> None:
    """Counts one object more.

    Args:
        kind: for example "Buffer".
        token: stands for the object.
    """
    _live[token] = kind


def destroyed(token: object) -> None:
    """Counts one object less; nothing where it is not counted, as when an interrupt came before."""
    _live.pop(token, None)


def live_objects() -> dict[str, int]:
    """The Vulkan objects of this process by kind, without the one instance; empty when none is left."""
    return dict(Counter(_live.copy().values()))
