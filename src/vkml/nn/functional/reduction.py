"""What losses share: reductions, forms of elements, checks of shapes."""

from __future__ import annotations

from collections.abc import Callable

from vkml.ir.gradients import pointwise
from vkml.ir.scalar import Scalar
from vkml.nn.functional.arguments import require_floats
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.operands import check_broadcast, value_as
from vkml.tensors.promotion import result_type
from vkml.tracing import EMITTER


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """The mean or the sum of losses, or all of them.

    Raises:
        ValueError: the reduction is none of these.
    """
    if reduction == "mean":
        return op.mean(loss)
    if reduction == "sum":
        return op.sum(loss)
    if reduction == "none":
        return loss
    raise ValueError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r}")


def written(form: Callable[..., Scalar], *operands: Tensor) -> Tensor:
    """A form of one element of each tensor, which are broadcast and converted to their common type."""
    kind = result_type(*operands)
    for at, one in enumerate(operands[1:]):
        for other in operands[: at + 1]:
            check_broadcast(other.shape, one.shape)
    return Tensor(pointwise(EMITTER, form, *(value_as(operand, kind) for operand in operands)))


def weighted(loss: Tensor, weight: Tensor | None) -> Tensor:
    """Losses times factors, where there are any."""
    return loss if weight is None else op.mul(loss, weight)


def require_shape(
    target: Tensor, wanted: tuple[int, ...], name: str, kind: type[Exception] = ValueError
) -> None:
    """Raises where a target has another shape."""
    if tuple(target.shape) != tuple(wanted):
        raise kind(f"{name}: the target must have the shape {list(wanted)}, it has {list(target.shape)}")


def require_float_input(input: Tensor, name: str) -> None:
    """Raises a RuntimeError where a loss is not of floats."""
    require_floats(input, name)
