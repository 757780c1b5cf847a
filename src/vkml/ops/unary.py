"""Functions of one number: signs, rounding, exponentials, trigonometry, tests for NaN and infinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml.ir.dtypes import FLOATS, INTEGERS, NUMBERS, SIGNED, DType
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator, register
from vkml.ir.types import Known, TensorType
from vkml.ops import special_functions
from vkml.ops.checks import present, required
from vkml.ops.pointwise import Predicate, Unary


def _is_inf(x: Array, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    found = np.isinf(x)
    if not detect_negative:
        found = found & (x > 0)
    if not detect_positive:
        found = found & (x < 0)
    return found


def _is_inf_slang(arguments: Sequence[str], dtype: DType, attributes: Mapping[str, Any]) -> str:
    tests = [
        f"is_infinite{suffix}({arguments[0]})"
        for key, suffix in (("detect_negative", "_below"), ("detect_positive", "_above"))
        if attributes[key]
    ]
    return f"({' || '.join(tests) or 'false'})"


register(Unary("Abs", np.abs, "absolute({x})", NUMBERS))
register(Unary("Neg", np.negative, "(-{x})", FLOATS + SIGNED))
register(Unary("Sign", np.sign, "sign_of({x})", NUMBERS))
register(Unary("Ceil", np.ceil, "ceil({x})", FLOATS))
register(Unary("Floor", np.floor, "floor({x})", FLOATS))
register(Unary("Round", np.rint, "round_half_even({x})", FLOATS))
register(Unary("Reciprocal", np.reciprocal, "(1 / {x})", FLOATS))
register(Unary("Sqrt", np.sqrt, "sqrt({x})", FLOATS))
register(Unary("BitwiseNot", np.invert, "(~{x})", INTEGERS))

register(Unary("Exp", np.exp, "exponential({x})", FLOATS, has_double=False))
register(Unary("Log", np.log, "logarithm({x})", FLOATS, has_double=False))
register(Unary("Erf", special_functions.erf, "error_function({x})", FLOATS, has_double=False))
register(Unary("Sin", np.sin, "sine({x})", FLOATS, has_double=False))
register(Unary("Cos", np.cos, "cosine({x})", FLOATS, has_double=False))
register(Unary("Tan", np.tan, "tangent({x})", FLOATS, has_double=False))
register(Unary("Asin", np.arcsin, "arc_sine({x})", FLOATS, has_double=False))
register(Unary("Acos", np.arccos, "arc_cosine({x})", FLOATS, has_double=False))
register(Unary("Atan", np.arctan, "arc_tangent({x})", FLOATS, has_double=False))
register(Unary("Sinh", np.sinh, "hyperbolic_sine({x})", FLOATS, has_double=False))
register(Unary("Cosh", np.cosh, "hyperbolic_cosine({x})", FLOATS, has_double=False))
register(Unary("Tanh", np.tanh, "hyperbolic_tangent({x})", FLOATS, has_double=False))
register(Unary("Asinh", np.arcsinh, "inverse_hyperbolic_sine({x})", FLOATS, has_double=False))
register(Unary("Acosh", np.arccosh, "inverse_hyperbolic_cosine({x})", FLOATS, has_double=False))
register(Unary("Atanh", np.arctanh, "inverse_hyperbolic_tangent({x})", FLOATS, has_double=False))

register(Predicate("IsNaN", np.isnan, "is_nan({x})", FLOATS))
register(
    Predicate(
        "IsInf", _is_inf, _is_inf_slang, FLOATS, attributes={"detect_negative": 1, "detect_positive": 1}
    )
)


@operator()
class Identity(Operator):
    """Its input, of whatever type (sequences and optionals included)."""

    is_pointwise = True
    is_view = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [required(node, inputs, 0).type]

    def is_identity(self, node: Node) -> bool:
        return True

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [present(inputs, 0)]

    def expression(
        self, node: Node, arguments: Sequence[str], types: Sequence[DType], result: DType
    ) -> str | None:
        return arguments[0]
