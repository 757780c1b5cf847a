"""Einsum: sums of products over named axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import (
    NUMBERS,
)
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, require_same_dtype, required
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
        require_dtype(node, operands[0], NUMBERS, "the first input")
        for index, operand in enumerate(operands):
            require_same_dtype(node, operands[0], operand, f"input {index}")
        geometry = einsum_geometry(node, node.attributes["equation"], [operand.dims for operand in operands])
        sizes = dict(geometry.sizes)
        return [check_size(node, operands[0].dtype, [sizes[letter] for letter in geometry.output])]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        operands = [present(inputs, index) for index in range(len(inputs))]
        geometry = einsum_geometry(node, node.attributes["equation"], [operand.shape for operand in operands])
        result = np.einsum(geometry.equation, *map(widened, operands), optimize=len(operands) > 1)
        return [np.asarray(result).astype(operands[0].dtype, copy=False)]
