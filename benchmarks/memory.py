"""Peak memory of one peer on one model, measured in a process of its own.

``python -m benchmarks.memory PEER FILE DEVICE`` loads, runs three times and prints its own peak as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class PeakMemory:
    """Bytes at the highest point."""

    host_bytes: int
    """Resident memory, with file pages that the process mapped."""
    gpu_bytes: int
    """What all GPUs together had in use more than before; 0 where nvidia-smi is not there to tell."""


def peak_memory(peer: str, path: str, device: str, timeout: float = 300) -> PeakMemory | None:
    """Runs the peer in a process of its own; None where that fails."""
    command = [sys.executable, "-m", "benchmarks.memory", peer, path, device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
        return PeakMemory(**json.loads(done.stdout.splitlines()[-1]))
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


def main(peer: str, path: str, device: str) -> None:
    from benchmarks.feeds import feed_of
    from benchmarks.peers import make_peers

    before = _gpu_bytes()
    feed = feed_of(path)
    prepared = make_peers([peer], device)[0].prepare(path)
    for _ in range(3):
        prepared.run(feed)
    host, gpu = _peak_host_bytes(), max(0, _gpu_bytes() - before)
    prepared.close()
    print(json.dumps(asdict(PeakMemory(host, gpu))))


if __name__ == "__main__":
    main(*sys.argv[1:4])
