"""Random tensors: distributions made, on the device, of a generator's words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.ir import DType, dtypes, scalar
from vkml.ir.dtypes import FLOAT32, FLOAT64, UINT32, UINT64
from vkml.ir.gradients import converted, expanded, expression, reshaped, sliced
from vkml.ir.scalar import Scalar, argument, convert
from vkml.ops.random_numbers import exponential_form, normal_forms, uniform_form, wide_type, words_each
from vkml.tensors.capture import is_capturing
from vkml.tensors.creation import _sizes
from vkml.tensors.elementwise import add, div, lt, mul
from vkml.tensors.generator import Generator, generator_of
from vkml.tensors.operands import value_as
from vkml.tensors.promotion import checked, get_default_dtype
from vkml.tensors.shapes import topk
from vkml.tensors.tensor import Tensor
from vkml.tracing import EMITTER, Traced, apply, number
from vkml.tracing.value import tracking


def _floating(dtype: DType | None) -> DType:
    kind = checked(dtype) or get_default_dtype()
    if kind.is_complex:
        raise RuntimeError(
            f"random numbers of {kind.numpy_name}: draw their parts, for vkml.complex(real, imag)"
        )
    if not kind.is_float:
        raise RuntimeError(f"random numbers of {kind.numpy_name} are made by randint")
    return kind


def _count(size: Sequence[int]) -> int:
    if any(one < 0 for one in size):
        raise RuntimeError(f"sizes are not negative: {list(size)}")
    return math.prod(size)


# -- words as numbers ----------------------------------------------------------------------------------------


def _words(stream: Generator, count: int, each: int) -> list[Traced]:
    """`each` words for each of `count` elements, by place."""
    drawn = stream.draw(count * each)
    return [sliced(EMITTER, drawn, 0, at * count, (at + 1) * count) for at in range(each)]


def _formed(form: Scalar, values: Sequence[Traced], dtype: DType, size: Sequence[int]) -> Traced:
    return reshaped(EMITTER, expression(EMITTER, form, values, dtype), tuple(size))


def uniform_value(stream: Generator, size: Sequence[int], dtype: DType, low: float, high: float) -> Traced:
    """Numbers from [low, high), equally likely."""
    wide, form = wide_type(dtype), uniform_form(dtype)
    words = _words(stream, _count(size), words_each(dtype))
    if (low, high) == (0, 1):
        return _formed(form, words, dtype, size)
    start, span = (argument(len(words) + at, wide) for at in range(2))
    given = [*words, number(low, wide), number(high - low, wide)]
    return _formed(form * span + start, given, dtype, size)


def normal_value(stream: Generator, size: Sequence[int], dtype: DType) -> Traced:
    """Normally distributed numbers of mean 0 and variance 1."""
    count = _count(size)
    words = _words(stream, -(-count // 2), 2 * words_each(dtype))
    halves = [expression(EMITTER, form, words, dtype) for form in normal_forms(dtype)]
    joined = apply("Concat", *halves, axis=0)
    return reshaped(EMITTER, sliced(EMITTER, joined, 0, 0, count), tuple(size))


def exponential_value(stream: Generator, size: Sequence[int], dtype: DType, rate: float) -> Traced:
    """Numbers of an exponential distribution, above 0."""
    wide, found = wide_type(dtype), exponential_form(dtype)
    words = _words(stream, _count(size), words_each(dtype))
    by = argument(len(words), wide)
    return _formed(found / by, [*words, number(rate, wide)], dtype, size)


def bernoulli_value(stream: Generator, size: Sequence[int], dtype: DType, p: Tensor | float) -> Traced:
    """1 with probabilities, else 0."""
    if isinstance(p, int | float) and not 0 <= p <= 1:
        raise RuntimeError(f"a probability lies in [0, 1], {p} does not")
    with tracking(False):
        drawn = Tensor(uniform_value(stream, size, FLOAT32, 0, 1))
        is_one = lt(drawn, Tensor(value_as(p, FLOAT32))).value
        return expanded(EMITTER, converted(EMITTER, is_one, dtype), size)


def integers_value(stream: Generator, size: Sequence[int], dtype: DType, low: int, high: int) -> Traced:
    """Integers from [low, high), equally likely."""
    span = high - low
    if span <= 0:
        raise RuntimeError(f"random integers of [{low}, {high}): there are none")
    if span > 1 << 64:
        raise RuntimeError(f"random integers of [{low}, {high}): more than 64 bits")
    words = _words(stream, _count(size), 2 if span > _LARGE else 1)
    if span > _LARGE:
        high_word, low_word = (convert(argument(at, UINT32), UINT64) for at in range(2))
        found = scalar.binary("left_shift", high_word, 32) | low_word
    else:
        found = argument(0, UINT32)
    if span < 1 << 64:
        found = scalar.binary("mod", found, span)
    wide = scalar.arithmetic_type(dtype)
    return _formed(convert(found, dtype) + scalar.constant(low, wide), words, dtype, size)


_LARGE = 1 << 24
"""Ranges beyond this take 64 bits: the remainder of 32 would favour some numbers by more than 1 in 256."""


def _made(value: Traced, requires_grad: bool = False) -> Tensor:
    made = Tensor(value)
    return made.requires_grad_() if requires_grad else made


# -- functions -----------------------------------------------------------------------------------------------


def rand(
    *size: Any, generator: Generator | None = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Numbers from [0, 1), equally likely.

    Args:
        *size: its shape, one by one or as one sequence.
        generator: of the device; None: the device's own.
        dtype: a floating-point type; None: the default type.
        device: its name; None: the generator's, else the CPU.
        requires_grad: whether gradients by it are wanted.

    Raises:
        RuntimeError: the type is none of floats, or the generator is of another device.
    """
    stream = generator_of(device, generator)
    return _made(uniform_value(stream, _sizes(size), _floating(dtype), 0, 1), requires_grad)


