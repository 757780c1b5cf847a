"""Runs the attention kernels on a device."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.attention_units.gradients import (
    BACKWARD_PUSH_BYTES,
    DELTA_PUSH_BYTES,
    backward_source,
    constants_of,
    delta_source,
)
from benchmarks.attention_units.problems import Problem
from benchmarks.launching import POISON, Launch, run_once
from vkml.engine.compilation import compile_kernels
from vkml.engine.devices import target_of
from vkml.engine.fragment_check import fragment_layouts
from vkml.engine.launches import Launches
from vkml.ir import Node, TensorType
from vkml.ir.dtypes import FLOAT32, DType, from_numpy
from vkml.kernels.attention import Attention, Causal, emit
from vkml.kernels.attention_variants import Variant
from vkml.kernels.compiling import compile_kernel
from vkml.kernels.fragment_layout import FragmentLayouts
from vkml.kernels.packed_weights import Fragment
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.numbers import Numbers
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.vulkan import Device, Memory, MemoryKind, Pipeline

Halfs = npt.NDArray[np.float16]
Tensor = npt.NDArray[Any]
"""Of fp16 or fp32."""

GUARD_BYTES = 4096
"""Before and behind the result: nothing may be written there."""


class Kernels:
    """Pipelines of one device, compiled when first asked for."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.target = replace(target_of(device.info, "high"), fragment_layouts=self.layouts)
        self._pipelines: list[Pipeline] = []

    def layouts(self, fragment: Fragment) -> FragmentLayouts | None:
        return fragment_layouts(self.device, fragment)

    def compiled(self, dispatches: Sequence[Dispatch]) -> dict[int, Pipeline]:
        """The engine's kernels by identity."""
        return compile_kernels(self.device, [each.kernel for each in dispatches], self._pipelines)

    def backward(self, variant: Variant, problem: Problem, owner: str) -> Pipeline:
        spirv = self.backward_spirv(variant, problem, owner)
        return self._pipeline(spirv, BACKWARD_PUSH_BYTES, variant, problem)

    def backward_spirv(self, variant: Variant, problem: Problem, owner: str) -> bytes:
        layouts = self.layouts(variant.fragment)
        return _compile(backward_source(variant, layouts, owner, is_causal=problem.is_causal))

    def delta(self, variant: Variant, problem: Problem) -> Pipeline:
        return self._pipeline(_compile(delta_source(variant)), DELTA_PUSH_BYTES, variant, problem)

    def _pipeline(self, spirv: bytes, push: int, variant: Variant, problem: Problem) -> Pipeline:
        return self.device.pipeline(
            spirv,
            constants=constants_of(problem),
            push_constant_bytes=push,
            subgroup_size=variant.fragment.lanes,
            label=variant.label,
        )


def _compile(source: str) -> bytes:
    return compile_kernel(source, "attention_units")


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
    dtype: DType
    buffers: dict[str, Memory] = field(default_factory=dict)
    """Scratch memory, and what training needs, by their use."""
    outgrown: list[Memory] = field(default_factory=list)

    @property
    def out_address(self) -> int:
        return self.out.address + GUARD_BYTES

    def buffer(self, name: str, size: int) -> Memory:
        """A buffer of at least so many bytes, made at the first use.

        What it replaces is kept: launches made before hold its address.
        """
        found = self.buffers.get(name)
        if found is None or found.size < size:
            if found is not None:
                self.outgrown.append(found)
            found = self.buffers[name] = self.device.allocate(size, MemoryKind.DEVICE, name)
        return found

    def scratch_address(self, size: int) -> int:
        return self.buffer("scratch", size).address if size else 0

    def row_floats(self, name: str) -> Memory:
        """A float for each row of queries."""
        problem = self.problem
        return self.buffer(name, 4 * problem.batch * problem.heads * problem.queries)

    def free(self) -> None:
        for memory in (self.q, self.k, self.v, self.out, *self.buffers.values(), *self.outgrown):
            memory.free()


