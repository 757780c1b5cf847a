"""The generated declarations, and the helpers over them."""

import gc
import importlib.util
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from vkml.vulkan import _bindings
from vkml.vulkan.features import MATRIX2, MATRIX2_MEMBERS, OPTIONAL, REQUIRED
from vkml.vulkan.info import Capabilities
from vkml.vulkan.results import result_error, result_name
from vkml.vulkan.structures import NULL, api_version, chain, constants, encode_version, ffi, structure, text

ROOT = Path(__file__).resolve().parents[2]


def load_generator():
    specification = importlib.util.spec_from_file_location(
        "generate_vulkan", ROOT / "tools" / "generate_vulkan.py"
    )
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_checked_in_bindings_are_what_the_registry_gives():
    generator = load_generator()
    try:
        installed = version("vulkan-object")
    except PackageNotFoundError:
        installed = "none"
    if installed != generator.PINNED:
        pytest.skip(f"vulkan-object {generator.PINNED} is needed, installed: {installed}")
    assert generator.generate() == generator.OUTPUT.read_text(encoding="utf-8")
    assert installed == _bindings.REGISTRY_VERSION


def test_structures_have_their_type_and_keep_what_they_point_to():
    info = structure(
        "VkInstanceCreateInfo", ppEnabledExtensionNames=["VK_A", "VK_BB"], enabledExtensionCount=2
    )
    info.pApplicationInfo = NULL
    gc.collect()
    assert info.sType == 1
    assert [text(info.ppEnabledExtensionNames[index]) for index in range(2)] == ["VK_A", "VK_BB"]
    first = chain(structure("VkSemaphoreCreateInfo"), structure("VkSemaphoreTypeCreateInfo", initialValue=7))
    gc.collect()
    assert ffi.cast("VkSemaphoreTypeCreateInfo *", first.pNext).initialValue == 7


def test_arrays_of_structures_keep_their_strings():
    settings = [structure("VkLayerSettingEXT", pSettingName=name) for name in ("one", "two")]
    made = structure("VkLayerSettingsCreateInfoEXT", settingCount=2, pSettings=settings)
    del settings
    gc.collect()
    assert [text(made.pSettings[index].pSettingName) for index in range(2)] == ["one", "two"]


def test_layouts_are_those_of_the_c_headers():
    assert ffi.sizeof("VkPhysicalDeviceLimits") == 504
    assert ffi.sizeof("VkPhysicalDeviceProperties") == 824
    assert ffi.sizeof("VkSubmitInfo2") == 64
    assert ffi.sizeof("VkMemoryBarrier2") == 48
    assert ffi.sizeof("VkPhysicalDeviceMemoryProperties") == 520


def test_constants():
    assert constants.VK_WHOLE_SIZE == 2**64 - 1
    assert constants.VK_ERROR_DEVICE_LOST == -4
    assert constants.VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT == 0x800
    with pytest.raises(AttributeError):
        _ = constants.VK_NO_SUCH_THING


def test_versions():
    assert api_version(encode_version(1, 3, 296)) == (1, 3, 296)


def test_result_names():
    assert result_name(-4) == "VK_ERROR_DEVICE_LOST"
    assert result_name(-12345) == "VkResult -12345"
    error = result_error("vkQueueSubmit2", -4, "vulkan:0 (A GPU)", "page fault")
    assert "vkQueueSubmit2 returned VK_ERROR_DEVICE_LOST on vulkan:0 (A GPU): page fault" in str(error)


def test_capabilities_are_the_table_of_features():
    names = {field.name for field in fields(Capabilities)}
    for feature in (*REQUIRED, *OPTIONAL):
        assert feature.capability in names
        members = ffi.typeof(feature.structure).fields if feature.structure else []
        members = {name for name, _ in members}
        if feature.structure == "VkPhysicalDeviceFeatures2":
            members = {name for name, _ in ffi.typeof("VkPhysicalDeviceFeatures").fields}
        assert set(feature.members) <= members, feature.capability
    assert set(MATRIX2_MEMBERS.values()) <= {name for name, _ in ffi.typeof(MATRIX2).fields}
