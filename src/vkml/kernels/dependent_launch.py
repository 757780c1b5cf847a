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
command resets them, and a chain of levels leaves them all 0, for workgroups of its last levels may look at
them before the first ones have ended: a level, which has waited for all of the one before, resets the counter
of the level before that; and in the last level, for which nobody waits, the workgroup that ends last resets
its own one and the one before. Chains begin behind barriers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # processes that compile read this, where there are no packages but vkml
    from vkml.kernels.spec import KernelSpec
    from vkml.lowering.target import Target

NEEDS = frozenset({"vulkan_memory_model", "vulkan_memory_model_device_scope"})
offered = False
"""Whether launches wait by themselves without being `forced` to: it has not been timed on a GPU yet."""
forced = False
"""For tests and measurements: also on software drivers."""
DEPENDENCY_BYTES = 16
"""Behind a kernel's own push constants, from a multiple of 8 on: the address of the counters, how many
workgroups to wait for (0: for none), and `Dependency.lines`."""
MARK = "\n#dependent "
"""Stands at the end of a dependent kernel's source, before the offset of the `Dependency` and `POLLS`."""
LINE_BYTES = 64
MOST_LINES = 1 << 16
MOST_WORKGROUPS = (1 << 16) - 1
"""Of a level that takes part."""
FIRST_LINE = 2
"""In which a level counts: each resets the counter two lines before its own."""
POLLS = 1 << 20
"""After which a workgroup waits no longer: of the order of a second, for a load that misses all caches of the
processor takes 0.6 to 0.8 µs on an H200."""


class Dependency(NamedTuple):
    """What a launch is told behind its own push constants."""

    counters: int
    """Their address. The first line holds whether a workgroup has waited in vain, and where to say so."""
    awaited: int
    """Workgroups of the level before, whose counter is in the line before its own; 0: it waits for none."""
    lines: int
    """That of its own counter and, shifted by 16, the number of workgroups of its level where no other one
    waits for them, else 0; 0 in all: it takes no part."""


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
