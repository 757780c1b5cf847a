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
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import EngineError
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


_deciding: ContextVar[Sizes] = ContextVar("sizes")


def is_deciding() -> bool:
    """Whether sizes are open here: what is made then is one plan's, for it holds where its guards do."""
    return _deciding.get(None) is not None


@contextmanager
def in_program() -> Iterator[None]:
    """Inside, a program is at work that takes sizes, which may be open, for numbers."""
    sizes = _deciding.get(None)
    if sizes is not None:
        sizes.is_programs = True
    try:
        yield
    finally:
        if sizes is not None:
            sizes.is_programs = False


def examples() -> Mapping[Symbol, int]:
    """The examples of the sizes that are open here."""
    return _sizes().examples


def _sizes() -> Sizes:
    try:
        return _deciding.get()
    except LookupError:
        raise EngineError("an open size was looked at outside of `Sizes.deciding`") from None


class Size:
    """An integer expression of symbols. Never a plain number: operations that come out give an int.

    Equal expressions are equal, and hash alike. To compare with anything else may add a guard. A program that
    takes one for a number (`in_program`) has that number where it writes it into a text, for which alone the
    plan then holds; no dict of numbers would find it, so that it cannot be looked up there.
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._hash = hash(terms)

    @property
    def example(self) -> int:
        """Its value in the example; what is decided by it is not guarded."""
        return evaluate(self.terms, _sizes().examples)

    # -- arithmetic -----------------------------------------------------------------------------------------

    def __add__(self, other: int | Size) -> int | Size:
        return NotImplemented if _foreign(other) else self._made(added(self.terms, _terms(other)))

    __radd__ = __add__

    def __sub__(self, other: int | Size) -> int | Size:
        return (
            NotImplemented
            if _foreign(other)
            else self._made(added(self.terms, multiplied(_terms(other), -1)))
        )

    def __rsub__(self, other: int) -> int | Size:
        return (
            NotImplemented
            if _foreign(other)
            else self._made(added(_terms(other), multiplied(self.terms, -1)))
        )

    def __mul__(self, other: int | Size) -> int | Size:
        return NotImplemented if _foreign(other) else self._made(product(self.terms, _terms(other)))

    __rmul__ = __mul__

    def __neg__(self) -> int | Size:
        return self._made(multiplied(self.terms, -1))

    def __pos__(self) -> Size:
        return self

    def __floordiv__(self, other: int | Size) -> int | Size:
        return NotImplemented if _foreign(other) else self._divided(self.terms, _terms(other))

    def __rfloordiv__(self, other: int) -> int | Size:
        return NotImplemented if _foreign(other) else self._divided(_terms(other), self.terms)

    def __mod__(self, other: int | Size) -> int | Size:
        return NotImplemented if _foreign(other) else self - (self // other) * other

    def __rmod__(self, other: int) -> int | Size:
        return NotImplemented if _foreign(other) else other - (other // self) * self

    def __divmod__(self, other: int | Size) -> tuple[int | Size, int | Size]:
        return self // other, self % other

    def __truediv__(self, other: object) -> float:
        raise TooOpen(f"{self} / {other} is no expression of sizes")

    __rtruediv__ = __truediv__

    def __float__(self) -> float:
        raise TooOpen(f"{self} is no number yet")

    def __abs__(self) -> int | Size:
        return self if self >= 0 else -self

    def _made(self, terms: Terms) -> int | Size:
        if not terms:
            return 0
        if len(terms) == 1 and not terms[0][0]:
            return terms[0][1]
        if len(terms) > MOST_TERMS:
            raise TooOpen(f"a size of {len(terms)} terms")
        return Size(terms)

    def _divided(self, dividend: Terms, divisor: Terms) -> int | Size:
        if not self._is_nonzero(divisor):
            raise ZeroDivisionError(f"{text_of(dividend)} by {text_of(divisor)}, which is 0")
        exact = exact_quotient(dividend, divisor)
        if exact is not None:
            return self._made(exact)
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

    def _is_nonzero(self, terms: Terms) -> bool:
        return not self._test_zero(terms)

    # -- what can be decided --------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if _foreign(other):
            return NotImplemented
        theirs = _terms(other)  # type: ignore[arg-type]
        return self.terms == theirs or self._test_zero(added(self.terms, multiplied(theirs, -1)))

    def __hash__(self) -> int:
        if _is_in_program():
            raise TooOpen(f"{text_of(self.terms)} is looked up, and no number yet")
        return self._hash

    def __bool__(self) -> bool:
        return not self._test_zero(self.terms)

    def __lt__(self, other: int | Size) -> bool:
        return NotImplemented if _foreign(other) else self._is_above(_terms(other), self.terms)

    def __gt__(self, other: int | Size) -> bool:
        return NotImplemented if _foreign(other) else self._is_above(self.terms, _terms(other))

    def __le__(self, other: int | Size) -> bool:
        return NotImplemented if _foreign(other) else not self._is_above(self.terms, _terms(other))

    def __ge__(self, other: int | Size) -> bool:
        return NotImplemented if _foreign(other) else not self._is_above(_terms(other), self.terms)

    def _is_above(self, first: Terms, second: Terms) -> bool:
        terms = added(first, multiplied(second, -1))
        low, high = bounds(terms)
        if low is not None and low > 0:
            return True
        if high is not None and high <= 0:
            return False
        sizes = _sizes()
        if terms not in sizes.is_positive:
            sizes.is_positive[terms] = evaluate(terms, sizes.examples) > 0
        return sizes.is_positive[terms]

    def _test_zero(self, terms: Terms) -> bool:
        if not terms:
            return True
        low, high = bounds(terms)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        if terms[0][1] < 0:
            terms = multiplied(terms, -1)
        sizes = _sizes()
        if terms not in sizes.is_zero:
            sizes.is_zero[terms] = evaluate(terms, sizes.examples) == 0
        return sizes.is_zero[terms]

    def __index__(self) -> int:
        """The number itself, where nothing but a number will do: the plan then holds for this value alone."""
        value = self.example
        self._test_zero(added(self.terms, number_terms(-value)))
        return value

    __int__ = __index__

    def __repr__(self) -> str:
        return str(int(self)) if _is_in_program() else text_of(self.terms)


def _is_in_program() -> bool:
    sizes = _deciding.get(None)
    return sizes is not None and sizes.is_programs


def _foreign(value: object) -> bool:
    """Whether a value is none that sizes are computed with."""
    if isinstance(value, float | np.floating):
        raise TooOpen(f"a size meets the number {value}: what comes of it is no expression of sizes")
    return not isinstance(value, int | Size | np.integer)


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
