"""Memory of one peer on one model, measured in a process of its own.

``python -m benchmarks.memory PEER FILE DEVICE`` loads, runs three times and prints what it has used as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class UsedMemory:
    """Bytes that a process has used."""

    host_bytes: int
    """Resident memory at the highest point, with file pages that the process mapped."""
    own_bytes: int
    """Resident memory behind the runs, without pages of files in the model's folder; 0 where nobody tells."""
    gpu_bytes: int
    """What all GPUs together had in use more than before; 0 where nvidia-smi is not there to tell."""


def used_memory(peer: str, path: str, device: str, timeout: float = 300) -> UsedMemory | None:
    """Runs the peer in a process of its own; None where that fails."""
    command = [sys.executable, "-m", "benchmarks.memory", peer, path, device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
        return UsedMemory(**json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError, TypeError):
        return None


def _gpu_bytes() -> int:
    """Memory in use on all NVIDIA GPUs."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return sum(int(line) for line in listing.split()) << 20
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def _peak_host_bytes() -> int:
    """The process's largest resident set so far."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0


def _own_bytes(folder: Path) -> int:
    """The process's resident memory without pages of files in a folder."""
    own, is_own = 0, True
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return 0
    for line in lines:
        words = line.split(maxsplit=5)
        if words[0].endswith(":"):
            own += int(words[1]) << 10 if words[0] == "Rss:" and is_own else 0
        else:  # the head of a mapping: addresses, rights, offset, device, inode, and a file, if it is of one
            is_own = len(words) < 6 or not Path(words[5]).is_relative_to(folder)
    return own


def main(peer: str, path: str, device: str) -> None:
    from benchmarks.feeds import feed_of
    from benchmarks.peers import make_peers

    before = _gpu_bytes()
    feed = feed_of(path)
    prepared = make_peers([peer], device)[0].prepare(path)
    for _ in range(3):
        prepared.run(feed)
    gpu = max(0, _gpu_bytes() - before)
    used = UsedMemory(_peak_host_bytes(), _own_bytes(Path(path).resolve().parent), gpu)
    prepared.close()
    print(json.dumps(asdict(used)))


if __name__ == "__main__":
    main(*sys.argv[1:4])
