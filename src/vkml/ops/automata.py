"""Finite automata that read a text once, in a time proportional to its length whatever the expression is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from enum import Enum, auto
from functools import reduce

from vkml.dataclasses import dataclass

LARGEST_PROGRAM = 1 << 16
"""Instructions. Repetitions are written out: ``(abc){1000}`` has 3000."""
LARGEST_CACHE = 1 << 18
"""Positions in the states that an automaton remembers, and ways out of these."""


class TooLarge(Exception):
    """An expression whose repetitions, written out, are too many instructions."""


class Op(Enum):
    """What an instruction does; places are relative to its own."""

    READ = auto()
    """Reads a character that `what` describes, and goes on behind."""
    FORK = auto()
    """Goes on at both of the places that `what` has."""
    JUMP = auto()
    """Goes on at the place that `what` is."""
    ASSERT = auto()
    """Goes on behind where the `Assertion` in `what` holds."""


class Assertion(Enum):
    """What is between two characters, beside nothing."""

    TEXT_START = auto()
    TEXT_END = auto()
    LINE_START = auto()
    LINE_END = auto()
    BORDER = auto()
    """Of a word, whose characters are ASCII's letters, digits and the underscore."""
    NO_BORDER = auto()


class _Beside(Enum):
    """What assertions ask of a character."""

    NOTHING = auto()
    """The text has ended, or not begun."""
    NEWLINE = auto()
    WORD = auto()
    OTHER = auto()


@dataclass(frozen=True)
class Instruction:
    """Of a program."""

    op: Op
    what: str | re.Pattern[str] | Assertion | int | tuple[int, int]


@dataclass(frozen=True)
class Fragment:
    """A part of an expression: what it reads begins at its first instruction and goes on behind its last."""

    code: tuple[Instruction, ...] = ()

    def __post_init__(self) -> None:
        if len(self.code) > LARGEST_PROGRAM:
            raise TooLarge(f"its repetitions are more than {LARGEST_PROGRAM} instructions")


def reading(what: str | re.Pattern[str]) -> Fragment:
    """What reads a character: this one, or one that fits a pattern."""
    return Fragment((Instruction(Op.READ, what),))


def asserting(what: Assertion) -> Fragment:
    """What reads nothing, at places that are so."""
    return Fragment((Instruction(Op.ASSERT, what),))


def sequence(parts: Sequence[Fragment]) -> Fragment:
    """One part after the other."""
    if len(parts) == 1:
        return parts[0]
    return Fragment(tuple(instruction for part in parts for instruction in part.code))


def either(first: Fragment, second: Fragment) -> Fragment:
    """One part or the other."""
    size = len(first.code)
    fork = Instruction(Op.FORK, (1, size + 2))
    return Fragment((fork, *first.code, Instruction(Op.JUMP, len(second.code) + 1), *second.code))


def any_of(parts: Sequence[Fragment]) -> Fragment:
    """One of several parts."""
    # Halves, so that each instruction is copied a few times only, however many parts there are.
    if len(parts) <= 2:
        return reduce(either, parts)
    middle = len(parts) // 2
    return either(any_of(parts[:middle]), any_of(parts[middle:]))


def repeated(part: Fragment, least: int, most: int | None) -> Fragment:
    """A part `least` to `most` times, as often as it likes where that is None."""
    size = len(part.code)
    copies = max(least, 0 if most is None else most)
    if (size + 1) * copies > LARGEST_PROGRAM:  # before they are made
        raise TooLarge(f"its repetitions are more than {LARGEST_PROGRAM} instructions")
    if most is None and least:  # the last one, once more
        return Fragment((*part.code * least, Instruction(Op.FORK, (-size, 1))))
    if most is None:
        return Fragment((Instruction(Op.FORK, (1, size + 2)), *part.code, Instruction(Op.JUMP, -(size + 1))))
    code = list(part.code * least)
    for left in range(most - least, 0, -1):
        code += Instruction(Op.FORK, (1, left * (size + 1))), *part.code
    return Fragment(tuple(code))


@dataclass(eq=False)
class _State:
    """Where a program may be between two characters."""

    places: frozenset[int]
    """Not followed through forks and assertions yet: these want to know the next character."""
    before: _Beside
    moves: dict[str, _State] = field(default_factory=dict)
    """The next character → the state behind it."""
    waiting: dict[_Beside, tuple[frozenset[int], bool]] = field(default_factory=dict)
    """What comes next → the instructions that read, and whether the program may end."""
    is_end: bool | None = None


