"""Regular expressions in RE2's syntax, rewritten for Python's `re`.

What is meant by both is the same; what RE2 lacks (lookarounds, backreferences, possessive repetition) is
refused, as it refuses it. `re` reads otherwise, and is given another expression for:

* ``\\d``, ``\\w``, ``\\s``, ``\\b`` and classes like ``[:alpha:]``, which are ASCII's; ``\\v`` is no space;
* ``$``, which is the end of the text alone, and ``\\z``;
* ``{,3}``, which is five characters; ``(?i)`` within an expression; ``\\Q...\\E``; ``\\x{1F600}``; ``\\pL``.

Scripts (``\\p{Greek}``) and bytes (``\\C``) are not supported. RE2 takes a time proportional to the text's
length; `re` may take an exponential one where repetitions are nested.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from vkml import errors
from vkml.errors import InvalidGraph

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
_WORD = f"[{_PERL['w']}]"
_BORDER = f"(?:(?<!{_WORD})(?={_WORD})|(?<={_WORD})(?!{_WORD}))"
_ANCHORS = {"A": "\\A", "z": "\\Z", "b": _BORDER, "B": f"(?!{_BORDER})"}


def compiled(where: str, pattern: str) -> re.Pattern[str]:
    """An expression of RE2, for `fullmatch`.

    Raises:
        InvalidGraph: RE2 would refuse it, too.
        NotImplemented: it asks for something of RE2's that there is not.
    """
    try:
        return re.compile(_Rewriting(pattern).whole())
    except (_Refused, re.error, OverflowError, RecursionError) as error:
        raise InvalidGraph(f"{where}: the pattern {pattern!r} is none of RE2's: {error}") from None


class _Refused(Exception):
    """What is wrong with a pattern."""


@dataclass(frozen=True)
class _Flags:
    ignores_case: bool = False
    has_lines: bool = False
    dot_is_all: bool = False


class _Rewriting:
    """One pattern, read from left to right."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._flags = _Flags()
        self._around: list[_Flags] = []
        """Flags outside of each group that is open."""
        self._names: set[str] = set()
        self._made: list[str] = []
        self._repeatable = False
        """Whether a repetition may follow: there is something to repeat, which is not repeated yet."""

    def whole(self) -> str:
        while self._at < len(self._text):
            self._next()
        if self._around:
            raise _Refused("a parenthesis is not closed")
        return "".join(self._made)

    def _next(self) -> None:
        item = self._text[self._at]
        self._at += 1
        if item == "(":
            self._open()
        elif item == ")":
            if not self._around:
                raise _Refused("a parenthesis is closed that is not open")
            self._flags = self._around.pop()
            self._add(")")
        elif item == "|":
            self._made.append("|")
            self._repeatable = False
        elif item in "*+?":
            self._repeat(item)
        elif item == "{" and (found := _REPEAT.match(self._text, self._at - 1)):
            least, most = int(found[1]), found[2]
            if max(least, int(most or 0)) > _LARGEST_REPEAT or (most and int(most) < least):
                raise _Refused(f"{found[0]} is no repetition")
            self._at = found.end()
            self._repeat(found[0])
        elif item == ".":
            self._add("(?s:.)" if self._flags.dot_is_all else "[^\\n]")
        elif item == "^":
            self._add("(?m:^)" if self._flags.has_lines else "(?:\\A)")
        elif item == "$":
            self._add("(?:(?=\\n)|\\Z)" if self._flags.has_lines else "(?:\\Z)")
        elif item == "[":
            self._character(self._class())
        elif item == "\\":
            self._escape()
        else:
            self._character(re.escape(item))

    def _add(self, made: str) -> None:
        self._made.append(made)
        self._repeatable = True

    def _character(self, made: str) -> None:
        self._add(f"(?i:{made})" if self._flags.ignores_case else made)

    def _repeat(self, how: str) -> None:
        if not self._repeatable:
            raise _Refused(f"there is nothing that {how} could repeat")
        self._made.append(how)
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
        self._around.append(self._flags)
        self._flags = inside
        self._made.append("(?:")
        self._repeatable = False

    def _escape(self) -> None:
        item = self._text[self._at : self._at + 1]
        if item == "Q":
            end = self._text.find("\\E", self._at)
            end = len(self._text) if end < 0 else end
            for each in self._text[self._at + 1 : end]:
                self._character(re.escape(each))
            self._at = end + 2
        elif item in _ANCHORS and item:
            self._at += 1
            self._add(f"(?:{_ANCHORS[item]})")
        else:
            found = self._set()
            self._character(f"[{found}]" if found is not None else re.escape(self._escaped()))

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
