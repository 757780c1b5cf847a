"""Phases: levels of small launches as one dispatch of one workgroup, whose threads wait between them.

The workgroup does what the workgroups of a launch do one after the other. Where these have neither shared
memory nor barriers nor ask their subgroup, as in elementwise kernels, as many as fit work side by side. Where
they have, and are smaller than the one, each thread too many goes the way of another, and writes nothing: so
all threads are at each barrier.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import field

from vkml.dataclasses import dataclass
from vkml.ir.size import Size
from vkml.kernels import compiling
from vkml.kernels.source_marks import PHASE
from vkml.kernels.spec import Dispatch, KernelSpec, KernelText
from vkml.kernels.views import Buffer, View
from vkml.kernels.writer import STORAGE

NEEDS = ("vulkan_memory_model", "vulkan_memory_model_device_scope")
"""What a device must have for threads to read from its memory what others of their workgroup wrote."""
MOST_THREADS = 256
"""Of a workgroup, unless all of its launches whose threads go together want the same number: what is compiled
for more threads has fewer registers."""
_TOGETHER = ("Barrier", "groupshared", "Wave")
"""What a kernel's source has where its threads go together."""
_LOOP = re.compile(r"\b(?:for|while)\s*\(")
_UNROLLED = re.compile(r"\[ForceUnroll\]\s*for\b")
_POINTER = re.compile(rf"(?:vector<)?(?:{'|'.join(sorted(set(STORAGE.values())))})(?:, \d+>)?\*")
"""Pointers that are the same type in all sources."""

_Slot = tuple[str, Hashable, Hashable, int]
_Argument = View | Buffer | int | Size


@dataclass(frozen=True)
class Kind:
    """What a kernel's source tells before anybody compiles it."""

    is_whole: bool
    """Whether a workgroup has to be one in a phase, too, because threads of it go together."""
    is_simple: bool
    """Whether each thread goes its own way, without loops: it takes as long whatever the sizes."""
    may_have_twins: bool
    """Whether further threads may do the same and write nothing."""
    asks_subgroup: bool


@functools.lru_cache(maxsize=1024)
def kind_of(text: KernelText) -> Kind | None:
    """What a text's kernels are like; None where they are no phases."""
    source = text.joined()
    if "CoopMat" in source or not all(_is_plain(type_) for type_, _ in text.fields):
        return None
    is_whole = any(word in source for word in _TOGETHER)
    return Kind(
        is_whole,
        not is_whole and _LOOP.search(_UNROLLED.sub("", source)) is None,
        # What an atomic operation returns is another thing each time, and twins are in other subgroups.
        not any(word in source for word in ("Interlocked", "__atomic", "WaveGetWaveIndex")),
        "Wave" in source,
    )


@dataclass(frozen=True)
class Workgroup:
    """What a kernel's workgroups are like."""

    kind: Kind
    threads: int
    shared: tuple[tuple[str | None, int], ...]
    """Types and bytes of its shared variables; None for types that no other kernel has."""


@functools.lru_cache(maxsize=1024)
def workgroup_of(text: KernelText) -> Workgroup | None:
    """What the workgroups of a text's kernels are like; None where it is no phase."""
    kind = kind_of(text)
    found = None if kind is None else compiling.workgroup_of(text.joined())
    if kind is None or found is None:
        return None
    threads, shared = found
    return Workgroup(kind, threads, tuple(shared))


def _is_plain(type_: str) -> bool:
    return type_ == "int" or _POINTER.fullmatch(type_) is not None


