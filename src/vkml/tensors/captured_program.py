"""What a function of tensors does, recorded, as one program that runs for other arguments."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from vkml.engine.device_array import DeviceArray, Place
from vkml.engine.programs import Prepared
from vkml.ir.size import Size, binder
from vkml.ir.size_relations import symbols_in
from vkml.ir.size_terms import Symbol
from vkml.tensors.backward import compute
from vkml.tensors.capture import Capture, CapturedNumber, capture
from vkml.tensors.index_checks import refuse_negative
from vkml.tensors.open_captures import KeptTensor, Shapes
from vkml.tensors.structure import Structure
from vkml.tensors.tensor import Tensor
from vkml.tracing import Traced, value_of
from vkml.tracing.evaluation import SMALL_BYTES, Program, Recorded
from vkml.tracing.value import next_serial, tensor_type

_NOTHING = Tensor(value_of(np.zeros(())))
"""Stands for tensors in the form of what a function returns."""
_LEAVES = Tensor, np.ndarray, Size
_SEQUENCES = list, tuple
_Feed = Callable[[Sequence[Tensor]], Any]
"""Where the elements of an input are, of the arguments of a run."""


class CapturedProgram:
    """What a function does, as one program.

    Args:
        function: to be captured.
        arguments: of a call.
        named: likewise.
        values: the tensors among them, in the order of `flattened`.
        freezes: whether what it only reads is constant.
        dims: of each of the tensors, where some sizes are open: what is made then is made within
            `Sizes.deciding`, and runs for all sizes for which these decide the same.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Any, named: Any, values: Sequence[Tensor],
        freezes: bool, dims: Shapes | None = None,
    ) -> None:  # fmt: skip
        compute(values)
        shapes = [value.value.dims for value in values] if dims is None else dims
        given = [Tensor(_copied(value.value, shape)) for value, shape in zip(values, shapes, strict=True)]
        left = list(given)
        with capture() as seen:
            try:
                made = function(*filled(arguments, left), **filled(named, left))
                ends: list[Any] = []
                for end in seen.endings.values():
                    end()
                flattened(made, ends)
                results: list[Tensor] = [end for end in ends if not isinstance(end, Size)]
                self._written = [tensor for tensor, _ in seen.written.values()]
                targets = [tensor.value for tensor in (*results, *self._written)]
            finally:
                seen.restore()
        # Not the tensors of the capture, with which all that was recorded would stay.
        self._structure = filled(made, [_NOTHING] * len(ends))
        self._sizes = _ReturnedSizes(ends, shapes)
        del made
        ends.clear()
        self._results = len(results)
        returned = {id(result) for result in results}
        results.clear()  # what only they are views of is nobody's
        _refuse_kept(seen, returned)
        pending = [value for value in targets if value.data is None]
        recorded = Recorded(pending, held=False)
        order = {id(value): at for at, value in enumerate(recorded.wanted)}
        self._places = [None if value.data is not None else order[id(value)] for value in targets]
        before = [value for _, value in seen.written.values()]
        donated = [
            (value, place)
            for value, place in zip(before, self._places[self._results :], strict=True)
            if place is not None
        ]
        device = pending[0].device if pending else None
        arguments_at = {id(tensor.value): at for at, tensor in enumerate(given)}
        self._indices = [(arguments_at[id(v)], name) for v, name in seen.indices if id(v) in arguments_at]
        """Arguments whose elements may not be negative, and what says so."""
        self._guards = seen.guards
        before_it = {id(tensor): tensor for tensor, _ in (*seen.read, *seen.written.values())}
        are_given = {id(tensor) for tensor in given}
        leaves_seen = [tensor for at, tensor in before_it.items() if at not in are_given]
        self._structures = [*seen.structures, Structure(seen.modules.values(), leaves_seen).holds]
        constants: frozenset[int] = frozenset()
        if freezes:
            frozen = _Frozen(seen, arguments_at)
            self._guards.append(frozen.holds)
            constants = frozen.values
        self._program = Program(recorded, frozenset(), device, donated, constants)
        states = {id(value): tensor for tensor, value in seen.read}
        self._more: list[_Number | _Part] = [_Number(number) for number in seen.numbers]
        """Arguments of each run that nobody gives."""
        for part in seen.parts.values():
            whole = arguments_at.get(id(part.whole)), states.get(id(part.whole)), part.whole
            self._more.append(_Part(*whole, part.index))
        added = [number.leaf for number in seen.numbers] + [part.leaf for part in seen.parts.values()]
        arguments_at.update({id(leaf): at for at, leaf in enumerate(added, len(given))})

        def feed(value: Traced) -> _Feed:
            return _feed(arguments_at.get(id(value)), states.get(id(value)), value)

        leaves = [recorded.leaves[at] for at in self._program.inputs]
        self._feeds = [feed(leaf) for leaf in leaves]
        self._given = [arguments_at.get(id(leaf)) for leaf in leaves]
        """Of the feeds, which argument each is; None for what was there before."""
        numbers = {id(tensor): at for at, tensor in enumerate(self._written)}
        self._updated = [numbers.get(id(states.get(id(leaf)))) for leaf in leaves]
        """Of the feeds, which of the written tensors each is the value of before."""
        self._known = [None if value.data is None else feed(value) for value in targets]
        """Of results that are not computed, where they are."""
        self._devices = [value.device for value in targets]
        written = {at for at in self._places[self._results :] if at is not None}
        outputs = enumerate(zip(self._program.outputs, recorded.wanted, strict=True))
        self._small = {n for at, (n, v) in outputs if at not in written and _is_small(v)}
        """Results of few bytes, which come to the host with a run: a program looks at a loss."""
        updated = {self._program.outputs[at] for at in self._places[self._results :] if at is not None}
        self._fresh = [name for name in self._program.outputs if name not in updated]
        """What every run makes anew."""
        known = seen.written.keys() | are_given
        only_read = {id(tensor): tensor for tensor, _ in seen.read if id(tensor) not in known}
        self._states = list(only_read.values())
        """What is read and not written, but for arguments: those of the call that was captured would stay."""
        self._shortcut: _Shortcut | None = None

    def fits(self) -> bool:
        """Whether modules, leaves and optimizers are made of what they were made of."""
        return all([structure() for structure in self._structures])

    def holds(self) -> bool:
        """Whether a run would do what the function does now, where it `fits`."""
        return all([guard() for guard in self._guards])

    def run(self, values: Sequence[Tensor]) -> Any:
        """Runs it for other arguments of these types.

        Returns:
            What the function returned, with tensors of this run.

        Raises:
            IndexOutOfRange: an index among them is negative where that is refused.
        """
        for at, name in self._indices:
            refuse_negative(values[at].value.data, name)
        if self._more:
            values = [*values, *[one.now(values) for one in self._more]]
        compute([*values, *self._written])
        places = self._own_places()
        feeds = [feed(values) for feed in self._feeds]
        known = [None if feed is None else feed(values) for feed in self._known]
        made = dict(zip(self._program.outputs, self._program.run_feeds(feeds, places), strict=True))
        start = next_serial()
        for at, tensor in enumerate(self._written, self._results):
            place = self._places[at]
            data = _own(known[at]) if place is None else made[self._program.outputs[place]]
            tensor._traced.change(start)
            tensor._replace(value_of(cast(Any, data), self._devices[at]))
        self._shortcut = self._short_way(feeds, made)
        return self._returned(values, made)

    def run_again(self, leaves: Sequence[Any]) -> tuple[Any] | None:
        """Runs it the short way, where there is one.

        Args:
            leaves: the arguments, arrays as they are.

        Returns:
            What the function returned; None, having run nothing, where the way is longer.
        """
        shortcut = self._shortcut  # which another thread may take away
        if shortcut is None:
            return None
        for at, name in self._indices:
            leaf = leaves[at]
            refuse_negative(leaf.value.data if isinstance(leaf, Tensor) else leaf, name)
        found = shortcut.run(leaves, self._more)
        if found is None:
            self._shortcut = None
            return None
        return (filled(self._structure, found),)

    def _returned(self, values: Sequence[Tensor], made: Mapping[str, Any]) -> Any:
        """What the function returns, of what a run has made."""
        found = []
        for at in range(self._results):
            place, feed = self._places[at], self._known[at]
            if place is not None:
                data = made[self._program.outputs[place]]
            else:
                assert feed is not None
                data = _own(feed(values))
            found.append(Tensor(value_of(data, self._devices[at])))
        return filled(self._structure, self._sizes.among(found, values))

    def _short_way(self, feeds: Sequence[Any], made: Mapping[str, Any]) -> _Shortcut | None:
        """The way of later runs, where all that is written lies on one device and only arguments vary."""
        program = self._program
        on_device = program.places or {}
        if any(name in on_device and name not in self._small for name in self._fresh):
            return None  # it is elsewhere each time
        if None in self._places[self._results :] or any(
            not isinstance(made[name], DeviceArray) for name in program.outputs if name not in self._fresh
        ):
            return None
        places = self._places[self._results :]
        for feed, at in zip(feeds, self._updated, strict=True):
            # A tensor that somebody else had, too, has been written elsewhere: the next run reads it there.
            if at is not None and feed is not made[program.outputs[cast(int, places[at])]]:
                return None
        given = zip(feeds, self._given, strict=True)
        if any(isinstance(feed, DeviceArray) == (at is not None) for feed, at in given):
            return None  # an argument on the device is elsewhere each time, too
        plan = program.runner.only_plan(feeds)
        if plan is None:
            return None
        targets = {name: made[name] for name in program.outputs if name not in self._fresh}
        call = plan.prepared(feeds, program.outputs, targets, is_holding=False)
        if call is None:
            return None
        order = [self._given[at] for at in plan.reading_order]
        arguments = [at for at in order if at is not None]
        fresh = [name for name in plan.writing_order if name not in targets]
        if any(place is None for place in self._places[: self._results]):
            return None
        names = [program.outputs[cast(int, place)] for place in self._places[: self._results]]
        if not set(names) <= set(fresh):
            return None
        results = [
            (fresh.index(name), value_of(made[name], device))
            for name, device in zip(names, self._devices, strict=False)
        ]
        return _Shortcut(call, arguments, results, self._written, self._states)

    def _own_places(self) -> Mapping[str, Place] | None:
        """Where results are to be: what is written in place in its own memory, where nobody else has that."""
        if self._program.places is None:
            return None
        places = {name: there for name, there in self._program.places.items() if name not in self._small}
        for tensor, place in zip(self._written, self._places[self._results :], strict=True):
            value = tensor.value
            there = value.data
            # Each is somebody's, the variable's and the call's; a clone would have them, too, or a pending
            # operation.
            is_alone = sys.getrefcount(value) == sys.getrefcount(there) == 3
            if place is not None and isinstance(there, DeviceArray) and is_alone:
                places[self._program.outputs[place]] = there
        return places


