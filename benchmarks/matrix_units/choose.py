"""Which variants there are for a problem on a device, and the rule that picks one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.matrix_units.launch import Plan
from benchmarks.matrix_units.problems import Problem
from benchmarks.matrix_units.variants import Variant
from vkml.kernels.packed_weights import Fragment
from vkml.vulkan import DeviceInfo

SUMS_A_LANE = 128
"""fp32 sums a lane may hold: half the registers of a GPU whose lanes have 255."""
SHARED_BYTES = 49152
"""Of a multiprocessor's shared memory, as NVIDIA's driver gives it to Vulkan."""
REGISTERS = 65536
"""Of a multiprocessor."""
OTHER_REGISTERS = 100
"""What a lane needs beside its sums."""


@dataclass(frozen=True)
class Tile:
    """A variant worth having, with what the rule knows of it (fitted to 1655 figures of two H200s)."""

    source: str
    sub_m: int
    sub_n: int
    down: int
    across: int
    slices: int
    step_k: int
    stages: int
    ahead: int
    step: float
    """Microseconds a step of k where a multiprocessor holds as many workgroups as fit."""
    least: float
    """The share of `step` that is left where it holds only one of them."""

    def variant(self, fragment: Fragment) -> Variant:
        return Variant(
            fragment,
            self.sub_m * self.down,
            self.sub_n * self.across,
            self.sub_m,
            self.sub_n,
            a=self.source,
            slices=self.slices,
            step_k=self.step_k,
            stages=self.stages,
            ahead=math.gcd(self.ahead, max(1, self.step_k // fragment.k)),
        )


TILES = (
    Tile("rows", 64, 64, 1, 8, 1, 32, 2, 2, 0.826, 0.50),
    Tile("rows", 48, 64, 1, 4, 1, 32, 2, 2, 0.833, 0.78),
    Tile("rows", 64, 32, 1, 4, 1, 32, 2, 2, 0.925, 0.63),
    Tile("rows", 64, 32, 1, 2, 2, 64, 2, 4, 0.723, 0.50),
    Tile("rows", 32, 64, 1, 2, 2, 64, 2, 2, 1.216, 0.77),
    Tile("rows", 32, 32, 1, 4, 1, 64, 2, 4, 0.916, 0.64),
    Tile("rows", 32, 32, 1, 4, 2, 64, 2, 4, 0.702, 0.50),
    Tile("rows", 32, 32, 1, 2, 2, 64, 2, 4, 0.797, 0.81),
    Tile("rows", 32, 32, 1, 2, 4, 64, 2, 4, 0.872, 0.50),
    Tile("rows", 16, 32, 1, 2, 4, 64, 2, 4, 0.950, 0.72),
    Tile("blocks", 64, 64, 1, 4, 1, 32, 2, 1, 0.813, 0.87),
    Tile("blocks", 64, 32, 1, 4, 1, 32, 2, 2, 0.720, 0.82),
    Tile("windows", 64, 64, 1, 4, 1, 32, 2, 2, 1.420, 0.67),
    Tile("windows", 48, 64, 1, 4, 1, 32, 2, 2, 0.982, 0.82),
    Tile("windows", 64, 32, 1, 4, 1, 32, 2, 2, 1.205, 0.53),
    Tile("windows", 64, 32, 1, 4, 1, 64, 2, 4, 1.317, 0.72),
    Tile("windows", 64, 32, 2, 2, 1, 64, 1, 2, 1.971, 0.71),
    Tile("windows", 64, 32, 1, 2, 2, 64, 2, 4, 1.296, 0.50),
    Tile("windows", 32, 32, 1, 4, 1, 64, 2, 4, 0.962, 0.77),
    Tile("windows", 32, 32, 1, 4, 2, 64, 2, 4, 0.804, 0.50),
    Tile("windows", 16, 32, 1, 2, 4, 64, 2, 4, 1.028, 0.72),
    Tile("half_windows", 64, 64, 1, 4, 1, 32, 2, 2, 1.001, 0.72),
    Tile("half_windows", 48, 64, 1, 4, 1, 64, 1, 2, 1.417, 0.80),
    Tile("half_windows", 64, 32, 1, 4, 1, 32, 2, 2, 0.838, 0.63),
    Tile("half_windows", 64, 32, 2, 2, 1, 64, 1, 2, 1.194, 0.69),
    Tile("half_windows", 64, 32, 1, 2, 2, 64, 2, 4, 0.718, 0.50),
    Tile("half_windows", 32, 32, 1, 4, 1, 64, 1, 4, 0.782, 0.80),
    Tile("half_windows", 32, 32, 1, 4, 2, 64, 2, 4, 0.538, 0.50),
    Tile("half_windows", 32, 32, 1, 2, 4, 64, 2, 4, 0.852, 0.50),
    Tile("half_windows", 16, 32, 1, 2, 4, 64, 2, 4, 0.853, 0.76),
)
"""Nearly all give every subgroup a column of the tile, so that no fragment of B is read twice."""

LAUNCH = 1.9
"""Microseconds: a dependent dispatch,"""
WAVE = 2.0
"""the start and the end of a workgroup,"""
SPLIT = 2.1
"""the last arriver's wait,"""
PART = 1.0
"""and its addition of 16384 sums."""
CONVERTED = 3.9e6
"""Bytes that the packing pass moves in a microsecond."""


