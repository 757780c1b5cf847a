"""Sizes that stay open while a plan is made: integer expressions of symbols.

Code that computes with sizes computes with these as well. What it decides by looking at one, where a
comparison does not come out the same for every value, is decided for an example and noted as a guard: the
plan holds for all values for which every guard comes out the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any, TypeGuard

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import EngineError
from vkml.ir.callers import is_called_by_program
from vkml.ir.size_terms import (
    GREATEST,
    MOST_TERMS,
    Atom,
    Quotient,
    Symbol,
    Terms,
    added,
    bounds,
    evaluate,
    exact_quotient,
    multiplied,
    number_terms,
    product,
    text_of,
)  # fmt: skip


class TooOpen(EngineError):
    """Sizes cannot stay open: what is computed from them is no expression of sizes, or too large a one."""


@dataclass(eq=False)
class Sizes:
    """The open sizes of one plan: an example of each, and what has been decided by the examples."""

    examples: dict[Symbol, int] = field(default_factory=dict)
    is_positive: dict[Terms, bool] = field(default_factory=dict)
    """Guards: whether an expression is above 0."""
    is_zero: dict[Terms, bool] = field(default_factory=dict)
    """Guards: whether an expression is 0."""
    asked: set[Terms] = field(default_factory=set)
    """Those of both that a program itself has compared, and not what it calls."""
    is_programs: bool = False
    """Whether a program is at work that does not know of them: see `in_program`."""

    def symbol(self, name: str, example: int, least: int = 2) -> Size:
        """A size that is open.

        Args:
            name: of the symbol; the same name is the same size.
            example: a value that it has.
            least: what it never is below.
        """
        if example < least:
            raise ValueError(f"{name} is {example} in the example and {least} at least")
        made = Symbol(name, least)
        known = self.examples.setdefault(made, example)
        if known != example:
            raise ValueError(f"{name} is {known} and {example}")
        return Size((((made,), 1),))

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Inside, what has to be decided by looking at a size is decided for the examples, and noted."""
        token = _deciding.set(self)
        try:
            yield
        finally:
            _deciding.reset(token)

    def decide(self, guards: dict[Terms, bool], terms: Terms, test: Callable[[int], bool]) -> bool:
        """What comes out for the examples, which is noted."""
        if self.is_programs and terms not in self.asked and is_called_by_program(__file__):
            self.asked.add(terms)
        if terms not in guards:
            guards[terms] = test(evaluate(terms, self.examples))
        return guards[terms]

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether all that was decided comes out the same for these values of the symbols."""
        found = {symbol: values[symbol.name] for symbol in self.examples}
        return (
            all(symbol.least <= found[symbol] <= GREATEST for symbol in found)
            and all(evaluate(terms, found) == 0 for terms, was in self.is_zero.items() if was)
            and all(evaluate(terms, found) != 0 for terms, was in self.is_zero.items() if not was)
            and all((evaluate(terms, found) > 0) == was for terms, was in self.is_positive.items())
        )

    def compiled(self) -> Callable[..., bool]:
        """`holds` as a function of the symbols' values in the order of `examples`: 0.05 µs a guard."""
        symbols = tuple(self.examples)
        guards = [*self.is_positive, *self.is_zero]
        compute = binder([Size(terms) for terms in guards], symbols)
        ranges = [f"{symbol.least} <= s{at} <= {GREATEST}" for at, symbol in enumerate(symbols)]
        tests = ["> 0" if was else "<= 0" for was in self.is_positive.values()]
        tests += ["== 0" if was else "!= 0" for was in self.is_zero.values()]
        names = [f"v{at}" for at in range(len(guards))]
        given = ", ".join(f"s{at}" for at in range(len(symbols)))
        source = f"""
def holds({given}):
    if not ({" and ".join(ranges) or "True"}):
        return False
    ({"".join(f"{name}, " for name in names)}) = compute({given})
    return {" and ".join(f"{name} {test}" for name, test in zip(names, tests, strict=True)) or "True"}
"""
        scope: dict[str, Any] = {"compute": compute}
        exec(source, scope)
        made: Callable[..., bool] = scope["holds"]
        return made

    def guards(self) -> list[str]:
        """What was decided, for people."""
        positive = [f"{text_of(terms)} {'>' if was else '<='} 0" for terms, was in self.is_positive.items()]
        return positive + [
            f"{text_of(terms)} {'==' if was else '!='} 0" for terms, was in self.is_zero.items()
        ]


