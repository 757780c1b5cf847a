"""What onnxruntime's module says of itself and of the machine, and its settings of the process."""

from __future__ import annotations

import platform

from vkml.engine.array_likes import as_integer
from vkml.engine.devices import cpu_info, devices, vulkan_devices
from vkml.engine.providers import ALL_PROVIDERS, CPU_PROVIDER, VULKAN_PROVIDER
from vkml.errors import Fail

API_VERSION = "1.32.0"
"""The release of onnxruntime whose Python interface this is."""


package_name = "vkml"
cuda_version = ""
"""Of the release of CUDA that it was built with: none."""
import_capi_exception: Exception | None = None
"""Why a library could not be loaded: there is none."""


def get_available_providers() -> list[str]:
    """Providers that run models on this machine, the preferred first.

    Example:
        >>> import vkml
        >>> vkml.get_available_providers()[-1]
        'CPUExecutionProvider'
    """
    return [VULKAN_PROVIDER, CPU_PROVIDER] if vulkan_devices(None) else [CPU_PROVIDER]


def get_all_providers() -> list[str]:
    """All names of providers that lists may have; those of other runtimes stand for Vulkan or the CPU."""
    return list(ALL_PROVIDERS)


def get_device() -> str:
    """``"GPU"`` where there is a Vulkan device, else ``"CPU"``."""
    return "GPU" if vulkan_devices(None) else "CPU"


def get_version_string() -> str:
    """vkml's version."""
    import vkml

    return vkml.__version__


def get_build_info() -> str:
    """What this is: version, interface, machine."""
    return (
        f"VKML Build Info: version={get_version_string()}, onnxruntime-api={API_VERSION}, "
        f"python={platform.python_version()}, machine={platform.machine()}, cpu={cpu_info().driver}"
    )


def has_collective_ops() -> bool:
    """Whether there are operators that several processes run together: no."""
    return False


def enable_telemetry_events() -> None:
    """Accepted: vkml sends nothing to anyone."""


def disable_telemetry_events() -> None:
    """Accepted: vkml sends nothing to anyone."""


def register_execution_provider_library(registration_name: str, library_path: str) -> None:
    """Raises `Fail`: libraries of providers are machine code for onnxruntime.

    Args:
        registration_name: of the library.
        library_path: where it is.
    """
    raise Fail(
        f"the library {library_path!r} of the provider {registration_name!r} cannot be loaded: it is written "
        "for onnxruntime; vkml runs models on Vulkan devices and on the CPU"
    )


def unregister_execution_provider_library(registration_name: str) -> None:
    """Raises `Fail`: none is registered.

    Args:
        registration_name: of the library.
    """
    raise Fail(f"there is no library of a provider {registration_name!r}")


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Accepted: vkml needs no libraries of CUDA.

    Args:
        cuda: accepted.
        cudnn: accepted.
        msvc: accepted.
        directory: accepted.
    """


def print_debug_info() -> None:
    """Prints versions and devices."""
    print(get_build_info())
    print(f"platform: {platform.platform()}")
    for device in devices():
        print(f"{device.name}: {device.title} ({device.driver})")


def set_seed(seed: int) -> None:
    """Seeds the random numbers of models whose operators state no seed, and those of tensors.

    Args:
        seed: a whole number.
    """
    from vkml.ops import random_state
    from vkml.tensors.generator import manual_seed

    number = as_integer(seed, "a seed")
    random_state.set_seed(number)
    manual_seed(number)
