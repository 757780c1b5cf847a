"""The cache folder."""

import os
import threading

import pytest

from vkml.errors import InvalidArgument
from vkml.vulkan import cache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_round_trip_and_absence():
    assert cache.read("a/b") is None
    assert cache.write("a/b", b"content")
    assert cache.read("a/b") == b"content"
    assert cache.write("a/b", b"")
    assert cache.read("a/b") == b""


@pytest.mark.parametrize("position", [0, 15, 45])
def test_damage_counts_as_absence(folder, position):
    cache.write("x", b"some content")
    content = bytearray((folder / "x").read_bytes())
    content[position] ^= 1
    (folder / "x").write_bytes(content)
    assert cache.read("x") is None


def test_truncation_and_foreign_files(folder):
    cache.write("x", b"some content")
    whole = (folder / "x").read_bytes()
    for size in range(len(whole)):
        (folder / "x").write_bytes(whole[:size])
        assert cache.read("x") is None
    (folder / "y").mkdir()
    assert cache.read("y") is None


@pytest.mark.parametrize("name", ["", "../x", "/x", "a//b", ".hidden", "a b", "a\\b", "a/.."])
def test_names_stay_inside(name):
    with pytest.raises(InvalidArgument):
        cache.read(name)


def test_a_folder_that_cannot_be_made_is_no_error(folder, monkeypatch):
    (folder / "file").write_bytes(b"")
    monkeypatch.setenv("VKML_CACHE_DIR", str(folder / "file"))
    assert not cache.write("x", b"content")
    assert cache.read("x") is None


def test_size_is_bounded_and_the_longest_unused_goes_first(folder, monkeypatch):
    monkeypatch.setenv("VKML_CACHE_BYTES", "10000")
    for number in range(9):
        cache.write(f"e{number}", bytes(1000))
        os.utime(folder / f"e{number}", (1000 + number, 1000 + number))
    cache.read("e0")
    cache.write("last", bytes(1000))
    left = {path.name for path in folder.iterdir()}
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 10000
    assert {"e0", "last"} <= left
    assert "e1" not in left


def test_writers_and_readers_at_the_same_time(folder):
    contents = [bytes([number]) * 5000 for number in range(4)]
    wrong = []

    def work(content):
        for _ in range(30):
            cache.write("shared", content)
            if cache.read("shared") not in contents:
                wrong.append(content[0])

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [path.name for path in folder.iterdir()] == ["shared"]


def test_default_folders(monkeypatch, tmp_path):
    monkeypatch.delenv("VKML_CACHE_DIR")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "vkml"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says to ignore it
    assert cache.folder().is_absolute()
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache.folder().parts[-3:] == ("Library", "Caches", "vkml")
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert cache.folder() == tmp_path / "vkml"
