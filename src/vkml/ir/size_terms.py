"""Expressions of open sizes: sums of products of symbols and floor divisions, with integer coefficients."""

from __future__ import annotations

import math
from collections.abc import Mapping

from vkml.dataclasses import dataclass


@dataclass(frozen=True)
class Symbol:
    """An open size by its name."""

    name: str
    least: int = 2
    """What it is at least: 0 and 1, which change how shapes broadcast, are plans of their own."""


@dataclass(frozen=True)
class Quotient:
    """A floor division that does not come out."""

    dividend: Terms
    divisor: Terms


Atom = Symbol | Quotient
Monomial = tuple[Atom, ...]
"""A product of atoms in a fixed order; () is 1."""
Terms = tuple[tuple[Monomial, int], ...]
"""A sum of monomials with coefficients other than 0, in a fixed order."""


MOST_TERMS = 256
"""Of an expression: those of more are not computed with."""
GREATEST = 2**48
"""No size is greater: above every memory, and below the ends of ranges that mean "all" (2^63 - 1)."""


def number_terms(value: int) -> Terms:
    return (((), int(value)),) if value else ()


def _ordered(found: Mapping[Monomial, int]) -> Terms:
    return tuple(sorted(((m, c) for m, c in found.items() if c), key=_order))


def _order(term: tuple[Monomial, int]) -> tuple[int, str]:
    """High powers first: a leading term is one that division can begin with."""
    return -len(term[0]), "·".join(map(_atom_text, term[0]))


def added(first: Terms, second: Terms) -> Terms:
    if not second:
        return first
    found = dict(first)
    for monomial, factor in second:
        found[monomial] = found.get(monomial, 0) + factor
    return _ordered(found)


def multiplied(terms: Terms, factor: int) -> Terms:
    return tuple((monomial, factor * c) for monomial, c in terms) if factor else ()


def product(first: Terms, second: Terms) -> Terms:
    found: dict[Monomial, int] = {}
    for left, a in first:
        for right, b in second:
            monomial = tuple(sorted((*left, *right), key=_atom_text))
            found[monomial] = found.get(monomial, 0) + a * b
    return _ordered(found)


