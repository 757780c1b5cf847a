"""Attributes that are computed when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_Value = TypeVar("_Value")


class lazy(Generic[_Value]):
    """As `functools.cached_property`, without the lock that it has before Python 3.12.

    All objects of a class shared that one: models were decoded one after another, and a child forked in the
    meantime waited for ever. The lock took 1 µs a node of a graph, too. Two threads that ask at the same time
    may both compute here.
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[_Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...

    def __get__(self, instance: object | None, owner: type) -> lazy[_Value] | _Value:
        if instance is None:
            return self
        # From now on the instance's own attribute is found first.
        value = instance.__dict__[self._name] = self._compute(instance)
        return value

    def know(self, instance: object, value: _Value) -> None:
        """States what would be computed, where it is known already."""
        instance.__dict__[self._name] = value


def kept(instance: Any, name: str, make: Callable[[Any], _Value]) -> _Value:
    """What `make` makes of an object, which keeps it: for those who know more of it than its class does."""
    found: _Value | None = instance.__dict__.get(name)
    if found is None:
        found = instance.__dict__[name] = make(instance)
    return found
