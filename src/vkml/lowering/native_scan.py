"""Running sums in machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.cpu.native.scan import SUMMED, running_sum
from vkml.ir.lowering import CannotLower
from vkml.kernels.views import View

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder


def running_sums(
    build: NativeBuilder, x: View, axis: int, *, is_exclusive: bool, is_reverse: bool
) -> list[View]:
    """Sums of all that lies before, along an axis; lanes lie along others whose elements are neighbours."""
    if x.dtype.storage.name not in SUMMED or not x.elements:
        raise CannotLower(f"a running sum of {x.dtype.name}, or of nothing, has no machine code")
    target = build.output(build.result())
    step = -1 if is_reverse else 1
    others = [at for at in range(len(x.shape)) if at != axis and x.shape[at] != 1]
    columns = 1
    # From the axis whose elements are neighbours outwards, as far as it is one run in both.
    for at in sorted(others, key=lambda at: abs(x.strides[at])):
        if x.strides[at] != columns or target.strides[at] != columns:
            break
        columns = columns * x.shape[at]
        others.remove(at)
    launch = build.launch(
        running_sum,
        outer=tuple(x.shape[at] for at in others),
        lines=x.shape[axis],
        columns=columns,
        x=(*(x.strides[at] for at in others), step * x.strides[axis]),
        result=(*(target.strides[at] for at in others), step * target.strides[axis]),
        dtype=x.dtype.storage.name,
        is_exclusive=is_exclusive,
        threads=build.threads,
    )
    build.enter(launch, [x], [target])
    return [target]
