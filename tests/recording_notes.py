"""Notes what is recorded, submitted and waited for while sessions run, for `tests.recordings`."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.recordings import (
    CONDITION_READ,
    COUNT_READ,
    SHADER_READ,
    SHADER_WRITE,
    TRANSFER_READ,
    TRANSFER_WRITE,
    Allocated,
    Event,
    Placed,
    Site,
    Submitted,
    Touch,
    Waited,
    barrier_of,
    missing_barriers,
)
from vkml.engine import fragment_check, gated_trips, host_reads, single_run, weights
from vkml.engine.binding import Memories
from vkml.engine.recorded import RecordedProgram
from vkml.ir.size import Size
from vkml.kernels.host_read import SOURCE_BYTES
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, View
from vkml.vulkan import CommandBuffer, CommandRecorder, Memory, MemoryKind, Submission

_COUNT_BYTES = 12
_RECORDS = "commands.py", "contextlib.py"
"""Files in which no caller of a recorder is."""
_Ranges = list[tuple[str, tuple[int, int], int, int]]
"""What a dispatch touches: what it is, how, and between which addresses."""


class Notes:
    """What sessions have recorded and submitted since it was made.

    Attributes:
        history: for `missing_barriers`.
        dispatches: how many were recorded.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.history: list[Event] = []
        self.dispatches = 0
        self._open: weakref.WeakKeyDictionary[CommandRecorder, list[Placed | Touch]]
        self._open = weakref.WeakKeyDictionary()
        self._done: weakref.WeakKeyDictionary[CommandBuffer, list[Placed | Touch]]
        self._done = weakref.WeakKeyDictionary()
        self._for_host: list[tuple[int, int]] = []
        """Memory that the host reads."""
        self._condition: tuple[Memory, int] | None = None
        self._levels: list[list[_Ranges]] = []
        """What the dispatches of the table touch that is recorded next."""
        self._next: list[tuple[_Ranges, object]] = []
        """What the dispatches touch that are recorded next, and the level of each."""
        self._single: dict[bytes, _Ranges] = {}
        """What dispatches touch that are in no table, by push constants."""
        self._units = 0
        self._keys = 0
        for name in (
            "dispatch",
            "_dispatch_counted",
            "dispatch_table",
            "copy",
            "fill",
            "conditional",
            "finish",
        ):
            patch.setattr(
                CommandRecorder, name, self._around(getattr(self, name), getattr(CommandRecorder, name))
            )
        patch.setattr(CommandRecorder, "__init__", self._around(self.begin, CommandRecorder.__init__))
        patch.setattr(Submission, "__init__", self._around(self.prepare, Submission.__init__))
        patch.setattr(Memory, "__init__", self._around(self.allocate, Memory.__init__))
        patch.setattr(
            RecordedProgram,
            "_record_levels",
            self._around(self.record_levels, RecordedProgram._record_levels),
        )
        for module in (weights, fragment_check):
            patch.setattr(module, "run_once", self._around(self.run_once, single_run.run_once))
        patch.setattr(
            gated_trips, "gate_arguments", self._around(self.gate_arguments, gated_trips.gate_arguments)
        )
        patch.setattr(host_reads, "read_launch", self._around(self.read_launch, host_reads.read_launch))

    @staticmethod
    def _around(note: Any, function: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            return note(function, *arguments, **more)

        return call

    @property
    def sites(self) -> set[Site]:
        """Where barriers that were submitted had been recorded."""
        return {
            command.site
            for event in self.history
            if isinstance(event, Submitted)
            for command in event.commands
            if isinstance(command, Placed)
        }

    @property
    def idle(self) -> set[Site]:
        """Those of `sites` that may go without any being missed."""
        return {site for site in self.sites if not missing_barriers(self.history, {site})}

    # --- recorders ------------------------------------------------------------------------------------------

    def begin(self, make: Any, recorder: CommandRecorder, *arguments: Any, **more: Any) -> None:
        make(recorder, *arguments, **more)
        self._open[recorder] = commands = []
        record = recorder._barrier

        def barrier(buffer: Any, dependency: Any) -> None:
            kinds = recorder._barriers._asdict().items()
            kind = next(kind for kind, each in kinds if each is dependency)
            commands.append(Placed(barrier_of(dependency), _site(kind)))
            record(buffer, dependency)

        recorder._barrier = barrier

    def finish(self, finish: Any, recorder: CommandRecorder) -> CommandBuffer:
        made: CommandBuffer = finish(recorder)
        self._done[made] = self._open.pop(recorder)
        return made

    def _unit(self) -> int:
        self._units += 1
        return self._units

    def _touch(self, recorder: CommandRecorder, unit: object, ranges: _Ranges) -> None:
        for what, how, start, end in ranges:
            is_for_host = any(start < high and low < end for low, high in self._for_host)
            if start < end:
                self._open[recorder].append(Touch(what, how, start, end, unit, is_for_host))

    def copy(
        self,
        copy: Any,
        recorder: CommandRecorder,
        source: Memory,
        at: int,
        target: Memory,
        to: int,
        size: int,
    ) -> None:
        for memory in (source, target):
            self._know(memory)
        label = f"copy to {target.label!r}"
        start, end = source.address + at, target.address + to
        self._touch(
            recorder,
            self._unit(),
            [(label, TRANSFER_READ, start, start + size), (label, TRANSFER_WRITE, end, end + size)],
        )
        copy(recorder, source, at, target, to, size)

    def fill(
        self, fill: Any, recorder: CommandRecorder, memory: Memory, offset: int, size: int, word: int = 0
    ) -> None:
        start = memory.address + offset
        self._touch(
            recorder, self._unit(), [(f"fill of {memory.label!r}", TRANSFER_WRITE, start, start + size)]
        )
        fill(recorder, memory, offset, size, word)

    @contextlib.contextmanager
    def conditional(
        self, conditional: Any, recorder: CommandRecorder, memory: Memory, offset: int
    ) -> Iterator[None]:
        with conditional(recorder, memory, offset):
            self._condition = memory, offset
            yield
            self._condition = None

    def dispatch(
        self, dispatch: Any, recorder: CommandRecorder, pipeline: Any, push: Any, *groups: int
    ) -> None:
        self._note_dispatch(recorder, pipeline.label, push)
        dispatch(recorder, pipeline, push, *groups)

    def _dispatch_counted(
        self, dispatch: Any, recorder: CommandRecorder, pipeline: Any, push: bytes, counts: tuple[Memory, int]
    ) -> None:
        memory, at = counts
        start = memory.address + at
        self._note_dispatch(
            recorder, pipeline.label, push, [("counts", COUNT_READ, start, start + _COUNT_BYTES)]
        )
        dispatch(recorder, pipeline, push, counts)

    def _note_dispatch(
        self, recorder: CommandRecorder, label: str, push: Any, more: Sequence[Any] = ()
    ) -> None:
        self.dispatches += 1
        if self._next:
            ranges, unit = self._next.pop(0)
        else:
            assert bytes(push) in self._single, f"nothing is known of what {label!r} touches"
            ranges, unit = self._single[bytes(push)], self._unit()
        ranges = [*more, *ranges]
        if self._condition is not None:
            memory, offset = self._condition
            start = memory.address + offset
            ranges.append(("condition", CONDITION_READ, start, start + 4))
        self._touch(recorder, unit, ranges)

    def dispatch_table(self, record: Any, recorder: CommandRecorder, *arguments: Any, **more: Any) -> None:
        levels, self._levels = self._levels, []
        assert levels or not arguments[0].levels, "nothing is known of what is recorded"
        self._next = [(ranges, unit) for level in levels for unit in (self._unit(),) for ranges in level]
        context = recorder._context
        native, context.native = context.native, None  # which records without these methods
        try:
            record(recorder, *arguments, **more)
        finally:
            context.native = native
        assert not self._next

    # --- programs -------------------------------------------------------------------------------------------

    def record_levels(
        self,
        record: Any,
        program: RecordedProgram,
        recorder: CommandRecorder,
        numbers: tuple[int, ...],
        memories: Memories,
        outside: Mapping[Buffer, int],
        *arguments: Any,
        **more: Any,
    ) -> None:
        for memory in memories.all:
            self._know(memory)
        addresses = {**memories.addresses, **outside}

        def size(buffer: Buffer) -> int:
            return program._bytes[buffer].of(numbers) if buffer in program._bytes else buffer.bytes

        is_single = "single" in more
        levels = program.program.single_levels if is_single else program.program.levels
        self._levels = [[_ranges(dispatch, addresses, size) for dispatch in level] for level in levels]
        record(program, recorder, numbers, memories, outside, *arguments, **more)

    def run_once(
        self,
        run: Any,
        device: Any,
        dispatches: Sequence[Dispatch],
        pipelines: Any,
        addresses: Mapping[Buffer, int],
    ) -> None:
        self._levels = [[_ranges(each, addresses, lambda buffer: buffer.bytes) for each in dispatches]]
        run(device, dispatches, pipelines, addresses)

    def gate_arguments(
        self, make: Any, condition: int, control: int, switches: int, report: int, words: int
    ) -> bytes:
        push: bytes = make(condition, control, switches, report, words)
        name = "gate"
        self._single[push] = [
            (name, SHADER_READ, condition, condition + 4),
            (name, SHADER_READ, control, control + 20),
            (name, SHADER_WRITE, control, control + 20),
            (name, SHADER_WRITE, switches, switches + 4 * words),
            (name, SHADER_WRITE, report, report + 8),
        ]
        return push

    def read_launch(self, make: Any, source: int, target: int, size: int, *more: Any) -> Any:
        push, _ = made = make(source, target, size, *more)
        self._single[push] = [
            ("source", SHADER_READ, source, source + SOURCE_BYTES),
            ("read", SHADER_WRITE, target, target + -(-size // 16) * 16),
        ]
        return made

    # --- submissions and memory -----------------------------------------------------------------------------

    def prepare(
        self, make: Any, submission: Submission, context: Any, buffers: Any, *arguments: Any, **more: Any
    ) -> None:
        make(submission, context, buffers, *arguments, **more)
        self._keys += 1
        key = self._keys
        given = [buffers] if isinstance(buffers, CommandBuffer) else list(buffers)
        queue = id(given[0].queue) if given else id(context.compute_queue)
        submit, run, finish, wait = submission.submit, submission.run, submission.finish, submission.wait

        def note_submission() -> None:
            # Commands recorded before there were notes are unknown.
            commands = [command for buffer in given for command in self._done.get(buffer, ())]
            self.history.append(Submitted(queue, key, commands))

        def noting_submit(*values: Any, **names: Any) -> int:
            note_submission()
            return submit(*values, **names)

        def noting_run() -> None:
            note_submission()
            run()
            self.history.append(Waited(key))

        def noting_finish() -> None:
            finish()
            self.history.append(Waited(key))

        def noting_wait(*values: Any, **names: Any) -> bool:
            is_reached = wait(*values, **names)
            if is_reached:
                self.history.append(Waited(key))
            return is_reached

        submission.submit, submission.run = noting_submit, noting_run
        submission.finish, submission.wait = noting_finish, noting_wait

    def allocate(self, make: Any, memory: Memory, *arguments: Any, **more: Any) -> None:
        make(memory, *arguments, **more)
        start, end = memory.address, memory.address + memory.size
        self._for_host = [(low, high) for low, high in self._for_host if high <= start or end <= low]
        self._know(memory)
        self.history.append(Allocated(start, end))

    def _know(self, memory: Memory) -> None:
        place = memory.address, memory.address + memory.size
        if memory.kind is MemoryKind.READBACK and place not in self._for_host:
            self._for_host.append(place)


def _ranges(dispatch: Dispatch, addresses: Mapping[Buffer, int], size: Any) -> _Ranges:
    """What a dispatch touches; all of a buffer where sizes are open."""
    found: _Ranges = []
    for views, how in ((dispatch.reads, SHADER_READ), (dispatch.writes, SHADER_WRITE)):
        for view in views:
            low, high = (0, size(view.buffer)) if _is_open(view) else view.byte_range
            start = addresses[view.buffer]
            found.append((dispatch.kernel.label, how, start + low, start + high))
    return found


def _is_open(view: View) -> bool:
    return any(isinstance(number, Size) for number in (*view.shape, *view.strides, view.offset))


def _site(kind: str) -> Site:
    """The place in vkml, outside of the module that records, that a barrier comes from."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ or Path(frame.f_code.co_filename).name in _RECORDS:
        assert frame.f_back is not None
        frame = frame.f_back
    code = frame.f_code
    return Site(Path(code.co_filename).stem, code.co_name, frame.f_lineno, kind)
