"""``python -m benchmarks.launches``: the launches that a captured training step becomes, and what they move.

Nothing of the step runs: it is recorded and lowered for a device with so many processors. What a GPU's memory
takes for its bytes, and its barriers for its levels, is a lower bound of what is not products.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import vkml
from benchmarks.training import CASES, vkml_step
from vkml.cli.output import console, show_table, table
from vkml.engine import planning
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer
from vkml.lowering import vulkan
from vkml.lowering.plan import VulkanProgram

PRODUCTS = ("matmul", "conv", "gemm", "gemv", "sliced", "matrix", "depthwise", "pack")
"""How labels of kernels begin that compute rather than move."""
BYTES_A_SECOND = 4.3e12
LEVEL_SECONDS = 1.8e-6


@dataclass
class Moved:
    """Launches of one label."""

    launches: int = 0
    bytes: int = 0


class _Lowered(Exception):
    """Carries the step's program away from the capture, which would run it."""

    def __init__(self, program: VulkanProgram) -> None:
        super().__init__("lowered")
        self.program = program


def program_of(case: str, device: str, processors: int) -> VulkanProgram:
    """The program of a captured step, lowered for a device with so many processors."""
    lower = vulkan.lower

    def lowered(piece: Any, types: Any, constants: Any, target: Any, *more: Any) -> VulkanProgram:
        program = lower(piece, types, constants, replace(target, processors=processors), *more)
        if len(program.dispatches) > 16:  # others make its initial values
            raise _Lowered(program)
        return program

    [(x, y), *_] = CASES[case].batches()
    with mock.patch.object(planning, "lower", lowered):
        try:
            vkml_step(case, device, is_captured=True)(x, y)
        except _Lowered as found:
            return found.program
    raise RuntimeError(f"{case} did not become one program of {device}")


def bytes_of(dispatch: Dispatch) -> int:
    """What a launch reads and writes: elements that strides repeat count once, as does a buffer."""
    found: dict[Buffer, int] = {}
    for view in (*dispatch.reads, *dispatch.writes):
        dims = [size for size, stride in zip(view.shape, view.strides, strict=True) if stride != 0]
        moved = view.dtype.bytes_for(math.prod(dims))
        found[view.buffer] = min(found.get(view.buffer, 0) + moved, view.buffer.bytes)
    return sum(found.values())


def by_label(dispatches: Sequence[Dispatch]) -> dict[str, Moved]:
    """What launches move, by the labels of their kernels and the operators that they compute."""
    found: dict[str, Moved] = defaultdict(Moved)
    for dispatch in dispatches:
        label = dispatch.kernel.label
        operators = "+".join(dispatch.operators[:4]) + ("+…" if len(dispatch.operators) > 4 else "")
        moved = found[
            label if label in (operators, "+".join(dispatch.operators)) else f"{label} of {operators}"
        ]
        moved.launches += 1
        moved.bytes += bytes_of(dispatch)
    return dict(sorted(found.items(), key=lambda entry: -entry[1].bytes))


def main() -> None:
    """Prints a table a case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launches", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; resnet18_b64 by default"
    )
    parser.add_argument("--device", default="vulkan:0")
    parser.add_argument("--processors", type=int, default=132, help="of the device that it is lowered for")
    options = parser.parse_args()
    out = console()
    for case in options.cases or ["resnet18_b64"]:
        program = program_of(case, options.device, options.processors)
        rows = table("launches of", "launches", "MB", right=("launches", "MB"))
        counted = by_label(program.dispatches)
        for label, moved in counted.items():
            rows.add_row(label, str(moved.launches), f"{moved.bytes / 1e6:.1f}")
        show_table(out, rows, case)
        others = [moved for label, moved in counted.items() if not label.startswith(PRODUCTS)]
        launches, total = sum(entry.launches for entry in others), sum(entry.bytes for entry in others)
        levels = [
            level
            for level in program.levels
            if not any(launch.kernel.label.startswith(PRODUCTS) for launch in level)
        ]
        seconds = total / BYTES_A_SECOND + LEVEL_SECONDS * len(levels)
        out.print(
            f"{len(program.dispatches)} launches in {len(program.levels)} levels; without products "
            f"{launches} of {total / 1e9:.3f} GB and {len(levels)} levels: {seconds * 1e3:.2f} ms at "
            f"{BYTES_A_SECOND / 1e12} TB/s; activations take {program.arena_bytes / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    vkml.devices()
    main()
