"""Tables as plain text that fit a number of columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from vkml.dataclasses import dataclass

LEAST = 8
"""Columns that a cut one keeps."""
GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: above it.
        is_right: whether it is flush right.
        is_cut: whether its texts may lose their middles where the table is too wide.
    """

    title: str
    is_right: bool = False
    is_cut: bool = False


def text_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, notes: Sequence[str] = ()
) -> list[str]:
    """The lines of a table: titles, a rule, a line a row.

    A column all of whose cells are empty is left out. Texts of the widest columns that may be cut are cut
    until the table fits, or nothing is left to cut.

    Args:
        columns: what there is.
        rows: their cells.
        width: in characters.
        notes: a text below each row, in as many lines as it takes; "" for none.
    """
    kept = [at for at in range(len(columns)) if not rows or any(row[at] for row in rows)]
    columns = [columns[at] for at in kept]
    rows = [[row[at] for at in kept] for row in rows]
    widths = [max([len(column.title), *(len(row[at]) for row in rows)]) for at, column in enumerate(columns)]
    cut = [at for at, column in enumerate(columns) if column.is_cut]
    while cut and sum(widths) + len(GAP) * (len(widths) - 1) > width:
        widest = max(cut, key=lambda at: widths[at])
        if widths[widest] <= max(LEAST, len(columns[widest].title)):
            break
        widths[widest] -= 1
    lines = [_line(columns, [column.title for column in columns], widths)]
    lines.append("─" * min(width, sum(widths) + len(GAP) * (len(widths) - 1)))
    for number, row in enumerate(rows):
        lines.append(_line(columns, row, widths))
        if notes and notes[number]:
            lines += wrapped(notes[number], width, "    ")
    return lines


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        text = cut_middle(cell, width)
        parts.append(text.rjust(width) if column.is_right else text.ljust(width))
    return GAP.join(parts).rstrip()


def cut_middle(text: str, width: int) -> str:
    """A text without its middle where it is too long: names differ at their ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def wrapped(text: str, width: int, indent: str = "", hanging: str = "  ") -> list[str]:
    """A text as lines of at most so many characters.

    Args:
        text: in one line.
        width: in characters.
        indent: before the first line.
        hanging: more of it, before the others.
    """
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent + hanging, break_on_hyphens=False
    )
