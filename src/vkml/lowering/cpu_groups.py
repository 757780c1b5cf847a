"""Groups on the CPU: an anchor with its pointwise tail, or a pointwise chain alone, as one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkml.cpu.blas import is_controllable, use_threads
from vkml.cpu.blocks import BlockProgram, Index, partition, refine
from vkml.cpu.buffers import BufferPool
from vkml.cpu.memory import MemoryBudget
from vkml.cpu.pool import DISPATCH_SECONDS, WorkerPool
from vkml.ir import Constant, Node, TensorType, find
from vkml.lowering.cpu_anchors import SECONDS_PER_PASS, Anchor, find_anchor
from vkml.lowering.cpu_chain import ChainBuilder

Array = np.ndarray[Any, Any]
Slots = list[Any]
StepFunction = Callable[[Slots], None]

WORTH_SECONDS = 4 * DISPATCH_SECONDS
"""Work below this stays on the calling thread."""
WORTH_BLAS_SECONDS = 1e-3
"""Products that are not split here are spread by BLAS above this. Its threads then wait for more work without
sleeping and take the processor from the pool's: a model of many small products ran twice as long."""


@dataclass(frozen=True)
class Scope:
    """What the steps of one program are compiled against."""

    types: Mapping[str, TensorType]
    constants: Mapping[str, Constant]
    slots: Mapping[str, int]
    """Where a run keeps each value."""
    channels_last: set[str]
    """Values that lie channels-last in memory; grows while steps are compiled in order."""
    pool: WorkerPool
    buffers: BufferPool
    is_strict: bool
    """Whether convolutions in machine code must add up the products that they state."""
    budget: MemoryBudget
    """For the memory that machine code keeps between runs."""


@dataclass(frozen=True)
class _Operand:
    """An operand as the blocks want it: in memory order, of full rank, merged where the group's axes are."""

    slot: int
    fixed: Array | None
    prepare: Callable[[Array], Array]


def compile_group(
    scope: Scope, nodes: Sequence[Node], outputs: Sequence[str], constants: Mapping[str, Constant]
) -> StepFunction | None:
    """The step of a group, None where its parts do not fit one index space.

    Args:
        scope: of the program.
        nodes: an anchor or not, then pointwise nodes.
        outputs: values that are wanted outside.
        constants: the body's own.
    """
    types: Mapping[str, TensorType] = scope.types
    if not outputs:
        return lambda slots: None
    anchor = find_anchor(nodes[0], types, scope.constants, scope.is_strict)
    tail = nodes[1:] if anchor is not None else nodes
    if not _is_one_index_space(tail, nodes, types):
        return None
    result = types[nodes[0].outputs[0]]
    if anchor is not None and anchor.channels_last and any(anchor.shift in node.inputs for node in tail):
        return None
    inside = {name for node in nodes for name in node.outputs}
    needed = [name for node in tail for name in node.inputs if name and name not in inside]
    needed += [name for name in (anchor.scale, anchor.shift) if name] if anchor is not None else []
    leaves = list(dict.fromkeys(needed))
    build = ChainBuilder()
    resident = None
    if anchor is not None:
        resident = build.operand(nodes[0].outputs[0], anchor.dtype)
    scalars = {name for name in leaves if _scalar(name, constants, scope) is not None}
    arrays = [name for name in leaves if name not in scalars]
    for name in arrays:
        build.operand(name, types[name].dtype.storage)
    for name in scalars:
        constant = _scalar(name, constants, scope)
        assert constant is not None
        build.values[name] = build.scalar(constant.array.reshape(()), constant.dtype.storage)
    if anchor is not None:
        _add_affine(build, nodes[0].outputs[0], anchor)
    for node in tail:
        build.translate(node, types)
    program = BlockProgram(
        build.chain,
        [build.values[name] for name in outputs],
        [types[name].dtype.storage for name in outputs],
        resident,
    )
    layout = _Layout.of(scope, anchor, result, arrays)
    return _Group(scope, anchor, program, build.cost, layout, arrays, outputs).step()


def _is_one_index_space(tail: Sequence[Node], nodes: Sequence[Node], types: Mapping[str, TensorType]) -> bool:
    result = types[nodes[0].outputs[0]]
    if not result.is_static or result.elements == 0:
        return False
    if any(not find(node).is_pointwise or len(node.outputs) != 1 for node in tail):
        return False
    known = [types[name] for node in tail for name in (*node.inputs, *node.outputs) if name]
    if any(not t.dtype.is_native or t.dtype.kind not in "fiub" for t in known):
        return False
    return all(types[node.outputs[0]].dims == result.dims for node in tail)


def _scalar(name: str, constants: Mapping[str, Constant], scope: Scope) -> Constant | None:
    found = constants.get(name) or scope.constants.get(name)
    return found if found is not None and found.array.size == 1 else None


