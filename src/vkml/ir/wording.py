"""Counts, sizes, times and shapes as messages and tables print them."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """``1 step``, ``3 steps``, ``2 classes``."""
    plural = f"{noun}es" if noun.endswith(("s", "ch")) else f"{noun}s"
    number = f"{count:,}" if type(count) is int else str(count)  # an open size is an expression
    return f"{number} {noun if count == 1 else plural}"


def shortened(text: str, length: int = 60) -> str:
    """A text cut to so many characters, which says that it is."""
    return text if len(text) <= length else f"{text[: max(length - 1, 0)]}…"


def duration(seconds: float) -> str:
    """A time with a unit that fits it: ``12.3 µs``, ``4.56 ms``, ``1.23 s``."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{three_digits(seconds * factor)} {unit}"
    return f"{three_digits(seconds)} s"


def size(count: float) -> str:
    """Bytes with a binary unit that fits: ``117 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{three_digits(count)} {unit}"
        count /= 1024
    return f"{three_digits(count)} TiB"


def number(value: float) -> str:
    """A number a person reads: four significant digits."""
    return f"{value:.4g}"


def three_digits(value: float) -> str:
    """A number from 0 to 1000 in three digits, or fewer."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def shape_text(shape: Sequence[object] | None) -> str:
    """A shape as messages print it: ``1×3×batch``; ``scalar``; ``?`` for what is not known."""
    if shape is None:
        return "any rank"
    return "×".join("?" if each is None else str(each) for each in shape) or "scalar"
