"""Passes over operands of products, each emitted once for all launches that read what it makes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from vkml.kernels.byte_blocks import emit_byte_blocks
from vkml.kernels.packed_weights import Fragment, emit_packing
from vkml.kernels.padded_lines import emit_padded_lines
from vkml.kernels.spec import Dispatch
from vkml.kernels.split_rows import SplitRows, emit_split_rows
from vkml.kernels.views import View
from vkml.lowering.builder import Builder, Mark

Made = TypeVar("Made")
"""What a pass makes: views."""


class PassBuilder(Builder[Dispatch]):
    """A builder of launches, some of which are passes over operands."""

    def __init__(self, setting: Hashable) -> None:
        super().__init__(setting)
        self.shared_passes: set[int] = set()
        """Launches, by number, that are passes over an operand for all products that read it."""
        self._passes: dict[Hashable, Any] = {}
        """What they have made, by operand."""

    def rewind(self, mark: Mark) -> None:
        super().rewind(mark)
        self._passes.clear()  # what is in it may be gone
        self.shared_passes = {number for number in self.shared_passes if number < mark[0]}

    def packed_values(self, values: View, fragment: Fragment, pieces: int = 0) -> View:
        """Values of a run as matrix units want them, packed once for all products that read them.

        Arguments are those of `emit_packing`.
        """
        return self._once(
            values,
            ("packed", fragment, pieces),
            lambda build, seen: emit_packing(build, seen, fragment, pieces),
            _alone,
        )

    def split_rows(self, rows: View, count: int) -> SplitRows:
        """Rows (batch, rows, k) in pieces of fp16, split once for all products that read these rows."""
        return self._once(
            rows,
            ("split", count),
            lambda build, seen: emit_split_rows(build, seen, count),
            lambda found: (found.info, found.pieces),
        )

    def padded_lines(self, view: View) -> View:
        """(batch, rows, k) with lines that begin at multiples of 16 bytes, copied once for all products."""
        return self._once(view, "padded", emit_padded_lines, _alone)

    def byte_blocks(self, view: View) -> View:
        """(batch, rows, k) of bytes in blocks for matrix units, copied once for all products."""
        return self._once(view, "blocks", emit_byte_blocks, _alone)

    def channels_last(self, images: View) -> View:
        """Images (batch, channels, *spatial) with channels side by side, copied once for all readers."""
        return self._once(images, "channels last", _with_channels_last, _alone)

    def _once(
        self,
        view: View,
        how: Hashable,
        make: Callable[[Any, View], Made],
        parts: Callable[[Made], tuple[View, ...]],
    ) -> Made:
        """What a pass makes of an operand, once for all launches that read that.

        Args:
            view: the operand.
            how: tells the pass from others.
            make: emits it.
            parts: the views that it makes.
        """
        key = how, view.buffer, view.dtype, view.shape, view.strides, view.offset
        trace, self._trace = self._trace, None
        try:
            found: Made | None = self._passes.get(key)
            if found is None:
                start = len(self.launches)
                found = self._passes[key] = make(self, view)
                self.shared_passes.update(range(start, len(self.launches)))
        finally:
            self._trace = trace

        def again(number: int) -> Callable[[Any, View], View]:
            return lambda build, seen: parts(build._once(seen, how, make, parts))[number]

        if trace is not None and parts(found)[0].buffer not in trace.slots:
            for number, part in enumerate(parts(found)):
                self._note(view, part, again(number))
        return found


def _with_channels_last(build: Any, images: View) -> View:
    last = tuple(range(2, len(images.shape)))
    copy: View = build.contiguous(images.transpose((0, *last, 1)))
    return copy.transpose((0, len(last) + 1, *(axis - 1 for axis in last)))


def _alone(view: View) -> tuple[View, ...]:
    return (view,)
