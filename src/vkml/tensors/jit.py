"""Functions of tensors that are recorded once and then run as one plan, in one submission."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from vkml.engine.ort_value import device_of
from vkml.tensors.autocast import autocast_state
from vkml.tensors.capture import is_capturing
from vkml.tensors.capture_cache import CaptureCache
from vkml.tensors.captured_program import CapturedProgram, filled, flattened
from vkml.tensors.creation import as_tensor
from vkml.tensors.open_captures import Family, Shapes, family_key
from vkml.tensors.tensor import Tensor, device_name
from vkml.tracing import precision, value_of
from vkml.tracing.value import mode

Array = np.ndarray[Any, Any]
_FAMILIES_KEPT = 64


def jit(
    function: Callable[..., Any] | None = None, *, device: Any = None, freeze: bool = False,
    dynamic: bool | None = None,
) -> Any:  # fmt: skip
    """Has a function of tensors run as one plan: a training step with its gradients and updates, say.

    The first call with arguments of these types and shapes runs as it is written; the second is captured,
    and later ones only run what was captured: the function itself is not called. From the third set of sizes
    on one capture serves all: sizes that have varied stay open in it, and it runs for those for which the
    function would decide the same (`if x.shape[0] > 8`). It returns sizes as the numbers of each call, and
    may take them for an `int`, which they are for `isinstance`. Where sizes cannot be open (a loop over them,
    their roots, keys of a dict, texts, random numbers), each form of arguments has a capture; of more than 16
    that take turns, those that there is no room for run as they are written. Tensors that it writes in place
    (parameters, what optimizers remember, the states of random generators) are written each time; numbers of
    the program are those of the capture, but for the settings of optimizers, which are those of each run
    (see `vkml.optim.Optimizer`). Where the modules that it called have changed since (`train` and `eval`,
    what is in them, hooks), or which parameters require grad, or an optimizer's parameters and state, the
    next call runs as it is written once more, and the one behind it is captured.

    Args:
        function: of tensors, of arrays, which come to it as tensors, and of other arguments, which have to be
            the same for the same capture. Left out, `jit` is a decorator with a device.
        device: where arrays come to it; the CPU where left out. They are brought there by the run itself: a
            GPU may read large ones where they lie, and they can change when the call has returned, but not be
            resized in place.
        freeze: whether tensors of two axes and more that the function reads without writing them, and that do
            not require grad (the weights of a model that adapters are trained on), are constants of what is
            captured: prepared for its products once, which takes as much memory again, or twice as much. When
            one of them is written, the function is captured anew; a learning rate in a tensor of its own is
            read in every run, as without `freeze`. What somebody writes into an array that shares its memory
            with such a tensor goes unnoticed.
        dynamic: whether sizes are open: all from 2 on with the second call (True), those that vary with the
            third set of sizes (None), or none (False: a capture for each set of sizes, of which each is the
            fastest for its own).

    Returns:
        The function's stand-in, called as it is; of a method, one for each object. Within `detect_anomaly`
        the function runs as it is written.

    Raises:
        CaptureError: in a capture, an element of a tensor is looked at, a tensor kept, or a gradient added to
            one of before. Tensors are then as they were.

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
    if function is None:
        return functools.partial(jit, device=device, freeze=freeze, dynamic=dynamic)
    return _Captured(function, None if device is None else device_name(device), freeze, dynamic)


