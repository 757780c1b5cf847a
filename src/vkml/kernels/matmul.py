"""Which kernel computes a matrix product: the rule's choice, and what else there is."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.ir.size import typical
from vkml.ir.wording import counted
from vkml.kernels import (
    gemm,
    gemv,
    half_product,
    half_weights,
    matrix_tiles,
    matrix_units,
    sliced,
    split_product,
)
from vkml.kernels.candidates import Candidate, described
from vkml.kernels.gemm import CYCLES, LAUNCH, Product
from vkml.kernels.unit_tiles import Choice
from vkml.kernels.views import View

if TYPE_CHECKING:
    from vkml.ir import TensorType
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder


def matmul(build: VulkanBuilder, a: View, b: View, result: TensorType) -> list[View]:
    """Emits a product with the epilogue on offer; returns the views of its results.

    Args:
        build: where the launches go.
        a: (batch, m, k).
        b: (batch, k, n).
        result: its type, of batch · m · n elements.
    """
    product = gemm.matrix_product(a, b, result)
    return build.select(
        lambda: f"matmul {described(a)} by {described(b)}", lambda: _candidates(build, product, a, b), a
    )


def _candidates(build: VulkanBuilder, product: Product, a: View, b: View) -> Iterator[Candidate]:
    """The rule's choice, then all others, that one among them."""
    target = build.target
    if gemv.fits(a, b):
        yield from gemv.candidates(build, product, a, b)
        # Few rows leave the tiles of other kernels empty, but for the least of them.
        yield from _in_tiles(build, product, a, b)
        return
    why = matrix_units.refusal(build, product, a, b)
    if not why:
        assert target.fragment is not None
        rule = matrix_units.rule_of(build, product, a, b)
        assert rule is not None
        yield _on_units(build, product, a, b, rule)
    product = replace(product, why_strict=why or "slower")
    shape = None if not why else sliced.choose(target, product)
    if shape is not None:
        yield _in_slices(build, product, a, b, shape)
    elif (halves := _rule_of_halves(build, product, a, b)) is not None:
        yield halves
    elif why:
        split = split_product.choose(target, product, has_kept=split_product.is_kept(build, b))
        if split is not None and split.time < _ordinary(target, product):
            yield _in_pieces(build, product, a, b, split)
    yield from _in_tiles(build, product, a, b)
    if target.fragment is not None and not matrix_units.refusal(build, product, a, b, is_rule=False):
        for choice in matrix_units.choices(target, target.fragment, product):
            yield _on_units(build, product, a, b, choice)
    for weights in half_weights.choices(target, product, a, b):
        yield _with_weights(build, product, a, b, weights)
    for units in half_product.choices(target, product, a, b):
        yield _of_halves(build, product, a, b, units)
    for pieces in split_product.choices(target, product, has_kept=split_product.is_kept(build, b)):
        yield _in_pieces(build, product, a, b, pieces)
    for other in sliced.shapes(target, product):
        yield _in_slices(build, product, a, b, other)


def _on_units(
    build: VulkanBuilder, product: Product, a: View, b: View, choice: matrix_tiles.Choice
) -> Candidate:
    return Candidate(
        choice.label(),
        choice.time,
        functools.partial(matrix_units.launch, build, product, a, b, choice),
        choice.tile.label(),
    )


def _ordinary(target: Target, product: Product) -> float:
    """The microseconds that ordinary arithmetic, or pieces of bfloat16, should take with storing results.

    Of short sums that is most: 96 × 512 × 512 × 64 at `high` took 156 µs, 96 × 512 × 64 × 512 86 (H200).
    """
    stored = product.result.dtype.itemsize * typical(product.batch * product.m * product.n)
    return gemm.estimate_ordinary(target, product) + stored / matrix_tiles.STORED


def _in_pieces(
    build: VulkanBuilder, product: Product, a: View, b: View, choice: split_product.Choice
) -> Candidate:
    return Candidate(
        choice.label(),
        choice.time,
        functools.partial(split_product.launch, build, product, a, b, choice),
        choice.tile.label(),
    )


def _rule_of_halves(build: VulkanBuilder, product: Product, a: View, b: View) -> Candidate | None:
    """The rule's choice of what multiplies halves as they are; None where it expects ordinary arithmetic, or
    pieces of them, to be faster."""
    found: list[tuple[float, Candidate]] = []
    if (weights := half_weights.choose(build.target, product, a, b)) is not None:
        found.append((weights.time, _with_weights(build, product, a, b, weights)))
    if (lying := half_product.choose(build.target, product, a, b)) is not None:
        found.append((LAUNCH + lying.cycles / CYCLES, _of_halves(build, product, a, b, lying)))
    if not found:
        return None
    time, candidate = min(found, key=lambda each: each[0])
    others = [_ordinary(build.target, product)]
    is_kept = split_product.is_kept(build, b)
    if (split := split_product.choose(build.target, product, has_kept=is_kept)) is not None:
        others.append(split.time)
    return candidate if time < min(others) else None


def _with_weights(
    build: VulkanBuilder, product: Product, a: View, b: View, choice: half_weights.Choice
) -> Candidate:
    return Candidate(
        choice.label(),
        choice.time,
        functools.partial(half_weights.launch, build, product, a, b, choice),
        choice.tile.label(),
    )


def _of_halves(
    build: VulkanBuilder, product: Product, a: View, b: View, choice: Choice[half_product.Tile]
) -> Candidate:
    return Candidate(
        f"{choice.tile.label()}, {counted(choice.splits, 'K range')}",
        LAUNCH + choice.cycles / CYCLES,
        functools.partial(half_product.launch, build, product, a, b, choice),
        choice.tile.label(),
    )


def _in_slices(build: VulkanBuilder, product: Product, a: View, b: View, shape: sliced.Shape) -> Candidate:
    return Candidate(
        shape.label(), None, functools.partial(sliced.launch, build, product, a, b, shape), "slices"
    )


def _in_tiles(build: VulkanBuilder, product: Product, a: View, b: View) -> Iterator[Candidate]:
    return gemm.tiled_candidates(build.target, product, functools.partial(gemm.matmul, build, product, a, b))
