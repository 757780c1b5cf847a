"""Row functions: softmax, log-softmax and the normalisations, by threads that hold a row in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import arithmetic_type
from vkml.ir.wording import counted
from vkml.kernels.gather import index_reader
from vkml.kernels.pointwise import emit_store, emit_vector_store
from vkml.kernels.reduce import index_function
from vkml.kernels.row_spread import element_function, spread_of, vector_function
from vkml.kernels.softmax_ranges import LOGARITHMS, POWERS, Powers, softmax_in_ranges
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import template

if TYPE_CHECKING:
    from vkml.kernels.epilogue import Epilogue
    from vkml.lowering.vulkan_builder import VulkanBuilder


@dataclass(frozen=True)
class Each:
    """A pass over a row: statements about each of this thread's vectors x, which begins at `column`."""

    statements: str


@dataclass(frozen=True)
class RowFunction:
    """Slang text of what is done to a row."""

    label: str
    before: tuple[str | Each, ...]
    """Statements and passes that gather what the last pass needs; may use row.join."""
    result: str
    """What is stored, of the vector x and the names that `before` declared."""
    made: str = ""
    """Statements that change x first."""
    in_parts: tuple[str | Each, ...] = ()
    """Instead of `before`, where a row goes through registers in parts: fewer passes that do more."""
    in_ranges: Powers | None = None
    """What rows are instead that memory runs across and that do not stay in registers, if they are powers."""


_LANES = "[ForceUnroll] for (int j = 0; j < WIDTH; ++j) {}"

_TOP = (
    "Values tops = Values(asfloat(0xff800000u));",
    Each(_LANES.format("tops[j] = maximum(tops[j], x[j]);")),
    "float top = row.join(tops, false);",
    "Values totals = Values(0);",
)

_ONLINE = (
    "Values tops = Values(asfloat(0xff800000u));",
    "Values totals = Values(0);",
    # Sums of e^(x - the greatest so far): a lower one than all numbers, none of which a row may have, is 0.
    Each(
        _LANES.format(
            "{ float more = maximum(tops[j], x[j]); float base = more > -INFINITE ? more : 0.0;"
            " totals[j] = fma(totals[j], exp(tops[j] - base), exp(x[j] - base)); tops[j] = more; }"
        )
    ),
    "float top = row.join(tops, false);",
    _LANES.format("totals[j] = tops[j] > -INFINITE ? totals[j] * exp(tops[j] - top) : 0.0;"),
)
_TOTAL = "float total = row.join(totals, true);"
_SCALE = f"float scale = {POWERS.factor};"
_SHIFT = f"float shift = {LOGARITHMS.factor};"

SOFTMAX = RowFunction(
    "softmax",
    (
        *_TOP,
        # Powers stay in registers; those of a row that does not are computed again.
        Each("Values power = exp(x - top); totals += power; if (IS_KEPT) row.kept[i] = power;"),
        _TOTAL,
        _SCALE,
    ),
    "(IS_KEPT ? x : exp(x - top)) * scale",
    in_parts=(*_ONLINE, _TOTAL, _SCALE),
    in_ranges=POWERS,
)

LOG_SOFTMAX = RowFunction(
    "log_softmax",
    (*_TOP, Each("totals += exp(x - top);"), _TOTAL, _SHIFT),
    "x - top - shift",
    in_parts=(*_ONLINE, _TOTAL, _SHIFT),
    in_ranges=LOGARITHMS,
)
"""The greatest number is taken away first: a shift by both would lose the digits of a small logarithm."""


def _centre(scale: str) -> tuple[str | Each, ...]:
    return (
        "Values sums = Values(0);",
        Each("sums += x;"),
        "float mean = row.join(sums, true) / float(LENGTH);",
        "Values squares = Values(0);",
        Each("Values distance = x - mean; squares = fma(distance, distance, squares);"),
        "float variance = row.join(squares, true) / float(LENGTH);",
        f"float scale = {scale};",
    )


_CENTRED = _LANES.format("x[j] = centred(x[j], mean, scale);")
_ROOT = "rsqrt_exact(variance + epsilon())"

STANDARDISE = RowFunction("standardise", _centre("1.0 / (sqrt(variance) + 1e-9)"), "x", _CENTRED)
"""MeanVarianceNormalization's form: a constant is added to the deviation."""

