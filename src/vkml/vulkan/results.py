"""VkResult codes as typed exceptions."""

from __future__ import annotations

from vkml.errors import DeviceError, DeviceLost, OutOfMemory
from vkml.vulkan.structures import constants

_NAMES = (
    "VK_NOT_READY",
    "VK_TIMEOUT",
    "VK_EVENT_SET",
    "VK_EVENT_RESET",
    "VK_INCOMPLETE",
    "VK_ERROR_OUT_OF_HOST_MEMORY",
    "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    "VK_ERROR_INITIALIZATION_FAILED",
    "VK_ERROR_DEVICE_LOST",
    "VK_ERROR_MEMORY_MAP_FAILED",
    "VK_ERROR_LAYER_NOT_PRESENT",
    "VK_ERROR_EXTENSION_NOT_PRESENT",
    "VK_ERROR_FEATURE_NOT_PRESENT",
    "VK_ERROR_INCOMPATIBLE_DRIVER",
    "VK_ERROR_TOO_MANY_OBJECTS",
    "VK_ERROR_FORMAT_NOT_SUPPORTED",
    "VK_ERROR_FRAGMENTED_POOL",
    "VK_ERROR_UNKNOWN",
    "VK_ERROR_OUT_OF_POOL_MEMORY",
    "VK_ERROR_INVALID_EXTERNAL_HANDLE",
    "VK_ERROR_FRAGMENTATION",
    "VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS",
    "VK_PIPELINE_COMPILE_REQUIRED",
)


def result_name(result: int) -> str:
    """Vulkan's name of a result code."""
    for name in _NAMES:
        if getattr(constants, name) == result:
            return name
    return f"VkResult {result}"


def result_error(function: str, result: int, where: str, detail: str = "") -> DeviceError:
    """The exception for a failed call, not raised yet.

    Args:
        function: the Vulkan function.
        result: what it returned.
        where: the device, or "" where there is none yet.
        detail: what else is known.
    """
    message = f"{function} returned {result_name(result)}"
    if where:
        message += f" on {where}"
    if detail:
        message += f": {detail}"
    if result == constants.VK_ERROR_DEVICE_LOST:
        return DeviceLost(message + "; the device has to be opened anew")
    if result in (constants.VK_ERROR_OUT_OF_DEVICE_MEMORY, constants.VK_ERROR_OUT_OF_HOST_MEMORY):
        return OutOfMemory(message)
    return DeviceError(message)
