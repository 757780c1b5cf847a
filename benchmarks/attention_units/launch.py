"""Runs the attention kernels on a device."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.attention_units.layout import FragmentLayouts, find_layouts
from benchmarks.attention_units.problems import Problem
from benchmarks.attention_units.variants import PUSH_BYTES, Variant, attention_source, constants_of
from benchmarks.fragments import Fragment
from benchmarks.launching import POISON, Launch, run_once
from vkml.kernels.compiler import compile_slang
from vkml.vulkan import Device, Memory, MemoryKind, Pipeline

Halfs = npt.NDArray[np.float16]

GUARD_BYTES = 4096
"""Before and behind the result: nothing may be written there."""


class Kernels:
    """Pipelines of one device, compiled when first asked for."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._layouts: dict[Fragment, FragmentLayouts | None] = {}

    def layouts(self, fragment: Fragment) -> FragmentLayouts | None:
        if fragment not in self._layouts:
            self._layouts[fragment] = find_layouts(self.device, fragment)
        return self._layouts[fragment]

    def spirv(self, variant: Variant, problem: Problem) -> bytes:
        layouts = self.layouts(variant.fragment)
        source = attention_source(variant, layouts, is_causal=problem.is_causal)
        return compile_slang(source, "attention_units", sessions=4)

    def attention(self, variant: Variant, problem: Problem) -> Pipeline:
        return self.device.pipeline(
            self.spirv(variant, problem),
            constants=constants_of(problem),
            push_constant_bytes=PUSH_BYTES,
            subgroup_size=variant.fragment.lanes,
            label=variant.label,
        )


@dataclass
class Operands:
    """A problem's buffers on the device."""

    device: Device
    problem: Problem
    q: Memory
    k: Memory
    v: Memory
    out: Memory
    """With guard zones."""
    scratch: Memory | None = None

    @property
    def out_address(self) -> int:
        return self.out.address + GUARD_BYTES

    def need_scratch(self, size: int) -> int:
        """The address of so many bytes of scratch memory."""
        if size == 0:
            return 0
        if self.scratch is None or self.scratch.size < size:
            if self.scratch is not None:
                self.scratch.free()
            self.scratch = self.device.allocate(size, MemoryKind.DEVICE, "scratch")
        return self.scratch.address

    def free(self) -> None:
        for memory in (self.q, self.k, self.v, self.out, self.scratch):
            if memory is not None:
                memory.free()


def make_operands(device: Device, problem: Problem, q: Halfs, k: Halfs, v: Halfs) -> Operands:
    """Uploads a problem's tensors, shaped as the problem has them in memory."""

    def uploaded(tensor: Halfs) -> Memory:
        memory = device.allocate(tensor.nbytes, MemoryKind.DEVICE, "operand")
        device.upload(memory, 0, np.ascontiguousarray(tensor))
        return memory

    out = device.allocate(q.nbytes + 2 * GUARD_BYTES, MemoryKind.DEVICE, "out")
    return Operands(device, problem, uploaded(q), uploaded(k), uploaded(v), out)


def attention_launch(kernels: Kernels, variant: Variant, operands: Operands) -> Launch:
    """The launch that computes a problem."""
    problem = operands.problem
    if problem.head_size > variant.head or problem.head_size % 8:
        raise ValueError(
            f"{variant.label}: head size {problem.head_size} is no multiple of 8 up to {variant.head}"
        )
    pipeline = kernels.attention(variant, problem)
    push = struct.pack(
        "<5Qf4x",
        operands.q.address,
        operands.k.address,
        operands.v.address,
        operands.out_address,
        operands.need_scratch(variant.scratch_bytes(problem)),
        problem.scale * math.log2(math.e),
    )
    groups = (-(-problem.queries // variant.tile_rows), problem.heads, problem.batch)
    return lambda recorder: recorder.dispatch(pipeline, push, *groups)


def compute(kernels: Kernels, variant: Variant, operands: Operands) -> Halfs:
    """Runs a variant once into poisoned memory and returns the result, shaped as the queries.

    Raises:
        RuntimeError: something was written outside the result.
    """
    problem = operands.problem
    run_once(
        operands.device,
        lambda recorder: recorder.fill(operands.out, 0, operands.out.size, POISON),
        attention_launch(kernels, variant, operands),
    )
    raw = operands.device.download(operands.out).view(np.uint32)
    guard = GUARD_BYTES // 4
    if (raw[:guard] != POISON).any() or (raw[-guard:] != POISON).any():
        raise RuntimeError(f"{variant.label}: wrote outside its result")
    return raw[guard:-guard].view(np.float16).reshape(problem.shape(problem.queries, problem.heads))
