"""Which variants there are for a problem, and the rule that picks one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.attention_units.problems import Problem
from vkml.engine.devices import fragments_of
from vkml.kernels import attention_variants
from vkml.kernels.attention_variants import Extent, Shape, Variant, head_of, shapes_of, variant_of
from vkml.kernels.packed_weights import Fragment
from vkml.vulkan import DeviceInfo


def candidates(problem: Problem, info: DeviceInfo, processors: int) -> list[Variant]:
    """Every variant that the device runs, and what the best one owes to its slack and to the known layout."""
    fragments = fragments_of(info)
    head = head_of(problem.head_size)
    found = [variant_of(shape, fragments, head) for shape in shapes_of(problem.head_size)]
    best = choose(problem, fragments, processors)
    found += [replace(best, slack=0)]
    found += [replace(best, rows_in="shared", sub_rows=16, step=32, held_in="registers", stages=1)]
    return [each for each in found if each.shared_bytes(has_floats=False) <= info.limits.shared_memory_bytes]


def choose(
    problem: Problem, fragments: Sequence[Fragment], processors: int, *, has_floats: bool = False
) -> Variant:
    """The engine's choice."""
    extent = Extent(
        problem.batch,
        problem.heads,
        problem.queries,
        problem.keys,
        problem.head_size,
        problem.is_causal,
        has_floats,
    )
    found = attention_variants.choose(extent, fragments, processors)
    if found is None:
        raise ValueError(f"{problem.label}: no variant fits")
    return found


# Of queries and of keys, for heads of up to so many columns; not yet measured.
BACKWARD_SHAPES: dict[int, tuple[Shape, Shape]] = {
    64: (Shape(4, 32, 32), Shape(4, 32, 32, "scratch")),
    128: (Shape(8, 16, 32), Shape(8, 16, 32)),
    256: (Shape(4, 16, 16, "scratch"), Shape(4, 16, 16, "scratch")),
}


def choose_backward(problem: Problem, fragments: list[Fragment]) -> tuple[Variant, Variant]:
    """The variants for the gradients of queries, and of keys and values."""
    head = head_of(problem.head_size)
    shapes = next(each for bound, each in BACKWARD_SHAPES.items() if head <= bound)
    of_queries, of_keys = (variant_of(shape, fragments, head) for shape in shapes)
    return of_queries, of_keys
