"""Asks a physical device for everything its description holds."""

from __future__ import annotations

from typing import Any

from vkml.vulkan.features import REQUIRED, query_features
from vkml.vulkan.info import (
    Capabilities,
    CooperativeMatrix,
    DeviceInfo,
    DeviceType,
    FlexibleMatrix,
    Limits,
    RejectedDevice,
)
from vkml.vulkan.loader import Functions
from vkml.vulkan.queues import choose_families
from vkml.vulkan.structures import NULL, api_version, chain, constants, ffi, structure, text

MINIMUM_VERSION = (1, 3, 0)

_VENDORS = {
    0x1002: "AMD",
    0x1010: "Imagination",
    0x106B: "Apple",
    0x10DE: "NVIDIA",
    0x13B5: "Arm",
    0x1AE0: "Google",
    0x5143: "Qualcomm",
    0x8086: "Intel",
    0x10005: "Mesa",
}
_TYPES = {
    constants.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: DeviceType.DISCRETE,
    constants.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: DeviceType.INTEGRATED,
    constants.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: DeviceType.VIRTUAL,
    constants.VK_PHYSICAL_DEVICE_TYPE_CPU: DeviceType.CPU,
}
_ELEMENTS = {
    constants.VK_COMPONENT_TYPE_FLOAT16_KHR: "float16",
    constants.VK_COMPONENT_TYPE_FLOAT32_KHR: "float32",
    constants.VK_COMPONENT_TYPE_FLOAT64_KHR: "float64",
    constants.VK_COMPONENT_TYPE_SINT8_KHR: "int8",
    constants.VK_COMPONENT_TYPE_SINT16_KHR: "int16",
    constants.VK_COMPONENT_TYPE_SINT32_KHR: "int32",
    constants.VK_COMPONENT_TYPE_SINT64_KHR: "int64",
    constants.VK_COMPONENT_TYPE_UINT8_KHR: "uint8",
    constants.VK_COMPONENT_TYPE_UINT16_KHR: "uint16",
    constants.VK_COMPONENT_TYPE_UINT32_KHR: "uint32",
    constants.VK_COMPONENT_TYPE_UINT64_KHR: "uint64",
    constants.VK_COMPONENT_TYPE_BFLOAT16_KHR: "bfloat16",
    constants.VK_COMPONENT_TYPE_FLOAT8_E4M3_EXT: "float8e4m3fn",
    constants.VK_COMPONENT_TYPE_FLOAT8_E5M2_EXT: "float8e5m2",
}
_SCOPES = {
    constants.VK_SCOPE_DEVICE_KHR: "device",
    constants.VK_SCOPE_WORKGROUP_KHR: "workgroup",
    constants.VK_SCOPE_SUBGROUP_KHR: "subgroup",
    constants.VK_SCOPE_QUEUE_FAMILY_KHR: "queue_family",
}
_SUBGROUP = ("basic", "vote", "arithmetic", "ballot", "shuffle", "shuffle_relative", "clustered", "quad")


def describe(functions: Functions, handle: Any) -> DeviceInfo | RejectedDevice:
    """The description of a physical device, still without a name and before quirks; or why it is not used."""
    basic = ffi.new("VkPhysicalDeviceProperties *")
    functions.vkGetPhysicalDeviceProperties(handle, basic)
    title, version = text(basic.deviceName), api_version(basic.apiVersion)
    if version < MINIMUM_VERSION:
        have = ".".join(map(str, version))
        return RejectedDevice(
            title, f"its driver offers Vulkan {have}, 1.3 is needed; a newer driver may offer it"
        )
    extensions = frozenset(
        text(one.extensionName)
        for one in functions.enumerate(
            "vkEnumerateDeviceExtensionProperties", "VkExtensionProperties", handle, NULL
        )
    )
    found, matrix2 = query_features(
        lambda features: functions.vkGetPhysicalDeviceFeatures2(handle, features), extensions
    )
    missing = [feature.capability for feature in REQUIRED if feature.capability not in found]
    if missing:
        return RejectedDevice(title, f"its driver lacks {', '.join(missing)}")
    families = choose_families(functions, handle)
    if families is None:
        return RejectedDevice(title, "it has no queue family that computes")
    # A nested structure does not keep the one around it alive: hold on to `whole`.
    whole, v11, v12, v13, more = _properties(functions, handle, extensions)
    core = whole.properties
    driver_id = v12.driverID
    host = more.get("VkPhysicalDeviceExternalMemoryHostPropertiesEXT")
    pci = more.get("VkPhysicalDevicePCIBusInfoPropertiesEXT")
    limits = core.limits
    memory = _memory(functions, handle)
    if "has_cooperative_matrix" in found:
        matrices = _cooperative_matrices(functions, handle)
        flexible = _flexible_matrices(functions, handle) if "flexible_dimensions" in matrix2 else ()
    else:
        matrices, flexible, matrix2 = (), (), ()
    in_compute = v11.subgroupSupportedStages & constants.VK_SHADER_STAGE_COMPUTE_BIT
    capabilities = Capabilities(
        **dict.fromkeys(found, True),
        timestamps=families.timestamp_bits > 0,
        cooperative_matrix=matrices,
        cooperative_matrix2=matrix2,
        flexible_matrix=flexible,
        subgroup_operations=tuple(
            name
            for bit, name in enumerate(_SUBGROUP)
            if in_compute and v11.subgroupSupportedOperations & (1 << bit)
        ),
        has_accelerated_integer_dot=bool(v13.integerDotProduct4x8BitPackedSignedAccelerated),
        preserves_float32_denormals=bool(v12.shaderDenormPreserveFloat32),
        preserved_float_widths=tuple(
            width for width in (16, 32, 64) if getattr(v12, f"shaderSignedZeroInfNanPreserveFloat{width}")
        ),
    )
    return DeviceInfo(
        name="",
        title=title,
        vendor=_VENDORS.get(core.vendorID, f"vendor {core.vendorID:#06x}"),
        type=_TYPES.get(core.deviceType, DeviceType.OTHER),
        uuid=bytes(v11.deviceUUID).hex(),
        driver=text(v12.driverName),
        driver_id=driver_id,
        driver_info=text(v12.driverInfo),
        driver_version=core.driverVersion,
        api_version=version,
        is_software=core.deviceType == constants.VK_PHYSICAL_DEVICE_TYPE_CPU,
        device_memory_bytes=memory[0],
        visible_device_memory_bytes=memory[1],
        is_unified=memory[2],
        limits=Limits(
            max_workgroup_count=_triple(limits.maxComputeWorkGroupCount),
            max_workgroup_size=_triple(limits.maxComputeWorkGroupSize),
            max_invocations=limits.maxComputeWorkGroupInvocations,
            shared_memory_bytes=limits.maxComputeSharedMemorySize,
            push_constant_bytes=limits.maxPushConstantsSize,
            subgroup_size=v11.subgroupSize,
            min_subgroup_size=v13.minSubgroupSize or v11.subgroupSize,
            max_subgroup_size=v13.maxSubgroupSize or v11.subgroupSize,
            timestamp_period_ns=limits.timestampPeriod,
            timestamp_bits=families.timestamp_bits,
            max_buffer_bytes=v13.maxBufferSize,
            max_allocation_bytes=v11.maxMemoryAllocationSize,
            max_allocation_count=limits.maxMemoryAllocationCount,
            non_coherent_atom_bytes=limits.nonCoherentAtomSize,
            host_pointer_alignment=host.minImportedHostPointerAlignment if host is not None else 0,
            max_compute_workgroup_subgroups=v13.maxComputeWorkgroupSubgroups,
        ),
        capabilities=capabilities,
        pci=(pci.pciDomain, pci.pciBus, pci.pciDevice, pci.pciFunction) if pci is not None else None,
        extensions=extensions,
        handle=handle,
    )


