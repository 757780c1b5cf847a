"""Which elements of a matrix unit's fragment each lane holds, asked of the device."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt

from vkml.dataclasses import dataclass
from vkml.kernels.packed_weights import MATRIX_UNIT_NEEDS, Fragment
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, template

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
    """Of a product's left operand, of its sums and, where that is a formula of bits, of its right operand."""

    a: Layout
    sums: Layout
    b: Layout | None = None

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


def layouts_of(found: npt.NDArray[np.int32], fragment: Fragment) -> FragmentLayouts | None:
    """The layouts, from what the launch of `ask_layouts` wrote; None where they are no formulas of bits."""

    def layout(part: npt.NDArray[np.int32], columns: int) -> Layout | None:
        numbers = part.reshape(-1, fragment.lanes).astype(np.int64)
        return layout_of(np.stack(np.divmod(numbers, columns), axis=-1))

    operands = fragment.m * fragment.k
    a = layout(found[:operands], fragment.k)
    sums = layout(found[operands : operands + fragment.m * fragment.n], fragment.n)
    b = layout(found[operands + fragment.m * fragment.n :], fragment.n)
    return FragmentLayouts(a, sums, b) if a is not None and sums is not None else None


def ask_layouts(result: View, fragment: Fragment, push_bytes: int) -> Dispatch:
    """The launch that writes which elements of the left operand, of the sums and of the right operand each
    lane holds, as int32.

    A lane that holds more elements than its share leaves some out, and a device whose lanes do has none of
    the layouts that `layouts_of` finds.
    """
    writer = KernelWriter(push_bytes)
    numbers = {
        "FRAGMENT_M": fragment.m,
        "FRAGMENT_N": fragment.n,
        "FRAGMENT_K": fragment.k,
        "LANES": fragment.lanes,
        "FOUND": writer.write(result),
    }
    writer.need(*MATRIX_UNIT_NEEDS)
    writer.text("\n".join(f"#define {name} {value}" for name, value in numbers.items()))
    writer.text(template("fragment_layout"))
    return writer.finish("fragment_layout", (1, 1, 1), subgroup_size=fragment.lanes)
