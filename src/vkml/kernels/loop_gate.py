"""The kernel behind each trip of a loop whose end the device finds."""

from __future__ import annotations

import struct

from vkml.kernels.spec import KernelSpec, KernelText
from vkml.kernels.writer import template

OVER_BY_CONDITION = 1
OVER_BY_COUNT = 2
_FORMAT = struct.Struct("<4Qi4x")


def gate_kernel() -> KernelSpec:
    """See loop_gate.slang."""
    fields = (
        *((("uint*", name)) for name in ("condition", "control", "switches", "report")),
        ("int", "words"),
        ("int", "unused"),
    )
    definitions = (
        f"#define OVER_BY_CONDITION {OVER_BY_CONDITION}",
        f"#define OVER_BY_COUNT {OVER_BY_COUNT}",
    )
    text = KernelText((), fields, definitions, (template("loop_gate"),), uses_math=False)
    return KernelSpec("the end of a trip", text, (), _FORMAT.size)


def gate_arguments(condition: int, control: int, switches: int, report: int, words: int) -> bytes:
    """Its push constants: addresses, and how many words `switches` has."""
    return _FORMAT.pack(condition, control, switches, report, words)
