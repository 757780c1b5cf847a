"""Regular expressions in RE2's syntax, as automata: matching takes a time proportional to the text's length.

What RE2 lacks (lookarounds, backreferences, possessive repetition) is refused, as it refuses it. Classes of
characters are written for Python's `re`, which is asked about one character at a time, and differs in

* ``\\d``, ``\\w``, ``\\s`` and classes like ``[:alpha:]``, which are ASCII's; ``\\v`` is no space;
* ``\\x{1F600}`` and ``\\pL``, which it lacks.

Scripts (``\\p{Greek}``) and bytes (``\\C``) are not supported.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import lru_cache

from vkml import errors
from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph
from vkml.ops.automata import (
    Assertion,
    Automaton,
    Fragment,
    TooLarge,
    any_of,
    asserting,
    reading,
    repeated,
    sequence,
)

_PERL = {"d": "0-9", "w": "0-9A-Za-z_", "s": "\\t\\n\\f\\r "}
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7f",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\n\\v\\f\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_LARGEST_REPEAT = 1000
_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_GROUP = re.compile(r"\?(?:P?<(?P<name>\w+)>|(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<end>[:)]))")
_ANCHORS = {
    "A": Assertion.TEXT_START,
    "z": Assertion.TEXT_END,
    "b": Assertion.BORDER,
    "B": Assertion.NO_BORDER,
}


def compiled(where: str, pattern: str) -> Automaton:
    """What matches texts with an expression of RE2.

    Raises:
        InvalidGraph: RE2 would refuse it, too.
        NotImplemented: it asks for something of RE2's that there is not.
    """
    try:
        return Automaton(_Reading(pattern).whole())
    except (_Refused, TooLarge, re.error, OverflowError) as error:
        raise InvalidGraph(f"{where}: the pattern {pattern!r} is none of RE2's: {error}") from None


class _Refused(Exception):
    """What is wrong with a pattern."""


@dataclass(frozen=True)
class _Flags:
    ignores_case: bool = False
    has_lines: bool = False
    dot_is_all: bool = False


@dataclass
class _Item:
    """What a repetition may follow."""

    code: Fragment
    times: int = 1
    """How often counted repetitions, one in the other, write the innermost out."""


class _Group:
    """What has been read between a parenthesis and where the reader is."""

    def __init__(self, outside: _Flags) -> None:
        self.outside = outside
        """Flags before it."""
        self.parts: list[_Item] = []
        self.before: list[Fragment] = []
        """Alternatives that are complete."""
        self.times = 1

    def end_alternative(self) -> None:
        self.times = max([self.times, *(part.times for part in self.parts)])
        self.before.append(sequence([part.code for part in self.parts]))
        self.parts = []

    def whole(self) -> _Item:
        self.end_alternative()
        return _Item(any_of(self.before), self.times)


class _Reading:
    """One pattern, read from left to right."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._flags = _Flags()
        self._groups = [_Group(self._flags)]
        """Those that are open, the whole pattern first."""
        self._names: set[str] = set()
        self._sets: dict[str, re.Pattern[str]] = {}
        self._repeatable = False
        """Whether a repetition may follow: there is something to repeat, which is not repeated yet."""

    def whole(self) -> Fragment:
        while self._at < len(self._text):
            self._next()
        if len(self._groups) > 1:
            raise _Refused("a parenthesis is not closed")
        return self._groups[0].whole().code

    def _next(self) -> None:
        item = self._text[self._at]
        self._at += 1
        if item == "(":
            self._open()
        elif item == ")":
            if len(self._groups) == 1:
                raise _Refused("a parenthesis is closed that is not open")
            group = self._groups.pop()
            self._flags = group.outside
            self._add(group.whole())
        elif item == "|":
            self._groups[-1].end_alternative()
            self._repeatable = False
        elif item in "*+?":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[item]
            self._repeat(item, least, most)
        elif item == "{" and (found := _REPEAT.match(self._text, self._at - 1)):
            least = int(found[1])
            most = least if found[2] is None else int(found[2]) if found[2] else None
            if max(least, most or 0) > _LARGEST_REPEAT or (most is not None and most < least):
                raise _Refused(f"{found[0]} is no repetition")
            self._at = found.end()
            self._repeat(found[0], least, most)
        elif item == ".":
            self._one_of("(?s:.)" if self._flags.dot_is_all else "[^\\n]")
        elif item == "^":
            self._assert(Assertion.LINE_START if self._flags.has_lines else Assertion.TEXT_START)
        elif item == "$":
            self._assert(Assertion.LINE_END if self._flags.has_lines else Assertion.TEXT_END)
        elif item == "[":
            self._one_of(self._class())
        elif item == "\\":
            self._escape()
        else:
            self._character(item)

    def _add(self, item: _Item) -> None:
        self._groups[-1].parts.append(item)
        self._repeatable = True

    def _assert(self, what: Assertion) -> None:
        self._add(_Item(asserting(what)))

    def _character(self, character: str) -> None:
        if self._flags.ignores_case:
            self._one_of(re.escape(character))
        else:
            self._add(_Item(reading(character)))

    def _one_of(self, written: str) -> None:
        """A character that an expression of Python's describes."""
        if self._flags.ignores_case:
            written = f"(?i:{written})"
        if written not in self._sets:
            self._sets[written] = re.compile(written)
        self._add(_Item(reading(self._sets[written])))

    def _repeat(self, how: str, least: int, most: int | None) -> None:
        if not self._repeatable:
            raise _Refused(f"there is nothing that {how} could repeat")
        item = self._groups[-1].parts.pop()
        times = item.times * max(1, least if most is None else most)
        if times > _LARGEST_REPEAT:
            raise _Refused(f"{how} and the repetitions inside are more than {_LARGEST_REPEAT}")
        self._groups[-1].parts.append(_Item(repeated(item.code, least, most), times))
        self._repeatable = False
        if self._text[self._at : self._at + 1] == "?":  # as many as possible or as few: both match the whole
            self._at += 1

    def _open(self) -> None:
        if self._text[self._at : self._at + 1] != "?":
            self._begin(self._flags)
            return
        found = _GROUP.match(self._text, self._at)
        if found is None:
            raise _Refused(f"({self._text[self._at : self._at + 3]} opens no group of RE2's")
        self._at = found.end()
        if found["name"] is not None:
            if found["name"] in self._names:
                raise _Refused(f"two groups are called {found['name']}")
            self._names.add(found["name"])
            self._begin(self._flags)
            return
        on, _, off = found["flags"].partition("-")
        before = self._flags
        flags = _Flags(
            *(
                (is_on or letter in on) and letter not in off
                for is_on, letter in (
                    (before.ignores_case, "i"),
                    (before.has_lines, "m"),
                    (before.dot_is_all, "s"),
                )
            )
        )
        if found["end"] == ":":
            self._begin(flags)
        else:
            if not found["flags"]:
                raise _Refused("(?) states no flag")
            self._flags = flags  # a repetition behind it is of what stands before it

    def _begin(self, inside: _Flags) -> None:
        self._groups.append(_Group(self._flags))
        self._flags = inside
        self._repeatable = False

    def _escape(self) -> None:
        item = self._text[self._at : self._at + 1]
        if item == "Q":
            end = self._text.find("\\E", self._at)
            end = len(self._text) if end < 0 else end
            for each in self._text[self._at + 1 : end]:
                self._character(each)
            self._at = end + 2
        elif item in _ANCHORS and item:
            self._at += 1
            self._assert(_ANCHORS[item])
        else:
            found = self._set()
            if found is None:
                self._character(self._escaped())
            else:
                self._one_of(f"[{found}]")

    def _set(self) -> str | None:
        """The inside of a class for what is escaped here; None where that is a single character."""
        item = self._text[self._at : self._at + 1]
        if item in _PERL and item:
            self._at += 1
            return _PERL[item]
        if item in ("D", "W", "S"):
            self._at += 1
            return _without(_PERL[item.lower()])
        if item in ("p", "P"):
            name = self._text[self._at + 1 : self._at + 2]
            self._at += 2
            if name == "{":
                end = self._text.find("}", self._at)
                if end < 0:
                    raise _Refused("\\p{ is not closed")
                name, self._at = self._text[self._at : end], end + 1
            negated = name.startswith("^") != (item == "P")
            inside = _category(name.removeprefix("^"))
            return _without(inside) if negated else inside
        return None

    def _escaped(self) -> str:
        """The character that is escaped here."""
        item = self._text[self._at : self._at + 1]
        self._at += 1
        if item in _CONTROLS and item:
            return _CONTROLS[item]
        if item == "x":
            found = re.compile(r"\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2})").match(self._text, self._at)
            if found is None or int(found[1] or found[2], 16) > sys.maxunicode:
                raise _Refused("\\x is followed by no number of a character")
            self._at = found.end()
            return chr(int(found[1] or found[2], 16))
        octal = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}").match(self._text, self._at - 1)
        if octal:
            self._at = octal.end()
            return chr(int(octal[0], 8))
        if item == "C":
            raise errors.NotImplemented("\\C, a byte of a pattern for RE2, is not supported")
        if not item or item.isalnum():
            raise _Refused(f"\\{item} means nothing")
        return item

    def _class(self) -> str:
        start = self._at
        is_negated = self._text[start : start + 1] == "^"
        self._at += is_negated
        parts: list[str] = []
        is_first = True
        while is_first or self._text[self._at : self._at + 1] != "]":
            if self._at >= len(self._text):
                raise _Refused("[ is not closed")
            is_first = False
            named = re.compile(r"\[:(\^?)(\w+):\]").match(self._text, self._at)
            if named:
                if named[2] not in _POSIX:
                    raise _Refused(f"{named[0]} is no class")
                self._at = named.end()
                parts.append(_without(_POSIX[named[2]]) if named[1] else _POSIX[named[2]])
                continue
            low = self._member()
            if len(low) != 1:
                parts.append(low[1:])
                continue
            high = low
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] not in (
                "]",
                "",
            ):
                self._at += 1
                high = self._member()
                if len(high) != 1 or high < low:
                    raise _Refused(f"{self._text[start - 1 : self._at]} has a range that is none")
            parts.append(_range(ord(low), ord(high)))
        self._at += 1
        inside = "".join(parts)
        if not inside:
            return "[\\s\\S]" if is_negated else "(?!)"
        return f"[{'^' if is_negated else ''}{inside}]"

    def _member(self) -> str:
        """A character, or a set's inside with a space before it."""
        item = self._text[self._at]
        self._at += 1
        if item != "\\":
            return item
        found = self._set()
        return self._escaped() if found is None else f" {found}"


