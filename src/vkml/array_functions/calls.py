"""Calls of functions on NumPy arrays: planned once for arrays of the same types and shapes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine import devices as device_registry
from vkml.engine.array_likes import as_array
from vkml.engine.ort_value import device_of, dtype_of
from vkml.errors import InvalidArgument
from vkml.forks import renew_in_child
from vkml.tensors import Tensor
from vkml.tensors.capture import capture
from vkml.tensors.promotion import number_type, result_type
from vkml.tracing import Traced, apply, precision, value_of
from vkml.tracing.evaluation import Program, Recorded
from vkml.tracing.value import tracking

if TYPE_CHECKING:
    from vkml.vulkan import Device

Array = np.ndarray[Any, Any]
CALLS_KEPT = 512
"""Plans of calls that were used last."""


@dataclass(frozen=True, eq=False)
class Function:
    """A function of tensors that is called with arrays.

    Attributes:
        name: for messages.
        compute: of the tensors, None where one is absent, then of the settings; gives a tensor, or several.
        needed: numbers of the arrays that may not be absent.
        updated: numbers of the arrays that it writes, too; their new elements come last in what it gives.
    """

    name: str
    compute: Callable[..., Any]
    needed: tuple[int, ...] = ()
    updated: tuple[int, ...] = ()


def run(
    function: Function,
    given: Sequence[Any],
    settings: tuple[Any, ...] = (),
    out: Any = None,
    device: Any = None,
) -> Any:
    """Calls a function with arrays.

    Args:
        function: that is called.
        given: arrays, numbers, None.
        settings: hashable ones, which are part of the plan.
        out: an array to be written, or a tuple of them, None among them for fresh ones.
        device: a name of `vkml.devices()`; the best where left out.

    Returns:
        An array, or a tuple of them.

    Raises:
        InvalidArgument: `out` is not of the result's type or shape, or cannot be written.
        TypeError: what is no array is given.
        RuntimeError: shapes or types do not fit.
    """
    place = _best() if device is None else _named(device)
    form: list[Any] = []
    for array in given:
        if type(array) is np.ndarray:
            form.append((array.dtype, array.shape))
        elif array is None:
            form.append(None)
        else:
            return run(function, _as_arrays(function, given), settings, out, device)
    key: Hashable = (function, id(place), precision.current, settings, *form)
    try:
        call = _calls.get(key)
    except TypeError:
        return run(function, given, _hashable(settings), out, device)
    if call is None:
        given = _native(function, given)
        call = _Call(function, given, settings, place)
        _keep(key, call)
    else:
        try:
            _calls.move_to_end(key)
        except KeyError:  # another thread has let go of it
            _keep(key, call)
    return call.run(given, out)


class _Call:
    """A function planned for arrays of certain types and shapes.

    Args:
        function: that is planned.
        given: arrays, and None.
        settings: of it.
        device: where it runs; None for the CPU.
    """

    def __init__(
        self, function: Function, given: Sequence[Any], settings: tuple[Any, ...], device: Device | None
    ) -> None:
        self.device = device
        """Kept, so that no other has its number."""
        self._name = function.name
        self._updated = function.updated
        self._present = tuple([at for at, array in enumerate(given) if array is not None])
        absent = [at for at in function.needed if given[at] is None]
        if absent:
            raise TypeError(f"{function.name} takes an array in place {absent[0]}, not None")
        # Arrays of these types and shapes that take no memory: what is planned is for any.
        blank: list[Any] = [
            None if array is None else np.broadcast_to(np.zeros((), array.dtype), array.shape)
            for array in given
        ]
        leaves = [value_of(blank[at], device) for at in self._present]
        tensors: list[Tensor | None] = [None] * len(given)
        with tracking(False), capture():
            for at, leaf in zip(self._present, leaves, strict=True):
                tensors[at] = Tensor(leaf)
            made = function.compute(*tensors, *settings)
            found = [made] if isinstance(made, Tensor) else list(made)
            self._is_single = isinstance(made, Tensor)
            targets = [_pending(tensor.value, device) for tensor in found]
        recorded = Recorded(targets, held=False)
        order = {id(value): at for at, value in enumerate(recorded.wanted)}
        self._program = Program(recorded, frozenset(), device)
        numbers = {id(leaf): at for at, leaf in enumerate(leaves)}
        known = [recorded.leaves[at] for at in self._program.inputs]
        self._feeds = tuple([self._present[numbers[id(leaf)]] for leaf in known])
        self._places = tuple([order[id(value)] for value in targets])
        self._types = tuple([(value.type.dtype.storage, value.dims) for value in targets])
        feeds = [blank[at] for at in self._feeds]
        plan = self._program.runner.only_plan(feeds)
        self._short = None if plan is None else plan.array_call(feeds)
        self._is_plain = self._places == tuple(range(len(self._places)))

    def run(self, given: Sequence[Any], out: Any) -> Any:
        """Runs it.

        Args:
            given: arrays, and None.
            out: see `run`.
        """
        feeds = []
        for at in self._feeds:
            array = given[at]
            if not array.flags.c_contiguous or not array.flags.aligned:
                array = np.array(array, order="C")
            feeds.append(array)
        outs = None if out is None and not self._updated else self._targets(given, out)
        into = None
        if outs is not None:
            into = [self._free(target, given) for target in outs]
        made = None
        if self._short is not None and (into is None or self._is_plain):
            made = self._short(feeds, into)
        if made is None:
            found = self._program.run_feeds(feeds, None)
            made = [found[at] for at in self._places]
        if outs is not None:
            for at, target in enumerate(outs):
                if target is not None and made[at] is not target:
                    np.copyto(target, made[at])
                    made[at] = target
        if self._updated:
            del made[-len(self._updated) :]
        return made[0] if self._is_single or (self._updated and len(made) == 1) else tuple(made)

    def _targets(self, given: Sequence[Any], out: Any) -> list[Array | None]:
        """Where each result goes, of a type and shape that fit."""
        count = len(self._types) - len(self._updated)
        outs = list(out) if isinstance(out, tuple | list) else [out]
        if out is None:
            outs = [None] * count
        if len(outs) != count:
            raise InvalidArgument(f"{self._name}: out has {len(outs)} arrays, there are {count} results")
        for at, target in enumerate(outs):
            if target is None:
                continue
            dtype, shape = self._types[at]
            if not isinstance(target, np.ndarray):
                raise TypeError(f"{self._name}: out must be an array, it is {type(target).__name__}")
            if target.shape != shape:
                raise InvalidArgument(
                    f"{self._name}: out has the shape {list(target.shape)}, the result {list(shape)}"
                )
            if target.dtype != dtype:
                raise InvalidArgument(f"{self._name}: out has the type {target.dtype}, the result {dtype}")
            if not target.flags.writeable:
                raise InvalidArgument(f"{self._name}: out is read-only")
            if any(np.may_share_memory(target, other) for other in outs[:at] if other is not None):
                raise InvalidArgument(f"{self._name}: two arrays of out share memory")
        for at in self._updated:
            if not given[at].flags.writeable:
                raise InvalidArgument(f"{self._name}: array {at}, which it updates, is read-only")
        return [*outs, *[given[at] for at in self._updated]]

    def _free(self, target: Array | None, given: Sequence[Any]) -> Array | None:
        """An array that a result can be written to while inputs are read; None where it is copied there."""
        if target is None or not target.flags.c_contiguous or not target.flags.aligned:
            return None
        for at in self._feeds:
            if np.may_share_memory(target, given[at]):
                return None
        return target


def _hashable(settings: Sequence[Any]) -> tuple[Any, ...]:
    """Settings with tuples in the places of lists and of small arrays.

    Raises:
        TypeError: one is no number, text or list of such.
    """
    made = []
    for one in settings:
        given = one.tolist() if isinstance(one, np.ndarray) else one
        made.append(_hashable(given) if isinstance(given, list | tuple) else given)
        hash(made[-1])
    return tuple(made)


def _pending(value: Traced, device: Device | None) -> Traced:
    """A value that is to be computed: a copy of what is known."""
    if value.data is None:
        return value
    made = apply("Identity", value)
    made.device = device
    return made


def _as_arrays(function: Function, given: Sequence[Any]) -> list[Any]:
    """Numbers as arrays without axes, of the type that they have beside the arrays; lists as arrays."""
    found: list[Any] = []
    for value in given:
        if value is None or type(value) is np.ndarray or isinstance(value, bool | int | float):
            found.append(value)
        elif isinstance(value, Tensor):
            raise TypeError(
                f"{function.name}: vkml.ops takes arrays; of tensors, there is vkml.{function.name}"
            )
        else:
            found.append(np.asarray(value))
            if found[-1].dtype.kind not in "fiub" and not hasattr(value, "dtype"):
                raise TypeError(f"{function.name} takes arrays of numbers, not {type(value).__name__}")
    arrays = [value for value in found if isinstance(value, np.ndarray)]
    for at, value in enumerate(found):
        if isinstance(value, bool | int | float):
            kind = result_type(*arrays, value) if arrays else number_type(value)
            found[at] = np.asarray(value, kind.storage)
    return found


def _native(function: Function, given: Sequence[Any]) -> list[Any]:
    """Arrays of elements that plans take: in the machine's order, of types that ONNX has."""
    found = []
    for array in given:
        if array is not None:
            array = as_array(array, f"{function.name}: an argument", "C")
            array = array.astype(dtype_of(array.dtype).storage, copy=False)
        found.append(array)
    return found


_calls: OrderedDict[Hashable, _Call] = OrderedDict()
_lock = threading.RLock()


def _keep(key: Hashable, call: _Call) -> None:
    with _lock:
        _calls[key] = call
        while len(_calls) > CALLS_KEPT:
            _calls.popitem(last=False)


_chosen: list[Device | None] = []
"""The best device, once it has been asked for."""


def _best() -> Device | None:
    if _chosen and (_chosen[0] is None or not _chosen[0].is_closed):
        return _chosen[0]
    name = device_registry.devices()[0].name
    _chosen[:] = [device_of(name)]
    return _chosen[0]


def _named(device: Any) -> Device | None:
    name = device if isinstance(device, str) else getattr(device, "name", device)
    return _best() if name == "auto" else device_of(name)


def _renew() -> None:
    global _lock
    _lock = threading.RLock()
    _calls.clear()
    _chosen.clear()


renew_in_child(_renew)


def forget_calls() -> None:
    """Lets go of all plans of calls, and of the memory that they hold."""
    with _lock:
        _calls.clear()
