"""Which variants there are for a problem, and the rule that picks one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.attention_units.problems import Problem
from benchmarks.attention_units.variants import Variant
from benchmarks.fragments import Fragment, fragments_of
from vkml.vulkan import DeviceInfo


@dataclass(frozen=True)
class Shape:
    """A variant without its fragment and head."""

    subgroups: int
    rows: int
    """Of a subgroup."""
    step: int
    held_in: str = "registers"
    stages: int = 1
    is_wide: bool = False
    """The fragment has 16 columns of sums instead of 8, where the device has both."""
    has_room_to_mask: bool = True
    """Registers do not run out where the last tile of keys is masked."""


# For heads of up to so many columns, the fastest of what was tried on an H200 first.
SHAPES: dict[int, tuple[Shape, ...]] = {
    64: (
        Shape(4, 32, 32, stages=2),
        Shape(4, 32, 48),
        Shape(8, 32, 64, is_wide=True),
        Shape(4, 16, 32, stages=2),
        Shape(4, 16, 64),
        Shape(2, 16, 64),
        Shape(2, 16, 32, stages=2),
    ),
    128: (
        Shape(8, 32, 64, "scratch", is_wide=True, has_room_to_mask=False),
        Shape(8, 16, 64),
        Shape(8, 32, 48, "scratch"),
        Shape(4, 32, 32, "scratch"),
        Shape(4, 16, 32),
        Shape(4, 16, 64),
        Shape(2, 16, 64),
    ),
    256: (
        Shape(8, 16, 32, "scratch"),
        Shape(8, 16, 16, "scratch", 2),
        Shape(4, 16, 16, "scratch"),
        Shape(4, 16, 32, "scratch"),
        Shape(8, 16, 32),
    ),
}


def head_of(head_size: int) -> int:
    """Columns that kernels compute for a head size."""
    return max(32, -(-head_size // 32) * 32)


def shapes_of(problem: Problem) -> tuple[Shape, ...]:
    """The rows of the table for the problem's heads."""
    head = head_of(problem.head_size)
    found = [shapes for bound, shapes in SHAPES.items() if head <= bound]
    if not found:
        raise ValueError(f"{problem.label}: heads of more than {max(SHAPES)} columns have no kernel")
    return found[0]


def variant_of(shape: Shape, fragments: list[Fragment], head: int) -> Variant:
    """The variant of a shape with the device's best fragment of the kind it asks for."""
    alike = [each for each in fragments if each.k == fragments[0].k]
    fragment = next((each for each in alike if (each.n == 16) == shape.is_wide), alike[0])
    return Variant(
        fragment, head, shape.rows, shape.step, shape.subgroups, shape.held_in, stages=shape.stages
    )


def candidates(problem: Problem, info: DeviceInfo, processors: int) -> list[Variant]:
    """Every variant that the device runs, and what the best one owes to its slack and to the known layout."""
    fragments = fragments_of(info)
    head = head_of(problem.head_size)
    found = [variant_of(shape, fragments, head) for shape in shapes_of(problem)]
    best = choose(problem, fragments, processors)
    found += [replace(best, slack=0)]
    found += [replace(best, rows_in="shared", sub_rows=16, step=32, held_in="registers", stages=1)]
    return [each for each in found if each.shared_bytes <= info.limits.shared_memory_bytes]


def choose(problem: Problem, fragments: list[Fragment], processors: int) -> Variant:
    """The variant that is expected to be the fastest: the first that occupies the whole device."""
    head = head_of(problem.head_size)
    is_masked = problem.is_causal or problem.keys % 64 != 0
    shapes = [each for each in shapes_of(problem) if each.has_room_to_mask or not is_masked]

    def workgroups(shape: Shape) -> int:
        return -(-problem.queries // (shape.subgroups * shape.rows)) * problem.heads * problem.batch

    full = (each for each in shapes if workgroups(each) >= processors)
    return variant_of(next(full, max(shapes, key=workgroups)), fragments, head)


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
