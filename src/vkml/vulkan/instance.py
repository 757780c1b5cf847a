"""The one Vulkan instance of the process, made at the first use and destroyed at exit."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from vkml.errors import DeviceError, NoDevice
from vkml.forks import renew_in_child
from vkml.vulkan.loader import Functions, global_functions, process_lock
from vkml.vulkan.structures import NULL, api_version, chain, constants, encode_version, ffi, structure, text
from vkml.vulkan.validation import Validation, is_wanted

_PORTABILITY = "VK_KHR_portability_enumeration"


class Instance:
    """A VkInstance with its functions."""

    def __init__(self) -> None:
        loader = global_functions()
        version = ffi.new("uint32_t *")
        loader.call("vkEnumerateInstanceVersion", version)
        self.loader_version = api_version(version[0])
        validation = Validation(loader) if is_wanted() else None
        enabled = list(validation.extensions) if validation else []
        flags = 0
        # Also where there is no MoltenVK: the loader loads drivers for this, NVIDIA's instance is then made
        # in 4 ms, 68 in all; without it that takes 75 to 87.
        if _has_portability(loader):  # MoltenVK is only listed to those who ask
            enabled.append(_PORTABILITY)
            flags |= constants.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
        # Nothing of 1.4 is used, and SwiftShader refuses applications that name more than its own 1.3.
        application = structure(
            "VkApplicationInfo", pApplicationName="vkml", pEngineName="vkml", apiVersion=encode_version(1, 3)
        )
        layers = validation.layers if validation else []
        info = structure(
            "VkInstanceCreateInfo",
            flags=flags,
            pApplicationInfo=application,
            enabledExtensionCount=len(enabled),
            ppEnabledExtensionNames=enabled or NULL,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=layers or NULL,
        )
        chain(info, *(validation.chain if validation else ()))
        handle = ffi.new("VkInstance *")
        loader.call("vkCreateInstance", info, NULL, handle)
        self.handle: Any = handle[0]
        get = loader.vkGetInstanceProcAddr
        instance = handle[0]
        self.functions = Functions(lambda name: get(instance, name))
        self.has_names = validation is not None and validation.has_names
        messenger = validation.create_messenger(self.functions, instance) if validation else 0
        # Finalizers run in the reverse order of their making, so those of the devices run before this one.
        self._finalizer = weakref.finalize(self, _destroy, self.functions, instance, messenger, os.getpid())

    def leave(self) -> None:
        """Has it never destroyed: one of its devices does not answer."""
        self._finalizer.detach()


_lock = threading.RLock()
_instance: Instance | None = None


def _renew() -> None:
    """A forked child makes an instance of its own: the parent's has threads that the child does not."""
    global _lock, _instance
    _lock, _instance = threading.RLock(), None


renew_in_child(_renew)


def get_instance() -> Instance:
    """The instance of the process.

    Raises:
        NoDevice: there is no Vulkan loader, or no driver.
    """
    global _instance
    if _instance is None:
        with _lock:
            if _instance is None:
                try:
                    with process_lock:
                        made = Instance()
                        _instance = _instance or made  # a signal handler may have asked meanwhile
                except NoDevice:
                    raise
                except DeviceError as error:  # a loader without drivers says INCOMPATIBLE_DRIVER
                    raise NoDevice(
                        f"there is a Vulkan loader and no driver that works ({error}); install the GPU's "
                        "driver. Without it vkml runs on the device 'cpu' only"
                    ) from error
    return _instance


def _has_portability(loader: Functions) -> bool:
    found = loader.enumerate("vkEnumerateInstanceExtensionProperties", "VkExtensionProperties", NULL)
    return any(text(extension.extensionName) == _PORTABILITY for extension in found)


def _destroy(functions: Functions, instance: Any, messenger: int, process: int) -> None:
    if process != os.getpid():
        return
    with process_lock:
        if messenger:
            functions.vkDestroyDebugUtilsMessengerEXT(instance, messenger, NULL)
        functions.vkDestroyInstance(instance, NULL)
