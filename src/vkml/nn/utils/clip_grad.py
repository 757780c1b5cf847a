"""Limits to the gradients of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable

from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.creation import zeros

_LEAST = 1e-6
"""Added to the norm that is divided by, as PyTorch does."""


def _listed(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


@no_grad()
def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """The norm of tensors as if they were one vector.

    Args:
        tensors: of any shapes.
        norm_type: p of the p-norm, infinite for the greatest size.
        error_if_nonfinite: whether a norm that is infinite or NaN is an error; it is looked at, so that this
            cannot be captured.
        foreach: PyTorch's; makes no difference.

    Returns:
        a tensor of one element, on the first one's device.

    Raises:
        RuntimeError: the norm is not finite.
    """
    found = _listed(tensors)
    if not found:
        return zeros()
    norms = [op.norm(x.detach().reshape(-1), float(norm_type)).to(found[0].device) for x in found]
    total = op.norm(op.stack(norms), float(norm_type))
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it "
            "cannot be clipped. To disable this error and scale the gradients by the non-finite norm anyway, "
            "set `error_if_nonfinite=False`"
        )
    return total


@no_grad()
def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scales gradients of a known norm down to another, in place, where it is above it.

    Args:
        parameters: whose gradients.
        max_norm: the greatest norm.
        total_norm: of the gradients; see `get_total_norm`.
        foreach: PyTorch's; makes no difference.
    """
    factor = op.clamp(float(max_norm) / (total_norm + _LEAST), max=1.0)
    for parameter in _listed(parameters):
        if parameter.grad is not None:
            parameter.grad.mul_(factor.to(parameter.grad.device))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0,
    error_if_nonfinite: bool = False, foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scales gradients down, in place, where their norm as one vector is above a limit.

    Args:
        parameters: whose gradients.
        max_norm: the greatest norm.
        norm_type: p of the p-norm, infinite for the greatest size.
        error_if_nonfinite: see `get_total_norm`.
        foreach: PyTorch's; makes no difference.

    Returns:
        the norm of before.
    """
    found = _listed(parameters)
    gradients = [parameter.grad for parameter in found if parameter.grad is not None]
    total = get_total_norm(gradients, norm_type, error_if_nonfinite)
    clip_grads_with_norm_(found, max_norm, total)
    return total


@no_grad()
def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Limits each element of gradients to [-clip_value, clip_value], in place.

    Args:
        parameters: whose gradients.
        clip_value: the limit.
        foreach: PyTorch's; makes no difference.
    """
    limit = float(clip_value)
    for parameter in _listed(parameters):
        if parameter.grad is not None:
            parameter.grad.clamp_(-limit, limit)
