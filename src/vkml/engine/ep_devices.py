"""The machine's devices as onnxruntime lists them: `OrtEpDevice`, one for each that a provider runs on."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import Any

from vkml.dataclasses import dataclass
from vkml.engine.devices import devices
from vkml.engine.memory_infos import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtMemoryInfo,
    OrtMemType,
)
from vkml.engine.providers import CPU_PROVIDER, VULKAN_PROVIDER
from vkml.errors import InvalidSetting


class OrtHardwareDeviceType(IntEnum):
    """Kinds of devices."""

    CPU = 0
    GPU = 1
    NPU = 2


@dataclass(frozen=True)
class OrtHardwareDevice:
    """A device of the machine."""

    type: OrtHardwareDeviceType
    """Its kind; software drivers are CPUs."""
    vendor: str
    """Its maker's name; "" of the CPU."""
    vendor_id: int
    """PCI's number; 0 where the vendor is not known by one."""
    device_id: int
    """Its number among vkml's devices of its kind."""
    metadata: dict[str, str] = field(default_factory=dict)
    """What else is known: "Description"."""


class OrtSyncStream:
    """The order in which work reaches a device: vkml's own, which needs no handle."""

    def get_handle(self) -> int:
        """0: work is submitted by vkml alone."""
        return 0


@dataclass(frozen=True)
class OrtEpDevice:
    """A device and the provider that runs models on it."""

    name: str
    """Of the device in vkml: "cpu", "vulkan:0", …"""
    ep_name: str
    """Of the provider."""
    ep_vendor: str
    """Of the provider."""
    device: OrtHardwareDevice
    """What runs the models."""
    ep_metadata: dict[str, str] = field(default_factory=dict)
    """What else the provider says."""
    ep_options: dict[str, str] = field(default_factory=dict)
    """With which the provider takes this device."""

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> OrtMemoryInfo | None:
        """Where values lie on it; None on the CPU, whose memory is the host's.

        Args:
            memory_type: the device's own memory, or such as the host reaches; that of vkml's values is both.
        """
        OrtDeviceMemoryType(memory_type)
        return None if self.name == "cpu" else memory_info(self.name)

    def create_sync_stream(self, stream_options: Any = None) -> OrtSyncStream:
        """A stream for `copy_tensors`.

        Args:
            stream_options: accepted.

        Raises:
            InvalidSetting: it is the CPU.
        """
        if self.name == "cpu":
            raise InvalidSetting("the CPU has no streams: copies to it are done when they return")
        return OrtSyncStream()


def memory_info(name: str) -> OrtMemoryInfo:
    """Where values lie that are on a device.

    Args:
        name: of the device.
    """
    kind, _, number = name.partition(":")
    title = "Cpu" if kind == "cpu" else "Vulkan"
    return OrtMemoryInfo(title, OrtAllocatorType.ORT_ARENA_ALLOCATOR, int(number or 0), OrtMemType.DEFAULT)


def get_ep_devices() -> list[OrtEpDevice]:
    """The devices that sessions may use, the best first, the CPU last."""
    import vkml

    found = []
    for info in devices():
        is_cpu = info.name == "cpu"
        vendor = "" if is_cpu else str(info.vendor)
        kind = OrtHardwareDeviceType.CPU if is_cpu or info.is_software else OrtHardwareDeviceType.GPU
        known = {each.name: int(each) for each in OrtDeviceVendorId}
        hardware = OrtHardwareDevice(
            kind,
            vendor,
            known.get(vendor.upper(), 0),
            int(info.name.partition(":")[2] or 0),
            {"Description": str(info.title)},
        )
        provider = CPU_PROVIDER if is_cpu else VULKAN_PROVIDER
        found.append(OrtEpDevice(info.name, provider, "vkml", hardware, {"version": vkml.__version__}))
    return found


def ep_device(name: str) -> OrtEpDevice | None:
    """The device of that name; None where it is not listed, as software is not unless that is allowed."""
    return next((device for device in get_ep_devices() if device.name == name), None)
