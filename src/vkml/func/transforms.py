"""Gradients, Jacobians and products with them, as functions of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkml.errors import NotDifferentiable
from vkml.ir.gradients import converted, expanded, zeros
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.backward import compute_deep
from vkml.tensors.creation import tensor as make_tensor
from vkml.tensors.trees import mapped, tensors_in
from vkml.tracing import EMITTER, Traced, apply, gradients, number
from vkml.tracing.gradient import takers_of, tracked
from vkml.tracing.value import tracking

Function = Callable[..., Any]


class _Variables:
    """Tensors of nested arguments under values of their own, by which results are differentiated.

    Where gradients flow to what they were, they flow on: transforms may be nested.
    """

    def __init__(self, arguments: Any) -> None:
        self.values: list[Traced] = []
        self.arguments = mapped(self._own, arguments)

    def _own(self, tensor: Tensor) -> Tensor:
        if not tensor.dtype.is_inexact:
            return tensor
        value = tensor.value
        with tracking(True):
            own = apply("Identity", value)
        if not own.tracks:
            own.tracks = own.is_leaf = True
        self.values.append(own)
        return Tensor(own)

    def is_alone(self, outputs: Sequence[Traced]) -> bool:
        """Whether outputs depend on nothing else that gradients flow to."""
        own = {id(value) for value in self.values if value.is_leaf}
        return all(id(value) in own or not value.is_leaf for value in takers_of(outputs, tracked(outputs)))

    def gradients(self, outputs: Sequence[Tensor], counts: Sequence[Traced]) -> list[Tensor]:
        """By each value; zeros where outputs do not depend on it."""
        ends = [output.value for output in outputs]
        with tracking(True):
            found = gradients(ends, counts, self.values, ends=self.values)
            made = [
                zeros(EMITTER, value.type) if x is None else x
                for x, value in zip(found, self.values, strict=True)
            ]
        for value, result in zip(self.values, made, strict=True):
            if result.is_free:
                result.device = value.device
        compute_deep(made)
        return [Tensor(x) for x in made]

    def filled(self, found: Sequence[Any]) -> Any:
        """The arguments, something else in the place of each variable."""
        left = list(found)
        own = {id(value) for value in self.values}
        return mapped(lambda x: left.pop(0) if id(x.value) in own else None, self.arguments)


def _picked(arguments: Sequence[Any], argnums: int | Sequence[int]) -> Any:
    for at in (argnums,) if isinstance(argnums, int) else argnums:
        if not -len(arguments) <= at < len(arguments):
            raise RuntimeError(
                f"argnums has {at}, the function is given {len(arguments)} positional arguments"
            )
    if isinstance(argnums, int):
        return arguments[argnums]
    return tuple([arguments[at] for at in argnums])


def _replaced(arguments: Sequence[Any], argnums: int | Sequence[int], values: Any) -> list[Any]:
    made = list(arguments)
    if isinstance(argnums, int):
        made[argnums] = values
    else:
        for at, value in zip(argnums, values, strict=True):
            made[at] = value
    return made


def _ended(variables: _Variables, results: Any) -> Any:
    """Results without history where nothing outside of the transform could ask for it."""
    values = [x.value for x in tensors_in(results) if x.value.tracks]
    if not values or not variables.is_alone(values):
        return results
    return mapped(lambda x: x.detach() if x.value.tracks else x, results)


def grad_and_value(func: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """A function that gives the gradient of another and its value; see `grad`.

    Args:
        func: gives one element; with `has_aux`, and something else.
        argnums: by which arguments, counted from 0.
        has_aux: whether `func` gives something else besides, which is handed on.
    """

    @functools.wraps(func)
    def differentiated(*arguments: Any, **named: Any) -> Any:
        variables = _Variables(_picked(arguments, argnums))
        if not variables.values:
            raise NotDifferentiable(
                "grad differentiates by floats and complex numbers, the arguments have none"
            )
        with tracking(True):
            found = func(*_replaced(arguments, argnums, variables.arguments), **named)
        if has_aux and not (isinstance(found, tuple) and len(found) == 2):
            raise RuntimeError("a function with has_aux=True returns a tuple of its value and something else")
        value, aux = found if has_aux else (found, None)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise NotDifferentiable(
                "grad differentiates functions that give one element, this gives "
                + (f"{list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__)
            )
        one = expanded(EMITTER, number(1, value.dtype), value.shape)
        if not value.value.tracks:
            made = [Tensor(zeros(EMITTER, x.type)) for x in variables.values]
        else:
            made = variables.gradients([value], [one])
        gradient = _ended(variables, variables.filled(made))
        value, aux = _ended(variables, (value, aux))
        return (gradient, (value, aux)) if has_aux else (gradient, value)

    return differentiated


def grad(func: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """A function that gives the gradient of another, which gives one element.

    Args:
        func: of tensors, or lists, tuples and mappings of them.
        argnums: by which of its arguments; by several for a tuple of gradients.
        has_aux: whether `func` gives a pair, the second of which is given along.

    Example:
        >>> import vkml
        >>> vkml.func.grad(vkml.func.grad(lambda x: x**3))(vkml.tensor(2.0))
        tensor(12.)
    """

    @functools.wraps(func)
    def differentiated(*arguments: Any, **named: Any) -> Any:
        gradient, value = grad_and_value(func, argnums, has_aux)(*arguments, **named)
        return (gradient, value[1]) if has_aux else gradient

    return differentiated


def value_and_grad(func: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """A function that gives the value of another and its gradient; see `grad`.

    Args:
        func: gives one element; with `has_aux`, and something else.
        argnums: by which arguments, counted from 0.
        has_aux: whether `func` gives something else besides, which is handed on.
    """

    @functools.wraps(func)
    def differentiated(*arguments: Any, **named: Any) -> Any:
        gradient, value = grad_and_value(func, argnums, has_aux)(*arguments, **named)
        return value, gradient

    return differentiated


def _counts(results: Sequence[Tensor], given: Any) -> list[Traced]:
    """Cotangents of results."""
    stated = tensors_in(given)
    if len(stated) != len(results):
        raise RuntimeError(f"{len(results)} cotangents are needed, {len(stated)} were given")
    for result, count in zip(results, stated, strict=True):
        if result.shape != count.shape:
            raise RuntimeError(
                f"a cotangent has the shape {list(count.shape)}, its result {list(result.shape)}"
            )
    return [converted(EMITTER, c.value, r.dtype) for c, r in zip(stated, results, strict=True)]


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """What a function gives, and the function from cotangents of that to cotangents of its arguments.

    Args:
        func: of tensors, or lists, tuples and mappings of them.
        primals: its arguments.
        has_aux: whether `func` gives a pair, the second of which is given along.
    """
    variables = _Variables(primals)
    with tracking(True):
        found = func(*variables.arguments)
    result, aux = found if has_aux else (found, None)
    outputs = tensors_in(result)
    kept = [x for x in outputs if x.value.tracks]

    def pulled(cotangents: Any) -> tuple[Any, ...]:
        counts = _counts(outputs, cotangents)
        counted = [c for c, x in zip(counts, outputs, strict=True) if x.value.tracks]
        if kept:
            made = variables.gradients(kept, counted)
        else:
            made = [Tensor(zeros(EMITTER, value.type)) for value in variables.values]
        is_ended = not any(c.tracks for c in counted)
        return tuple(_ended(variables, variables.filled(made)) if is_ended else variables.filled(made))

    shown = _ended(variables, result)
    return (shown, pulled, _ended(variables, aux)) if has_aux else (shown, pulled)


def jvp(func: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...], *, has_aux: bool = False) -> Any:
    """What a function gives, and how that changes as its arguments move along tangents.

    It is the derivative, by the cotangents, of the product with the transposed Jacobian.

    Args:
        func: of tensors, or lists, tuples and mappings of them.
        primals: its arguments.
        tangents: of their shapes.
        has_aux: whether `func` gives a pair, the second of which is given along.
    """
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise RuntimeError("jvp takes its arguments and their tangents as tuples")
    variables = _Variables(primals)
    with tracking(True):
        found = func(*variables.arguments)
    result, aux = found if has_aux else (found, None)
    outputs = tensors_in(result)
    moves = [x for x in tensors_in(tangents) if x.dtype.is_float]
    shapes = [tuple(value.dims) for value in variables.values]
    if [tuple(x.shape) for x in moves] != shapes:
        raise RuntimeError(
            f"tangents have the shapes {[list(x.shape) for x in moves]}, "
            f"the arguments {[list(x) for x in shapes]}"
        )
    changes = _pushed(variables, [x for x in outputs if x.value.tracks], [x.value for x in moves])
    made = mapped(
        lambda x: changes.pop(0) if x.value.tracks else Tensor(zeros(EMITTER, x.value.type)), result
    )
    shown = _ended(variables, result)
    is_ended = not any(x.value.tracks for x in moves)
    tangent = _ended(variables, made) if is_ended else made
    return (shown, tangent, _ended(variables, aux)) if has_aux else (shown, tangent)


def _pushed(variables: _Variables, outputs: Sequence[Tensor], moves: Sequence[Traced]) -> list[Tensor]:
    """How outputs change as variables move."""
    if not outputs:
        return []
    with tracking(True):
        counts: list[Traced] = []
        for output in outputs:
            count = zeros(EMITTER, output.value.type)
            if count is output.value or count.data is not None:
                count = apply("Identity", count)
            count.device = output.value.device
            count.tracks = count.is_leaf = True
            counts.append(count)
        ends = [output.value for output in outputs]
        found = gradients(ends, counts, variables.values, ends=variables.values)
        pairs = [(x, move) for x, move in zip(found, moves, strict=True) if x is not None]
        made = gradients(
            [x for x, _ in pairs],
            [converted(EMITTER, move, x.type.dtype) for x, move in pairs],
            counts,
            ends=[*variables.values, *counts],
        )
        return [
            Tensor(zeros(EMITTER, count.type) if x is None else x)
            for x, count in zip(made, counts, strict=True)
        ]


def _basis(value: Traced) -> list[Tensor]:
    """Of each element, a tensor that is 1 there and else 0."""
    size = value.type.elements
    device = None if value.device is None else value.device.info.name
    every = np.eye(size, dtype=value.type.dtype.storage).reshape(size, *value.dims)
    return [make_tensor(row, device=device) for row in every]


def jacrev(func: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """A function that gives another's Jacobian, row by row: [*result, *argument].

    Args:
        func: gives a tensor.
        argnums: by which of its arguments.
        has_aux: whether `func` gives a pair, the second of which is given along.
    """

    @functools.wraps(func)
    def differentiated(*arguments: Any, **named: Any) -> Any:
        variables = _Variables(_picked(arguments, argnums))
        with tracking(True):
            found = func(*_replaced(arguments, argnums, variables.arguments), **named)
        result, aux = found if has_aux else (found, None)
        if not isinstance(result, Tensor):
            raise TypeError(f"jacrev takes functions that give a tensor, not {type(result).__name__}")
        rows = [
            variables.gradients([result], [unit.value])
            if result.value.tracks
            else [Tensor(zeros(EMITTER, value.type)) for value in variables.values]
            for unit in _basis(result.value)
        ]
        made = [
            op.reshape(op.stack([row[at] for row in rows], 0), *result.shape, *value.dims)
            for at, value in enumerate(variables.values)
        ]
        shown = _ended(variables, variables.filled(made))
        return (shown, _ended(variables, aux)) if has_aux else shown

    return differentiated


def jacfwd(func: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """As `jacrev`, column by column: for functions that give more elements than they take.

    Args:
        func: of tensors, or nested ones.
        argnums: by which arguments, counted from 0.
        has_aux: whether `func` gives something else besides, which is handed on.
    """

    @functools.wraps(func)
    def differentiated(*arguments: Any, **named: Any) -> Any:
        variables = _Variables(_picked(arguments, argnums))
        with tracking(True):
            found = func(*_replaced(arguments, argnums, variables.arguments), **named)
        result, aux = found if has_aux else (found, None)
        if not isinstance(result, Tensor):
            raise TypeError(f"jacfwd takes functions that give a tensor, not {type(result).__name__}")
        made = []
        for value in variables.values:
            columns = []
            for unit in _basis(value):
                moves = [unit.value if x is value else zeros(EMITTER, x.type) for x in variables.values]
                if result.value.tracks:
                    columns += _pushed(variables, [result], moves)
                else:
                    columns.append(Tensor(zeros(EMITTER, result.value.type)))
            made.append(op.reshape(op.stack(columns, -1), *result.shape, *value.dims))
        shown = _ended(variables, variables.filled(made))
        return (shown, _ended(variables, aux)) if has_aux else shown

    return differentiated


def hessian(func: Function, argnums: int = 0) -> Function:
    """A function that gives the matrix of another's second derivatives: [*result, *argument, *argument].

    Args:
        func: gives one tensor.
        argnums: by which argument, counted from 0.
    """
    return jacrev(jacrev(func, argnums), argnums)
