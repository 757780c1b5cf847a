"""Parquet files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from vkml.data import ParquetDataset, read_parquet


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'vkml\[parquet\]'"):
        read_parquet(tmp_path / "a.parquet")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    kinds = pyarrow.array(["rose", "tulip", "rose"]).dictionary_encode()
    columns: dict[str, Any] = {
        "size": pyarrow.array([1.5, 2.0, 0.5], pyarrow.float32()),
        "count": [3, None, 5],
        "kind": kinds,
        "text": ["b", "a", None],
        "is_new": [True, False, True],
        "deep": [[1], [2], [3]],
    }
    found = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(columns), found)
    return found


def test_columns(path: Path) -> None:
    table = read_parquet(path, columns=["size", "kind", "is_new"])
    assert table["size"].dtype == np.float32 and table["size"].tolist() == [1.5, 2, 0.5]
    assert table["kind"].tolist() == [0, 1, 0] and table.categories["kind"] == ["rose", "tulip"]
    assert table["is_new"].tolist() == [True, False, True]
    known = read_parquet(path, columns=["kind"], categories={"kind": ["tulip", "rose"]})
    assert known["kind"].tolist() == [1, 0, 1]


def test_missing_values(path: Path) -> None:
    with pytest.raises(vkml.InvalidData, match=r"a\.parquet, row 1: column 'count' has no value"):
        read_parquet(path, columns=["count"])
    filled = read_parquet(path, columns=["count", "text"], missing={"count": -1, "text": "?"})
    assert filled["count"].tolist() == [3, -1, 5] and filled["text"].tolist() == [2, 1, 0]
    assert read_parquet(path, columns=["count"], missing=0.5)["count"].tolist() == [3, 0.5, 5]


def test_datasets_of_rows(path: Path) -> None:
    data = ParquetDataset(path, "kind", ["size", "is_new"])
    assert data[1][0].tolist() == [2, 0] and data[1][1] == 1 and data.classes == ["rose", "tulip"]


def test_what_is_no_table(path: Path) -> None:
    with pytest.raises(vkml.InvalidData, match="column 'deep' is of list"):
        read_parquet(path, columns=["deep"])
    with pytest.raises(vkml.InvalidArgument, match="no column 'x'"):
        read_parquet(path, columns=["x"])
    whole = path.read_bytes()
    for contents in (b"", whole[:50], whole[:-20], b"PAR1" * 10):
        path.write_bytes(contents)
        with pytest.raises(vkml.InvalidData, match=r"a\.parquet cannot be read"):
            read_parquet(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_parquet(path)
