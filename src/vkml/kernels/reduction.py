"""What reductions do to elements, as Slang text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from vkml.dataclasses import dataclass
from vkml.ir import DType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import arithmetic_type
from vkml.kernels.scalar_text import literal
from vkml.kernels.writer import compute_type


class Folding(Protocol):
    """Elements are brought into a few numbers, the accumulator, of which two become one."""

    def fields(self, dtype: DType) -> tuple[DType, ...]:
        """The types of the numbers for elements of a type."""

    def functions(self, at: int, dtype: DType) -> str:
        """Functions that the statements call, whose names end in the number `at`."""

    def initial(self, dtype: DType) -> tuple[str, ...]:
        """Numbers that change nothing."""

    def gathered(self, at: int, to: Sequence[str], elements: Sequence[str]) -> list[str]:
        """Statements that bring elements into an accumulator."""

    def joined(self, at: int, to: Sequence[str], a: Sequence[str], b: Sequence[str]) -> list[str]:
        """Statements that make one accumulator of two."""

    def result_types(self, dtype: DType) -> tuple[DType, ...]:
        """The types of the results for elements of a type."""

    def results(self, at: int, numbers: Sequence[str]) -> tuple[str, ...]:
        """What comes of it; the constant COUNT is the number of elements."""


@dataclass(frozen=True)
class Reduction:
    """A folding into one number."""

    map: str
    """Of one element x."""
    combine: str
    """Of two values a and b."""
    initial_value: str
    """The neutral value."""
    finalize: str = "x"
    """Of the combined value x; COUNT is the number of elements."""
    accumulator: DType | None = None
    """In which values are combined, where that is not the elements' own compute type."""

    def fields(self, dtype: DType) -> tuple[DType, ...]:
        return (self.accumulator or arithmetic_type(dtype),)

    def functions(self, at: int, dtype: DType) -> str:
        type_ = compute_type(self.fields(dtype)[0])
        return (
            f"{type_} map{at}({type_} x) {{ return {self.map}; }}\n"
            f"{type_} combine{at}({type_} a, {type_} b) {{ return {self.combine}; }}\n"
            f"{type_} finalize{at}({type_} x) {{ return {self.finalize}; }}"
        )

    def initial(self, dtype: DType) -> tuple[str, ...]:
        return (self.initial_value,)

    def gathered(self, at: int, to: Sequence[str], elements: Sequence[str]) -> list[str]:
        terms = [f"map{at}({element})" for element in elements]
        while len(terms) > 1:
            pairs = [f"combine{at}({a}, {b})" for a, b in zip(terms[::2], terms[1::2], strict=False)]
            terms = pairs + terms[len(pairs) * 2 :]
        return [f"{to[0]} = {terms[0]};"]

    def joined(self, at: int, to: Sequence[str], a: Sequence[str], b: Sequence[str]) -> list[str]:
        return [f"{to[0]} = combine{at}({a[0]}, {b[0]});"]

    def result_types(self, dtype: DType) -> tuple[DType, ...]:
        return (dtype,)

    def results(self, at: int, numbers: Sequence[str]) -> tuple[str, ...]:
        return (f"finalize{at}({numbers[0]})",)