def randn(
    *size: Any, generator: Generator | None = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Numbers of the normal distribution of mean 0 and variance 1.

    Args:
        *size: its shape, one by one or as one sequence.
        generator: of the device; None: the device's own.
        dtype: a floating-point type; None: the default type.
        device: its name; None: the generator's, else the CPU.
        requires_grad: whether gradients by it are wanted.

    Raises:
        RuntimeError: the type is none of floats, or the generator is of another device.
    """
    stream = generator_of(device, generator)
    return _made(normal_value(stream, _sizes(size), _floating(dtype)), requires_grad)


def randint(
    low: int, high: Any = None, size: Any = None, *, generator: Generator | None = None,
    dtype: DType | None = None, device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Integers from [low, high), equally likely; `randint(high, size)` has them from 0 on.

    Args:
        low: the least number.
        high: one more than the greatest number.
        size: its shape, as a tuple or a list.
        generator: of the device; None: the device's own.
        dtype: of its elements; None: int64.
        device: its name; None: the generator's, else the CPU.
        requires_grad: whether gradients by it are wanted; of floats alone.

    Raises:
        RuntimeError: there are no such numbers, or the generator is of another device.
    """
    if size is None:
        low, high, size = 0, low, high
    if not isinstance(size, tuple | list):
        raise TypeError(f"randint takes a size like (2, 3), not {size!r}")
    kind = checked(dtype) or dtypes.INT64
    stream = generator_of(device, generator)
    return _made(integers_value(stream, size, kind, int(low), int(high)), requires_grad)


def randperm(
    n: int, *, generator: Generator | None = None, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """The numbers from 0 to n - 1 in any order, all equally likely.

    Args:
        n: how many numbers.
        generator: of the device; None: the device's own.
        dtype: of its elements; None: int64.
        device: its name; None: the generator's, else the CPU.

    Returns:
        [n].

    Raises:
        RuntimeError: their number is below 0.
    """
    if n < 0:
        raise RuntimeError(f"randperm needs a number of at least 0, not {n}")
    # Sorted by 64 random bits: first by the low word, then, keeping that order among equals, by the high one.
    low, high = _words(generator_of(device, generator), n, 2)
    places = topk(Tensor(low), n, largest=False)[1]
    order = topk(Tensor(high)[places], n, largest=False)[1]
    return places[order].to(checked(dtype) or dtypes.INT64)


def rand_like(x: Tensor, *, generator: Generator | None = None, dtype: DType | None = None,
              device: Any = None, requires_grad: bool = False) -> Tensor:  # fmt: skip
    """`rand` of the shape of another tensor.

    Args:
        x: whose shape it is.
        generator: of the device; None: the device's own.
        dtype: a floating-point type; None: that of `x`.
        device: where it is; None: where `x` is.
        requires_grad: whether gradients by it are wanted.
    """
    return rand(
        *x.shape, generator=generator, dtype=dtype or x.dtype, device=device or x.device,
        requires_grad=requires_grad,
    )  # fmt: skip


def randn_like(x: Tensor, *, generator: Generator | None = None, dtype: DType | None = None,
               device: Any = None, requires_grad: bool = False) -> Tensor:  # fmt: skip
    """`randn` of the shape of another tensor.

    Args:
        x: whose shape it is.
        generator: of the device; None: the device's own.
        dtype: a floating-point type; None: that of `x`.
        device: where it is; None: where `x` is.
        requires_grad: whether gradients by it are wanted.
    """
    return randn(
        *x.shape, generator=generator, dtype=dtype or x.dtype, device=device or x.device,
        requires_grad=requires_grad,
    )  # fmt: skip


def randint_like(
    x: Tensor, low: int, high: int | None = None, *, generator: Generator | None = None,
    dtype: DType | None = None, device: Any = None,
) -> Tensor:  # fmt: skip
    """`randint` of the shape of another tensor.

    Args:
        x: whose shape it is.
        low: the least number; where it is the only one, the end of numbers from 0 on.
        high: one more than the greatest number.
        generator: of the device; None: the device's own.
        dtype: of its elements; None: that of `x`.
        device: where it is; None: where `x` is.
    """
    low, high = (0, low) if high is None else (low, high)
    return randint(
        low, high, tuple(x.shape), generator=generator, dtype=dtype or x.dtype, device=device or x.device
    )


def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 where a random number of [0, 1) is below an element of `input`, or below `p`; else 0.

    Args:
        input: probabilities, floats; with `p`, only its shape and type matter.
        p: one probability for all.
        generator: of the input's device.
    """
    if p is None and not input.dtype.is_float:
        raise RuntimeError(f"probabilities are floats, not {input.dtype.numpy_name}")
    stream = generator_of(input.device, generator)
    return Tensor(bernoulli_value(stream, input.shape, input.dtype, input if p is None else p))


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Numbers of columns, drawn with probabilities in proportion to each row's elements.

    Args:
        input: weights [categories] or [rows, categories], floats of at least 0, not all 0 in a row.
        num_samples: how many to draw of each row.
        replacement: whether a column may be drawn more than once.
        generator: of the input's device.

    Returns:
        int64 of [num_samples] or [rows, num_samples].

    Raises:
        RuntimeError: there are not enough columns to draw; on the CPU, where nothing is captured, also where
            elements are negative, infinite or NaN, or a row has no sum above 0.
    """
    if input.ndim not in (1, 2) or not input.dtype.is_float:
        raise RuntimeError("weights to draw by are floats [categories] or [rows, categories]")
    columns = input.shape[-1]
    if num_samples < 1 or not columns:
        raise RuntimeError("multinomial draws at least one sample of at least one category")
    if not replacement and num_samples > columns:
        raise RuntimeError(f"{num_samples} samples of {columns} categories need replacement")
    weights = input.detach()
    if input.device == "cpu" and not is_capturing():
        found = weights._elements().astype(np.float64)
        if not (np.isfinite(found) & (found >= 0)).all():
            raise RuntimeError("a weight to draw by is negative, infinite or NaN")
        if (found.sum(-1) <= 0).any():
            raise RuntimeError("weights to draw by have no sum above 0")
    stream = generator_of(input.device, generator)
    with tracking(False):
        weights = weights.to(FLOAT64 if input.dtype == FLOAT64 else FLOAT32)
        times = num_samples if replacement else 1
        rows = tuple(input.shape[:-1])
        # Of exponential waiting times with these rates, the first is a column's in proportion to its rate;
        # and those that come first are draws without replacement (P. Efraimidis and P. Spirakis, 2006).
        waiting = Tensor(exponential_value(stream, (*rows, times, columns), weights.dtype, 1.0))
        race = div(weights.unsqueeze(-2), waiting)
        if replacement:
            return race.argmax(-1)
        return topk(race, num_samples)[1].squeeze(-2)


def normal(
    mean: Any, std: Any = 1.0, size: Sequence[int] | None = None, *, generator: Generator | None = None,
    dtype: DType | None = None, device: Any = None,
) -> Tensor:  # fmt: skip
    """Numbers of normal distributions.

    Args:
        mean: of all, or a tensor of those of each element.
        std: likewise; not negative.
        size: the shape; only where both are numbers.
        generator: of the device.
        dtype: the default type where both are numbers, else the tensors'.
        device: where both are numbers.
    """
    given = [one for one in (mean, std) if isinstance(one, Tensor)]
    if not isinstance(std, Tensor) and std < 0:
        raise RuntimeError(f"a standard deviation is not negative: {std}")
    if not given:
        if size is None:
            raise TypeError("normal() of numbers needs a size")
        drawn = randn(*size, generator=generator, dtype=dtype, device=device)
        return add(mul(drawn, std), mean)
    shape = np.broadcast_shapes(*(tuple(one.shape) for one in given))
    stream = generator_of(given[0].device, generator)
    return add(mul(Tensor(normal_value(stream, shape, given[0].dtype)), std), mean)
