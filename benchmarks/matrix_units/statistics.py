"""What the driver says about a compiled kernel: registers, spills, shared memory."""

from __future__ import annotations

import struct

from vkml.vulkan import Device
from vkml.vulkan.structures import NULL, constants, ffi, structure, text


def statistics(device: Device, spirv: bytes, words: tuple[int, ...], push_bytes: int) -> dict[str, int]:
    """Figures by the driver's names for them; empty where it gives none.

    Args:
        device: with VK_KHR_pipeline_executable_properties, or nothing is found.
        spirv: a module with the entry point main.
        words: the values of its specialization constants.
        push_bytes: size of its push constants.
    """
    if not device.info.capabilities.pipeline_statistics:
        return {}
    context = device.context
    functions, handle = context.functions, context.handle
    code = ffi.new("uint32_t[]", len(spirv) // 4)
    ffi.memmove(code, spirv, len(spirv))
    module, module_key = context.create(
        "ShaderModule",
        "vkCreateShaderModule",
        structure("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code),
    )
    push = structure("VkPushConstantRange", stageFlags=constants.VK_SHADER_STAGE_COMPUTE_BIT, size=push_bytes)
    layout, layout_key = context.create(
        "PipelineLayout",
        "vkCreatePipelineLayout",
        structure("VkPipelineLayoutCreateInfo", pushConstantRangeCount=1, pPushConstantRanges=push),
    )
    out = ffi.new("VkPipeline *")
    try:
        entries = [
            structure("VkSpecializationMapEntry", constantID=index, offset=4 * index, size=4)
            for index in range(len(words))
        ]
        data = ffi.new("char[]", struct.pack(f"<{len(words)}i", *words))
        specialization = structure(
            "VkSpecializationInfo",
            mapEntryCount=len(entries),
            pMapEntries=entries or NULL,
            dataSize=4 * len(words),
            pData=data,
        )
        stage = structure(
            "VkPipelineShaderStageCreateInfo",
            stage=constants.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module,
            pName="main",
            pSpecializationInfo=specialization,
        )
        info = structure(
            "VkComputePipelineCreateInfo",
            flags=constants.VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR,
            stage=stage[0],
            layout=layout,
        )
        functions.call("vkCreateComputePipelines", handle, 0, 1, info, NULL, out)
        which = structure("VkPipelineExecutableInfoKHR", executableIndex=0)
        which.pipeline = out[0]
        found = functions.enumerate(
            "vkGetPipelineExecutableStatisticsKHR", "VkPipelineExecutableStatisticKHR", handle, which
        )
        return {text(one.name): int(one.value.u64) for one in found}
    finally:
        if out[0]:
            functions.vkDestroyPipeline(handle, out[0], NULL)
        context.release(layout_key)
        context.release(module_key)
