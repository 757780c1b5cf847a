"""What loading a model costs a process of its own: time, and memory that is no file's.

``python -m benchmarks.loading FILE DEVICE`` is that process; `loading` starts it and watches it.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CACHES = ("VKML_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH", "MESA_SHADER_CACHE_DIR")
"""Where vkml, NVIDIA's driver and Mesa's drivers keep compiled kernels."""


@dataclass(frozen=True)
class Loading:
    """What was seen of one process."""

    seconds: float
    """From making the session to the end of its first run, the device not yet open."""
    seconds_with_import: float
    """The same, from before ``import vkml``."""
    peak_bytes: int
    """The most anonymous memory (Linux: RssAnon and RssShmem) until then; 0 where the system does not say."""
    grown_bytes: int
    """`peak_bytes` less what the process held with its feed made and nothing loaded."""


def loading(path: str, device: str, caches: Path, *, is_watched: bool = True) -> Loading:
    """Loads and runs the model in a fresh process with its caches in a folder (an empty one: cold caches).

    Args:
        path: of the model.
        device: for the session.
        caches: the folder.
        is_watched: whether memory is looked at, a thousand times a second, which slows the process down.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.loading", path, device],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **dict.fromkeys(CACHES, str(caches))},
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        try:
            process.stdout.readline()
            before = peak = _anonymous_bytes(process.pid)
            process.stdin.write("go\n")
            process.stdin.flush()
            while is_watched and not select.select([process.stdout], [], [], 0.001)[0]:
                peak = max(peak, _anonymous_bytes(process.pid))
            words = process.stdout.readline()
            process.stdin.close()
        except BaseException:
            process.kill()
            raise
    if not words:
        raise SystemExit(f"loading {path} on {device} failed, see above")
    return Loading(**json.loads(words), peak_bytes=peak, grown_bytes=peak - before)


def _anonymous_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(size) << 10 for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+)", status, re.MULTILINE))


def main(path: str, device: str) -> None:
    """The watched process."""
    started = time.perf_counter()
    import vkml
    from benchmarks.feeds import feed_of

    imported = time.perf_counter() - started
    feed = feed_of(path)
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    session = vkml.InferenceSession(path, devices=device, precision="highest")
    session.run(None, feed)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "seconds_with_import": imported + seconds}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:3])
