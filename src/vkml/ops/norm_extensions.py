"""Normalisations of com.microsoft: of sums, without a mean, of embeddings, of groups channels-last."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import scalar
from vkml.ir.dtypes import FLOAT32, FLOATS, INT32, INT64
from vkml.ir.gradients import Emitter, T, converted, expression, reshaped, sliced, transposed, widened
from vkml.ir.graph import Node
from vkml.ir.operator import INT, OPTIONAL, REQUIRED, Array, Operator, operator, register
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import optional, present, require_dtype, require_rank, required
from vkml.ops.extension import Extension, Write, Writer
from vkml.ops.norm import row_geometry
from vkml.ops.stepwise import evaluate_steps, infer_steps


@operator()
class SimplifiedLayerNormalization(Operator):
    """RMSNormalization, which also gives the inverse of the root that it divides by.

    onnxruntime has it in ONNX's own domain.
    """

    inputs = (2, 2)
    outputs = (1, 2)
    attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    is_stepwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        require_dtype(node, required(node, inputs, 0), FLOATS, "the input")
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x = present(inputs, 0)
        made = build.apply("RMSNormalization", x, present(inputs, 1), **node.attributes)
        if len(node.outputs) == 1:
            return [made]
        type_ = build.type_of(x)
        axes = build.constant(range(row_geometry(node, type_.dims).axis, type_.rank), INT64)
        wide = widened(build, x)
        square = build.apply("ReduceMean", build.apply("Mul", wide, wide), axes)
        epsilon = build.constant(node.attributes["epsilon"], build.type_of(wide).dtype)
        root = build.apply("Sqrt", build.apply("Add", square, epsilon))
        return [made, converted(build, build.apply("Reciprocal", root), FLOAT32)]


def _skip(op: str, bias_at: int) -> Write:
    """The normalisation of an input and what skipped a few layers, and a bias, added."""

    def write(build: Writer) -> Sequence[Node]:
        bias, total = build.given(bias_at), build.wanted(3)
        made = build.apply("Add", build.given(0), build.given(1), made="" if bias else total)
        if bias:
            made = build.apply("Add", made, bias, made=total)
        scales = [build.given(at) for at in range(2, bias_at)]
        statistics = [build.wanted(1), build.wanted(2)]
        if op != "LayerNormalization" and statistics.pop(0):
            raise InvalidGraph(f"{build.node.label}: its second output, a mean, is not made by anybody")
        epsilon = build.stated("epsilon", _SKIP["epsilon"])
        build.apply_to([build.wanted(0), *statistics], op, made, *scales, axis=-1, epsilon=epsilon)
        return build.nodes

    return write


@operator()
class EmbedLayerNormalization(Operator):
    """The LayerNormalization of embeddings of words, their positions and segments, added.

    Inputs: numbers of words [batch, rows], of segments likewise or none, tables of words, positions and
    segments, scale and bias, a mask [batch, rows], numbers of positions [batch or 1, rows], 0, 1, 2, … where
    there are none. Outputs: [batch, rows, columns], how many entries of each batch's mask are 1 (0 without a
    mask), and the sum.
    """

    domain = "com.microsoft"
    inputs = (7, 9)
    outputs = (1, 3)
    attributes = {"epsilon": 1e-12, "mask_index_type": OPTIONAL}
    attribute_types = {"mask_index_type": INT}
    is_stepwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        require_rank(node, required(node, inputs, 0), 2, 2, "the numbers of words")
        for at, what in ((2, "the words"), (3, "the positions")):
            require_rank(node, required(node, inputs, at), 2, 2, f"the table of {what}")
        if (optional(inputs, 1) is None) != (optional(inputs, 4) is None):
            raise InvalidGraph(f"{node.label}: numbers and a table of segments come together")
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        words, places = present(inputs, 0), optional(inputs, 8)
        batch, rows = build.type_of(words).dims
        table = present(inputs, 3)
        if places is None:
            positions = sliced(build, table, 0, 0, rows)
        else:
            positions = build.apply("Gather", table, places, axis=0)
        total = build.apply("Add", build.apply("Gather", present(inputs, 2), words, axis=0), positions)
        segments = optional(inputs, 1)
        if segments is not None:
            more = build.apply("Gather", present(inputs, 4), segments, axis=0)
            total = build.apply("Add", total, more)
        made = build.apply(
            "LayerNormalization", total, present(inputs, 5), present(inputs, 6),
            axis=-1, epsilon=node.attributes["epsilon"],
        )  # fmt: skip
        mask = optional(inputs, 7)
        if mask is None:
            counts = build.apply("Expand", build.constant(0, INT32), build.constant([batch], INT64))
        else:
            # One expression, for bools between two nodes need bytes; a sum of floats, which is exact here.
            is_one = scalar.compare("equal", scalar.argument(0, build.type_of(mask).dtype), 1)
            ones = expression(build, scalar.where(is_one, scalar.constant(1, FLOAT32), 0), [mask], FLOAT32)
            sums = build.apply("ReduceSum", ones, build.constant([1], INT64), keepdims=0)
            counts = converted(build, sums, INT32)
        return [made, counts, total][: len(node.outputs)]


@operator()
class GatedRMSNorm(Operator):
    """RMSNormalization of groups of columns, as many as there are scales, times an activated gate."""

    domain = "com.microsoft"
    inputs = (3, 3)
    attributes = {"activation": "silu", "epsilon": 1e-5}
    is_stepwise = True

    def check(self, node: Node) -> None:
        activation = node.attributes["activation"]
        if activation not in _GATES:
            raise InvalidGraph(f"{node.label}: activation is {activation!r}, none of {', '.join(_GATES)}")

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, scale, gate = (required(node, inputs, at) for at in range(3))
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 1)
        require_rank(node, scale, 1, 1, "the scale")
        if gate.dims != x.dims or not scale.dims[0] or x.dims[-1] % scale.dims[0]:
            raise ShapeError(
                f"{node.label}: {list(x.dims)} with a gate of {list(gate.dims)} and a scale of "
                f"{list(scale.dims)}"
            )
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x, scale, gate = (widened(build, present(inputs, at)) for at in range(3))
        dims, columns = build.type_of(x).dims, build.type_of(scale).dims[0]
        groups = reshaped(build, x, (*dims[:-1], dims[-1] // columns, columns))
        made = build.apply("RMSNormalization", groups, scale, axis=-1, epsilon=node.attributes["epsilon"])
        gate = build.apply(_GATES[node.attributes["activation"]], gate)
        made = build.apply("Mul", reshaped(build, made, dims), gate)
        return [converted(build, made, build.type_of(present(inputs, 0)).dtype)]


_GATES = {"silu": "Swish", "swish": "Swish", "sigmoid": "Sigmoid"}


@operator()
class BranchwiseRMSNorm(Operator):
    """RMSNormalization of branches, [..., branches, columns] or [..., branches * columns], perhaps scaled."""

    domain = "com.microsoft"
    inputs = (1, 2)
    attributes = {"epsilon": 1e-5, "num_branches": 0}
    is_stepwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, branches = required(node, inputs, 0), node.attributes["num_branches"]
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 1 if branches else 2)
        if branches < 0 or (branches and x.dims[-1] % branches):
            raise ShapeError(f"{node.label}: {x.dims[-1]} columns are no {branches} branches")
        scale: Known | None = optional(inputs, 1)
        if scale is not None:
            count, columns = (branches, x.dims[-1] // branches) if branches else x.dims[-2:]
            if scale.dims not in ((columns,), (count, columns), (count * columns,)):
                raise ShapeError(
                    f"{node.label}: a scale of {list(scale.dims)} for {count} branches of {columns} columns"
                )
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x, scale = widened(build, present(inputs, 0)), optional(inputs, 1)
        dims, branches = build.type_of(x).dims, node.attributes["num_branches"]
        if branches:
            x = reshaped(build, x, (*dims[:-1], branches, dims[-1] // branches))
        columns, dtype = build.type_of(x).dims[-1], build.type_of(x).dtype
        ones = build.apply("Expand", build.constant(1, dtype), build.constant([columns], INT64))
        made = build.apply("RMSNormalization", x, ones, axis=-1, epsilon=node.attributes["epsilon"])
        if scale is not None:
            scale = reshaped(build, converted(build, scale, dtype), (-1, columns))
            made = build.apply("Mul", made, scale)
        made = reshaped(build, made, dims)
        return [converted(build, made, build.type_of(present(inputs, 0)).dtype)]


@operator("GroupNorm", "SkipGroupNorm")
class GroupNorm(Operator):
    """GroupNormalization of an image [N, *spatial, C], then SiLU where `activation` is 1.

    SkipGroupNorm adds another image, or one number a channel, [N, 1, …, C] or [N, C], and a bias a channel
    before; the sum is its second output.
    """

    domain = "com.microsoft"
    attributes = {"activation": REQUIRED, "channels_last": 1, "epsilon": 1e-5, "groups": REQUIRED}
    attribute_types = {"activation": INT, "groups": INT}
    is_stepwise = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        is_sum = name == "SkipGroupNorm"
        self.inputs, self.outputs = ((4, 5), (1, 2)) if is_sum else ((3, 3), (1, 1))

    def check(self, node: Node) -> None:
        if node.attributes["activation"] not in (0, 1):
            raise InvalidGraph(f"{node.label}: activation is 0 or 1, not {node.attributes['activation']}")

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        require_rank(node, required(node, inputs, 0), 3)
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x, skip, bias = present(inputs, 0), optional(inputs, 3), optional(inputs, 4)
        rank, dtype = build.type_of(x).rank, build.type_of(x).dtype
        is_last = bool(node.attributes["channels_last"])

        def lanes(vector: T) -> T:
            """[…, channels] where the image has its channels."""
            dims = build.type_of(vector).dims
            ones = (1,) * (rank - 2)
            return reshaped(build, vector, (*dims[:-1], *ones, dims[-1]) if is_last else (*dims, *ones))

        total = x
        if skip is not None:
            whole = skip if build.type_of(skip).rank == rank else lanes(skip)
            total = build.apply("Add", total, whole)
        if bias is not None:
            total = build.apply("Add", total, lanes(bias))
        first = transposed(build, total, (0, rank - 1, *range(1, rank - 1))) if is_last else total
        scales = [converted(build, present(inputs, at), dtype) for at in (1, 2)]
        made = build.apply(
            "GroupNormalization", first, *scales,
            num_groups=node.attributes["groups"], epsilon=node.attributes["epsilon"],
        )  # fmt: skip
        if node.attributes["activation"]:
            made = build.apply("Swish", made)
        if is_last:
            made = transposed(build, made, (0, *range(2, rank), 1))
        return [made, total][: len(node.outputs)]


_SKIP = {"epsilon": 1e-12}

for _extension in (
    Extension("SkipLayerNormalization", (3, 5), _skip("LayerNormalization", 4), _SKIP, outputs=(1, 4)),
    Extension(
        "SkipSimplifiedLayerNormalization",
        (3, 4),
        _skip("SimplifiedLayerNormalization", 3),
        _SKIP,
        outputs=(1, 4),
    ),
):
    register(_extension)
