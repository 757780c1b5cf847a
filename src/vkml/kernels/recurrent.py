"""Launches of recurrent layers: all steps in one dispatch where the weights are small, else one a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir.lowering import CannotLower
from vkml.ir.recurrence import OUTPUT, Operand, OperandKind, Stage
from vkml.ir.size import Size, typical
from vkml.kernels.gemm import aligned, load_vector
from vkml.kernels.scalar_text import write_statements
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import View
from vkml.kernels.writer import (
    KernelWriter,
    compute_type,
    load_expression,
    multiply_add,
    store_expression,
    template,
)
from vkml.lowering.recurrence import RecurrentLayer, RecurrentMemory, recurrent_memory

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

RESIDENT_BYTES = 256 * 1024
"""Of one direction's weights, up to which a workgroup reads them anew at each step and does all steps: a
dispatch a step reads with the whole device, and costs a barrier."""
MOST_ROWS = 4
"""Sequences of a workgroup, which reads weights once for all of them."""
ROWS_SHARED = 2
"""Sequences for each of a device's processors before workgroups take several."""
STEP_LANES = 32
STEP_COLUMNS = 4

forced: bool | None = None
"""For tests: whether kernels are resident, wherever they can be."""


@dataclass(frozen=True)
class Shape:
    """How the threads of a workgroup share the work."""

    is_resident: bool
    rows: int
    columns: int
    lanes: int
    threads: int

    @property
    def lane_room(self) -> int:
        """Places that lanes take in shared memory: an odd number, so that columns lie in different banks."""
        return self.lanes + 1 if self.lanes > 1 else 1

    def shared_bytes(self, layer: RecurrentLayer) -> int:
        gates = max(len(stage.gates) for stage in layer.cell.stages)
        numbers = gates * self.rows * self.columns * self.lane_room
        if self.is_resident:
            numbers += layer.cell.states * self.rows * layer.state_shape[2]
        return numbers * layer.inputs.itemsize


