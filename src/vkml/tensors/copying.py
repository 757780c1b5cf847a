"""Copies of tensors, as `copy` and `pickle` ask for them: leaves, of the elements and not of the history."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.errors import NotDifferentiable
from vkml.tensors.views import untracked
from vkml.tracing.value import Traced

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def shallow(tensor: Tensor) -> Tensor:
    """Another tensor of the same elements, as `detach` gives one, without its gradient."""
    alike = tensor.detach().value
    made = _leaf(type(tensor), alike, tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    return made


def deep(tensor: Tensor, memo: dict[Any, Any]) -> Tensor:
    """One with the same elements and gradient, and copies of what a program has given it.

    Raises:
        RuntimeError: it is no leaf.
    """
    if not tensor.is_leaf:
        raise NotDifferentiable("only leaves can be copied deeply: use clone() or detach()")
    made = memo[id(tensor)] = _leaf(type(tensor), untracked(tensor.value), tensor.requires_grad)
    made.grad = deepcopy(tensor.grad, memo)
    made.__dict__.update(deepcopy(tensor.__dict__, memo))
    return made


def reduced(tensor: Tensor) -> tuple[Any, ...]:
    """What `pickle` keeps: elements, where these are, and whether gradients are wanted of them."""
    given = type(tensor), tensor.detach().numpy(), tensor.device, tensor.requires_grad
    return _unpickled, given, tensor.__dict__ or None


def _unpickled(kind: type[Tensor], elements: np.ndarray[Any, Any], device: str, wanted: bool) -> Tensor:
    from vkml.tensors.creation import as_tensor

    return _leaf(kind, as_tensor(elements, device=device).value, wanted)


def _leaf(kind: type[Tensor], value: Traced, is_wanted: bool) -> Tensor:
    from vkml.tensors.tensor import Tensor

    made = kind.__new__(kind)
    Tensor.__init__(made, value)
    return made.requires_grad_() if is_wanted else made
