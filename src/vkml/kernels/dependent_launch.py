"""Kernels that wait for the launches before theirs themselves: no barrier of the device stands between.

A pipeline barrier drains the device: nothing of a level is placed, and none of its instructions and constants
is fetched, before the last workgroup of the level before has ended (1.78 µs on an H200). A kernel that is
`dependent` has an entry point round its own one (`slang/dependent.py`). Its workgroups wait, before the
kernel's function or where that calls `wait_for_producers`, until as many workgroups have ended as the level
before has, and behind it add one to the counter of their own level. This is what CUDA calls programmatic
dependent launch.

Devices place workgroups of one queue in the order of their launches, so what is waited for never waits for
room; where one does not, waiting is bounded (`POLLS`), and the host is told.

Counters lie in lines of `LINE_BYTES`, so that levels are polled at different places. Neither the host nor a
command resets them: a level sets that of the level two before it to 0, which nobody looks at any more once it
has begun, and the first two levels of a chain set those of its last two, as the run before left them. So each
chain has three levels or more, and begins behind a barrier.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vkml.kernels.spec import KernelSpec

if TYPE_CHECKING:
    from vkml.lowering.target import Target

NEEDS = frozenset({"vulkan_memory_model", "vulkan_memory_model_device_scope"})
offered = False
"""Whether launches wait by themselves without being `forced` to: it has not been timed on a GPU yet."""
forced = False
"""For tests and measurements: also on software drivers."""
DEPENDENCY_BYTES = 16
"""Behind a kernel's own push constants, from a multiple of 8 on: the address of the counters, how many
workgroups to wait for (0: for none), and the line of the own counter with, in the upper half, that of the one
to reset; 0: the launch takes no part."""
MARK = "\n#dependent "
"""Stands at the end of a dependent kernel's source, before the offset of the `Dependency` and `POLLS`."""
LINE_BYTES = 64
MOST_LINES = 1 << 16
GAVE_UP = 0x80000000
"""Is in a counter when a workgroup has waited in vain: all that wait go on then, for the run has failed."""
POLLS = 1 << 20
"""After which a workgroup waits no longer: of the order of a second, for a load that misses all caches of the
processor takes 0.6 to 0.8 µs on an H200."""


class Dependency(NamedTuple):
    """What a launch is told behind its own push constants."""

    counters: int
    """Their address. The first line holds where to say that a workgroup has waited in vain."""
    awaited: int
    """Workgroups of the level before, whose counter is in the line before its own; 0: it waits for none."""
    lines: int
    """Of its own counter and, shifted by 16, of the one that it resets; 0: it takes no part."""


NONE = Dependency(0, 0, 0)


def is_offered(capabilities: Collection[str], is_software: bool) -> bool:
    """Whether launches on a device wait by themselves.

    Args:
        capabilities: names of those that the device has.
        is_software: whether it is none.
    """
    return NEEDS.issubset(capabilities) and (forced or (offered and not is_software))


def weights_first(target: Target, are_constant: bool = True) -> str:
    """The constant WEIGHTS_FIRST of a kernel: whether it fetches the first weights and waits then.

    `wait_for_producers` is called by all invocations of a workgroup, and by all workgroups that read what
    launches before have made, the first one among them.

    Args:
        target: the device.
        are_constant: whether no launch makes the weights.
    """
    is_first = are_constant and is_offered(target.capabilities, target.processors == 1)
    return f"static const bool WEIGHTS_FIRST = {'true' if is_first else 'false'};"


def dependent(kernel: KernelSpec) -> KernelSpec:
    """A kernel whose launches take a `Dependency`."""
    at = -(-kernel.push_bytes // 8) * 8
    text = replace(kernel.text, parts=(*kernel.text.parts, f"{MARK}{at} {POLLS}"))
    return replace(kernel, text=text, push_bytes=at + DEPENDENCY_BYTES, is_dependent=True)
