"""Launches of attention of few rows, such as tokens': who reads which keys, and in how many passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size, typical
from vkml.ir.wording import counted
from vkml.kernels.attention import FEWEST_QUERIES, Attention
from vkml.kernels.attention_masks import adjusted_function, float_text
from vkml.kernels.attention_text import forwards
from vkml.kernels.gemm import aligned, load_vector
from vkml.kernels.pointwise import emit_store
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

WIDEST_HEAD = 256
MOST_ROWS = 8
"""Rows of a workgroup;"""
ROW_FLOATS = 64
"""and what a thread keeps of them, queries and sums of values: as much again is left for keys."""
MOST_SUBGROUPS = 16
"""Of a workgroup, joined one after the other: 512 threads where 32 are a subgroup. Half as many where
registers are short."""
LONE_THREADS = 64
"""Of a workgroup on a device whose subgroups cannot be asked for numbers."""
ONE_PASS_BYTES = 1 << 17
"""Of keys and values of a head, up to which a workgroup reads them in the time that a second pass takes."""
SPLIT_BYTES = 1 << 14
"""Of those for a workgroup, where there are two passes, at least."""
MOST_SPLITS = 64
MERGE_THREADS = 256


@dataclass(frozen=True)
class Variant:
    """How rows and keys are shared out."""

    rows: int
    """Of a workgroup: queries that share keys and values."""
    lanes: int
    """Of a subgroup; 1 where these cannot read each other's numbers."""
    team: int
    """Of these, those that share a key: a power of two."""
    threads: int
    unroll: int
    """Keys that a team asks for together."""
    splits: int
    """Ranges of keys, each of a workgroup of its own; from two on a second launch joins them."""

    @property
    def label(self) -> str:
        return (
            f"{counted(self.rows, 'row')}, {counted(self.threads, 'thread')} in teams of {self.team}, "
            f"{counted(self.splits, 'range')} of keys"
        )


forced: Variant | None = None
"""For tests and tuning runs: the variant, wherever attention can be computed so at all."""


def refusal(given: Attention) -> str:
    """Why an attention is not for this kernel, or an empty string."""
    q, v = given.q, given.v
    if arithmetic_type(q.dtype) != dtypes.FLOAT32 or not q.dtype.is_float:
        return f"attention of {q.dtype.name}"
    if typical(q.shape[2]) >= FEWEST_QUERIES:
        return f"{q.shape[2]} rows"
    for what, size in (("keys", q.shape[3]), ("values", v.shape[3])):
        if isinstance(size, Size) or not 0 < size <= WIDEST_HEAD:
            return f"{what} of {size} columns"
    if given.k.shape[2] == 0:
        return "no keys"
    if not (math.isfinite(given.scale) and math.isfinite(given.softcap)):
        return f"a scale of {given.scale} and scores below {given.softcap}"
    if given.row_sums is not None:
        return "sums of rows"
    return ""


def launch(build: VulkanBuilder, given: Attention, result: TensorType) -> list[View]:
    """Emits an attention; returns the views of its results, the first of a type whose axes may be fewer.

    Raises:
        CannotLower: it is none of few rows.
    """
    why = refusal(given)
    if why:
        raise CannotLower(f"no attention of few rows: {why}")
    q, k, v = (forwards(build, view) for view in (given.q, given.k, given.v))
    mask, bias = (None if view is None else forwards(build, view) for view in (given.mask, given.bias))
    given = replace(given, q=q, k=k, v=v, mask=mask, bias=bias)
    keys, values = ([forwards(build, part) for part in build.stand_ins.take_parts(view)] for view in (k, v))
    variant = choose(build.target, given) if forced is None else forced
    epilogue, outputs = build.take_epilogue(result, (0, 2, 1, 3) if len(result.dims) == 4 else None)
    space = (*q.shape[:3], v.shape[3])
    writer = _writer(build, given, variant)
    _attend(writer, given, variant, keys, values)
    if variant.splits == 1:
        emit_store(writer, space, outputs, epilogue, "float")
        writer.text(
            _KEEP.format(row="", results="store(batch, head, row, column, weighed(total, largest, sum));")
        )
        _emit(build, writer, given, variant)
        return outputs
    count = math.prod(space[:3])
    parts = build.scratch(TensorType(dtypes.FLOAT32, (variant.splits, count, space[3])))
    sums = build.scratch(TensorType(dtypes.FLOAT32, (variant.splits, count, 2)))
    at = "int at = split * (BATCHES * HEADS * QUERY_ROWS) + (batch * HEADS + head) * QUERY_ROWS + row;"
    pair, total = writer.write(sums), writer.write(parts)
    writer.text(
        _KEEP.format(
            row=f"{at} {pair}[at * 2] = largest; {pair}[at * 2 + 1] = sum;",
            results=f"{at} {total}[at * VALUE_SIZE + column] = total;",
        )
    )
    _emit(build, writer, given, variant)
    writer = _writer(build, given, variant)
    emit_store(writer, space, outputs, epilogue, "float")
    _emit_merge(build, writer, given, variant, parts, sums)
    return outputs


