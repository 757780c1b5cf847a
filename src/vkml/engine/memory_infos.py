"""Devices and memory as onnxruntime describes them: `OrtDevice`, `OrtMemoryInfo`, settings of allocators."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from vkml.engine.array_likes import as_integer
from vkml.errors import InvalidArgument, InvalidSetting, WrongType


class OrtDeviceVendorId(IntEnum):
    """PCI's numbers of vendors."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtMemType(IntEnum):
    """What memory is for."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtAllocatorType(IntEnum):
    """How memory is allocated."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtDeviceMemoryType(IntEnum):
    """Whether the host reaches memory of a device."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(IntEnum):
    """Kinds of devices that have memory."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class ArenaExtendStrategy(IntEnum):
    """How an arena grows."""

    kNextPowerOfTwo = 0
    kSameAsRequested = 1


_KINDS = {
    "cpu": (0, OrtDeviceVendorId.NONE),
    "cuda": (1, OrtDeviceVendorId.NVIDIA),
    "dml": (1, OrtDeviceVendorId.MICROSOFT),
    "webgpu": (1, OrtDeviceVendorId.NONE),
    "gpu": (1, OrtDeviceVendorId.NONE),
    "vulkan": (1, OrtDeviceVendorId.NONE),
    "cann": (3, OrtDeviceVendorId.HUAWEI),
    "npu": (3, OrtDeviceVendorId.NONE),
}
"""Name of a device → its kind's number, and its vendor's."""
ACCELERATORS = frozenset(_KINDS) - {"cpu"}
"""Names that stand for a Vulkan device."""


class OrtDevice:
    """A device by its kind, number, vendor and memory.

    Args:
        device_type: number of the kind: 0 CPU, 1 GPU, 2 FPGA, 3 NPU.
        mem_type: number of the kind of memory.
        vendor_id: PCI's number of the vendor.
        device_id: which of these devices.

    Example:
        >>> import vkml
        >>> vkml.OrtDevice.make("cpu", 0).device_type()
        0
    """

    __slots__ = ("_device_id", "_device_type", "_mem_type", "_vendor_id")

    def __init__(self, device_type: int, mem_type: int, vendor_id: int, device_id: int) -> None:
        self._device_type, self._mem_type = int(device_type), int(mem_type)
        self._vendor_id, self._device_id = int(vendor_id), int(device_id)

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """A device by its name.

        Args:
            ort_device_name: "cpu", "vulkan", or a name that onnxruntime has, as "cuda" or "gpu".
            device_id: which of these devices.
            vendor_id: PCI's number of the vendor; -1 for the one that the name stands for.

        Raises:
            InvalidArgument: there is no such name.
        """
        if ort_device_name not in _KINDS:
            raise InvalidArgument(f"a device is one of {', '.join(_KINDS)}, not {ort_device_name!r}")
        kind, vendor = _KINDS[ort_device_name]
        given = as_integer(vendor_id, "a vendor")
        return OrtDevice(kind, 0, vendor if given < 0 else given, as_integer(device_id, "a device's number"))

    def device_id(self) -> int:
        """Which of these devices."""
        return self._device_id

    def device_type(self) -> int:
        """Number of the kind."""
        return self._device_type

    def device_vendor_id(self) -> int:
        """PCI's number of the vendor; 0 for none."""
        return self._vendor_id

    def device_mem_type(self) -> int:
        """Number of the kind of memory."""
        return self._mem_type

    def __repr__(self) -> str:
        return f"<OrtDevice of kind {self._device_type}, vendor {self._vendor_id}, number {self._device_id}>"


def get_ort_device_type(device_type: str) -> int:
    """Number of the kind of a device by its name; see `OrtDevice.make`."""
    return OrtDevice.make(device_type, 0).device_type()