def _properties(
    functions: Functions, handle: Any, extensions: frozenset[str]
) -> tuple[Any, Any, Any, Any, Any]:
    first = structure("VkPhysicalDeviceProperties2")
    core = [structure(f"VkPhysicalDeviceVulkan1{minor}Properties") for minor in (1, 2, 3)]
    optional = {
        "VK_EXT_external_memory_host": "VkPhysicalDeviceExternalMemoryHostPropertiesEXT",
        "VK_EXT_pci_bus_info": "VkPhysicalDevicePCIBusInfoPropertiesEXT",
    }
    more = {kind: structure(kind) for extension, kind in optional.items() if extension in extensions}
    functions.vkGetPhysicalDeviceProperties2(handle, chain(first, *core, *more.values()))
    return first, core[0], core[1], core[2], more


def _memory(functions: Functions, handle: Any) -> tuple[int, int, bool]:
    """Bytes of the largest device-local heap and of the largest mappable one; whether all is device-local."""
    properties = ffi.new("VkPhysicalDeviceMemoryProperties *")
    functions.vkGetPhysicalDeviceMemoryProperties(handle, properties)
    heaps = [properties.memoryHeaps[index] for index in range(properties.memoryHeapCount)]
    local = [heap.size for heap in heaps if heap.flags & constants.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT]
    both = constants.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | constants.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT
    kinds = [properties.memoryTypes[index] for index in range(properties.memoryTypeCount)]
    visible = [heaps[kind.heapIndex].size for kind in kinds if kind.propertyFlags & both == both]
    return max(local, default=0), max(visible, default=0), len(local) == len(heaps)


def _cooperative_matrices(functions: Functions, handle: Any) -> tuple[CooperativeMatrix, ...]:
    rows = functions.enumerate(
        "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", "VkCooperativeMatrixPropertiesKHR", handle
    )
    return tuple(
        CooperativeMatrix(
            row.MSize,
            row.NSize,
            row.KSize,
            *_types(row),
            bool(row.saturatingAccumulation),
            _SCOPES[row.scope],
        )
        for row in rows
        if _is_known(row)
    )


def _flexible_matrices(functions: Functions, handle: Any) -> tuple[FlexibleMatrix, ...]:
    rows = functions.enumerate(
        "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV",
        "VkCooperativeMatrixFlexibleDimensionsPropertiesNV",
        handle,
    )
    return tuple(
        FlexibleMatrix(
            row.MGranularity,
            row.NGranularity,
            row.KGranularity,
            *_types(row),
            bool(row.saturatingAccumulation),
            _SCOPES[row.scope],
            row.workgroupInvocations,
        )
        for row in rows
        if _is_known(row)
    )


def _is_known(row: Any) -> bool:
    return row.scope in _SCOPES and all(
        kind in _ELEMENTS for kind in (row.AType, row.BType, row.CType, row.ResultType)
    )


def _types(row: Any) -> tuple[str, str, str, str]:
    return _ELEMENTS[row.AType], _ELEMENTS[row.BType], _ELEMENTS[row.CType], _ELEMENTS[row.ResultType]


def _triple(array: Any) -> tuple[int, int, int]:
    return array[0], array[1], array[2]