class Automaton:
    """A program, and what has been found out about it.

    States are sets of places, made as texts lead to them: a character costs one look-up where another text
    has been this way. What is remembered is bounded; then all of it is forgotten.
    """

    def __init__(self, program: Fragment) -> None:
        self._code = program.code
        self._has_assertions = any(each.op is Op.ASSERT for each in self._code)
        self._forget()

    def matches(self, text: str) -> bool:
        """Whether the program reads a text, as a whole."""
        state = self._start
        for character in text:
            following = state.moves.get(character)
            if following is None:
                following = self._move(state, character)
            state = following
            if not state.places:
                return False
        if state.is_end is None:
            state.is_end = self._followed(state, _Beside.NOTHING)[1]
        return state.is_end

    def find(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """Where the first of the parts of a text that the program reads begins and ends, the longest one.

        Args:
            text: whose characters before `start` assertions see, too.
            start: where the part may begin.
        """
        for begin in range(start, len(text) + 1):
            end = self._longest(text, begin)
            if end is not None:
                return begin, end
        return None

    def _longest(self, text: str, begin: int) -> int | None:
        """The last place at which what is read from `begin` on may end."""
        state = self._start
        if begin and self._has_assertions:
            state = self._state(frozenset((0,)), _beside(text[begin - 1]))
        found = None
        for at in range(begin, len(text) + 1):
            after = _Beside.NOTHING
            if at < len(text):
                after = _beside(text[at]) if self._has_assertions else _Beside.OTHER
            if self._followed(state, after)[1]:
                found = at
            if at == len(text):
                break
            state = state.moves.get(text[at]) or self._move(state, text[at])
            if not state.places:
                break
        return found

    def _forget(self) -> None:
        self._states: dict[tuple[frozenset[int], _Beside], _State] = {}
        self._size = 0
        self._start = self._state(frozenset((0,)), _Beside.NOTHING)

    def _state(self, places: frozenset[int], before: _Beside) -> _State:
        found = self._states.get((places, before))
        if found is None:
            found = self._states[places, before] = _State(places, before)
            self._size += len(places) + 1
        return found

    def _move(self, state: _State, character: str) -> _State:
        """The state behind a character."""
        if self._size > LARGEST_CACHE:
            self._forget()
        beside = _beside(character) if self._has_assertions else _Beside.OTHER
        reading, _ = self._followed(state, beside)
        known: dict[str | re.Pattern[str], bool] = {}
        places = []
        for place in reading:
            what = self._code[place].what
            assert isinstance(what, str | re.Pattern)
            if what not in known:
                known[what] = what == character if isinstance(what, str) else bool(what.fullmatch(character))
            if known[what]:
                places.append(place + 1)
        made = self._state(frozenset(places), beside)
        state.moves[character] = made
        self._size += 1
        return made

    def _followed(self, state: _State, after: _Beside) -> tuple[frozenset[int], bool]:
        """The places that read next, and whether the end is reached without reading."""
        found = state.waiting.get(after)
        if found is not None:
            return found
        end = len(self._code)
        seen, left = set(state.places), list(state.places)
        reading = []
        while left:
            place = left.pop()
            if place == end:
                continue
            instruction = self._code[place]
            what = instruction.what
            if instruction.op is Op.READ:
                reading.append(place)
                continue
            if isinstance(what, tuple):
                steps: Sequence[int] = what
            elif isinstance(what, int):
                steps = (what,)
            else:
                assert isinstance(what, Assertion)
                steps = (1,) if _holds(what, state.before, after) else ()
            for step in steps:
                if place + step not in seen:
                    seen.add(place + step)
                    left.append(place + step)
        made = frozenset(reading), end in seen
        state.waiting[after] = made
        self._size += len(reading)
        return made


def _beside(character: str) -> _Beside:
    if character == "\n":
        return _Beside.NEWLINE
    is_word = character == "_" or (character.isascii() and character.isalnum())
    return _Beside.WORD if is_word else _Beside.OTHER


def _holds(what: Assertion, before: _Beside, after: _Beside) -> bool:
    if what is Assertion.TEXT_START:
        return before is _Beside.NOTHING
    if what is Assertion.TEXT_END:
        return after is _Beside.NOTHING
    if what is Assertion.LINE_START:
        return before in (_Beside.NOTHING, _Beside.NEWLINE)
    if what is Assertion.LINE_END:
        return after in (_Beside.NOTHING, _Beside.NEWLINE)
    is_border = (before is _Beside.WORD) != (after is _Beside.WORD)
    return is_border == (what is Assertion.BORDER)
