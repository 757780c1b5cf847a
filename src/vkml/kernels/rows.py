"""Row functions: softmax, log-softmax and the normalisations, one workgroup pass over each row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size, typical
from vkml.ir.wording import counted
from vkml.kernels.gather import index_reader
from vkml.kernels.pointwise import emit_store
from vkml.kernels.reduce import index_function
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import KernelWriter, load_expression, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder


@dataclass(frozen=True)
class RowFunction:
    """Slang text of the passes over a row; `EACH(...)` stands for a loop over this thread's elements x."""

    label: str
    before: str
    """Statements that gather what the last pass needs; may use join_sum and join_max."""
    result: str
    """The stored value, from the element x, its column and the names `before` declared."""


KEPT_LIMIT = 16
"""Elements a thread keeps in registers; longer rows are read again in every pass."""


def each(statement: str) -> str:
    """A loop over this thread's elements x of the row."""
    return (
        "LOOP for (int i = 0; i < STEPS; ++i)\n{\n    int column = i * ROW_THREADS + row.lane;\n"
        f"    if (column < LENGTH) {{ float x = row.at(i); {statement} }}\n}}"
    )


SOFTMAX = RowFunction(
    "softmax",
    "\n".join(
        [
            "float top = asfloat(0xff800000u);",
            each("top = maximum(top, x);"),
            "top = join_max(row, top);",
            "float total = 0;",
            each("total += exp(x - top);"),
            "total = join_sum(row, total);",
            # Stated, because exp of NaN is not NaN on every driver.
            "float scale = absolute(top) < INFINITE ? 1.0 / total : NOT_A_NUMBER;",
        ]
    ),
    "exp(x - top) * scale",
)

LOG_SOFTMAX = RowFunction(
    "log_softmax",
    SOFTMAX.before.replace("float scale", "float shift").replace("1.0 / total", "logarithm(total)"),
    "x - top - shift",
)
"""The greatest number is taken away first: a shift by both would lose the digits of a small logarithm."""

_CENTRE = "\n".join(
    [
        "float mean = 0;",
        each("mean += x;"),
        "mean = join_sum(row, mean) / float(LENGTH);",
        "float spread = 0;",
        each("float distance = x - mean; spread = fma(distance, distance, spread);"),
        "float scale = rsqrt_exact(join_sum(row, spread) / float(LENGTH) + epsilon());",
    ]
)

_CENTRED = "(absolute(mean) < INFINITE ? (x - mean) * scale : NOT_A_NUMBER)"
"""NaN is stated: in rows of one element NVIDIA's compiler takes x - mean for 0."""

_ROOT_MEAN_SQUARE = "\n".join(
    [
        "float spread = 0;",
        each("spread = fma(x, x, spread);"),
        "float scale = rsqrt_exact(join_sum(row, spread) / float(LENGTH) + epsilon());",
    ]
)

STANDARDISE = RowFunction(
    "standardise",
    _CENTRE.replace(
        "rsqrt_exact(join_sum(row, spread) / float(LENGTH) + epsilon())",
        "1.0 / (sqrt(join_sum(row, spread) / float(LENGTH)) + 1e-9)",
    ),
    _CENTRED,
)
"""MeanVarianceNormalization's form: a constant is added to the deviation."""

