"""Epilogues for tests of kernels: leaves and results in guarded memory, and what NumPy makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.cpu.native.harness import Guarded, guarded, run
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue, Expression, Step
from vkml.cpu.native.kernel import Launch

Array = np.ndarray[Any, Any]
KINDS = ("identity", "bias_relu", "residual", "clip", "scalar", "long", "two_results", "gelu")
_BIAS_RELU = Expression(2, (Step("add", (0, 1)), Step("relu", (2,))), (3,))
_RESIDUAL = Expression(3, (Step("multiply", (0, 1)), Step("add", (3, 2))), (4,))
_CLIP = Expression(
    2,
    (
        Step("add", (0, 1)),
        Step("constant", number=-1.0),
        Step("maximum", (2, 3)),
        Step("constant", number=2.0),
        Step("minimum", (4, 5)),
    ),
    (6,),
)
_GELU = Expression(
    2,
    (
        Step("add", (0, 1)),
        Step("constant", number=0.5**0.5),
        Step("multiply", (2, 3)),
        Step("erf", (4,)),
        Step("constant", number=1.0),
        Step("add", (5, 6)),
        Step("constant", number=0.5),
        Step("multiply", (2, 8)),
        Step("multiply", (9, 7)),
    ),
    (10,),
)
_SCALAR = Expression(2, (Step("subtract", (0, 1)),), (2,))
_TWO = Expression(2, (Step("add", (0, 1)), Step("multiply", (0, 0))), (2, 3))


def _long() -> Expression:
    """(Σ n x)² as Σ n x Σ m x: nine values live at once, so that AVX2 has no registers left for a tile."""
    steps = [Step("constant", number=float(number)) for number in range(1, 10)]
    steps += [Step("multiply", (0, number)) for number in range(1, 10)]
    total = 10
    for part in range(11, 19):
        steps.append(Step("add", (total, part)))
        total = len(steps)
    products = []
    for part in range(10, 19):
        steps.append(Step("multiply", (part, total)))
        products.append(len(steps))
    result = products[0]
    for part in products[1:]:
        steps.append(Step("add", (result, part)))
        result = len(steps)
    return Expression(1, tuple(steps), (result,))


_LONG = _long()


def _gelu(x: Array) -> Array:
    made: Array = 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x * 0.5**0.5))
    return made


def strides_of(array: Array) -> tuple[int, ...]:
    """Of an array, in elements."""
    return tuple(stride // array.itemsize for stride in array.strides)


@dataclass(frozen=True)
class Ending:
    """An epilogue with its operands.

    Attributes:
        epilogue: over the index space.
        leaves: arrays or views, in the epilogue's order.
        results: likewise.
        evaluate: the kernel's result in float64 → the results.
        memories: of all operands.
    """

    epilogue: Epilogue
    leaves: Sequence[Array]
    results: Sequence[Array]
    evaluate: Callable[[Array], Sequence[Array]]
    memories: Sequence[Guarded]

    def check(
        self, launch: Launch, inputs: Sequence[Array], value: Array, *, rtol: float, atol: float = 0.0
    ) -> None:
        """Runs the launch on one thread and on all, and compares its results and the guards round them."""
        with np.errstate(all="ignore"):
            expected = self.evaluate(value.astype(np.float64))
        for serial in (True, False):
            for result in self.results:
                result[...] = 12345.0
            run(launch, [*inputs, *self.leaves, *self.results], serial=serial, parallel=not serial)
            for result, wanted in zip(self.results, expected, strict=True):
                np.testing.assert_allclose(result, wanted, rtol=rtol, atol=atol)
            for memory in self.memories:
                memory.check()

    def check_within(self, launch: Launch, inputs: Sequence[Array], value: Array, error: Array) -> None:
        """As `check`, with the bound of the kernel's own error given and the epilogue's derived.

        What the epilogue makes of a value that is wrong by as much as `error` allows, either way, and 6
        roundings of its own (32 of long ones, which have some 20) of what goes in or comes out.
        """
        value = value.astype(np.float64)
        with np.errstate(all="ignore"):
            expected, low, high = (self.evaluate(value + change) for change in (0, -error, error))
        size = np.abs(value) + sum(np.abs(leaf) for leaf in self.leaves)
        roundings = 32 if len(self.epilogue.expression.steps) > 20 else 6
        for serial in (True, False):
            for result in self.results:
                result[...] = 12345.0
            run(launch, [*inputs, *self.leaves, *self.results], serial=serial, parallel=not serial)
            for result, wanted, *ends in zip(self.results, expected, low, high, strict=True):
                with np.errstate(all="ignore"):
                    bound = np.maximum(*(np.abs(end - wanted) for end in ends))
                    bound += roundings * 2.0**-24 * (np.abs(wanted) + size)
                    difference = np.abs(result - wanted)
                # Infinities and NaN must be where they are expected: no bound covers them.
                is_same = (result == wanted) | (np.isnan(result) & np.isnan(wanted))
                wrong = ~is_same & ~(np.isfinite(wanted) & (difference <= bound))
                worst = np.max(difference[wrong] / bound[wrong], initial=0)
                assert not wrong.any(), f"{wrong.sum()} of {wrong.size}, {worst:.2f} times the bound"
            for memory in self.memories:
                memory.check()


def rounding_of_sums(a: Array, b: Array) -> Array:
    """What a product of matrices in float32 may be wrong by: 6 eps √k times what its sums are like.

    Sums of k terms of either sign are like √(Σ a² b²), and each of k roundings is of half a unit of that at
    most; they add up like a random walk: six times its spread.
    """
    inner = a.shape[-1]
    size = np.sqrt(np.square(a, dtype=np.float64) @ np.square(b, dtype=np.float64))
    made: Array = 6 * 2.0**-24 * (inner**0.5 + 2) * size
    return made


def _wide(shape: Sequence[int], random: np.random.Generator) -> tuple[Guarded, Array]:
    """A view whose last axis is contiguous, its other axes now and then with room between."""
    whole = [size + int(random.integers(3)) * int(random.random() < 0.3) for size in shape]
    memory, array = guarded(
        random.standard_normal(whole).astype(np.float32), at_start=bool(random.integers(2))
    )
    corner = tuple(slice(extent - size, None) for extent, size in zip(whole, shape, strict=True))
    return memory, array[corner]


def make_ending(kind: str, shape: Sequence[int], random: np.random.Generator) -> Ending:
    """An epilogue of a kind over a space; results are views of guarded memory."""
    memories: list[Guarded] = []
    shape = tuple(shape)

    def leaf(extents: Sequence[int]) -> Array:
        memory, array = guarded(random.standard_normal(extents).astype(np.float32))
        memories.append(memory)
        return np.broadcast_to(array, shape)

    def result() -> Array:
        memory, array = _wide(shape, random)
        memories.append(memory)
        return array

    last = (*(1 for _ in shape[:-1]), shape[-1])
    results = [result()]
    leaves: list[Array] = []
    expression = IDENTITY
    evaluate: Callable[[Array], Sequence[Array]]
    if kind == "identity":
        evaluate = lambda value: [value]  # noqa: E731
    elif kind == "bias_relu":
        expression, leaves = _BIAS_RELU, [leaf(last)]
        evaluate = lambda value: [np.maximum(value + leaves[0], 0)]  # noqa: E731
    elif kind == "gelu":
        expression, leaves = _GELU, [leaf(last)]
        evaluate = lambda value: [_gelu(value + leaves[0])]  # noqa: E731
    elif kind == "clip":
        expression, leaves = _CLIP, [leaf(last)]
        evaluate = lambda value: [np.clip(value + leaves[0], -1, 2)]  # noqa: E731
    elif kind == "residual":
        memory, residual = _wide(shape, random)
        memories.append(memory)
        expression, leaves = _RESIDUAL, [leaf((*shape[:-1], 1)), residual]
        evaluate = lambda value: [value * leaves[0] + leaves[1]]  # noqa: E731
    elif kind == "scalar":
        expression, leaves = _SCALAR, [leaf((1,) * len(shape))]
        evaluate = lambda value: [value - leaves[0]]  # noqa: E731
    elif kind == "long":
        expression = _LONG
        evaluate = lambda value: [(45 * value) ** 2]  # noqa: E731
    else:
        expression, leaves = _TWO, [leaf(last)]
        results.append(result())
        evaluate = lambda value: [value + leaves[0], value * value]  # noqa: E731
    epilogue = Epilogue(
        expression,
        tuple(Access(strides_of(view)) for view in leaves),
        tuple(Access(strides_of(view)) for view in results),
    )
    return Ending(epilogue, leaves, results, evaluate, memories)
