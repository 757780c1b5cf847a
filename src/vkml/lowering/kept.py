"""Lowerings that are kept: what a node added to a builder is added again for nodes like it.

Layers of a model are alike, and so are the nodes of a model and of the same model in another session. What an
operator's `lower` makes depends on the node's form, on how its operands and destinations lie, on the setting
of the builder, and on contents of constants where it asked for these (`Builder.contents`, `Builder.ask`). A
`Trace` states all that a builder was told meanwhile, with buffers numbered: operands' first, then fresh ones.
Nothing in it refers to a model's values, so that it keeps none of them alive.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from vkml.dataclasses import dataclass
from vkml.kernels.views import Buffer, BufferKind, View

if TYPE_CHECKING:
    from vkml.lowering.builder import Builder

Step = Callable[[Any, list[Buffer]], None]
"""Does once more, to a builder and with buffers, what was done while a trace was made; may add a buffer."""
FORMS_KEPT = 4096
"""Of a builder's setting, before all are dropped."""
_SETTINGS_KEPT = 16
_VARIANTS_KEPT = 16
"""Traces of a form, which differ in contents of constants."""
_CONSTANT_BYTES = 1 << 14
"""Of a constant that lowering made and that is kept with the trace."""


_NUMBERED = Buffer(BufferKind.ACTIVATION, 0, "numbered")
"""Stands for buffers that have numbers instead."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A view of a numbered buffer."""

    slot: int
    window: View
    """Of no buffer that there is; what is computed of it once is known of all views that are made."""

    def on(self, buffers: Sequence[Buffer]) -> View:
        """The view, of these buffers."""
        return self.window.on(buffers[self.slot])


@dataclass(slots=True)
class Trace:
    """What lowering a node told a builder."""

    slots: dict[Buffer, int]
    """Of buffers that there are, which replaying has under these numbers; empty once the trace is kept."""
    operands: int
    """How many of these there are from the beginning."""
    steps: list[Step] = field(default_factory=list)
    questions: list[tuple[Placed, Callable[[View], Hashable], Hashable]] = field(default_factory=list)
    """About operands: what was asked, and the answer for which this trace holds."""
    results: tuple[Placed | None, ...] = ()
    refusal: str | None = None
    first_code: int | None = None
    """The error code that its first kernel which reports something was given."""
    forgets_destinations: bool = False
    is_lasting: bool = True
    """Whether it can be kept at all."""
    made: set[Buffer] = field(default_factory=set)
    """Fresh buffers whose constants, if they have some, are the trace's own."""

    def place(self, view: View) -> Placed:
        """A view of a buffer that has a number."""
        slot = self.slots.get(view.buffer)
        if slot is None:  # of another node: no operator should know it
            self.is_lasting = False
            slot = 0
        window = View(_NUMBERED, view.dtype, view.shape, view.strides, view.offset)
        window.byte_range, window.byte_offset  # noqa: B018  the schedule and launches ask these of each view
        return Placed(slot, window)

    def add_buffer(self, buffer: Buffer, step: Step) -> None:
        """A fresh buffer, and what makes it."""
        self.slots[buffer] = len(self.slots)
        self.steps.append(step)
        if buffer.constant is None or buffer.constant.type.bytes <= _CONSTANT_BYTES:
            self.made.add(buffer)
        else:
            self.is_lasting = False

    def mark(self) -> tuple[int, int]:
        """Where it stands, for `rewind`."""
        return len(self.steps), len(self.slots)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Takes back what was added since `mark`."""
        del self.steps[mark[0] :]
        for buffer in list(self.slots)[mark[1] :]:
            del self.slots[buffer]
        if self.first_code is not None:
            self.is_lasting = False  # codes are not taken back

    def finish(self, results: Sequence[View | None]) -> None:
        """The node is lowered to these."""
        self.results = tuple(None if view is None else self.place(view) for view in results)

    def holds(self, build: Builder[Any], buffers: Sequence[Buffer]) -> bool:
        """Whether it is what lowering would come to with these buffers."""
        if self.first_code is not None and self.first_code != build.next_code:
            return False
        if not self.questions:
            return True
        return all(question(placed.on(buffers)) == answer for placed, question, answer in self.questions)

    def replay(self, build: Builder[Any], buffers: list[Buffer]) -> list[View | None]:
        """Tells a builder all of it; the results."""
        for step in self.steps:
            step(build, buffers)
        return [None if placed is None else placed.on(buffers) for placed in self.results]


Kept = dict[Hashable, tuple[Trace, ...]]
"""Form → traces, the latest last."""
_kept: dict[Hashable, Kept] = {}


def kept_for(setting: Hashable) -> Kept:
    """The lowerings that builders of a setting share."""
    found = _kept.get(setting)
    if found is None:
        if len(_kept) >= _SETTINGS_KEPT:
            _kept.clear()
        found = _kept[setting] = {}
    return found


_certain: dict[Hashable, set[Hashable]] = {}


def certain_for(setting: Hashable) -> set[Hashable]:
    """Forms of nodes, with the types of operands, that have a lowering whatever constants hold."""
    found = _certain.get(setting)
    if found is None:
        if len(_certain) >= _SETTINGS_KEPT:
            _certain.clear()
        found = _certain[setting] = set()
    return found


def keep(kept: Kept, form: Hashable, trace: Trace) -> None:
    """Keeps a trace for nodes to come."""
    if not trace.is_lasting:
        return
    trace.slots, trace.made = {}, set()
    if len(kept) >= FORMS_KEPT:
        kept.clear()
    kept[form] = (*kept.get(form, ())[1 - _VARIANTS_KEPT :], trace)


def forget_lowerings() -> None:
    """Drops all lowerings, for tests that change what lowering goes by."""
    _kept.clear()
    _certain.clear()
