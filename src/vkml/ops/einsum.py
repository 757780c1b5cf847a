"""Einsum: sums of products over named axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import scalar
from vkml.ir.dtypes import COMPLEXES, FLOAT32, FLOAT64, INT64, NUMBERS
from vkml.ir.gradients import Emitter, T, arguments, conjugate, expanded, expression, reshaped, sum_to
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.scalar import Scalar
from vkml.ir.size import Size
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, require_same_dtype, required
from vkml.ops.einsum_steps import contracted
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened


@dataclass(frozen=True)
class EinsumGeometry:
    """An einsum equation with its ellipses spelled out as capital letters and its output made explicit."""

    terms: tuple[str, ...]
    output: str
    sizes: tuple[tuple[str, int], ...]
    """Size of each letter, in order of first appearance."""

    @property
    def equation(self) -> str:
        return ",".join(self.terms) + "->" + self.output


def einsum_geometry(node: Node, equation: str, shapes: Sequence[Sequence[int]]) -> EinsumGeometry:
    """Resolves an einsum equation against the operands' shapes.

    Raises:
        InvalidGraph: The equation is malformed.
        ShapeError: Term and operand ranks differ, or one letter stands for two sizes.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    where = f"{node.label}: equation {equation!r}"
    if len(terms) != len(shapes):
        raise InvalidGraph(f"{where} has {len(terms)} terms, the node {len(shapes)} inputs")
    for term in (*terms, right):
        letters = term.replace("...", "", 1)
        if letters and not (letters.isascii() and letters.isalpha()):
            raise InvalidGraph(f"{where}: term {term!r} holds something else than letters and one ellipsis")
    used = set(left)
    spare = [chr(code) for code in (*range(65, 91), *range(97, 123)) if chr(code) not in used]
    widest = 0
    for term, shape in zip(terms, shapes, strict=True):
        hidden = len(shape) - len(term.replace("...", ""))
        if hidden < 0 or (hidden > 0 and "..." not in term):
            raise ShapeError(f"{where}: term {term!r} does not describe an input of shape {list(shape)}")
        widest = max(widest, hidden if "..." in term else 0)
    if widest > len(spare):
        raise InvalidGraph(f"{where}: an ellipsis of {widest} axes leaves too few letters")
    ellipsis = "".join(spare[:widest])
    sizes: dict[str, int] = {}
    spelled = []
    for term, shape in zip(terms, shapes, strict=True):
        hidden = len(shape) - len(term.replace("...", ""))
        full = term.replace("...", ellipsis[widest - hidden :] if hidden else "")
        for letter, size in zip(full, shape, strict=True):
            if any(size != other for same, other in zip(full, shape, strict=True) if same == letter):
                raise ShapeError(f"{where}: '{letter}' has two sizes in an input of shape {list(shape)}")
            known = sizes.setdefault(letter, size)
            if known == 1:
                sizes[letter] = size
            elif size not in (1, known):
                raise ShapeError(f"{where}: '{letter}' is {known} in one input and {size} in another")
        spelled.append(full)
    if arrow:
        output = right.replace("...", ellipsis)
    else:
        letters = left.replace("...", "").replace(",", "")
        output = ellipsis + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    if len(set(output)) != len(output) or not set(output) <= set(sizes):
        raise InvalidGraph(f"{where}: the output repeats a letter or names one that no input has")
    return EinsumGeometry(tuple(spelled), output, tuple(sizes.items()))


