"""Pad in all its modes, by index arithmetic: each output element computes the place it copies.

Of many elements a thread has several: all that it reads is under way before it writes the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import TensorType
from vkml.ir.lowering import CannotLower
from vkml.ir.size import typical
from vkml.kernels.moves import MANY, TOGETHER, WORKGROUP
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import storage_type

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder


@dataclass(frozen=True)
class _Axis:
    """Of the operand."""

    size: int
    stride: int
    begin: int
    """Elements before the first."""
    result: int
    """The result's size,"""
    target: int
    """and stride."""

    @property
    def is_padded(self) -> bool:
        return self.begin != 0 or self.size != self.result


def _merged(x: View, begins: Sequence[int], target: View) -> list[_Axis]:
    """The axes, with neighbours that nothing is added to, and that lie as one would in both, as one."""
    found: list[_Axis] = []
    given = zip(x.shape, x.strides, begins, target.shape, target.strides, strict=True)
    for is_padded, axes in itertools.groupby(itertools.starmap(_Axis, given), lambda axis: axis.is_padded):
        some = list(axes)
        if not is_padded:
            strides = [axis.stride for axis in some], [axis.target for axis in some]
            sizes, walks = collapse([axis.size for axis in some], strides)
            some = [_Axis(size, step, 0, size, to) for size, step, to in zip(sizes, *walks, strict=True)]
        found += some
    return found or [_Axis(1, 1, 0, 1, 1)]


def pad(
    build: VulkanBuilder, x: View, begins: Sequence[int], mode: str, fill: View | None, result: TensorType
) -> list[View]:
    """Adds elements round a tensor.

    Args:
        build: where the launch goes.
        x: any strides.
        begins: how many elements come before the first, for each axis.
        mode: constant, edge, reflect or wrap.
        fill: the one element that constant mode adds; None: zero.
        result: of x's rank, at least as large.
    """
    if not x.elements and mode != "constant":
        raise CannotLower(f"Pad of an empty tensor with mode {mode} has no kernel")
    target = build.output(result)
    writer = build.writer()
    source, sink = writer.read(x), writer.write(target)
    type_ = storage_type(x.dtype)
    axes = _merged(x, begins, target)
    rank = len(axes)
    lines = ["int rest = item;"]
    for number in range(rank - 1, 0, -1):
        size = writer.constant(axes[number].result)
        lines.append(f"int c{number} = rest % {size}; rest /= {size};")
    lines += ["int c0 = rest;", "bool is_inside = true;"]
    for number, axis in enumerate(axes):
        begin, size = writer.constant(axis.begin), writer.constant(axis.size)
        if not axis.is_padded:
            lines.append(f"int p{number} = c{number};")
            continue
        lines.append(f"int p{number} = c{number} - {begin};")
        if mode == "constant":
            lines.append(f"is_inside = is_inside && uint(p{number}) < uint({size});")
        elif mode == "edge":
            lines.append(f"p{number} = clamp(p{number}, 0, {size} - 1);")
        elif mode == "wrap":
            lines.append(f"p{number} = modulo(p{number}, {size});")
        else:
            lines.append(f"p{number} = modulo(p{number}, max(2 * {size} - 2, 1));")
            lines.append(f"p{number} = min(p{number}, max(2 * {size} - 2, 1) - p{number});")
            if axis.size == 1:
                lines.append(f"p{number} = 0;")
    place = writer.offset(tuple(f"p{number}" for number in range(rank)), tuple(axis.stride for axis in axes))
    lines += ["insides[i] = is_inside;", f"sources[i] = int({place});"]
    filler = "0" if fill is None else f"{writer.read(fill)}[0]"
    there = writer.offset(tuple(f"c{number}" for number in range(rank)), tuple(a.target for a in axes))
    lines.append(f"targets[i] = int({there});")
    # An operand of nothing has nothing to read.
    read = f"{source}[sources[i]]" if x.elements else f"{type_}(0)"
    together = TOGETHER if typical(math.prod(result.dims)) >= MANY else 1
    writer.constant(math.prod(result.dims), "TOTAL")
    across, high = writer.grid(-(-math.prod(result.dims) // (WORKGROUP * together)), build.target.max_groups)
    body = "\n        ".join(lines)
    writer.text(
        f"""
int modulo(int a, int b) {{ return a < 0 ? b - 1 - (-1 - a) % b : a % b; }}

[shader("compute")] [numthreads({WORKGROUP}, 1, 1)]
void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)
{{
    int first = int((group.x + group.y * ACROSS) * {WORKGROUP * together} + thread);
    if (first >= TOTAL) return;
    int sources[{together}];
    int targets[{together}];
    bool insides[{together}];
    {type_} values[{together}];
    [ForceUnroll] for (int i = 0; i < {together}; ++i)
    {{
        int item = min(first + i * {WORKGROUP}, TOTAL - 1);
        {body}
    }}
    [ForceUnroll] for (int i = 0; i < {together}; ++i)
    {{
        values[i] = {type_}({filler});
        if (insides[i]) values[i] = {read};
    }}
    [ForceUnroll] for (int i = 0; i < {together}; ++i)
        if (first + i * {WORKGROUP} < TOTAL) {sink}[targets[i]] = values[i];
}}
"""
    )
    build.emit(writer.finish("pad", (across, high, 1), variant=mode))
    return [target]
