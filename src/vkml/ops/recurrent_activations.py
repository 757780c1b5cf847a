"""Activation functions of recurrent cells: their NumPy functions, scalar forms and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph
from vkml.ir import scalar
from vkml.ir.graph import Node
from vkml.ir.operator import Array
from vkml.ir.scalar import Scalar


@dataclass(frozen=True)
class _Function:
    compute: Callable[..., Any]
    form: Callable[..., Scalar]
    numbers: tuple[float | None, ...] = ()
    """Defaults of alpha and beta as far as it has them; None: the model must state it."""


def _elu(x: Scalar, alpha: float) -> Scalar:
    return scalar.where(x < 0, alpha * scalar.unary("expm1", x), x)


def _softplus(x: Scalar) -> Scalar:
    return scalar.unary("log1p", scalar.unary("exp", -scalar.absolute(x))) + scalar.relu(x)


_FUNCTIONS = {
    "relu": _Function(lambda x: np.maximum(x, 0), scalar.relu),
    "tanh": _Function(np.tanh, lambda x: scalar.unary("tanh", x)),
    "sigmoid": _Function(lambda x: 1 / (1 + np.exp(-x)), lambda x: scalar.unary("sigmoid", x)),
    "affine": _Function(lambda x, a, b: a * x + b, lambda x, a, b: a * x + b, (None, None)),
    "leakyrelu": _Function(
        lambda x, a: np.where(x < 0, a * x, x), lambda x, a: scalar.where(x < 0, a * x, x), (0.01,)
    ),
    "thresholdedrelu": _Function(
        lambda x, a: np.where(x >= a, x, 0), lambda x, a: scalar.where(x >= a, x, 0.0), (1.0,)
    ),
    "scaledtanh": _Function(
        lambda x, a, b: a * np.tanh(b * x), lambda x, a, b: a * scalar.unary("tanh", b * x), (None, None)
    ),
    "hardsigmoid": _Function(
        lambda x, a, b: np.clip(a * x + b, 0, 1),
        lambda x, a, b: scalar.minimum(scalar.maximum(a * x + b, 0.0), 1.0),
        (0.2, 0.5),
    ),
    "elu": _Function(lambda x, a: np.where(x < 0, a * np.expm1(x), x), _elu, (1.0,)),
    "softsign": _Function(lambda x: x / (1 + np.abs(x)), lambda x: x / (1 + scalar.absolute(x))),
    "softplus": _Function(lambda x: np.logaddexp(x, 0), _softplus),
}


@dataclass(frozen=True)
class Activation:
    """A function and its numbers; with a clip, applied to what is limited to -clip … clip."""

    function: str
    numbers: tuple[float, ...]
    clip: float | None

    def evaluate(self, x: Array) -> Array:
        if self.clip is not None:
            x = np.clip(x, -self.clip, self.clip)
        with np.errstate(all="ignore"):
            result = _FUNCTIONS[self.function].compute(x, *(x.dtype.type(number) for number in self.numbers))
        return np.asarray(result).astype(x.dtype, copy=False)

    def form(self, x: Scalar) -> Scalar:
        if self.clip is not None:
            x = scalar.minimum(scalar.maximum(x, -self.clip), self.clip)
        return _FUNCTIONS[self.function].form(x, *self.numbers)


def activations_of(
    node: Node, directions: int, defaults: Sequence[str], clipped: int
) -> list[list[Activation]]:
    """The activations of each direction, in the order in which the operator calls them f, g and h.

    Functions that have an alpha take the next of `activation_alpha` each, likewise beta, as long as there are
    some.

    Args:
        node: normalised.
        directions: 1 or 2.
        defaults: names for one direction.
        clipped: how many of these the attribute `clip` is about.

    Raises:
        InvalidGraph: a function is unknown or lacks a number, or there are too few functions.
    """
    names = [str(name) for name in node.attributes["activations"] or [*defaults] * directions]
    count = len(defaults) * directions
    if len(names) < count:
        raise InvalidGraph(
            f"{node.label}: {directions} x {len(defaults)} activations are needed, the model has {names}"
        )
    left = [iter(node.attributes[f"activation_{which}"] or ()) for which in ("alpha", "beta")]
    found = []
    for at, name in enumerate(names[:count]):
        function = _FUNCTIONS.get(name.lower())
        if function is None:
            raise InvalidGraph(
                f"{node.label}: the activation {name!r} is not known; there are {', '.join(_FUNCTIONS)}"
            )
        numbers = [next(stated, default) for stated, default in zip(left, function.numbers, strict=False)]
        if None in numbers:
            raise InvalidGraph(
                f"{node.label}: the activation {name} needs activation_alpha and activation_beta, it has no "
                "defaults"
            )
        clip = node.attributes["clip"] if at % len(defaults) < clipped else None
        found.append(Activation(name.lower(), tuple(float(number or 0) for number in numbers), clip))
    return [found[start : start + len(defaults)] for start in range(0, count, len(defaults))]
