"""What a forked child makes anew: it has its parent's locks, without the threads that held them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

_functions: list[Callable[[], None]] = []
_methods: weakref.WeakKeyDictionary[Any, list[Callable[[Any], None]]] = weakref.WeakKeyDictionary()


def renew_in_child(renew: Callable[[], None]) -> None:
    """Has a function called in every process forked from this one, before anything else of vkml's runs there.

    It makes locks anew and marks as not running what other threads had under way: of the parent's threads
    only the one that forked exists. It must not raise and not wait.

    Args:
        renew: a function, or a method of an object, which this does not keep alive.
    """
    if isinstance(renew, MethodType):
        _methods.setdefault(renew.__self__, []).append(renew.__func__)
    else:
        _functions.append(renew)


def _renew_all() -> None:
    for function in _functions:
        function()
    for owner, methods in list(_methods.items()):
        for method in methods:
            method(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
