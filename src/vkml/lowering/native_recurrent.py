"""Recurrent layers in machine code."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING

from vkml.cpu.native import recurrent
from vkml.cpu.native.recurrent import SUM, RecurrentOperand, RecurrentStage
from vkml.cpu.native.tiles import lanes_of
from vkml.ir import TensorType, dtypes
from vkml.ir.recurrence import OUTPUT, OperandKind, Stage
from vkml.ir.size import Size, typical
from vkml.kernels.views import View
from vkml.lowering.native_body import expression
from vkml.lowering.native_layout import require_floats
from vkml.lowering.recurrence import RecurrentLayer, RecurrentMemory, recurrent_memory

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder

LEAST_PART_SECONDS = 4e-6
"""Of a step, below which threads that share its units lose more by waiting for one another."""


def recurrence(build: NativeBuilder, layer: RecurrentLayer) -> list[View | None]:
    """A layer's results."""
    require_floats(layer.inputs)
    steps, batch, _, _, hidden = layer.inputs.shape
    memory = recurrent_memory(build, layer, alternations=steps, stores=(dtypes.FLOAT32,))
    if steps and batch and hidden:
        for part, own in memory.parts(layer):
            _enter(build, part, own)
    return memory.finish(build)


def _enter(build: NativeBuilder, layer: RecurrentLayer, memory: RecurrentMemory) -> None:
    """All steps in one launch where directions and batch keep the threads busy, else a launch a stage."""
    steps, batch, directions, _, hidden = layer.inputs.shape
    operands = _Operands(build, layer, memory)
    stages = [operands.stage(stage) for stage in layer.cell.stages]
    rows = recurrent.rows_at_once(build.instructions, stages, typical(batch))
    chunks = directions * -(-typical(batch) // rows)
    most_gates = max(stage.gates for stage in stages)
    step_seconds = 2.0 * rows * hidden * hidden * most_gates * recurrent.SECONDS_PER_FLOP
    parts = min(build.threads // chunks, -(-hidden // lanes_of(build.instructions)))
    parts = max(1, min(parts, int(step_seconds / LEAST_PART_SECONDS)))
    runs: list[tuple[int, int, list[RecurrentStage]]] = [(0, steps, stages)]
    # An open number of steps is no number of launches.
    if parts > 1 and not isinstance(steps, Size):
        runs = [(step, 1, [stage]) for step in range(steps) for stage in stages]
    else:
        parts = 1
    for first, count, of_run in runs:
        launch = build.launch(
            recurrent.recurrent,
            operands=tuple(map(astuple, operands.layouts)),
            stages=of_run,
            swapped=(0, 1),
            sources=operands.sources,
            is_reversed=layer.is_reversed,
            batch=batch,
            hidden=hidden,
            first=first,
            steps=count,
            all_steps=steps,
            parts=parts,
        )
        written = {number for stage in of_run for number in stage.results}
        if parts == 1:
            written |= {0, 1}
        views = operands.at(first)
        build.enter_any(launch, views, views, [views[number] for number in sorted(written)])


class _Operands:
    """The operands of a layer's launches, numbered: 0 and 1 are what state 0 is read from and written to."""

    def __init__(self, build: NativeBuilder, layer: RecurrentLayer, memory: RecurrentMemory) -> None:
        self.build, self.layer, self.memory = build, layer, memory
        self.views: list[View] = []
        self.layouts: list[RecurrentOperand] = []
        self.sources: list[int] = []
        """Operands at the address of operand 0."""
        for view in (memory.first, memory.second):
            self._add(view, self._state_layout(view))

    def at(self, step: int) -> list[View]:
        """The views at the beginning of a step."""
        if step % 2 == 0:
            return self.views
        swapped = {0: self.memory.second, 1: self.memory.first}
        swapped |= {number: self.memory.second for number in self.sources}
        return [swapped.get(number, view) for number, view in enumerate(self.views)]

    def stage(self, stage: Stage) -> RecurrentStage:
        """A stage of the cell, its operands added."""
        results = [
            (target, value) for target, value in stage.results if target != OUTPUT or self.layer.has_output
        ]
        leaves = []
        for operand in stage.operands:
            gate = 0
            if operand.kind is OperandKind.SUM:
                leaves.append((SUM, stage.gates.index(operand.index)))
                continue
            if operand.kind is OperandKind.INPUT:
                gate = operand.index
            leaves.append((self._leaf(operand.kind, operand.index), gate))
        return RecurrentStage(
            len(stage.gates),
            self._source(stage.source),
            self._weights(stage),
            expression([value for _, value in results], len(stage.operands)),
            tuple(leaves),
            tuple(self._target(target) for target, _ in results),
        )

    def _add(self, view: View, layout: RecurrentOperand) -> int:
        for number, (known, as_) in enumerate(zip(self.views, self.layouts, strict=True)):
            if known is view and as_ == layout:
                return number
        self.views.append(view)
        self.layouts.append(layout)
        return len(self.views) - 1

    def _state_layout(self, view: View) -> RecurrentOperand:
        direction, row, _ = view.strides
        return RecurrentOperand(direction=direction, row=row, unit=1)

    def _leaf(self, kind: OperandKind, index: int) -> int:
        layer = self.layer
        if kind is OperandKind.STATE:
            return 0 if index == 0 else self._target(index)
        if kind is OperandKind.INPUT:
            step, row, direction, gate, _ = layer.inputs.strides
            return self._add(layer.inputs, RecurrentOperand(direction, row, step, 1, gate))
        if kind is OperandKind.VECTOR:
            view = self._vector(layer.vectors[index])
            return self._add(view, RecurrentOperand(direction=view.strides[0], unit=1))
        if kind is OperandKind.LENGTH:
            assert layer.lengths is not None
            return self._add(layer.lengths, RecurrentOperand(row=layer.lengths.strides[0]))
        return self._add(self._step_numbers(), RecurrentOperand(step=1))

    def _target(self, target: int) -> int:
        if target == OUTPUT:
            assert self.memory.output is not None
            step, direction, row, _ = self.memory.output.strides
            return self._add(self.memory.output, RecurrentOperand(direction, row, step, 1))
        if target == 0:
            return 1
        view = self.memory.others[target - 1]
        return self._add(view, self._state_layout(view))

    def _source(self, state: int) -> int:
        """State whose units are all read, whichever units a chunk writes."""
        view = self.memory.first if state == 0 else self.memory.others[state - 1]
        number = self._add(view, replace(self._state_layout(view), unit=0))
        if state == 0 and number not in self.sources:
            self.sources.append(number)
        return number

    def _vector(self, view: View) -> View:
        if view.dtype == dtypes.FLOAT32 and (view.strides[-1] == 1 or view.shape[-1] == 1):
            return view
        return self.build.contiguous(self.build.widened(view))

    def _step_numbers(self) -> View:
        for view, layout in zip(self.views, self.layouts, strict=True):
            if layout == RecurrentOperand(step=1):
                return view
        return self.build.positions(self.layer.inputs.shape[0])

    def _weights(self, stage: Stage) -> int:
        """A stage's weights, packed once where they are constant."""
        build, whole = self.build, self.layer.weights
        directions, _, hidden, inner = whole.shape
        lanes, gates = lanes_of(build.instructions), len(stage.gates)
        panels = -(-hidden // lanes)
        layout = RecurrentOperand(direction=panels * inner * gates * lanes, unit=inner * gates)
        if whole.buffer.constant is not None:
            require_floats(whole)
            chosen = list(stage.gates)
            packed = build.materialised(
                whole, f"recurrent{lanes}{chosen}", lambda array: recurrent.pack(array[:, chosen], lanes)
            )
            return self._add(packed, layout)
        packed = build.scratch(TensorType(dtypes.FLOAT32, (directions, panels, inner, gates, lanes)))
        full, rest = divmod(hidden, lanes)
        for position, gate in enumerate(stage.gates):
            for first, count, width in ((0, full, lanes), (full, 1, rest)):
                if not count or not width:
                    continue
                d, g, h, k = whole.strides
                source = replace(
                    whole,
                    shape=(directions, count, inner, width),
                    strides=(d, lanes * h, k, h),
                    offset=whole.offset + gate * g + first * lanes * h,
                )
                target = packed.slice(
                    (0, first, 0, position, 0), (1,) * 5, (directions, count, inner, 1, width)
                )
                build.copy(source, replace(target, shape=source.shape, strides=_without(target.strides, 3)))
        return self._add(packed, layout)


def _without(strides: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*strides[:axis], *strides[axis + 1 :])