_KEEP = """void keep_row(int batch, int head, int row, int split, float largest, float sum)
{{ {row} }}
void keep(int batch, int head, int row, int split, int column, float total, float largest, float sum)
{{ {results} }}"""
"""What becomes of a row of a split, and of the sums of values that belong to it."""

_WEIGHED = """static const float MINUS_INFINITY = asfloat(0xff800000u);
// What a sum of values by unscaled weights is worth; where nothing is seen, or one is NaN, they may be zeros.
float weighed(float total, float largest, float sum)
{{
    if (is_nan(sum)) return total * {nan};
    return largest == MINUS_INFINITY ? total * {nothing} : total / sum;
}}"""


def _writer(build: VulkanBuilder, given: Attention, variant: Variant) -> KernelWriter:
    """A writer that knows what both passes do."""
    writer = build.writer()
    for name, size in zip(("BATCHES", "HEADS", "QUERY_ROWS"), given.q.shape, strict=False):
        writer.constant(size, name)
    numbers = {"SPLITS": variant.splits, "VALUE_SIZE": given.v.shape[3]}
    writer.text("\n".join(f"static const int {name} = {value};" for name, value in numbers.items()))
    zero = writer.zero(dtypes.FLOAT32)
    nothing = zero if given.is_empty_zero or given.is_nan_zero else "NOT_A_NUMBER"
    writer.text(_WEIGHED.format(nothing=nothing, nan=zero if given.is_nan_zero else "NOT_A_NUMBER"))
    writer.math()
    return writer


