"""Functions of one number: signs, rounding, exponentials, trigonometry, tests for NaN and infinity."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.ir import scalar
from vkml.ir.dtypes import BOOL, FLOAT8S, FLOATS, INTEGERS, NUMBERS, SIGNED, DType
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator, register
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, ValueType
from vkml.ops import special_functions
from vkml.ops.checks import required
from vkml.ops.pointwise import Form, Predicate, Unary


def _is_inf(x: Array, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    found = np.isinf(x)
    if not detect_negative:
        found = found & (x > 0)
    if not detect_positive:
        found = found & (x < 0)
    return found


def _is_inf_form(x: Scalar, detect_negative: int, detect_positive: int) -> Scalar:
    tests = [
        scalar.test(operation, x)
        for operation, is_wanted in (("isneginf", detect_negative), ("isposinf", detect_positive))
        if is_wanted
    ]
    return functools.reduce(Scalar.__or__, tests) if tests else scalar.constant(False, BOOL)


def _step(operation: str) -> Form:
    """The form of an operator that is one operation."""
    return lambda x: scalar.unary(operation, x)


def _reciprocal(x: Scalar) -> Scalar:
    return 1 / x


register(Unary("Abs", np.abs, _step("absolute"), NUMBERS))
register(Unary("Neg", np.negative, _step("negative"), FLOATS + SIGNED, takes_complex=True))
register(Unary("Sign", np.sign, _step("sign"), NUMBERS))
register(Unary("Ceil", np.ceil, _step("ceil"), FLOATS))
register(Unary("Floor", np.floor, _step("floor"), FLOATS))
register(Unary("Round", np.rint, _step("rint"), FLOATS))
register(Unary("Reciprocal", np.reciprocal, _reciprocal, FLOATS, takes_complex=True, always_saved=((), (0,))))
register(Unary("Sqrt", np.sqrt, _step("sqrt"), FLOATS, takes_complex=True))
register(Unary("BitwiseNot", np.invert, _step("invert"), INTEGERS))

register(Unary("Exp", np.exp, _step("exp"), FLOATS, takes_complex=True))
register(Unary("Log", np.log, _step("log"), FLOATS, takes_complex=True))
register(Unary("Erf", special_functions.erf, _step("erf"), FLOATS))
register(Unary("Sin", np.sin, _step("sin"), FLOATS, takes_complex=True))
register(Unary("Cos", np.cos, _step("cos"), FLOATS, takes_complex=True))
register(Unary("Tan", np.tan, _step("tan"), FLOATS, takes_complex=True))
register(Unary("Asin", np.arcsin, _step("arcsin"), FLOATS, takes_complex=True))
register(Unary("Acos", np.arccos, _step("arccos"), FLOATS, takes_complex=True))
register(Unary("Atan", np.arctan, _step("arctan"), FLOATS, takes_complex=True))
register(Unary("Sinh", np.sinh, _step("sinh"), FLOATS, takes_complex=True))
register(Unary("Cosh", np.cosh, _step("cosh"), FLOATS, takes_complex=True))
register(Unary("Tanh", np.tanh, _step("tanh"), FLOATS, takes_complex=True))
register(Unary("Asinh", np.arcsinh, _step("arcsinh"), FLOATS, takes_complex=True))
register(Unary("Acosh", np.arccosh, _step("arccosh"), FLOATS, takes_complex=True))
register(Unary("Atanh", np.arctanh, _step("arctanh"), FLOATS, takes_complex=True))

register(
    Predicate("IsNaN", np.isnan, lambda x: scalar.test("isnan", x), (*FLOATS, *FLOAT8S), takes_complex=True)
)
register(
    Predicate(
        "IsInf",
        _is_inf,
        _is_inf_form,
        (*FLOATS, *FLOAT8S),
        attributes={"detect_negative": 1, "detect_positive": 1},
        takes_complex=True,
    )
)


@operator()
class Identity(Operator):
    """Its input, of whatever type (sequences and optionals included)."""

    is_pointwise = True
    is_view = True
    takes_containers = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        return [required(node, inputs, 0).stated]

    def is_identity(self, node: Node) -> bool:
        return True

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Any]:
        return [inputs[0]]

    def scalar(
        self, node: Node, arguments: Sequence[Scalar | None], types: Sequence[DType | None], result: DType
    ) -> Scalar | None:
        return arguments[0]
