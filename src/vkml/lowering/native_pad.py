"""Pad in machine code: copies of the tensor and of what surrounds it, one axis after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vkml.ir import Constant
from vkml.ir.lowering import CannotLower
from vkml.kernels.views import View

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder


def pad(build: NativeBuilder, x: View, begins: Sequence[int], mode: str, fill: View | None) -> list[View]:
    """Adds elements round a tensor.

    Args:
        build: where the launches go.
        x: any strides.
        begins: how many elements come before the first, for each axis.
        mode: constant, edge, reflect or wrap.
        fill: the one element that constant mode adds; None: zero.
    """
    result = build.result()
    if mode == "constant" and (fill is None or fill.dtype != x.dtype):
        # Models of old opsets state a float32 for every type.
        stated = np.zeros((), np.float32) if fill is None else build.contents(fill)
        if stated is None or not x.dtype.is_native:
            raise CannotLower("padding with a computed number of another type has no machine code")
        number = stated.reshape(()).astype(x.dtype.storage)
        fill = build.constant(Constant(x.dtype, (), number), "fill")
    target = build.output(result)
    # What is there already grows along one axis after another.
    inside, shape = list(begins), list(x.shape)
    if x.elements:
        build.copy(x, target.slice(inside, [1] * len(shape), shape))
    elif mode == "constant" and fill is not None:
        build.copy(fill.reshape((1,) * len(shape)) or fill, target)
        return [target]
    for axis, begin in enumerate(begins):
        size = shape[axis]
        last = begin + size - 1
        end = result.dims[axis] - last - 1
        if max(begin, end) > {"reflect": size - 1, "wrap": size}.get(mode, max(begin, end)):
            raise CannotLower(f"padding with more than there is, mode {mode}, has no machine code")
        for first, count, source in (
            (0, begin, {"edge": begin, "reflect": 2 * begin, "wrap": size}.get(mode, 0)),
            (last + 1, end, {"edge": last, "reflect": last - 1, "wrap": begin}.get(mode, 0)),
        ):
            if not count:
                continue

            def along(here: int, others: Sequence[int], axis: int = axis) -> list[int]:
                return [here if at == axis else each for at, each in enumerate(others)]

            slab = target.slice(along(first, inside), [1] * len(shape), along(count, shape))
            if mode == "constant":
                assert fill is not None
                build.copy(replace(fill, shape=(1,) * len(shape), strides=(0,) * len(shape)), slab)
                continue
            step = along(-1 if mode == "reflect" else 1, [1] * len(shape))
            taken = along(1 if mode == "edge" else count, shape)
            build.copy(target.slice(along(source, inside), step, taken), slab)
        inside[axis], shape[axis] = 0, result.dims[axis]
    return [target]
