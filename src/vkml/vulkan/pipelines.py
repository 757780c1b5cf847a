"""Compute pipelines, made once per content and counted by use."""

from __future__ import annotations

import hashlib
import struct
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.errors import CompileError, DeviceError, InvalidArgument
from vkml.vulkan.context import Context, Key
from vkml.vulkan.driver_cache import DriverCache
from vkml.vulkan.spirv import preserve_special_values
from vkml.vulkan.structures import NULL, constants, ffi, structure

if TYPE_CHECKING:
    from _thread import RLock

_WAS_IN_CACHE = constants.VK_PIPELINE_CREATION_FEEDBACK_APPLICATION_PIPELINE_CACHE_HIT_BIT
_SPIRV_MAGIC = b"\x03\x02\x23\x07"
_Key = tuple[bytes, str, tuple[int, ...], int, int | None]

UNUSED_PIPELINES = 128
"""How many pipelines stay that nothing uses, so that a plan like an earlier one finds its own. Lavapipe takes
0.2 to 1 MiB for one."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A compiled kernel of one device, which lives until those who asked for it have released it."""

    handle: int
    layout: int
    push_constant_bytes: int
    label: str
    content: _Key = field(repr=False)
    key: Key = field(repr=False)
    """To destroy it by."""


@dataclass(eq=False)
class _Made:
    """A pipeline, or none yet while the first of its users compiles it."""

    pipeline: Pipeline | None = None
    compiling: RLock = field(default_factory=threading.RLock)
    """Held while it is compiled. The others wait, and the next compiles where that came to nothing, as does a
    signal handler whose thread was compiling it."""
    users: int = 0
    names: set[Hashable] = field(default_factory=set)
    """By which it is found without its content."""


