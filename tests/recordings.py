"""Checks by replay that barriers stand between all commands that a device was given and that need one.

Software drivers run commands in the order in which they were recorded, so a missing barrier changes none of
their results. Here it does not have to: what commands read and write is noted as they are recorded, and so
are submissions and waits; `missing_barriers` holds that against Vulkan's rules.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vkml.vulkan.structures import constants as c
from vkml.vulkan.structures import ffi

_COMPUTE, _TRANSFER = c.VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT, c.VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT
SHADER_READ = _COMPUTE, c.VK_ACCESS_2_SHADER_READ_BIT
SHADER_WRITE = _COMPUTE, c.VK_ACCESS_2_SHADER_WRITE_BIT
TRANSFER_READ = _TRANSFER, c.VK_ACCESS_2_TRANSFER_READ_BIT
TRANSFER_WRITE = _TRANSFER, c.VK_ACCESS_2_TRANSFER_WRITE_BIT
COUNT_READ = c.VK_PIPELINE_STAGE_2_DRAW_INDIRECT_BIT, c.VK_ACCESS_2_INDIRECT_COMMAND_READ_BIT
CONDITION_READ = (
    c.VK_PIPELINE_STAGE_2_CONDITIONAL_RENDERING_BIT_EXT,
    c.VK_ACCESS_2_CONDITIONAL_RENDERING_READ_BIT_EXT,
)
HOST_READ = c.VK_PIPELINE_STAGE_2_HOST_BIT, c.VK_ACCESS_2_HOST_READ_BIT
_WRITES = SHADER_WRITE[1] | TRANSFER_WRITE[1]


@dataclass(frozen=True)
class Barrier:
    """The stages and accesses of a memory barrier that covers all memory."""

    source_stages: int
    source_access: int
    target_stages: int
    target_access: int

    def orders(self, before: tuple[int, int, int], after: tuple[int, int, int]) -> bool:
        """Whether what one kind of command writes is seen, and may be written again, by another."""
        stage, write, _ = before
        stage_2, write_2, read_2 = after
        return bool(
            self.source_stages & stage
            and self.source_access & write
            and self.target_stages & stage_2
            and self.target_access & write_2
            and self.target_access & read_2
        )

    @property
    def shows_the_host(self) -> bool:
        """Whether the host sees what kernels and copies wrote."""
        return all(
            bool(self.source_stages & stage and self.source_access & write)
            for stage, write in (SHADER_WRITE, TRANSFER_WRITE)
        ) and bool(self.target_stages & HOST_READ[0] and self.target_access & HOST_READ[1])


def barrier_of(dependency: Any) -> Barrier:
    """The one memory barrier of a VkDependencyInfo."""
    info = ffi.cast("VkDependencyInfo *", dependency)
    assert info.memoryBarrierCount == 1
    memory = info.pMemoryBarriers[0]
    return Barrier(memory.srcStageMask, memory.srcAccessMask, memory.dstStageMask, memory.dstAccessMask)


class Site(NamedTuple):
    """Where in vkml a barrier is recorded."""

    module: str
    function: str
    line: int
    kind: str
    """Which of `CommandRecorder`'s barriers."""


class Placed(NamedTuple):
    """A barrier, as a command."""

    barrier: Barrier
    site: Site


class Touch(NamedTuple):
    """Bytes that a command reads or writes."""

    what: str
    how: tuple[int, int]
    """Stage and access."""
    start: int
    end: int
    """Addresses, the end exclusive."""
    unit: object
    """What touches of the same unit do to each other is not looked at: of one command, or of one level of a
    program, which `tests.lowering.checking` tests."""
    is_for_host: bool = False
    """Whether the host reads it behind a wait."""

    @property
    def writes(self) -> bool:
        return bool(self.how[1] & _WRITES)


class Submitted(NamedTuple):
    """Commands handed to a queue; `key` names the submission, which may be repeated."""

    queue: int
    key: int
    commands: Sequence[Placed | Touch]


class Waited(NamedTuple):
    """The host waited for the last submission of this key, and so for all before it on its queue."""

    key: int


class Allocated(NamedTuple):
    """Memory is new: what was at its addresses before was another's."""

    start: int
    end: int


Event = Submitted | Waited | Allocated