class _ReturnedSizes:
    """Open sizes that a function returns beside tensors, as numbers of a run.

    Args:
        ends: what it returned, tensors and open sizes.
        shapes: of its arguments.
    """

    def __init__(self, ends: Sequence[Any], shapes: Sequence[Sequence[int]]) -> None:
        sizes = {at: end for at, end in enumerate(ends) if isinstance(end, Size)}
        self._places = list(sizes)
        if not sizes:
            return
        sources: dict[Symbol, tuple[int, int]] = {}
        for leaf, dims in enumerate(shapes):
            for axis, size in enumerate(dims):
                if isinstance(size, Size):
                    sources.setdefault(*symbols_in(size.terms), (leaf, axis))
        self._sources = list(sources.values())
        self._numbers = binder(sizes.values(), list(sources))

    def among(self, results: list[Any], values: Sequence[Tensor]) -> list[Any]:
        """The tensors of a run, with the sizes in their places.

        Args:
            results: the tensors.
            values: the arguments of the run.
        """
        if self._places:
            numbers = self._numbers(*[values[leaf].shape[axis] for leaf, axis in self._sources])
            for at, number in zip(self._places, numbers, strict=True):
                results.insert(at, number)
        return results


class _Frozen:
    """Matrices, and what has more axes, whose elements are part of a capture.

    Numbers and vectors take no preparing, and some of them (a learning rate, a mask) change with each step.

    Args:
        seen: what the function did.
        arguments: identities of values that come with each run.
    """

    def __init__(self, seen: Capture, arguments: Container[int]) -> None:
        self._tensors = [
            (tensor, value, tensor._version)
            for tensor, value in seen.read
            if id(value) not in arguments and id(tensor) not in seen.written and not value.tracks
            if value.type.rank > 1
        ]
        self.values = frozenset([id(value) for _, value, _ in self._tensors])
        """Their identities."""

    def holds(self) -> bool:
        """Whether all are as they were."""
        return all([t._version == version and t.value is value for t, value, version in self._tensors])


