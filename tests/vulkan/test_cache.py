"""The cache folder."""

import os
import stat
import threading
import time

import pytest

from tests.vulkan.helpers import run_python
from vkml.errors import InvalidArgument
from vkml.vulkan import cache

posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no modes and owners of this kind")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    return tmp_path


def entry(folder, name):
    """The file of an entry, wherever below the folder it is."""
    (path,) = folder.rglob(name)
    return path


def files(folder):
    return sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())


def test_round_trip_and_absence():
    assert cache.read("a/b") is None
    assert cache.write("a/b", b"content")
    assert cache.read("a/b") == b"content"
    assert cache.write("a/b", b"")
    assert cache.read("a/b") == b""


@pytest.mark.parametrize("position", [0, 15, 45])
def test_damage_counts_as_absence(folder, position):
    cache.write("x", b"some content")
    content = bytearray(entry(folder, "x").read_bytes())
    content[position] ^= 1
    entry(folder, "x").write_bytes(content)
    assert cache.read("x") is None


def test_truncation_and_foreign_files(folder):
    cache.write("x", b"some content")
    path = entry(folder, "x")
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert cache.read("x") is None
    (path.parent / "y").mkdir()
    assert cache.read("y") is None


def test_an_entry_under_another_name_counts_as_absent(folder):
    cache.write("x", b"some content")
    path = entry(folder, "x")
    path.rename(path.parent / "y")
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


def test_no_home_folder_is_no_error(monkeypatch):
    monkeypatch.delenv("VKML_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", homeless)
    assert cache.folder() is None
    assert not cache.write("x", b"content")
    assert cache.read("x") is None


# --- the bound ----------------------------------------------------------------------------------------------


def test_size_is_bounded_and_the_longest_unused_goes_first(folder, monkeypatch):
    monkeypatch.setenv("VKML_CACHE_BYTES", "10000")
    for number in range(9):
        cache.write(f"e{number}", bytes(1000))
        os.utime(entry(folder, f"e{number}"), (1000 + number, 1000 + number))
    cache.read("e0")
    cache.write("last", bytes(1000))
    left = {path.name for path in files(folder)}
    assert sum(path.stat().st_size for path in files(folder)) <= 10000
    assert {"e0", "last"} <= left
    assert "e1" not in left


def fill(count=20):
    for number in range(count):
        assert cache.write(f"spirv/ab/e{number}", bytes(1000))


def test_what_others_keep_in_the_folder_is_neither_counted_nor_removed(folder, monkeypatch):
    """The folder may be a home or a project, with folders of the names that entries have."""
    monkeypatch.setenv("VKML_CACHE_BYTES", "10000")
    theirs = ["notes.txt", "spirv/shader.spv", "spirv/ab/abcd", "pipelines/ci.yml", ".writing-abcdefgh"]
    for name in theirs:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(5000))
        os.utime(folder / name, (1000, 1000))
    with open(folder / "disk.img", "wb") as image:
        image.truncate(1 << 40)
    fill()
    for name in theirs:
        assert (folder / name).read_bytes() == bytes(5000)
    assert (folder / "disk.img").stat().st_size == 1 << 40
    own = [path for path in files(folder) if path.name.startswith("e")]
    assert 5 <= len(own) <= 10  # bounded, and not emptied for the sake of what others keep


@posix
def test_what_is_no_entry_inside_the_own_folder_stays(folder, monkeypatch):
    monkeypatch.setenv("VKML_CACHE_BYTES", "10000")
    fill(2)
    inside = entry(folder, "e0").parent
    outside = folder / "outside"
    outside.mkdir()
    (outside / "copy").write_bytes(entry(folder, "e0").read_bytes())
    (inside / "foreign").write_bytes(bytes(5000))
    (inside / "link").symlink_to(outside / "copy")
    (inside / "links").symlink_to(outside)
    (inside / "folder").mkdir()
    os.mkfifo(inside / "fifo")
    with open(inside / "sparse", "wb") as sparse:
        sparse.truncate(1 << 40)
    for path in (*inside.iterdir(), outside / "copy"):
        os.utime(path, (1000, 1000), follow_symlinks=False)
    kept = [path for path in (*inside.iterdir(), outside / "copy") if path.name not in ("e0", "e1")]
    assert len(kept) == 7
    done = run_python(
        "from vkml.vulkan import cache\n"
        "for number in range(20): assert cache.write(f'spirv/ab/n{number}', bytes(1000))",
        folder,
        VKML_CACHE_BYTES="10000",
    )
    assert done.returncode == 0, done.stderr
    assert all(os.path.lexists(path) for path in kept)
    own = [path for path in inside.iterdir() if path.name[0] in "en" and path.is_file()]
    assert 5 <= len(own) <= 10


def test_temporaries_of_a_process_that_died_go(folder, monkeypatch):
    fill(1)
    inside = entry(folder, "e0").parent
    whole = entry(folder, "e0").read_bytes()
    dead = [inside / f".writing-{number}aaaaaaa" for number in range(3)]
    for path, content in zip(dead, (b"", whole[:5], whole), strict=True):
        path.write_bytes(content)
        os.utime(path, (1000, 1000))
    young, foreign, foreign_name = (
        inside / name for name in (".writing-young___", ".writing-foreign_", ".writing-a-book")
    )
    young.write_bytes(whole)
    for path, content in ((foreign, b"mine"), (foreign_name, whole)):
        path.write_bytes(content)
        os.utime(path, (1000, 1000))
    assert run_python("from vkml.vulkan import cache; cache.write('x', b'')", folder).returncode == 0
    assert not any(path.exists() for path in dead)
    assert young.exists() and foreign.exists() and foreign_name.exists()


