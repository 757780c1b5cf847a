"""What a GPU with matrix units says of itself, for tests of rules."""

from __future__ import annotations

from vkml.kernels.fragment_layout import FragmentLayouts, Layout
from vkml.kernels.matrix_units import MATRIX_UNIT_NEEDS
from vkml.kernels.packed_weights import Fragment
from vkml.lowering.target import Target

MMA = Layout(((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), ((0, 1), (8, 0)))
"""Sums of 16 × 8: lanes in fours share a row and hold two of its columns, eight rows further two more."""
OPERAND = Layout(MMA.lanes, ((0, 1), (8, 0), (0, 8)))
FRAGMENTS = [Fragment(16, 8, 16, 32), Fragment(16, 16, 16, 32)]
WIDE = Layout(MMA.lanes, ((0, 1), (8, 0), (0, 8)))
LAYOUTS = {8: FragmentLayouts(OPERAND, MMA), 16: FragmentLayouts(OPERAND, WIDE)}
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
