"""Which variants there are for a problem, and the rule that picks one."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.attention_units.layout import FragmentLayouts
from benchmarks.attention_units.problems import Problem
from benchmarks.attention_units.variants import Variant
from benchmarks.fragments import Fragment, fragments_of
from vkml.vulkan import DeviceInfo

# Subgroups, rows of each, keys of a step, where queries wait.
Shape = tuple[int, int, int, str]

SHAPES: dict[int, tuple[Shape, ...]] = {
    64: (
        (4, 32, 64, "registers"),
        (8, 32, 64, "registers"),
        (4, 32, 32, "registers"),
        (4, 64, 32, "scratch"),
        (8, 64, 32, "scratch"),
        (8, 16, 64, "registers"),
        (12, 16, 64, "registers"),
        (8, 32, 64, "scratch"),
    ),
    128: (
        (8, 32, 32, "scratch"),
        (8, 32, 64, "scratch"),
        (4, 32, 32, "scratch"),
        (8, 32, 32, "registers"),
        (4, 32, 32, "registers"),
        (8, 16, 64, "registers"),
        (12, 16, 64, "registers"),
        (6, 16, 32, "registers"),
        (8, 16, 64, "scratch"),
        (4, 16, 32, "registers"),
    ),
    256: (
        (8, 16, 32, "scratch"),
        (4, 16, 16, "scratch"),
        (8, 16, 16, "scratch"),
        (8, 16, 32, "registers"),
    ),
}


def head_of(head_size: int) -> int:
    """Columns that kernels compute for a head size."""
    return max(32, -(-head_size // 32) * 32)


def shapes_of(problem: Problem) -> tuple[Shape, ...]:
    """The rows of the table for the next larger head."""
    head = head_of(problem.head_size)
    return next(shapes for bound, shapes in SHAPES.items() if head <= bound)


def candidates(problem: Problem, info: DeviceInfo, layouts: FragmentLayouts | None) -> list[Variant]:
    """Every variant that the device runs."""
    fragments = fragments_of(info)
    head = head_of(problem.head_size)
    found = []
    for subgroups, rows, keys, queries in shapes_of(problem):
        base = Variant(fragments[0], head, rows, keys, subgroups, queries)
        found += [base, replace(base, is_late=True), replace(base, is_rolled=True)]
    first = Variant(
        fragments[0], head, *shapes_of(problem)[0][1:3], shapes_of(problem)[0][0], shapes_of(problem)[0][3]
    )
    found += [replace(first, slack=0)]
    found += [replace(first, fragment=each) for each in fragments[1:] if each.k == first.fragment.k]
    found += [replace(first, rows_in="shared", sub_rows=16, step_keys=32)]
    return [each for each in found if each.shared_bytes <= info.limits.shared_memory_bytes]


def choose(problem: Problem, fragment: Fragment, layouts: FragmentLayouts | None) -> Variant:
    """The variant that is expected to be the fastest."""
    subgroups, rows, keys, queries = shapes_of(problem)[0]
    return Variant(fragment, head_of(problem.head_size), rows, keys, subgroups, queries)