def processors_of(info: DeviceInfo) -> int:
    """Multiprocessors, which Vulkan does not tell: an H200's until a capability says so; software has one."""
    return 1 if info.is_software else 132


def sources_of(problem: Problem) -> tuple[str, ...]:
    """The forms in which A may be read."""
    if problem.window is None:
        return ("rows", "blocks")
    return ("half_windows",) if problem.is_a_half else ("windows",)


def variants_of(problem: Problem, fragment: Fragment) -> dict[Tile, Variant]:
    """All variants that can compute a problem."""
    sources = sources_of(problem)
    made = {tile: tile.variant(fragment) for tile in TILES if tile.source in sources}
    return {tile: variant for tile, variant in made.items() if is_possible(variant, problem)}


def is_possible(variant: Variant, problem: Problem) -> bool:
    """Whether a variant holds together, fits common limits and can read the problem's A."""
    try:
        variant.check()
    except ValueError:
        return False
    if problem.window is not None and problem.window.channels % variant.step_k:
        return False
    sums = variant.sub_m * variant.sub_n // variant.fragment.lanes
    return sums <= SUMS_A_LANE and variant.shared_bytes <= SHARED_BYTES and variant.threads <= 512


def tiles_of(problem: Problem, variant: Variant) -> int:
    """Workgroups of a product that is not split."""
    across = -(-problem.n // variant.tile_n)
    return problem.batch * -(-problem.m // variant.tile_m) * across


def splits_of(problem: Problem, variant: Variant, processors: int) -> list[int]:
    """Numbers of ranges of K that fill the device once or twice."""
    tiles = tiles_of(problem, variant)
    most = max(1, problem.k // (variant.step_k * variant.slices * 2))
    found = {1}
    for resident in (processors, 2 * processors):
        found.add(max(1, min(most, resident // tiles, 16)))
    return sorted(found)


def candidates(problem: Problem, fragment: Fragment, processors: int) -> dict[Plan, float]:
    """The plans there are, and the estimate of each in microseconds."""
    return {
        Plan(variant, splits): estimate(problem, tile, variant, splits, processors)
        for tile, variant in variants_of(problem, fragment).items()
        for splits in splits_of(problem, variant, processors)
    }


def choose(problem: Problem, fragment: Fragment, processors: int) -> Plan:
    """The plan with the least estimate.

    Raises:
        ValueError: no variant can compute the problem.
    """
    found = candidates(problem, fragment, processors)
    if not found:
        raise ValueError(f"no variant for {problem} with fragments {fragment}")
    return min(found, key=lambda plan: found[plan])


def estimate(problem: Problem, tile: Tile, variant: Variant, splits: int, processors: int) -> float:
    """Microseconds: workgroups run in waves of as many as fit on all multiprocessors; the last is sparse."""
    sums = variant.sub_m * variant.sub_n // variant.fragment.lanes
    by_registers = REGISTERS // (min(255, sums + OTHER_REGISTERS) * variant.threads)
    resident = max(1, min(by_registers, SHARED_BYTES // variant.shared_bytes))
    groups = tiles_of(problem, variant) * splits
    steps = math.ceil(math.ceil(problem.k / variant.step_k) / (splits * variant.slices))
    waves, rest = divmod(groups, processors * resident)
    time = LAUNCH + waves * (WAVE + steps * tile.step)
    if rest:
        share = -(-rest // processors) / resident
        time += WAVE + steps * tile.step * max(share, tile.least)
    if splits > 1:
        time += SPLIT + PART * splits * variant.tile_m * variant.tile_n / 16384
    if variant.a == "blocks":
        time += LAUNCH + 6 * problem.a_elements / CONVERTED
    return time