def _attend(
    writer: KernelWriter, given: Attention, variant: Variant, keys: Sequence[View], values: Sequence[View]
) -> None:
    """Adds what the first pass is told, but for what becomes of its results; keys and values are in parts."""
    q, k, v = given.q, given.k, given.v
    writer.constant(given.group, "GROUP")
    writer.constant(k.shape[1], "KEY_HEADS")
    writer.constant(k.shape[2], "KEY_ROWS")
    writer.constant(0 if given.causal is None else given.causal.offset, "CAUSAL_OFFSET")
    writer.word("keys", k.shape[2])
    writer.word("keys_a_split", -(-k.shape[2] // variant.splits))
    width, width_v = (4 if all(map(_is_wide, views)) else 1 for views in ((q, *keys), values))
    chunks, chunks_v = -(-q.shape[3] // (variant.team * width)), -(-v.shape[3] // (variant.team * width_v))
    numbers = {
        "ROWS": variant.rows,
        "TEAM": variant.team,
        "THREADS": variant.threads,
        "UNROLL": variant.unroll,
        "WIDTH": width,
        "WIDTH_V": width_v,
        "CHUNKS": chunks,
        "CHUNKS_V": chunks_v,
    }
    lines = [f"#define LANES {variant.lanes}", "typealias Accumulator = float;"]
    lines += [f"static const int {name} = {value};" for name, value in numbers.items()]
    lines.append(f"static const float SCALE = {float_text(given.scale)};")
    writer.text("\n".join(lines))
    for name, parts, wide, columns in (
        ("load_q", (q,), width, chunks * variant.team * width),
        ("load_k", keys, width, chunks * variant.team * width),
        ("load_v", values, width_v, chunks_v * variant.team * width_v),
    ):
        writer.text(_loader(writer, name, parts, wide, columns))
    writer.text(adjusted_function(writer, given, is_causal=True))


def _emit(build: VulkanBuilder, writer: KernelWriter, given: Attention, variant: Variant) -> None:
    batch, heads, rows, columns = given.q.shape
    key_heads, keys = given.k.shape[1:3]
    tiles = -(-given.group * rows // variant.rows)
    across, high = writer.grid(batch * key_heads * tiles, build.target.max_groups)
    if variant.lanes > 1:
        writer.need("subgroup_shuffle")
    writer.text(template("decode_attention"))
    build.emit(
        writer.finish(
            "decode_attention",
            (across, high, variant.splits),
            variant=variant.label,
            reason=f"{batch} × {heads} heads of {columns}, {counted(rows, 'row')} of queries, "
            f"{counted(keys, 'key')}, which are read once for {counted(given.group, 'head')}",
            subgroup_size=variant.lanes if variant.lanes > 1 else None,
        )
    )


def _emit_merge(
    build: VulkanBuilder, writer: KernelWriter, given: Attention, variant: Variant, parts: View, sums: View
) -> None:
    """Emits the second pass; its writer has `store`."""
    columns = given.v.shape[3]
    threads = min(MERGE_THREADS, build.target.max_invocations)
    across_columns = min(threads, 1 << (columns - 1).bit_length())
    count = math.prod(given.q.shape[:3])
    total, pair = writer.read(parts), writer.read(sums)
    at = "split * (BATCHES * HEADS * QUERY_ROWS) + row"
    writer.text(
        f"static const int THREADS = {threads};\nstatic const int COLUMNS = {across_columns};\n"
        f"float load_largest(int split, int row) {{ return {pair}[({at}) * 2]; }}\n"
        f"float load_sum(int split, int row) {{ return {pair}[({at}) * 2 + 1]; }}\n"
        f"float load_part(int split, int row, int column) {{ return {total}[({at}) * VALUE_SIZE + column]; }}"
    )
    across, high = writer.grid(count, build.target.max_groups)
    writer.text(template("attention_merge"))
    build.emit(
        writer.finish(
            "attention_merge",
            (across, high, 1),
            variant=counted(variant.splits, "range") + " of keys",
            reason=f"{counted(count, 'row')} of {columns}",
        )
    )


def _loader(writer: KernelWriter, name: str, parts: Sequence[View], width: int, columns: int) -> str:
    """A function that reads `width` columns of a row; those from the last one on are zeros.

    Args:
        writer: of the kernel.
        name: of the function.
        parts: (batch, heads, rows, columns), whose rows lie end to end.
        width: 4 where all parts are `_is_wide`, else 1.
        columns: that are asked for.
    """
    lines = [f"vector<float, {width}> {name}(int batch, int head, int row, int column)", "{"]
    if columns > parts[0].shape[3]:
        lines.append(f"    if (column >= {parts[0].shape[3]}) return vector<float, {width}>(0.0);")
    lines.append("    int at;")
    for number, view in enumerate(parts):
        strides = tuple(stride // width for stride in view.strides[:3])
        at = writer.offset(("batch", "head", "row", f"column / {width}"), (*strides, view.strides[3]))
        read = f"at = {at}; return {load_vector(writer.read(view, width=width), 'at', view, width)};"
        if number == len(parts) - 1:
            lines.append(f"    {read}")
        else:
            rows = writer.constant(view.shape[2])
            lines += [f"    if (row < {rows}) {{ {read} }}", f"    row -= {rows};"]
    return "\n".join([*lines, "}"])


def choose(target: Target, given: Attention) -> Variant:
    """Rows that share keys, as registers allow; as many ranges of keys as the device has room for."""
    batch, key_heads, keys, columns = given.k.shape
    rows, values = given.q.shape[2], given.v.shape[3]
    lanes = target.subgroup_size if "subgroup_shuffle" in target.capabilities else 1
    width = 4 if _is_wide(given.q) and _is_wide(given.k) else 1
    team = 1
    while team < lanes and team * width < columns:
        team *= 2
    floats = -(-columns // team) + -(-values // team)
    sharing = given.group * typical(rows)
    tiles = -(-sharing // max(1, min(MOST_ROWS, ROW_FLOATS // floats)))
    rows_each = -(-sharing // tiles)
    is_software = target.processors == 1
    # Software drivers take minutes to compile what is unrolled.
    unroll = 1 if is_software else 4 if rows_each <= 2 else 2
    groups = typical(batch * key_heads) * tiles
    splits, fill = 1, min(MOST_SPLITS, 2 * target.processors // groups)
    bytes_each = (columns + values) * given.k.itemsize
    # With open sizes the comparison is a guard: short pasts and long ones have plans of their own.
    if not is_software and fill > 1 and keys * bytes_each > ONE_PASS_BYTES:
        splits = fill if isinstance(keys, Size) else min(fill, keys * bytes_each // SPLIT_BYTES)
    splits = splits if isinstance(keys, Size) else -(-keys // -(-keys // splits))
    subgroups = MOST_SUBGROUPS if rows_each * floats <= ROW_FLOATS // 2 else MOST_SUBGROUPS // 2
    most = min(target.max_invocations, subgroups * lanes if lanes > 1 else LONE_THREADS)
    threads = max(lanes, min(LONE_THREADS, most))
    while 2 * threads <= most and threads // team * unroll < -(-typical(keys) // splits):
        threads *= 2
    return Variant(rows_each, lanes, team, threads, unroll, splits)


def _is_wide(view: View) -> bool:
    """Whether four columns may be read at once, from any row."""
    return view.strides[3] == 1 and aligned(view, view.shape[3], view.strides[:3])