def test_usage_counts_entries_only(folder):
    assert cache.usage() == (0, 0)
    fill(2)
    (folder / "notes.txt").write_bytes(bytes(5000))
    (entry(folder, "e0").parent / "foreign").write_bytes(bytes(5000))
    count, size = cache.usage()
    assert count == 2 and 2000 < size < 2200


# --- whom to trust ------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("umask", ["000", "002", "077"])
def test_folders_are_the_users_own_at_every_level(folder, umask):
    base = folder / "new" / "named"
    code = f"import os; os.umask(0o{umask})\nfrom vkml.vulkan import cache; assert cache.write('a/b/c', b'x')"
    done = run_python(code, folder, VKML_CACHE_DIR=str(base))
    assert done.returncode == 0, done.stderr
    path = entry(folder, "c")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    levels = [level for level in path.parents if folder in level.parents]
    assert len(levels) >= 4
    for level in levels:
        assert stat.S_IMODE(level.stat().st_mode) == 0o700, level


@posix
def test_a_named_folder_that_the_group_may_write_holds_one_that_it_may_not(folder):
    os.chmod(folder, 0o2775)
    assert cache.write("a/b", b"x") and cache.read("a/b") == b"x"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2775
    level = entry(folder, "b").parent
    while level != folder:
        assert stat.S_IMODE(level.stat().st_mode) & 0o777 == 0o700
        level = level.parent


@posix
@pytest.mark.parametrize("mode", [0o775, 0o707, 0o777])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_folder_that_others_may_write_is_not_trusted(folder, mode, depth, caplog):
    assert cache.write("a/b", b"x")
    level = [entry(folder, "b"), *entry(folder, "b").parents][depth]
    os.chmod(level, mode)
    assert cache.read("a/b") is None
    if depth:
        assert not cache.write("a/c", b"x")
        messages = [record.message for record in caplog.records]
        assert len(messages) == 1, "one warning for a folder"
        assert str(level) in messages[0] and "VKML_CACHE_DIR" in messages[0]


@posix
def test_what_belongs_to_someone_else_is_not_trusted(folder, monkeypatch):
    assert cache.write("a/b", b"x")
    there = files(folder)
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    monkeypatch.setenv("VKML_CACHE_BYTES", "0")
    assert cache.read("a/b") is None
    assert not cache.write("a/c", b"x")
    assert cache.usage() == (0, 0)
    assert files(folder) == there


@posix
def test_links_are_not_followed(folder):
    assert cache.write("a/b", b"x")
    path = entry(folder, "b")
    moved = folder / "moved"
    path.rename(moved)
    path.symlink_to(moved)
    assert cache.read("a/b") is None
    path.unlink()
    moved.rename(path)
    assert cache.read("a/b") == b"x"
    path.parent.rename(folder / "folder")
    path.parent.symlink_to(folder / "folder")
    assert cache.read("a/b") is None
    assert not cache.write("a/c", b"x")
    assert not (folder / "folder" / "c").exists()


@posix
@pytest.mark.parametrize("kind", ["fifo", "socket", "zero", "sparse", "folder"])
def test_what_is_no_file_of_an_entrys_size_is_absent_at_once(folder, kind):
    """In a process of its own with a bound of its memory: what is wrong here hangs or takes all of it."""
    assert cache.write("a/b", b"x")
    path = entry(folder, "b")
    path.unlink()
    code = f"""
import os, resource, socket
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
path, kind = {str(path)!r}, {kind!r}
if kind == "fifo": os.mkfifo(path)
elif kind == "zero": os.symlink("/dev/zero", path)
elif kind == "folder": os.mkdir(path)
elif kind == "sparse": open(path, "wb").truncate(1 << 40)
else:
    os.chdir(os.path.dirname(path)); socket.socket(socket.AF_UNIX).bind("b")
from vkml.vulkan import cache
assert [cache.read("a/b") for _ in range(60)] == [None] * 60
assert cache.write("a/b", b"y") == (kind != "folder")
print(cache.read("a/b"))
"""
    done = run_python(code, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("None\n" if kind == "folder" else "b'y'\n")


def test_more_than_an_entry_may_have_is_not_written(folder, monkeypatch):
    monkeypatch.setattr(cache, "MAXIMUM_ENTRY_BYTES", 1000)
    assert cache.write("x", bytes(500))
    assert not cache.write("x", bytes(1001))
    assert cache.read("x") == bytes(500)


def test_where_files_have_no_owners(folder):
    """As on Windows: what `os` lacks there is taken away."""
    code = """
import os
for name in ("geteuid", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC"):
    if hasattr(os, name): delattr(os, name)
from vkml.vulkan import cache
assert cache.write("a/b", bytes(range(256))) and cache.read("a/b") == bytes(range(256))
assert cache.usage()[0] == 1
"""
    done = run_python(code, folder)
    assert done.returncode == 0, done.stderr


# --- at the same time ---------------------------------------------------------------------------------------


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
    assert [path.name for path in files(folder)] == ["shared"]


def test_reading_marks_an_entry_as_used(folder):
    cache.write("x", b"content")
    os.utime(entry(folder, "x"), (1000, 1000))
    assert cache.read("x") == b"content"
    assert entry(folder, "x").stat().st_mtime > time.time() - 3600


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
