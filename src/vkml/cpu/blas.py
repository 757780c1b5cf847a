"""How many threads NumPy's BLAS uses: set for a while where the library is OpenBLAS, left alone elsewhere."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cffi
import numpy as np

_NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


@dataclass(frozen=True)
class _Control:
    read: Callable[[], int]
    write: Callable[[int], None]


class ThreadLimit:
    """A context in which BLAS uses at most `threads` threads, process-wide; contexts of several threads nest.

    While any is open the smallest limit holds; when the last closes, what was set before is back.
    """

    _lock = threading.Lock()
    _open: list[int] = []
    _before = 0

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __enter__(self) -> None:
        control = _control()
        if control is None:
            return
        with ThreadLimit._lock:
            if not ThreadLimit._open:
                ThreadLimit._before = control.read()
            ThreadLimit._open.append(self.threads)
            control.write(min(ThreadLimit._open))

    def __exit__(self, *_: object) -> None:
        control = _control()
        if control is None:
            return
        with ThreadLimit._lock:
            ThreadLimit._open.remove(self.threads)
            control.write(min(ThreadLimit._open, default=ThreadLimit._before))


def is_controllable() -> bool:
    """Whether the number of BLAS threads can be set."""
    return _control() is not None


@functools.cache
def _control() -> _Control | None:
    for path in _candidates():
        ffi = cffi.FFI()
        for pattern in _NAMES:
            read, write = pattern.format("get_num_threads"), pattern.format("set_num_threads")
            ffi.cdef(f"int {read}(void); void {write}(int);")
        try:
            library = ffi.dlopen(path)
        except OSError:
            continue
        for pattern in _NAMES:
            try:
                return _Control(
                    getattr(library, pattern.format("get_num_threads")),
                    getattr(library, pattern.format("set_num_threads")),
                )
            except AttributeError:
                continue
    return None


def _candidates() -> Iterator[str]:
    """Paths of OpenBLAS: beside NumPy in its wheels, else what this process has mapped."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs", package / ".libs"):
        if folder.is_dir():
            yield from (str(path) for path in sorted(folder.iterdir()) if "openblas" in path.name)
    maps = Path("/proc/self/maps")
    if maps.exists():
        found = {line.split(None, 5)[-1].strip() for line in maps.read_text().splitlines() if "openblas" in line}
        yield from sorted(found)
