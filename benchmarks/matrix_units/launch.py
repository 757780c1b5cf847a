"""Runs the kernels on a device: buffers, packing, products, and the time they take."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from benchmarks.launching import POISON, Burner, Launch, Timing, run_once, time_chain
from benchmarks.matrix_units.problems import Problem
from benchmarks.matrix_units.variants import (
    K_PADDING,
    PACK_PUSH_BYTES,
    PUSH_BYTES,
    ROW_PADDING,
    Finish,
    Variant,
    add_source,
    exponents_source,
    pack_source,
    packed_halfs,
    padded,
    product_source,
    slack_halfs,
)
from vkml.kernels.compiling import compile_kernel
from vkml.vulkan import Device, Memory, MemoryKind, Pipeline

Floats = npt.NDArray[np.float32]

COLD_BYTES = 128 << 20
"""Weights are read in turns from copies that together exceed every cache: a model's are never warm."""
MAX_COPIES = 32


@dataclass(frozen=True)
class Plan:
    """How one problem is computed."""

    variant: Variant
    splits: int = 1
    partials: str = "arrival"
    """Who adds the sums of ranges of K: "arrival" or "pass"; of no account for one range."""
    scaled: str = "unscaled"
    """By which power of two A is scaled: "unscaled", "by_tensor", "by_row"."""
    is_guarded: bool = False
    notes_largest: bool = False
    is_out_half: bool = False
    is_out_packed: bool = False
    has_bias: bool = True
    has_column_exponents: bool = False
    activation: str = "x"

    @property
    def label(self) -> str:
        text = self.variant.label
        if self.splits > 1:
            text += f" /{self.splits}{'p' if self.partials == 'pass' else ''}"
        marks = "" if self.scaled == "unscaled" else f" {self.scaled}"
        marks += " guard" if self.is_guarded else ""
        marks += " largest" if self.notes_largest else ""
        marks += " halfs" if self.is_out_half else ""
        marks += " packs" if self.is_out_packed else ""
        marks += " colscale" if self.has_column_exponents else ""
        return text + marks + ("" if self.activation == "x" else " act")