def exact_quotient(dividend: Terms, divisor: Terms) -> Terms | None:
    """The quotient where the division comes out for all values, by long division of polynomials."""
    quotient: Terms = ()
    rest = dividend
    lead, count = divisor[0]
    for _ in range(MOST_TERMS):
        if not rest:
            return quotient
        monomial, factor = rest[0]
        left = _without(monomial, lead)
        if left is None or factor % count:
            return None
        step: Terms = ((left, factor // count),)
        quotient = added(quotient, step)
        rest = added(rest, multiplied(product(step, divisor), -1))
    return None


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def bounds(terms: Terms) -> tuple[int | None, int | None]:
    """The least and the greatest value, None where there is none that this can tell."""
    low, high = _bounds_of_sum(terms)
    if low is None:
        low = _bound_without_quotient(terms)
    if high is None:
        least = _bound_without_quotient(multiplied(terms, -1))
        high = None if least is None else -least
    return low, high


def _bound_without_quotient(terms: Terms) -> int | None:
    """The least value of a sum with floor divisions by numbers: c (d // c) is from d - c + 1 to d."""
    for monomial, factor in terms:
        quotient = monomial[0] if len(monomial) == 1 else None
        if not isinstance(quotient, Quotient):
            continue
        if len(quotient.divisor) != 1 or quotient.divisor[0][0] or quotient.divisor[0][1] < 0:
            continue
        count = quotient.divisor[0][1]
        rest = multiplied(added(terms, ((monomial, -factor),)), count)
        least = added(rest, multiplied(quotient.dividend, factor))
        if factor > 0:
            least = added(least, number_terms(-factor * (count - 1)))
        low, _ = bounds(least)
        if low is not None:
            return -(-low // count)
    return None


def _bounds_of_sum(terms: Terms) -> tuple[int | None, int | None]:
    """Bounds by those of the atoms alone.

    Every atom is its least value and something that is not negative: where no coefficient of these is
    negative, the least value is what is left without them.
    """
    found: dict[Monomial, int] = {}
    for monomial, factor in terms:
        parts: dict[Monomial, int] = {(): factor}
        for atom in monomial:
            least = _least(atom)
            if least is None:
                return None, None
            grown: dict[Monomial, int] = {}
            for part, count in parts.items():
                grown[part] = grown.get(part, 0) + count * least
                above = tuple(sorted((*part, atom), key=_atom_text))
                grown[above] = grown.get(above, 0) + count
            parts = grown
        for part, count in parts.items():
            found[part] = found.get(part, 0) + count
    base = found.pop((), 0)
    is_rising, is_falling = min(found.values(), default=0) >= 0, max(found.values(), default=0) <= 0
    low = base if is_rising else _with_greatest(base, found, is_falling)
    high = base if is_falling else _with_greatest(base, found, is_rising)
    return low, high


def _with_greatest(base: int, found: Mapping[Monomial, int], is_monotone: bool) -> int | None:
    """The value of an expression of one power of each size where all are as great as sizes can be."""
    if not is_monotone or any(len(m) != 1 or not isinstance(m[0], Symbol) for m in found):
        return None
    return base + sum(factor * GREATEST for factor in found.values())


def _least(atom: Atom) -> int | None:
    if isinstance(atom, Symbol):
        return atom.least
    low, _ = bounds(atom.dividend)
    divisor_low, divisor_high = bounds(atom.divisor)
    if low is None or divisor_low is None or divisor_low <= 0:
        return None
    if low >= 0:
        return 0 if divisor_high is None else low // divisor_high
    return low // divisor_low


def evaluate(terms: Terms, values: Mapping[Symbol, int]) -> int:
    """The value of an expression."""
    total = 0
    for monomial, factor in terms:
        for atom in monomial:
            factor *= _value(atom, values)
        total += factor
    return total


def least_value(terms: Terms) -> int | None:
    """What an expression is at least, None where that is not known."""
    return bounds(terms)[0]


def may_fall(terms: Terms) -> bool:
    """Whether an expression may have a smaller value where a symbol has a larger one."""
    return not _direction(terms) >= 0


def _direction(terms: Terms) -> float:
    """1 where it grows with all symbols, -1 where it falls with all, 0 where it has none; NaN: who knows."""
    directions: set[float] = set()
    for monomial, factor in terms:
        if not monomial:
            continue
        sign = 1 if factor > 0 else -1
        if all(isinstance(atom, Symbol) for atom in monomial):
            directions.add(sign)
        elif len(monomial) == 1 and isinstance(monomial[0], Quotient):
            directions.add(sign * _direction_of_quotient(monomial[0]))
        else:
            return math.nan
    directions.discard(0)
    return directions.pop() if len(directions) == 1 else math.nan if directions else 0


def _direction_of_quotient(quotient: Quotient) -> float:
    if [monomial for monomial, _ in quotient.divisor] != [()]:
        return math.nan
    [(_, divisor)] = quotient.divisor
    return _direction(quotient.dividend) * (1 if divisor > 0 else -1)


def _value(atom: Atom, values: Mapping[Symbol, int]) -> int:
    if isinstance(atom, Symbol):
        return values[atom]
    return evaluate(atom.dividend, values) // evaluate(atom.divisor, values)


def _atom_text(atom: Atom) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    return f"({_operand_text(atom.dividend)} // {_operand_text(atom.divisor)})"


def _operand_text(terms: Terms) -> str:
    is_single = len(terms) == 1 and len(terms[0][0]) + (terms[0][1] != 1) == 1
    return text_of(terms) if is_single else f"({text_of(terms)})"


def text_of(terms: Terms) -> str:
    """As Python would write it."""
    text = ""
    for monomial, factor in terms:
        sign = " - " if factor < 0 else " + "
        size = abs(factor)
        atoms = [_atom_text(atom) for atom in monomial]
        product = " * ".join(atoms if size == 1 and atoms else [str(size), *atoms])
        text += (sign if text else sign.strip(" +")) + product
    return text or "0"