LAYER_NORM = RowFunction("layer_norm", _CENTRE, _CENTRED)
RMS_NORM = RowFunction("rms_norm", _ROOT_MEAN_SQUARE, "x * scale")


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
    lead = len(x.shape) - axes
    frame = _Frame(build, x, axes, how.label)
    writer = frame.writer
    parts = [how.result]
    if scale is not None:
        element_function(writer, "load_scale", scale, lead)
        parts.append("* load_scale(row.index, column)")
    if bias is not None:
        element_function(writer, "load_bias", bias, lead)
        parts.append("+ load_bias(row.index, column)")
    writer.text(f"float epsilon() {{ return asfloat(0x{_bits(epsilon):x}u); }}")
    writer.text("float rsqrt_exact(float x) { return 1.0 / sqrt(x); }")
    epilogue, outputs = build.take_epilogue(result)
    emit_store(writer, (frame.count, frame.length), outputs, epilogue, "float")
    frame.finish(how.before, each(f"store(row.index, column, {' '.join(_grouped(parts))});"))
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
    index_reader(build, writer, labels)
    index_function(writer, "label_row", *collapse(labels.shape, [labels.strides]))
    outputs = [build.output(result)]
    emit_store(writer, (frame.count,), outputs, None, "float")
    how = (
        LOG_SOFTMAX.before
        + f"""
    if (row.lane == 0 && row.inside)
    {{
        int label = read_index(label_row(row.index));
        bool counts = {"true" if ignored is None else f"label != {ignored}"};
        int place = counts ? max(checked(label < 0 ? LENGTH : label, LENGTH), 0) : 0;
        store(row.index, counts ? top - load(row.index, place) + shift : 0.0);
    }}"""
    )
    frame.finish(how, "")
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
        row_threads, self._rows = _threads(build, typical(self.length))
        steps = -(-self.length // row_threads)
        is_kept = not isinstance(self.length, Size) and steps <= KEPT_LIMIT
        kept = steps if is_kept else 1
        self._loop = "[ForceUnroll]" if is_kept else ""
        self.writer = writer = build.writer()
        text = [f"static const int ROW_THREADS = {row_threads};", f"static const int ROWS = {self._rows};"]
        text.append(f"static const int KEPT = {kept};")
        if isinstance(steps, Size):
            writer.constant(steps, "STEPS")
        else:
            text.append(f"static const int STEPS = {steps};")
        text += [f"static const bool IS_KEPT = {'true' if is_kept else 'false'};"]
        writer.text("\n".join(text))
        writer.constant(self.length, "LENGTH")
        writer.constant(self.count, "COUNT_ROWS")
        element_function(writer, "load", x, lead)
        self._variant = (
            f"{counted(row_threads, 'thread')} a row, {counted(self._rows, 'row')} a workgroup, "
            f"{counted(steps, 'element')} a thread"
        )

    def finish(self, before: str, store: str) -> None:
        """Emits the kernel.

        Args:
            before: statements of all threads.
            store: of those whose row is there.
        """
        writer, build = self.writer, self._build
        writer.math()
        writer.text(template("rows"))
        across, high = writer.grid(-(-self.count // self._rows), build.target.max_groups)
        writer.text(
            "\n".join(
                [
                    '[shader("compute")] [numthreads(ROW_THREADS, ROWS, 1)]',
                    "void main(uint3 group : SV_GroupID, uint3 thread : SV_GroupThreadID)",
                    "{",
                    "    Row row;",
                    "    row.index = int(group.x + group.y * ACROSS) * ROWS + int(thread.y);",
                    "    row.lane = int(thread.x);",
                    "    row.slot = int(thread.y) * ROW_THREADS + row.lane;",
                    "    row.inside = row.index < COUNT_ROWS;",
                    "    if (!row.inside) row.index = COUNT_ROWS - 1;",
                    "    row.read();",
                    before.replace("LOOP", self._loop),
                    "    if (row.inside)",
                    "    {",
                    store.replace("LOOP", self._loop),
                    "    }",
                    "}",
                ]
            )
        )
        kernel = writer.finish(
            self._label,
            (across, high, 1),
            variant=self._variant,
            reason=f"{counted(self.count, 'row')} of {self.length}",
        )
        build.emit(kernel)


def _grouped(parts: list[str]) -> list[str]:
    return [f"({parts[0]})", *parts[1:]]


def element_function(writer: KernelWriter, name: str, view: View, lead: int) -> None:
    pointer = writer.read(view)
    index_function(writer, f"{name}_row", *collapse(view.shape[:lead], [view.strides[:lead]]))
    index_function(writer, f"{name}_column", *collapse(view.shape[lead:], [view.strides[lead:]]))
    element = load_expression(pointer, f"{name}_row(row) + {name}_column(column)", view.dtype)
    writer.text(f"float {name}(int row, int column) {{ return {element}; }}")


def _threads(build: VulkanBuilder, length: int) -> tuple[int, int]:
    """Threads a row and rows a workgroup: about four elements a thread, workgroups of at least a subgroup."""
    limit = min(256, build.target.max_invocations)
    threads = 1
    while threads * 4 < length and threads < limit:
        threads *= 2
    return threads, max(1, 64 // threads)


def _bits(value: float) -> int:
    import numpy as np

    return int(np.float32(value).view(np.uint32))
