"""Scalar forms evaluated by NumPy, step by step in their types: what back ends are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.ir.dtypes import BOOL
from vkml.ir.scalar import Scalar, ordered
from vkml.ops import special_functions
from vkml.ops.bitwise import shift
from vkml.ops.elementwise import divide, power, remainder

Array = np.ndarray[Any, Any]


def _fma(x: Array, y: Array, z: Array) -> Array:
    # Products of float32 are exact in float64; sums with another number seldom round twice.
    return (x.astype(np.float64) * y + z).astype(x.dtype)


def _power(x: Array, y: Array) -> Array:
    return np.asarray(np.power(x, y) if x.dtype.kind in "fc" else power(x, y))


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "divide": divide,
    "fmod": lambda x, y: remainder(x, y, 1),
    "mod": remainder,
    "power": _power,
    "fma": _fma,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "erf": special_functions.erf,
    "expm1": special_functions.expm1,
    "sigmoid": special_functions.sigmoid,
    "round_to_half": lambda x: x.astype(np.float16).astype(np.float32),
    "left_shift": lambda x, y: shift(x, y, "LEFT"),
    "right_shift": lambda x, y: shift(x, y, "RIGHT"),
}


def evaluate(results: Sequence[Scalar], arguments: Sequence[Array]) -> list[Array]:
    """The results' elements, of arguments of one shape."""
    values: dict[Scalar, Array] = {}
    with np.errstate(all="ignore"):
        for scalar in ordered(results):
            values[scalar] = _value(scalar, [values[entry] for entry in scalar.inputs], arguments)
    return [values[result] for result in results]


def _value(scalar: Scalar, inputs: Sequence[Array], arguments: Sequence[Array]) -> Array:
    kind = scalar.dtype.storage
    if scalar.operation == "argument":
        return arguments[int(scalar.value)].astype(kind)
    if scalar.operation == "constant":
        return np.asarray(scalar.value, kind)
    if scalar.operation == "view":
        return inputs[0].view(kind)
    if scalar.operation == "convert":
        return _converted(inputs[0], scalar)
    function = _FUNCTIONS.get(scalar.operation) or getattr(np, scalar.operation)
    result = np.asarray(function(*inputs))
    return result.astype(kind, copy=False)


def _converted(x: Array, scalar: Scalar) -> Array:
    if scalar.dtype == BOOL:
        return np.asarray(x != 0)
    if x.dtype.kind == "c" and scalar.dtype.kind != "c":
        x = x.real
    if x.dtype.kind == "f" and scalar.dtype.is_integer:
        x = x.astype(np.uint64 if scalar.dtype.storage == np.uint64 else np.int64)
    found: Array = x.astype(scalar.dtype.storage)
    return found