_MOST_POWER = 8
_deciding: ContextVar[Sizes] = ContextVar("sizes")


def is_deciding() -> bool:
    """Whether sizes are open here: what is made then is one plan's, for it holds where its guards do."""
    return _deciding.get(None) is not None


@contextmanager
def in_program() -> Iterator[None]:
    """Inside, a program is at work that takes sizes, which may be open, for numbers."""
    sizes = _deciding.get(None)
    if sizes is None:
        yield
        return
    before, sizes.is_programs = sizes.is_programs, True
    try:
        yield
    finally:
        sizes.is_programs = before


def examples() -> Mapping[Symbol, int]:
    """The examples of the sizes that are open here."""
    return _sizes().examples


def _sizes() -> Sizes:
    try:
        return _deciding.get()
    except LookupError:
        raise EngineError("an open size is used outside of its capture or export: keep int(n)") from None


class Size:
    """An integer expression of symbols. Never a plain number: operations that come out give an int.

    Equal expressions are equal, and hash alike. To compare with anything else may add a guard.

    A program (`in_program`) takes one for a number: it is an `int` there, as `isinstance` has it, and where
    it is written into a text, it is a number, for which alone the plan then holds. What is no expression of
    sizes (half of one, its root) is refused, likewise with the guard that the size is what it is now: who
    makes the plan reads there which sizes to know beforehand. So is looking it up in a dict, where no number
    is found by it, and which would keep it. Code that serves programs asks `is_number` for what is no `Size`.
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._hash = hash(terms)

    @property
    def example(self) -> int:
        """Its value in the example; what is decided by it is not guarded."""
        return evaluate(self.terms, _sizes().examples)

    @property  # type: ignore[misc]  # that of objects can be set, which nobody does
    def __class__(self) -> type:
        return int if _is_in_program() else Size

    # -- arithmetic -----------------------------------------------------------------------------------------

    def __add__(self, other: int | Size) -> int | Size:
        return self._made(added(self.terms, _terms(other))) if self._takes(other) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: int | Size) -> int | Size:
        if not self._takes(other):
            return NotImplemented
        return self._made(added(self.terms, multiplied(_terms(other), -1)))

    def __rsub__(self, other: int) -> int | Size:
        if not self._takes(other):
            return NotImplemented
        return self._made(added(_terms(other), multiplied(self.terms, -1)))

    def __mul__(self, other: int | Size) -> int | Size:
        return self._made(product(self.terms, _terms(other))) if self._takes(other) else NotImplemented

    __rmul__ = __mul__

    def __pow__(self, other: int) -> int | Size:
        if is_number(other) and 0 <= other <= _MOST_POWER:
            found: int | Size = math.prod([self] * other)
            return found
        raise self._refusal(f"{text_of(self.terms)} ** {other}")

    def __rpow__(self, other: object) -> int:
        raise self._refusal(f"{other} ** {text_of(self.terms)}")

    def __neg__(self) -> int | Size:
        return self._made(multiplied(self.terms, -1))

    def __pos__(self) -> Size:
        return self

    def __floordiv__(self, other: int | Size) -> int | Size:
        return self._divided(self.terms, _terms(other)) if self._takes(other) else NotImplemented

    def __rfloordiv__(self, other: int) -> int | Size:
        return self._divided(_terms(other), self.terms) if self._takes(other) else NotImplemented

    def __mod__(self, other: int | Size) -> int | Size:
        return self - (self // other) * other if self._takes(other) else NotImplemented

    def __rmod__(self, other: int) -> int | Size:
        return other - (other // self) * self if self._takes(other) else NotImplemented

    def __divmod__(self, other: int | Size) -> tuple[int | Size, int | Size]:
        return self // other, self % other

    def __rdivmod__(self, other: int) -> tuple[int | Size, int | Size]:
        return other // self, other % self

    def __lshift__(self, other: int) -> int | Size:
        return self * (1 << other)

    def __rshift__(self, other: int) -> int | Size:
        return self // (1 << other)

    def __invert__(self) -> int | Size:
        return -self - 1

    def __and__(self, other: int) -> int | Size:
        if is_number(other) and other >= 0 and not other & (other + 1):
            return self % (other + 1)
        raise self._refusal(f"{text_of(self.terms)} & {other}")

    __rand__ = __and__

    def __or__(self, other: object) -> int:
        raise self._refusal(f"{text_of(self.terms)} | {other}")

    __ror__ = __or__

    def __xor__(self, other: object) -> int:
        raise self._refusal(f"{text_of(self.terms)} ^ {other}")

    __rxor__ = __xor__

    def __rlshift__(self, other: object) -> int:
        raise self._refusal(f"{other} << {text_of(self.terms)}")

    def __rrshift__(self, other: object) -> int:
        raise self._refusal(f"{other} >> {text_of(self.terms)}")

    def __truediv__(self, other: object) -> float:
        raise self._refusal(f"{text_of(self.terms)} / {other}")

    def __rtruediv__(self, other: object) -> float:
        raise self._refusal(f"{other} / {text_of(self.terms)}")

    def __float__(self) -> float:
        raise self._refusal(f"the float of {text_of(self.terms)}")

    def __abs__(self) -> int | Size:
        return self if self >= 0 else -self

    def __round__(self, digits: int | None = None) -> int | Size:
        if digits is not None and digits < 0:
            raise self._refusal(f"{text_of(self.terms)} rounded to {digits} digits")
        return self

    def __trunc__(self) -> Size:
        return self

    __floor__ = __ceil__ = __trunc__

    def bit_length(self) -> int:
        """As that of a number, which it is not yet.

        Raises:
            TooOpen: always.
        """
        raise self._refusal(f"the number of bits of {text_of(self.terms)}")

    def _takes(self, other: object) -> bool:
        """Whether a value is one that sizes are computed with."""
        if isinstance(other, float | np.floating):
            raise self._refusal(f"what comes of {text_of(self.terms)} and the number {other}")
        return isinstance(other, int | Size | np.integer)

    def _refusal(self, what: str) -> TooOpen:
        """Says that something is no expression of sizes; a program that wants it fixes this one."""
        if _is_in_program():
            int(self)
        return TooOpen(f"{what} is no expression of sizes")

    def _made(self, terms: Terms) -> int | Size:
        if not terms:
            return 0
        if len(terms) == 1 and not terms[0][0]:
            return terms[0][1]
        if len(terms) > MOST_TERMS:
            raise TooOpen(f"a size of {len(terms)} terms")
        return Size(terms)

    def _divided(self, dividend: Terms, divisor: Terms) -> int | Size:
        if self._test_zero(divisor):
            raise ZeroDivisionError(f"{text_of(dividend)} by {text_of(divisor)}, which is 0")
        exact = exact_quotient(dividend, divisor)
        if exact is not None:
            return self._made(exact)
        least, gap = bounds(dividend)[0], bounds(added(divisor, multiplied(dividend, -1)))[0]
        if least is not None and least >= 0 and gap is not None and gap > 0:
            return 0
        low, _ = bounds(divisor)
        if dividend[0][1] < 0 and low is not None and low > 0:
            # Rounding up, as it is written for integers: -(-n // 4) is (n + 3) // 4.
            upper = added(multiplied(dividend, -1), added(divisor, number_terms(-1)))
            return -self._divided(upper, divisor)
        whole: Terms = ()
        if len(divisor) == 1 and not divisor[0][0]:
            # (4 n + 3) // 2 is 2 n + 3 // 2, and 3 // 2 has coefficients from 0 to 1.
            count = divisor[0][1]
            whole = tuple((monomial, factor // count) for monomial, factor in dividend if factor // count)
            dividend = tuple((monomial, factor % count) for monomial, factor in dividend if factor % count)
            low, high = bounds(dividend)
            if low is not None and high is not None and low // count == high // count:
                return self._made(added(whole, number_terms(low // count)))
        return self._made(added(whole, (((Quotient(dividend, divisor),), 1),)))

    # -- what can be decided --------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, float | np.floating):
            return bool(other.is_integer()) and self == int(other)
        if not self._takes(other):
            return NotImplemented
        theirs = _terms(other)  # type: ignore[arg-type]
        return self.terms == theirs or self._test_zero(added(self.terms, multiplied(theirs, -1)))

    def __hash__(self) -> int:
        if _is_in_program():
            raise self._refusal(f"what a dict or a set has for {text_of(self.terms)}")
        return self._hash

    def __bool__(self) -> bool:
        return not self._test_zero(self.terms)

    def __lt__(self, other: float | Size) -> bool:
        bound = _bound(other, math.ceil)
        return self._is_above(_terms(bound), self.terms) if self._takes(bound) else NotImplemented

    def __gt__(self, other: float | Size) -> bool:
        bound = _bound(other, math.floor)
        return self._is_above(self.terms, _terms(bound)) if self._takes(bound) else NotImplemented

    def __le__(self, other: float | Size) -> bool:
        bound = _bound(other, math.floor)
        return not self._is_above(self.terms, _terms(bound)) if self._takes(bound) else NotImplemented

    def __ge__(self, other: float | Size) -> bool:
        bound = _bound(other, math.ceil)
        return not self._is_above(_terms(bound), self.terms) if self._takes(bound) else NotImplemented

    def _is_above(self, first: Terms, second: Terms) -> bool:
        terms = added(first, multiplied(second, -1))
        low, high = bounds(terms)
        if low is not None and low > 0:
            return True
        if high is not None and high <= 0:
            return False
        sizes = _sizes()
        return sizes.decide(sizes.is_positive, terms, lambda value: value > 0)

    def _test_zero(self, terms: Terms) -> bool:
        if not terms:
            return True
        low, high = bounds(terms)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        if terms[0][1] < 0:
            terms = multiplied(terms, -1)
        sizes = _sizes()
        return sizes.decide(sizes.is_zero, terms, lambda value: value == 0)

    def __index__(self) -> int:
        """The number itself, where nothing but a number will do: the plan then holds for this value alone."""
        value = self.example
        self._test_zero(added(self.terms, number_terms(-value)))
        return value

    __int__ = __index__

    def __repr__(self) -> str:
        return str(int(self)) if _is_in_program() else text_of(self.terms)

    def __format__(self, form: str) -> str:
        return format(int(self), form) if _is_in_program() else format(text_of(self.terms), form)


def _is_in_program() -> bool:
    sizes = _deciding.get(None)
    return sizes is not None and sizes.is_programs


def is_number(value: object) -> TypeGuard[int]:
    """Whether a size is a number, and no open one, which is an `int`, too, where a program asks."""
    return type(value) is not Size and isinstance(value, int)


def _bound(other: Any, rounded: Callable[[float], int]) -> Any:
    """What a size is compared with, as a whole number: those below 4.5 are those below 5."""
    if not isinstance(other, float | np.floating):
        return other
    return rounded(float(other)) if math.isfinite(other) else int(math.copysign(2 * GREATEST, other))


def _terms(value: int | Size) -> Terms:
    return value.terms if isinstance(value, Size) else number_terms(value)


def array_of(elements: Sequence[Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """An array of integers, of objects where open sizes are among them."""
    if not any(isinstance(element, Size) for element in elements):
        return np.array(elements, np.int64).reshape(tuple(shape))
    made = np.empty(len(elements), object)
    made[:] = elements
    return made.reshape(tuple(shape))


def plain(value: Any) -> Any:
    """An integer of whatever kind as Python's; a size as it is."""
    return value if isinstance(value, Size) else int(value)