def _range(low: int, high: int) -> str:
    return f"\\U{low:08x}" if low == high else f"\\U{low:08x}-\\U{high:08x}"


@lru_cache(maxsize=64)
def _without(inside: str) -> str:
    """The inside of a class of all other characters."""
    return _ranges_where(re.compile(f"[{inside}]").match, False)


def _category(name: str) -> str:
    if name == "Any":
        return _range(0, sys.maxunicode)
    found = _letters_of(name)
    if not found:
        raise errors.NotImplemented(
            f"\\p{{{name}}} in a pattern for RE2 is not supported: general categories are (L, Lu, N), "
            "scripts are not"
        )
    return found


@lru_cache(maxsize=64)
def _letters_of(name: str) -> str:
    """The characters of a general category of Unicode."""
    return (
        _ranges_where(lambda item: unicodedata.category(item).startswith(name) or None, True) if name else ""
    )


def _ranges_where(test: object, wanted: bool) -> str:
    assert callable(test)
    parts: list[str] = []
    start = -1
    for code in range(sys.maxunicode + 2):
        is_in = code <= sys.maxunicode and (test(chr(code)) is not None) == wanted
        if is_in and start < 0:
            start = code
        elif not is_in and start >= 0:
            parts.append(_range(start, code - 1))
            start = -1
    return "".join(parts)
