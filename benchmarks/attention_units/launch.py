"""Runs the attention kernels on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.attention_units.problems import Problem
from benchmarks.launching import POISON, Launch, run_once
from vkml.engine.compilation import compile_kernels
from vkml.engine.devices import target_of
from vkml.engine.fragment_check import fragment_layouts
from vkml.engine.launches import Launches
from vkml.ir import Node, TensorType
from vkml.ir.dtypes import FLOAT32, DType, from_numpy
from vkml.kernels.attention import Attention, Causal, emit
from vkml.kernels.attention_gradients import AttentionGradients
from vkml.kernels.attention_gradients import emit as emit_gradients
from vkml.kernels.attention_variants import Variant
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
        return fragment_layouts(self.device.info, lambda: self.device, fragment)

    def compiled(self, dispatches: Sequence[Dispatch]) -> dict[int, Pipeline]:
        """The engine's kernels by identity."""
        return compile_kernels(self.device, [each.kernel for each in dispatches], self._pipelines)


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


class _Lowered:
    """The engine's launches of a problem, and which of its operands their buffers are.

    What is no operand is scratch memory, and called after its number and those who use it.
    """

    def __init__(self, kernels: Kernels, problem: Problem, dtype: DType) -> None:
        self.build = VulkanBuilder(kernels.target)
        self.problem = problem
        self.dtype = dtype
        self.uses: dict[Buffer, str] = {}
        self.q = self.tensor("q", problem.queries, problem.heads)
        self.k, self.v = (self.tensor(name, problem.keys, problem.kv_heads) for name in ("k", "v"))

    def tensor(self, name: str, rows: int, heads: int) -> View:
        """A tensor as the problem has it in memory, seen as (batch, heads, rows, columns)."""
        type_ = TensorType(self.dtype, self.problem.shape(rows, heads))
        seen = self._view(name, type_)
        return seen.transpose((0, 2, 1, 3)) if self.problem.are_rows_outside else seen

    def floats(self, name: str, count: int) -> View:
        """So many floats for each row of queries."""
        problem = self.problem
        return self._view(name, TensorType(FLOAT32, (problem.batch, problem.heads, problem.queries, count)))

    def given(self, row_sums: View | None = None) -> Attention:
        """The attention."""
        problem = self.problem
        causal = Causal(problem.causal_offset) if problem.is_causal else None
        return Attention(
            self.q, self.k, self.v, problem.scale, causal=causal, is_empty_zero=True, row_sums=row_sums
        )

    def finish(self, use: str) -> tuple[list[Dispatch], dict[Buffer, str]]:
        for number, buffer in enumerate(self.build.buffers):
            self.uses[buffer] = f"scratch {number} of {use}"
        return self.build.launches, self.uses

    def _view(self, name: str, type_: TensorType) -> View:
        made = Buffer(BufferKind.INPUT, type_.bytes, name)
        self.uses[made] = name
        return contiguous(made, type_)


def attention_dispatches(
    kernels: Kernels, variant: Variant, problem: Problem, dtype: DType, *, is_training: bool = False
) -> tuple[list[Dispatch], dict[Buffer, str]]:
    """The engine's launches of a problem, and what their buffers are."""
    lowered = _Lowered(kernels, problem, dtype)
    build = lowered.build
    out = lowered.tensor("out", problem.queries, problem.heads)
    given = lowered.given(lowered.floats("sums", 2) if is_training else None)
    build.set_destination("out", out)
    node = Node("Attention", (), ("out",), name="attention", domain="vkml")
    with build.node(node, [node]):
        emit(build, given, variant, out.type)
    return lowered.finish("attention")


def attention_launches(
    kernels: Kernels, variant: Variant, operands: Operands, *, is_training: bool = False
) -> list[Launch]:
    """The launches that compute a problem, in order; training, they leave each row's sum, too.

    Of fp32 tensors the first brings keys and values to fp16.
    """
    problem = operands.problem
    _check_head(variant, problem)
    found = attention_dispatches(kernels, variant, problem, operands.dtype, is_training=is_training)
    return _recorded(kernels, operands, *found)


def _recorded(
    kernels: Kernels, operands: Operands, dispatches: list[Dispatch], uses: dict[Buffer, str]
) -> list[Launch]:
    pipelines = kernels.compiled(dispatches)
    given = {"q": operands.q.address, "k": operands.k.address, "v": operands.v.address}
    given["out"] = operands.out_address
    addresses = {}
    for buffer, name in uses.items():
        if name in GRADIENTS:
            size = buffer.bytes + 2 * GUARD_BYTES
            addresses[buffer] = operands.buffer(name, size).address + GUARD_BYTES
        else:
            addresses[buffer] = given[name] if name in given else operands.buffer(name, buffer.bytes).address
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


GRADIENTS = ("dq", "dk", "dv")
"""They are left in buffers of these names, with guard zones like the result's."""


@dataclass(frozen=True)
class GradientLaunches:
    """The kernels of one backward pass, in order."""

    operands: tuple[Launch, Launch]
    """Bring queries and the results' gradient, and keys and values, to fp16."""
    of_queries: Launch
    of_keys: Launch

    @property
    def all(self) -> tuple[Launch, ...]:
        return (*self.operands, self.of_queries, self.of_keys)


def backward_launches(
    kernels: Kernels, of_queries: Variant, of_keys: Variant, operands: Operands
) -> GradientLaunches:
    """The launches that compute a problem's gradients, after `attention_launches` in training.

    They read the buffers "d_out" and "deltas", each row's results times their gradient.
    """
    problem = operands.problem
    for variant in (of_queries, of_keys):
        _check_head(variant, problem)
    lowered = _Lowered(kernels, problem, operands.dtype)
    d_out, dq = (lowered.tensor(name, problem.queries, problem.heads) for name in ("d_out", "dq"))
    dk, dv = (lowered.tensor(name, problem.keys, problem.kv_heads) for name in ("dk", "dv"))
    asked = AttentionGradients(lowered.given(), d_out, lowered.floats("sums", 2), lowered.floats("deltas", 1))
    node = Node("AttentionGradient", (), GRADIENTS, name="gradients", domain="vkml")
    with lowered.build.node(node, [node]):
        emit_gradients(lowered.build, asked, (of_queries, of_keys), (dq, dk, dv))
    first, second, queries, keys = _recorded(kernels, operands, *lowered.finish("gradients"))
    return GradientLaunches((first, second), queries, keys)


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
    problem, device = operands.problem, operands.device
    of_rows = problem.shape(problem.queries, problem.heads)
    run_once(
        device,
        lambda recorder: recorder.fill(operands.out, 0, operands.out.size, POISON),
        *attention_launches(kernels, forward, operands, is_training=True),
    )
    out = _download(operands, operands.out, forward.label, of_rows)
    products = (out.astype(np.float32) * d_out.astype(np.float32)).sum(axis=-1)
    deltas = products.swapaxes(1, 2) if problem.are_rows_outside else products
    for name, array in (("d_out", d_out), ("deltas", deltas)):
        device.upload(operands.buffer(name, array.nbytes), 0, np.ascontiguousarray(array))
    launches = backward_launches(kernels, of_queries, of_keys, operands)

    def poison(recorder: Any) -> None:
        for memory in (operands.buffers[name] for name in GRADIENTS):
            recorder.fill(memory, 0, memory.size, POISON)

    run_once(device, poison, *launches.all)
    of_kv = problem.shape(problem.keys, problem.kv_heads)
    dq, dk, dv = (
        _download(operands, operands.buffers[name], name, shape)
        for name, shape in zip(GRADIENTS, (of_rows, of_kv, of_kv), strict=True)
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
