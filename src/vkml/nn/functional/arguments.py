"""What functions of layers take: sizes by axis, element types, tensors with a batch or without."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.ir import DType
from vkml.ir.gradients import expanded
from vkml.tensors import Tensor
from vkml.tracing import EMITTER, Traced, number

Sizes = int | Sequence[int]
"""A number for all spatial axes, or one for each."""


def sizes(given: Sizes, rank: int, what: str) -> tuple[int, ...]:
    """One number for each of `rank` spatial axes.

    Raises:
        RuntimeError: there are more or fewer.
    """
    if isinstance(given, int):
        return (given,) * rank
    found = tuple(int(one) for one in given)
    if len(found) == 1:
        return found * rank
    if len(found) != rank:
        raise RuntimeError(f"{what} is an integer or {rank} of them, not {list(found)}")
    return found


def require_floats(x: Tensor, what: str) -> None:
    """Raises a RuntimeError where a tensor is not of floats."""
    if not x.dtype.is_float:
        raise RuntimeError(
            f"{what} is not implemented for {x.dtype.numpy_name}: convert the tensor to floats"
        )


def require_alike(x: Tensor, other: Tensor | None, what: str) -> None:
    """Raises a RuntimeError where two tensors are not of one element type."""
    if other is not None and other.dtype != x.dtype:
        raise RuntimeError(
            f"{what} has the type {other.dtype.numpy_name}, the input {x.dtype.numpy_name}: they must be "
            "the same"
        )


def batched(x: Tensor, rank: int, what: str) -> tuple[Tensor, bool]:
    """An input [batch, channels, *spatial], and whether it came without its batch.

    Raises:
        RuntimeError: it has neither form.
    """
    if x.ndim == rank + 2:
        return x, False
    if x.ndim == rank + 1:
        return x.unsqueeze(0), True
    raise RuntimeError(
        f"{what} takes an input of {rank + 1} axes, or of {rank + 2} with a batch; this has the shape "
        f"{list(x.shape)}"
    )


def finished(x: Tensor, start: int, made: Tensor, inplace: bool) -> Tensor:
    """What was made of `x`, or `x` itself, which takes its elements.

    Args:
        x: a tensor.
        start: what was applied to `x` has no serial below it.
        made: of it.
        inplace: whether `x` takes the elements.
    """
    return x._become(made, start) if inplace else made


def throughout(value: float, dtype: DType, dims: Sequence[int]) -> Traced:
    """A number for every element of a shape."""
    return expanded(EMITTER, number(value, dtype), dims)
