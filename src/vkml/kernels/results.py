"""Where results of products go: through the epilogue, at once or behind sums of ranges of K."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.ir import TensorType
from vkml.ir.size import is_multiple
from vkml.kernels import range_sums
from vkml.kernels.epilogue import Epilogue
from vkml.kernels.pointwise import emit_store, emit_vector_store
from vkml.kernels.scalar_text import literal
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, compute_type, template

if TYPE_CHECKING:
    from vkml.kernels.gemm import Product
    from vkml.lowering.vulkan_builder import VulkanBuilder


def emit_finish(
    build: VulkanBuilder,
    writer: KernelWriter,
    product: Product,
    splits: int,
    tile: tuple[int, int],
    threads: int,
    outputs: list[View],
    epilogue: Epilogue | None,
    *,
    is_measured: bool = True,
) -> View | None:
    """Adds ``void finish(int batch, int split, int m, int n, Results x)``: it stores neighbours of a row.

    See `define_results` for how many.

    Args:
        build: where the launch goes.
        writer: of the kernel.
        product: its sizes.
        splits: ranges of K.
        tile: rows and columns of results that a workgroup has,
        threads: and its threads.
        outputs: where results go,
        epilogue: by this.
        is_measured: see `range_sums.joins`.

    Returns:
        As `emit_ranges`; None where there is one range.
    """
    accumulator = compute_type(product.accumulator)
    if splits > 1:
        width = _define_width(writer, product.n, accumulator)
        # Nothing beside the array that fragments are loaded from: it has to begin at 0.
        word = "room[0].x", "uint"
        return emit_ranges(
            build,
            writer,
            product,
            splits,
            tile,
            threads,
            word,
            outputs,
            epilogue,
            width,
            is_measured=is_measured,
        )
    store = define_results(writer, product.space, outputs, epilogue, accumulator)
    writer.text(
        "void finish(int batch, int split, int m, int n, Results x)\n"
        f"{{ {store}({product.coordinates}, x); }}"
    )
    return None


def emit_ranges(
    build: VulkanBuilder,
    writer: KernelWriter,
    product: Product,
    splits: int,
    tile: tuple[int, int],
    threads: int,
    word: tuple[str, str],
    outputs: list[View],
    epilogue: Epilogue | None,
    width: int = 1,
    *,
    is_measured: bool = True,
) -> View | None:
    """Adds ``finish(batch, split, m, n, x)`` of a product split over ranges of K: it keeps each range's sums.

    Where `range_sums.joins` says so, the workgroup that comes last to a tile adds them up: ``JOINED`` is
    defined then, and the kernel calls ``join_tile`` of joined_ranges.slang behind all else.

    Args:
        build: where the launch goes.
        writer: of the kernel, which has the constant SPLITS.
        product: its sizes.
        splits: ranges of K.
        tile: rows and columns of results that a workgroup has,
        threads: and its threads.
        word: one of the kernel's shared memory that is not wanted any more, and its type.
        outputs: where results go,
        epilogue: by this.
        width: neighbours of a row that ``finish`` is given.
        is_measured: see `range_sums.joins`.

    Returns:
        Where the sums of the ranges are, for `add_partials`; None where they are joined.
    """
    dtype = product.accumulator
    type_, itemsize = compute_type(dtype), dtype.itemsize
    partials = build.scratch(TensorType(dtype, (splits, product.batch, product.m, product.n)))
    batches, rows, columns = map(writer.constant, (product.batch, product.m, product.n))
    is_joined = range_sums.joins(build.target, product, splits, tile, threads, is_measured=is_measured)
    pointer = writer.write(partials, width=width)
    at = f"((split * {batches} + batch) * {rows} + m) * {columns} + n"
    if width > 1:
        at = f"({at}) / {width}"
    if is_joined:
        store = f"storeCoherent<{width * itemsize}, MemoryScope.Device>({pointer} + ({at}), x);"
    elif width > 1:
        store = f"storeAligned<{width * itemsize}>({pointer} + ({at}), x);"
    else:
        store = f"{pointer}[{at}] = x;"
    writer.text(
        f"void finish(int batch, int split, int m, int n, {_neighbours(type_, width)} x)\n{{ {store} }}"
    )
    if not is_joined:
        return partials
    together = range_sums.neighbours(product, tile)
    emit = emit_vector_store if together == 4 else emit_store
    emit(writer, product.space, outputs, epilogue, type_)
    tiles = -(-product.m // tile[0]) * -(-product.n // tile[1]) * product.batch
    definitions = {
        "JOINED": "1",
        "JOIN_WIDTH": str(together),
        "JOIN_BYTES": str(together * itemsize),
        "RANGES_AT_ONCE": str(range_sums.at_once(splits)),
        "PARTIALS": writer.write(partials, width=together),
        "COUNTERS": writer.write(build.counters(tiles)),
        "JOINED_RANGE": f"({batches} * {rows} * {columns})",
        "JOINED_ROWS": rows,
        "JOINED_COLUMNS": columns,
        "JOIN_WORD": word[0],
    }
    writer.need(*range_sums.JOIN_NEEDS)
    writer.text(
        "\n".join(
            [
                *(f"#define {name} {value}" for name, value in definitions.items()),
                f"typealias Joined = {_neighbours(type_, together)};",
                f"typealias JoinWord = {word[1]};",
                "void store_joined(int batch, int m, int n, Joined x)",
                f"{{ {'store4' if together == 4 else 'store'}({product.coordinates}, x); }}",
                template("joined_ranges"),
            ]
        )
    )
    return None


def _neighbours(type_: str, width: int) -> str:
    return f"vector<{type_}, {width}>" if width > 1 else type_


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
    width = _define_width(writer, space[-1] if has_fours else 1, accumulator)
    emit = emit_vector_store if width == 4 else emit_store
    emit(writer, space, outputs, epilogue, accumulator)
    return "store4" if width == 4 else "store"


def _define_width(writer: KernelWriter, count: int, accumulator: str) -> int:
    """Adds ``Results`` of rows of so many results; how many neighbours these are."""
    width = 4 if is_multiple(count, 4) else 1
    writer.text(f"#define RESULT_WIDTH {width}\ntypealias Results = vector<{accumulator}, RESULT_WIDTH>;")
    return width


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