class _Past:
    """A touch that has been submitted, and what has been done since for those that come behind it."""

    __slots__ = ("behind", "is_available", "is_over", "number", "queue", "touch", "visible")

    def __init__(self, touch: Touch, queue: int, number: int) -> None:
        self.touch, self.queue, self.number = touch, queue, number
        self.behind = 0
        """Stages whose commands come after it."""
        self.is_available = self.is_over = False
        self.visible: dict[tuple[int, int], int] = {}
        """Stages and accesses that see what it wrote, and the submission whose barrier shows it."""

    def pass_barrier(self, barrier: Barrier, number: int) -> None:
        stage, access = self.touch.how
        if self.is_over or barrier.source_stages & (stage | self.behind):
            self.is_available |= bool(barrier.source_access & access)
            self.behind |= barrier.target_stages
            if self.is_available:
                self.visible.setdefault((barrier.target_stages, barrier.target_access), number)

    def is_of(self, touch: Touch, number: int) -> bool:
        """Whether a touch of a submission belongs to the same unit."""
        return touch.unit == self.touch.unit and number == self.number

    def is_seen_by(self, how: tuple[int, int], until: int) -> bool:
        """Whether commands, or the host, see what it wrote by barriers of submissions up to one."""
        return any(
            number <= until and stages & how[0] and accesses & how[1]
            for (stages, accesses), number in self.visible.items()
        )

    def hazard(self, late: Touch, queue: int, number: int) -> str:
        """What a later touch may get wrong; empty where all is in order."""
        early = self.touch
        if not (early.writes or late.writes) or self.is_of(late, number):
            return ""
        if late.end <= early.start or early.end <= late.start:
            return ""
        kind = f"{'write' if late.writes else 'read'} after {'write' if early.writes else 'read'}"
        if self.is_over:  # by the host's wait
            is_hidden = early.writes and not late.writes and not self.is_seen_by(late.how, number)
            return kind if is_hidden and queue == self.queue else ""
        if queue != self.queue:
            return f"{kind}, on another queue"
        if not self.behind & late.how[0] or (early.writes and not self.is_seen_by(late.how, number)):
            return kind
        return ""


def missing_barriers(
    history: Sequence[Event], without: Collection[Site] = (), *, waits_show: bool = False
) -> list[str]:
    """Pairs of commands that depend on one another without a fitting barrier between them.

    Barriers of whatever submission order what is before and behind them on their queue. What the host reads
    needs one, too.

    Args:
        history: what happened.
        without: barriers to leave out, as if they had never been recorded.
        waits_show: whether later commands see what was written before the host waited. The standard says of
            such a wait that it makes writes available, not that it makes them visible; the validation layer
            is content with it, and so is vkml between plans that hand on values on a device.
    """
    missing: dict[str, None] = {}
    past: list[_Past] = []
    last: dict[int, tuple[int, int]] = {}
    """Of each key its queue, and the number of its last submission."""
    for number, event in enumerate(history):
        if isinstance(event, Allocated):
            past = [p for p in past if p.touch.end <= event.start or event.end <= p.touch.start]
        elif isinstance(event, Waited):
            queue, until = last.get(event.key, (-1, -1))
            for one in past:
                if one.queue == queue and one.number <= until and not one.is_over:
                    if one.touch.is_for_host and one.touch.writes and not one.is_seen_by(HOST_READ, until):
                        missing[f"{one.touch.what} → host: read after write"] = None
                    one.is_over = one.is_available = True
            past = [one for one in past if not one.is_over or (one.touch.writes and not waits_show)]
        else:
            last[event.key] = event.queue, number
            past = _replay(event, number, past, without, missing)
    return [*missing]


def _replay(
    event: Submitted, number: int, past: list[_Past], without: Collection[Site], missing: dict[str, None]
) -> list[_Past]:
    """The past behind a submission."""
    for command in event.commands:
        if isinstance(command, Placed):
            if command.site not in without:
                for one in past:
                    if one.queue == event.queue:
                        one.pass_barrier(command.barrier, number)
            continue
        kept = []
        for one in past:
            hazard = one.hazard(command, event.queue, number)
            if hazard:
                missing[f"{one.touch.what} → {command.what}: {hazard}"] = None
            # Whatever comes behind a write is behind what was where it writes.
            is_hidden = command.writes and command.start <= one.touch.start and one.touch.end <= command.end
            if not is_hidden or one.is_of(command, number):
                kept.append(one)
        past = kept
        past.append(_Past(command, event.queue, number))
    return past
