"""RotaryEmbedding: pairs of a head's columns turned by angles that follow from where a row is."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOATS, INT64
from vkml.ir.gradients import Emitter, T, reshaped, sliced
from vkml.ir.graph import Node
from vkml.ir.operator import INT, OPTIONAL, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import optional, present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.stepwise import evaluate_steps


@operator()
class RotaryEmbedding(Operator):
    """Each pair (a, b) of columns becomes (a cos - b sin, a sin + b cos) (Su et al., 2021).

    Inputs: (batch, heads, rows, columns), or (batch, rows, heads * columns) with `num_heads`; cosines and
    sines of (batch, rows, pairs), or of (positions, pairs) with a fourth input that says the position of each
    row, (batch, rows). Pairs are of the first `rotary_embedding_dim` columns (all, where that is 0):
    neighbours where it is `interleaved`, else halves.
    """

    inputs = (3, 4)
    attributes = {"interleaved": 0, "num_heads": OPTIONAL, "rotary_embedding_dim": 0}
    attribute_types = {"num_heads": INT}
    is_stepwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, cosines, sines = (required(node, inputs, at) for at in range(3))
        positions: Known | None = optional(inputs, 3)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 3, 4)
        for known, what in ((cosines, "the cosines"), (sines, "the sines")):
            require_same_dtype(node, x, known, what)
            require_rank(node, known, 3 if positions is None else 2, 3 if positions is None else 2, what)
        heads = node.attributes["num_heads"]
        if x.rank == 3 and (not heads or heads < 1):
            raise InvalidGraph(f"{node.label}: the input has three axes, so num_heads has to be there")
        if x.rank == 3 and x.dims[2] % heads:
            raise ShapeError(f"{node.label}: {x.dims[2]} columns are no {heads} heads")
        batch, rows = x.dims[0], x.dims[-2]
        columns = x.dims[3] if x.rank == 4 else x.dims[2] // heads
        turned = node.attributes["rotary_embedding_dim"] or columns
        if turned % 2 or not 0 <= turned <= columns:
            raise ShapeError(
                f"{node.label}: {turned} of {columns} columns of a head cannot be turned in pairs"
            )
        wanted = (batch, rows, turned // 2) if positions is None else (cosines.dims[0], turned // 2)
        for known, what in ((cosines, "the cosines"), (sines, "the sines")):
            if known.dims != wanted:
                raise ShapeError(f"{node.label}: {what} must be {list(wanted)}, they are {list(known.dims)}")
        if positions is not None:
            require_dtype(node, positions, (INT64,), "the positions")
            if positions.dims != (batch, rows):
                raise ShapeError(
                    f"{node.label}: positions must be {[batch, rows]}, they are {list(positions.dims)}"
                )
        return [x.type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x, positions = present(inputs, 0), optional(inputs, 3)
        whole = build.type_of(x).dims
        if len(whole) == 3:
            heads = node.attributes["num_heads"]
            x = reshaped(build, x, (whole[0], whole[1], heads, whole[2] // heads))
        dims = build.type_of(x).dims
        rows_axis = 2 if len(whole) == 4 else 1
        turned = node.attributes["rotary_embedding_dim"] or dims[3]
        pairs = turned // 2
        angles: list[T] = []
        for at in (1, 2):
            table = present(inputs, at)
            if positions is not None:
                table = build.apply("Gather", table, positions, axis=0)
            shape = [dims[0], 1, 1, pairs]
            shape[rows_axis] = dims[rows_axis]
            angles.append(reshaped(build, table, shape))
        cosine, sine = angles
        part, rest = sliced(build, x, 3, 0, turned), None
        if turned != dims[3]:
            rest = sliced(build, x, 3, turned, dims[3])
        is_interleaved = bool(node.attributes["interleaved"])
        if is_interleaved:
            apart = reshaped(build, part, (*dims[:3], pairs, 2))
            first, second = (
                reshaped(build, sliced(build, apart, 4, at, at + 1), (*dims[:3], pairs)) for at in (0, 1)
            )
        else:
            first, second = (sliced(build, part, 3, at, at + pairs) for at in (0, pairs))
        real = build.apply("Sub", build.apply("Mul", first, cosine), build.apply("Mul", second, sine))
        imaginary = build.apply("Add", build.apply("Mul", first, sine), build.apply("Mul", second, cosine))
        if is_interleaved:
            both = [reshaped(build, each, (*dims[:3], pairs, 1)) for each in (real, imaginary)]
            made = reshaped(build, build.apply("Concat", *both, axis=4), (*dims[:3], turned))
        else:
            made = build.apply("Concat", real, imaginary, axis=3)
        if rest is not None:
            made = build.apply("Concat", made, rest, axis=3)
        return [reshaped(build, made, whole)]
