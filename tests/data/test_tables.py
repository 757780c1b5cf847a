"""Tables in memory and in text files: types, categories, missing values, rows that cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vkml
from vkml.data import CSVDataset, DataLoader, Table, TableDataset, read_csv

FLOWERS = """size, kind ,count,"a, b"
1.5,rose,3,yes
2,tulip,-4,no

0.5,rose,5,"with ""quotes"", and
a line"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "flowers.csv"
    found.write_text(FLOWERS)
    return found


def test_columns(path: Path) -> None:
    table = read_csv(path)
    assert len(table) == 3 and list(table.columns) == ["size", "kind", "count", "a, b"]
    assert table["size"].dtype == np.float64 and table["size"].tolist() == [1.5, 2, 0.5]
    assert table["count"].dtype == np.int64 and table["count"].tolist() == [3, -4, 5]
    assert table["kind"].tolist() == [0, 1, 0] and table.categories["kind"] == ["rose", "tulip"]
    assert table.categories["a, b"] == ["no", 'with "quotes", and\na line', "yes"]
    assert list(read_csv(path, columns=["count", "size"]).columns) == ["count", "size"]
    with pytest.raises(vkml.InvalidArgument, match="no column 'x'; it has"):
        read_csv(path, columns=["x"])
    with pytest.raises(vkml.InvalidArgument, match="no column 'x'"):
        table["x"]


def test_types_that_are_asked_for(path: Path) -> None:
    table = read_csv(path, dtypes={"count": "category", "size": np.float32})
    assert table["size"].dtype == np.float32 and table.categories["count"] == ["-4", "3", "5"]
    with pytest.raises(vkml.InvalidData, match=r"flowers\.csv, line 2: column 'size': '1\.5' is no int"):
        read_csv(path, dtypes={"size": np.int32})
    with pytest.raises(vkml.InvalidData, match=r"line 3: column 'count': '-4' is no uint8"):
        read_csv(path, dtypes={"count": np.uint8})
    truths = path.with_name("truths.csv")
    truths.write_text("a\ntrue\n0\nFALSE\n")
    assert read_csv(truths, dtypes={"a": bool})["a"].tolist() == [True, False, False]


def test_datasets_of_rows(path: Path) -> None:
    data = CSVDataset(path, target="kind", columns=["count", "size"])
    assert data.classes == ["rose", "tulip"] and len(data) == 3
    row, kind = data[1]
    assert row.dtype == np.float32 and row.tolist() == [-4, 2] and kind == 1
    x, y = next(iter(DataLoader(data, 3)))
    assert x.tolist() == [[3, 1.5], [-4, 2], [5, 0.5]] and y.dtype == vkml.int64 and y.tolist() == [0, 1, 0]
    assert CSVDataset(path, target="size", columns=["count"])[0][1].dtype == np.float32
    assert CSVDataset(path, target=["size", "count"], columns=["kind"])[2][1].tolist() == [0.5, 5]
    whole = CSVDataset(path)
    assert whole[0].tolist() == [1.5, 0, 3, 2] and whole.item_name(0) == f"{path}, row 0"


