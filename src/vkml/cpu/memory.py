"""How much memory the host can still give."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

from vkml.dataclasses import dataclass

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Limits from here on are version 1's way to say that there is none."""


@dataclass(frozen=True)
class _Names:
    """What a version of control groups calls its files."""

    limit: str
    used: str
    cached: tuple[str, ...]
    """Lines of memory.stat, of a group and all below it."""


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file ", "total_active_file "))
_V2 = _Names("memory.max", "memory.current", ("inactive_file ", "active_file "))


@dataclass(frozen=True)
class _ControlGroup:
    folder: Path
    names: _Names


@dataclass(frozen=True)
class MemoryBudget:
    """How much may be taken of the host's memory: a share of what is free."""

    free: int | None = None
    """Bytes; None: not known."""
    share: float = 1.0

    def admits(self, need: int) -> bool:
        """Whether so many bytes may be taken."""
        return self.free is None or need <= self.free * self.share

    def renewed(self) -> MemoryBudget:
        """The same share of what is free now."""
        return self if self.free is None else MemoryBudget(free_memory(), self.share)

    def __str__(self) -> str:
        free = "an unknown amount" if self.free is None else amount(self.free)
        return f"{free} are free (limit: {self.share * 100:.3g} % of that)"


UNBOUNDED = MemoryBudget()


def free_memory(root: Path = _ROOT) -> int | None:
    """Bytes that new arrays may take before the system swaps or ends processes; None: not known.

    The least of what the machine has and of what the process's control group and all groups above it allow.
    Linux grants almost any allocation and ends the process that touches the pages, so a check beforehand is
    the only chance to refuse with a message.

    Args:
        root: where the file system begins.
    """
    figures = [_of_machine(root), *(_of_group(group) for group in _control_groups(root))]
    return min((figure for figure in figures if figure is not None), default=None)


def _of_machine(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_group(group: _ControlGroup) -> int | None:
    """What a group's limit leaves; None where it has none."""
    limit = _number(f"{group.folder}/{group.names.limit}")
    if limit is None or limit >= _UNLIMITED:
        return None
    used = _number(f"{group.folder}/{group.names.used}")
    if used is None:
        return None
    # Files' cached pages count as used there, and are given up first.
    lines = _lines(f"{group.folder}/memory.stat")
    cached = sum(int(line.split()[1]) for line in lines if line.startswith(group.names.cached))
    return max(0, limit - used + cached)


def _control_groups(root: Path) -> tuple[_ControlGroup, ...]:
    # Read each time, for a process can be moved; where the groups lie is looked up once for each answer.
    return _found_groups(root, tuple(_lines(root / "proc/self/cgroup")))


@lru_cache(maxsize=8)
def _found_groups(root: Path, membership: tuple[str, ...]) -> tuple[_ControlGroup, ...]:
    """The groups whose limits hold for a process: its own and those above, of both versions.

    Args:
        root: where the file system begins.
        membership: lines of /proc/self/cgroup, ``number:controllers:path``.
    """
    found: dict[_ControlGroup, None] = {}
    for line in membership:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            found.update(dict.fromkeys(_lineage(root, path, _V2)))
        elif "memory" in controllers.split(","):
            found.update(dict.fromkeys(_lineage(root, path, _V1)))
    return tuple(found)


def _lineage(root: Path, path: str, names: _Names) -> Iterator[_ControlGroup]:
    """A group and those above it, as far as they are mounted."""
    mounts = list(_mounts(root, names))
    own = PurePosixPath(path)
    inside = [(top, folder) for top, folder in mounts if own.is_relative_to(top) and ".." not in own.parts]
    # A container may see its own group mounted without the path that leads there.
    for top, folder in inside or [(own, folder) for _, folder in mounts]:
        below = own.relative_to(top)
        yield _ControlGroup(folder / below, names)
        for parent in below.parents:
            if _is_shared_with_children(folder / parent, names):
                yield _ControlGroup(folder / parent, names)


def _is_shared_with_children(folder: Path, names: _Names) -> bool:
    """Whether what a group's children use counts as used by the group."""
    return names is _V2 or _number(folder / "memory.use_hierarchy") != 0


def _mounts(root: Path, names: _Names) -> Iterator[tuple[PurePosixPath, Path]]:
    """Which group is mounted at which folder."""
    for line in _lines(root / "proc/self/mountinfo"):
        place, _, source = line.partition(" - ")
        kind, _, options = source.partition(" ")
        has_memory = kind == "cgroup" and "memory" in options.split()[-1].split(",")
        if kind == "cgroup2" if names is _V2 else has_memory:
            top, point = (_unescaped(field) for field in place.split()[3:5])
            yield PurePosixPath(top), root / point.lstrip("/")


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field)


def _lines(path: str | Path) -> list[str]:
    try:
        return _contents(path).decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []


def _number(path: str | Path) -> int | None:
    try:
        return int(_contents(path))
    except (OSError, ValueError):
        return None


def _contents(path: str | Path) -> bytes:
    # Without buffer and text layer: a plan's memory is checked against a dozen of such files, twice.
    with open(path, "rb", buffering=0) as file:
        return file.read()


def amount(size: int) -> str:
    """A number of bytes for people."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
