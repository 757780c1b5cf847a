"""Gradients: whether they flow, and asked for directly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from vkml.errors import NotDifferentiable
from vkml.tensors.anomaly import check_values
from vkml.tensors.backward import compute_deep, cotangent_of, gradient_check, hooked, run_backward
from vkml.tensors.creation import zeros_like
from vkml.tensors.tensor import Tensor
from vkml.tracing import gradients
from vkml.tracing.gradient import release, tracked
from vkml.tracing.value import mode, tracking

F = TypeVar("F", bound=Callable[..., Any])


class set_grad_enabled:
    """A context, or a decorator, in which gradients flow through what is computed, or not.

    Args:
        mode: whether they flow. It counts from here on in a ``with`` block, or in calls of what it decorates.
    """

    def __init__(self, mode: bool) -> None:
        self._mode = mode
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(mode.tracks)
        mode.tracks = self._mode

    def __exit__(self, *_: object) -> None:
        mode.tracks = self._before.pop()

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def within(*arguments: Any, **named: Any) -> Any:
            with type(self)(self._mode):
                return function(*arguments, **named)

        return cast(F, within)


class _Switch(set_grad_enabled):
    """A context, or a decorator with or without parentheses."""

    _flows: bool

    def __new__(cls, function: Any = None) -> Any:
        made = super().__new__(cls)
        if function is None:
            return made
        made.__init__()  # type: ignore[misc]
        return made(function)

    def __init__(self) -> None:
        super().__init__(self._flows)

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def within(*arguments: Any, **named: Any) -> Any:
            with type(self)():
                return function(*arguments, **named)

        return cast(F, within)


class no_grad(_Switch):
    """A context, or a decorator, in which no gradients flow through what is computed.

    Args:
        function: what is decorated; left out where it is a context.
    """

    _flows = False


class enable_grad(_Switch):
    """A context, or a decorator, in which gradients flow again.

    Args:
        function: what is decorated; left out where it is a context.
    """

    _flows = True


class inference_mode(set_grad_enabled):
    """As `no_grad`; and what is made in it is for no gradients at all.

    Those that would read a tensor which was made in it are refused; a `clone` of it is a tensor like others.

    Args:
        mode: False: gradients flow again.
    """

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode)
        self._inferred: list[bool] = []

    def __enter__(self) -> None:
        super().__enter__()
        self._inferred.append(mode.infers)
        mode.infers = not self._mode

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        mode.infers = self._inferred.pop()

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def within(*arguments: Any, **named: Any) -> Any:
            with inference_mode(not self._mode):
                return function(*arguments, **named)

        return cast(F, within)


def forget_gradients(tensors: Iterable[Tensor], set_to_none: bool = True) -> None:
    """Takes the gradients of tensors away, or makes them zeros."""
    for tensor in tensors:
        if set_to_none or tensor.grad is None:
            tensor.grad = None
        else:
            tensor.grad = tensor.grad.detach().zero_()


def is_grad_enabled() -> bool:
    """Whether gradients flow through what this thread computes."""
    return mode.tracks


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    *,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The sum of the gradients of outputs by each of the inputs, which keep their own `grad`.

    Args:
        outputs: what is differentiated.
        inputs: by what.
        grad_outputs: what each element of the outputs counts; may be left out for single elements.
        retain_graph: whether the outputs can be differentiated once more.
        create_graph: whether the gradients can be differentiated in turn.
        allow_unused: whether inputs may have nothing to do with the outputs; their gradient is None. As
            `materialize_grads` where left out.
        materialize_grads: whether their gradients are zeros instead.
    """
    if allow_unused is False and materialize_grads:
        raise ValueError("materialize_grads gives zeros for inputs that allow_unused=False refuses")
    ends = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    starts = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    given = [None] * len(ends) if grad_outputs is None else grad_outputs
    counts = [given] if isinstance(given, Tensor) else list(given)
    if len(counts) != len(ends):
        raise RuntimeError(f"there are {len(counts)} grad_outputs for {len(ends)} outputs")
    for end in ends:
        if not end.requires_grad:
            raise NotDifferentiable("an output does not require grad")
    if mode.finds_nan:
        check_values([end.value for end in ends])
    with tracking(create_graph):
        cotangents = [cotangent_of(end, count) for end, count in zip(ends, counts, strict=True)]
        made = gradients(
            [end.value for end in ends],
            cotangents,
            [start.value for start in starts],
            hooked,
            checked=gradient_check(),
        )
    if not (allow_unused or materialize_grads) and any(found is None for found in made):
        raise NotDifferentiable("an input was not used for the outputs: allow_unused=True gives None for it")
    if not (create_graph if retain_graph is None else retain_graph):
        release(tracked([end.value for end in ends]))
    compute_deep(made)
    found = [None if gradient is None else Tensor(gradient) for gradient in made]
    if materialize_grads:
        return tuple([zeros_like(x) if one is None else one for x, one in zip(starts, found, strict=True)])
    return tuple(found)


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Adds the gradients of tensors by every leaf that requires grad to the leaf's `grad`.

    Args:
        tensors: what is differentiated.
        grad_tensors: what each of their elements counts; may be left out for single elements.
        retain_graph: whether they can be differentiated once more; as `create_graph` where left out.
        create_graph: whether the gradients can be differentiated in turn.
        inputs: what is given gradients; all leaves where left out.
    """
    ends = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    counts = [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors or [None] * len(ends))
    keeps = create_graph if retain_graph is None else retain_graph
    for end, count in zip(ends, counts, strict=True):
        run_backward(end, count, True, create_graph, inputs)
    if not keeps:
        release(tracked([end.value for end in ends]))