@dataclass(frozen=True)
class Moments:
    """The mean, and the mean square of what elements differ from it, of elements that are read once.

    An accumulator is a count, a mean and a sum of squares (Chan, Golub and LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances", 1979), so that large means cost no digits.
    """

    dtype: DType
    """Of the results."""

    def fields(self, dtype: DType) -> tuple[DType, ...]:
        return (self.dtype,) * 3

    def functions(self, at: int, dtype: DType) -> str:
        type_ = compute_type(self.dtype)
        return f"{type_} square{at}({type_} x) {{ return x * x; }}"

    def initial(self, dtype: DType) -> tuple[str, ...]:
        return (literal(0, self.dtype),) * 3

    def gathered(self, at: int, to: Sequence[str], elements: Sequence[str]) -> list[str]:
        type_, number = compute_type(self.dtype), len(elements)
        mean, squares = f"mean{at}", [f"square{at}({element} - mean{at})" for element in elements]
        terms = list(elements)
        for parts in (terms, squares):
            while len(parts) > 1:
                pairs = [f"({a} + {b})" for a, b in zip(parts[::2], parts[1::2], strict=False)]
                parts[:] = pairs + parts[len(pairs) * 2 :]
        factor = f" * {literal(1 / number, self.dtype)}" if number > 1 else ""
        return [
            f"{type_} {mean} = {terms[0]}{factor};",
            f"{to[0]} = {literal(number, self.dtype)};",
            f"{to[1]} = {mean};",
            f"{to[2]} = {squares[0]};",
        ]

    def joined(self, at: int, to: Sequence[str], a: Sequence[str], b: Sequence[str]) -> list[str]:
        type_, zero = compute_type(self.dtype), literal(0, self.dtype)
        infinity = literal(math.inf, self.dtype)
        share, apart = f"share{at}", f"apart{at}"
        return [
            f"{to[0]} = {a[0]} + {b[0]};",
            f"{type_} {share} = {b[0]} == {zero} ? {zero} : {b[0]} / {to[0]};",
            # Of none there is no mean, and what it differs by may overflow.
            f"{type_} {apart} = {a[0]} == {zero} || {b[0]} == {zero} ? {zero} : {b[1]} - {a[1]};",
            # A mean that is infinite stays so beside finite ones.
            f"{type_} moved{at} = absolute({apart}) < {infinity} ? {apart} * {share} : {b[1]};",
            f"{to[1]} = {a[0]} == {zero} ? {b[1]} : {a[1]} + moved{at};",
            f"{to[2]} = {a[2]} + {b[2]} + {apart} * {apart} * ({a[0]} * {share});",
        ]

    def result_types(self, dtype: DType) -> tuple[DType, ...]:
        return self.dtype, self.dtype

    def results(self, at: int, numbers: Sequence[str]) -> tuple[str, ...]:
        return numbers[1], f"({numbers[2]} / {numbers[0]})"


def folding(name: str, dtype: DType) -> Folding:
    """What an operator of that `Operator.reduction` does to elements of a type."""
    return Moments(arithmetic_type(dtype)) if name == "Moments" else reduction(name, dtype)


def reduction(name: str, dtype: DType) -> Reduction:
    """The reduction an ONNX operator ReduceNAME stands for on elements of `dtype`."""
    zero, one = literal(0, dtype), literal(1, dtype)
    accumulator = compute_type(dtype)
    if name in ("Max", "Min"):
        return Reduction("x", f"{name.lower()}imum(a, b)", extreme(dtype, lowest=name == "Max"))
    if name == "Prod":
        return Reduction("x", "a * b", one)
    finalize = {
        "Sum": "x",
        "SumSquare": "x",
        "L1": "x",
        "Mean": f"x / {accumulator}(COUNT)",
        "L2": "sqrt(x)",
        "LogSum": "logarithm(x)",
    }.get(name)
    if finalize is None:
        raise CannotLower(f"Reduce{name} has no reduction kernel")
    if not dtype.is_float and name in ("L2", "LogSum"):
        raise CannotLower(f"Reduce{name} of {dtype.name} has no kernel")
    if dtype == dtypes.FLOAT64 and name == "LogSum":
        raise CannotLower("Vulkan has no logarithm of float64")
    if name == "L1":
        mapped = "x" if dtype.kind == "u" else f"(x < {zero} ? -x : x)"
    else:
        mapped = "x * x" if name in ("SumSquare", "L2") else "x"
    if name == "Mean" and not dtype.is_float and dtype.bits < 64:
        # The sum may need more bits than the mean has.
        wide = dtypes.UINT64 if dtype.kind == "u" else dtypes.INT64
        return Reduction(mapped, "a + b", literal(0, wide), f"x / {compute_type(wide)}(COUNT)", wide)
    return Reduction(mapped, "a + b", zero, finalize)


def norm(p: float, dtype: DType) -> Reduction:
    """The p-norm of elements of `dtype`."""
    if p == 1:
        return Reduction("absolute(x)", "a + b", "0")
    if p == 2:
        return Reduction("x * x", "a + b", "0", "sqrt(x)")
    if dtype == dtypes.FLOAT64:
        raise CannotLower(f"Vulkan has no powers of float64, which the {p:g}-norm needs")
    return Reduction(f"power(absolute(x), {float(p)!r})", "a + b", "0", f"power(x, {1 / p!r})")


def extreme(dtype: DType, *, lowest: bool) -> str:
    """Slang text of the least (or greatest) value of a dtype."""
    if dtype == dtypes.BOOL:
        return "false" if lowest else "true"
    if dtype.is_float:
        return literal(-math.inf if lowest else math.inf, dtype)
    if dtype.kind == "u":
        return literal(0 if lowest else (1 << dtype.bits) - 1, dtype)
    return literal(-(1 << (dtype.bits - 1)) if lowest else (1 << (dtype.bits - 1)) - 1, dtype)
