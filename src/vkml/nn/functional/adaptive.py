"""Pooling to a given size: windows that divide an image as evenly as can be, and may overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.ir.dtypes import INT64
from vkml.nn.functional.arguments import batched, require_floats
from vkml.nn.functional.pool import _max_pool
from vkml.ops.resample import resampled
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tracing import EMITTER, apply, constant

Array = np.ndarray[Any, Any]
Target = int | None | Sequence[int | None]
"""A size for all spatial axes, or one for each; None leaves one as it is."""


def _target(x: Tensor, output_size: Target, rank: int, name: str) -> list[int]:
    own = x.shape[2:]
    given = list(output_size) if isinstance(output_size, Sequence) else [output_size] * rank
    if len(given) != rank:
        raise RuntimeError(f"{name}: output_size must be {rank} numbers, not {given}")
    wanted = [size if one is None else int(one) for one, size in zip(given, own, strict=True)]
    if min(wanted) < 0:
        raise RuntimeError(
            f"{name}: elements of output_size must be greater than or equal to 0, not {wanted}"
        )
    if 0 in own and 0 not in wanted:
        raise RuntimeError(
            f"{name}: expected input with spatial axes that are not empty, its shape is {list(x.shape)}"
        )
    return wanted


def _bounds(size: int, count: int) -> tuple[Array, Array]:
    """Where windows begin and end."""
    at = np.arange(count)
    return at * size // max(count, 1), -(-(at + 1) * size // max(count, 1))


def _divides(own: Sequence[int], wanted: Sequence[int]) -> bool:
    return all(one and not size % one for size, one in zip(own, wanted, strict=True))


def _places(size: int, count: int) -> tuple[Array, Array]:
    """The elements of each window, the last one again where a window is shorter, and which are its own."""
    starts, ends = _bounds(size, count)
    found = starts[:, None] + np.arange(max((ends - starts).max(initial=1), 1))
    return np.minimum(found, ends[:, None] - 1), found < ends[:, None]


def _adaptive_avg_pool(x: Tensor, output_size: Target, rank: int) -> Tensor:
    name = f"adaptive_avg_pool{rank}d"
    x, is_single = batched(x, rank, name)
    require_floats(x, name)
    wanted, own = _target(x, output_size, rank, name), x.shape[2:]
    if wanted == [1] * rank:
        made = op.mean(x, range(2, 2 + rank), True)
    elif _divides(own, wanted):
        kernel = tuple(size // one for size, one in zip(own, wanted, strict=True))
        made = Tensor(apply("AveragePool", x.value, kernel_shape=kernel, strides=kernel))
    else:
        tables: list[Any] = [None, None]
        for size, one in zip(own, wanted, strict=True):
            places, inside = _places(size, one)
            tables.append((places, (inside / inside.sum(1, keepdims=True)).astype(np.float32)))
        made = Tensor(resampled(EMITTER, x.value, tables))
    return made.squeeze(0) if is_single else made


def adaptive_avg_pool1d(input: Tensor, output_size: Target) -> Tensor:
    """Means of windows over one spatial axis; see `adaptive_avg_pool2d`."""
    return _adaptive_avg_pool(input, output_size, 1)


def adaptive_avg_pool2d(input: Tensor, output_size: Target) -> Tensor:
    """Means of windows over two spatial axes, so many that the result has a given size.

    Args:
        input: [batch, channels, *spatial], or without a batch.
        output_size: of all spatial axes, or of each; None leaves one as it is.

    Raises:
        RuntimeError: shapes do not fit.
    """
    return _adaptive_avg_pool(input, output_size, 2)


def adaptive_avg_pool3d(input: Tensor, output_size: Target) -> Tensor:
    """Means of windows over three spatial axes; see `adaptive_avg_pool2d`."""
    return _adaptive_avg_pool(input, output_size, 3)


def _adaptive_max_pool(x: Tensor, output_size: Target, return_indices: bool, rank: int) -> Any:
    name = f"adaptive_max_pool{rank}d"
    x, is_single = batched(x, rank, name)
    require_floats(x, name)
    wanted, own = _target(x, output_size, rank, name), x.shape[2:]
    if _divides(own, wanted):
        kernel = tuple(size // one for size, one in zip(own, wanted, strict=True))
        made = _max_pool(x, kernel, kernel, 0, 1, False, return_indices, rank)
    else:
        values, places = _greatest(x, own, wanted)
        made = (values, places) if return_indices else values
    if not is_single:
        return made
    return tuple(one.squeeze(0) for one in made) if return_indices else made.squeeze(0)


def _greatest(x: Tensor, own: Sequence[int], wanted: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Greatest elements of windows that are not alike, and where they are: each window's are looked up."""
    within: Array = np.zeros((), np.int64)
    for size, one in zip(own, wanted, strict=True):
        along, _ = _places(size, one)
        # [*windows of the axes before, *their elements] and this axis' → all windows, then all elements.
        within = within[..., None, None] * size + along
    rank = len(own)
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    within = within.transpose(order).reshape(math.prod(wanted), -1)
    planes = op.reshape(x, *x.shape[:2], -1)
    table = Tensor(constant(within, INT64))
    # Of equal elements the first is the greatest, as it is for windows that are alike.
    best = op.argmax(op.index_select(planes.detach(), 2, table), 3, True)
    each = op.expand(table, *x.shape[:2], *within.shape)
    places = op.squeeze(op.gather(each, 3, best), 3)
    values = op.gather(planes, 2, places)
    shape = [*x.shape[:2], *wanted]
    return op.reshape(values, *shape), op.reshape(places, *shape)


def adaptive_max_pool1d(input: Tensor, output_size: Target, return_indices: bool = False) -> Any:
    """Greatest elements of windows over one spatial axis; see `adaptive_max_pool2d`."""
    return _adaptive_max_pool(input, output_size, return_indices, 1)


def adaptive_max_pool2d(input: Tensor, output_size: Target, return_indices: bool = False) -> Any:
    """Greatest elements of windows over two spatial axes, so many that the result has a given size.

    Args:
        input: [batch, channels, *spatial], or without a batch.
        output_size: of all spatial axes, or of each; None leaves one as it is.
        return_indices: whether the places of the elements in their plane come, too.

    Returns:
        the elements; with `return_indices` a pair of these and their places.

    Raises:
        RuntimeError: shapes do not fit.
    """
    return _adaptive_max_pool(input, output_size, return_indices, 2)


def adaptive_max_pool3d(input: Tensor, output_size: Target, return_indices: bool = False) -> Any:
    """Greatest elements of windows over three spatial axes; see `adaptive_max_pool2d`."""
    return _adaptive_max_pool(input, output_size, return_indices, 3)
