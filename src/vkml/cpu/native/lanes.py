"""Loops over the lanes of vectors, for what vector instructions cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from vkml.cpu.native.assembler import RBX, RCX, RDX, RSP, Mem
from vkml.cpu.native.vectors import VectorCode


@contextmanager
def lane_by_lane(
    code: VectorCode, target: int, inputs: Sequence[int], lane: int
) -> Iterator[tuple[Mem, ...]]:
    """What is inside is done for each lane: it is given where the result goes, then where the inputs lie.

    It may change RAX, RCX and RDX, and moves the stack pointer by nothing.

    Args:
        code: receives the code.
        target: the register that holds the results afterwards; may be an input.
        inputs: registers.
        lane: bytes of a lane.
    """
    size = lane * code.width
    saved = (RBX, RCX, RDX)
    for register in saved:
        code.push(register)
    code.sub_immediate(RSP, len(inputs) * size)
    for position, register in enumerate(inputs):
        code.store(Mem(RSP, position * size), register, lane=lane)
    code.move_immediate(RBX, 0)
    start = code.here()
    places = [Mem(RSP, position * size, RBX, lane) for position in range(len(inputs))]
    yield places[0], *places
    code.add_immediate(RBX, 1)
    code.cmp_immediate(RBX, code.width)
    code.jump_if("ne", start)
    code.load(target, Mem(RSP), lane=lane)
    code.add_immediate(RSP, len(inputs) * size)
    for register in reversed(saved):
        code.pop(register)