class OrtMemoryInfo:
    """Where values lie.

    Args:
        name: of the memory, "Cpu" for the host's.
        allocator_type: how it is allocated.
        device_id: on which device.
        mem_type: what it is for.
    """

    def __init__(
        self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType
    ) -> None:
        self.name, self.device_id = name, as_integer(device_id, "a device's number")
        self.allocator_type, self.mem_type = OrtAllocatorType(allocator_type), OrtMemType(mem_type)
        self.device_mem_type = OrtDeviceMemoryType.DEFAULT
        self.device_vendor_id = 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """The same with a vendor and a kind of memory.

        Args:
            name: of the memory.
            device_type: kind of the device.
            vendor_id: PCI's number of its vendor.
            device_id: which of these devices.
            device_mem_type: whether the host reaches it.
            alignment: bytes, a power of two or 0; values of vkml begin at 64 or more.
            allocator_type: how it is allocated.
        """
        OrtMemoryInfoDeviceType(device_type)
        if as_integer(alignment, "an alignment") & (alignment - 1) and alignment:
            raise InvalidArgument(f"an alignment is a power of two or 0, not {alignment}")
        made = OrtMemoryInfo(name, allocator_type, device_id, OrtMemType.DEFAULT)
        made.device_vendor_id = as_integer(vendor_id, "a vendor")
        made.device_mem_type = OrtDeviceMemoryType(device_mem_type)
        return made

    def __repr__(self) -> str:
        return f"<OrtMemoryInfo {self.name!r} {self.device_id}>"


_ARENA = {
    "max_mem": 0,
    "arena_extend_strategy": -1,
    "initial_chunk_size_bytes": -1,
    "max_dead_bytes_per_chunk": -1,
    "initial_growth_chunk_size_bytes": -1,
    "max_power_of_two_extend_bytes": -1,
}
"""Settings of an arena, in the order of the arguments, and what they are where nothing is said."""


class OrtArenaCfg:
    """Settings of onnxruntime's arenas: kept, vkml's pools give back what others need by themselves.

    Args:
        settings: a dict of names and numbers, or the first four numbers one by one.
    """

    max_mem: int
    arena_extend_strategy: int
    initial_chunk_size_bytes: int
    max_dead_bytes_per_chunk: int
    initial_growth_chunk_size_bytes: int
    max_power_of_two_extend_bytes: int

    def __init__(self, *settings: Any) -> None:
        if len(settings) == 1 and isinstance(settings[0], Mapping):
            given = dict(settings[0])
        elif len(settings) == 4:
            given = dict(zip(_ARENA, settings, strict=False))
        else:
            raise WrongType(f"a dict of {', '.join(_ARENA)}, or the first four, are needed: got {settings!r}")
        for name in given:
            if name not in _ARENA:
                raise InvalidSetting(f"an arena has no setting {name!r}; there is {', '.join(_ARENA)}")
        for name, default in _ARENA.items():
            setattr(self, name, as_integer(given.get(name, default), name))


def create_and_register_allocator(mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None) -> None:
    """Accepted: all sessions of a process share one pool a device.

    Args:
        mem_info: where it allocates.
        arena_cfg: how.
    """
    if not isinstance(mem_info, OrtMemoryInfo):
        raise WrongType(f"mem_info is an OrtMemoryInfo, not {mem_info!r}")
    if arena_cfg is not None and not isinstance(arena_cfg, OrtArenaCfg):
        raise WrongType(f"arena_cfg is an OrtArenaCfg or None, not {arena_cfg!r}")


def create_and_register_allocator_v2(
    provider_type: str,
    mem_info: OrtMemoryInfo,
    provider_options: Mapping[str, str],
    arena_cfg: OrtArenaCfg | None = None,
) -> None:
    """The same for the memory of a provider.

    Args:
        provider_type: name of the provider.
        mem_info: as before.
        provider_options: of the provider.
        arena_cfg: as before.
    """
    from vkml.engine.providers import ALL_PROVIDERS

    if provider_type not in ALL_PROVIDERS:
        raise InvalidSetting(f"Unknown Provider Type: {provider_type}")
    create_and_register_allocator(mem_info, arena_cfg)
