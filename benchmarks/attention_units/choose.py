"""Which variants there are for a problem, and the rule that picks one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.attention_units.problems import Problem
from vkml.engine.devices import fragments_of
from vkml.kernels import attention_variants
from vkml.kernels.attention_variants import Extent, Variant, head_of, shapes_of, variant_of
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


def choose_backward(
    problem: Problem, fragments: Sequence[Fragment], processors: int
) -> tuple[Variant, Variant]:
    """The engine's choice for the gradients of queries, and of keys and values."""
    sizes = problem.batch, problem.heads, problem.queries, problem.keys, problem.head_size
    extent = Extent(*sizes, problem.is_causal, group=problem.group)
    of_queries, of_keys = (
        attention_variants.choose_gradients(extent, fragments[0], owner, processors)
        for owner in ("queries", "keys")
    )
    if of_queries is None or of_keys is None:
        raise ValueError(f"{problem.label}: no variant of the gradients fits")
    return of_queries, of_keys
