"""What the C library keeps of memory that threads have freed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vkml.cpu import heap

PROGRAM = """
import contextlib, ctypes, sys, threading
from vkml.cpu.heap import freed_memory_returned

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024

def use(size, count):
    pieces = [None] * count  # first: nothing is to lie between them
    for at in range(count):
        pieces[at] = library.malloc(size)
    for piece in pieces:
        ctypes.memset(piece, 1, size)
    for piece in pieces:
        library.free(piece)

def kept(context):
    # By a thread, whose heap is not the one that everybody's freed memory is returned from anyway.
    found = []
    def work():
        use(30 << 20, 1)  # after which glibc keeps 60 MiB
        with context():
            before = anonymous()
            use(100 << 10, 300)
            found.append(anonymous() - before)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]

def mapped():
    # Whether a piece of 1 MiB has a mapping of its own: the word before it says so.
    piece = library.malloc(1 << 20)
    size = ctypes.c_size_t.from_address(piece - ctypes.sizeof(ctypes.c_size_t)).value
    library.free(piece)
    return bool(size & 2)

context = freed_memory_returned if sys.argv[1] == "within" else contextlib.nullcontext
found = kept(context)
with context():
    inside = mapped()
print(found, inside, mapped())
"""


def run_program(mode: str, **environment: str) -> tuple[float, bool, bool]:
    """MiB that are kept of 30 in a context; whether 24 MiB get a mapping of their own there, and later."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode],
        env=plain | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, inside, behind = done.stdout.split()
    return float(kept), inside == "True", behind == "True"


@pytest.mark.skipif(heap._mallopt() is None, reason="the C library is not glibc")
def test_freed_memory_goes_back_within_and_is_kept_afterwards() -> None:
    kept, inside, behind = run_program("without")
    assert kept > 20 and not inside and not behind
    kept, inside, behind = run_program("within")
    assert kept < 4 and inside and not behind


@pytest.mark.skipif(heap._mallopt() is None, reason="the C library is not glibc")
@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_somebody_has_stated_is_left_alone(name: str) -> None:
    stated = str(64 << 20) if name.startswith("MALLOC") else f"glibc.malloc.trim_threshold={64 << 20}"
    assert run_program("within", **{name: stated})[0] > 20
