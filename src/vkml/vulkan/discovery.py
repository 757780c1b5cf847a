"""The devices of this machine, numbered, with duplicates and unusable ones left out."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from dataclasses import replace

from vkml.dataclasses import dataclass
from vkml.errors import DeviceError, NoDevice
from vkml.forks import renew_in_child
from vkml.logs import logger
from vkml.vulkan import fork_safety
from vkml.vulkan.info import DeviceInfo, DeviceType, RejectedDevice
from vkml.vulkan.instance import get_instance
from vkml.vulkan.loader import process_lock
from vkml.vulkan.query import describe
from vkml.vulkan.quirks import apply_quirks
from vkml.vulkan.structures import constants

_log = logger("vkml.vulkan")

_LAYERED_DRIVERS = frozenset({constants.VK_DRIVER_ID_MESA_DOZEN, constants.VK_DRIVER_ID_MESA_VENUS})
_VENDOR_DRIVERS = frozenset(
    {
        constants.VK_DRIVER_ID_AMD_PROPRIETARY,
        constants.VK_DRIVER_ID_AMD_OPEN_SOURCE,
        constants.VK_DRIVER_ID_NVIDIA_PROPRIETARY,
        constants.VK_DRIVER_ID_INTEL_PROPRIETARY_WINDOWS,
        constants.VK_DRIVER_ID_INTEL_OPEN_SOURCE_MESA,
        constants.VK_DRIVER_ID_QUALCOMM_PROPRIETARY,
        constants.VK_DRIVER_ID_ARM_PROPRIETARY,
        constants.VK_DRIVER_ID_IMAGINATION_PROPRIETARY,
    }
)


@dataclass(frozen=True)
class _Discovery:
    devices: tuple[DeviceInfo, ...]  # software devices included, last
    rejected: tuple[RejectedDevice, ...]

    @functools.cached_property
    def by_name(self) -> dict[str, DeviceInfo]:
        return {info.name: info for info in self.devices}


_lock = threading.RLock()
_discovery: _Discovery | None = None


def _renew() -> None:
    global _lock, _discovery
    _lock, _discovery = threading.RLock(), None


renew_in_child(_renew)


def devices(allow_software: bool | None = None) -> tuple[DeviceInfo, ...]:
    """The Vulkan devices of this machine; empty where there is no Vulkan.

    Args:
        allow_software: whether to list devices that compute on the CPU (lavapipe, SwiftShader); by default
            only under VKML_ALLOW_SOFTWARE=1.
    """
    try:
        found = _discover()
    except NoDevice:
        return ()
    is_allowed = _allows_software(allow_software)
    return tuple(info for info in found.devices if is_allowed or not info.is_software)


def _allows_software(stated: bool | None) -> bool:
    if stated is None:
        return os.environ.get("VKML_ALLOW_SOFTWARE", "") not in ("", "0")
    return stated


def rejected_devices() -> tuple[RejectedDevice, ...]:
    """The devices that vkml does not use, with the reasons; without a loader, one entry that says so."""
    try:
        return _discover().rejected
    except NoDevice as error:
        return (RejectedDevice("Vulkan", str(error)),)


def find_device(name: str, allow_software: bool | None = None) -> DeviceInfo:
    """The description of a device by its name, for example "vulkan:0".

    Raises:
        NoDevice: there is none of that name; the message lists what there is.
    """
    with contextlib.suppress(NoDevice):
        known = _discover().by_name.get(name)
        if known is not None and (not known.is_software or _allows_software(allow_software)):
            return known
    there = devices(allow_software)
    listing = ", ".join(str(info) for info in there) or "none"
    reasons = "".join(f"; {one.title} is not used: {one.reason}" for one in rejected_devices())
    hidden = len(devices(True)) - len(there)
    if hidden:
        reasons += f"; {hidden} software device(s) are listed with VKML_ALLOW_SOFTWARE=1"
    raise NoDevice(f"there is no Vulkan device {name!r}; there is: {listing}{reasons}")


def _discover() -> _Discovery:
    global _discovery
    with _lock:
        if _discovery is None:
            found = _enumerate()
            _discovery = _discovery or found  # a signal handler may have asked meanwhile
        return _discovery


def _enumerate() -> _Discovery:
    instance = get_instance()
    rejected: list[RejectedDevice] = []
    found: list[DeviceInfo] = []
    with process_lock:
        try:
            handles = instance.functions.enumerate(
                "vkEnumeratePhysicalDevices", "VkPhysicalDevice", instance.handle
            )
        except DeviceError as error:  # a loader without any driver says INITIALIZATION_FAILED
            return _Discovery((), (RejectedDevice("Vulkan", f"no driver works: {error}"),))
        for handle in handles:
            description = describe(instance.functions, handle)
            if isinstance(description, RejectedDevice):
                rejected.append(description)
            else:
                found.append(description)
                fork_safety.note_listed(description.driver_id)
    found.sort(key=_preference, reverse=True)
    kept: list[DeviceInfo] = []
    for info in found:
        same = next((other for other in kept if _is_same(info, other)), None)
        if same is None:
            kept.append(info)
        else:
            rejected.append(
                RejectedDevice(info.title, f"{info.driver} drives the same device as {same.driver}")
            )
    kept.sort(key=_order)
    numbered = tuple(apply_quirks(replace(info, name=f"vulkan:{index}")) for index, info in enumerate(kept))
    for one in rejected:
        _log.info("Vulkan device %s is not used: %s", one.title, one.reason)
    return _Discovery(numbered, tuple(rejected))


def _preference(info: DeviceInfo) -> tuple[int, tuple[int, int, int], int]:
    """Higher is better, among drivers of one device."""
    rank = 2 if info.driver_id in _VENDOR_DRIVERS else 0 if info.driver_id in _LAYERED_DRIVERS else 1
    return rank, info.api_version, info.driver_version


def _is_same(one: DeviceInfo, other: DeviceInfo) -> bool:
    if one.uuid == other.uuid:
        return True
    # Parts of one GPU under one driver (NVIDIA's MIG) share a PCI address and are different devices.
    return one.pci is not None and one.pci == other.pci and one.driver_id != other.driver_id


def _order(info: DeviceInfo) -> tuple[bool, int, tuple[int, ...], str, str]:
    # Software has no address; the driver that offers more (lavapipe before SwiftShader) comes first.
    place = tuple(-part for part in info.api_version) if info.is_software else info.pci or (1 << 20,)
    return info.is_software, list(DeviceType).index(info.type), place, info.uuid, info.driver
