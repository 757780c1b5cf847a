"""What an equation of open sizes asks of them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from vkml.ir.size_terms import Symbol, Terms

_POINTS = (Fraction(101, 3), Fraction(211, 7), Fraction(307, 11), Fraction(401, 13))


def holds_for_multiples(terms: Terms) -> bool:
    """Whether an expression is 0 where all divisions in it come out: no size is fixed by that.

    Which is so if it is 0 with quotients in the places of floor divisions, for any values.
    """
    symbols = sorted(symbols_in(terms), key=lambda symbol: symbol.name)
    points = [[value * (at + 2) + at for at, _ in enumerate(symbols)] for value in _POINTS]
    return all(_quotient_value(terms, dict(zip(symbols, point, strict=True))) == 0 for point in points)


def symbols_in(terms: Terms) -> set[Symbol]:
    """The open sizes that an expression is of."""
    found: set[Symbol] = set()
    for monomial, _ in terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                found.add(atom)
            else:
                found |= symbols_in(atom.dividend) | symbols_in(atom.divisor)
    return found


def _quotient_value(terms: Terms, values: Mapping[Symbol, Fraction]) -> Fraction:
    total = Fraction(0)
    for monomial, factor in terms:
        product = Fraction(factor)
        for atom in monomial:
            if isinstance(atom, Symbol):
                product *= values[atom]
            else:
                product *= _quotient_value(atom.dividend, values) / _quotient_value(atom.divisor, values)
        total += product
    return total
