"""What a GPU with matrix units says of itself, for tests of rules."""

from __future__ import annotations

from dataclasses import fields, replace

from vkml.kernels.fragment_layout import FragmentLayouts, Layout
from vkml.kernels.matrix_units import MATRIX_UNIT_NEEDS
from vkml.kernels.packed_weights import Fragment
from vkml.lowering.target import Target
from vkml.vulkan import Capabilities

MMA = Layout(((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), ((0, 1), (8, 0)))
"""Sums of 16 × 8: lanes in fours share a row and hold two of its columns, eight rows further two more."""
OPERAND = Layout(MMA.lanes, ((0, 1), (8, 0), (0, 8)))
FRAGMENTS = [Fragment(16, 8, 16, 32), Fragment(16, 16, 16, 32)]
WIDE = Layout(MMA.lanes, ((0, 1), (8, 0), (0, 8)))
RIGHT = Layout(((2, 0), (4, 0), (0, 1), (0, 2), (0, 4)), ((1, 0), (8, 0)))
"""Right operands of 16 × 8: lanes in fours share a column."""
LAYOUTS = {8: FragmentLayouts(OPERAND, MMA, RIGHT), 16: FragmentLayouts(OPERAND, WIDE)}
GPU = Target(
    frozenset(MATRIX_UNIT_NEEDS),
    shared_bytes=49152,
    max_invocations=1024,
    subgroup_size=32,
    processors=132,
    strict_fp32=False,
    fragment=FRAGMENTS[0],
    wide_fragment=FRAGMENTS[1],
    fragment_layouts=lambda fragment: LAYOUTS[fragment.n],
)


_LACKING = {"float8", "float8_cooperative_matrix", "portability_subset"}
_SUBGROUPS = ("basic", "vote", "arithmetic", "ballot", "shuffle", "shuffle_relative", "clustered", "quad")


def like_h200(strict_fp32: bool) -> Target:
    """With all that a large GPU has, fragments of bfloat16 and of bytes among it, in its sizes."""
    flags = {each.name for each in fields(Capabilities) if each.default is False} - _LACKING
    return replace(
        GPU,
        capabilities=frozenset({*flags, *(f"subgroup_{each}" for each in _SUBGROUPS)}),
        push_bytes=256,
        strict_fp32=strict_fp32,
        bfloat16_fragment=Fragment(16, 8, 16, 32, "bfloat16"),
        byte_fragment=Fragment(16, 8, 32, 32, "int8"),
    )
