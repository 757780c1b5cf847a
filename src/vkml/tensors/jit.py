"""Functions of tensors that are recorded once and then run as one plan, in one submission."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from vkml.engine.device_array import DeviceArray, Place
from vkml.errors import CaptureError
from vkml.tensors.backward import compute
from vkml.tensors.capture import Capture, capture, is_capturing
from vkml.tensors.creation import as_tensor
from vkml.tensors.tensor import Tensor
from vkml.tracing import Traced, value_of
from vkml.tracing.evaluation import Program, Recorded

Array = np.ndarray[Any, Any]
CAPTURES_KEPT = 16
"""Captures of a function that were used last."""


class jit:
    """Has a function of tensors run as one plan: a training step with its gradients and updates, say.

    The first call with arguments of these types and shapes runs as it is written; the second is captured, and
    later ones only run what was captured: the function itself is not called. Tensors that it writes in place
    (parameters, what optimizers remember) are written each time; numbers of the program, a learning rate
    among them, are those of the capture.

    Args:
        function: of tensors, of arrays, which come to it as tensors, and of other arguments, which have to be
            the same for the same capture.

    Raises:
        CaptureError: in a capture, an element of a tensor is looked at, a random number drawn, a tensor kept,
            or a gradient added to one of before. Tensors are then as they were.

    Example:
        >>> import vkml
        >>> weight = vkml.zeros(3, requires_grad=True)
        >>> optimizer = vkml.optim.SGD([weight], lr=0.1)
        >>> @vkml.jit
        ... def step(x):
        ...     optimizer.zero_grad()
        ...     loss = ((weight - x) ** 2).sum()
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
        >>> for _ in range(50):
        ...     loss = step(vkml.tensor([1.0, 2.0, 3.0]))
        >>> loss.item() < 1e-6
        True
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._captures: dict[Hashable, _Capture | None] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        leaves: list[Any] = []
        form = _flattened(arguments, leaves), _flattened(named, leaves)
        values = [leaf if isinstance(leaf, Tensor) else as_tensor(leaf) for leaf in leaves]
        key = (form, *[(value.tensor_type.key, value.device) for value in values])
        if key not in self._captures or is_capturing():
            self._captures.setdefault(key, None)
            left = list(values)
            return self._function(*_filled(arguments, left), **_filled(named, left))
        found = self._captures[key]
        if found is None:
            found = _Capture(self._function, arguments, named, values)
            if len(self._captures) > CAPTURES_KEPT:
                self._captures.pop(next(iter(self._captures)))
            self._captures[key] = found
        return found.run(values)


