"""Normalisations that products of few rows compute of the rows that they read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import dtypes
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size
from vkml.kernels.attention_masks import float_text
from vkml.kernels.row_spread import element_function
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target

MOST_ELEMENTS = 8192
"""Of the rows, which shared memory has to hold."""
MOST_STEPS = 16
"""Elements of a row that a thread keeps."""
RESIDENT_GROUPS = 8
"""Workgroups that a processor has at a time: what more of them computed again would be time of its own."""

forced: bool | None = None
"""For tests: whether also where a launch of its own is the faster."""


@dataclass(frozen=True)
class RowPrologue:
    """Rows (…, columns) normalised over trailing axes."""

    rows: View
    """Stands for the result, which nobody writes."""
    x: View
    axes: int
    """How many trailing axes of `x` make a row."""
    epsilon: float
    scale: View | None
    bias: View | None
    """Both expanded to the shape of `x`."""
    is_centred: bool

    def refusal(self, target: Target, a: View, threads: int, shared_bytes: int, groups: int) -> str:
        """Why a product does not compute these rows itself, or an empty string.

        Args:
            target: the device.
            a: what the product reads, (1, m, k).
            threads: of a workgroup.
            shared_bytes: that it has taken already.
            groups: workgroups.
        """
        batch, rows, length = a.shape
        if isinstance(length, Size) or isinstance(rows, Size):
            return "rows of open sizes"
        if batch != 1 or length != math.prod(self.x.shape[len(self.x.shape) - self.axes :]):
            return "rows that are not those of the product"
        if not a.is_contiguous or a.offset or a.elements != self.rows.elements:
            return "rows in another order"
        if arithmetic_type(self.x.dtype) != dtypes.FLOAT32 or arithmetic_type(a.dtype) != dtypes.FLOAT32:
            return f"rows of {self.x.dtype.name}"
        if "subgroup_shuffle" not in target.capabilities or threads % target.subgroup_size:
            return "subgroups that cannot add up"
        room = 4 * (rows * length + threads // target.subgroup_size)
        if rows * length > MOST_ELEMENTS or room + shared_bytes > target.shared_bytes:
            return f"{rows} × {length} elements"
        if length > MOST_STEPS * threads:
            return f"rows of {length} elements"
        if not forced and groups > RESIDENT_GROUPS * target.processors:
            return f"{groups} workgroups, each of which would compute them"
        return ""

    def declare(self, writer: KernelWriter, target: Target, a: View, threads: int) -> None:
        """Adds ``prepare_rows`` and ``load_a`` to a product's kernel, which has the number of rows as M."""
        length = a.shape[2]
        writer.need("subgroup_shuffle")
        lead = len(self.x.shape) - self.axes
        element_function(writer, "load_x", self.x, lead)
        for name, view, without in (("load_scale", self.scale, 1.0), ("load_bias", self.bias, 0.0)):
            if view is None:
                writer.text(f"float {name}(int row, int column) {{ return {without}; }}")
            else:
                element_function(writer, name, view, lead)
        writer.text(
            f"static const int LENGTH = {length};\n"
            f"static const int THREADS = {threads};\n"
            f"static const int SUBGROUP_LANES = {target.subgroup_size};\n"
            f"static const bool IS_CENTRED = {'true' if self.is_centred else 'false'};\n"
            f"static const float EPSILON = {float_text(self.epsilon)};"
        )
        writer.math()
        writer.text(template("row_prologue"))
        writer.text("Accumulator load_a(int batch, int m, int k) { return prepared_rows[m * LENGTH + k]; }")
