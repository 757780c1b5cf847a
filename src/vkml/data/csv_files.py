"""Tables in text files, whose fields are parted by commas or the like."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkml.data.fetching import Skipped
from vkml.data.tables import Table, TableDataset
from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument, InvalidData, NoSuchFile

Array = np.ndarray[Any, Any]
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
"""Fields that stand for a value that is not there."""


@dataclass
class TextRows:
    """Fields of a file by row, without spaces round them; the columns' names; the lines that rows end on."""

    names: list[str]
    fields: list[list[str]]
    lines: list[int]


def read_csv(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    missing: Any = "error",
    missing_values: Sequence[str] = MISSING,
    categories: Mapping[str, Sequence[str]] | None = None,
    header: bool = True,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    quotechar: str = '"',
    encoding: str = "utf-8-sig",
    errors: str = "raise",
) -> Table:
    """A table of a text file.

    A column whose fields are all integers is int64, of numbers float64, others are categories.

    Args:
        path: of the file.
        columns: which are wanted; all where left out.
        dtypes: of some columns: a NumPy type, or ``"category"``.
        missing: what stands in for a value that is not there: a number, a text, or a mapping from columns to
            these; ``"error"``: nothing does.
        missing_values: fields that stand for one that is not there.
        categories: of columns: their categories, in the order of their numbers.
        header: whether the first line has the columns' names.
        names: of the columns, otherwise; ``"0"``, ``"1"``, … where left out.
        delimiter: between fields.
        quotechar: round fields that hold delimiters or line ends.
        encoding: of the text.
        errors: ``"raise"``, or ``"skip"``: rows that cannot be read are left out, and noted in
            `Table.skipped`.

    Raises:
        NoSuchFile: there is no such file.
        InvalidData: a row has too few fields or too many, a field is no number or missing; the message names
            file and line.
        InvalidArgument: there is no such column.
    """
    if errors not in ("raise", "skip"):
        raise ValueError(f"errors is 'raise' or 'skip', not {errors!r}")
    place = Path(path)
    skipped: list[Skipped] = []

    def refuse(at: int, line: int, said: str) -> None:
        if errors == "raise":
            raise InvalidData(f"{place}, line {line}: {said}")
        skipped.append(Skipped(0, at, f"{place}, line {line}", said))

    rows = text_rows(place, header, names, delimiter, quotechar, encoding, refuse)
    wanted = rows.names if columns is None else list(columns)
    for name in (*wanted, *(dtypes or {}), *(categories or {})):
        if name not in rows.names:
            raise InvalidArgument(f"{place} has no column {name!r}; it has {rows.names}")
    readers = [
        _Column(name, rows, dtypes or {}, missing, missing_values, categories or {}) for name in wanted
    ]
    bad = {at: said for reader in reversed(readers) for at, said in reader.bad()}
    for at in sorted(bad):
        refuse(at, rows.lines[at], bad[at])
    keep = [at for at in range(len(rows.fields)) if at not in bad]
    made = Table(
        {reader.name: reader.array(keep) for reader in readers},
        {reader.name: reader.categories for reader in readers if reader.categories is not None},
        str(place),
    )
    made.skipped = sorted(skipped, key=lambda one: int(one.name.rsplit(" ", 1)[1]))
    return made


def text_rows(
    path: Path,
    header: bool,
    names: Sequence[str] | None,
    delimiter: str,
    quotechar: str,
    encoding: str,
    refuse: Callable[[int, int, str], None],
) -> TextRows:
    """The fields of a text file, as texts.

    Args:
        path: of the file.
        header: whether the first line has the columns' names.
        names: of the columns, otherwise.
        delimiter: between fields.
        quotechar: round fields that hold delimiters or line ends.
        encoding: of the text.
        refuse: is called with a row's number, its line and what is wrong, of rows of too few fields or too
            many, which are left out unless it raises.

    Raises:
        NoSuchFile: there is no such file.
        InvalidData: it is no such text, or there are two columns of one name.
    """
    if not path.is_file():
        raise NoSuchFile(f"there is no file {str(path)!r}")
    found = TextRows([] if names is None else list(names), [], [])
    line = 0
    try:
        with open(path, newline="", encoding=encoding) as file:
            reader = csv.reader(file, delimiter=delimiter, quotechar=quotechar, strict=True)
            for fields in reader:
                line = reader.line_num
                if not fields:
                    continue
                fields = [field.strip() for field in fields]
                if header:
                    header = False
                    found.names = found.names or fields
                    continue
                found.names = found.names or [str(at) for at in range(len(fields))]
                if len(fields) != len(found.names):
                    refuse(
                        len(found.fields), line, f"{len(fields)} fields, there are {len(found.names)} columns"
                    )
                    continue
                found.fields.append(fields)
                found.lines.append(line)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidData(f"{path}, behind line {line}: {error}") from None
    repeated = [name for name in found.names if found.names.count(name) > 1]
    if repeated:
        raise InvalidData(f"{path}: there are several columns {repeated[0]!r}")
    return found