def integer(value: Any) -> Any:
    """What a program states as a size or a position, of whatever kind, as Python's; a size as it is.

    Raises:
        TypeError: it is no integer.
    """
    return value if isinstance(value, Size) else operator.index(value)


def concrete(value: int | Size, values: Mapping[Symbol, int]) -> int:
    """A size for values of the symbols."""
    return evaluate(value.terms, values) if isinstance(value, Size) else value


def binder(sizes: Iterable[int | Size], symbols: Sequence[Symbol]) -> Callable[..., tuple[int, ...]]:
    """A function from the symbols' values to those of many sizes, each part of them computed once.

    It takes 0.1 µs a size, where `concrete` takes 2.

    Args:
        sizes: what it returns, in this order.
        symbols: its arguments, in this order.
    """
    names: dict[Atom, str] = {symbol: f"s{index}" for index, symbol in enumerate(symbols)}
    lines: list[str] = []

    def name_of(atom: Atom) -> str:
        known = names.get(atom)
        if known is None:
            assert isinstance(atom, Quotient), f"{atom} is no argument"
            text = f"({written(atom.dividend)}) // ({written(atom.divisor)})"
            known = names[atom] = f"q{len(lines)}"
            lines.append(f"    {known} = {text}")
        return known

    def written(terms: Terms) -> str:
        products = ["*".join([str(factor), *map(name_of, monomial)]) for monomial, factor in terms]
        return " + ".join(products) or "0"

    cases: dict[Terms, str] = {}
    values = []
    for size in sizes:
        terms = _terms(size)
        if terms not in cases:
            cases[terms] = f"v{len(cases)}"
            lines.append(f"    {cases[terms]} = {written(terms)}")
        values.append(cases[terms])
    arguments = ", ".join(f"s{index}" for index in range(len(symbols)))
    result = "".join(f"{value}, " for value in values)
    source = "\n".join([f"def bind({arguments}):", *lines, f"    return ({result})"])
    scope: dict[str, Callable[..., tuple[int, ...]]] = {}
    exec(source, {}, scope)
    return scope["bind"]


