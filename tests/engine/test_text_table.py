"""Tables of plain text fit their width and lose no more than they must."""

from __future__ import annotations

from vkml.engine.text_table import Column, cut_middle, text_table

COLUMNS = (Column("#", is_right=True), Column("name", is_cut=True), Column("note"), Column("none"))


def test_a_table_that_fits_is_whole() -> None:
    lines = text_table(COLUMNS, [("1", "first", "a", ""), ("20", "second one", "b", "")], 80)
    assert lines == [" #  name        note", "─" * 20, " 1  first       a", "20  second one  b"]


def test_the_widest_that_may_be_cut_is_cut_in_its_middle() -> None:
    name = "/model/layer4/block2/conv1/weight"
    lines = text_table(COLUMNS, [("1", name, "kept as it is", "")], 32, ["a note that takes two lines of it"])
    assert max(map(len, lines)) <= 32
    assert lines[2].startswith("1  /mod…") and "weight" in lines[2] and "kept as it is" in lines[2]
    assert [line.strip() for line in lines[3:]] == ["a note that takes two lines", "of it"]


def test_what_may_not_be_cut_is_kept_however_narrow_the_table() -> None:
    lines = text_table(COLUMNS, [("1", "a long name indeed", "kept as it is", "")], 10)
    assert "kept as it is" in lines[2]


def test_cut_middle() -> None:
    assert cut_middle("abc", 3) == "abc"
    assert cut_middle("abcdefghij", 7) == "ab…ghij"