class _Column:
    """One column's fields, and what they are to become."""

    def __init__(
        self,
        name: str,
        rows: TextRows,
        dtypes: Mapping[str, Any],
        missing: Any,
        missing_values: Sequence[str],
        categories: Mapping[str, Sequence[str]],
    ) -> None:
        self.name = name
        at = rows.names.index(name)
        self._fields = [fields[at] for fields in rows.fields]
        absent = frozenset(missing_values)
        self._absent = [number for number, field in enumerate(self._fields) if field in absent]
        self._fill = missing.get(name, "error") if isinstance(missing, Mapping) else missing
        self.categories: list[str] | None = None
        kind = dtypes.get(name)
        if name in categories or (isinstance(kind, str) and kind == "category"):
            kind = "category"
        elif kind is None:
            kind = self._inferred()
        self._kind = kind
        if isinstance(kind, str):
            known = categories.get(name)
            there = set(self._fields) - (set() if self._fill == "error" else absent)
            if self._fill != "error" and self._absent:
                there.add(str(self._fill))
            self.categories = sorted(there - absent) if known is None else list(known)

    def _inferred(self) -> Any:
        gone = set(self._absent)
        values = [field for at, field in enumerate(self._fields) if at not in gone]
        fills = [self._fill] if gone and self._fill != "error" else []
        if not values or any(isinstance(fill, str) for fill in fills):
            return (
                np.dtype(np.float64)
                if not values and not fills
                else "category"
                if values
                else np.dtype(float)
            )
        for kind in (np.int64, np.float64):
            try:
                converted = np.array(values).astype(kind)
            except (ValueError, OverflowError):
                continue
            if kind is np.int64 and any(float(fill) != int(fill) for fill in fills if np.isfinite(fill)):
                continue
            if kind is np.int64 and not all(np.isfinite(fill) for fill in fills):
                continue
            return converted.dtype
        return "category"

    def bad(self) -> list[tuple[int, str]]:
        """Rows that cannot be read, and why."""
        gone = set(self._absent)
        found = []
        if self._fill == "error":
            found = [(at, f"column {self.name!r} has no value ({self._fields[at]!r})") for at in self._absent]
        if isinstance(self._kind, str):
            known = set(self.categories or ())
            found += [
                (at, f"column {self.name!r}: {field!r} is none of the categories {sorted(known)[:20]}")
                for at, field in enumerate(self._fields)
                if at not in gone and field not in known
            ]
            return found
        try:
            self._converted([field for at, field in enumerate(self._fields) if at not in gone])
        except (ValueError, OverflowError):
            for at, field in enumerate(self._fields):
                if at not in gone:
                    try:
                        self._converted([field])
                    except (ValueError, OverflowError):
                        found.append((at, f"column {self.name!r}: {field!r} is no {np.dtype(self._kind)}"))
        return found

    def _converted(self, fields: list[str]) -> Array:
        kind = np.dtype(self._kind)
        if not fields:
            return np.empty(0, kind)
        if kind.kind == "b":
            truths = {"true": True, "1": True, "false": False, "0": False}
            try:
                return np.array([truths[field.lower()] for field in fields])
            except KeyError as error:
                raise ValueError(error) from None
        if kind.kind in "iu":
            numbers = [int(field) for field in fields]
            return np.array(numbers, kind)
        return np.array(fields).astype(kind)

    def array(self, keep: Sequence[int]) -> Array:
        """The rows that are kept, as numbers."""
        gone = set(self._absent)
        if self.categories is not None:
            numbers = {name: at for at, name in enumerate(self.categories)}
            fill = str(self._fill)
            return np.array(
                [numbers[fill if at in gone else self._fields[at]] for at in keep], np.int64
            ).reshape(-1)
        made = np.empty(len(keep), np.dtype(self._kind))
        there = [place for place, at in enumerate(keep) if at not in gone]
        made[there] = self._converted([self._fields[keep[place]] for place in there])
        absent = [place for place, at in enumerate(keep) if at in gone]
        if absent:
            made[absent] = self._fill
        return made


class CSVDataset(TableDataset):
    """Rows of a text file; see `read_csv` and `Table.dataset`.

    Args:
        path: of the file.
        target: the column that is to be predicted, or several.
        columns: what it is predicted from, all others where left out.
        dtype: of these, which are one vector.
        options: of `read_csv`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        target: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        dtype: Any = np.float32,
        **options: Any,
    ) -> None:
        wanted = None
        if columns is not None:
            targets = [] if target is None else [target] if isinstance(target, str) else list(target)
            wanted = [*columns, *targets]
        super().__init__(read_csv(path, columns=wanted, **options), target, columns, dtype)