class Kernels:
    """Pipelines of one device, compiled when first asked for."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def product(self, plan: Plan, problem: Problem) -> Pipeline:
        variant = plan.variant
        constants = sizes_of(plan, problem)
        if variant.are_sizes_pushed:
            k, n = problem.k, problem.n
            constants = (int(k % 4 == 0), int(k % variant.step_k == 0), int(n % 4 == 0), int(plan.splits > 1))
        elif variant.has_windows:
            window = problem.window
            assert window is not None
            constants += (window.in_y, window.in_x, window.channels, window.size, window.stride)
            constants += (window.pad, window.out_y, window.out_x)
        return self._pipeline(product_source(variant, finish_of(plan)), constants, PUSH_BYTES, variant)

    def add(self, plan: Plan, problem: Problem) -> Pipeline:
        finish = replace(finish_of(plan), partials="")
        source = add_source(finish, plan.variant.fragment.lanes)
        return self._pipeline(source, sizes_of(plan, problem), PUSH_BYTES, plan.variant)

    def pack(self, variant: Variant, packed_as: str, scaled: str, constants: tuple[int, ...]) -> Pipeline:
        source = pack_source(variant.fragment, packed_as, scaled=scaled)
        return self._pipeline(source, constants, PACK_PUSH_BYTES, variant)

    def exponents(self, variant: Variant, rows: int, k: int) -> Pipeline:
        return self._pipeline(exponents_source(variant.fragment), (rows, k), 16, variant)

    def _pipeline(self, source: str, constants: tuple[int, ...], push: int, variant: Variant) -> Pipeline:
        return self.device.pipeline(
            compile_kernel(source, "matrix_units"),
            constants=constants,
            push_constant_bytes=push,
            subgroup_size=variant.fragment.lanes,
            label=variant.label,
        )


def sizes_of(plan: Plan, problem: Problem) -> tuple[int, ...]:
    """In the order of PRODUCT_CONSTANTS."""
    return problem.m, problem.n, problem.k, plan.splits, problem.batch, int(not problem.is_b_batched)


def finish_of(plan: Plan) -> Finish:
    # The last arriver's part stays in the source where nothing is split: the constant SPLITS takes it out.
    return Finish(
        has_bias=plan.has_bias,
        activation=plan.activation,
        scaled=plan.scaled,
        has_column_exponents=plan.has_column_exponents,
        is_a_guarded=plan.is_guarded,
        notes_largest=plan.notes_largest,
        is_out_half=plan.is_out_half,
        is_out_packed=plan.is_out_packed,
        partials=plan.partials if plan.splits > 1 or plan.partials == "arrival" else "",
    )


@dataclass
class Operands:
    """A problem's buffers on the device."""

    device: Device
    problem: Problem
    copies: int
    host_a: Floats
    a: Memory
    b: Memory
    out: Memory
    small: Memory
    """Bias, exponents, largest magnitudes, status."""
    buffers: dict[str, Memory] = field(default_factory=dict)
    """Packed operands, partial sums and counters, by their use."""

    @property
    def bias_address(self) -> int:
        return self.small.address

    @property
    def column_exponents_address(self) -> int:
        return self.small.address + 4 * padded(self.problem.n, K_PADDING)

    @property
    def words_offset(self) -> int:
        """A's largest magnitude, the result's, the status: a word each, 16 bytes apart."""
        return 8 * padded(self.problem.n, K_PADDING)

    @property
    def words_address(self) -> int:
        return self.small.address + self.words_offset

    @property
    def row_exponents_address(self) -> int:
        return self.words_address + 64

    def buffer(self, name: str, size: int, *, zeros: bool = False) -> Memory:
        """A buffer of at least so many bytes, made at the first use."""
        found = self.buffers.get(name)
        if found is not None and found.size >= size:
            return found
        if found is not None:
            found.free()
        made = self.device.allocate(padded(size, 16), MemoryKind.DEVICE, name)
        if zeros:
            run_once(self.device, lambda recorder: recorder.fill(made, 0, made.size))
        self.buffers[name] = made
        return made

    def half_a(self) -> Memory:
        """A in fp16, as another kernel would have left it."""
        found = self.buffers.get("half a")
        if found is None:
            found = self.buffer("half a", 2 * self.host_a.size)
            self.device.upload(found, 0, self.host_a.astype(np.float16))
        return found

    def free(self) -> None:
        for memory in (self.a, self.b, self.out, self.small, *self.buffers.values()):
            memory.free()