def matcher(
    stated: Sequence[Sequence[int | Size]], sizes: Sizes
) -> Callable[[Sequence[tuple[int, ...]]], tuple[int, ...] | None]:
    """A function from shapes to the values of the symbols; None where the shapes or these do not fit.

    Args:
        stated: shapes of numbers and of symbols by themselves.
        sizes: the symbols, and what has been decided about them.
    """
    names: dict[Terms, str] = {}
    for index, symbol in enumerate(sizes.examples):
        names[(((symbol,), 1),)] = f"s{index}"
    seen: set[str] = set()
    patterns, tests = [], []
    for at, shape in enumerate(stated):
        dims = [f"d{at}_{axis}" for axis in range(len(shape))]
        for axis, dim in enumerate(shape):
            if not isinstance(dim, Size):
                tests.append(f"{dims[axis]} != {dim}")
            elif names[dim.terms] in seen:
                tests.append(f"{dims[axis]} != {names[dim.terms]}")
            else:
                dims[axis] = names[dim.terms]
                seen.add(dims[axis])
        patterns.append("(" + "".join(f"{dim}, " for dim in dims) + ")")
    values = ", ".join(f"s{index}" for index in range(len(names)))
    source = f"""
def match(shapes):
    try:
        ({"".join(f"{pattern}, " for pattern in patterns)}) = shapes
    except ValueError:
        return None
    if {" or ".join(tests) or "False"} or not holds({values}):
        return None
    return ({values},)
"""
    scope: dict[str, Any] = {"holds": sizes.compiled()}
    exec(source, scope)
    made: Callable[[Sequence[tuple[int, ...]]], tuple[int, ...] | None] = scope["match"]
    return made


