"""Device memory: one buffer with its own allocation, within the device's budget."""

from __future__ import annotations

import functools
import threading
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from vkml.errors import DeviceError, InvalidArgument, OutOfMemory
from vkml.vulkan.context import Context, Key
from vkml.vulkan.structures import NULL, chain, constants, ffi, structure

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bytes: TypeAlias = "NDArray[np.uint8]"


_LOCAL = constants.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
_VISIBLE = constants.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT
_COHERENT = constants.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
_CACHED = constants.VK_MEMORY_PROPERTY_HOST_CACHED_BIT
# Protected, lazily allocated and AMD's device-coherent memory are slower or cannot hold a buffer of ours.
_UNWANTED = ~(_LOCAL | _VISIBLE | _COHERENT | _CACHED)
_OF_HOST = constants.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
_USAGE = (  # of all buffers
    constants.VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT
    | constants.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
    | constants.VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT
    | constants.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
    | constants.VK_BUFFER_USAGE_TRANSFER_DST_BIT
)


class MemoryKind(Enum):
    """Where a buffer lives and who reads it."""

    DEVICE = "device"
    """Device-local; the host writes it directly where it is mappable, and never reads it."""
    UPLOAD = "upload"
    """Host memory that the host writes in sequence and the device reads."""
    READBACK = "readback"
    """Cached host memory that the device writes and the host reads."""


class Memory:
    """A buffer and the memory bound to it.

    Attributes:
        kind: as asked for.
        size: in bytes.
        address: of the first byte on the device, for push constants.
        buffer: the VkBuffer.
        host: the bytes as a NumPy array over the mapping, or None where the host cannot reach them; not to be
            used after `free`.
        is_cached: whether the host reads at full speed through `host`.
    """

    def __init__(
        self,
        allocator: Allocator,
        kind: MemoryKind,
        size: int,
        label: str,
        type_index: int,
        limit: float | None = None,
        imported: Bytes | None = None,
    ) -> None:
        context = allocator.context
        functions, device = context.functions, context.handle
        self.kind, self.size, self.label = kind, size, label
        self._allocator = allocator
        families = context.families
        is_shared = len(families) > 1
        info = structure(
            "VkBufferCreateInfo",
            size=size,
            usage=allocator.usage,
            sharingMode=constants.VK_SHARING_MODE_CONCURRENT
            if is_shared
            else constants.VK_SHARING_MODE_EXCLUSIVE,
            queueFamilyIndexCount=len(families) if is_shared else 0,
            pQueueFamilyIndices=families if is_shared else NULL,
        )
        if imported is not None:
            info = chain(info, structure("VkExternalMemoryBufferCreateInfo", handleTypes=_OF_HOST))
        self._buffer_key: Key | None = None
        self._memory_key: Key | None = None
        try:
            self.buffer, self._buffer_key = context.create("Buffer", "vkCreateBuffer", info)
            requirements = ffi.new("VkMemoryRequirements *")
            functions.vkGetBufferMemoryRequirements(device, self.buffer, requirements)
            if imported is not None and requirements.size > size:
                raise InvalidArgument(f"{label}: {size} bytes are to be imported, {requirements.size} needed")
            self._memory, self._memory_key = allocator.allocate_memory(
                type_index, requirements.size if imported is None else size, label, limit, imported
            )
            self._memory_type = type_index
            flags = allocator.type_flags[type_index]
            self.allocated_bytes: int = requirements.size
            functions.call("vkBindBufferMemory", device, self.buffer, self._memory, 0)
            self.address: int = functions.vkGetBufferDeviceAddress(
                device, structure("VkBufferDeviceAddressInfo", buffer=self.buffer)
            )
            self.host: Bytes | None = None
            self.is_cached = bool(flags & _CACHED)
            self.is_coherent = bool(flags & _COHERENT)
            is_mapped = (
                imported is None
                and bool(flags & _VISIBLE)
                and not (kind is MemoryKind.DEVICE and allocator.force_staging)
            )
            if is_mapped:
                pointer = ffi.new("void **")
                functions.call("vkMapMemory", device, self._memory, 0, constants.VK_WHOLE_SIZE, 0, pointer)
                self.host = np.frombuffer(ffi.buffer(pointer[0], size), np.uint8)
            if imported is not None:
                self.host = imported
            context.name("BUFFER", self.buffer, label)
            context.name("DEVICE_MEMORY", self._memory, label)
        except BaseException:
            self.free()  # who keeps the exception keeps its frames, and what these hold
            raise

    def invalidate(self) -> None:
        """Makes what the device has written visible to the host; needed only where memory is not coherent."""
        if self.host is not None and not self.is_coherent:
            self._range("vkInvalidateMappedMemoryRanges")

    def flush(self) -> None:
        """Makes what the host has written visible to the device; needed only where memory is not coherent."""
        if self.host is not None and not self.is_coherent:
            self._range("vkFlushMappedMemoryRanges")

    @property
    def is_freed(self) -> bool:
        """Whether it is gone: freed, or with what it was in a cycle with, in which keys may go first."""
        return any(key is None or key.context is None for key in (self._buffer_key, self._memory_key))

    def free(self) -> None:
        """Gives the memory back; idempotent. The device must not use it any more."""
        self.host = None
        context = self._allocator.context
        for key in (self._buffer_key, self._memory_key):
            if key is not None:
                context.release(key)

    def _range(self, function: str) -> None:
        context = self._allocator.context
        whole = structure("VkMappedMemoryRange", memory=self._memory, size=constants.VK_WHOLE_SIZE)
        context.functions.call(function, context.handle, 1, whole)

    def __repr__(self) -> str:
        return f"Memory({self.label!r}, {self.kind.value}, {self.size} bytes)"


