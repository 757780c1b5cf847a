"""The Vulkan API, thin: devices, memory, pipelines, commands, synchronisation. Knows nothing of graphs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vkml.vulkan.commands import CommandBuffer, CommandRecorder
    from vkml.vulkan.counters import live_objects
    from vkml.vulkan.device import Device
    from vkml.vulkan.discovery import devices, find_device, rejected_devices
    from vkml.vulkan.info import Capabilities, DeviceInfo, DeviceType, Limits, RejectedDevice
    from vkml.vulkan.memory import Memory, MemoryKind
    from vkml.vulkan.pipelines import Pipeline
    from vkml.vulkan.profiling import TimestampPool
    from vkml.vulkan.submission import Submission, Timeline
    from vkml.vulkan.validation import validation_messages

# Name -> module; loaded at the first use, so that importing vkml does not touch Vulkan.
_HOME = {
    "Capabilities": "info",
    "CommandBuffer": "commands",
    "CommandRecorder": "commands",
    "Device": "device",
    "DeviceInfo": "info",
    "DeviceType": "info",
    "Limits": "info",
    "Memory": "memory",
    "MemoryKind": "memory",
    "Pipeline": "pipelines",
    "RejectedDevice": "info",
    "Submission": "submission",
    "Timeline": "submission",
    "TimestampPool": "profiling",
    "devices": "discovery",
    "find_device": "discovery",
    "live_objects": "counters",
    "rejected_devices": "discovery",
    "validation_messages": "validation",
}

__all__ = [
    "Capabilities",
    "CommandBuffer",
    "CommandRecorder",
    "Device",
    "DeviceInfo",
    "DeviceType",
    "Limits",
    "Memory",
    "MemoryKind",
    "Pipeline",
    "RejectedDevice",
    "Submission",
    "Timeline",
    "TimestampPool",
    "devices",
    "find_device",
    "live_objects",
    "rejected_devices",
    "validation_messages",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