def make_operands(
    device: Device, problem: Problem, a: Floats, b: Floats, bias: Floats, *, is_cold: bool
) -> Operands:
    """Uploads a problem.

    Args:
        device: where.
        problem: its sizes.
        a: (batch, m, k), or images (channels last) of a convolution.
        b: (k, n), or (batch, k, n).
        bias: (n,).
        is_cold: whether weights are read from several copies in turns.
    """
    half_bytes = 2 * packed_halfs(problem.n, problem.k) * (problem.batch if problem.is_b_batched else 1)
    copies = (
        max(1, min(MAX_COPIES, -(-COLD_BYTES // half_bytes))) if is_cold and not problem.is_b_batched else 1
    )
    out_bytes = 4 * problem.batch * padded(problem.m, ROW_PADDING) * padded(problem.n, K_PADDING)
    small_bytes = 8 * padded(problem.n, K_PADDING) + 64 + 4 * problem.batch * problem.m + 64
    allocate = device.allocate
    operands = Operands(
        device,
        problem,
        copies,
        a,
        allocate(a.nbytes, MemoryKind.DEVICE, "a"),
        allocate(b.nbytes, MemoryKind.DEVICE, "b"),
        allocate(padded(out_bytes, 16), MemoryKind.DEVICE, "out"),
        allocate(small_bytes, MemoryKind.DEVICE, "small"),
    )
    run_once(device, lambda recorder: recorder.fill(operands.small, 0, operands.small.size))
    device.upload(operands.a, 0, np.ascontiguousarray(a))
    device.upload(operands.b, 0, np.ascontiguousarray(b))
    device.upload(operands.small, 0, np.ascontiguousarray(bias))
    largest = np.abs(a).max(initial=0).astype(np.float32)
    device.upload(operands.small, operands.words_offset, largest.view(np.uint32)[None])
    return operands


def pack_launch(
    kernels: Kernels,
    variant: Variant,
    packed_as: str,
    *,
    rows: int,
    k: int,
    strides: tuple[int, int, int],
    source: int,
    target: int,
    batch: int = 1,
    scaled: str = "unscaled",
    exponents_address: int = 0,
    largest_address: int = 0,
) -> Launch:
    """The launch that converts and packs an operand; `strides` of row, k and batch, in elements."""
    pipeline = kernels.pack(variant, packed_as, scaled, (rows, k, *strides))
    push = struct.pack("<4Q", source, target, exponents_address, largest_address)
    chunks = 1 if scaled == "by_row" else -(-padded(k, K_PADDING) // 256)
    groups = (-(-rows // 16), chunks, batch)
    return lambda recorder: recorder.dispatch(pipeline, push, *groups)


def pack_b(kernels: Kernels, variant: Variant, operands: Operands, is_scaled: bool) -> int:
    """Packs B (all copies), once a session in the runtime; returns the address of the first copy.

    Scaled, each column has a power of two of its own, whose exponents are left for the epilogue.
    """
    name = _b_name(variant, is_scaled)
    if name not in operands.buffers:
        run_once(operands.device, *pack_b_launches(kernels, variant, operands, is_scaled))
    return operands.buffers[name].address


def _b_name(variant: Variant, is_scaled: bool) -> str:
    return f"b {variant.b} {is_scaled}"


def pack_b_launches(kernels: Kernels, variant: Variant, operands: Operands, is_scaled: bool) -> list[Launch]:
    """The launches that pack B, one for each copy."""
    problem = operands.problem
    batch = problem.batch if problem.is_b_batched else 1
    size = 2 * batch * packed_halfs(problem.n, problem.k)
    whole = operands.copies * size + 2 * slack_halfs(problem.n)
    memory = operands.buffer(_b_name(variant, is_scaled), whole)
    return [
        pack_launch(
            kernels,
            variant,
            variant.b,
            rows=problem.n,
            k=problem.k,
            strides=(1, problem.n, problem.k * problem.n),
            source=operands.b.address,
            target=memory.address + copy * size,
            batch=batch,
            scaled="by_row" if is_scaled else "unscaled",
            exponents_address=operands.column_exponents_address,
        )
        for copy in range(operands.copies)
    ]


def prepare_a(kernels: Kernels, plan: Plan, operands: Operands) -> tuple[tuple[Launch, ...], int]:
    """The passes over A before the product, and the address where the product reads it."""
    problem, variant = operands.problem, plan.variant
    if variant.a == "blocks":
        size = 2 * (problem.batch * packed_halfs(problem.m, problem.k) + slack_halfs(problem.m))
        target = operands.buffer("a blocks", size).address
        launch = pack_launch(
            kernels,
            variant,
            "blocks",
            rows=problem.m,
            k=problem.k,
            strides=(problem.k, 1, problem.m * problem.k),
            source=operands.a.address,
            target=target,
            batch=problem.batch,
            scaled=plan.scaled,
            exponents_address=operands.row_exponents_address,
            largest_address=operands.words_address,
        )
        return (launch,), target
    if variant.a == "half_windows":
        return (), operands.half_a().address
    if plan.scaled != "by_row":
        return (), operands.a.address
    rows = problem.batch * problem.m
    pipeline = kernels.exponents(variant, rows, problem.k)
    push = struct.pack("<2Q", operands.a.address, operands.row_exponents_address)
    return (lambda recorder: recorder.dispatch(pipeline, push, -(-rows // 8)),), operands.a.address


@dataclass(frozen=True)
class Steps:
    """The launches of one computation, in order, a barrier after each."""

    converting: tuple[Launch, ...]
    product: tuple[Callable[[int], Launch], ...]
    """Each for one of the copies of B."""


def steps_of(kernels: Kernels, plan: Plan, operands: Operands) -> Steps:
    """Everything that has to run for one product, with B packed already."""
    problem, variant = operands.problem, plan.variant
    tiles = -(-problem.m // variant.tile_m) * -(-problem.n // variant.tile_n)
    converting, a_address = prepare_a(kernels, plan, operands)
    if problem.is_b_batched:
        converting += tuple(pack_b_launches(kernels, variant, operands, plan.has_column_exponents))
    b_address = pack_b(kernels, variant, operands, plan.has_column_exponents)
    b_bytes = 2 * packed_halfs(problem.n, problem.k)
    partials_address = counters_address = 0
    if plan.splits > 1:
        tile_floats = tiles * variant.tile_m * variant.tile_n
        row_floats = problem.m * padded(problem.n, 4)
        floats = plan.splits * problem.batch * max(tile_floats, row_floats)
        partials_address = operands.buffer("partials", 4 * floats).address
        counters_address = operands.buffer("counters", 4 * tiles * problem.batch, zeros=True).address

    def push(copy: int) -> bytes:
        return struct.pack(
            "<11Q6i",
            a_address,
            b_address + copy * b_bytes,
            operands.out.address,
            operands.bias_address,
            operands.row_exponents_address,
            operands.column_exponents_address,
            operands.words_address,
            operands.words_address + 16,
            operands.words_address + 32,
            partials_address,
            counters_address,
            *sizes_of(plan, problem),
        )

    pipeline = kernels.product(plan, problem)
    groups = (tiles, 1, problem.batch * plan.splits)

    def multiply(copy: int) -> Launch:
        return lambda recorder: recorder.dispatch(pipeline, push(copy), *groups)

    product = [multiply]
    if plan.splits > 1 and plan.partials == "pass":
        adding = kernels.add(plan, problem)
        threads = max(variant.fragment.lanes, 128)
        items = problem.batch * problem.m * (padded(problem.n, 4) // 4)
        product.append(
            lambda copy: lambda recorder: recorder.dispatch(adding, push(copy), -(-items // threads))
        )
    return Steps(converting, tuple(product))


def compute(kernels: Kernels, plan: Plan, operands: Operands) -> Floats:
    """Runs a plan once into poisoned memory and returns the result, (batch, m, n)."""
    steps = steps_of(kernels, plan, operands)
    problem = operands.problem
    run_once(
        operands.device,
        lambda recorder: recorder.fill(operands.out, 0, operands.out.size, POISON),
        *steps.converting,
        *(launch(0) for launch in steps.product),
    )
    shape = (problem.batch, problem.m, problem.n)
    if plan.is_out_packed:
        count = problem.batch * packed_halfs(problem.m, problem.n)
        halfs = operands.device.download(operands.out, 0, 2 * count).view(np.float16)
        return unpacked(halfs, *shape)
    size = 2 if plan.is_out_half else 4
    raw = operands.device.download(operands.out, 0, size * int(np.prod(shape)))
    found: Floats = raw.view(np.float16).astype(np.float32) if plan.is_out_half else raw.view(np.float32)
    return found.reshape(shape)


def unpacked(halfs: npt.NDArray[np.float16], batch: int, rows: int, k: int) -> Floats:
    """The matrices (batch, rows, k) that were packed as blocks."""
    blocks = halfs.reshape(batch, padded(k, K_PADDING) // 32, padded(rows, ROW_PADDING) // 8, 4, 8, 8)
    matrices = blocks.transpose(0, 2, 4, 1, 3, 5).reshape(batch, padded(rows, ROW_PADDING), -1)
    return matrices[:, :rows, :k].astype(np.float32)


def make_burner(kernels: Kernels, variant: Variant, size: int = 2048) -> Burner:
    """A burner that multiplies square matrices of that size."""
    problem = Problem("burner", size, size, size)
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((size, size), np.float32) for _ in range(2))
    operands = make_operands(kernels.device, problem, a[None], b, np.zeros(size, np.float32), is_cold=False)
    steps = steps_of(kernels, Plan(variant), operands)
    run_once(kernels.device, *steps.converting)
    return Burner(kernels.device, steps.product[0](0), operands.free)


def time_converting(kernels: Kernels, plan: Plan, operands: Operands, timing: Timing) -> float:
    """Median seconds of the passes before the product, barriers included; 0 where there are none."""
    steps = steps_of(kernels, plan, operands)
    if not steps.converting:
        return 0.0
    return time_chain(operands.device, lambda index: list(steps.converting), timing)


def time_product(kernels: Kernels, plan: Plan, operands: Operands, timing: Timing) -> float:
    """Median seconds of the product alone, with the addition of its parts, barriers included."""
    steps = steps_of(kernels, plan, operands)
    return time_chain(
        operands.device, lambda index: [launch(index % operands.copies) for launch in steps.product], timing
    )