class Allocator:
    """Chooses memory types, keeps within the budget, counts."""

    def __init__(self, context: Context, memory_limit: float, force_staging: bool) -> None:
        if not 0 < memory_limit <= 1:
            raise InvalidArgument(
                f"memory_limit is a share of the device's memory, 0 < x <= 1, not {memory_limit}"
            )
        self.context = context
        self.force_staging = force_staging
        self.usage = _USAGE
        if context.info.capabilities.conditional_rendering:
            self.usage |= constants.VK_BUFFER_USAGE_CONDITIONAL_RENDERING_BIT_EXT
        self._limit = memory_limit
        properties = ffi.new("VkPhysicalDeviceMemoryProperties *")
        context.instance_functions.vkGetPhysicalDeviceMemoryProperties(context.info.handle, properties)
        kinds = [properties.memoryTypes[index] for index in range(properties.memoryTypeCount)]
        heaps = [properties.memoryHeaps[index] for index in range(properties.memoryHeapCount)]
        self.type_flags: list[int] = [kind.propertyFlags for kind in kinds]
        self._type_heap: list[int] = [kind.heapIndex for kind in kinds]
        self._heap_bytes: list[int] = [heap.size for heap in heaps]
        self._heap_is_local = [bool(heap.flags & constants.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) for heap in heaps]
        self._lock = threading.RLock()
        self._allocations: dict[object, tuple[int, int]] = {}
        """Of each allocation its heap and bytes. Finalizers take it out without waiting for the lock."""
        self._types = self._choose_types()

    def allocate(self, size: int, kind: MemoryKind, label: str, limit: float | None = None) -> Memory:
        """A buffer of at least one byte; see `Device.allocate`."""
        limits = self.context.info.limits
        if size <= 0:
            raise InvalidArgument(f"{label or 'an allocation'}: a size of {size} bytes was asked for")
        padded = -(-size // 16) * 16  # so that 16-byte accesses at the end stay inside
        largest = min(limits.max_buffer_bytes or padded, limits.max_allocation_bytes or padded)
        if padded > largest:
            raise OutOfMemory(
                f"{self.context.title}: {label or 'an allocation'} needs {_amount(size)}, one buffer may "
                f"have {_amount(largest)}; split it, or use another device"
            )
        return Memory(self, kind, padded, label, self._types[kind], limit)

    @functools.cached_property
    def imports_host(self) -> bool:
        """Whether memory of this process can become a buffer."""
        context = self.context
        info = context.info
        if not info.capabilities.external_memory_host or not info.limits.host_pointer_alignment:
            return False
        asked = structure("VkPhysicalDeviceExternalBufferInfo", usage=self.usage, handleType=_OF_HOST)
        found = structure("VkExternalBufferProperties")
        context.instance_functions.vkGetPhysicalDeviceExternalBufferProperties(info.handle, asked, found)
        features = found.externalMemoryProperties.externalMemoryFeatures
        return bool(features & constants.VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT)

    def import_host(self, memory: Bytes, label: str) -> Memory:
        """Memory of this process as a buffer; see `Device.import_host`."""
        context = self.context
        alignment = context.info.limits.host_pointer_alignment
        if not self.imports_host:
            raise DeviceError(f"{context.title}: the driver imports no memory of the host")
        at = memory.ctypes.data
        if at % alignment or memory.size % alignment or not memory.size:
            raise InvalidArgument(f"{label}: {memory.size} bytes at {at:#x} are not aligned to {alignment}")
        found = structure("VkMemoryHostPointerPropertiesEXT")
        context.functions.call(
            "vkGetMemoryHostPointerPropertiesEXT", context.handle, _OF_HOST, ffi.cast("void *", at), found
        )
        wanted = _VISIBLE | _COHERENT | _CACHED
        fitting = [
            index
            for index in self._possible_types()
            if found.memoryTypeBits >> index & 1 and self.type_flags[index] & wanted == wanted
        ]
        if not fitting:
            raise DeviceError(f"{context.title}: {label}: no type of memory takes memory of the host")
        return Memory(self, MemoryKind.READBACK, memory.size, label, fitting[0], imported=memory)

    def allocate_memory(
        self,
        type_index: int,
        size: int,
        label: str,
        limit: float | None = None,
        imported: Bytes | None = None,
    ) -> tuple[int, Key]:
        """A VkDeviceMemory within the budget, new or of this process, and the key to release it by."""
        context = self.context
        limit = self._limit if limit is None else min(limit, self._limit)
        heap = self._type_heap[type_index]
        with self._lock:
            free = self.free_bytes(heap, limit)
            shortage = self._shortage(label, size, free, heap, limit)
            if size > free:
                raise OutOfMemory(shortage)
            flags = structure(
                "VkMemoryAllocateFlagsInfo", flags=constants.VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT
            )
            parts = [
                structure("VkMemoryAllocateInfo", allocationSize=size, memoryTypeIndex=type_index),
                flags,
            ]
            if imported is not None:
                pointer = ffi.cast("void *", imported.ctypes.data)
                parts.append(
                    structure("VkImportMemoryHostPointerInfoEXT", handleType=_OF_HOST, pHostPointer=pointer)
                )
            info = chain(*parts)
            out = ffi.new("VkDeviceMemory *")
            forget = functools.partial(self._allocations.pop, out, None)
            key = context.own("DeviceMemory", out, context.functions.vkFreeMemory, forget)
            self._allocations[out] = heap, size
            try:
                result = context.functions.vkAllocateMemory(context.handle, info, NULL, out)
            except BaseException:
                context.release(key)
                raise
        if result:
            context.release(key)
        if result in (constants.VK_ERROR_OUT_OF_DEVICE_MEMORY, constants.VK_ERROR_OUT_OF_HOST_MEMORY):
            raise OutOfMemory(f"{shortage}; the driver refused it")
        if result:
            context.functions.fail("vkAllocateMemory", result)
        return out[0], key

    def free_bytes(self, heap: int, limit: float | None = None) -> int:
        """What may still be allocated from a heap; other processes' use counts where it is known."""
        context = self.context
        limit = self._limit if limit is None else limit
        if not context.info.capabilities.memory_budget:
            return max(0, int(self._heap_bytes[heap] * limit) - self._used_bytes(heap))
        budget = structure("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
        properties = chain(structure("VkPhysicalDeviceMemoryProperties2"), budget)
        context.instance_functions.vkGetPhysicalDeviceMemoryProperties2(context.info.handle, properties)
        used: int = max(budget.heapUsage[heap], self._used_bytes(heap))
        allowed = int(budget.heapBudget[heap] * limit)
        return max(0, allowed - used)

    def heap_of(self, kind: MemoryKind) -> int:
        """The heap that a kind of memory comes from."""
        return self._type_heap[self._types[kind]]

    @property
    def live_allocations(self) -> int:
        """How many memories exist."""
        return len(self._allocations)

    @property
    def allocated_bytes(self) -> int:
        """How much memory of all kinds is allocated."""
        return sum(size for _, size in self._allocations.copy().values())

    def _used_bytes(self, heap: int) -> int:
        return sum(size for where, size in self._allocations.copy().values() if where == heap)

    def _shortage(self, label: str, size: int, free: int, heap: int, limit: float) -> str:
        return (
            f"{self.context.title}: {label or 'an allocation'} needs {_amount(size)}, {_amount(free)} of "
            f"{_amount(self._heap_bytes[heap])} are free within the limit of {limit * 100:.3g} % "
            f"(vkml itself holds {_amount(self._used_bytes(heap))}); close other sessions or programs, "
            "use a smaller batch, or another device"
        )

    def _choose_types(self) -> dict[MemoryKind, int]:
        possible = self._possible_types()
        local_heaps = [index for index, is_local in enumerate(self._heap_is_local) if is_local]
        largest = max(local_heaps or range(len(self._heap_bytes)), key=lambda heap: self._heap_bytes[heap])

        def pick(*wishes: tuple[int, int]) -> int:
            """The first type that has the flags of a wish and lacks those it excludes."""
            for has, lacks in wishes:
                for index in possible:
                    flags = self.type_flags[index]
                    if flags & has == has and not flags & lacks:
                        return index
            return possible[0]

        # Mapped device memory only where the whole of it can be mapped, not through a window of 256 MiB.
        mapped = [
            index
            for index in possible
            if self._type_heap[index] == largest
            and self.type_flags[index] & (_LOCAL | _VISIBLE | _COHERENT) == _LOCAL | _VISIBLE | _COHERENT
        ]
        plain = [
            index
            for index in possible
            if self._type_heap[index] == largest and self.type_flags[index] & _LOCAL
        ]
        unmapped = [index for index in plain if not self.type_flags[index] & _VISIBLE]
        order = (unmapped + plain) if self.force_staging else (mapped + plain)
        return {
            MemoryKind.DEVICE: order[0] if order else pick((_LOCAL, 0)),
            MemoryKind.UPLOAD: pick(
                (_VISIBLE | _COHERENT, _LOCAL | _CACHED),
                (_VISIBLE | _COHERENT, _LOCAL),
                (_VISIBLE | _COHERENT, 0),
            ),
            MemoryKind.READBACK: pick(
                (_VISIBLE | _COHERENT | _CACHED, _LOCAL),
                (_VISIBLE | _CACHED, _LOCAL),
                (_VISIBLE | _COHERENT | _CACHED, 0),
                (_VISIBLE | _CACHED, 0),
                (_VISIBLE | _COHERENT, 0),
            ),
        }

    def _possible_types(self) -> list[int]:
        """The memory types that a buffer of our usage may live in: by the standard the same for all."""
        context = self.context
        buffer, key = context.create(
            "Buffer", "vkCreateBuffer", structure("VkBufferCreateInfo", size=16, usage=self.usage)
        )
        requirements = ffi.new("VkMemoryRequirements *")
        context.functions.vkGetBufferMemoryRequirements(context.handle, buffer, requirements)
        context.release(key)
        bits = requirements.memoryTypeBits
        every = [index for index in range(len(self.type_flags)) if bits & (1 << index)]
        return [index for index in every if not self.type_flags[index] & _UNWANTED] or every


def _amount(size: int) -> str:
    """A number of bytes for people."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