class _Capture:
    """What a function does, as one program.

    Args:
        function: to be captured.
        arguments: of a call.
        named: likewise.
        values: the tensors among them, in the order of `_flattened`.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Any, named: Any, values: Sequence[Tensor]
    ) -> None:
        compute(values)
        given = [Tensor(value_of(value.value.data)) for value in values]  # type: ignore[arg-type]
        left = list(given)
        with capture() as seen:
            try:
                made = function(*_filled(arguments, left), **_filled(named, left))
                results: list[Tensor] = []
                _flattened(made, results)
                self._written = [tensor for tensor, _ in seen.written.values()]
                targets = [tensor.value for tensor in (*results, *self._written)]
            finally:
                seen.restore()
        # Not the tensors of the capture, with which all that was recorded would stay.
        self._structure = _filled(made, [_NOTHING] * len(results))
        del made
        _refuse_kept(seen, results)
        pending = [value for value in targets if value.data is None]
        if len({id(value.device) for value in pending if not value.is_free}) > 1:
            raise CaptureError("a captured function computes on one device")
        recorded = Recorded(pending, held=False)
        self._program = Program(recorded, frozenset(), pending[0].device if pending else None)
        order = {id(value): at for at, value in enumerate(recorded.wanted)}
        self._places = [None if value.data is not None else order[id(value)] for value in targets]
        self._results = len(results)
        arguments_at = {id(tensor.value): at for at, tensor in enumerate(given)}
        states = {id(value): tensor for tensor, value in seen.read}

        def feed(value: Traced) -> _Feed:
            return _feed(arguments_at.get(id(value)), states.get(id(value)), value)

        self._feeds = [feed(recorded.leaves[at]) for at in self._program.inputs]
        self._known = [None if value.data is None else feed(value) for value in targets]
        """Of results that are not computed, where they are."""

    def run(self, values: Sequence[Tensor]) -> Any:
        """Runs it for other arguments of these types.

        Returns:
            What the function returned, with tensors of this run.
        """
        compute([*values, *self._written])
        places = self._own_places()
        known = [None if feed is None else feed(values) for feed in self._known]
        made = self._program.run_feeds([feed(values) for feed in self._feeds], places)
        found = [
            Tensor(value_of(made[place] if place is not None else cast(Any, data)))
            for data, place in zip(known, self._places, strict=True)
        ]
        for tensor, now in zip(self._written, found[self._results :], strict=True):
            tensor._replace(now.value)
        return _filled(self._structure, found[: self._results])

    def _own_places(self) -> Mapping[str, Place] | None:
        """Where results are to be: what is written in place in its own memory, where nobody else has that."""
        if self._program.places is None:
            return None
        places = dict(self._program.places)
        for tensor, place in zip(self._written, self._places[self._results :], strict=True):
            value = tensor.value
            there = value.data
            # Each is somebody's, the variable's and the call's; a clone would have them, too, or a pending
            # operation.
            is_alone = sys.getrefcount(value) == sys.getrefcount(there) == 3
            if place is not None and isinstance(there, DeviceArray) and is_alone:
                places[self._program.outputs[place]] = there
        return places


_NOTHING = Tensor(value_of(np.zeros(())))
"""Stands for tensors in the form of what a function returns."""


def _refuse_kept(seen: Capture, results: Sequence[Tensor]) -> None:
    """Raises where a tensor that a capture made is kept by the program: later runs would not change it."""
    returned = {id(result) for result in results}

    def kept() -> bool:
        found = (reference() for reference in seen.made.values())
        return any(tensor is not None and id(tensor) not in returned for tensor in found)

    if kept():
        gc.collect()  # some may be in cycles that nobody has
        if kept():
            raise CaptureError(
                "a captured function keeps a tensor that it makes (in a list, an attribute, an optimizer's "
                "state): return it, or write it into one that there is before the second call"
            )


_Feed = Callable[[Sequence[Tensor]], Any]


def _feed(argument: int | None, state: Tensor | None, leaf: Traced) -> _Feed:
    """Where the elements of an input are when a capture runs."""
    if argument is not None:
        return lambda values: values[argument].value.data
    if state is not None:
        return lambda values: _known(state)
    return lambda values: leaf.data


def _known(tensor: Tensor) -> Any:
    if tensor.value.data is None:
        compute([tensor])
    return tensor.value.data


def _flattened(value: Any, leaves: list[Any]) -> Hashable:
    """What nested lists, tuples and mappings look like; tensors and arrays go to `leaves`."""
    if isinstance(value, Tensor | np.ndarray):
        leaves.append(value)
        return Tensor
    if isinstance(value, list | tuple):
        return type(value), *[_flattened(item, leaves) for item in value]
    if isinstance(value, dict):
        return dict, *[(key, _flattened(item, leaves)) for key, item in value.items()]
    return type(value), value


def _filled(value: Any, leaves: list[Any]) -> Any:
    """The same with other tensors, which are taken from the front of `leaves`."""
    if isinstance(value, Tensor | np.ndarray):
        return leaves.pop(0)
    if isinstance(value, list | tuple):
        return type(value)([_filled(item, leaves) for item in value])
    if isinstance(value, dict):
        return {key: _filled(item, leaves) for key, item in value.items()}
    return value