class _Shortcut:
    """Runs a capture again whose tensors are still where they were.

    Args:
        call: of the plan.
        arguments: which arguments it takes, in its order; those that nobody gives come behind the leaves.
        results: where each result is in what it makes anew, and a value like it.
        written: tensors that it writes in place.
        states: others that it reads.
    """

    def __init__(
        self, call: Prepared, arguments: Sequence[int], results: Sequence[tuple[int, Traced]],
        written: Sequence[Tensor], states: Sequence[Tensor],
    ) -> None:  # fmt: skip
        self._call = call
        self._arguments = arguments
        self._results = [(at, like.type, like.device) for at, like in results]
        self._written = [(tensor, cast(DeviceArray, tensor.value.data).address) for tensor in written]
        self._states = [(tensor, tensor.value) for tensor in states]

    def run(self, leaves: Sequence[Any], more: Sequence[_Number | _Part]) -> list[Any] | None:
        """The results; None, having run nothing, where anything is elsewhere by now.

        Args:
            leaves: tensors, and arrays as they are.
            more: arguments that nobody gives.
        """
        # A tensor that is no view has its value at hand; a step of ten parameters asks for each in 0.1 µs.
        for tensor, value in self._states:
            if (tensor._traced if tensor._base is None else tensor.value) is not value:
                return None
        references = sys.getrefcount
        held = []
        """What is written, until it has been: another thread may give a tensor another value meanwhile."""
        for tensor, address in self._written:
            value = tensor._traced if tensor._base is None else tensor.value
            there = value.data
            # As in `_own_places`.
            if references(value) != 3 or references(there) != 3:
                return None
            if type(there) is not DeviceArray or there.address != address:
                return None
            held.append(there)
        arrays = []
        count = len(leaves)
        for at in self._arguments:
            leaf = leaves[at] if at < count else more[at - count].now(leaves)
            array = leaf
            if isinstance(leaf, Tensor):
                value = leaf.value
                array = None if value.data is None else value.fed()
            if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.dtype.isnative:
                return None
            arrays.append(array)
        made = self._call(arrays)
        del held
        if made is None:
            return None
        for tensor, _ in self._written:
            tensor._version += 1
        return [Tensor(Traced(type_, device, made[at])) for at, type_, device in self._results]