LAYER_NORM = RowFunction("layer_norm", _centre(_ROOT), "x", _CENTRED)
RMS_NORM = RowFunction(
    "rms_norm",
    (
        "Values squares = Values(0);",
        Each("squares = fma(x, x, squares);"),
        "float variance = row.join(squares, true) / float(LENGTH);",
        f"float scale = {_ROOT};",
    ),
    "x * scale",
)


def row_function(
    build: VulkanBuilder,
    x: View,
    axes: int,
    how: RowFunction,
    result: TensorType,
    *,
    epsilon: float = 0.0,
    scale: View | None = None,
    bias: View | None = None,
) -> list[View]:
    """Applies a row function over the last `axes` dimensions of `x`.

    Args:
        build: where the launch goes.
        x: any strides.
        axes: how many trailing dimensions make a row.
        how: the function.
        result: type of the output, in x's order of dimensions.
        epsilon: what normalisations add to the variance.
        scale: multiplied into the result; expanded to x's shape.
        bias: added to the result; expanded to x's shape.
    """
    frame = _Frame(build, x, axes, how.label)
    parts = [f"({how.result})"]
    for name, sign, view in (("scale", "*", scale), ("bias", "+", bias)):
        if view is not None:
            vector_function(frame.writer, f"load_{name}", view, len(x.shape) - axes, frame.spread.width)
            parts.append(f"{sign} load_{name}(row.index, column)")
    epilogue, outputs = build.take_epilogue(result)
    frame.emit_store(outputs, epilogue, (frame.count, frame.length))
    frame.finish(how, epsilon, f"{how.made} store(row.index, column, {' '.join(parts)});")
    return outputs


def row_function_along(
    build: VulkanBuilder, x: View, axis: int, how: RowFunction, result: TensorType
) -> list[View]:
    """Applies a row function along an inner axis of `x`, which has any strides; `result` is of x's shape."""
    rank = len(x.shape)
    order = [*range(axis), *range(axis + 1, rank), axis]
    spread = spread_of(build.target, x.transpose(order), rank - 1)
    # Software drivers take long to compile what is laid out for the sake of memory.
    is_gpu = build.target.processors > 1
    if is_gpu and how.in_ranges is not None and spread.columns > 1 and not spread.is_kept:
        made = softmax_in_ranges(build, x, axis, how.in_ranges, result)
        if made is not None:
            return made
    frame = _Frame(build, x.transpose(order), 1, how.label)
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    epilogue, outputs = build.take_epilogue(result, range(rank))
    if epilogue is not None:
        turned = {name: leaf.expand(result.dims).transpose(order) for name, leaf in epilogue.leaves.items()}
        epilogue = replace(epilogue, leaves=turned)
    frame.emit_store([output.transpose(order) for output in outputs], epilogue, (outer, inner, frame.length))
    size = frame.writer.constant(inner, "INNER")
    place = f"row.index / {size}, row.index % {size}"
    frame.finish(how, 0.0, f"{how.made} store({place}, column, {how.result});")
    return outputs


def cross_entropy(
    build: VulkanBuilder, x: View, labels: View, ignored: int | None, result: TensorType
) -> list[View]:
    """The negated logarithm of the softmax over the last axis, at the label of each row.

    Args:
        build: where the launch goes.
        x: any strides.
        labels: int32 or int64, of x's leading axes; of one outside of the last axis the node is reported.
        ignored: a label whose result is 0.
        result: type of the output.
    """
    frame = _Frame(build, x, 1, "cross_entropy")
    writer = frame.writer
    element_function(writer, "load_one", x, len(x.shape) - 1)
    index_reader(build, writer, labels)
    index_function(writer, "label_row", *collapse(labels.shape, [labels.strides]))
    outputs = [build.output(result)]
    emit_store(writer, (frame.count,), outputs, None, "float")
    frame.finish(
        LOG_SOFTMAX,
        0.0,
        "",
        f"""
    if (row.lane == 0 && row.inside)
    {{
        int label = read_index(label_row(row.index));
        bool counts = {"true" if ignored is None else f"label != {ignored}"};
        int place = counts ? max(checked(label < 0 ? LENGTH : label, LENGTH), 0) : 0;
        store(row.index, counts ? top - load_one(row.index, place) + shift : 0.0);
    }}""",
    )
    return outputs


