"""Files in the user's cache folder, verified by hash, safe with concurrent processes.

An entry is a container: a magic word, the SHA-256 of the payload, the payload. Writing goes through a
temporary file and a rename, so a reader sees an old entry or a new one, never a part. Whatever does not
verify counts as absent. Nothing here raises because of the file system: a cache that cannot be written is
only slower.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import threading
from pathlib import Path

from vkml.errors import InvalidArgument

_MAGIC = b"VKMLCACHE1\n"
_HEADER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size
DEFAULT_LIMIT_BYTES = 1 << 30
"""Of all entries together; VKML_CACHE_BYTES overrides it."""
_SHRINK_TO = 0.75

_lock = threading.Lock()
_known_bytes: dict[Path, int] = {}


def folder() -> Path:
    """The cache folder: VKML_CACHE_DIR, or `vkml` below the platform's folder for caches."""
    named = os.environ.get("VKML_CACHE_DIR")
    if named:
        return Path(named)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        return Path(base) / "vkml"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "vkml"
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "vkml"


def read(name: str) -> bytes | None:
    """The payload of an entry, or None where there is none or it is damaged.

    Args:
        name: of the entry, of letters, digits, `.`, `_`, `-`, with `/` between folders.
    """
    path = _path(name)
    try:
        content = path.read_bytes()
    except (OSError, RuntimeError):
        return None
    payload = content[_HEADER_BYTES:]
    if content[:_HEADER_BYTES] != _header(payload):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the entry was used: shrinking removes the longest unused first
    return payload


def write(name: str, payload: bytes) -> bool:
    """Stores an entry in one step, replacing an older one; returns whether that was possible.

    Args:
        name: as in `read`.
        payload: any bytes.
    """
    path = _path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(_header(payload))
                stream.write(payload)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError:
        return False
    _account(_HEADER_BYTES + len(payload))
    return True


def _path(name: str) -> Path:
    parts = name.split("/")
    for part in parts:
        if not part or part.startswith(".") or not all(c.isalnum() or c in "._-" for c in part):
            raise InvalidArgument(
                f"{name!r} is no name for a cache entry: letters, digits, '.', '_', '-', '/'"
            )
    return folder().joinpath(*parts)


def _header(payload: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(payload).digest()


def _limit_bytes() -> int:
    try:
        return int(os.environ["VKML_CACHE_BYTES"])
    except (KeyError, ValueError):
        return DEFAULT_LIMIT_BYTES


def _account(added: int) -> None:
    """Keeps a running total of the folder, and removes entries when it passes the limit."""
    root = folder()
    with _lock:
        total = _known_bytes.get(root)
        total = _shrink(root, sys.maxsize) if total is None else total + added
        limit = _limit_bytes()
        if total > limit:
            total = _shrink(root, int(limit * _SHRINK_TO))
        _known_bytes[root] = total


def _shrink(root: Path, limit: int) -> int:
    """Removes the longest unused entries until the rest is within `limit`; returns the size of the rest."""
    entries: list[tuple[float, int, Path]] = []
    for path in root.rglob("*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            if path.is_file():
                entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries, key=lambda entry: entry[0]):
        if total <= limit:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
    return total
