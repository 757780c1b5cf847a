"""What is known about a device before it is opened: frozen descriptions."""

from __future__ import annotations

import os
from dataclasses import field
from enum import Enum
from typing import Any

from vkml.dataclasses import dataclass


class DeviceType(Enum):
    """The kind of a device, in the order in which devices are numbered."""

    DISCRETE = "discrete"
    INTEGRATED = "integrated"
    VIRTUAL = "virtual"
    OTHER = "other"
    CPU = "cpu"


@dataclass(frozen=True)
class CooperativeMatrix:
    """One supported product: D (M×N) = A (M×K) · B (K×N) + C, by the invocations of a scope together.

    Element types are named as in NumPy or in vkml's types: "float16", "float32", "bfloat16", "int8", "uint8",
    "int32", "float8e4m3fn", "float8e5m2".
    """

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    result: str
    is_saturating: bool
    scope: str


@dataclass(frozen=True)
class FlexibleMatrix:
    """A family of products of VK_NV_cooperative_matrix2: sizes are multiples of the granularities."""

    m_granularity: int
    n_granularity: int
    k_granularity: int
    a: str
    b: str
    c: str
    result: str
    is_saturating: bool
    scope: str
    workgroup_invocations: int


@dataclass(frozen=True)
class Capabilities:
    """What kernels and the engine may use on a device: what the driver states and no quirk denies."""

    buffer_device_address: bool = False
    timeline_semaphore: bool = False
    synchronization2: bool = False
    float64: bool = False
    int64: bool = False
    int16: bool = False
    float16: bool = False
    int8: bool = False
    storage_8bit: bool = False
    storage_16bit: bool = False
    push_constant_8bit: bool = False
    push_constant_16bit: bool = False
    variable_pointers: bool = False
    scalar_block_layout: bool = False
    vulkan_memory_model: bool = False
    vulkan_memory_model_device_scope: bool = False
    atomic_int64: bool = False
    subgroup_extended_types: bool = False
    host_query_reset: bool = False
    subgroup_size_control: bool = False
    full_subgroups: bool = False
    integer_dot: bool = False
    zero_initialize_workgroup_memory: bool = False
    maintenance4: bool = False
    atomic_float: bool = False
    atomic_float_shared: bool = False
    atomic_float16: bool = False
    bfloat16: bool = False
    bfloat16_dot: bool = False
    bfloat16_cooperative_matrix: bool = False
    float8: bool = False
    float8_cooperative_matrix: bool = False
    has_cooperative_matrix: bool = False
    workgroup_explicit_layout: bool = False
    subgroup_clock: bool = False
    memory_budget: bool = False
    memory_priority: bool = False
    pageable_memory: bool = False
    conditional_rendering: bool = False
    external_memory_host: bool = False
    external_memory_fd: bool = False
    external_semaphore_fd: bool = False
    device_fault: bool = False
    pipeline_binary: bool = False
    pipeline_statistics: bool = False
    portability_subset: bool = False
    timestamps: bool = False
    """Whether the queue that runs kernels can write timestamps."""
    cooperative_matrix: tuple[CooperativeMatrix, ...] = ()
    cooperative_matrix2: tuple[str, ...] = ()
    """Which parts of VK_NV_cooperative_matrix2 there are, for example "reductions"."""
    flexible_matrix: tuple[FlexibleMatrix, ...] = ()
    subgroup_operations: tuple[str, ...] = ()
    """Of "basic", "vote", "arithmetic", "ballot", "shuffle", "shuffle_relative", "clustered", "quad"."""
    has_accelerated_integer_dot: bool = False
    """Whether the dot product of four packed bytes (of equal signs) is a hardware instruction."""
    preserves_float32_denormals: bool = False
    preserved_float_widths: tuple[int, ...] = ()
    """Bits of the floating-point types whose NaN, infinities and signs of zeros kernels may insist on."""


@dataclass(frozen=True)
class Limits:
    """Sizes a device sets, in bytes where the name says so."""

    max_workgroup_count: tuple[int, int, int]
    max_workgroup_size: tuple[int, int, int]
    max_invocations: int
    """In one workgroup."""
    shared_memory_bytes: int
    push_constant_bytes: int
    subgroup_size: int
    min_subgroup_size: int
    max_subgroup_size: int
    timestamp_period_ns: float
    timestamp_bits: int
    """Valid bits of a timestamp on the compute queue, 0 where there are none."""
    max_buffer_bytes: int
    max_allocation_bytes: int
    max_allocation_count: int
    non_coherent_atom_bytes: int
    host_pointer_alignment: int
    """For importing host memory; 0 where that is not possible."""
    max_compute_workgroup_subgroups: int


@dataclass(frozen=True, repr=False)
class DeviceInfo:
    """A device as Vulkan describes it.

    `name` ("vulkan:0") is stable on one machine: devices are numbered by type, then PCI address, then UUID;
    software devices come last.
    """

    name: str
    title: str
    vendor: str
    type: DeviceType
    uuid: str
    driver: str
    driver_id: int
    driver_info: str
    driver_version: int
    api_version: tuple[int, int, int]
    is_software: bool
    device_memory_bytes: int
    """Of the largest device-local heap."""
    visible_device_memory_bytes: int
    """Of the largest heap that is device-local and that the host can map (resizable BAR, unified memory)."""
    is_unified: bool
    """Whether host and device share their memory."""
    limits: Limits
    capabilities: Capabilities
    quirks: tuple[str, ...] = ()
    """Why capabilities that the driver states were turned off."""
    pci: tuple[int, int, int, int] | None = None
    extensions: frozenset[str] = frozenset()
    handle: Any = field(default=None, compare=False)
    process: int = field(default_factory=os.getpid, compare=False)
    """In which the handle means something."""

    def __repr__(self) -> str:
        # A list of devices is read by people; limits and capabilities alone fill a page.
        memory = f"{self.device_memory_bytes / (1 << 30):.1f} GiB"
        kind = f"{self.type.value}, software" if self.is_software else self.type.value
        return f"<DeviceInfo {self.name}: {self.title} ({kind}), {self.driver}, {memory}>"

    def __str__(self) -> str:
        return f"{self.name} ({self.title})"


@dataclass(frozen=True)
class RejectedDevice:
    """A device Vulkan lists and vkml does not use, with the reason."""

    title: str
    reason: str
