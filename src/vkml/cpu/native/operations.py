"""Operations that steps of an expression may be, by name and the type that they compute in."""

from __future__ import annotations

from collections.abc import Mapping

from vkml.cpu.native import conversions, floats, integers
from vkml.cpu.native.operation import Operation

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("constant", "bool"): Operation(lambda code, target, inputs, spare: None, 0, cost=0),
    **{
        ("constant", dtype): Operation(lambda code, target, inputs, spare: None, 0, cost=0)
        for dtype in ("float32", "float64", "int32", "uint32", "int64", "uint64")
    },
    **floats.OPERATIONS,
    **integers.OPERATIONS,
    **conversions.OPERATIONS,
}
"""What steps may be. Conversions are listed by the type that they convert from."""


def operation(name: str, dtype: str = "float32") -> Operation:
    """The operation of that name in that type."""
    return OPERATIONS[name, dtype]
