"""Gradients compared with finite differences, as `torch.autograd.gradcheck`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkml.errors import NotDifferentiable
from vkml.tensors import Tensor
from vkml.tensors.autograd import enable_grad, grad, no_grad
from vkml.tensors.creation import tensor
from vkml.tensors.trees import tensors_in

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


class GradcheckError(NotDifferentiable):
    """A gradient is not what finite differences say."""


def gradcheck(
    func: Function,
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Whether gradients through a function are those that finite differences say.

    Args:
        func: of the inputs; gives a tensor, or several.
        inputs: its arguments; those that require grad are varied, which wants float64.
        eps: by how much.
        atol: the difference that is allowed besides `rtol` of the number.
        rtol: the part of a number that a gradient may be off.
        raise_exception: whether a difference is an error, and not only False.

    Raises:
        ValueError: no input requires grad.
        GradcheckError: a gradient is another one; a RuntimeError, too.

    Example:
        >>> import vkml
        >>> x = vkml.ones(3, dtype=vkml.float64, requires_grad=True)
        >>> vkml.autograd.gradcheck(lambda x: (x * x).sum(), (x,))
        True
    """
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    varied = [at for at, each in enumerate(given) if isinstance(each, Tensor) and each.requires_grad]
    if not varied:
        raise ValueError("gradcheck: at least one input has to require grad")
    count = len(_outputs(func, given))
    try:
        for place in range(count):
            found = _stated(func, given, varied, place)
            for at, jacobian in zip(varied, found, strict=True):
                _compare(jacobian, _measured(func, given, at, place, eps), at, place, atol, rtol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Function,
    inputs: Tensor | Sequence[Any],
    grad_outputs: Tensor | Sequence[Tensor] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """`gradcheck` of a function's gradients: whether those of the second order are right.

    Args:
        func: as there.
        inputs: as there.
        grad_outputs: what each element of the outputs counts; drawn at random where left out.
        eps: as there.
        atol: as there.
        rtol: as there.
        raise_exception: as there.

    Raises:
        ValueError: no input requires grad.
        GradcheckError: a gradient is another one.
    """
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    varied = [at for at, each in enumerate(given) if isinstance(each, Tensor) and each.requires_grad]
    if grad_outputs is None:
        drawn = np.random.default_rng(0)
        counts = [
            tensor(drawn.standard_normal(tuple(each.shape)).astype(each.dtype.storage), device=each.device)
            for each in _outputs(func, given)
        ]
    else:
        counts = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    counts = [each.detach().requires_grad_() for each in counts]

    def gradients(*arguments: Any) -> tuple[Tensor, ...]:
        own, weights = arguments[: len(given)], arguments[len(given) :]
        with enable_grad():
            starts = [
                own[at] if own[at].requires_grad else own[at].detach().requires_grad_() for at in varied
            ]
            own = tuple(starts[varied.index(at)] if at in varied else each for at, each in enumerate(own))
            found = grad(_outputs(func, own), starts, weights, create_graph=True, materialize_grads=True)
        return tuple([each for each in found if each is not None and each.requires_grad])

    return gradcheck(
        gradients, (*given, *counts), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception
    )


def _outputs(func: Function, given: Sequence[Any]) -> list[Tensor]:
    """The tensors of floats that a function gives."""
    return [each for each in tensors_in(func(*given)) if each.dtype.is_float]


def _stated(func: Function, given: Sequence[Any], varied: Sequence[int], place: int) -> list[Array]:
    """The Jacobians [elements of the output, elements of the input] that gradients make up."""
    starts = [given[at] for at in varied]
    output = _outputs(func, given)[place].reshape(-1)
    found: list[list[Array]] = [[] for _ in varied]
    for at in range(output.numel()):
        if not output.requires_grad:
            break
        rows = grad(output[at], starts, retain_graph=True, materialize_grads=True)
        for jacobian, row in zip(found, rows, strict=True):
            assert row is not None
            jacobian.append(row.detach().numpy().reshape(-1))
    sizes = [start.numel() for start in starts]
    return [
        np.stack(rows) if rows else np.zeros((output.numel(), size))
        for rows, size in zip(found, sizes, strict=True)
    ]


def _measured(func: Function, given: Sequence[Any], at: int, place: int, eps: float) -> Array:
    """The Jacobian by differences to both sides."""
    start: Array = given[at].detach().numpy()
    columns = []
    for element in range(start.size):
        sides = []
        for step in (eps, -eps):
            moved = start.copy()
            moved.reshape(-1)[element] += step
            own = list(given)
            own[at] = tensor(moved, device=given[at].device)
            with no_grad():
                sides.append(_outputs(func, own)[place].detach().numpy().reshape(-1).astype(np.float64))
        columns.append((sides[0] - sides[1]) / (2 * eps))
    return np.stack(columns, 1) if columns else np.zeros((_outputs(func, given)[place].numel(), 0))


def _compare(found: Array, wanted: Array, at: int, place: int, atol: float, rtol: float) -> None:
    if np.allclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True):
        return
    off = np.abs(found - wanted) - rtol * np.abs(wanted)
    row, column = np.unravel_index(int(np.nanargmax(off)), off.shape)
    raise GradcheckError(
        f"the gradient of output {place} by input {at} is not what finite differences say: of element "
        f"{row} by element {column} {found[row, column]:.6g} instead of {wanted[row, column]:.6g} (inputs of "
        "less than float64 are too coarse for this)"
    )
