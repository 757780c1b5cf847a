"""Launches of products with few results, whose steps the threads of a workgroup share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir.dtypes import FLOAT32
from vkml.ir.size import typical
from vkml.kernels import gemm
from vkml.kernels.gemm import Product, aligned, load_vector
from vkml.kernels.pointwise import emit_store
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, compute_type, load_expression, multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

BLOCK = 4
"""Rows, columns and steps of what a thread fetches at a time."""
ALONG = 8
"""Neighbouring threads that share steps where memory runs along k: they fetch a line of 128 bytes."""


@dataclass(frozen=True)
class Shape:
    """How a workgroup is made up."""

    m: int
    n: int
    slices: int
    """Threads that share the steps of the same results."""
    unroll: int
    """Blocks of steps that a thread waits for together."""

    @property
    def threads(self) -> int:
        return self.m // BLOCK * self.n // BLOCK * self.slices

    def label(self) -> str:
        return f"{self.m}x{self.n} tile, {self.slices} slices of K, {self.unroll} blocks at a time"

    def fits(self, target: Target) -> bool:
        """Whether the device has room."""
        return self.threads <= target.max_invocations and self.shared_bytes <= target.shared_bytes

    @property
    def shared_bytes(self) -> int:
        return self.slices * self.m * self.n * 4


LEAST_STEPS, MOST_STEPS = 32, 1024
"""Of k: with fewer there is nothing to share, with more the threads of one workgroup are too few."""
WAVES = 2
"""Workgroups a processor, at most, for products that tiles of other kernels need not split;"""
SPLIT_WAVES = 3
"""and for those that they would, in two launches."""
MANY_STEPS = 1000
"""From here on, 32 threads share the steps; on an H200 16 are as fast below, 8 with many groups."""

forced: Shape | None = None
"""For tuning runs: what every product is launched with."""


def choose(target: Target, product: Product) -> Shape | None:
    """How workgroups are made up where threads had better share the steps; None where tiles are faster."""
    if forced is not None:
        return forced
    sizes = (product.batch, product.m, product.n, product.k)
    if gemm.forced is not None or target.processors == 1 or product.accumulator != FLOAT32:
        return None
    batch, m, n, k = (typical(size) for size in sizes)
    if not LEAST_STEPS <= k <= MOST_STEPS:
        return None
    is_split = gemm.ordinary_ranges(target, product) > 1
    # Of the larger ones that which fits: 256 by 784 results are 400 groups of 16 by 32, too many for
    # an H200, and 392 of 32 by 16.
    larger = min(((16, 32), (32, 16)), key=lambda sides: -(-m // sides[0]) * -(-n // sides[1]))
    for high, wide in ((16, 16), larger):
        groups = -(-m // high) * -(-n // wide) * batch
        is_larger = (high, wide) == larger
        if groups > (SPLIT_WAVES if is_split and is_larger else WAVES) * target.processors:
            continue
        if is_larger and not is_split:
            return None
        slices = 8 if groups > target.processors or k < 128 else 32 if k >= MANY_STEPS else 16
        shape = Shape(high, wide, slices, 2)
        if shape.fits(target):
            return shape
    return None


def shapes(target: Target, product: Product) -> list[Shape]:
    """All that a product of these sizes may be launched with; the nearest to what `choose` returns first."""
    sizes = (product.batch, product.m, product.n)
    if target.processors == 1 or product.accumulator != FLOAT32:
        return []
    batch, m, n = (typical(size) for size in sizes)
    if not LEAST_STEPS <= typical(product.k) <= MOST_STEPS:
        return []
    found = []
    for high, wide in ((16, 16), (16, 32), (32, 16)):
        groups = -(-m // high) * -(-n // wide) * batch
        if groups <= 2 * SPLIT_WAVES * target.processors:
            found += [Shape(high, wide, slices, 2) for slices in (16, 8, 32)]
    return [shape for shape in found if shape.fits(target)]


def launch(build: VulkanBuilder, product: Product, a: View, b: View, shape: Shape) -> list[View]:
    """Emits the product with the epilogue on offer; returns the views of its results."""
    epilogue, outputs = build.take_epilogue(product.result)
    accumulator = compute_type(product.accumulator)
    writer = build.writer()
    writer.constant(product.m, "M")
    writer.constant(product.n, "N")
    writer.word("steps", product.k)
    along = min(ALONG, shape.slices) if a.strides[2] == b.strides[1] == 1 else 1
    numbers = {
        "TILE_M": shape.m, "TILE_N": shape.n, "SLICES": shape.slices, "UNROLL": shape.unroll, "ALONG": along,
    }  # fmt: skip
    text = [f"typealias Accumulator = {accumulator};", multiply_add(product.accumulator)]
    text += [f"static const int {name} = {value};" for name, value in numbers.items()]
    writer.text("\n".join(text))
    _fetch(writer, "a", a, ("m", "k"), ("M", "push.steps"))
    _fetch(writer, "b", b, ("k", "n"), ("push.steps", "N"))
    for name, value in product.sizes:
        writer.constant(value, name)
    emit_store(writer, product.space, outputs, epilogue, accumulator)
    writer.text(
        f"void finish(int batch, int m, int n, Accumulator x)\n{{\n    store({product.coordinates}, x);\n}}"
    )
    writer.text(template("sliced"))
    groups = (-(-product.n // shape.n), -(-product.m // shape.m), product.batch)
    build.emit(
        writer.finish(
            product.label,
            groups,
            variant=shape.label(),
            reason=f"batch {product.batch}, M {product.m}, N {product.n}, K {product.k}"
            + (f"; not in fp16: {product.why_strict}" if product.why_strict else ""),
        )
    )
    return outputs


def _fetch(
    writer: KernelWriter, letter: str, view: View, names: tuple[str, str], ends: tuple[str, str]
) -> None:
    """Adds the block of an operand, and what fetches it.

    Args:
        writer: of the kernel.
        letter: "a" or "b".
        view: the operand, (batch, rows, columns).
        names: of the first row and column.
        ends: behind the last ones; beyond that of k there are zeros, beyond the other one anything.
    """
    batch, down, along = view.strides
    is_wide = along == 1 and aligned(view, view.shape[2], (batch, down))
    is_tall = not is_wide and down == 1 and aligned(view, view.shape[1], (batch, along))
    width = BLOCK if is_wide or is_tall else 1
    pointer = writer.read(view, width=width)
    if is_wide:
        place = writer.offset(("batch", "row"), (batch // width, down // width)) + f" + column / {width}"
    elif is_tall:
        place = writer.offset(("batch", "column"), (batch // width, along // width)) + f" + row / {width}"
    else:
        place = writer.offset(("batch", "row", "column"), (batch, down, along))
    step, free = ("row", "column") if names[0] == "k" else ("column", "row")
    end, other = ends if names[0] == "k" else ends[::-1]
    # A whole vector is inside or outside.
    last = BLOCK if free == ("column" if is_wide else "row" if is_tall else "") else 1
    if width == 1:
        found = f"vector<Accumulator, 1>(Accumulator({load_expression(pointer, place, view.dtype)}))"
    else:
        found = load_vector(pointer, f"({place})", view, width)
    row, column = (names[0], f"{names[1]} + line") if is_tall else (f"{names[0]} + line", names[1])
    outer, inner = ("column", "row") if is_tall else ("row", "column")
    writer.text(
        f"""
struct Block{letter.upper()}
{{
    vector<Accumulator, {width}> lines[4][{BLOCK // width}];
    Accumulator at(int row, int column)
    {{ return lines[{outer}][{inner} / {width}][{inner} % {width}]; }}
}};
Block{letter.upper()} fetch_{letter}(int batch, int {names[0]}, int {names[1]})
{{
    Block{letter.upper()} block;
    [ForceUnroll] for (int line = 0; line < 4; ++line)
        [ForceUnroll] for (int item = 0; item < {BLOCK // width}; ++item)
        {{
            int row = {row};
            int column = {column} + item;
            bool is_there = {step} < {end};
            {step} = is_there ? {step} : 0;
            {free} = min({free}, {other} - {last});
            vector<Accumulator, {width}> x = {found};
            block.lines[line][item] = is_there ? x : vector<Accumulator, {width}>(Accumulator(0));
        }}
    return block;
}}"""
    )
