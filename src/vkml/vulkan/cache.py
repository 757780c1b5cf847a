"""Files in the user's cache folder, verified by hash, safe with concurrent processes.

An entry is a container: a magic word, the SHA-256 of name and payload, the payload. Writing goes through a
temporary file and a rename, so a reader sees an old entry or a new one, never a part. Whatever does not
verify counts as absent. Nothing here raises because of the file system: a cache that cannot be written is
only slower.

Entries are code that runs on GPUs and the CPU, so nobody else may put them there. They lie in a folder of
their own, `vkml-entries`, inside the folder that the user names: that one may be a home or a project, may be
shared with a group, and holds other files. Folders are made with mode 0700 at every level that is missing. An
entry is read where the own folder, those below it and the file belong to the user of this process and nobody
else may write them; links are not followed, and what is no regular file of an entry's size is not waited for.
A file counts, and goes when the cache is full, if it also lies in the own folder and begins with the magic
word.
On Windows, where files have no such modes, the rights of the user's own folders stand for all this.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument
from vkml.forks import renew_in_child

_log = logging.getLogger("vkml.vulkan")

_OWN_FOLDER = "vkml-entries"
_FAMILY = b"VKMLCACHE"
"""What entries of every format begin with."""
_MAGIC = _FAMILY + b"2\n"
_HEADER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size
_NAME_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")

DEFAULT_LIMIT_BYTES = 1 << 30
"""Of all entries together; VKML_CACHE_BYTES overrides it."""
MAXIMUM_ENTRY_BYTES = 256 << 20
"""Of one payload; drivers' caches, the largest ones, have some tens of MiB."""
_SHRINK_TO = 0.75

_TEMPORARY = ".writing-"
_TEMPORARY_NAME = re.compile(re.escape(_TEMPORARY) + r"[a-z0-9_]{8}")
_ABANDONED_SECONDS = 3600.0
"""Age of a temporary file whose writer cannot be at work any more."""

# No waiting for the other end of a FIFO. Windows has neither these flags nor what they guard against.
_READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)

_lock = threading.RLock()
_known_bytes: dict[Path, int] = {}
_distrusted: set[Path] = set()
"""Folders that a warning has named."""


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


renew_in_child(_renew)


@dataclass(frozen=True)
class _Entry:
    path: Path
    used: float
    size: int


def folder() -> Path | None:
    """The cache folder: VKML_CACHE_DIR, or `vkml` below the platform's folder for caches.

    None where there is neither that variable nor a home folder.
    """
    named = os.environ.get("VKML_CACHE_DIR")
    if named:
        return Path(named)
    with contextlib.suppress(RuntimeError):  # a user without a home, as in many containers
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
            return Path(base) / "vkml"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "vkml"
        base = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "vkml"
    return None


def read(name: str) -> bytes | None:
    """The payload of an entry, or None where there is none that can be trusted or it is damaged.

    Args:
        name: of the entry, of letters, digits, `.`, `_`, `-`, with `/` between folders.
    """
    parts = _parts(name)
    own = _own_folder()
    if own is None or not all(_is_private_folder(level) for level in _levels(own, parts)):
        return None
    path = own.joinpath(*parts)
    content = _content(path)
    payload = content[_HEADER_BYTES:]
    if content[:_HEADER_BYTES] != _header(name, payload):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the entry was used: shrinking removes the longest unused first
    return payload


def has(name: str) -> bool:
    """Whether there seems to be an entry, which `read` may yet find wanting.

    Args:
        name: as in `read`.
    """
    own = _own_folder()
    return own is not None and own.joinpath(*_parts(name)).is_file()


def write(name: str, payload: bytes) -> bool:
    """Stores an entry in one step, replacing an older one; returns whether that was possible.

    Args:
        name: as in `read`.
        payload: any bytes, up to `MAXIMUM_ENTRY_BYTES` of them.
    """
    parts = _parts(name)
    own = _own_folder()
    if own is None or len(payload) > MAXIMUM_ENTRY_BYTES:
        return False
    try:
        _make_folders(own.parent)
        for level in _levels(own, parts):
            _make_folder(level)
            if not _is_private_folder(level):
                return False
        path = own.joinpath(*parts)
        import tempfile  # with six modules of its own, which who only reads does not want

        handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(_header(name, payload))
                stream.write(payload)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError:
        return False
    _account(own, _HEADER_BYTES + len(payload))
    return True


def usage() -> tuple[int, int]:
    """How many entries there are, and their bytes together."""
    own = _own_folder()
    sizes = [entry.size for entry in _entries(own)] if own is not None else []
    return len(sizes), sum(sizes)


