"""How much memory the host can still give."""

from __future__ import annotations

from pathlib import Path

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes that new arrays may take before the system swaps or ends processes; None: not known.

    Linux grants almost any allocation and ends the process that touches the pages, so a check beforehand is
    the only chance to refuse with a message.
    """
    free = _of_machine()
    limit, used = (_number(_CONTROL_GROUP / name) for name in ("memory.max", "memory.current"))
    if limit is None or used is None:
        return free
    # Files' cached pages count as used there, and are given up first.
    left = max(0, limit - used + _cached())
    return left if free is None else min(free, left)


def _of_machine() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _cached() -> int:
    try:
        lines = (_CONTROL_GROUP / "memory.stat").read_text(encoding="ascii").splitlines()
        kinds = ("inactive_file ", "active_file ")
        return sum(int(line.split()[1]) for line in lines if line.startswith(kinds))
    except (OSError, ValueError, IndexError):
        return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def amount(size: int) -> str:
    """A number of bytes for people."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
