"""Tables of comma-separated values: read, told what their columns are, and made numbers for a model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vkml.cli.guard import UsageError
from vkml.cli.sources import check_file
from vkml.data.csv_files import MISSING, text_rows
from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument, InvalidData
from vkml.ir.wording import shortened

Array = np.ndarray[Any, Any]
COLUMNS_KEY = "vkml.columns"
"""Key of a model's metadata under which the columns of its input are, as JSON."""
_MISSING = frozenset(text.lower() for text in (*MISSING, "-"))
"""What stands for no value, in any case."""
MOST_CATEGORIES = 100
"""Columns of more different texts name each row rather than sort rows."""


@dataclass(frozen=True)
class Column:
    """A column of a model's input.

    Attributes:
        name: in the table's first line.
        categories: what its texts may be, which come to the model as their number; None for numbers.
    """

    name: str
    categories: tuple[str, ...] | None = None

    def numbers(self, texts: Sequence[str]) -> Array:
        """What a model is given for cells: NaN for those that are missing, or that no category has.

        Raises:
            InvalidArgument: a cell of a column of numbers holds none.
        """
        if self.categories is not None:
            known: dict[str, float] = {text: at for at, text in enumerate(self.categories)}
            found = [known.get(text.strip(), math.nan) for text in texts]
        else:
            wrong = next((text for text in texts if _number(text) is None), None)
            if wrong is not None:
                raise InvalidArgument(f"column {self.name!r} holds numbers; {shortened(wrong)!r} is none")
            found = [_number(text) or 0.0 for text in texts]
        return np.array(found, np.float32)


@dataclass(frozen=True)
class Table:
    """A table's cells, as texts, by column."""

    path: Path
    cells: Mapping[str, list[str]]

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())))

    def column(self, name: str) -> list[str]:
        """A column's cells.

        Raises:
            UsageError: there is no such column.
        """
        if name not in self.cells:
            listed = ", ".join(self.cells)
            raise UsageError(f"{self.path} has no column {name!r} (it has {shortened(listed)})")
        return self.cells[name]


def read_table(path: Path) -> Table:
    """A table whose first line has the columns' names, separated by commas, semicolons or tabs.

    Raises:
        UsageError: there is no such file.
        InvalidData: it is no such table; the message names the line.
    """
    check_file(path)

    def refuse(_: int, line: int, said: str) -> None:
        raise InvalidData(f"{path}, line {line}: {said}")

    with path.open(encoding="utf-8-sig", errors="replace") as file:
        delimiter = max(",;\t", key=file.readline().count)
    rows = text_rows(path, True, None, delimiter, '"', "utf-8-sig", refuse)
    if not rows.fields:
        raise InvalidData(f"{path} has no rows below a line of columns' names")
    return Table(path, dict(zip(rows.names, map(list, zip(*rows.fields, strict=True)), strict=True)))


def is_missing(text: str) -> bool:
    """Whether a cell holds no value."""
    return text.strip().lower() in _MISSING


def _number(text: str) -> float | None:
    if is_missing(text):
        return math.nan
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else math.nan


def is_numeric(texts: Iterable[str]) -> bool:
    """Whether all cells that hold something hold numbers."""
    return all(_number(text) is not None for text in texts)


def told_columns(table: Table, leave_out: str) -> tuple[list[Column], list[str]]:
    """The columns that a model can go by, and why others were left out.

    Args:
        table: whose.
        leave_out: the name of the target.
    """
    found, left = [], []
    for name, texts in table.cells.items():
        if name == leave_out:
            continue
        held = {text.strip() for text in texts if not is_missing(text)}
        if len(held) < 2:
            left.append(f"{name}: all of its cells hold the same")
        elif is_numeric(held):
            found.append(Column(name))
        elif len(held) > min(MOST_CATEGORIES, max(2, len(texts) // 2)):
            left.append(f"{name}: {len(held)} different texts in {len(texts)} rows")
        else:
            found.append(Column(name, tuple(sorted(held))))
    return found, left


def features(table: Table, columns: Sequence[Column]) -> Array:
    """What a model is given for a table: [rows, columns].

    Raises:
        UsageError: a column is not in it.
        InvalidArgument: a cell of a column of numbers holds none.
    """
    return np.stack([column.numbers(table.column(column.name)) for column in columns], 1)


def columns_text(columns: Sequence[Column]) -> str:
    """Columns for a model's metadata."""
    return json.dumps([asdict(column) for column in columns])


def columns_of(metadata: Mapping[str, str]) -> list[Column] | None:
    """The columns that a model's metadata state; None where they state none that can be understood."""
    try:
        found = json.loads(metadata[COLUMNS_KEY])
        return [
            Column(each["name"], None if each["categories"] is None else tuple(each["categories"]))
            for each in found
        ]
    except (KeyError, TypeError, ValueError):
        return None
