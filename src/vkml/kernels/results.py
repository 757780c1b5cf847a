"""Where results of products go: through the epilogue, or into partial sums that a second pass adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.ir import TensorType
from vkml.ir.size import is_multiple
from vkml.kernels.epilogue import Epilogue
from vkml.kernels.pointwise import emit_store, emit_vector_store
from vkml.kernels.scalar_text import literal
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, compute_type

if TYPE_CHECKING:
    from vkml.kernels.gemm import Product
    from vkml.lowering.vulkan_builder import VulkanBuilder


def emit_finish(
    build: VulkanBuilder,
    writer: KernelWriter,
    product: Product,
    splits: int,
    outputs: list[View],
    epilogue: Epilogue | None,
) -> View | None:
    """Adds ``void finish(int batch, int split, int m, int n, Results x)``: it stores neighbours of a row.

    See `define_results` for how many.

    Returns:
        Where the sums of ranges of K go, for `add_partials`; None where there is one range, whose results
        go through the epilogue.
    """
    partials, accumulator = None, compute_type(product.accumulator)
    if splits > 1:
        partials = build.scratch(
            TensorType(product.accumulator, (splits, product.batch, product.m, product.n))
        )
        parts = partials.reshape((splits * product.batch, product.m, product.n))
        assert parts is not None
        store = define_results(writer, parts.shape, [parts], None, accumulator)
        place = f"split * {writer.constant(product.batch, 'BATCH')} + batch, m, n"
    else:
        store = define_results(writer, product.space, outputs, epilogue, accumulator)
        place = product.coordinates
    writer.text(f"void finish(int batch, int split, int m, int n, Results x) {{ {store}({place}, x); }}")
    return partials


def define_results(
    writer: KernelWriter,
    space: tuple[int, ...],
    outputs: list[View],
    epilogue: Epilogue | None,
    accumulator: str = "float",
    *,
    has_fours: bool = True,
) -> str:
    """Adds ``Results``, as many neighbours as a lane stores at once, and the function that does.

    They are four where rows are whole vectors. Where they are not, four would leave in as many stores, each
    to every fourth element of a line: then a lane has one, and a subgroup stores a part of a line.

    Args:
        writer: of a kernel whose results leave through shared memory.
        space: the index space of what is stored; neighbours lie along the last coordinate.
        outputs: views of what is stored,
        epilogue: by this.
        accumulator: Slang type of a result.
        has_fours: whether the kernel has results that are neighbours by fours.

    Returns:
        The function's name.
    """
    width = 4 if has_fours and is_multiple(space[-1], 4) else 1
    emit = emit_vector_store if width == 4 else emit_store
    emit(writer, space, outputs, epilogue, accumulator)
    writer.text(f"#define RESULT_WIDTH {width}\ntypealias Results = vector<{accumulator}, RESULT_WIDTH>;")
    return "store4" if width == 4 else "store"


def add_partials(
    build: VulkanBuilder,
    product: Product,
    partials: View,
    splits: int,
    outputs: list[View],
    epilogue: Epilogue | None,
) -> None:
    """The second pass of a split product: adds the parts and applies the epilogue."""
    writer = build.writer()
    accumulator = compute_type(product.accumulator)
    total = product.batch * product.m * product.n
    writer.constant(product.m, "M")
    writer.constant(product.n, "N")
    writer.constant(splits, "SPLITS")
    writer.constant(total, "TOTAL")
    for name, value in product.sizes:
        writer.constant(value, name)
    pointer = writer.read(partials)
    emit_store(writer, product.space, outputs, epilogue, accumulator)
    across, rows = writer.grid(-(-total // 128), build.target.max_groups)
    writer.text(
        "\n".join(
            [
                '[shader("compute")] [numthreads(128, 1, 1)]',
                "void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)",
                "{",
                "    int item = int((group.x + group.y * ACROSS) * 128 + thread);",
                "    if (item >= TOTAL) return;",
                f"    {accumulator} x = {literal(0, product.accumulator)};",
                f"    for (int split = 0; split < SPLITS; ++split) x += {pointer}[split * TOTAL + item];",
                "    int n = item % N;",
                "    int m = item / N % M;",
                "    int batch = item / N / M;",
                f"    store({product.coordinates}, x);",
                "}",
            ]
        )
    )
    build.emit(writer.finish("add_partials", (across, rows, 1), variant=f"{splits} parts"))