@dataclass(frozen=True)
class Phases:
    """Levels of launches, and what one workgroup that does them all is like."""

    levels: tuple[tuple[Dispatch, ...], ...] = ()
    threads: int = 0
    """That it must have; 0: any number."""
    shared: Counter[str] = field(default_factory=Counter)
    """How many variables of which type it shares."""
    shared_bytes: int = 0
    slots: dict[_Slot, _Argument] = field(default_factory=dict)
    """The push constants of all launches."""
    subgroup_size: int | None = None

    def with_level(self, level: Sequence[Dispatch]) -> Phases | None:
        """These and a level more; None where one kernel cannot be both."""
        size, shared = self.subgroup_size, self.shared.copy()
        bytes_: dict[str | None, int] = {}
        added = 0
        for launch in level:
            found = workgroup_of(launch.kernel.text)
            if found is None or launch.table is not None or any(type(n) is not int for n in launch.groups):
                return None
            if launch.kernel.subgroup_size is not None:
                if size not in (None, launch.kernel.subgroup_size):
                    return None
                size = launch.kernel.subgroup_size
            # Launches that follow one another in a kernel share their shared memory.
            shared |= Counter(type_ for type_, _ in found.shared if type_ is not None)
            bytes_.update(found.shared)
            added += sum(count for type_, count in found.shared if type_ is None)
        added += sum(count * bytes_[type_] for type_, count in (shared - self.shared).items())
        levels = (*self.levels, tuple(level))
        threads = _threads(launch for each in levels for launch in each)
        if threads is None:
            return None
        return Phases(
            levels, threads, shared, self.shared_bytes + added, {**self.slots, **_slots(level)}, size
        )

    @property
    def push_bytes(self) -> int:
        return sum(8 if type_.endswith("*") else 4 for type_, *_ in self.slots)

    @property
    def workgroup(self) -> int:
        """The threads of a workgroup for all of them."""
        return self.threads or MOST_THREADS


def _threads(launches: Iterable[Dispatch]) -> int | None:
    """The threads of a workgroup for all launches; 0: any number, None: there is none."""
    whole, widest = [], 0
    for launch in launches:
        found = workgroup_of(launch.kernel.text)
        assert found is not None
        if found.kind.is_whole:
            whole.append((launch, found))
        else:
            widest = max(widest, math.prod(launch.groups) * found.threads)
    most = max((found.threads for _, found in whole), default=0)
    if most < min(widest, MOST_THREADS) and all(_may_have_twins(*each) for each in whole):
        return MOST_THREADS  # elementwise launches take fewer turns
    fewer = [each for each in whole if each[1].threads < most]
    is_possible = most <= MOST_THREADS and all(_may_have_twins(*each) for each in fewer)
    return most if is_possible or not fewer else None


def _may_have_twins(launch: Dispatch, found: Workgroup) -> bool:
    """Whether further threads of a workgroup may do the same as a launch's and write nothing."""
    lanes = launch.kernel.subgroup_size
    # A subgroup of its own threads and of twins would add these up, too.
    is_even = not found.kind.asks_subgroup or (lanes is not None and found.threads % lanes == 0)
    return found.kind.may_have_twins and is_even


