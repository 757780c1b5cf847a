"""Queue families: which ones a device uses, and queues with the lock their submissions need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from vkml.dataclasses import dataclass
from vkml.vulkan.loader import Functions
from vkml.vulkan.structures import NULL, constants, ffi, handle_number

if TYPE_CHECKING:
    from _thread import RLock


@dataclass(frozen=True)
class Families:
    """The queue families vkml uses of a device."""

    compute: int
    transfer: int | None
    """A family that only copies, where there is one."""
    timestamp_bits: int
    """Valid bits of timestamps written on the compute family; 0 where it writes none."""
    compute_queues: int = 1
    """Queues of the compute family."""


class NativeCalls(NamedTuple):
    """Functions that call the driver's without the interpreter; see `vkml.cpu.native.calls`."""

    submit: Callable[[int], None]
    ask: Callable[[int], None]
    run: Callable[[int], None]
    call_all: Callable[[int], None]
    call_locked: Callable[[int], None]
    run_by_event: Callable[[int], None]
    ask_event: Callable[[int], None]


@dataclass(frozen=True)
class Queue:
    """A queue; Vulkan wants submissions to it one at a time.

    Attributes:
        lock: held by those who submit; where there are `NativeCalls`, these hold `word` instead.
        word: an integer of 64 bits on a cache line of its own.
    """

    handle: Any
    family: int
    lock: RLock
    is_compute: bool
    word: Any = field(default_factory=lambda: ffi.new("uint64_t[16]"), compare=False, repr=False)

    @property
    def word_address(self) -> int:
        """Where the lock of `NativeCalls` is."""
        return handle_number(self.word + 8)


def choose_families(functions: Functions, physical_device: Any) -> Families | None:
    """Picks a compute family, rather without graphics, and a pure transfer family; None without compute."""
    count = ffi.new("uint32_t *")
    functions.vkGetPhysicalDeviceQueueFamilyProperties(physical_device, count, NULL)
    families = ffi.new("VkQueueFamilyProperties[]", count[0])
    functions.vkGetPhysicalDeviceQueueFamilyProperties(physical_device, count, families)
    graphics, computes = constants.VK_QUEUE_GRAPHICS_BIT, constants.VK_QUEUE_COMPUTE_BIT
    there = [(index, families[index].queueFlags) for index in range(count[0]) if families[index].queueCount]
    computing = [(bool(flags & graphics), index) for index, flags in there if flags & computes]
    if not computing:
        return None
    compute = min(computing)[1]
    copies = constants.VK_QUEUE_TRANSFER_BIT
    # Families for video also copy, some with restrictions: take one that does nothing else.
    others = ~(copies | constants.VK_QUEUE_SPARSE_BINDING_BIT)
    transfer = next((index for index, flags in there if flags & copies and not flags & others), None)
    return Families(compute, transfer, families[compute].timestampValidBits, families[compute].queueCount)
