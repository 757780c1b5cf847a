"""NumPy's names of arguments, which PyTorch takes beside its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, MutableMapping
from typing import Any

_OTHERS = {"axis": "dim", "keepdims": "keepdim", "input": "x"}
"""Names that are taken for others: NumPy's of axes, and PyTorch's of what the same functions call `x`."""


def take_numpy_names(names: MutableMapping[str, Any]) -> None:
    """Has all functions of a module that work along axes take `axis` and `keepdims`, too."""
    for name, function in list(names.items()):
        if not name.startswith("_") and callable(function):
            names[name] = _renaming(function)


def _renaming(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        own = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    if "dim" not in own:
        return function
    known = {other: name for other, name in _OTHERS.items() if name in own and other not in own}

    @functools.wraps(function)
    def act(*arguments: Any, **named: Any) -> Any:
        if named and not known.keys().isdisjoint(named):
            for other in known.keys() & named.keys():
                if known[other] in named:
                    raise TypeError(f"{function.__name__}() got both {other!r} and {known[other]!r}")
                named[known[other]] = named.pop(other)
        return function(*arguments, **named)

    return act