def _add_affine(build: ChainBuilder, name: str, anchor: Anchor) -> None:
    """The anchor's own scale and shift become the first steps behind it."""
    for function, operand in ((np.multiply, anchor.scale), (np.add, anchor.shift)):
        if operand:
            build.values[name] = build.step(function, build.values[name], build.wide(build.values[operand]))


@dataclass(frozen=True)
class _Layout:
    """How a group's results lie in memory."""

    dims: tuple[int, ...]
    channels_last: bool
    memory: tuple[int, ...]
    """Shape of the results in memory order, merged as far as the operands allow."""
    merges: tuple[tuple[int, ...], ...]
    """Which axes (in memory order) each axis of `memory` stands for."""
    is_rows: bool
    """Whether `memory` is [rows, columns]."""

    @staticmethod
    def of(scope: Scope, anchor: Anchor | None, result: TensorType, arrays: Sequence[str]) -> _Layout:
        dims = result.dims
        if anchor is not None:
            last = anchor.channels_last
        else:
            last = any(name in scope.channels_last and scope.types[name].dims == dims for name in arrays)
        order = (0, *range(2, len(dims)), 1) if last else tuple(range(len(dims)))
        memory = tuple(dims[axis] for axis in order)
        patterns = []
        for name in arrays:
            shape = scope.types[name].dims
            if anchor is not None and name == anchor.shift and last:
                shape = (shape[0], *(1,) * (len(dims) - 2))
            full = (*(1,) * (len(dims) - len(shape)), *shape)
            patterns.append(tuple(full[axis] for axis in order))
        movable = len(memory) if anchor is None else len(memory) - 1 if anchor.needs_rows else 0
        merges = _merge(memory, patterns, movable)
        merged = tuple(math.prod(memory[axis] for axis in group) for group in merges)
        return _Layout(dims, last, merged, merges, len(merged) == 2)

    @property
    def order(self) -> tuple[int, ...]:
        rank = len(self.dims)
        return (0, *range(2, rank), 1) if self.channels_last else tuple(range(rank))

    def preparation(self, dims: tuple[int, ...]) -> Callable[[Array], Array]:
        """Brings an operand of shape `dims` into this layout."""
        rank = len(self.dims)
        full = (*(1,) * (rank - len(dims)), *dims)
        ordered = tuple(full[axis] for axis in self.order)
        merged = tuple(math.prod(ordered[axis] for axis in group) for group in self.merges)
        order, last, lacks_axes = self.order, self.channels_last, len(dims) < rank

        def prepare(array: Array) -> Array:
            if lacks_axes:
                array = array.reshape(full)
            if last:
                array = array.transpose(order)
            return array if array.shape == merged else array.reshape(merged)

        if math.prod(dims) == 1:
            return lambda array: array.reshape(())
        if dims == merged and not last:
            return lambda array: array
        return prepare

    def restored(self, array: Array) -> Array:
        """A result in memory order, seen with its logical axes."""
        if self.merges:
            array = array.reshape(tuple(self.dims[axis] for axis in self.order))
        if self.channels_last:
            rank = len(self.dims)
            array = array.transpose(0, rank - 1, *range(1, rank - 1))
        return array


def _merge(
    memory: Sequence[int], patterns: Sequence[Sequence[int]], movable: int
) -> tuple[tuple[int, ...], ...]:
    """Neighbouring axes, among the first `movable`, along which each operand is full or has size 1 on all."""
    groups: list[list[int]] = []
    for axis in range(len(memory)):
        if groups and axis < movable:
            previous = groups[-1]
            pair = [
                all(pattern[a] == memory[a] for a in (*previous, axis))
                or all(pattern[a] == 1 for a in (*previous, axis))
                for pattern in patterns
            ]
            if all(pair):
                previous.append(axis)
                continue
        groups.append([axis])
    return tuple(tuple(group) for group in groups)


LONG_ROW = 8192
"""Elements that a vector of channels is repeated to, at most."""


def _widened(array: Array, memory: Sequence[int]) -> Array:
    """A vector along the last axis repeated along the axis before it, so that NumPy's inner loops are long.

    Adding a vector of 32 channels to 112 columns takes 112 inner loops of 32 elements; as one of 3584 it is
    three times as fast.
    """
    is_vector = array.ndim == len(memory) >= 2 and array.size == array.shape[-1] == memory[-1]
    if not is_vector or memory[-1] >= 512 or memory[-1] * memory[-2] > LONG_ROW * 2:
        return array
    return np.broadcast_to(array, (*array.shape[:-2], memory[-2], memory[-1]))