class _Frame:
    """The frame of a kernel over rows: what it is told of them, and its main function.

    Args:
        build: where the launch goes.
        x: any strides.
        axes: how many trailing dimensions make a row.
        label: of the kernel.
    """

    def __init__(self, build: VulkanBuilder, x: View, axes: int, label: str) -> None:
        if arithmetic_type(x.dtype) != dtypes.FLOAT32:
            raise CannotLower(f"{label} of {x.dtype.name} has no kernel")
        self._build, self._label = build, label
        lead = len(x.shape) - axes
        self.count, self.length = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
        self.spread = spread = spread_of(build.target, x, lead)
        self.writer = writer = build.writer()
        spread.declare(writer, self.count, self.length, dtypes.FLOAT32)
        vector_function(writer, "load", x, lead, spread.width)

    def emit_store(self, outputs: Sequence[View], epilogue: Epilogue | None, space: tuple[int, ...]) -> None:
        """Adds ``store``, which takes coordinates in a space, the last a column, and a vector."""
        if self.spread.width == 1:
            emit_store(self.writer, space, outputs, epilogue, "float")
        else:
            emit_vector_store(self.writer, space, outputs, epilogue, name="store")

    def finish(self, how: RowFunction, epsilon: float, store: str, last: str = "") -> None:
        """Emits the kernel.

        Args:
            how: what is done to rows.
            epsilon: what normalisations add to the variance.
            store: of each vector of a row that is there.
            last: what threads do instead of a pass that stores.
        """
        writer, build, spread = self.writer, self._build, self.spread
        writer.text(f"float epsilon() {{ return asfloat(0x{_bits(epsilon):x}u); }}")
        writer.text("float rsqrt_exact(float x) { return 1.0 / sqrt(x); }")
        writer.math()
        writer.text(template("rows"))
        across, high = writer.grid(-(-self.count // spread.rows), build.target.max_groups)
        passes = 0
        lines = []
        for part in how.before if spread.is_kept or not how.in_parts else how.in_parts:
            if isinstance(part, Each):
                lines.append(self._pass(part.statements, passes))
                passes += 1
            else:
                lines.append(part)
        if store:
            lines += ["if (row.inside)", "{", self._pass(store, passes), "}"]
        writer.text(
            "\n".join(
                [
                    '[shader("compute")] [numthreads(THREADS, 1, 1)]',
                    "void main(uint3 group : SV_GroupID, uint index : SV_GroupIndex)",
                    "{",
                    "    int thread = int(index);",
                    "    Row row;",
                    "    row.thread = thread;",
                    "    row.lane = thread / COLUMNS % ROW_THREADS;",
                    "    int first = int(group.x + group.y * ACROSS) * BLOCKS;",
                    "    int block = first + thread / (COLUMNS * ROW_THREADS);",
                    "    row.index = block * COLUMNS + thread % COLUMNS;",
                    "    row.inside = row.index < COUNT_ROWS;",
                    "    if (!row.inside) row.index = COUNT_ROWS - 1;",
                    "    row.read(0);",
                    *lines,
                    last,
                    "}",
                ]
            )
        )
        kernel = writer.finish(
            self._label,
            (across, high, 1),
            variant=spread.variant,
            reason=f"{counted(self.count, 'row')} of {self.length}",
            subgroup_size=spread.lanes if spread.lanes > 1 else None,
        )
        build.emit(kernel)

    def _pass(self, statements: str, number: int) -> str:
        """A pass over the row, which begins with the part of it that the one before has left in registers."""
        inside = "" if self.spread.is_whole else "if (column < LENGTH)"

        def each(step: str) -> str:
            return (
                "[ForceUnroll] for (int i = 0; i < KEPT; ++i)\n{\n"
                f"int column = column_of({step}, row.lane);\n{inside}\n"
                f"{{\nValues x = row.kept[i];\n{statements}\n}}\n}}"
            )

        if self.spread.is_kept:
            return each("i")
        chunk = "turn" if number % 2 == 0 else "CHUNKS - 1 - turn"
        return (
            "for (int turn = 0; turn < CHUNKS; ++turn)\n{\n"
            f"int chunk = {chunk};\nif (turn > 0) row.read(chunk);\n{each('chunk * KEPT + i')}\n}}"
        )


def _bits(value: float) -> int:
    import numpy as np

    return int(np.float32(value).view(np.uint32))