class _Number:
    """A number of the program, as one more argument of each run.

    Args:
        number: it.
    """

    def __init__(self, number: CapturedNumber) -> None:
        self._read = number.read
        self._storage = number.leaf.type.dtype.storage
        self._latest: tuple[Any, Tensor] | None = None

    def now(self, leaves: Sequence[Any]) -> Tensor:
        """A tensor of what it is in a run for some arguments."""
        number = self._read()
        if self._latest is None or self._latest[0] != number:
            self._latest = number, Tensor(value_of(np.asarray(number, self._storage)))
        return self._latest[1]


class _Part:
    """A part of an argument, or of a tensor of before, as one more argument of each run.

    Args:
        argument: of which argument it is a part.
        state: or of which tensor.
        leaf: or of what that never changes.
        index: which part.
    """

    def __init__(
        self, argument: int | None, state: Tensor | None, leaf: Traced, index: tuple[slice, ...]
    ) -> None:
        self._argument, self._state, self._leaf, self._index = argument, state, leaf, index

    def now(self, leaves: Sequence[Any]) -> Tensor:
        """A tensor of its elements in a run for some arguments: the host's, wherever they are to go."""
        whole: Any = self._leaf.data
        if self._argument is not None:
            given = leaves[self._argument]
            whole = _known(given) if isinstance(given, Tensor) else given
        elif self._state is not None:
            whole = _known(self._state)
        return Tensor(value_of(np.ascontiguousarray(whole[self._index])))