def scaled(value: int | Size, factor: float) -> int | Size:
    """A size times a number, rounded down.

    Raises:
        TooOpen: of an open size and a number that is neither whole nor one over a whole one.
    """
    if not isinstance(value, Size):
        return math.floor(value * factor)
    if float(factor).is_integer():
        return value * int(factor)
    parts = round(1 / factor) if factor > 0 else 0
    if not parts or 1 / parts != factor:
        raise TooOpen(f"the size {value} is open, and {factor} times it is no expression of sizes")
    return value // parts


def is_multiple(value: int | Size, of: int) -> bool:
    """Whether a size is a multiple of a number, whatever the symbols are; this decides nothing."""
    if type(value) is int:
        return value % of == 0
    return all(factor % of == 0 for _, factor in _terms(value))


def is_same(first: int | Size, second: int | Size) -> bool:
    """Whether two sizes are equal, whatever the symbols are; this decides nothing."""
    if type(first) is type(second) is int:
        return first == second
    return _terms(first) == _terms(second)


def typical(value: int | Size) -> int:
    """What to choose by where a choice has to do for all values: not the first small one that comes along."""
    if not isinstance(value, Size):
        return value
    return evaluate(value.terms, {s: max(size, _TYPICAL) for s, size in _sizes().examples.items()})


_TYPICAL = 256
