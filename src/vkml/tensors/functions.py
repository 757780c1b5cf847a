"""`Function`: operations whose gradient the program states."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from vkml.errors import NotDifferentiable
from vkml.ir.gradients import Emitter, converted, sum_to, zeros
from vkml.ir.graph import Node
from vkml.ir.operator import Operator
from vkml.tensors.tensor import Tensor
from vkml.tracing import EMITTER, Joined, Traced
from vkml.tracing.saved import changed_in_place
from vkml.tracing.value import mode, next_serial, tracking


class FunctionContext:
    """What `forward` leaves for `backward`; attributes may be added.

    Args:
        name: of the function, for errors.

    Attributes:
        needs_input_grad: of each argument, whether its gradient is wanted.
    """

    def __init__(self, name: str) -> None:
        self.needs_input_grad: tuple[bool, ...] = ()
        self._saved: tuple[Traced | None, ...] = ()
        self._saved_at = 0
        """What was changed from that serial on has been changed since."""
        self._to_save: tuple[Tensor | None, ...] = ()
        self._name = name
        self._outputs: dict[int, int] = {}
        self._made: Sequence[Traced] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._not_differentiable: set[int] = set()
        self._materializes = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors for `backward`, which is refused those that are changed in place afterwards.

        Args:
            *tensors: arguments, results, or what lies between; None keeps a place.
        """
        self._to_save = tensors

    def _save(self) -> None:
        """Keeps the tensors as they are when `forward` has returned."""
        self._saved = tuple([None if tensor is None else tensor.value for tensor in self._to_save])
        self._to_save = ()

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What `save_for_backward` was given, through which gradients flow on.

        Raises:
            RuntimeError: one was changed in place since.
        """

        def shown(value: Traced | None) -> Tensor | None:
            at = self._outputs.get(id(value))
            version = None if value is None else value.version
            if version is not None and version.changed_from > self._saved_at:
                raise changed_in_place(self._name, "what it has saved", version)
            return None if value is None else Tensor(value if at is None else self._made[at])

        return tuple([shown(value) for value in self._saved])

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Says which arguments `forward` has changed in place; it has to return them.

        Args:
            *tensors: arguments of `forward`.
        """
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Says through which results no gradient flows.

        Args:
            *tensors: results of `forward`.
        """
        self._not_differentiable = {id(tensor) for tensor in tensors}

    def set_materialize_grads(self, value: bool) -> None:
        """Whether `backward` is given zeros, not None, for results that nothing depends on.

        Args:
            value: whether they are zeros.
        """
        self._materializes = value


class Function:
    """An operation whose gradient the program states; subclasses define `forward` and `backward`.

    Example:
        >>> import vkml
        >>> class Exp(vkml.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         y = x.exp()
        ...         ctx.save_for_backward(y)
        ...         return y
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         (y,) = ctx.saved_tensors
        ...         return grad * y
        >>> x = vkml.tensor([0.0, 1.0], requires_grad=True)
        >>> Exp.apply(x).sum().backward()
        >>> x.grad
        tensor([1.0000, 2.7183])
    """

    @staticmethod
    def forward(*arguments: Any, **named: Any) -> Any:
        """What it computes: of a context and arguments; of these alone where `setup_context` is defined.

        Args:
            *arguments: the context first, unless `setup_context` is defined, then what `apply` was given.
            **named: what `apply` was given by name.

        Returns:
            A tensor, or a tuple of tensors and other things.
        """
        raise NotImplementedError("a Function defines forward")

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Any) -> None:
        """Fills the context once `forward` has run.

        Args:
            ctx: what keeps things for `backward`.
            inputs: the arguments of `forward`.
            output: what it gave.
        """
        raise NotImplementedError("a Function whose forward takes no context defines setup_context")

    @staticmethod
    def backward(ctx: FunctionContext, *grad_outputs: Any) -> Any:
        """The gradients by all arguments of `forward`, None for what has none, from those of its results.

        Args:
            ctx: what `forward` left.
            *grad_outputs: for each result the gradient by it, of its shape; zeros, or None, where nothing
                depends on it.

        Returns:
            A gradient, or a tuple of one for each argument.
        """
        raise NotImplementedError("a Function that is differentiated defines backward")

    vjp = backward

    @classmethod
    def apply(cls, *arguments: Any, **named: Any) -> Any:
        """Runs `forward`; `backward` is called when gradients come to what it has made.

        Args:
            *arguments: of `forward`; gradients flow to those that are tensors.
            **named: of `forward`, by name; no gradients flow to these.

        Returns:
            What `forward` gave, through which gradients flow.

        Raises:
            NotDifferentiable: a leaf that requires grad was changed in place; or, in `backward`, gradients
                are too few, too many, or of other shapes.
        """
        ctx = FunctionContext(cls.__name__)
        given = [x.value if isinstance(x, Tensor) else None for x in arguments]
        needed = [value is not None and value.tracks and mode.tracks for value in given]
        ctx.needs_input_grad = tuple(needed)
        leaves = {id(x) for x in arguments if isinstance(x, Tensor) and x.is_leaf and x.requires_grad}
        with tracking(False):
            if cls.setup_context is not Function.setup_context:
                result = cls.forward(*arguments, **named)
                cls.setup_context(ctx, arguments, result)
            else:
                result = cls.forward(ctx, *arguments, **named)
        ctx._save()
        if not any(needed):
            return result
        results = list(result) if isinstance(result, tuple | list) else [result]
        kept = [
            at
            for at, x in enumerate(results)
            if isinstance(x, Tensor) and x.dtype.is_inexact and id(x) not in ctx._not_differentiable
        ]
        if not kept:
            return result
        made = [results[at].value for at in kept]
        ctx._outputs = {id(value): n for n, value in enumerate(made) if not any(value is x for x in given)}
        joined = Joined(_Call(cls, ctx, kept, len(results), len(arguments)), made, given)
        dirty = {id(x) for x in ctx._dirty}
        for n, at in enumerate(kept):
            value, tensor = joined.output(n), results[at]
            if id(tensor) not in dirty:
                results[at] = Tensor(value)
                continue
            if id(tensor) in leaves:
                raise NotDifferentiable("a leaf that requires grad is changed in place by a Function")
            tensor._write(value)
        ctx._saved_at = next_serial()
        if isinstance(result, Tensor):
            return results[0]
        return type(result)(*results) if hasattr(result, "_fields") else type(result)(results)


class _Call(Operator):
    """One call of a function, as an operator: only its gradient is ever asked for."""

    def __init__(self, function: type[Function], ctx: FunctionContext, kept: Sequence[int], results: int,
                 arguments: int) -> None:  # fmt: skip
        super().__init__(function.__name__)
        self._function, self._ctx, self._kept = function, ctx, kept
        self._results, self._arguments = results, arguments

    def vjp(  # type: ignore[override]
        self,
        build: Emitter[Traced],
        node: Node,
        inputs: Sequence[Traced | None],
        outputs: Sequence[Traced],
        cotangents: Sequence[Traced | None],
        needed: Sequence[bool],
    ) -> Sequence[Traced | None]:
        ctx, function = self._ctx, self._function
        incoming: list[Tensor | None] = [None] * self._results
        for at, output, cotangent in zip(self._kept, outputs, cotangents, strict=True):
            if cotangent is None and ctx._materializes:
                cotangent = zeros(EMITTER, output.type)
                cotangent.device = output.device
            incoming[at] = None if cotangent is None else Tensor(cotangent)
        ctx._made = outputs
        try:
            stated = function.backward if function.backward is not Function.backward else function.vjp
            found = stated(ctx, *incoming)
        finally:
            ctx._made = ()  # which refer to what refers to the context
        grads = list(found) if isinstance(found, tuple | list) else [found]
        if any(x is not None for x in grads[self._arguments :]) or len(grads) < self._arguments:
            raise NotDifferentiable(
                f"function {self.name}Backward returned an incorrect number of gradients "
                f"(expected {self._arguments}, got {len(grads)})"
            )
        return [
            _fitted(grad, value, f"{self.name}Backward", at) if value is not None and is_needed else None
            for at, (grad, value, is_needed) in enumerate(zip(grads, inputs, needed, strict=False))
        ]


def _fitted(grad: Tensor | None, value: Traced, name: str, at: int) -> Traced | None:
    """A gradient of the shape and type of what it is of."""
    if grad is None:
        return None
    if not isinstance(grad, Tensor):
        raise TypeError(f"function {name} returned {type(grad).__name__} as gradient {at}, not a tensor")
    more = len(grad.shape) - len(value.dims)
    fits = more >= 0 and all(
        mine in (1, theirs) for mine, theirs in zip(value.dims, grad.shape[more:], strict=True)
    )
    if not fits:
        raise NotDifferentiable(
            f"function {name} returned an invalid gradient at index {at} - got {list(grad.shape)} but "
            f"expected shape compatible with {list(value.dims)}"
        )
    return converted(EMITTER, sum_to(EMITTER, grad.value, value.dims), value.type.dtype)


class _Once(Operator):
    """What may be differentiated no further."""

    def vjp(self, *_: Any) -> Any:
        raise NotDifferentiable(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a `backward` whose own gradients are not right: to ask for them is an error.

    Args:
        backward: a function's `backward`, as a decorator.
    """

    @functools.wraps(backward)
    def within(ctx: FunctionContext, *grads: Any) -> Any:
        with tracking(False):
            found = backward(ctx, *grads)
        tracks = [x.value for x in grads if isinstance(x, Tensor)]
        tracks += [value for value in ctx._saved if value is not None]
        if not mode.tracks or not any(value.tracks for value in tracks):
            return found

        def ended(x: Any) -> Any:
            if not isinstance(x, Tensor) or not x.dtype.is_inexact:
                return x
            return Tensor(Joined(_Once("once_differentiable"), [x.value], tracks).output(0))

        return [ended(x) for x in found] if isinstance(found, tuple | list) else ended(found)

    return within
