"""Execution providers, onnxruntime's names of devices: what their lists stand for here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from vkml.errors import InvalidArgument, InvalidSetting

VULKAN_PROVIDER = "VulkanExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"

_OF_PROCESSORS = ("Azure", "Dnnl", "XNNPACK", "Xnnpack", "ACL", "ArmNN")
"""Providers of other runtimes that stand for a way to use the CPU, or for no device of the machine."""
_OF_ACCELERATORS = (
    "NvTensorRTRTX", "Tensorrt", "CUDA", "MIGraphX", "ROCM", "OpenVINO", "VitisAI", "QNN", "Nnapi",
    "VSINPU", "Js", "CoreML", "Dml", "Rknpu", "WebNN", "WebGpu", "CANN", "Tvm", "Snpe",
)  # fmt: skip
"""The others; Vulkan takes their place."""

_SUFFIX = "ExecutionProvider"
ALL_PROVIDERS = [
    VULKAN_PROVIDER,
    *(name + _SUFFIX for name in _OF_ACCELERATORS),
    *(name + _SUFFIX for name in _OF_PROCESSORS),
    CPU_PROVIDER,
]
"""What a list of providers may name, the preferred first."""

_SETTINGS = ("device_id", "precision")
"""Options of Vulkan's provider."""


def check_and_normalize_provider_args(
    providers: Sequence[Any] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Providers and their options side by side, whichever way they are given.

    Args:
        providers: names, or pairs of a name and a dict of options; None for none.
        provider_options: a dict for each of them, where they are names alone; None for no options.
        available_provider_names: those there are; of all others a warning says that they are not.

    Returns:
        The names, each once, and of each its options, as texts.

    Raises:
        InvalidArgument: they are something else; a ValueError, too.
    """
    names, options = _paired(providers, provider_options)
    missing = [name for name in dict.fromkeys(names) if name not in available_provider_names]
    if missing:
        warnings.warn(
            f"providers {missing} are not available; available are {list(available_provider_names)}",
            stacklevel=2,
        )
    return names, options


def _paired(providers: Any, provider_options: Any) -> tuple[list[str], list[dict[str, str]]]:
    if providers is None:
        return [], []
    if not isinstance(providers, Sequence) or isinstance(providers, str | bytes):
        raise InvalidArgument(f"providers is a list of names, not {providers!r}")
    entries: list[tuple[Any, Any]]
    if provider_options is None:
        entries = [(entry, {}) if isinstance(entry, str) else _pair(entry) for entry in providers]
    else:
        if not isinstance(provider_options, Sequence) or len(provider_options) != len(providers):
            raise InvalidArgument(
                f"provider_options has a dict for each of providers ({providers!r}), not {provider_options!r}"
            )
        entries = list(zip(providers, provider_options, strict=True))
    found: dict[str, dict[str, str]] = {}
    for name, options in entries:
        if not isinstance(name, str):
            raise InvalidArgument(
                f"a provider is a name, or a pair of it and a dict where provider_options is not given; "
                f"got {name!r}"
            )
        if not isinstance(options, Mapping):
            raise InvalidArgument(f"the options of provider {name!r} are a dict, not {options!r}")
        if name in found:
            warnings.warn(f"provider {name!r} is named twice; the first counts", stacklevel=3)
        else:
            found[name] = {str(key): str(value) for key, value in options.items()}
    return list(found), list(found.values())


def _pair(entry: Any) -> tuple[Any, Any]:
    if isinstance(entry, tuple | list) and len(entry) == 2:
        return entry[0], entry[1]
    raise InvalidArgument(f"a provider is a name or a pair of a name and a dict of options, not {entry!r}")


def requested(providers: Any, provider_options: Any) -> tuple[str, dict[str, str]]:
    """What a list of providers asks for: "auto", "cpu" or the name of a device, and Vulkan's settings.

    The first that stands for an accelerator or for the CPU decides. Of names that are other runtimes' one
    warning says what is taken instead; their options are theirs, only the number of a device counts.

    Raises:
        InvalidArgument: an unknown provider, or an option that Vulkan's has not.
    """
    single = isinstance(providers, str)
    names, options = _paired([providers] if single else providers or None, provider_options)
    for name in names:
        if name not in ALL_PROVIDERS:
            raise InvalidSetting(
                f"Unknown Provider Type: {name}; vkml has {VULKAN_PROVIDER}, {CPU_PROVIDER}, and takes "
                "Vulkan for the accelerators of onnxruntime's providers"
            )
    foreign = [name for name in names if name not in (VULKAN_PROVIDER, CPU_PROVIDER)]
    processors = [name + _SUFFIX for name in _OF_PROCESSORS]
    device, settings = ("cpu" if names else "auto"), {}
    for name, given in zip(names, options, strict=True):
        if name == CPU_PROVIDER:
            break
        if name in processors:
            continue
        device, settings = "auto", _settings(name, given)
        if "device_id" in settings:
            device = _numbered(name, settings["device_id"])
        break
    if foreign:
        instead = "the CPU" if device == "cpu" else "Vulkan where there is a device, else the CPU"
        warnings.warn(
            f"vkml has no {', '.join(foreign)}: {instead} runs the model, and options of theirs are passed "
            f"over; to say so and not be warned, pass providers=[{VULKAN_PROVIDER!r}, {CPU_PROVIDER!r}]",
            stacklevel=5,
        )
    return device, settings


def _settings(name: str, given: Mapping[str, str]) -> dict[str, str]:
    if name != VULKAN_PROVIDER:
        return {key: value for key, value in given.items() if key == "device_id"}
    unknown = [key for key in given if key not in _SETTINGS]
    if unknown:
        raise InvalidArgument(
            f"provider {name!r} has the options {', '.join(_SETTINGS)}, not {unknown[0]!r}; SessionOptions "
            "and the arguments of InferenceSession hold the rest"
        )
    return dict(given)


def _numbered(name: str, number: str) -> str:
    """The device of that number; of another runtime's the best where there are not so many."""
    if not number.isdecimal():
        raise InvalidArgument(f"device_id of provider {name!r} is the number of a device, not {number!r}")
    if name == VULKAN_PROVIDER:
        return f"vulkan:{number}"
    from vkml.engine.devices import vulkan_devices

    found = vulkan_devices(None)
    return found[int(number)].name if 0 < int(number) < len(found) else "auto"
