"""Output streams that show names of models and files as text, whatever terminal is behind them."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

SPELLED = {"µ": "u", "×": "x", "…": "...", "→": "->", "·": "*", "–": "-", "²": "^2", "≤": "<=", "≥": ">="}
"""What stands for vkml's own characters where the terminal's encoding lacks them; others are escaped."""

_FALLBACK = "vkml-spelled"


def printable(text: str, keep: str = "\n") -> str:
    r"""Text in which what is no visible character, space or one of `keep` is escaped, as Python writes it.

    Names in a model or of a file may hold control sequences, which would steer the terminal, and characters
    that reverse what follows.

    Example:
        >>> printable("red\x1b[31m")
        'red\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


class PrintableStream:
    """A text stream all of whose text is made `printable`."""

    def __init__(self, unescaped: TextIO) -> None:
        self.unescaped = unescaped
        """For those who escape names themselves and send control sequences of their own."""

    def write(self, text: str) -> int:
        self.unescaped.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # whoever finds it writes past `write`
            raise AttributeError(name)
        return getattr(self.unescaped, name)


@contextmanager
def printable_streams() -> Iterator[None]:
    """Makes the standard output and error printable, and what their encoding lacks no error."""
    codecs.register_error(_FALLBACK, _spell)
    before: tuple[Any, Any] = sys.stdout, sys.stderr
    errors = [_set_errors(stream, _FALLBACK) for stream in before]
    # A process may be started without streams.
    sys.stdout, sys.stderr = (PrintableStream(stream or open(os.devnull, "w")) for stream in before)  # noqa: SIM115
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream, was in zip(before, errors, strict=True):
            if was is not None:
                _set_errors(stream, was)


def _set_errors(stream: Any, errors: str) -> str | None:
    """How the stream treated what it cannot encode before; None where that cannot be changed."""
    if not isinstance(stream, io.TextIOWrapper) or stream.closed:
        return None
    before = stream.errors
    stream.reconfigure(errors=errors)
    return before


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    found = "".join(SPELLED.get(each) or each.encode("unicode_escape").decode("ascii") for each in text)
    return found, error.end
