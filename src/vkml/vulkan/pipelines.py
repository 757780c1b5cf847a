"""Compute pipelines, made once per content, and the driver's own cache of compiled code on disk."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from vkml.errors import CompileError, DeviceError, InvalidArgument
from vkml.vulkan import cache
from vkml.vulkan.context import Context
from vkml.vulkan.counters import created, destroyed
from vkml.vulkan.spirv import preserve_special_values
from vkml.vulkan.structures import NULL, constants, ffi, structure

_SPIRV_MAGIC = b"\x03\x02\x23\x07"
_Key = tuple[bytes, str, tuple[int, ...], int, int | None]


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A compiled kernel of one device; lives as long as the device is open."""

    handle: int
    layout: int
    push_constant_bytes: int
    label: str


class Pipelines:
    """The pipelines of a device. Threads may ask at the same time and compile side by side."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._made: dict[_Key, Future[Pipeline]] = {}
        self._layouts: dict[int, int] = {}
        info = context.info
        build = hashlib.sha256(
            f"{info.driver_id} {info.driver_version} {info.driver_info}".encode()
        ).hexdigest()[:16]
        self._cache_name = f"pipelines/{info.uuid}-{build}"
        self._stored = cache.read(self._cache_name) or b""
        self._cache, self._cache_key = self._create_cache(self._stored)

    def get(
        self,
        spirv: bytes,
        entry: str,
        specialization: Sequence[int],
        push_constant_bytes: int,
        subgroup_size: int | None,
        label: str,
    ) -> Pipeline:
        """See `Device.pipeline`."""
        self._context.require_open()
        self._check(spirv, push_constant_bytes, subgroup_size, label)
        numbers = tuple(number & 0xFFFFFFFF for number in specialization)
        key = (hashlib.sha256(spirv).digest(), entry, numbers, push_constant_bytes, subgroup_size)
        with self._lock:
            future = self._made.get(key)
            is_mine = future is None
            if future is None:
                future = self._made[key] = Future()
        if is_mine:
            try:
                future.set_result(
                    self._compile(spirv, entry, numbers, push_constant_bytes, subgroup_size, label)
                )
            except BaseException as error:
                with self._lock:
                    del self._made[key]  # the next one who asks tries again
                future.set_exception(error)
        return future.result()

    def save(self) -> bool:
        """Writes the driver's cache to disk if it has grown; returns whether it was written."""
        self._context.require_open()
        data = self._cache_data()
        if not data or data == self._stored:
            return False
        on_disk = cache.read(self._cache_name)
        if on_disk and on_disk != self._stored:  # another process has written since: keep what it found
            other, key = self._create_cache(on_disk)
            context = self._context
            with self._lock:
                sources = ffi.new("VkPipelineCache[1]", [other])
                context.functions.call("vkMergePipelineCaches", context.handle, self._cache, 1, sources)
            context.release(key)
            data = self._cache_data()
        self._stored = data
        return cache.write(self._cache_name, data)

    def _check(self, spirv: bytes, push_constant_bytes: int, subgroup_size: int | None, label: str) -> None:
        info = self._context.info
        what = f"kernel {label!r} on {self._context.title}"
        if len(spirv) < 20 or len(spirv) % 4 or spirv[:4] != _SPIRV_MAGIC:
            raise InvalidArgument(
                f"{what}: {len(spirv)} bytes that are no SPIR-V module (in little-endian words)"
            )
        if push_constant_bytes % 4 or not 0 <= push_constant_bytes <= info.limits.push_constant_bytes:
            raise InvalidArgument(
                f"{what}: {push_constant_bytes} bytes of push constants were asked for, the device has "
                f"{info.limits.push_constant_bytes}, in multiples of 4"
            )
        if subgroup_size is not None:
            low, high = info.limits.min_subgroup_size, info.limits.max_subgroup_size
            if not info.capabilities.subgroup_size_control and subgroup_size != info.limits.subgroup_size:
                raise InvalidArgument(
                    f"{what}: subgroups of {subgroup_size} were asked for, "
                    f"the device only has {info.limits.subgroup_size}"
                )
            if not low <= subgroup_size <= high or subgroup_size & (subgroup_size - 1):
                raise InvalidArgument(
                    f"{what}: subgroups of {subgroup_size} were asked for, "
                    f"possible are powers of two from {low} to {high}"
                )

    def _compile(
        self,
        spirv: bytes,
        entry: str,
        numbers: tuple[int, ...],
        push_bytes: int,
        subgroup_size: int | None,
        label: str,
    ) -> Pipeline:
        context = self._context
        functions, device = context.functions, context.handle
        layout = self._layout(push_bytes)
        spirv = preserve_special_values(spirv, context.info.capabilities.preserved_float_widths)
        code = ffi.new("uint32_t[]", len(spirv) // 4)
        ffi.memmove(code, spirv, len(spirv))
        module, module_key = context.create(
            "ShaderModule",
            "vkCreateShaderModule",
            structure("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code),
        )
        try:
            entries = [
                structure("VkSpecializationMapEntry", constantID=index, offset=4 * index, size=4)
                for index in range(len(numbers))
            ]
            data = ffi.new("char[]", struct.pack(f"<{len(numbers)}I", *numbers))
            stage = structure(
                "VkPipelineShaderStageCreateInfo",
                stage=constants.VK_SHADER_STAGE_COMPUTE_BIT,
                module=module,
                pName=entry,
                pSpecializationInfo=structure(
                    "VkSpecializationInfo",
                    mapEntryCount=len(entries),
                    pMapEntries=entries,
                    dataSize=4 * len(numbers),
                    pData=data,
                )
                if numbers
                else NULL,
            )
            required = None
            if subgroup_size is not None and context.info.capabilities.subgroup_size_control:
                required = structure(
                    "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=subgroup_size
                )
                stage.pNext = required
            info = structure("VkComputePipelineCreateInfo", stage=stage[0], layout=layout)
            out = ffi.new("VkPipeline *")
            destroy = functions.vkDestroyPipeline

            def destroy_it() -> None:
                if out[0]:
                    destroy(device, out[0], NULL)
                destroyed("Pipeline")

            # Owned before it is there: an interrupt right after the call must not lose it.
            created("Pipeline")
            key = context.own(destroy_it)
            result = functions.vkCreateComputePipelines(device, self._cache, 1, info, NULL, out)
            del required, stage  # alive up to here
        finally:
            context.release(module_key)
        if result:
            context.release(key)
            try:
                functions.fail("vkCreateComputePipelines", result)
            except DeviceError as error:
                if result == constants.VK_ERROR_DEVICE_LOST:
                    raise
                raise CompileError(f"the driver did not compile kernel {label!r}: {error}") from error
        context.name("PIPELINE", out[0], label)
        return Pipeline(out[0], layout, push_bytes, label)

    def _layout(self, push_bytes: int) -> int:
        with self._lock:
            layout = self._layouts.get(push_bytes)
            if layout is None:
                everything = structure(
                    "VkPushConstantRange", stageFlags=constants.VK_SHADER_STAGE_COMPUTE_BIT, size=push_bytes
                )
                info = structure(
                    "VkPipelineLayoutCreateInfo",
                    pushConstantRangeCount=1 if push_bytes else 0,
                    pPushConstantRanges=everything if push_bytes else NULL,
                )
                layout, _ = self._context.create("PipelineLayout", "vkCreatePipelineLayout", info)
                self._layouts[push_bytes] = layout
            return layout

    def _create_cache(self, data: bytes) -> tuple[int, int]:
        # The driver checks its own header too, and starts empty when the data is not for it.
        initial = ffi.new("char[]", data) if data else NULL
        info = structure("VkPipelineCacheCreateInfo", initialDataSize=len(data), pInitialData=initial)
        return self._context.create("PipelineCache", "vkCreatePipelineCache", info)

    def _cache_data(self) -> bytes:
        functions, device = self._context.functions, self._context.handle
        size = ffi.new("size_t *")
        with self._lock:
            while True:
                functions.call("vkGetPipelineCacheData", device, self._cache, size, NULL)
                data = ffi.new("char[]", max(size[0], 1))
                result = functions.call("vkGetPipelineCacheData", device, self._cache, size, data)
                if result == 0:  # not VK_INCOMPLETE: another thread may have compiled in between
                    return bytes(ffi.buffer(data, size[0]))
