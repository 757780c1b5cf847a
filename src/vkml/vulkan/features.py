"""Which Vulkan features stand behind each capability: one table, read when asking and when enabling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vkml.dataclasses import dataclass
from vkml.vulkan.structures import chain, structure

_CORE = "VkPhysicalDeviceFeatures2"
_V11 = "VkPhysicalDeviceVulkan11Features"
_V12 = "VkPhysicalDeviceVulkan12Features"
_V13 = "VkPhysicalDeviceVulkan13Features"


@dataclass(frozen=True)
class Feature:
    """One capability: the members of a feature structure that must all be there, and their extension."""

    capability: str
    structure: str | None
    members: tuple[str, ...] = ()
    extension: str | None = None
    also: tuple[str, ...] = ()
    """Further extensions that this one builds on."""


REQUIRED = (
    Feature("buffer_device_address", _V12, ("bufferDeviceAddress",)),
    Feature("timeline_semaphore", _V12, ("timelineSemaphore",)),
    Feature("synchronization2", _V13, ("synchronization2",)),
)
"""Without these a device is not used at all."""

_ATOMIC = ("VkPhysicalDeviceShaderAtomicFloatFeaturesEXT", "VK_EXT_shader_atomic_float")
_ATOMIC2 = ("VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT", "VK_EXT_shader_atomic_float2")
_BFLOAT = ("VkPhysicalDeviceShaderBfloat16FeaturesKHR", "VK_KHR_shader_bfloat16")
_FLOAT8 = ("VkPhysicalDeviceShaderFloat8FeaturesEXT", "VK_EXT_shader_float8")
_WORKGROUP = (
    "VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR",
    "VK_KHR_workgroup_memory_explicit_layout",
)
_MATRIX = ("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", "VK_KHR_cooperative_matrix")

OPTIONAL = (
    Feature("float64", _CORE, ("shaderFloat64",)),
    Feature("int64", _CORE, ("shaderInt64",)),
    Feature("int16", _CORE, ("shaderInt16",)),
    Feature("float16", _V12, ("shaderFloat16",)),
    Feature("int8", _V12, ("shaderInt8",)),
    Feature("storage_8bit", _V12, ("storageBuffer8BitAccess",)),
    Feature("storage_16bit", _V11, ("storageBuffer16BitAccess",)),
    Feature("push_constant_8bit", _V12, ("storagePushConstant8",)),
    Feature("push_constant_16bit", _V11, ("storagePushConstant16",)),
    Feature("variable_pointers", _V11, ("variablePointersStorageBuffer", "variablePointers")),
    Feature("scalar_block_layout", _V12, ("scalarBlockLayout",)),
    Feature("vulkan_memory_model", _V12, ("vulkanMemoryModel",)),
    Feature("vulkan_memory_model_device_scope", _V12, ("vulkanMemoryModelDeviceScope",)),
    Feature("atomic_int64", _V12, ("shaderBufferInt64Atomics",)),
    Feature("subgroup_extended_types", _V12, ("shaderSubgroupExtendedTypes",)),
    Feature("host_query_reset", _V12, ("hostQueryReset",)),
    Feature("subgroup_size_control", _V13, ("subgroupSizeControl",)),
    Feature("full_subgroups", _V13, ("computeFullSubgroups",)),
    Feature("integer_dot", _V13, ("shaderIntegerDotProduct",)),
    Feature("zero_initialize_workgroup_memory", _V13, ("shaderZeroInitializeWorkgroupMemory",)),
    Feature("maintenance4", _V13, ("maintenance4",)),
    Feature(
        "atomic_float", _ATOMIC[0], ("shaderBufferFloat32Atomics", "shaderBufferFloat32AtomicAdd"), _ATOMIC[1]
    ),
    Feature(
        "atomic_float_shared",
        _ATOMIC[0],
        ("shaderSharedFloat32Atomics", "shaderSharedFloat32AtomicAdd"),
        _ATOMIC[1],
    ),
    Feature(
        "atomic_float16",
        _ATOMIC2[0],
        ("shaderBufferFloat16Atomics", "shaderBufferFloat16AtomicAdd"),
        _ATOMIC2[1],
        (_ATOMIC[1],),
    ),
    Feature("bfloat16", _BFLOAT[0], ("shaderBFloat16Type",), _BFLOAT[1]),
    Feature("bfloat16_dot", _BFLOAT[0], ("shaderBFloat16DotProduct",), _BFLOAT[1]),
    Feature("bfloat16_cooperative_matrix", _BFLOAT[0], ("shaderBFloat16CooperativeMatrix",), _BFLOAT[1]),
    Feature("float8", _FLOAT8[0], ("shaderFloat8",), _FLOAT8[1]),
    Feature("float8_cooperative_matrix", _FLOAT8[0], ("shaderFloat8CooperativeMatrix",), _FLOAT8[1]),
    Feature("has_cooperative_matrix", _MATRIX[0], ("cooperativeMatrix",), _MATRIX[1]),
    Feature("workgroup_explicit_layout", _WORKGROUP[0], ("workgroupMemoryExplicitLayout",), _WORKGROUP[1]),
    Feature(
        "subgroup_clock",
        "VkPhysicalDeviceShaderClockFeaturesKHR",
        ("shaderSubgroupClock",),
        "VK_KHR_shader_clock",
    ),
    Feature("memory_budget", None, (), "VK_EXT_memory_budget"),
    Feature(
        "memory_priority",
        "VkPhysicalDeviceMemoryPriorityFeaturesEXT",
        ("memoryPriority",),
        "VK_EXT_memory_priority",
    ),
    Feature(
        "pageable_memory",
        "VkPhysicalDevicePageableDeviceLocalMemoryFeaturesEXT",
        ("pageableDeviceLocalMemory",),
        "VK_EXT_pageable_device_local_memory",
        ("VK_EXT_memory_priority",),
    ),
    Feature(
        "conditional_rendering",
        "VkPhysicalDeviceConditionalRenderingFeaturesEXT",
        ("conditionalRendering",),
        "VK_EXT_conditional_rendering",
    ),
    Feature("external_memory_host", None, (), "VK_EXT_external_memory_host"),
    Feature("external_memory_fd", None, (), "VK_KHR_external_memory_fd"),
    Feature("external_semaphore_fd", None, (), "VK_KHR_external_semaphore_fd"),
    Feature("device_fault", "VkPhysicalDeviceFaultFeaturesEXT", ("deviceFault",), "VK_EXT_device_fault"),
    Feature(
        "pipeline_binary",
        "VkPhysicalDevicePipelineBinaryFeaturesKHR",
        ("pipelineBinaries",),
        "VK_KHR_pipeline_binary",
    ),
    Feature(
        "pipeline_statistics",
        "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR",
        ("pipelineExecutableInfo",),
        "VK_KHR_pipeline_executable_properties",
    ),
    Feature("portability_subset", None, (), "VK_KHR_portability_subset"),
)
"""Each is a boolean of `Capabilities`, true when the extension and all members are there."""

MATRIX2 = "VkPhysicalDeviceCooperativeMatrix2FeaturesNV"
MATRIX2_EXTENSION = "VK_NV_cooperative_matrix2"
MATRIX2_MEMBERS = {
    "workgroup_scope": "cooperativeMatrixWorkgroupScope",
    "flexible_dimensions": "cooperativeMatrixFlexibleDimensions",
    "reductions": "cooperativeMatrixReductions",
    "conversions": "cooperativeMatrixConversions",
    "per_element_operations": "cooperativeMatrixPerElementOperations",
    "tensor_addressing": "cooperativeMatrixTensorAddressing",
    "block_loads": "cooperativeMatrixBlockLoads",
}
"""The names in `Capabilities.cooperative_matrix2`, and the feature behind each."""


def query_features(
    ask: Callable[[Any], None], extensions: frozenset[str]
) -> tuple[set[str], tuple[str, ...]]:
    """Asks a physical device for everything in the tables.

    Args:
        ask: fills a chain that starts with VkPhysicalDeviceFeatures2.
        extensions: the device's extensions.

    Returns:
        the names of the capabilities that are there, and those of cooperative matrix 2.
    """
    features = REQUIRED + OPTIONAL
    structures = {feature.structure for feature in features if _is_offered(feature, extensions)}
    if MATRIX2_EXTENSION in extensions:
        structures.add(MATRIX2)
    made = _make(structures)
    ask(chain(*made.values()))
    found = {
        feature.capability
        for feature in features
        if _is_offered(feature, extensions)
        and all(_read(made, feature.structure, name) for name in feature.members)
    }
    matrix2 = tuple(
        name for name, member in MATRIX2_MEMBERS.items() if MATRIX2 in made and getattr(made[MATRIX2], member)
    )
    return found, matrix2


def enable_features(capabilities: Any, extensions: frozenset[str]) -> tuple[Any, list[str]]:
    """The feature chain and the extension names that turn on exactly what `capabilities` states.

    Args:
        capabilities: a `Capabilities`; a capability that a quirk turned off stays off.
        extensions: the device's extensions.
    """
    wanted = [feature for feature in OPTIONAL if getattr(capabilities, feature.capability)]
    chosen = (*REQUIRED, *wanted)
    structures = {feature.structure for feature in chosen}
    names = {name for feature in wanted for name in (feature.extension, *feature.also) if name}
    if capabilities.cooperative_matrix2:
        structures.add(MATRIX2)
        names.add(MATRIX2_EXTENSION)
    made = _make(structures)
    for feature in chosen:
        for member in feature.members:
            _write(made, feature.structure, member)
    for name in capabilities.cooperative_matrix2:
        setattr(made[MATRIX2], MATRIX2_MEMBERS[name], 1)
    return chain(*made.values()), sorted(names & extensions)


def _is_offered(feature: Feature, extensions: frozenset[str]) -> bool:
    return all(name in extensions for name in (feature.extension, *feature.also) if name)


def _make(names: Iterable[str | None]) -> dict[str, Any]:
    """Structures by name, VkPhysicalDeviceFeatures2 first."""
    rest = sorted({name for name in names if name is not None} - {_CORE})
    return {name: structure(name) for name in (_CORE, *rest)}


def _read(made: dict[str, Any], name: str | None, member: str) -> bool:
    if name is None:
        return True
    return bool(getattr(made[name].features if name == _CORE else made[name], member))


def _write(made: dict[str, Any], name: str | None, member: str) -> None:
    if name is not None:
        setattr(made[name].features if name == _CORE else made[name], member, 1)
