"""The first few elements of rows in order: chunks are thinned to what may be among them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import DType
from vkml.ir.size import Size, typical
from vkml.kernels.reduction import extreme
from vkml.kernels.row_spread import element_function, is_in_vectors, vector_function
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, compute_type, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

MOST_SELECTED = 256
"""Elements that are selected, not sorted."""
MOST_ELEMENTS = 32
"""Of a thread: bits of a word."""
LEAST_ELEMENTS = 16
"""Of a thread where there are fewer workgroups than a device has room for;"""
FILLED = 4
"""of which a processor should have so many."""


@dataclass(frozen=True)
class Chunks:
    """How rows are spread over workgroups."""

    threads: int
    elements: int
    """Of a thread, a power of two."""

    @property
    def size(self) -> int:
        """Elements of a chunk."""
        return self.threads * self.elements


forced: Chunks | None = None
"""What tests and benchmarks have taken instead of the rule's choice."""


def is_selected(target: Target, dtype: DType, length: int, k: int) -> bool:
    """Whether `select` takes rows of a length: of types of a word at most, of which few are wanted."""
    return (
        "subgroup_arithmetic" in target.capabilities
        and compute_type(dtype) in ("float", "int", "uint")
        and not isinstance(k, Size)
        and 0 < k <= min(MOST_SELECTED, target.max_invocations // 2)
        and 2 * k <= typical(length)
    )


def chunks_of(target: Target, rows: int, length: int, k: int, *, is_of_runs: bool) -> Chunks:
    """The rule: twice as many lanes as elements are wanted, and chunks that fill the device.

    Args:
        target: the device.
        rows: how many there are.
        length: of each.
        k: elements that are wanted.
        is_of_runs: whether rows are what chunks have left, which one workgroup takes if it can.
    """
    if forced is not None:
        return forced
    lanes, many, long = target.subgroup_size, typical(rows), typical(length)
    threads = lanes
    while threads < min(2 * k, target.max_invocations):
        threads *= 2
    while is_of_runs and threads * MOST_ELEMENTS < long and threads < target.max_invocations:
        threads *= 2
    elements = 1
    while elements < MOST_ELEMENTS and threads * elements < long:
        elements *= 2
    while (
        not is_of_runs
        and elements > LEAST_ELEMENTS
        and many * -(-long // (threads * elements)) < target.processors * FILLED
    ):
        elements //= 2
    return Chunks(threads, elements)


def select(
    build: VulkanBuilder,
    x: View,
    k: int,
    chunks: Chunks,
    *,
    is_largest: bool,
    keep: Callable[[KernelWriter], None],
    runs: int,
    is_of_runs: bool,
) -> None:
    """The `k` first elements of each chunk of rows, in order; what lies behind a row comes last.

    Args:
        build: where the launch goes.
        x: rows along the last axis.
        k: how many.
        chunks: of each row.
        is_largest: whether the greatest come first.
        keep: adds ``keep(row, run, i, place)``, by which an element at a place of a row is stored.
        runs: how many chunks a row has.
        is_of_runs: whether rows are what chunks have left.
    """
    lead, length = len(x.shape) - 1, x.shape[-1]
    rows = math.prod(x.shape[:lead])
    width = 4 if not is_of_runs and chunks.elements >= 4 and is_in_vectors(x, lead, 4) else 1
    lanes = build.target.subgroup_size
    writer = build.writer()
    writer.need("subgroup_arithmetic")
    writer.math()
    is_whole = not isinstance(length, Size) and length % chunks.size == 0
    numbers = {
        "K": k, "CHUNK": chunks.size, "THREADS": chunks.threads, "LANES": lanes, "WIDTH": width,
        "ELEMENTS": chunks.elements, "SHARE": -(-k * lanes // chunks.threads),
        "CAPACITY": max(2 * chunks.threads, 4 * k),
    }  # fmt: skip
    lines = [f"static const int {name} = {number};" for name, number in numbers.items()]
    for name, flag in (("IS_OF_RUNS", is_of_runs), ("IS_WHOLE", is_whole)):
        lines.append(f"static const bool {name} = {str(flag).lower()};")
    lines.append(f"typealias Value = {compute_type(x.dtype)};\ntypealias Values = vector<Value, {width}>;")
    writer.text("\n".join(lines))
    for name, number in (("LENGTH", length), ("RUNS", runs), ("TOTAL", rows * runs)):
        writer.constant(number, name)
    bits = writer.word("key_bits", 32), writer.word("place_bits", (chunks.size - 1).bit_length())
    writer.text(f"#define KEY_BITS {bits[0]}\n#define PLACE_BITS {bits[1]}")
    vector_function(writer, "load", x, lead, width)
    element_function(writer, "load_one", x, lead)
    writer.text(_key(x.dtype, is_largest))
    keep(writer)
    writer.text(template("selection"))
    across, high = writer.grid(rows * runs, build.target.max_groups)
    build.emit(
        writer.finish(
            "top_k",
            (across, high, 1),
            variant=f"chunks of {chunks.size}, {chunks.elements} elements a thread",
            reason=f"{k} of {rows} rows of {length}",
            subgroup_size=lanes,
        )
    )


def worst(dtype: DType, is_largest: bool) -> str:
    """Slang text of an element that none comes behind."""
    if dtype.is_float and not is_largest:
        return "NOT_A_NUMBER"
    return extreme(dtype, lowest=is_largest)


def _key(dtype: DType, is_largest: bool) -> str:
    """``key_of``: 32 bits in the order of elements, zeros of both signs equal, NaN above all."""
    type_ = compute_type(dtype)
    lines = {
        "float": [
            "    uint bits = asuint(x);",
            "    bits = bits == 0x80000000u ? 0u : bits;",
            "    uint key = bits ^ (uint(int(bits) >> 31) | 0x80000000u);",
            "    key = is_nan(x) ? 0xffffffffu : key;",
        ],
        "int": ["    uint key = uint(x) ^ 0x80000000u;"],
        "uint": ["    uint key = x;"],
    }[type_]
    return "\n".join(
        [f"uint key_of({type_} x)", "{", *lines, f"    return {'key' if is_largest else '~key'};", "}"]
    )
