"""Settings of optimizers in captures: numbers that stay are part of the plan, others its inputs."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import DType
from vkml.tensors import Tensor
from vkml.tensors.capture import CapturedNumber, captures
from vkml.tracing import value_of

if TYPE_CHECKING:
    from vkml.optim.optimizer import Optimizer


_is = operator.is_


def is_on(value: Any) -> bool:
    """Whether a setting is not 0; a tensor counts as something else, for nobody looks at it."""
    return isinstance(value, Tensor) or value != 0


class SettingsRead:
    """What a step reads of its optimizer's groups.

    Settings that vary are tensors whether the step is captured or not: it computes the same bits.

    Args:
        optimizer: it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._numbers = None if captures.latest is None else captures.latest.numbers
        self._made: dict[tuple[int, DType], dict[str, Any]] = {}
        if captures.latest is not None:
            captures.latest.guards.append(_Guard(optimizer))
            captures.latest.structures.append(_Parts(optimizer))

    def of(self, group: dict[str, Any], dtype: DType) -> Mapping[str, Any]:
        """A group's settings; those that vary as tensors of a type."""
        if self._numbers is None and not self._optimizer.varying:
            return group
        found = self._made.get((id(group), dtype))
        if found is None:
            found = self._made[id(group), dtype] = dict(group)
            for name in self._varying():
                value = group[name]
                if isinstance(value, tuple):
                    found[name] = tuple(
                        [self._input(group, name, at, part, dtype) for at, part in enumerate(value)]
                    )
                else:
                    found[name] = self._input(group, name, None, value, dtype)
        return found

    def _varying(self) -> list[str]:
        return [name for name in self._optimizer.tunable if name in self._optimizer.varying]

    def _input(self, group: dict[str, Any], name: str, at: int | None, value: Any, dtype: DType) -> Any:
        if isinstance(value, Tensor) or not _is_number(value) or value == 0:
            return value  # a tensor is read by itself, and 0 decides what is computed at all
        leaf = value_of(np.asarray(value, dtype.storage))

        def read() -> Any:
            now = group[name]
            return now if at is None else now[at]

        if self._numbers is not None:
            self._numbers.append(CapturedNumber(leaf, read))
        return Tensor(leaf)


class _Parts:
    """Whether an optimizer has the parameters and the state that a capture has seen.

    Args:
        optimizer: it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._state = optimizer.state
        self._counts = self._counted()

    def __call__(self) -> bool:
        return self._optimizer.state is self._state and self._counted() == self._counts

    def _counted(self) -> list[int]:
        return [len(self._state), *[len(group["params"]) for group in self._optimizer.param_groups]]


class _Guard:
    """Whether a run would still do what a capture did; otherwise the next one reads what has changed.

    It lives as long as the capture does, and holds nothing that that made.

    Args:
        optimizer: whose settings the capture has gone by.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._names = tuple(optimizer.defaults)
        self._get = operator.itemgetter(*self._names) if len(self._names) > 1 else self._one
        self._seen = [self._get(group) for group in optimizer.param_groups]

    def __call__(self) -> bool:
        optimizer = self._optimizer
        get, is_same = self._get, True
        for group, seen in zip(optimizer.param_groups, self._seen, strict=True):
            found = get(group)
            if all(map(_is, found, seen)):
                continue  # 0.5 µs instead of 5: each run of a capture asks
            for name, now, before in zip(self._names, found, seen, strict=True):
                if now is before or _alike(now, before, name in optimizer.varying):
                    continue
                is_same = False
                optimizer.varying.add(name)
        return is_same

    def _one(self, group: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple([group[name] for name in self._names])


def _alike(now: Any, before: Any, varies: bool) -> bool:
    """Whether one setting may stand for another: an equal one, or another number where these are inputs."""
    if isinstance(now, Tensor) or isinstance(before, Tensor):
        return now is before
    if isinstance(now, tuple) and isinstance(before, tuple) and len(now) == len(before):
        return all(_alike(one, other, varies) for one, other in zip(now, before, strict=True))
    if varies and _is_number(now) and _is_number(before):
        return bool(now) == bool(before)
    return type(now) is type(before) and bool(now == before)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
