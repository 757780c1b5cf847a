"""Tables in Parquet files, which pyarrow reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkml.data.tables import Table, TableDataset
from vkml.errors import InvalidArgument, InvalidData, MissingPackage, NoSuchFile


def read_parquet(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    missing: Any = "error",
    categories: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """A table of a Parquet file.

    Args:
        path: of the file.
        columns: which are read; all where left out.
        missing: what stands in for a value that is not there: a number, a text, or a mapping from columns to
            these; ``"error"``: nothing does.
        categories: of columns of texts: their categories, in the order of their numbers.

    Raises:
        NoSuchFile: there is no such file.
        InvalidData: it is damaged, or a value is missing; the message names file and row.
        InvalidArgument: there is no such column.
        MissingPackage: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackage("reading Parquet files needs pyarrow: pip install 'vkml[parquet]'") from error
    place = Path(path)
    if not place.is_file():
        raise NoSuchFile(f"there is no file {str(place)!r}")
    try:
        with pyarrow.parquet.ParquetFile(place) as file:
            there = list(file.schema_arrow.names)
            wanted = there if columns is None else list(columns)
            for name in (*wanted, *(categories or {})):
                if name not in there:
                    raise InvalidArgument(f"{place} has no column {name!r}; it has {there}")
            table = file.read(columns=wanted)
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidData(f"{place} cannot be read as a Parquet file: {error}") from error
    found = {name: _values(table.column(name), name, missing, place) for name in wanted}
    return Table(found, categories, str(place))


def _values(column: Any, name: str, missing: Any, path: Path) -> Any:
    import pyarrow

    fill = missing.get(name, "error") if isinstance(missing, Mapping) else missing
    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    is_text = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
    is_number = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
    if not (is_text or is_number or pyarrow.types.is_boolean(kind)):
        raise InvalidData(f"{path}: column {name!r} is of {kind}: neither numbers nor texts")
    if column.null_count:
        if isinstance(fill, str) and fill == "error":
            row = column.is_null().to_pylist().index(True)
            raise InvalidData(f"{path}, row {row}: column {name!r} has no value")
        if isinstance(fill, float) and pyarrow.types.is_integer(kind) and fill != int(fill):
            column = column.cast(pyarrow.float64())
        column = column.fill_null(fill)
    return np.array(column.to_pylist(), object) if is_text else column.to_numpy()


class ParquetDataset(TableDataset):
    """Rows of a Parquet file; see `read_parquet` and `Table.dataset`.

    Args:
        path: of the file.
        target: the column that is to be predicted, or several.
        columns: what it is predicted from, all others where left out; no other is read.
        dtype: of these, which are one vector.
        options: of `read_parquet`.
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
        super().__init__(read_parquet(path, columns=wanted, **options), target, columns, dtype)
