"""Launches that are written for the sizes at hand, when open sizes are bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vkml.cpu.native.expression import Access, Epilogue
from vkml.cpu.native.kernel import Launch
from vkml.dataclasses import dataclass
from vkml.ir.size import Size, concrete
from vkml.ir.size_terms import Symbol


@dataclass(frozen=True, eq=False)
class DeferredLaunch:
    """A function that makes a launch, and its arguments, some of which are open."""

    make: Callable[..., Launch]
    arguments: Mapping[str, Any]

    def launch(self, values: Mapping[Symbol, int]) -> Launch:
        """The launch for values of the open sizes."""
        return self.make(**{name: _bound(value, values) for name, value in self.arguments.items()})


def is_open(value: Any) -> bool:
    """Whether an argument has open sizes in it."""
    if isinstance(value, Size):
        return True
    if isinstance(value, tuple | list):
        return any(map(is_open, value))
    if isinstance(value, Epilogue):
        return is_open(value.leaves) or is_open(value.results)
    return isinstance(value, Access) and is_open(value.strides)


def _bound(value: Any, values: Mapping[Symbol, int]) -> Any:
    if isinstance(value, Size):
        return concrete(value, values)
    if isinstance(value, tuple | list):
        return type(value)(_bound(each, values) for each in value)
    if isinstance(value, Epilogue):
        return replace(value, leaves=_bound(value.leaves, values), results=_bound(value.results, values))
    if isinstance(value, Access):
        return replace(value, strides=_bound(value.strides, values))
    return value