class Pipelines:
    """The pipelines of a device. Threads may ask at the same time and compile side by side.

    An interrupt may come wherever the interpreter looks for signals: behind calls, and where loops and
    functions begin. What must not be torn apart stands together here, without any of these in between.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        # Re-entrant only to be asked who has it: see `_take_back`.
        self._lock = threading.RLock()
        self._made: dict[_Key, _Made] = {}
        self._named: dict[Hashable, _Key] = {}
        """Names → contents of those of `_made` that have some."""
        self._unused: OrderedDict[_Key, Pipeline] = OrderedDict()
        """Those of `_made` that nobody uses, the longest unused first."""
        self._released: deque[Pipeline] = deque()
        self._layouts: dict[int, tuple[int, Key]] = {}
        self.driver_cache = DriverCache(context)

    def get(
        self,
        spirv: bytes,
        entry: str,
        specialization: Sequence[int],
        push_constant_bytes: int,
        subgroup_size: int | None,
        label: str,
        name: Hashable = None,
        taken: list[Pipeline] | None = None,
    ) -> Pipeline:
        """See `Device.pipeline`."""
        self._context.require_open()
        self._check(spirv, push_constant_bytes, subgroup_size, label)
        numbers = tuple(number & 0xFFFFFFFF for number in specialization)
        content = (hashlib.sha256(spirv).digest(), entry, numbers, push_constant_bytes, subgroup_size)
        made: _Made | None = None
        is_user = False
        try:
            fresh = _Made()
            with self._lock:
                if content not in self._made:
                    self._made[content] = fresh
                made = self._made[content]
                made.users += 1
                is_user = True
                self._unused.pop(content, None)
            with made.compiling:
                pipeline = made.pipeline
                if pipeline is None:
                    compiled = self._compile(spirv, content, label)
                    pipeline = made.pipeline
                    if pipeline is None:
                        made.pipeline = pipeline = compiled
                    else:  # a signal handler has compiled it meanwhile
                        self._context.release(compiled.key)
            if name is not None:
                with self._lock:  # it is used by now, and stays
                    made.names.add(name)
                    self._named[name] = content
            self._take_back()
            if taken is not None:
                taken += [pipeline]
                is_user = False
            return pipeline
        except BaseException:
            if made is not None and is_user:
                self._leave(content, made)
            raise

    def _leave(self, content: _Key, made: _Made) -> None:
        """Gives up what was asked for, and may never have been compiled."""
        with self._lock:
            if made.pipeline is not None:
                self._released += [made.pipeline]
            else:
                made.users -= 1
                if not made.users:
                    del self._made[content]
        self._take_back()

    def named(self, name: Hashable, taken: list[Pipeline]) -> Pipeline | None:
        """See `Device.named_pipeline`."""
        self._context.require_open()
        try:
            with self._lock:
                content = self._named.get(name)
                if content is None:
                    return None
                made = self._made[content]
                pipeline = made.pipeline
                assert pipeline is not None
                made.users += 1
                taken += [pipeline]
                self._unused.pop(content, None)
            return pipeline
        finally:
            self._take_back()

    def release(self, taken: list[Pipeline]) -> None:
        """See `Device.release_all`."""
        released = self._released
        released += taken
        del taken[:]
        self._take_back()

    def _take_back(self) -> None:
        """Counts what was released, and destroys what has been unused for longest.

        Whoever releases does not wait for the lock: it may be the garbage collector that closes a session, in
        a thread that holds it. Whoever holds the lock comes here afterwards.
        """
        lock, released = self._lock, self._released
        while (released or len(self._unused) > UNUSED_PIPELINES) and not _is_owned(lock):
            surplus: list[Pipeline] = []
            try:
                if not lock.acquire(blocking=False):
                    return
                while released:
                    pipeline = released[0]
                    made = self._made[pipeline.content]
                    made.users -= 1
                    del released[0]
                    if not made.users:
                        self._unused[pipeline.content] = pipeline
                while len(self._unused) > UNUSED_PIPELINES:
                    content = next(iter(self._unused))
                    for name in self._made[content].names:
                        self._named.pop(name, None)
                    surplus += [self._unused[content]]
                    del self._unused[content]
                    del self._made[content]
            finally:
                # An interrupt may have come before it was acquired, and one may come in here.
                try:  # noqa: SIM105
                    lock.release()
                except RuntimeError:
                    pass  # this thread does not have it
            for pipeline in surplus:
                self._context.release(pipeline.key)

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

    def _compile(self, spirv: bytes, content: _Key, label: str) -> Pipeline:
        _, entry, numbers, push_bytes, subgroup_size = content
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
            feedback = ffi.new("VkPipelineCreationFeedback *")
            info = structure("VkComputePipelineCreateInfo", stage=stage[0], layout=layout)
            told = structure("VkPipelineCreationFeedbackCreateInfo", pPipelineCreationFeedback=feedback)
            info.pNext = told
            out = ffi.new("VkPipeline *")
            key = context.own("Pipeline", out, functions.vkDestroyPipeline)
            with self.driver_cache.lend() as driver_cache:
                started = time.perf_counter()
                result = functions.vkCreateComputePipelines(device, driver_cache, 1, info, NULL, out)
                if not feedback.flags & _WAS_IN_CACHE:
                    self.driver_cache.note(time.perf_counter() - started)
            del required, stage, told  # alive up to here
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
        return Pipeline(out[0], layout, push_bytes, label, content, key)

    def _layout(self, push_bytes: int) -> int:
        with self._lock:
            found = self._layouts.get(push_bytes)
            if found is None:
                everything = structure(
                    "VkPushConstantRange", stageFlags=constants.VK_SHADER_STAGE_COMPUTE_BIT, size=push_bytes
                )
                info = structure(
                    "VkPipelineLayoutCreateInfo",
                    pushConstantRangeCount=1 if push_bytes else 0,
                    pPushConstantRanges=everything if push_bytes else NULL,
                )
                found = self._context.create("PipelineLayout", "vkCreatePipelineLayout", info)
                self._layouts[push_bytes] = found
            return found[0]


def _is_owned(lock: RLock) -> bool:
    """Whether this very thread holds a lock."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]  # as threading.Condition asks