@operator()
class Einsum(Operator):
    """Sum of products over named axes."""

    inputs = (1, 2**31)
    attributes = {"equation": ""}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        operands = [required(node, inputs, index) for index in range(len(inputs))]
        require_dtype(node, operands[0], (*NUMBERS, *COMPLEXES), "the first input")
        for index, operand in enumerate(operands):
            require_same_dtype(node, operands[0], operand, f"input {index}")
        geometry = einsum_geometry(node, node.attributes["equation"], [operand.dims for operand in operands])
        sizes = dict(geometry.sizes)
        return [check_size(node, operands[0].dtype, [sizes[letter] for letter in geometry.output])]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        shapes = [present(inputs, at).dims for at in range(len(inputs))]
        sizes = einsum_geometry(node, node.attributes["equation"], shapes).sizes
        return math.prod(size for _, size in sizes) if len(inputs) > 1 else 0

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        operands = [present(inputs, index) for index in range(len(inputs))]
        geometry = einsum_geometry(node, node.attributes["equation"], [operand.shape for operand in operands])
        result = np.einsum(geometry.equation, *map(widened, operands), optimize=len(operands) > 1)
        return [np.asarray(result).astype(operands[0].dtype, copy=False)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        operands = [present(inputs, at) for at in range(len(inputs))]
        types = [build.type_of(operand) for operand in operands]
        if types[0].dtype.is_complex:
            return None
        geometry = einsum_geometry(node, node.attributes["equation"], [type_.dims for type_ in types])
        return [contracted(build, geometry.terms, geometry.output, operands)]

    def has_host_steps(self, node: Node, inputs: Sequence[TensorType | None]) -> bool:
        """Where it is a product of matrices: others NumPy adds up sooner, or multiplies in a better order."""
        types = [type_ for type_ in inputs if type_ is not None and type_.is_static]
        if not len(types) == len(inputs) == 2 or types[0].dtype not in (FLOAT32, FLOAT64):
            return False
        geometry = einsum_geometry(node, node.attributes["equation"], [type_.dims for type_ in types])
        a, b = (
            {
                letter
                for letter, size in zip(term, type_.dims, strict=True)
                if isinstance(size, Size) or size != 1
            }
            for term, type_ in zip(geometry.terms, types, strict=True)
        )
        output = set(geometry.output)
        has_diagonals = any(len(set(term)) != len(term) for term in geometry.terms)
        rows, columns, inner = a - b, b - a, (a & b) - output
        return bool(rows and columns and inner) and rows | columns <= output and not has_diagonals

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        there = [present(inputs, at) for at in range(len(inputs))]
        shapes = [build.type_of(value).dims for value in there]
        geometry = einsum_geometry(node, node.attributes["equation"], shapes)
        cotangent = present(cotangents, 0)
        return [
            _gradient(build, geometry, there, at, cotangent) if is_needed else None
            for at, is_needed in enumerate(needed)
        ]


def _gradient(build: Emitter[T], geometry: EinsumGeometry, inputs: Sequence[T], at: int, cotangent: T) -> T:
    """The cotangent of an input: the sum of products of that of the result and all other inputs."""
    term = geometry.terms[at]
    others = [n for n in range(len(inputs)) if n != at]
    known = set(geometry.output).union(*(geometry.terms[n] for n in others))
    # Each letter of the term once, in order; what only the term has was summed alone, and is repeated.
    letters = "".join(dict.fromkeys(term))
    kept = "".join(letter for letter in letters if letter in known)
    terms = ",".join([geometry.output, *(geometry.terms[n] for n in others)])
    operands = [cotangent, *(conjugate(build, inputs[n]) for n in others)]
    made = build.apply("Einsum", *operands, equation=f"{terms}->{kept}")
    sizes = dict(zip(kept, build.type_of(made).dims, strict=True))
    wanted = dict(zip(term, build.type_of(inputs[at]).dims, strict=True))
    made = reshaped(build, made, [sizes.get(letter, 1) for letter in letters])
    # An input of size 1 was broadcast; where all others are of size 1, the result's is.
    made = sum_to(build, made, [min(sizes.get(letter, 1), wanted[letter]) for letter in letters])
    made = expanded(build, made, [wanted[letter] for letter in letters])
    return made if letters == term else _on_diagonal(build, made, term, letters)


def _on_diagonal(build: Emitter[T], x: T, term: str, letters: str) -> T:
    """`x` of the axes `letters` where the indices of equal letters in `term` are equal, 0 elsewhere."""
    sizes = dict(zip(letters, build.type_of(x).dims, strict=True))
    first = {letter: term.index(letter) for letter in letters}
    x = reshaped(build, x, [sizes[letter] if first[letter] == at else 1 for at, letter in enumerate(term)])

    def along(axis: int) -> T:
        shape = [sizes[letter] if n == axis else 1 for n, letter in enumerate(term)]
        return build.constant(np.arange(sizes[term[axis]]).reshape(shape), INT64)

    def form(x: Scalar, place: Scalar, other: Scalar) -> Scalar:
        return scalar.where(scalar.compare("equal", place, other), x, 0.0)

    for axis, letter in enumerate(term):
        if first[letter] != axis:
            values = [x, along(first[letter]), along(axis)]
            given = [element for element in arguments(build, values) if element is not None]
            x = expression(build, form(*given), values, build.type_of(x).dtype)
    return x
