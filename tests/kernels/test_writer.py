"""What kernels are written with: the split of workgroups over a grid."""

from __future__ import annotations

import pytest

from vkml.kernels.writer import KernelWriter, grid


@pytest.mark.parametrize("most", [2, 7, 65535])
def test_a_grid_holds_all_workgroups_and_hardly_more(most: int) -> None:
    counts = {0, 1, 2, most - 1, most, most + 1, 2 * most, 2 * most + 1, most * most - 1, most * most}
    for count in sorted(count for count in counts if count <= most * most):
        across, rows = grid(count, most)
        assert 1 <= across <= most and 1 <= rows <= most
        assert count <= across * rows < max(count, 1) + rows


def test_a_kernel_knows_how_many_workgroups_lie_along_x() -> None:
    writer = KernelWriter()
    assert writer.grid(10, 4) == (4, 3)
    assert "const int ACROSS" in writer.finish("any", (4, 3, 1)).kernel.source
    assert writer.finish("any", (4, 3, 1)).kernel.constants == (4,)
