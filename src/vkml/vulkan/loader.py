"""The Vulkan loader: finding it, and calling its functions."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from vkml.errors import DeviceError, NoDevice
from vkml.forks import renew_in_child
from vkml.vulkan._bindings import STRUCTURE_TYPES
from vkml.vulkan.results import result_error
from vkml.vulkan.structures import NULL, constants, ffi

ENVIRONMENT = "VKML_VULKAN_LIBRARY"


class Functions:
    """Vulkan functions as attributes, looked up at the first use; `call` raises when one fails."""

    def __init__(self, look_up: Callable[[bytes], Any], where: str = "") -> None:
        self._look_up = look_up
        self.where = where
        self.fault_report: Callable[[], str] | None = None  # asked for detail when the device is lost

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("vk"):
            raise AttributeError(name)
        address = self._look_up(name.encode())
        if address == NULL:
            place = f" on {self.where}" if self.where else ""
            raise DeviceError(f"the Vulkan driver has no function {name}{place}; a newer driver may have it")
        function = ffi.cast(f"PFN_{name}", address)
        setattr(self, name, function)
        return function

    def has(self, name: str) -> bool:
        """Whether the driver has a function."""
        return bool(self._look_up(name.encode()) != NULL)

    def call(self, name: str, *arguments: Any) -> int:
        """Calls a function that returns a VkResult, and raises when that says it failed."""
        result: int = getattr(self, name)(*arguments)
        if result < 0:
            self.fail(name, result)
        return result

    def fail(self, name: str, result: int) -> None:
        """Raises the exception for a failed call."""
        is_lost = result == constants.VK_ERROR_DEVICE_LOST
        detail = self.fault_report() if is_lost and self.fault_report is not None else ""
        raise result_error(name, result, self.where, detail)

    def enumerate(self, name: str, kind: str, *arguments: Any) -> list[Any]:
        """Calls a function that fills an array of structures: once for the count, again for the contents.

        Args:
            name: of the function.
            kind: of the array's items.
            arguments: those before the count.
        """
        function = getattr(self, name)
        count = ffi.new("uint32_t *")
        while True:
            result = function(*arguments, count, NULL)
            if result is not None and result < 0:
                self.fail(name, result)
            array = ffi.new(f"{kind}[]", count[0])
            _set_structure_types(array, kind)
            result = function(*arguments, count, array)
            if result is not None and result < 0:
                self.fail(name, result)
            if not result:  # VK_INCOMPLETE: there are more by now
                return [_owned(array[index], kind) for index in range(count[0])]


def _owned(item: Any, kind: str) -> Any:
    """A structure of an array as a copy of its own; a handle as it is."""
    return ffi.new(f"{kind} *", item) if ffi.typeof(kind).kind == "struct" else item


def _set_structure_types(array: Any, kind: str) -> None:
    number = STRUCTURE_TYPES.get(kind)
    if number is not None:
        for item in array:
            item.sType = number


process_lock = threading.RLock()
"""Held in calls during which the loader and the drivers hold locks of the whole process: a fork waits for
their end, or the child would find these locked for ever. Who holds it waits for no other lock of vkml's but
those of counters and messages."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=process_lock.acquire,
        after_in_parent=process_lock.release,
        after_in_child=process_lock.release,
    )

_lock = threading.RLock()
_loaded: tuple[str, Any, Functions] | None = None


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


renew_in_child(_renew)


def global_functions() -> Functions:
    """The functions that need no instance.

    Raises:
        NoDevice: there is no Vulkan loader on this machine.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            name, library = _open()
            get = ffi.cast("PFN_vkGetInstanceProcAddr", _symbol(library, name))
            functions = Functions(lambda function: get(NULL, function))
            functions.__dict__["vkGetInstanceProcAddr"] = get
            _loaded = name, library, functions
        return _loaded[2]


def _candidates() -> list[str]:
    if sys.platform == "win32":
        return ["vulkan-1.dll"]
    if sys.platform == "darwin":
        names = ["libvulkan.1.dylib", "libvulkan.dylib", "libMoltenVK.dylib"]
        return names + [
            f"{folder}/{name}" for folder in ("/usr/local/lib", "/opt/homebrew/lib") for name in names
        ]
    return ["libvulkan.so.1", "libvulkan.so"]


def _open() -> tuple[str, Any]:
    named = os.environ.get(ENVIRONMENT)
    problems = []
    for name in [named] if named else _candidates():
        try:
            return name, ctypes.CDLL(name)
        except OSError as error:
            problems.append(str(error))
    if named:
        raise NoDevice(
            f"{ENVIRONMENT}={named} cannot be loaded as a Vulkan loader ({problems[0]}); unset or fix it"
        )
    raise NoDevice(
        f"there is no Vulkan loader on this machine (tried {', '.join(_candidates())}): {_advice()}; "
        f"or set {ENVIRONMENT} to its path. Without it vkml runs on the device 'cpu' only"
    )


def _advice() -> str:
    if sys.platform == "win32":
        return "install the current driver of the GPU's vendor, which brings vulkan-1.dll"
    if sys.platform == "darwin":
        return "install the packages vulkan-loader and molten-vk of Homebrew"
    return (
        "install the system's loader (Debian and Ubuntu: libvulkan1, Fedora: vulkan-loader, "
        "Arch: vulkan-icd-loader) and the GPU's driver (Mesa: mesa-vulkan-drivers; NVIDIA: its own driver)"
    )


def _symbol(library: Any, name: str) -> Any:
    try:
        function = library.vkGetInstanceProcAddr
    except AttributeError:
        raise NoDevice(f"{name} is no Vulkan loader: it has no function vkGetInstanceProcAddr") from None
    return ctypes.cast(function, ctypes.c_void_p).value
