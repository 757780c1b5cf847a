"""What a tensor holds: the value that it has now, and how it is given another one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vkml.errors import NotDifferentiable
from vkml.tensors import tensor as core
from vkml.tensors.capture import captures
from vkml.tensors.passing import passing
from vkml.tensors.structure import note_change
from vkml.tensors.views import Untracked, View, contiguous_strides, untracked
from vkml.tracing import Traced, apply, evaluate
from vkml.tracing.meta import META, absent
from vkml.tracing.moves import name_of
from vkml.tracing.value import Kind, mode, next_serial, tracking

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


class Holding:
    """What tensors and views hold; a view writes through to what it shows."""

    __slots__ = ("_base", "_keeps_grad", "_seen", "_traced", "_version", "_view")

    _base: Tensor | None
    _keeps_grad: bool
    _seen: int
    _traced: Traced
    _version: int
    _view: View | None

    @property
    def _root(self) -> Tensor:
        return cast("Tensor", self) if self._base is None else self._base._root

    @property
    def value(self) -> Traced:
        """The traced value that it has now."""
        if self._base is not None and self._seen != self._root._version:
            assert self._view is not None
            before = self._traced
            self._hold(self._view.read(self._base.value))
            self._share()
            self._seen = self._root._version
            self._own(before)
        latest = captures.latest
        if latest is not None and self._base is None and id(self) not in latest.made:
            made = self._traced.application
            if self._traced.data is None and made is not None and made.serial < latest.start:
                evaluate([self._traced])  # what was recorded before is no part of the capture
            if self._traced.data is not None:
                latest.read.append((cast("Tensor", self), self._traced))
        return self._traced

    def _hold(self, value: Traced) -> None:
        value.holders += 1
        self._traced.holders -= 1
        if self._base is not None:
            value.views += 1
            self._traced.views -= 1
        self._traced = value

    def _share(self) -> None:
        """Has the version of a view be that of what it shows, but for `data`, which has one of its own."""
        assert self._base is not None
        if not isinstance(self._view, Untracked):
            self._traced.share(self._base._traced)

    def _write(self, value: Traced, start: int | None = None) -> Tensor:
        """Gives it other elements, of its type and shape; what it is a view of has them, too.

        Args:
            value: the elements.
            start: what was applied for them to those of before has no serial below it; where left out,
                nothing was; 0: gradients of what has read the elements of before do not mind.
        """
        root = self._root.value
        if mode.tracks and root.tracks and self._is_untracked:
            with tracking(False):
                return self._write(value, start)
        if self._is_leaf_that_tracks and mode.tracks:
            raise NotDifferentiable(
                "a leaf that requires grad is changed in place: do so under vkml.no_grad(), or on a clone()"
            )
        self._write_through(value, next_serial() if start is None else start)
        return cast("Tensor", self)

    def _write_through(self, value: Traced, start: int) -> None:
        """Gives it other elements, and what it is a view of; a `start` of 0 is no change of that one's."""
        if self._base is not None:
            assert self._view is not None
            part = placed_at(value, self._base.value.device)
            whole = self._view.write(self._base.value, part)
            if isinstance(self._view, Untracked):
                self._traced.change(start)
                start = 0
            self._base._write_through(whole, start)
            return
        before = self._traced
        value = placed_at(value, before.device)
        if before.tracks and not before.is_leaf and not mode.tracks:
            with tracking(True):
                value = passing(value, before, "a change in place that gradients do not know of")
        if start:
            before.change(start)
        self._put(value)

    def _put(self, value: Traced) -> None:
        """Gives it, which is no view, a value that may be of another device or type."""
        latest = captures.latest
        if latest is not None and id(self) not in latest.made:
            latest.written.setdefault(id(self), (cast("Tensor", self), self._traced))
        if value.type is not self._traced.type or value.device is not self._traced.device:
            note_change()
        self._replace(untracked(value) if self._traced.is_leaf else value)

    def _replace(self, value: Traced) -> None:
        """Gives it another value, and the part in gradients that it had."""
        before = self._traced
        if not before.is_inferred:
            value.is_inferred = False
        if before.is_leaf and value is not before:
            value.tracks = value.is_leaf = True
        if before.hooks is not None and (before.is_leaf or not before.tracks):
            value.hooks = before.hooks  # of a leaf, which may be frozen now
        self._hold(value)
        self._own(before)
        self._version += 1

    def _restore(self, value: Traced) -> None:
        """Gives it a value of before back, as if nothing had changed it."""
        self._replace(value)
        if value.version is not None:
            value.version.changed_from = 0

    def _own(self, before: Traced | None = None) -> None:
        """Has gradients by its value come to it, where it wants them.

        Args:
            before: the value that it had; gradients by that one come to a leaf all the same.
        """
        if self._traced.is_leaf or self._keeps_grad:
            owner = None if before is None or before.is_leaf else before.owner
            if before is not None and owner is not None and owner() is self:
                before.owner = None
            self._traced.owner = weakref.ref(self)

    @property
    def _is_leaf_that_tracks(self) -> bool:
        value = self._root.value
        return value.is_leaf and value.tracks

    @property
    def _is_untracked(self) -> bool:
        """Whether it shows `data`, or a part of that."""
        return self._base is not None and (isinstance(self._view, Untracked) or self._base._is_untracked)

    def _shown(self, view: View) -> Tensor:
        """A view of it."""
        return core.Tensor(view.read(self.value), cast("Tensor", self), view)

    def _strides(self) -> tuple[int, ...]:
        """How many elements lie between neighbours along each axis, if those of no view lie in order."""
        if self._base is None or self._view is None:
            return contiguous_strides(self._traced.dims)
        return self._view.strides(self._base.shape, self._base._strides())


def placed_at(value: Traced, device: Any) -> Traced:
    """A value for a tensor of a device, as elements that it may be given.

    Numbers of the program become data: in a capture they would be part of what is captured.
    """
    if device is META:
        return absent(value.type.dtype, value.dims)
    if value.kind is not Kind.DATA and value.data is not None:
        return Traced(value.type, device, np.array(value.data))
    if value.device is device and (device is None or not value.is_free):
        return value
    if value.device is not None and value.device is not device:
        return core.Tensor(value).to(name_of(device)).value
    # Of the host, or of constants alone: the device computes it, or takes it as it comes.
    made = apply("Identity", value)
    made.device = device
    return made