class _Captured:
    """A function and its captures.

    Args:
        function: see `jit`.
        device: name of the one where arrays come to it.
        freezes: whether what it only reads is constant.
        dynamic: see `jit`.
    """

    def __init__(
        self, function: Callable[..., Any], device: str | None, freezes: bool, dynamic: bool | None
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._device = device
        self._freezes = freezes
        self._dynamic = dynamic
        self._captures: CaptureCache[CapturedProgram] = CaptureCache()
        self._families: dict[Hashable, Family[CapturedProgram]] = {}

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The stand-in of a method, with captures of each object's own, which live as long as that."""
        if instance is None:
            return self
        own = getattr(instance, "__dict__", None)
        if own is None:
            return functools.partial(self, instance)
        name = f"_captured_{id(self):x}"
        found = own.get(name)
        if found is None:
            bound = types.MethodType(self._function, instance)
            found = own[name] = _Captured(bound, self._device, self._freezes, self._dynamic)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> _Captured:
        """A stand-in for the copy's own function, which has captured nothing yet."""
        return _Captured(copy.deepcopy(self._function, memo), self._device, self._freezes, self._dynamic)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if is_capturing() or mode.finds_anomalies:
            return self._written(arguments, named)
        leaves: list[Any] = []
        form = flattened(arguments, leaves), flattened(named, leaves) if named else None
        setting = form, autocast_state(), mode.tracks, precision.current
        key = (*setting, *map(_type_key, leaves))
        found = self._captures.get(key)
        if found is not None:
            if not found.fits():
                self._captures.drop(key)
                return self._written(arguments, named)
            if found.holds():
                made = found.run_again(leaves)
                return found.run(self._own(leaves)) if made is None else made[0]
        else:
            shapes = tuple([tuple(leaf.shape) for leaf in leaves])
            family = self._family(setting, leaves, shapes)
            found = family.get(shapes)
            if found is not None and not found.fits():
                family.drop(found)
                return self._written(arguments, named)
            if found is not None and not found.holds():
                family.drop(found)
                found = None
            if found is None and family.is_due(shapes):
                values = self._own(leaves)
                found = family.capture(
                    shapes,
                    lambda dims: CapturedProgram(
                        self._function, arguments, named, values, self._freezes, dims
                    ),
                )
            is_wanted = found is None or family.is_hot(shapes)
            if not (is_wanted and self._captures.is_due(key)):
                return self._written(arguments, named) if found is None else found.run(self._own(leaves))
        values = self._own(leaves)
        found = CapturedProgram(self._function, arguments, named, values, self._freezes)
        self._captures.put(key, found)
        return found.run(values)

    def _written(self, arguments: Any, named: Any) -> Any:
        """What the function does as it is written."""
        return self._function(*self._as_tensors(arguments), **self._as_tensors(named))

    def _own(self, leaves: Sequence[Any]) -> list[Tensor]:
        return [self._tensor(leaf, is_own=True) for leaf in leaves]

    def _family(self, setting: Hashable, leaves: Sequence[Any], shapes: Shapes) -> Family[CapturedProgram]:
        """What calls that differ from this one in sizes alone have in common.

        Args:
            setting: what is the same beside types.
            leaves: the tensors and arrays among the arguments.
            shapes: of these.
        """
        types = [(leaf.dtype, leaf.device if isinstance(leaf, Tensor) else None) for leaf in leaves]
        key = setting, *types, family_key(shapes)
        found = self._families.get(key)
        if found is None:
            if len(self._families) >= _FAMILIES_KEPT:
                self._families.pop(next(iter(list(self._families))), None)
            found = self._families.setdefault(key, Family(self._dynamic))
        return found

    def _as_tensors(self, given: Any) -> Any:
        """Arguments with tensors in the place of arrays."""
        leaves: list[Any] = []
        flattened(given, leaves)
        return filled(given, [self._tensor(leaf, is_own=False) for leaf in leaves])

    def _tensor(self, leaf: Any, is_own: bool) -> Tensor:
        """An argument as a tensor.

        Args:
            leaf: it.
            is_own: whether nobody writes an array before it is used for the last time.
        """
        if isinstance(leaf, Tensor):
            return leaf
        if not is_own or not leaf.flags.c_contiguous or not leaf.dtype.isnative:
            return as_tensor(leaf, device=self._device)
        return Tensor(value_of(leaf, None if self._device is None else device_of(self._device)))


def _type_key(leaf: Any) -> Hashable:
    """What differs for arguments of which each wants a capture of its own."""
    if isinstance(leaf, Tensor):
        return leaf.tensor_type.key, leaf.device
    return leaf.dtype, leaf.shape
