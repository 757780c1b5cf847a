"""Which elements of a matrix unit's fragment each lane holds, asked of the device."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from benchmarks.fragments import Fragment
from benchmarks.launching import run_once
from benchmarks.source_text import defines_text, template
from vkml.kernels.compiler import compile_slang
from vkml.vulkan import Device, MemoryKind

Place = tuple[int, int]
"""Row and column."""


@dataclass(frozen=True)
class Layout:
    """The place of each element: the sum of what the bits set in its lane and in its number stand for."""

    lanes: tuple[Place, ...]
    elements: tuple[Place, ...]

    @property
    def slots(self) -> int:
        """Rows of which a lane holds elements."""
        return 1 << sum(row != 0 for row, _ in self.elements)

    @property
    def lane_masks(self) -> int:
        """The bits of a lane's number that lead to other elements of the same rows."""
        return sum(1 << bit for bit, (row, _) in enumerate(self.lanes) if row == 0)

    def place(self, lane: int, element: int) -> Place:
        bits = [p for b, p in enumerate(self.lanes) if lane >> b & 1]
        bits += [p for b, p in enumerate(self.elements) if element >> b & 1]
        return sum(row for row, _ in bits), sum(column for _, column in bits)


@dataclass(frozen=True)
class FragmentLayouts:
    """Of a product's left operand and of its sums."""

    a: Layout
    sums: Layout

    def moves(self, columns: int) -> tuple[Place, ...] | None:
        """Where each bit of an element of A lies in sums, or None where another lane has it.

        Args:
            columns: of a fragment of sums; several of them side by side become one operand.

        Returns:
            For each bit of the element's number the fragment and the element it stands for.
        """
        if self.a.lanes != self.sums.lanes:
            return None
        found = []
        for row, column in self.a.elements:
            if row == 0 and column >= columns:
                found.append((column // columns, 0))
            elif (row, column) in self.sums.elements:
                found.append((0, 1 << self.sums.elements.index((row, column))))
            else:
                return None
        return tuple(found)


def layout_of(places: npt.NDArray[np.int64]) -> Layout | None:
    """The layout that explains the places (elements, lanes, 2), or None where bits do not."""
    elements, lanes, _ = places.shape
    if any(count & (count - 1) for count in (elements, lanes)):
        return None

    def at(element: int, lane: int) -> Place:
        row, column = places[element, lane]
        return int(row), int(column)

    found = Layout(
        tuple(at(0, 1 << bit) for bit in range(lanes.bit_length() - 1)),
        tuple(at(1 << bit, 0) for bit in range(elements.bit_length() - 1)),
    )
    # Each bit moves along a row or a column; one that does not move at all would be a copy.
    if any((row == 0) == (column == 0) for row, column in found.lanes + found.elements):
        return None
    pairs = product(range(lanes), range(elements))
    return found if all(found.place(lane, e) == at(e, lane) for lane, e in pairs) else None


def find_layouts(device: Device, fragment: Fragment) -> FragmentLayouts | None:
    """Asks the device; None where its layouts are no formulas of bits."""
    m, n, k, lanes = fragment.m, fragment.n, fragment.k, fragment.lanes
    numbers = np.arange(max(m * k, m * n))
    halfs, floats, found = (
        device.allocate(size, MemoryKind.DEVICE, "layout")
        for size in (2 * numbers.size, 4 * numbers.size, 4 * (m * k + m * n))
    )
    device.upload(halfs, 0, numbers.astype(np.float16))
    device.upload(floats, 0, numbers.astype(np.float32))
    push = "struct Push { half* halfs; float* floats; float* found; };"
    source = "\n".join(
        [
            defines_text({"FRAGMENT_M": m, "FRAGMENT_N": n, "FRAGMENT_K": k, "LANES": lanes}),
            push,
            "[[vk::push_constant]] ConstantBuffer<Push> push;",
            template(__package__, "layout"),
        ]
    )
    pipeline = device.pipeline(
        compile_slang(source, "layout"), push_constant_bytes=24, subgroup_size=lanes, label="layout"
    )
    addresses = struct.pack("<3Q", halfs.address, floats.address, found.address)
    run_once(device, lambda recorder: recorder.dispatch(pipeline, addresses, 1))
    values = device.download(found).view(np.float32).astype(np.int64)
    for memory in (halfs, floats, found):
        memory.free()

    def layout(part: npt.NDArray[np.int64], columns: int) -> Layout | None:
        return layout_of(np.stack(np.divmod(part.reshape(-1, lanes), columns), axis=-1))

    a, sums = layout(values[: m * k], k), layout(values[m * k :], n)
    return FragmentLayouts(a, sums) if a is not None and sums is not None else None