# --- names and folders --------------------------------------------------------------------------------------


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if not all(_NAME_PART.fullmatch(part) for part in parts):
        raise InvalidArgument(f"{name!r} is no name for a cache entry: letters, digits, '.', '_', '-', '/'")
    return parts


def _own_folder() -> Path | None:
    base = folder()
    return base / _OWN_FOLDER if base is not None else None


def _levels(own: Path, parts: list[str]) -> list[Path]:
    """The folders from the own one down to that of an entry."""
    return [own.joinpath(*parts[:depth]) for depth in range(len(parts))]


def _make_folders(path: Path) -> None:
    """Makes a folder and those above it that are missing, each with its mode, unlike `Path.mkdir`."""
    if not path.is_dir():
        _make_folders(path.parent)
        _make_folder(path)


def _make_folder(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)


def _is_private(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this process's user and nobody else may write it."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_private_folder(path: Path) -> bool:
    """Whether a folder, itself and no link to one, can be trusted; one that cannot is named in a warning."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    if stat.S_ISDIR(status.st_mode) and _is_private(status):
        return True
    if path not in _distrusted:
        _distrusted.add(path)
        _log.warning(
            "the kernel cache is not used: %s (%s, of user %d) has to be a folder of this user that nobody "
            "else may write, for what is in it is run; remove it, or set VKML_CACHE_DIR",
            path,
            stat.filemode(status.st_mode),
            status.st_uid,
        )
    return False


# --- files --------------------------------------------------------------------------------------------------


def _content(path: Path, size: int | None = None) -> bytes:
    """The first `size` bytes of a file that an entry may be, or all of them; empty where it is none."""
    try:
        handle = os.open(path, _READ_FLAGS)
    except OSError:
        return b""
    try:
        status = os.fstat(handle)
        is_possible = stat.S_ISREG(status.st_mode) and _is_private(status)
        if not is_possible or status.st_size > _HEADER_BYTES + MAXIMUM_ENTRY_BYTES:
            return b""
        with os.fdopen(handle, "rb", closefd=False) as stream:
            return stream.read(status.st_size if size is None else size)
    except OSError:
        return b""
    finally:
        os.close(handle)


def _header(name: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(name.encode() + b"\0")
    digest.update(payload)
    return _MAGIC + digest.digest()


# --- the bound ----------------------------------------------------------------------------------------------


def _limit_bytes() -> int:
    try:
        return int(os.environ["VKML_CACHE_BYTES"])
    except (KeyError, ValueError):
        return DEFAULT_LIMIT_BYTES


def _account(own: Path, added: int) -> None:
    """Keeps a running total of the entries, and removes some when it passes the limit."""
    with _lock:
        total = _known_bytes.get(own)
        total = _shrink(own, sys.maxsize) if total is None else total + added
        limit = _limit_bytes()
        if total > limit:
            total = _shrink(own, int(limit * _SHRINK_TO))
        _known_bytes[own] = total


def _shrink(own: Path, limit: int) -> int:
    """Removes the longest unused entries until the rest is within `limit`; returns the size of the rest."""
    entries = sorted(_entries(own), key=lambda entry: entry.used)
    total = sum(entry.size for entry in entries)
    for entry in entries:
        if total <= limit:
            break
        with contextlib.suppress(OSError):
            entry.path.unlink()
            total -= entry.size
    return total


def _entries(own: Path) -> Iterator[_Entry]:
    """The entries, of this and of other formats; removes temporary files that were left behind."""
    left = [own]
    while left:
        for path in _inside(left.pop()):
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if stat.S_ISDIR(status.st_mode):
                    left.append(path)
                elif _NAME_PART.fullmatch(path.name) and _content(path, len(_FAMILY)) == _FAMILY:
                    yield _Entry(path, status.st_mtime, status.st_size)
                elif _TEMPORARY_NAME.fullmatch(path.name):
                    _remove_abandoned(path, status)


def _inside(level: Path) -> list[Path]:
    """What lies in a folder that can be trusted."""
    with contextlib.suppress(OSError):
        status = os.lstat(level)
        if stat.S_ISDIR(status.st_mode) and _is_private(status):
            return list(level.iterdir())
    return []


def _remove_abandoned(path: Path, status: os.stat_result) -> None:
    """Removes a temporary file whose writer ended in the middle, perhaps before the first byte."""
    is_file = stat.S_ISREG(status.st_mode) and _is_private(status)
    is_old = time.time() - status.st_mtime > _ABANDONED_SECONDS
    if is_file and is_old and _FAMILY.startswith(_content(path, len(_FAMILY))):
        path.unlink()
