"""What a device can do at the most: products of its matrix units, bytes of its memory."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.launching import Burner, Timing, time_chain
from benchmarks.matrix_units.problems import Problem
from benchmarks.matrix_units.variants import copy_source, padded, unit_fragments, unit_source
from vkml.ir.dtypes import BFLOAT16, FLOAT16, INT8
from vkml.kernels.compiling import compile_kernel
from vkml.kernels.packed_weights import Fragment
from vkml.vulkan import Device, MemoryKind

Array = np.ndarray[Any, Any]
COPIED_BYTES = 256 << 20
TURNS = 512
COPY_GROUP = 1024
"""Words of 16 bytes that a workgroup of copy.slang moves."""
_STORAGE = {each.storage.name: each.storage for each in (FLOAT16, BFLOAT16, INT8)}
SUBGROUPS = 4
"""Of a workgroup of unit.slang."""
GROUPS = 2112
"""A multiple of the multiprocessors of many GPUs, 16 workgroups for each of an H200."""


@dataclass(frozen=True)
class Ceilings:
    """Measured rates."""

    operations: float
    """A second, of fp16 products with fp32 sums on fragments in registers."""
    bytes: float
    """A second, read and written by a copy."""

    def seconds(self, problem: Problem) -> float:
        """The least time a problem can take: its operations, or every operand and result moved once."""
        b_elements = problem.n * problem.k * (problem.batch if problem.is_b_batched else 1)
        # Weights are kept in fp16; a batched B is an fp32 activation.
        b_bytes = b_elements * (4 if problem.is_b_batched else 2)
        a_bytes = problem.a_elements * (2 if problem.is_a_half else 4)
        moved = a_bytes + b_bytes + 4 * problem.batch * problem.m * problem.n
        return max(problem.operations / self.operations, moved / self.bytes)


def measure_ceilings(
    device: Device, fragment: Fragment, burner: Burner | None, scale: float = 1.0
) -> Ceilings:
    """Measures both; `scale` shrinks the work for slow devices."""
    return Ceilings(unit_operations(device, fragment, burner, scale), copied_bytes(device, burner, scale))


def unit_operations(device: Device, fragment: Fragment, burner: Burner | None, scale: float = 1.0) -> float:
    """Operations a second of products of such fragments that stay in registers."""
    groups, turns = max(1, int(GROUPS * scale)), max(8, int(TURNS * scale))
    normal = np.random.default_rng(0).standard_normal(4096)
    values = (np.clip(40 * normal, -127, 127) if fragment.element == "int8" else normal).astype(
        _STORAGE[fragment.element]
    )
    taken, _ = multiply_alone(device, fragment, values, groups, turns, Timing(0.005, 5, burner))
    products = math.prod(unit_fragments(fragment)) * SUBGROUPS * groups
    return 2 * fragment.m * fragment.n * fragment.k * products * turns / taken


def multiply_alone(
    device: Device, fragment: Fragment, values: Array, groups: int, turns: int, timing: Timing
) -> tuple[float, Array]:
    """Seconds of products that stay in registers, and what each subgroup's add up to.

    Args:
        device: that multiplies.
        fragment: of one product.
        values: of the operands' type; each fragment begins 16 behind the one before it.
        groups: workgroups.
        turns: how often each multiplies its fragments.
        timing: how the time is taken.
    """
    source = device.allocate(values.nbytes, MemoryKind.DEVICE, "fragments")
    target = device.allocate(4 * SUBGROUPS * groups, MemoryKind.DEVICE, "sums")
    device.upload(source, 0, values.view(np.uint8))
    pipeline = device.pipeline(
        compile_kernel(unit_source(fragment), "unit"),
        push_constant_bytes=24,
        subgroup_size=fragment.lanes,
        label="unit",
    )
    push = struct.pack("<2Qi4x", source.address, target.address, turns)
    taken = time_chain(
        device, lambda turn: [lambda recorder: recorder.dispatch(pipeline, push, groups)], timing
    )
    sums = device.download(target, 0, 4 * SUBGROUPS * groups)
    source.free()
    target.free()
    return taken, sums.view(np.int32 if fragment.element == "int8" else np.float32)


def copied_bytes(device: Device, burner: Burner | None, scale: float = 1.0) -> float:
    """Bytes a second, read and written, of a copy by a kernel.

    Not the copy command: on an H200 it reaches 0.85 TB/s, a fifth of what a kernel does.
    """
    size = padded(max(1 << 16, int(COPIED_BYTES * scale)), 16)
    source, target = (device.allocate(size, MemoryKind.DEVICE, name) for name in ("from", "to"))
    copier = device.pipeline(compile_kernel(copy_source(), "copy"), push_constant_bytes=24, label="copy")
    words = size // 16
    push = struct.pack("<2Qi4x", source.address, target.address, words)
    taken = time_chain(
        device,
        lambda turn: [lambda recorder: recorder.dispatch(copier, push, -(-words // COPY_GROUP))],
        Timing(0.005, 5, burner),
    )
    source.free()
    target.free()
    return 2 * size / taken
