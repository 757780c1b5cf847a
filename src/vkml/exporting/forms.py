"""Scalar forms as nodes of ONNX: an expression of elements, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vkml.errors import UnsupportedOperator
from vkml.ir import DType, dtypes
from vkml.ir.scalar import Scalar, ordered
from vkml.passes.rewriting import Rewriting

_PLAIN = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "negative": "Neg", "absolute": "Abs",
    "sign": "Sign", "minimum": "Min", "maximum": "Max", "power": "Pow", "relu": "Relu", "sqrt": "Sqrt",
    "floor": "Floor", "ceil": "Ceil", "rint": "Round", "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos",
    "tan": "Tan", "arcsin": "Asin", "arccos": "Acos", "arctan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
    "tanh": "Tanh", "arcsinh": "Asinh", "arccosh": "Acosh", "arctanh": "Atanh", "erf": "Erf",
    "sigmoid": "Sigmoid", "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "isnan": "IsNaN", "where": "Where",
}  # fmt: skip
_OF_BOOLS = {
    "bitwise_and": "And",
    "bitwise_or": "Or",
    "bitwise_xor": "Xor",
    "invert": "Not",
    "equal": "Equal",
}
_OF_BITS = {
    "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor",
    "invert": "BitwiseNot",
}  # fmt: skip


def write_form(to: Rewriting, form: Scalar, arguments: Sequence[str], dtype: DType, made: str) -> None:
    """Adds the nodes that compute a form.

    Args:
        to: what they are added to.
        form: of elements of `arguments`.
        arguments: values, by the numbers that the form gives them.
        dtype: of the result.
        made: its name.

    Raises:
        UnsupportedOperator: an operation has no form in ONNX.
    """
    writer = _Form(to, arguments)
    steps = ordered([form])
    names: dict[Scalar, str] = {}
    for step in steps:
        names[step] = writer.step(step, [names[entry] for entry in step.inputs])
    found = names[form]
    if to.types[found].dtype == dtype:
        to.apply("Identity", [found], made=made)
    else:
        to.apply("Cast", [found], made=made, to=dtype.code)


class _Form:
    def __init__(self, to: Rewriting, arguments: Sequence[str]) -> None:
        self._to = to
        self._arguments = arguments

    def step(self, step: Scalar, inputs: Sequence[str]) -> str:
        """The value of one operation."""
        if step.operation == "constant":
            return self._number(step.value, step.dtype)
        if step.operation == "argument":
            return self._cast(self._arguments[int(step.value)], step.dtype)
        if step.operation == "convert":
            return self._converted(inputs[0], step.dtype)
        if step.dtype == dtypes.BOOL and step.operation in _OF_BOOLS:
            return self._to.apply(_OF_BOOLS[step.operation], inputs)
        if step.operation in _OF_BITS:
            return self._to.apply(_OF_BITS[step.operation], inputs)
        write = _WRITERS.get(step.operation)
        if write is not None:
            return write(self, step.dtype, *inputs)
        if step.operation in _PLAIN:
            return self._to.apply(_PLAIN[step.operation], inputs)
        raise UnsupportedOperator(f"the operation {step.operation} has no form in ONNX")

    def _number(self, value: float, dtype: DType) -> str:
        return self._to.constant(np.asarray(value, dtype.storage), dtype)

    def _cast(self, x: str, dtype: DType) -> str:
        return x if self._to.types[x].dtype == dtype else self._to.apply("Cast", [x], to=dtype.code)

    def _converted(self, x: str, dtype: DType) -> str:
        return self._cast(x, dtype)

    def _not_equal(self, dtype: DType, x: str, y: str) -> str:
        return self._to.apply("Not", [self._to.apply("Equal", [x, y])])

    def _isposinf(self, dtype: DType, x: str) -> str:
        return self._to.apply("IsInf", [x], detect_negative=0)

    def _isneginf(self, dtype: DType, x: str) -> str:
        return self._to.apply("IsInf", [x], detect_positive=0)

    def _fma(self, dtype: DType, x: str, y: str, z: str) -> str:
        return self._to.apply("Add", [self._to.apply("Mul", [x, y]), z])

    def _fmod(self, dtype: DType, x: str, y: str) -> str:
        return self._to.apply("Mod", [x, y], fmod=1)

    def _mod(self, dtype: DType, x: str, y: str) -> str:
        """With the sign of the divisor, which ONNX has for integers alone."""
        if not dtype.is_float:
            return self._to.apply("Mod", [x, y])
        whole = self._to.apply("Floor", [self._to.apply("Div", [x, y])])
        return self._to.apply("Sub", [x, self._to.apply("Mul", [whole, y])])

    def _trunc(self, dtype: DType, x: str) -> str:
        below = self._to.apply("Less", [x, self._number(0, dtype)])
        parts = [self._to.apply("Ceil", [x]), self._to.apply("Floor", [x])]
        return self._to.apply("Where", [below, *parts])

    def _expm1(self, dtype: DType, x: str) -> str:
        """2 t / (1 - t) for t = tanh(x / 2), which loses no digits where x is small."""
        apply, one = self._to.apply, self._number(1, dtype)
        t = apply("Tanh", [apply("Mul", [x, self._number(0.5, dtype)])])
        small = apply("Div", [apply("Add", [t, t]), apply("Sub", [one, t])])
        is_small = apply("Less", [apply("Abs", [x]), one])
        return apply("Where", [is_small, small, apply("Sub", [apply("Exp", [x]), one])])

    def _log1p(self, dtype: DType, x: str) -> str:
        """log(u) x / (u - 1) for u = 1 + x, rounded as it may be, and x where that is 1 (Kahan)."""
        apply, one = self._to.apply, self._number(1, dtype)
        u = apply("Add", [x, one])
        scaled = apply("Div", [apply("Mul", [apply("Log", [u]), x]), apply("Sub", [u, one])])
        large = apply("Greater", [x, self._number(1e6, dtype)])
        found = apply("Where", [large, apply("Log", [u]), scaled])
        return apply("Where", [apply("Equal", [u, one]), x, found])

    def _round_to_half(self, dtype: DType, x: str) -> str:
        return self._cast(self._cast(x, dtypes.FLOAT16), dtypes.FLOAT32)


_WRITERS: dict[str, Callable[..., str]] = {
    "not_equal": _Form._not_equal, "isposinf": _Form._isposinf, "isneginf": _Form._isneginf,
    "fma": _Form._fma, "fmod": _Form._fmod, "mod": _Form._mod, "trunc": _Form._trunc,
    "expm1": _Form._expm1, "log1p": _Form._log1p, "round_to_half": _Form._round_to_half,
}  # fmt: skip
