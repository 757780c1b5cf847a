"""Einsum in other operators: diagonals, sums, and one product for each further operand."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Generic

from vkml.dataclasses import dataclass
from vkml.ir.dtypes import FLOATS, INT32, INT64, DType
from vkml.ir.gradients import Emitter, T, converted, reshaped, summed, transposed
from vkml.ir.scalar import arithmetic_type


@dataclass(frozen=True)
class _Named(Generic[T]):
    """A value, and a letter for each of its axes."""

    letters: str
    value: T


def contracted(build: Emitter[T], terms: Sequence[str], output: str, operands: Sequence[T]) -> T:
    """The sum over all letters that `output` lacks of the products of the operands, in the order of `output`.

    Args:
        build: applies operators.
        terms: a letter for each axis of each operand; axes of size 1 are broadcast.
        output: letters of the result, each once.
        operands: numbers of one type that is not complex.
    """
    dtype = build.type_of(operands[0]).dtype
    wide = _computed(dtype, terms, output)
    sizes: dict[str, int] = {}
    named = []
    for term, operand in zip(terms, operands, strict=True):
        each = _with_diagonals(build, _Named(term, converted(build, operand, wide)))
        # What is of size 1 is broadcast, which products do by themselves.
        dims = build.type_of(each.value).dims
        kept = [(letter, size) for letter, size in zip(each.letters, dims, strict=True) if size != 1]
        value = reshaped(build, each.value, [size for _, size in kept])
        sizes.update(kept)
        named.append(_Named("".join(letter for letter, _ in kept), value))
    found = named[0]
    for at, other in enumerate(named[1:], 2):
        found = _product(
            build, found, other, set(output).union(*(each.letters for each in named[at:])), sizes
        )
    found = _summed(build, found, output)
    order = [found.letters.index(letter) for letter in output if letter in found.letters]
    value = transposed(build, found.value, order)
    return converted(build, reshaped(build, value, [sizes.get(letter, 1) for letter in output]), dtype)


def _computed(dtype: DType, terms: Sequence[str], output: str) -> DType:
    """The type of products: of sums of sums rounded once, of narrow integers by their low bits."""
    if dtype in FLOATS:
        known = [
            set(output).union(*(other for at, other in enumerate(terms) if at != n))
            for n in range(len(terms))
        ]
        has_own_sums = len(terms) > 1 and any(
            not set(term) <= others for term, others in zip(terms, known, strict=True)
        )
        return arithmetic_type(dtype) if len(terms) > 2 or has_own_sums else dtype
    return INT32 if dtype.bits < 32 else dtype


def _with_diagonals(build: Emitter[T], x: _Named[T]) -> _Named[T]:
    """The elements whose indices along axes of the same letter are the same."""
    for letter in set(x.letters):
        while x.letters.count(letter) > 1:
            dims = build.type_of(x.value).dims
            first = x.letters.index(letter)
            second = x.letters.index(letter, first + 1)
            order = [at for at in range(len(dims)) if at not in (first, second)]
            kept, size = [dims[at] for at in order], dims[first]
            # The diagonal of n by n elements laid end to end is each (n + 1)th of them.
            value = transposed(build, x.value, [*order, first, second])
            value = reshaped(build, value, [*kept, size * size])
            stated = [build.constant([number], INT64) for number in (0, size * size, len(kept), size + 1)]
            letters = "".join(x.letters[at] for at in order) + letter
            x = _Named(letters, build.apply("Slice", value, *stated))
    return x


def _summed(build: Emitter[T], x: _Named[T], wanted: Collection[str]) -> _Named[T]:
    """The sum over the axes whose letters are not wanted."""
    axes = [at for at, letter in enumerate(x.letters) if letter not in wanted]
    letters = "".join(letter for letter in x.letters if letter in wanted)
    return _Named(letters, summed(build, x.value, axes))


def _product(
    build: Emitter[T], a: _Named[T], b: _Named[T], later: Collection[str], sizes: dict[str, int]
) -> _Named[T]:
    """Two operands multiplied, and summed over what no operand behind them and no result has."""
    a, b = _summed(build, a, {*later, *b.letters}), _summed(build, b, {*later, *a.letters})
    shared = [letter for letter in a.letters if letter in b.letters]
    inner = [letter for letter in shared if letter not in later]
    batch = [letter for letter in shared if letter in later]
    rows = [letter for letter in a.letters if letter not in shared]
    columns = [letter for letter in b.letters if letter not in shared]
    letters = "".join([*batch, *rows, *columns])

    def extents(of: Sequence[str]) -> list[int]:
        return [sizes[letter] for letter in of]

    def laid(x: _Named[T], order: Sequence[str], dims: Sequence[int]) -> T:
        moved = transposed(build, x.value, [x.letters.index(letter) for letter in order])
        return reshaped(build, moved, dims)

    if not inner:
        left = laid(a, [*batch, *rows], [*extents([*batch, *rows]), *(1 for _ in columns)])
        right = laid(b, [*batch, *columns], [*extents(batch), *(1 for _ in rows), *extents(columns)])
        return _Named(letters, build.apply("Mul", left, right))
    counts = [math.prod(extents(of)) for of in (rows, inner, columns)]
    left = laid(a, [*batch, *rows, *inner], [*extents(batch), *counts[:2]])
    right = laid(b, [*batch, *inner, *columns], [*extents(batch), *counts[1:]])
    made = build.apply("MatMul", left, right)
    return _Named(letters, reshaped(build, made, extents([*batch, *rows, *columns])))
