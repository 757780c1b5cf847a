"""Tables in memory: columns of numbers and of categories, and datasets of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml.data.dataset import ArrayDataset
from vkml.data.fetching import Skipped
from vkml.errors import InvalidArgument, InvalidData

Array = np.ndarray[Any, Any]


class Table:
    """Columns by name, of one length.

    Args:
        columns: arrays or lists; texts become categories.
        categories: of columns that are categories already: what their numbers stand for. Of columns of texts:
            the categories in the order of their numbers, those of a table that a model was trained on, say;
            sorted where left out.
        name: where it is from, for errors.

    Attributes:
        columns: an array each; of categories, int64.
        categories: what numbers stand for, of columns that were texts.
        skipped: rows that were left out when it was read.

    Raises:
        InvalidData: columns differ in length, or hold something else.

    Example:
        >>> from vkml.data import Table
        >>> table = Table({"size": [1.5, 2.0, 0.5], "kind": ["b", "a", "b"]})
        >>> table["kind"].tolist(), table.categories["kind"]
        ([1, 0, 1], ['a', 'b'])
        >>> row, kind = table.dataset(target="kind")[0]
        >>> row, int(kind)
        (array([1.5], dtype=float32), 1)
    """

    def __init__(
        self,
        columns: Mapping[str, Any],
        categories: Mapping[str, Sequence[str]] | None = None,
        name: str = "the table",
    ) -> None:
        self.name = name
        self.columns: dict[str, Array] = {}
        self.categories: dict[str, list[str]] = {}
        self.skipped: list[Skipped] = []
        given = categories or {}
        for column, values in columns.items():
            array = np.asarray(values)
            if array.ndim != 1:
                raise InvalidData(f"{name}: column {column!r} has {array.ndim} axes, one is expected")
            if array.dtype.kind in "UO":
                known = given.get(column)
                array, self.categories[column] = coded(array.tolist(), known, f"{name}, column {column!r}")
            elif array.dtype.kind not in "fiub":
                raise InvalidData(f"{name}: column {column!r} is of {array.dtype}: neither numbers nor texts")
            elif column in given:
                self.categories[column] = list(given[column])
            self.columns[column] = array
        sizes = {column: len(array) for column, array in self.columns.items()}
        if len(set(sizes.values())) > 1:
            raise InvalidData(f"{name}: the columns differ in length: {sizes}")

    def __len__(self) -> int:
        return next((len(array) for array in self.columns.values()), 0)

    def __getitem__(self, column: str) -> Array:
        self._require([column])
        return self.columns[column]

    def _require(self, columns: Sequence[str]) -> None:
        missing = [column for column in columns if column not in self.columns]
        if missing:
            raise InvalidArgument(f"{self.name} has no column {missing[0]!r}; it has {list(self.columns)}")

    def dataset(
        self,
        target: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        dtype: Any = np.float32,
    ) -> ArrayDataset:
        """Its rows.

        Args:
            target: the column that is to be predicted; several give a vector of `dtype`. Categories and
                integers are int64, floats `dtype`.
            columns: what it is predicted from, all others where left out.
            dtype: of these, which are one vector.

        Returns:
            a dataset of pairs of a vector and a target; of vectors alone without a target.
        """
        targets = [] if target is None else [target] if isinstance(target, str) else list(target)
        chosen = [name for name in self.columns if name not in targets] if columns is None else list(columns)
        self._require([*targets, *chosen])
        rows = self._matrix(chosen, dtype)
        if not targets:
            return ArrayDataset(rows, single=True)
        if not isinstance(target, str):
            return ArrayDataset(rows, self._matrix(targets, dtype))
        wanted = self.columns[target]
        return ArrayDataset(rows, wanted.astype(dtype if wanted.dtype.kind == "f" else np.int64))

    def _matrix(self, columns: Sequence[str], dtype: Any) -> Array:
        made = np.empty((len(self), len(columns)), dtype)
        for at, column in enumerate(columns):
            made[:, at] = self.columns[column]
        return made


def coded(values: Sequence[Any], known: Sequence[str] | None, where: str) -> tuple[Array, list[str]]:
    """Texts as the numbers of their categories.

    Args:
        values: the texts.
        known: the categories; those that come, sorted, where left out.
        where: they are, for errors.

    Raises:
        InvalidData: a text is none of the known ones, or is none.
    """
    for at, value in enumerate(values):
        if not isinstance(value, str):
            raise InvalidData(f"{where}, row {at}: a text is expected, not {value!r}")
    names = sorted(set(values)) if known is None else list(known)
    numbers = {name: at for at, name in enumerate(names)}
    for at, value in enumerate(values):
        if value not in numbers:
            raise InvalidData(f"{where}, row {at}: {value!r} is none of the categories {names[:20]}")
    return np.array([numbers[value] for value in values], np.int64), names


class TableDataset(ArrayDataset):
    """Rows of a table.

    Args:
        table: it.
        target: see `Table.dataset`.
        columns: likewise.
        dtype: likewise.

    Attributes:
        table: it.
        classes: what the target's numbers stand for; None where it is no category.
    """

    def __init__(
        self,
        table: Table,
        target: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        dtype: Any = np.float32,
    ) -> None:
        made = table.dataset(target, columns, dtype)
        super().__init__(*made.arrays, single=target is None)
        self.table = table
        self.classes = table.categories.get(target) if isinstance(target, str) else None

    @property
    def skipped(self) -> list[Skipped]:
        """Rows that were left out when the table was read."""
        return self.table.skipped

    def item_name(self, index: int) -> str:
        """The table and the row.

        Args:
            index: of the item.
        """
        return f"{self.table.name}, row {index}"
