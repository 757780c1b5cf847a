"""Recurrent machine code in guarded memory: sizes with tails, rows, parts of the units, both directions."""

from __future__ import annotations

import itertools
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from tests.cpu.native.harness import guarded, instruction_sets, require, run
from vkml.cpu.native import recurrent
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Expression, Step
from vkml.cpu.native.recurrent import SUM, RecurrentOperand, RecurrentStage, rows_at_once
from vkml.cpu.native.tiles import lanes_of

Array = np.ndarray[Any, Any]

PRODUCT_OF_GATES = Expression(
    5,
    (
        Step("add", (0, 2)),
        Step("add", (1, 3)),
        Step("tanh", (5,)),
        Step("tanh", (6,)),
        Step("multiply", (7, 8)),
        Step("add", (9, 4)),
        Step("constant", number=0.5),
        Step("multiply", (10, 11)),
    ),
    (12, 12),
)
"""State → ½ (tanh(sum 0 + input 0) · tanh(sum 1 + input 1) + number of the row)."""


def _expected(
    inputs: Array, weights: Array, state: Array, numbers: Array, is_reversed: list[bool]
) -> tuple[Array, Array]:
    """The output [steps, batch, directions, hidden] and the last state."""
    steps, batch, directions, _, hidden = inputs.shape
    output, state = np.zeros((steps, batch, directions, hidden)), state.astype(np.float64)
    for d, turns in enumerate(is_reversed):
        for t in range(steps)[:: -1 if turns else 1]:
            first, second = (
                inputs[t, :, d, g] + state[d] @ weights[d, g].T.astype(np.float64) for g in (0, 1)
            )
            state[d] = 0.5 * (np.tanh(first) * np.tanh(second) + numbers[:, None])
            output[t, :, d] = state[d]
    return output, state


@instruction_sets
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("batch", "directions"), [(1, 1), (2, 2), (13, 2)])
@pytest.mark.parametrize("hidden", [1, 3, 16, 40, 67])
def test_steps(instructions: InstructionSet, hidden: int, batch: int, directions: int, parts: int) -> None:
    require(instructions)
    rng = np.random.default_rng([hidden, batch])
    lanes, steps = lanes_of(instructions), 5
    panels = -(-hidden // lanes)
    parts = min(parts, panels)
    inputs, weights, state = (
        (rng.standard_normal(shape) * 0.5).astype(np.float32)
        for shape in (
            (steps, batch, directions, 2, hidden),
            (directions, 2, hidden, hidden),
            (directions, batch, hidden),
        )
    )
    numbers = rng.standard_normal(batch).astype(np.float32)
    is_reversed = [False, True][-directions:]
    wanted, last = _expected(inputs, weights, state, numbers, is_reversed)
    held = [
        guarded(np.ascontiguousarray(array), at_start=bool(position % 2))
        for position, array in enumerate(
            (
                state,
                np.full_like(state, np.nan),
                inputs,
                numbers,
                np.full(wanted.shape, np.nan, np.float32),
                recurrent.pack(weights, lanes),
            )
        )
    ]
    memories, arrays = zip(*held, strict=True)
    by_unit = {"unit": 1}
    layout = {"direction": batch * hidden, "row": hidden}
    operands = [
        RecurrentOperand(**layout, **by_unit),
        RecurrentOperand(**layout, **by_unit),
        RecurrentOperand(2 * hidden, directions * 2 * hidden, batch * directions * 2 * hidden, 1, hidden),
        RecurrentOperand(row=1),
        RecurrentOperand(hidden, directions * hidden, batch * directions * hidden, 1),
        RecurrentOperand(direction=panels * hidden * 2 * lanes, unit=hidden * 2),
        RecurrentOperand(**layout),
    ]
    stage = RecurrentStage(2, 6, 5, PRODUCT_OF_GATES, ((SUM, 0), (SUM, 1), (2, 0), (2, 1), (3, 0)), (1, 4))
    runs = [range(steps)] if parts == 1 else [range(step, step + 1) for step in range(steps)]
    for is_serial in (True, False):
        arrays[0][...] = state
        for steps_of_run in runs:
            launch = recurrent.recurrent(
                instructions,
                operands=[astuple(operand) for operand in operands],
                stages=[stage],
                swapped=(0, 1),
                sources=[6],
                is_reversed=is_reversed,
                batch=batch,
                hidden=hidden,
                first=steps_of_run.start,
                steps=len(steps_of_run),
                all_steps=steps,
                parts=parts,
            )
            assert len(launch.table) >= parts * directions
            first, second = arrays[:2] if steps_of_run.start % 2 == 0 else arrays[1::-1]
            given = [first, second, *arrays[2:], first]
            run(launch, given, serial=is_serial, parallel=not is_serial)
        np.testing.assert_allclose(arrays[4], wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(arrays[steps % 2], last, rtol=1e-4, atol=1e-5)
        for memory in memories:
            memory.check()


@instruction_sets
def test_rows_fit_the_registers(instructions: InstructionSet) -> None:
    registers = 32 if instructions is InstructionSet.AVX512 else 15
    for gates, batch in itertools.product((1, 2, 3, 4), (1, 2, 5, 64)):
        stage = RecurrentStage(gates, 0, 0, PRODUCT_OF_GATES, (), ())
        rows = rows_at_once(instructions, [stage], batch)
        assert 1 <= rows <= batch and (rows == 1 or rows * gates + gates + 1 <= registers)