def test_files_without_names(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("1\t'x\ty'\n2\t'z'\n", encoding="utf-8-sig")
    table = read_csv(path, header=False, delimiter="\t", quotechar="'")
    assert list(table.columns) == ["0", "1"] and table["0"].tolist() == [1, 2]
    assert table.categories["1"] == ["x\ty", "z"]
    named = read_csv(path, header=False, delimiter="\t", quotechar="'", names=["n", "t"])
    assert named["n"].tolist() == [1, 2]
    path.write_text("a,b\n")
    empty = read_csv(path)
    assert len(empty) == 0 and list(empty.columns) == ["a", "b"] and len(CSVDataset(path, "b")) == 0


def test_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,x,t\n1,NA,a\n,2.5,b\n3,1,?\n")
    with pytest.raises(vkml.InvalidData, match=r"a\.csv, line 2: column 'x' has no value \('NA'\)"):
        read_csv(path)
    filled = read_csv(path, missing={"n": -1, "x": float("nan"), "t": "none"})
    assert filled["n"].dtype == np.int64 and filled["n"].tolist() == [1, -1, 3]
    np.testing.assert_array_equal(filled["x"], [np.nan, 2.5, 1])
    assert filled.categories["t"] == ["a", "b", "none"] and filled["t"].tolist() == [0, 1, 2]
    half = read_csv(path, columns=["n"], missing=0.5)
    assert half["n"].tolist() == [1, 0.5, 3]
    zeros = read_csv(path, missing=0, columns=["n", "x"])
    assert zeros["n"].dtype == np.int64 and zeros["x"].tolist() == [0, 2.5, 1]
    other = read_csv(path, columns=["t"], missing_values=["b"], missing="a")
    assert other.categories["t"] == ["?", "a"]
    left = read_csv(path, errors="skip")
    assert len(left) == 0 and len(left.skipped) == 3


def test_categories_of_before(path: Path, tmp_path: Path) -> None:
    train = read_csv(path)
    other = tmp_path / "test.csv"
    other.write_text("kind\ntulip\nrose\n")
    assert read_csv(other, categories={"kind": train.categories["kind"]})["kind"].tolist() == [1, 0]
    other.write_text("kind\ntulip\ndaisy\n")
    with pytest.raises(vkml.InvalidData, match=r"test\.csv, line 3: column 'kind': 'daisy' is none of"):
        read_csv(other, categories={"kind": ["rose", "tulip"]})
    with pytest.raises(vkml.InvalidArgument, match="no column 'x'"):
        read_csv(other, categories={"x": ["a"]})


def test_rows_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,m\n1,2\n3\n4,5,6\nx,8\n9,10\n")
    with pytest.raises(vkml.InvalidData, match=r"a\.csv, line 3: 1 fields, there are 2 columns"):
        read_csv(path)
    table = read_csv(path, errors="skip", dtypes={"n": np.int64})
    assert table["n"].tolist() == [1, 9] and table["m"].tolist() == [2, 10]
    assert [one.name for one in table.skipped] == [f"{path}, line {line}" for line in (3, 4, 5)]
    assert "'x' is no" in table.skipped[2].error
    data = CSVDataset(path, errors="skip", dtypes={"n": np.int64})
    assert len(data) == 2 and len(data.skipped) == 3


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_csv(path)
    for contents, said in (
        (b"a,a\n1,2\n", "several columns 'a'"),
        (b'a\n1\n"2', "behind line"),
        (b"a\n\xff\xfe\n", "behind line"),
    ):
        path.write_bytes(contents)
        with pytest.raises(vkml.InvalidData, match=rf"a\.csv.*{said}"):
            read_csv(path)
    with pytest.raises(ValueError, match="'raise' or 'skip'"):
        read_csv(path, errors="ignore")


def test_tables_in_memory() -> None:
    table = Table({"x": [1.0, 2.0], "t": ["b", "a"], "n": np.array([1, 2], np.uint8)}, {"t": ["a", "b", "c"]})
    assert table["t"].tolist() == [1, 0] and table.categories == {"t": ["a", "b", "c"]}
    data = TableDataset(table, "t")
    assert data[0][0].tolist() == [1, 1] and data[0][1] == 1 and data.classes == ["a", "b", "c"]
    assert data.item_name(1) == "the table, row 1"
    for columns, said in (
        ({"x": [1], "y": [1, 2]}, "differ in length"),
        ({"x": [[1]]}, "2 axes"),
        ({"x": np.array([1j])}, "neither numbers nor texts"),
        ({"x": np.array(["a", None], object)}, "row 1: a text is expected, not None"),
    ):
        with pytest.raises(vkml.InvalidData, match=said):
            Table(columns)  # type: ignore[arg-type]
    with pytest.raises(vkml.InvalidData, match="'z' is none of the categories"):
        Table({"t": ["z"]}, {"t": ["a"]})
    with pytest.raises(vkml.InvalidArgument, match="no column 'y'"):
        TableDataset(table, "y")
    assert len(Table({})) == 0


def test_a_table_is_learned(path: Path) -> None:
    """From a file to weights: rows, a loader, steps."""
    lines = [f"{at % 7},{at % 3},{2 * (at % 7) - (at % 3) + 1}" for at in range(60)]
    path.write_text("a,b,y\n" + "\n".join(lines))
    weight, bias = vkml.zeros(2, requires_grad=True), vkml.zeros((), requires_grad=True)
    optimizer = vkml.optim.Adam([weight, bias], lr=0.1)
    loader = DataLoader(CSVDataset(path, "y", dtypes={"y": np.float64}), 20, shuffle=True)
    for _ in range(100):
        for x, y in loader:
            optimizer.zero_grad()
            ((x @ weight + bias - y) ** 2).mean().backward()
            optimizer.step()
    np.testing.assert_allclose([*weight.tolist(), bias.item()], [2, -1, 1], atol=0.05)
