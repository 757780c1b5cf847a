"""Derivatives of functions as tensors, as in `torch.autograd.functional`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import enable_grad, grad
from vkml.tensors.creation import zeros

__all__ = ["hessian", "jacobian"]

Nested: TypeAlias = Any
"""A tensor, or a tuple of tensors, or of tuples of them."""


def jacobian(
    func: Callable[..., Any], inputs: Tensor | tuple[Tensor, ...], create_graph: bool = False,
    strict: bool = False, vectorize: bool = False, strategy: str = "reverse-mode",
) -> Nested:  # fmt: skip
    """The derivatives of all elements that a function makes by all elements that it is given.

    Args:
        func: of tensors, to a tensor or a tuple of them.
        inputs: that it is given: one, or a tuple.
        create_graph: whether gradients flow through the result.
        strict: whether what does not depend on an input is an error, instead of zeros.
        vectorize: without effect: derivatives are computed together in any case.
        strategy: "reverse-mode".

    Returns:
        For an output of shape [a] and an input of shape [b] a tensor of shape [a, b]; of tuples a tuple,
        those of outputs outside.

    Raises:
        RuntimeError: `strict`, and an output does not depend on an input.
        NotImplementedError: another strategy; see `vkml.func.jacfwd`.

    Example:
        >>> import vkml
        >>> vkml.autograd.functional.jacobian(lambda x: x * x, vkml.tensor([1.0, 2.0])).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    if strategy != "reverse-mode":
        raise NotImplementedError("jacobian: the strategy is 'reverse-mode'; vkml.func.jacfwd has the other")
    given = _as_tuple("inputs", inputs)
    with enable_grad():
        leaves = _leaves(given, create_graph)
        made = func(*leaves)
        outputs = _as_tuple("outputs", made)
        found = [_derivatives(output, leaves, create_graph, strict) for output in outputs]
    if not create_graph:
        found = [[part.detach() for part in parts] for parts in found]
    rows = [tuple(parts) if isinstance(inputs, tuple) else parts[0] for parts in found]
    return tuple(rows) if isinstance(made, tuple) else rows[0]


def hessian(
    func: Callable[..., Tensor], inputs: Tensor | tuple[Tensor, ...], create_graph: bool = False,
    strict: bool = False, vectorize: bool = False, outer_jacobian_strategy: str = "reverse-mode",
) -> Nested:  # fmt: skip
    """The second derivatives of a function to one number.

    Args:
        func: of tensors, to one of a single element.
        inputs: that it is given: one, or a tuple.
        create_graph: whether gradients flow through the result.
        strict: see `jacobian`.
        vectorize: see `jacobian`.
        outer_jacobian_strategy: see `jacobian`.

    Returns:
        For inputs of shapes [a] and [b] a tensor of shape [a, b]; of a tuple a tuple of tuples.

    Raises:
        RuntimeError: the function makes more than one element, or no tensor; see `jacobian`, too.

    Example:
        >>> import vkml
        >>> vkml.autograd.functional.hessian(lambda x: (x**3).sum(), vkml.tensor([1.0, 2.0])).tolist()
        [[6.0, 0.0], [0.0, 12.0]]
    """

    def slopes(*given: Tensor) -> tuple[Tensor, ...]:
        made = func(*given)
        if not isinstance(made, Tensor) or made.numel() != 1:
            raise RuntimeError("hessian: the function returns a tensor of a single element")
        # What a first derivative does not depend on has second ones of zero.
        parts = grad(op.reshape(made, ()), given, create_graph=True, allow_unused=True)
        if strict and any(part is None for part in parts):
            raise RuntimeError("hessian: the function does not depend on one of its inputs")
        return tuple([_zeros(x, ()) if part is None else part for x, part in zip(given, parts, strict=True)])

    found = jacobian(
        slopes, _as_tuple("inputs", inputs), create_graph, strict, vectorize, outer_jacobian_strategy
    )
    return found if isinstance(inputs, tuple) else found[0][0]


def _as_tuple(what: str, given: Any) -> tuple[Tensor, ...]:
    found = given if isinstance(given, tuple) else (given,)
    for each in found:
        if not isinstance(each, Tensor):
            raise TypeError(f"the {what} are a tensor or a tuple of tensors, not {type(each).__name__}")
    return found


def _leaves(given: Sequence[Tensor], is_tracked: bool) -> list[Tensor]:
    """Tensors that derivatives are taken by, made of those that are given where gradients are to flow."""
    if is_tracked:
        return [op.mul(x, 1) if x.requires_grad else x.detach().requires_grad_() for x in given]
    return [x.detach().requires_grad_() for x in given]


def _zeros(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return zeros(*shape, *x.shape, dtype=x.dtype, device=x.device)


def _derivatives(output: Tensor, leaves: Sequence[Tensor], is_tracked: bool, strict: bool) -> list[Tensor]:
    """By each leaf, the derivatives of all elements of an output."""
    shape = tuple(output.shape)
    rows: list[list[Tensor]] = [[] for _ in leaves]
    if not output.requires_grad:
        if strict:
            raise RuntimeError("jacobian: an output does not depend on the inputs")
        return [_zeros(leaf, shape) for leaf in leaves]
    flat = op.reshape(output, -1)
    for at in range(output.numel()):
        parts = grad(flat[at], leaves, retain_graph=True, create_graph=is_tracked, allow_unused=True)
        for row, leaf, part in zip(rows, leaves, parts, strict=True):
            if part is None and strict:
                raise RuntimeError("jacobian: an output does not depend on one of the inputs")
            row.append(_zeros(leaf, ()) if part is None else part)
    return [
        op.reshape(op.stack(row), *shape, *leaf.shape) if row else _zeros(leaf, shape)
        for row, leaf in zip(rows, leaves, strict=True)
    ]