class _Group:
    """Everything about a group that does not change between runs, and the step made of it."""

    def __init__(
        self,
        scope: Scope,
        anchor: Anchor | None,
        program: BlockProgram,
        cost: float,
        layout: _Layout,
        arrays: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        self.anchor, self.program, self.layout, self.pool = anchor, program, layout, scope.pool
        self.buffers = scope.buffers
        self.operands = [self._operand(scope, name, layout, anchor) for name in arrays]
        self.inputs = [scope.slots[name] for name in anchor.inputs] if anchor is not None else []
        self.outputs = [scope.slots[name] for name in outputs]
        self.dtypes = program.output_dtypes
        elements = math.prod(layout.dims)
        tail = elements * cost * SECONDS_PER_PASS
        self._plan(tail, scope.pool.size)
        if layout.channels_last:
            scope.channels_last.update(outputs)

    @staticmethod
    def _operand(scope: Scope, name: str, layout: _Layout, anchor: Anchor | None) -> _Operand:
        dims = scope.types[name].dims
        prepare = layout.preparation(dims)
        if anchor is not None and name == anchor.shift and layout.channels_last:
            shape = (dims[0], *(1,) * (len(layout.dims) - 2))
            inner = layout.preparation(shape)
            prepare = lambda array: inner(array.reshape(shape))  # noqa: E731
        constant = scope.constants.get(name)
        fixed = None
        if constant is not None:
            fixed = np.require(_widened(prepare(constant.array), layout.memory), requirements=["C", "A"])
        return _Operand(scope.slots[name], fixed, prepare)

    def _plan(self, tail: float, threads: int) -> None:
        anchor, memory = self.anchor, self.layout.memory
        if threads > 1 and anchor is not None and anchor.uses_blas and not is_controllable():
            threads = 1
        work = tail if anchor is None else tail + anchor.seconds
        if work < WORTH_SECONDS:
            threads = 1
        self.blocks: list[Index] | None = None
        if anchor is None:
            pass
        elif not anchor.needs_rows or self.layout.is_rows:
            self.blocks = anchor.partition(threads)
        self.is_whole = anchor is not None and self.blocks is None
        self.parts: list[tuple[Index, list[Index]]]
        if self.blocks is not None:
            self.parts = [(index, refine(index, memory)) for index in self.blocks]
            self.is_parallel = threads > 1 and len(self.parts) > 1
        else:
            self.is_parallel = tail >= WORTH_SECONDS and self.pool.size > 1
            elements = math.prod(memory)
            share = -(-elements // (2 * self.pool.size)) if self.is_parallel else elements
            self.parts = [(index, [index]) for index in partition(memory, max(1, min(32768, share)))]
        self.spreads_blas = (
            anchor is not None
            and anchor.uses_blas
            and anchor.seconds >= WORTH_BLAS_SECONDS
            and self.pool.size > 1
            and self.is_whole
        )

    def step(self) -> StepFunction:
        """The closure that a program runs."""
        program, anchor, layout, parts = self.program, self.anchor, self.layout, self.parts
        operands, inputs, dtypes = self.operands, self.inputs, self.dtypes
        resident = program.resident_output
        memory, is_whole, is_empty = layout.memory, self.is_whole, program.is_empty
        spreads_blas = self.spreads_blas
        pool, empty = self.pool, self.buffers.empty

        def prepare(
            slots: Slots,
        ) -> tuple[list[Array], list[Array], Callable[[Index, Array], None] | None, Array | None]:
            made = [empty(memory, dtype) for dtype in dtypes]
            given = [
                operand.prepare(slots[operand.slot]) if operand.fixed is None else operand.fixed
                for operand in operands
            ]
            if anchor is None:
                return made, given, None, None
            target = made[resident] if resident is not None else empty(memory, anchor.dtype)
            given_inputs = [slots[slot] for slot in inputs]
            if is_whole and spreads_blas:
                use_threads(pool.size)
                try:
                    do = anchor.start(given_inputs, target, True)
                finally:
                    use_threads(1)
            else:
                do = anchor.start(given_inputs, target, is_whole)
            # The chain's first operand is the anchor's result, wherever it lies.
            return made, [target, *given], do, target

        def deliver(slots: Slots, made: list[Array]) -> None:
            for slot, array in zip(self.outputs, made, strict=True):
                slots[slot] = layout.restored(array)

        def run_inline(slots: Slots) -> None:
            made, given, do, target = prepare(slots)
            for index, pieces in parts:
                if do is not None and target is not None:
                    do(index, target[index])
                if not is_empty:
                    for piece in pieces:
                        program.run(piece, given, made)
            deliver(slots, made)

        def run_parallel(slots: Slots) -> None:
            made, given, do, target = prepare(slots)

            def body(start: int, stop: int) -> None:
                for index, pieces in parts[start:stop]:
                    if do is not None and target is not None:
                        do(index, target[index])
                    if not is_empty:
                        for piece in pieces:
                            program.run(piece, given, made)

            if not (is_whole and is_empty):
                pool.parallel_for(len(parts), body)
            deliver(slots, made)

        return run_parallel if self.is_parallel else run_inline