def make_operands(device: Device, problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> Operands:
    """Uploads a problem's tensors, shaped as the problem has them in memory."""

    def uploaded(tensor: Tensor) -> Memory:
        memory = device.allocate(tensor.nbytes, MemoryKind.DEVICE, "operand")
        device.upload(memory, 0, np.ascontiguousarray(tensor))
        return memory

    out = device.allocate(q.nbytes + 2 * GUARD_BYTES, MemoryKind.DEVICE, "out")
    return Operands(device, problem, uploaded(q), uploaded(k), uploaded(v), out, from_numpy(q.dtype))


def attention_dispatches(
    kernels: Kernels, variant: Variant, problem: Problem, dtype: DType, *, is_training: bool = False
) -> tuple[list[Dispatch], dict[Buffer, str]]:
    """The engine's launches of a problem, and which of its operands their buffers are.

    What is no operand is scratch memory, and called after its number.
    """
    build = VulkanBuilder(kernels.target)
    uses: dict[Buffer, str] = {}

    def view(name: str, rows: int, heads: int) -> View:
        type_ = TensorType(dtype, problem.shape(rows, heads))
        made = Buffer(BufferKind.INPUT, type_.bytes, name)
        uses[made] = name
        seen = contiguous(made, type_)
        return seen.transpose((0, 2, 1, 3)) if problem.are_rows_outside else seen

    q, out = (view(name, problem.queries, problem.heads) for name in ("q", "out"))
    k, v = (view(name, problem.keys, problem.kv_heads) for name in ("k", "v"))
    logs = None
    if is_training:
        type_ = TensorType(FLOAT32, (problem.batch * problem.heads * problem.queries,))
        logs = contiguous(Buffer(BufferKind.OUTPUT, type_.bytes, "logs"), type_)
        uses[logs.buffer] = "logs"
    causal = Causal(problem.causal_offset) if problem.is_causal else None
    given = Attention(q, k, v, problem.scale, causal=causal, is_empty_zero=True, logs=logs)
    build.set_destination("out", out)
    node = Node("Attention", (), ("out",), name="attention", domain="vkml")
    with build.node(node, [node]):
        emit(build, given, variant, out.type)
    for number, buffer in enumerate(build.buffers):
        uses[buffer] = f"scratch {number}"
    return build.launches, uses


def attention_launches(
    kernels: Kernels, variant: Variant, operands: Operands, *, is_training: bool = False
) -> list[Launch]:
    """The launches that compute a problem, in order; training, they leave each row's logarithm too.

    Of fp32 tensors the first brings keys and values to fp16.
    """
    problem = operands.problem
    _check_head(variant, problem)
    dispatches, uses = attention_dispatches(
        kernels, variant, problem, operands.dtype, is_training=is_training
    )
    pipelines = kernels.compiled(dispatches)
    given = {"q": operands.q, "k": operands.k, "v": operands.v}
    addresses = {}
    for buffer, name in uses.items():
        if name in given:
            addresses[buffer] = given[name].address
        elif name == "out":
            addresses[buffer] = operands.out_address
        else:
            addresses[buffer] = operands.buffer(name, buffer.bytes).address
    launches = Launches([[each] for each in dispatches], pipelines, Numbers())

    push, grids = launches.numbers(launches.placed(addresses), ())

    def recorded(number: int, pipeline: Pipeline, start: int, end: int) -> Launch:
        x, y, z = grids[3 * number : 3 * number + 3]
        return lambda recorder: recorder.dispatch(pipeline, push[start:end], x, y, z)

    return [recorded(number, *launch) for number, [launch] in enumerate(launches.levels)]


def _check_head(variant: Variant, problem: Problem) -> None:
    if problem.head_size > variant.head or problem.head_size % 8:
        raise ValueError(
            f"{variant.label}: head size {problem.head_size} is no multiple of 8 up to {variant.head}"
        )


def _groups(variant: Variant, problem: Problem, rows: int, heads: int) -> tuple[int, int, int]:
    tiles = -(-rows // variant.tile_rows)
    return (heads, tiles, problem.batch) if problem.is_causal else (tiles, heads, problem.batch)


@dataclass(frozen=True)
class Gradients:
    """The kernels of one backward pass, in order."""

    delta: Launch
    of_queries: Launch
    of_keys: Launch


def backward_launches(
    kernels: Kernels, of_queries: Variant, of_keys: Variant, operands: Operands, d_out: Memory
) -> Gradients:
    """The launches that compute a problem's gradients from `d_out`, after `attention_launches` in training.

    They are left in the buffers "dq", "dk" and "dv", with guard zones like the result's.
    """
    problem = operands.problem
    logs, deltas = (operands.row_floats(name).address for name in ("logs", "deltas"))
    outs = {
        name: operands.buffer(name, memory.size + 2 * GUARD_BYTES).address + GUARD_BYTES
        for name, memory in (("dq", operands.q), ("dk", operands.k), ("dv", operands.v))
    }
    delta = kernels.delta(of_queries, problem)
    delta_push = struct.pack("<3Q", operands.out_address, d_out.address, deltas)
    # As delta.slang counts them.
    sharers = 1 << max(of_queries.head // 8 - 1, 0).bit_length()
    delta_rows = 4 * of_queries.fragment.lanes // min(of_queries.fragment.lanes, sharers)
    delta_groups = (-(-problem.queries // delta_rows), problem.heads, problem.batch)

    def launch(variant: Variant, owner: str, first: int, second: int) -> Launch:
        _check_head(variant, problem)
        pipeline = kernels.backward(variant, problem, owner)
        is_of_queries = owner == "queries"
        rows = problem.queries if is_of_queries else problem.keys
        heads = problem.heads if is_of_queries else problem.kv_heads
        groups = _groups(variant, problem, rows, heads)
        scratch = 0
        if variant.held_in == "scratch":
            size = 4 * groups[0] * groups[1] * problem.batch * variant.tile_rows * variant.head
            scratch = operands.scratch_address(size)
        push = struct.pack(
            "<9Q2f",
            operands.q.address,
            operands.k.address,
            operands.v.address,
            d_out.address,
            logs,
            deltas,
            first,
            second,
            scratch,
            problem.scale * math.log2(math.e),
            problem.scale,
        )
        return lambda recorder: recorder.dispatch(pipeline, push, *groups)

    return Gradients(
        lambda recorder: recorder.dispatch(delta, delta_push, *delta_groups),
        launch(of_queries, "queries", outs["dq"], 0),
        launch(of_keys, "keys", outs["dk"], outs["dv"]),
    )


def compute(kernels: Kernels, variant: Variant, operands: Operands) -> Tensor:
    """Runs a variant once into poisoned memory and returns the result, shaped as the queries.

    Raises:
        RuntimeError: something was written outside the result.
    """
    problem = operands.problem
    run_once(
        operands.device,
        lambda recorder: recorder.fill(operands.out, 0, operands.out.size, POISON),
        *attention_launches(kernels, variant, operands),
    )
    dtype = np.float32 if operands.dtype == FLOAT32 else np.float16
    shape = problem.shape(problem.queries, problem.heads)
    return _download(operands, operands.out, variant.label, shape, dtype)


def compute_gradients(
    kernels: Kernels,
    forward: Variant,
    of_queries: Variant,
    of_keys: Variant,
    operands: Operands,
    d_out: Halfs,
) -> tuple[Halfs, Halfs, Halfs]:
    """Runs forward and backward passes once into poisoned memory; returns dq, dk and dv shaped as q, k and v.

    Raises:
        RuntimeError: something was written outside the results.
    """
    problem = operands.problem
    gradient = operands.buffer("d_out", d_out.nbytes)
    operands.device.upload(gradient, 0, np.ascontiguousarray(d_out))
    launches = backward_launches(kernels, of_queries, of_keys, operands, gradient)
    names = ("logs", "deltas", "dq", "dk", "dv")

    def poison(recorder: Any) -> None:
        for memory in (operands.out, *(operands.buffers[name] for name in names)):
            recorder.fill(memory, 0, memory.size, POISON)

    run_once(
        operands.device,
        poison,
        *attention_launches(kernels, forward, operands, is_training=True),
        launches.delta,
        launches.of_queries,
        launches.of_keys,
    )
    of_rows = problem.shape(problem.queries, problem.heads)
    of_kv = problem.shape(problem.keys, problem.kv_heads)
    dq, dk, dv = (
        _download(operands, operands.buffers[name], name, shape)
        for name, shape in (("dq", of_rows), ("dk", of_kv), ("dv", of_kv))
    )
    return dq, dk, dv


def _download(
    operands: Operands,
    memory: Memory,
    label: str,
    shape: tuple[int, ...],
    dtype: type[np.generic] = np.float16,
) -> Tensor:
    raw = operands.device.download(memory).view(np.uint32)
    guard = GUARD_BYTES // 4
    end = guard + np.dtype(dtype).itemsize * math.prod(shape) // 4
    if (raw[:guard] != POISON).any() or (raw[end : end + guard] != POISON).any():
        raise RuntimeError(f"{label}: wrote outside its result")
    return raw[guard:end].view(dtype).reshape(shape)