def choose(target: Target, layer: RecurrentLayer) -> Shape:
    """Threads for a layer on a device.

    Raises:
        CannotLower: the number of units is open, or one sequence is too large for a workgroup.
    """
    directions, batch, hidden = layer.state_shape
    if isinstance(hidden, Size):
        raise CannotLower("the number of units is open")
    gates = len({gate for stage in layer.cell.stages for gate in stage.gates})
    share = typical(batch) * directions // max(1, ROWS_SHARED * target.processors)
    rows = max(1, min(MOST_ROWS, share, typical(batch)))
    is_small = gates * hidden * hidden * layer.weights.itemsize <= RESIDENT_BYTES
    most = 1 << (min(1024, target.max_invocations).bit_length() - 1)
    if is_small if forced is None else forced:
        columns = 1 << (hidden - 1).bit_length()
        threads = most
        while columns <= threads:
            for count in range(rows, 0, -1):
                shape = Shape(True, count, columns, threads // columns, threads)
                if shape.lanes <= STEP_LANES and shape.shared_bytes(layer) <= target.shared_bytes:
                    return shape
            threads //= 2
    lanes, columns = min(STEP_LANES, most), STEP_COLUMNS
    while lanes * columns > most:
        columns //= 2
    while True:
        shape = Shape(False, rows, columns, lanes, lanes * columns)
        if shape.shared_bytes(layer) <= target.shared_bytes:
            return shape
        if rows == 1:
            raise CannotLower("a workgroup has too little shared memory for a recurrent layer's sums")
        rows -= 1


def recurrent_layer(build: VulkanBuilder, layer: RecurrentLayer) -> list[View | None]:
    """Emits a layer's dispatches; its results."""
    shape = choose(build.target, layer)
    steps = layer.inputs.shape[0]
    if layer.weights.strides[-1] != 1:
        layer = replace(layer, weights=build.contiguous(layer.weights))
    if not shape.is_resident:
        # A dispatch a step: their number cannot be open.
        steps = range(steps).stop
    memory = recurrent_memory(
        build, layer, alternations=0 if shape.is_resident else steps, stores=(layer.dtype,)
    )
    if not (steps and layer.state_shape[1] and layer.state_shape[2]):
        return memory.finish(build)
    for part, own in memory.parts(layer):
        stages = part.cell.stages
        if shape.is_resident:
            build.emit(_Kernel(build, part, own, shape, stages).dispatch())
            continue
        kernels = [_Kernel(build, part, own, shape, [stage]).dispatch() for stage in stages]
        turns = [(kernel, _swapped(kernel, own)) for kernel in kernels]
        for step in range(steps):
            for of_stage in turns:
                build.emit(_at_step(of_stage[step % 2], step))
    return memory.finish(build)


def _swapped(kernel: Dispatch, memory: RecurrentMemory) -> Dispatch:
    """The dispatch with the places of state 0 exchanged."""
    other = {id(memory.first): memory.second, id(memory.second): memory.first}
    return replace(
        kernel,
        arguments=tuple(other.get(id(argument), argument) for argument in kernel.arguments),
        reads=tuple(other.get(id(view), view) for view in kernel.reads),
        writes=tuple(other.get(id(view), view) for view in kernel.writes),
    )


def _at_step(kernel: Dispatch, step: int) -> Dispatch:
    """A step's dispatch, of the first one's: its number is the first word."""
    count = sum(not isinstance(argument, int | Size) for argument in kernel.arguments)
    return replace(kernel, arguments=(*kernel.arguments[:count], step, *kernel.arguments[count + 1 :]))


class _Kernel:
    """The kernel of some stages, as text."""

    def __init__(
        self,
        build: VulkanBuilder,
        layer: RecurrentLayer,
        memory: RecurrentMemory,
        shape: Shape,
        stages: Sequence[Stage],
    ) -> None:
        self.build, self.layer, self.memory, self.shape, self.stages = build, layer, memory, shape, stages
        self.writer: KernelWriter = build.writer()
        self.accumulator = layer.inputs.dtype

    def dispatch(self) -> Dispatch:
        """The launch of the first step, or of all."""
        writer, layer, shape = self.writer, self.layer, self.shape
        steps, batch, directions, _, hidden = layer.inputs.shape
        writer.word("step", 0)
        writer.word("steps", steps)
        writer.word("inner", hidden)
        writer.constant(batch, "BATCH")
        width = 4 if aligned(layer.weights, hidden, layer.weights.strides[:-1]) else 1
        numbers = {
            "HIDDEN": hidden,
            "ROWS": shape.rows,
            "COLUMNS": shape.columns,
            "LANES": shape.lanes,
            "LANE_ROOM": shape.lane_room,
            "THREADS": shape.threads,
            "WIDTH": width,
            "ITEMS": -(-shape.rows * shape.columns // shape.threads),
            "STATES_CARRIED": layer.cell.carried,
        }
        gates = max(len(stage.gates) for stage in self.stages)
        reversed_ = " || ".join(f"direction == {d}" for d, is_so in enumerate(layer.is_reversed) if is_so)
        text = [
            f"typealias Accumulator = {compute_type(self.accumulator)};",
            multiply_add(self.accumulator),
            *(f"static const int {name} = {value};" for name, value in numbers.items()),
            f"static const bool IS_RESIDENT = {'true' if shape.is_resident else 'false'};",
            f"groupshared Accumulator shared_partials[{gates} * ROWS * COLUMNS * LANE_ROOM];",
            f"groupshared Accumulator shared_states[{layer.cell.states if shape.is_resident else 0} "
            "* ROWS * HIDDEN + 1];",
            f"bool is_reversed(int direction) {{ return {reversed_ or 'false'}; }}",
            f"static const int GATES[{len(self.stages)}] = {{ "
            f"{', '.join(str(len(stage.gates)) for stage in self.stages)} }};",
        ]
        writer.text("\n".join(text))
        writer.math()
        for number, stage in enumerate(self.stages):
            writer.text(self._stage(number, stage, width))
            named = template("recurrent_stage").replace("GATES_STAGE", f"GATES[{number}]")
            writer.text(named.replace("STAGE", str(number)))
        writer.text(self._frame())
        writer.text(template("recurrent"))
        groups = (
            1 if shape.is_resident else -(-hidden // shape.columns),
            -(-batch // shape.rows),
            directions,
        )
        kind = "all steps" if shape.is_resident else "one step"
        return writer.finish(
            "recurrent",
            groups,
            variant=f"{kind}, {shape.rows} rows, {shape.columns} units, {shape.lanes} lanes, {width} wide",
            reason=f"{steps} steps, batch {batch}, {directions} directions, {hidden} units",
        )

    def _frame(self) -> str:
        """What calls the stages, and reads and writes states at a resident kernel's begin and end."""
        calls = [
            f"    stage_{number}(thread, direction, first_row, first_unit, t);"
            for number in range(len(self.stages))
        ]
        loads, stores = [], []
        if self.shape.is_resident:
            for which, view in enumerate(self._carried()):
                at = self.writer.offset(("direction", "row", "unit"), view.strides)
                loaded = load_expression(self.writer.read(view), at, view.dtype)
                loads.append(f"    if (which == {which}) return {loaded};")
                stores.append(
                    f"    if (which == {which}) {self.writer.write(view)}[{at}] = "
                    f"{store_expression('x', view.dtype)};"
                )
        return "\n".join(
            [
                "void stages(int thread, int direction, int first_row, int first_unit, int t)",
                "{",
                *calls,
                "}",
                "Accumulator state(int which, int direction, int row, int unit)",
                "{",
                *loads,
                "    return Accumulator(0);",
                "}",
                "void state_out(int which, int direction, int row, int unit, Accumulator x)",
                "{",
                *stores,
                "}",
            ]
        )

    def _carried(self) -> list[View]:
        return [self.memory.first, *self.memory.others[: self.layer.cell.carried - 1]]

    def _stage(self, number: int, stage: Stage, width: int) -> str:
        writer, shape = self.writer, self.shape
        weights = self.layer.weights
        pointer = writer.read(weights, width=width)
        d, g, u, _ = weights.strides
        steps = (d // width, g // width, u // width)
        at = writer.offset(("direction", f"which_{number}[gate]", "unit"), steps)
        if width > 1:
            at += f" + k / {width}"
        else:
            at += " + k"
        gates = ", ".join(map(str, stage.gates))
        text = [
            f"static const int which_{number}[{len(stage.gates)}] = {{ {gates} }};",
            f"vector<Accumulator, WIDTH> weights_{number}(int direction, int gate, int unit, int k)",
            f"{{ int at = {at}; return {load_vector(pointer, 'at', weights, width)}; }}",
            f"Accumulator source_{number}(int direction, int first_row, int row, int k)",
        ]
        if shape.is_resident:
            text.append(f"{{ return shared_states[({stage.source} * ROWS + row) * HIDDEN + k]; }}")
        else:
            view = self._state(stage.source)
            place = writer.offset(("direction", "min(first_row + row, BATCH - 1)", "k"), view.strides)
            text.append(f"{{ return {load_expression(writer.read(view), place, view.dtype)}; }}")
        return "\n".join([*text, *self._given(number, stage), *self._finish(number, stage)])

    def _state(self, which: int) -> View:
        """Where a state is read from."""
        return self.memory.first if which == 0 else self.memory.others[which - 1]

    def _is_given(self, operand: Operand) -> bool:
        """Whether an operand comes from memory, and is asked for before the sums."""
        if operand.kind is OperandKind.STATE:
            return not self.shape.is_resident
        return operand.kind not in (OperandKind.SUM, OperandKind.STEP)

    def _given(self, number: int, stage: Stage) -> list[str]:
        fields, loads = [], []
        for at, operand in enumerate(stage.operands):
            if not self._is_given(operand):
                continue
            kind = "int" if operand.kind is OperandKind.LENGTH else "Accumulator"
            fields.append(f"    {kind} x{at};")
            loads.append(f"    made.x{at} = {self._load(operand)};")
        return [
            f"struct Given_{number}",
            "{",
            *(fields or ["    int nothing;"]),
            "};",
            f"Given_{number} given_{number}(int direction, int row, int unit, int t)",
            "{",
            f"    Given_{number} made;",
            *(loads or ["    made.nothing = 0;"]),
            "    return made;",
            "}",
        ]

    def _load(self, operand: Operand) -> str:
        writer, layer = self.writer, self.layer
        if operand.kind is OperandKind.INPUT:
            view = layer.inputs
            gate = replace(view, offset=view.offset + operand.index * view.strides[3])
            step, row, direction, _, unit = view.strides
            at = writer.offset(("t", "row", "direction", "unit"), (step, row, direction, unit))
            # One pointer for all gates.
            at += f" + {writer.constant(operand.index * view.strides[3])}" if operand.index else ""
            return load_expression(writer.read(view), at, gate.dtype)
        if operand.kind is OperandKind.VECTOR:
            view = layer.vectors[operand.index]
            at = writer.offset(("direction", "unit"), view.strides)
        elif operand.kind is OperandKind.STATE:
            view = self._state(operand.index)
            at = writer.offset(("direction", "row", "unit"), view.strides)
        else:
            assert layer.lengths is not None
            view = layer.lengths
            at = writer.offset(("row",), view.strides)
        return load_expression(writer.read(view), at, view.dtype)

    def _finish(self, number: int, stage: Stage) -> list[str]:
        writer, shape = self.writer, self.shape
        operands = []
        for place, operand in enumerate(stage.operands):
            if self._is_given(operand):
                operands.append(f"given.x{place}")
            elif operand.kind is OperandKind.SUM:
                gate = stage.gates.index(operand.index)
                operands.append(f"shared_partials[(({gate} * ROWS + row) * COLUMNS + column) * LANE_ROOM]")
            elif operand.kind is OperandKind.STEP:
                operands.append("t")
            else:
                operands.append(f"shared_states[({operand.index} * ROWS + row) * HIDDEN + unit]")
        results = [(target, x) for target, x in stage.results if target != OUTPUT or self.layer.has_output]
        statements, made = write_statements(writer, [value for _, value in results], operands)
        stores = []
        for (target, _), value in zip(results, made, strict=True):
            if target == OUTPUT:
                view = self.memory.output
                assert view is not None
                at = writer.offset(("t", "direction", "(first_row + row)", "unit"), view.strides)
            elif shape.is_resident:
                stores.append(f"    shared_states[({target} * ROWS + row) * HIDDEN + unit] = {value};")
                continue
            else:
                view = self.memory.second if target == 0 else self.memory.others[target - 1]
                at = writer.offset(("direction", "(first_row + row)", "unit"), view.strides)
            stores.append(f"    {writer.write(view)}[{at}] = {store_expression(value, view.dtype)};")
        return [
            f"void finish_{number}(int direction, int first_row, int row, int column, int unit, int t, "
            f"Given_{number} given)",
            "{",
            *statements,
            *stores,
            "}",
        ]
