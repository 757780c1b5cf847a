"""The Khronos validation layer, wanted with VKML_VALIDATE=1, and the messages it has sent."""

from __future__ import annotations

import os
import threading
from typing import Any

from vkml.forks import renew_in_child
from vkml.logs import logger
from vkml.vulkan.fork_safety import has_left_devices
from vkml.vulkan.loader import Functions
from vkml.vulkan.structures import NULL, constants, ffi, structure, text

LAYER = "VK_LAYER_KHRONOS_validation"
_SETTINGS = ("validate_sync", "syncval_shader_accesses_heuristic")

_log = logger("vkml.vulkan")
_lock = threading.RLock()
_messages: list[str] = []


def _renew() -> None:
    global _lock
    _lock = threading.RLock()
    _messages.clear()


renew_in_child(_renew)


def is_wanted() -> bool:
    """Whether the environment asks for the validation layer, and this process can bear it.

    The layer holds locks of the whole process in every call. Where another thread was in one as this process
    was forked, its own calls would wait for ever, or end the process ("The futex facility returned an
    unexpected error code").
    """
    return os.environ.get("VKML_VALIDATE", "") not in ("", "0") and not has_left_devices()


def validation_messages() -> tuple[str, ...]:
    """The warnings and errors the validation layer has sent in this process, oldest first."""
    with _lock:
        return tuple(_messages)


class Validation:
    """What an instance needs to run under the validation layer: layer, extensions, structures."""

    def __init__(self, functions: Functions) -> None:
        self.layers: list[str] = []
        self.extensions: list[str] = []
        self.chain: list[Any] = []
        self.has_names = False
        layers = functions.enumerate("vkEnumerateInstanceLayerProperties", "VkLayerProperties")
        if LAYER not in {text(layer.layerName) for layer in layers}:
            _log.warning(
                "VKML_VALIDATE is set and there is no %s: running unvalidated. Install it (Debian and "
                "Ubuntu: vulkan-validationlayers) or set VK_LAYER_PATH to its folder",
                LAYER,
            )
            return
        self.layers.append(LAYER)
        of_layer = _extensions(functions, ffi.new("char[]", LAYER.encode()))
        if "VK_EXT_debug_utils" in of_layer | _extensions(functions, NULL):
            self.extensions.append("VK_EXT_debug_utils")
            self.chain.append(_messenger_info())
            self.has_names = True
        if "VK_EXT_layer_settings" in of_layer:
            self.extensions.append("VK_EXT_layer_settings")
        elif "VK_EXT_validation_features" in of_layer:
            self.extensions.append("VK_EXT_validation_features")
            self.chain.append(_validation_features())
            return
        # A manifest may list no extensions; the layer reads its settings all the same.
        self.chain.append(_layer_settings())

    def create_messenger(self, functions: Functions, instance: Any) -> int:
        """Makes the messenger of a created instance; returns 0 where there is none."""
        if not self.has_names:
            return 0
        handle = ffi.new("VkDebugUtilsMessengerEXT *")
        functions.call("vkCreateDebugUtilsMessengerEXT", instance, _messenger_info(), NULL, handle)
        return int(handle[0])


def _extensions(functions: Functions, layer: Any) -> set[str]:
    rows = functions.enumerate("vkEnumerateInstanceExtensionProperties", "VkExtensionProperties", layer)
    return {text(row.extensionName) for row in rows}


def _layer_settings() -> Any:
    true = ffi.new("VkBool32[1]", [1])
    settings = [
        structure(
            "VkLayerSettingEXT",
            pLayerName=LAYER,
            pSettingName=name,
            type=constants.VK_LAYER_SETTING_TYPE_BOOL32_EXT,
            valueCount=1,
            pValues=true,
        )
        for name in _SETTINGS
    ]
    return structure("VkLayerSettingsCreateInfoEXT", settingCount=len(settings), pSettings=settings)


def _validation_features() -> Any:
    enabled = [constants.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT]
    return structure(
        "VkValidationFeaturesEXT", enabledValidationFeatureCount=1, pEnabledValidationFeatures=enabled
    )


def _messenger_info() -> Any:
    c = constants
    warning = c.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
    return structure(
        "VkDebugUtilsMessengerCreateInfoEXT",
        messageSeverity=warning | c.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        messageType=c.VK_DEBUG_UTILS_MESSAGE_TYPE_GENERAL_BIT_EXT
        | c.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT
        | c.VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
        pfnUserCallback=_callback(),
    )


def _receive(severity: int, kind: int, data: Any, user: Any) -> int:
    message = text(data.pMessage) if data.pMessage != NULL else ""
    # The loader's own remarks about drivers and manifests say nothing about what vkml does.
    is_loader = kind == constants.VK_DEBUG_UTILS_MESSAGE_TYPE_GENERAL_BIT_EXT and (
        data.pMessageIdName == NULL or text(data.pMessageIdName) == "Loader Message"
    )
    if is_loader:
        _log.debug("%s", message)
        return 0
    with _lock:
        _messages.append(message)
    is_error = severity >= constants.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT
    (_log.error if is_error else _log.warning)("%s", message)
    return 0


_callback_kept: Any = None


def _callback() -> Any:
    global _callback_kept
    if _callback_kept is None:
        _callback_kept = ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", _receive, error=0)
    return _callback_kept
