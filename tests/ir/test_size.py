"""Open sizes: arithmetic like that of integers, decisions noted as guards, values bound again in one call."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkml.errors import EngineError
from vkml.ir.size import (
    Size,
    Sizes,
    TooOpen,
    binder,
    concrete,
    in_program,
    is_multiple,
    is_number,
    typical,
)
from vkml.ir.size_terms import Symbol, evaluate, may_fall


@pytest.fixture
def sizes() -> Iterator[Sizes]:
    made = Sizes()
    with made.deciding():
        yield made


def two(sizes: Sizes, first: int = 7, second: int = 12) -> tuple[Any, Any]:
    return sizes.symbol("n", first), sizes.symbol("m", second)


def test_arithmetic_that_comes_out_is_simplified(sizes: Sizes) -> None:
    n, m = two(sizes)
    assert str(n + 1 + n) == "2 * n + 1"
    assert n - n == 0 and isinstance(n - n, int)
    assert n * m is not m * n and n * m == m * n
    assert (n * m * 64) // (n * 64) == m
    assert (n * m + n) // (m + 1) == n
    assert (4 * n + 3) // 2 == 2 * n + 1
    assert (n * 6) % 3 == 0
    assert str((n + 3) // 4) == "((n + 3) // 4)"
    assert -(-n // 4) == -((-n) // 4)
    assert math.prod([2, n, m]) == 2 * n * m
    assert n + np.int64(3) == n + 3


def test_no_guard_where_nothing_is_decided(sizes: Sizes) -> None:
    n, m = two(sizes)
    assert n > 1 and n >= 2 and n * m > n and n != 0 and n + 1 != 1 and n != 1
    assert n + m == m + n
    assert bool(n)
    assert not sizes.guards()


def test_what_is_decided_is_noted_once(sizes: Sizes) -> None:
    n, m = two(sizes)
    assert n < m and n < m and not m < n
    assert n != m and (n == m) is False
    assert sizes.guards() == ["m - n > 0", "-m + n <= 0", "m - n != 0"]
    assert sizes.holds({"n": 3, "m": 4})
    assert not sizes.holds({"n": 4, "m": 4})
    assert not sizes.holds({"n": 5, "m": 4})
    assert not sizes.holds({"n": 1, "m": 4}), "less than the least"


def test_what_is_equal_stays_equal(sizes: Sizes) -> None:
    n, m = two(sizes, 12, 12)
    assert n == m
    assert sizes.holds({"n": 5, "m": 5}) and not sizes.holds({"n": 5, "m": 6})


def test_a_number_in_its_place_holds_for_that_value_alone(sizes: Sizes) -> None:
    n, _ = two(sizes)
    assert list(range(n)) == list(range(7))
    assert sizes.holds({"n": 7, "m": 2}) and not sizes.holds({"n": 8, "m": 2})


def test_looking_at_an_example_decides_nothing(sizes: Sizes) -> None:
    n, _ = two(sizes)
    assert (n * 2).example == 14 and not sizes.guards()


def test_floats_are_refused(sizes: Sizes) -> None:
    n, _ = two(sizes)
    for operation in (
        lambda: n * 1.5,
        lambda: 1.5 - n,
        lambda: n / 2,
        lambda: 7 / n,
        lambda: math.sqrt(n),
        lambda: n**0.5,
        lambda: n**-1,
        lambda: 2**n,
        lambda: n | 1,
        lambda: n & 6,
        lambda: round(n, -1),
    ):
        with pytest.raises(TooOpen):
            operation()
    assert not sizes.guards()
    with pytest.raises(ZeroDivisionError):
        n // 0


def test_integers_arithmetic(sizes: Sizes) -> None:
    n, m = two(sizes)
    assert n**2 == n * n and n**0 == 1 and (n * m) ** 3 == n * n * n * m * m * m
    assert n << 2 == 4 * n and n >> 1 == n // 2 and n & 7 == 7 & n == n % 8 and ~n == -n - 1
    assert round(n) is math.floor(n) is math.ceil(n) is math.trunc(n) is n
    assert divmod(30, n) == (30 // n, 30 % n)
    assert n - np.uint8(3) == n - 3 and np.uint8(3) - n == 3 - n
    assert not sizes.guards()


def test_a_float_bounds_as_the_whole_number_beside_it_does(sizes: Sizes) -> None:
    n, _ = two(sizes)
    for wanted in (
        lambda x: x < 4.5, lambda x: x <= 4.5, lambda x: x > 4.5, lambda x: x >= 4.5, lambda x: x < 7.0,
        lambda x: x <= 7.0, lambda x: x > 7.0, lambda x: x >= 7.0, lambda x: x > np.float64(6.5),
        lambda x: x != 7.5, lambda x: x == 7.0, lambda x: x < math.inf, lambda x: x > -math.inf,
        lambda x: x == math.inf, lambda x: x >= np.float32(6.5), lambda x: x != math.nan,
    ):  # fmt: skip
        assert wanted(n) == wanted(7)
    assert not any("281474976710656" in guard for guard in sizes.guards())
    assert all(sizes.holds({"n": value, "m": 12}) == (value == 7) for value in range(2, 12))


def test_a_program_takes_sizes_for_numbers(sizes: Sizes) -> None:
    n, m = two(sizes)
    assert not isinstance(n, int) and isinstance(n, Size) and not is_number(n) and is_number(7)
    with sizes.deciding(), in_program():
        for kind in (int, numbers.Integral, numbers.Number, Size, int | None):
            assert isinstance(n, kind)  # type: ignore[arg-type]
        assert not isinstance(n, float | str) and not is_number(n)
        with in_program():
            pass
        assert isinstance(n + m, int) and not sizes.guards()
        assert f"{n:>3}|{n}|{n!r}|{n:.1f}" == "  7|7|7|7.0"
    assert not isinstance(n, int) and sizes.guards() == ["n - 7 == 0"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda n: n / 2,
        lambda n: 0.5 * n,
        lambda n: math.sqrt(n),
        lambda n: {7: 1}.get(n),
        lambda n: n.bit_length(),
        lambda n: n ^ 3,
    ],
)
def test_what_is_no_expression_fixes_the_sizes_of_a_program(
    operation: Callable[[Any], Any], sizes: Sizes
) -> None:
    n, _ = two(sizes)
    with sizes.deciding(), in_program(), pytest.raises(TooOpen, match=r"\bn\b.* is no expression of sizes"):
        operation(n)
    assert sizes.guards() == ["n - 7 == 0"]


def test_a_name_is_one_size(sizes: Sizes) -> None:
    n, _ = two(sizes)
    assert sizes.symbol("n", 7) == n
    with pytest.raises(ValueError, match="n is 7 and 8"):
        sizes.symbol("n", 8)
    with pytest.raises(ValueError, match="2 at least"):
        sizes.symbol("k", 1)


def test_multiples(sizes: Sizes) -> None:
    n, m = two(sizes)
    assert is_multiple(8 * n + 4 * m, 4) and not is_multiple(8 * n + 4 * m, 8)
    assert is_multiple(12, 4) and is_multiple(0, 8) and not is_multiple(6, 4)
    assert not sizes.guards()


def test_what_is_typical(sizes: Sizes) -> None:
    n, m = two(sizes, 7, 1000)
    assert typical(n) == 256 and typical(m + 1) == 1001 and typical(5) == 5
    assert not sizes.guards()


def test_nothing_is_decided_without_a_plan() -> None:
    n = Sizes().symbol("n", 7)
    assert n + 1 == n + 1 and n > 1
    with pytest.raises(EngineError, match="outside"):
        n > 5  # noqa: B015


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "max": max,
    "min": min,
}
Program = list[tuple[str, int, int]]


@st.composite
def programs(draw: Any) -> Program:
    """Operations on earlier values; values 0 to 2 are symbols, 3 to 6 numbers."""
    return [
        (draw(st.sampled_from(list(OPERATIONS))), draw(st.integers(0, 6 + at)), draw(st.integers(0, 6 + at)))
        for at in range(draw(st.integers(1, 10)))
    ]


def run(program: Program, symbols: list[Any]) -> list[Any] | None:
    values = [*symbols, 1, 2, 3, 64]
    for name, left, right in program:
        try:
            made = OPERATIONS[name](values[left], values[right])
        except ZeroDivisionError:
            return None
        # What a comparison decides becomes part of what is computed.
        values.append(int(made) if isinstance(made, bool) else made)
        if abs(made.example if isinstance(made, Size) else int(made)) > 10**9:
            return None
    return values


@settings(max_examples=400, deadline=None, derandomize=True)
@given(programs(), st.lists(st.lists(st.integers(2, 40), min_size=3, max_size=3), min_size=5, max_size=12))
def test_programs_of_sizes(program: Program, samples: list[list[int]]) -> None:
    sizes = Sizes()
    names = ["a", "b", "c"]
    with sizes.deciding():
        made = run(
            program, [sizes.symbol(name, value) for name, value in zip(names, samples[0], strict=True)]
        )
    if made is None:
        return
    symbols = [Symbol(name) for name in names]
    bind = binder(made, symbols)
    assert sizes.holds(dict(zip(names, samples[0], strict=True)))
    for sample in samples:
        if not sizes.holds(dict(zip(names, sample, strict=True))):
            continue
        expected = run(program, list(sample))
        assert expected is not None
        values = dict(zip(symbols, sample, strict=True))
        assert [concrete(value, values) for value in made] == expected
        assert list(bind(*sample)) == expected


@settings(max_examples=200, deadline=None, derandomize=True)
@given(programs(), st.lists(st.integers(2, 40), min_size=3, max_size=3))
def test_equal_sizes_are_of_equal_value_and_hash(program: Program, sample: list[int]) -> None:
    sizes = Sizes()
    with sizes.deciding():
        symbols = [sizes.symbol(name, value) for name, value in zip("abc", sample, strict=True)]
        made = run(program, symbols) or []
    open_ = [value for value in made if isinstance(value, Size)]
    for left in open_:
        for right in open_:
            if left.terms == right.terms:
                assert left == right and hash(left) == hash(right)
                assert evaluate(left.terms, sizes.examples) == evaluate(right.terms, sizes.examples)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["n", "m", "+", "-", "*", "//2", "//-3", "//n", "neg"]), max_size=7), st.data()
)
def test_what_may_not_fall_never_does(steps: list[str], data: st.DataObject) -> None:
    def made(n: Any, m: Any) -> Any:
        found = [n]
        for step in steps:
            last = found[-1]
            if step in "nm":
                found.append(n if step == "n" else m)
            elif step in "+-*":
                before = found[-2] if len(found) > 1 else 3
                found.append({"+": last + before, "-": last - before, "*": last * before}[step])
            else:
                found.append({"//2": last // 2, "//-3": -last // 3, "//n": last // n, "neg": -last}[step])
        return found[-1]

    sizes = Sizes()
    with sizes.deciding():
        try:
            size = made(sizes.symbol("n", 40), sizes.symbol("m", 50))
        except TooOpen:
            return
    if not isinstance(size, Size) or may_fall(size.terms):
        return
    values = st.integers(2, 60)
    n, m = data.draw(values), data.draw(values)
    higher = (n + data.draw(st.integers(0, 60)), m + data.draw(st.integers(0, 60)))
    low, high = (concrete(size, dict(zip(sizes.examples, given, strict=True))) for given in ((n, m), higher))
    assert low <= high, f"{size} at {(n, m)} and {higher}"


def test_what_may_fall(sizes: Sizes) -> None:
    n, m = two(sizes, 7, 100)
    falling = [m - n, 200 - n, (200 - n) // 4, (m * n) // (n + 1), n - n // 2]
    rising = [n, n + m, n * m + 3, (n + 3) // 4, -(-n // 4), 2 * (n // 3)]
    assert [may_fall(size.terms) for size in falling] == [True] * len(falling)
    assert [may_fall(size.terms) for size in rising] == [False] * len(rising)
