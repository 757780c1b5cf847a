"""Scalar forms as Slang source."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.ir.double_functions import without_double_functions
from vkml.ir.dtypes import BOOL, FLOAT64, DType
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import Number, Scalar, ordered
from vkml.kernels.writer import NEEDS, KernelWriter, compute_type

MOST_STEPS = 1024
"""Operations of one kernel: compiling takes time in proportion to their square."""

_SYMBOLS = {
    "add": "+", "subtract": "-", "multiply": "*", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
_PREFIXES = {"negative": "-", "invert": "~"}
# Without short circuit: both operands are plain values, and a branch would only split the subgroup.
_OF_BOOLS = {
    "bitwise_and": "and({}, {})",
    "bitwise_or": "or({}, {})",
    "bitwise_xor": "({} != {})",
    "invert": "(!{})",
}
_FUNCTIONS = {
    "divide": "divide", "absolute": "absolute", "sign": "sign_of",
    "minimum": "minimum", "maximum": "maximum", "fma": "fma", "sqrt": "sqrt", "floor": "floor",
    "ceil": "ceil", "trunc": "trunc", "rint": "round_half_even", "isnan": "is_nan",
    "isposinf": "is_infinite_above", "isneginf": "is_infinite_below", "where": "select",
    "round_to_half": "round_to_half", "relu": "relu", "fmod": "remainder_of_dividend",
    "mod": "remainder_of_divisor",
}  # fmt: skip
_FUNCTIONS_OF_FLOAT = {
    "exp": "exponential", "expm1": "exponential_minus_one", "log": "logarithm",
    "log1p": "logarithm_of_one_plus", "sin": "sine", "cos": "cosine", "tan": "tangent",
    "arcsin": "arc_sine", "arccos": "arc_cosine", "arctan": "arc_tangent", "sinh": "hyperbolic_sine",
    "cosh": "hyperbolic_cosine", "tanh": "hyperbolic_tangent", "arcsinh": "inverse_hyperbolic_sine",
    "arccosh": "inverse_hyperbolic_cosine", "arctanh": "inverse_hyperbolic_tangent",
    "erf": "error_function", "sigmoid": "sigmoid", "power": "power",
}  # fmt: skip
"""Functions of ``pointwise_math.slang`` that there are not for double: SPIR-V has no such instructions."""
_OF_INTEGERS = {"power": "integer_power"}
_SHIFTS = {"left_shift": "shift_left", "right_shift": "shift_right"}

_OVERFLOWING = frozenset(
    ("add", "subtract", "multiply", "divide", "negative", "absolute", "power", "invert", "left_shift")
) | {"convert"}
"""What may leave the range of a narrow integer, which is computed in 32 bits."""
_ARITHMETIC = frozenset(("add", "subtract", "multiply", "divide", "fma"))
"""Operations of whose known zeros compilers draw conclusions that IEEE 754 does not allow."""


def write_statements(
    writer: KernelWriter, results: Sequence[Scalar], operands: Sequence[str], indent: str = "    "
) -> tuple[list[str], list[str]]:
    """Slang statements that compute scalars for one element.

    Args:
        writer: of the kernel.
        results: what to compute.
        operands: Slang operands for the arguments, in their compute types.
        indent: of every statement.

    Returns:
        The statements, and the operand of every result.

    Raises:
        CannotLower: an operation or a type has no Slang form.
    """
    results = without_double_functions(results)
    order = ordered(results)
    if len(order) > MOST_STEPS:
        raise CannotLower(f"{len(order)} operations in one kernel: up to {MOST_STEPS} compile in time")
    known: dict[Scalar, str] = {}
    lines: list[str] = []
    for scalar in order:
        if scalar.operation == "argument":
            known[scalar] = operands[int(scalar.value)]
        elif scalar.operation == "constant":
            known[scalar] = literal(scalar.value, scalar.dtype)
        else:
            inputs = [_operand(writer, scalar, entry, known) for entry in scalar.inputs]
            name = f"t{len(lines)}"
            text = _in_range(scalar, _text(scalar, inputs))
            lines.append(f"{indent}{compute_type(scalar.dtype)} {name} = {text};")
            if scalar.dtype.bits == 64:
                writer.need(*NEEDS[scalar.dtype])
                if scalar.operation in ("fmod", "mod"):
                    writer.need("int64")  # which doubles are divided in
            known[scalar] = name
    return lines, [known[result] for result in results]


def _operand(writer: KernelWriter, user: Scalar, entry: Scalar, known: dict[Scalar, str]) -> str:
    is_zero = entry.is_constant and entry.dtype.is_float and entry.value == 0
    if is_zero and user.operation in _ARITHMETIC:
        return writer.zero(entry.dtype, is_negative=math.copysign(1.0, entry.value) < 0)
    return known[entry]


def _text(scalar: Scalar, inputs: Sequence[str]) -> str:
    name, kind = scalar.operation, scalar.inputs[0].dtype
    if name == "convert":
        return _converted(inputs[0], kind, scalar.dtype)
    if name == "view":
        return f"bit_cast<{compute_type(scalar.dtype)}>({inputs[0]})"
    if kind == BOOL and name in _OF_BOOLS:
        return _OF_BOOLS[name].format(*inputs)
    if name in _SYMBOLS:
        return f"({inputs[0]} {_SYMBOLS[name]} {inputs[1]})"
    if name in _PREFIXES:
        return f"({_PREFIXES[name]}{inputs[0]})"
    if name in _SHIFTS:
        return f"{_SHIFTS[name]}({inputs[0]}, {inputs[1]}, {scalar.dtype.bits})"
    function = _FUNCTIONS.get(name)
    if function is None:
        if kind == FLOAT64:
            raise CannotLower(f"{name} of double does not exist in SPIR-V")
        function = (_OF_INTEGERS if kind.is_integer else _FUNCTIONS_OF_FLOAT)[name]
    return f"{function}({', '.join(inputs)})"


def _converted(x: str, source: DType, target: DType) -> str:
    kind, from_kind = compute_type(target), compute_type(source)
    if source == BOOL:
        return f"select({x}, {kind}(1), {kind}(0))"
    if target == BOOL:
        return f"({x} != {from_kind}(0))"
    if source.is_float and target.kind == "u":
        return f"to_{'uint64' if target.bits == 64 else 'uint'}({x})"
    if source.is_float and target.is_integer and target.bits < 32:
        return f"to_int({x})"
    return x if kind == from_kind else f"{kind}({x})"


def _in_range(scalar: Scalar, text: str) -> str:
    """Narrow integers overflow at their own width, not at that of the register."""
    dtype = scalar.dtype
    if not dtype.is_integer or dtype.bits >= 32 or scalar.operation not in _OVERFLOWING:
        return text
    if dtype.kind == "u":
        return f"({text}) & 0x{(1 << dtype.bits) - 1:x}u"
    return f"(({text}) << {32 - dtype.bits}) >> {32 - dtype.bits}"


def literal(value: Number, dtype: DType) -> str:
    """A number as Slang text of the dtype's compute type that means exactly that number."""
    if dtype == BOOL:
        return "true" if value else "false"
    if dtype == FLOAT64:
        bits = int(np.float64(value).view(np.uint64))
        return f"asdouble(0x{bits & 0xFFFFFFFF:x}u, 0x{bits >> 32:x}u)"
    if dtype.is_float:
        number = np.float32(value)
        if np.isfinite(number):
            return f"float({float(number)!r})"
        return f"asfloat(0x{int(number.view(np.uint32)):x}u)"
    kind = compute_type(dtype)
    if kind in ("int", "uint"):
        return f"{kind}(0x{int(value) & 0xFFFFFFFF:x}u)"
    return f"{kind}(0x{int(value) & 0xFFFFFFFFFFFFFFFF:x}ull)"