def _refuse_kept(seen: Capture, returned: Container[int]) -> None:
    """Raises where a tensor that a capture made is kept by the program: later runs would not change it.

    Args:
        seen: what the function did.
        returned: identities of what it returned, which it may keep.
    """

    def kept() -> bool:
        found = (reference() for reference in seen.made.values())
        return any(tensor is not None and id(tensor) not in returned for tensor in found)

    if kept():
        gc.collect()  # some may be in cycles that nobody has
        if kept():
            raise KeptTensor(
                "a captured function keeps a tensor that it makes (in a list, an attribute, an optimizer's "
                "state): return it, or write it into one that there is before the second call"
            )


def _feed(argument: int | None, state: Tensor | None, leaf: Traced) -> _Feed:
    """Where the elements of an input are when a capture runs."""
    if argument is not None:
        return lambda values: values[argument].value.fed()
    if state is not None:
        return lambda values: _known(state)
    return lambda values: leaf.fed()


def _known(tensor: Tensor) -> Any:
    if tensor.value.data is None:
        compute([tensor])
    return tensor.value.fed()


def _own(data: Any) -> Any:
    """Elements that stay: arrays may be the caller's, who may write into them."""
    return data.copy() if isinstance(data, np.ndarray) else data


def _copied(value: Traced, dims: tuple[int, ...]) -> Traced:
    """A known value of its own with the same elements, whose sizes may be open."""
    assert value.data is not None
    return Traced(tensor_type(value.type.dtype, dims), value.device, value.data)


def _is_small(value: Traced) -> bool:
    """Whether a value of a known size takes few bytes."""
    return not value.type.is_open and value.type.bytes <= SMALL_BYTES


def flattened(value: Any, leaves: list[Any]) -> Hashable:
    """What nested lists, tuples and mappings look like; tensors, arrays and open sizes go to `leaves`."""
    if isinstance(value, _LEAVES):
        leaves.append(value)
        return Tensor
    if isinstance(value, _SEQUENCES):
        return type(value), *[flattened(item, leaves) for item in value]
    if isinstance(value, dict):
        return dict, *[(key, flattened(item, leaves)) for key, item in value.items()]
    return type(value), value


def filled(value: Any, leaves: list[Any]) -> Any:
    """The same with other leaves, which are taken from the front of `leaves`."""
    if isinstance(value, _LEAVES):
        return leaves.pop(0)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[filled(item, leaves) for item in value])
    if isinstance(value, _SEQUENCES):
        return type(value)([filled(item, leaves) for item in value])
    if isinstance(value, dict):
        return {key: filled(item, leaves) for key, item in value.items()}
    return value
