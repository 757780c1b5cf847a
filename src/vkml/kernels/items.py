"""Kernels of elementwise work: a function that does all there is to one item, called by each thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from vkml.ir.size import typical
from vkml.kernels.spec import Dispatch
from vkml.kernels.writer import KernelWriter, grid

WORKGROUP = 256
COUNT = "ITEMS"
"""The constant that says how many items, of one or more elements each, a launch has."""
ELEMENT = "void element(int item)"
"""Of the function in a kernel's last part but one, which does all there is to one item."""


def finish_items(
    writer: KernelWriter,
    items: int,
    lines: Sequence[str],
    label: str,
    max_groups: int,
    variant: str,
    form: Hashable | None,
) -> Dispatch:
    """The launch of a kernel that does `lines` to each item.

    Args:
        writer: has what the lines name.
        items: how many there are.
        lines: of the item that is called ``item``.
        label: for profilers.
        max_groups: workgroups a grid dimension may have.
        variant: for people.
        form: see `KernelSpec.form`.
    """
    count = writer.constant(items, COUNT)
    across, rows = grid(-(-items // WORKGROUP), max_groups)
    across_name = writer.constant(across, "ACROSS") if rows > 1 else "0"
    writer.text("\n".join([ELEMENT, "{", f"    if (item >= {count}) return;", *lines, "}"]))
    writer.text(
        "\n".join(
            [
                f'[shader("compute")] [numthreads({WORKGROUP}, 1, 1)]',
                "void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)",
                "{",
                f"    element(int((group.x + group.y * {across_name}) * {WORKGROUP} + thread));",
                "}",
            ]
        )
    )
    return writer.finish(
        label, (across, rows, 1), variant=variant, reason="generated for these operators", form=form
    )


LEAST_THREADS = 1 << 17
"""That are left where each has several rows: half of what an H200 has at a time."""


def rows_a_thread(rows: int, others: int, fits: Callable[[int], bool]) -> int:
    """How many results below one another a thread has, which read some of the same: 8, 4, 2 or one.

    Args:
        rows: of results, of which the last threads leave out an eighth at most.
        others: how many results are in a row, of all such rows beside one another.
        fits: whether a thread may have so many.
    """
    height = typical(rows)
    for count in (8, 4, 2):
        blocks = -(-height // count)
        if 8 * count * blocks <= 9 * height and blocks * typical(others) >= LEAST_THREADS and fits(count):
            return count
    return 1