def turns(launch: Dispatch, threads: int) -> int:
    """How often a workgroup of so many threads begins anew until it has done a launch."""
    found = workgroup_of(launch.kernel.text)
    assert found is not None
    count = math.prod(launch.groups)
    return count if found.kind.is_whole else -(-count * found.threads // threads)


def merged(phases: Phases) -> Dispatch:
    """One dispatch in the place of levels."""
    launches = [launch for level in phases.levels for launch in level]
    # Addresses come first.
    slots = dict(sorted(phases.slots.items(), key=lambda entry: isinstance(entry[1], int | Size)))
    places = {key: number for number, key in enumerate(slots)}
    unnamed = [(type_, f"slot{number}") for number, (type_, *_) in enumerate(slots)]
    constants: list[tuple[str, int]] = []
    lines = [
        f'[shader("compute")] [numthreads({phases.workgroup}, 1, 1)]',
        "void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)",
        "{",
    ]
    number = 0
    for index, level in enumerate(phases.levels):
        if index:
            lines.append("    PhaseBarrier();")
        has_shared = False
        """Whether a thread may still be at what a launch of this level has in shared memory."""
        for launch in level:
            found = workgroup_of(launch.kernel.text)
            assert found is not None
            if has_shared and found.shared:
                lines.append("    GroupMemoryBarrierWithGroupSync();")
            has_shared = has_shared or bool(found.shared)
            lines += _calls(number, launch, found, phases.workgroup, constants)
            number += 1
    lines.append("}")
    programs, values = ["\n".join(lines)], [value for _, value in constants]
    for launch in launches:
        fields = unnamed.copy()
        for key, field_ in zip(_slots_of(launch), launch.kernel.text.fields, strict=True):
            fields[places[key]] = field_
        programs.append(launch.kernel.text.joined(fields, len(values)))
        values += launch.kernel.constants
    text = KernelText(
        tuple(name for name, _ in constants), tuple(unnamed), (), (PHASE.join(programs),), False
    )
    labels = ", ".join(launch.kernel.label for launch in launches)
    kernel = KernelSpec(
        "phases",
        text,
        tuple(values),
        phases.push_bytes,
        frozenset(NEEDS).union(*[launch.kernel.needs for launch in launches]),
        f"one workgroup: {labels}",
        f"{len(phases.levels)} levels so small that to wait for each would take longer",
        phases.subgroup_size,
    )
    return Dispatch(
        kernel,
        (1, 1, 1),
        tuple(slots.values()),
        tuple(view for launch in launches for view in launch.reads),
        tuple(view for launch in launches for view in launch.writes),
        tuple(dict.fromkeys(label for launch in launches for label in launch.nodes)),
        tuple(operator for launch in launches for operator in launch.operators),
        phases=phases.levels,
    )


def _calls(
    number: int, launch: Dispatch, found: Workgroup, threads: int, constants: list[tuple[str, int]]
) -> list[str]:
    """What a workgroup does for a launch.

    Args:
        number: of the phase.
        launch: it.
        found: what its workgroups are like.
        threads: of the workgroup.
        constants: receives the specialization constants that it needs.
    """
    across, down, _ = launch.groups
    count = math.prod(launch.groups)
    of = {"COUNT": count, "ACROSS": across, "DOWN": down}

    def constant(name: str) -> str:
        """A number that is not 1, for which code is made without it."""
        if (f"{name}{number}", of[name]) not in constants:
            constants.append((f"{name}{number}", of[name]))
        return f"uint({name}{number})"

    place = "uint3(0u, 0u, 0u)"
    if count > 1:
        x = "at" if across == count else f"at % {constant('ACROSS')}" if across > 1 else "0u"
        rest = f"at / {constant('ACROSS')}" if across > 1 else "at"
        y = "0u" if down == 1 else rest if across * down == count else f"({rest}) % {constant('DOWN')}"
        z = "0u" if across * down == count else f"({rest}) / {constant('DOWN')}" if down > 1 else rest
        place = f"uint3({x}, {y}, {z})"
    if found.kind.is_whole:
        every = (
            f"thread % {found.threads}u, thread < {found.threads}u" if found.threads < threads else "thread"
        )
        if count == 1:
            return [f"    phase{number}({place}, {every});"]
        between = ["        if (at > 0u) GroupMemoryBarrierWithGroupSync();"] if found.shared else []
        return [
            f"    for (uint at = 0u; at < {constant('COUNT')}; ++at)",
            "    {",
            *between,
            f"        phase{number}({place}, {every});",
            "    }",
        ]
    every = str(found.threads)
    total = f"{constant('COUNT')} * {every}u" if count > 1 else f"{every}u"
    call = f"uint at = one / {every}u; phase{number}({place}, one % {every}u);"
    if count * found.threads <= threads:
        return [f"    {{ uint one = thread; if (one < {total}) {{ {call} }} }}"]
    return [f"    for (uint one = thread; one < {total}; one += {threads}u) {{ {call} }}"]


def _slots_of(launch: Dispatch) -> list[_Slot]:
    """What tells a launch's push constants from those of others: of equal ones one is enough."""
    found: list[_Slot] = []
    for (type_, name), argument in zip(launch.kernel.text.fields, launch.arguments, strict=True):
        key: tuple[str, Hashable, Hashable]
        if isinstance(argument, View):
            key = type_, argument.buffer.serial, argument.byte_offset
        elif isinstance(argument, Buffer):
            key = type_, argument.serial, None
        else:
            key = type_, name, argument.terms if isinstance(argument, Size) else argument
        found.append((*key, sum(other[:-1] == key for other in found)))
    return found


def _slots(launches: Iterable[Dispatch]) -> dict[_Slot, _Argument]:
    """The push constants of several launches."""
    found: dict[_Slot, _Argument] = {}
    for launch in launches:
        for key, argument in zip(_slots_of(launch), launch.arguments, strict=True):
            found.setdefault(key, argument)
    return found
