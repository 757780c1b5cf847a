"""How many threads NumPy's BLAS uses: set for a while where the library is OpenBLAS, left alone elsewhere."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np

from vkml.cpu.functions import function
from vkml.dataclasses import dataclass
from vkml.process_settings import ProcessSetting

_SPELLINGS = (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", ""))
"""Prefix and suffix of OpenBLAS's names: NumPy's wheels, SciPy's, distributions'."""


@dataclass(frozen=True)
class _Control:
    read: Callable[[], int]
    write: Callable[[int], None]


def borrowed_threads() -> AbstractContextManager[None]:
    """A context in which BLAS uses one thread.

    The setting is process-wide. Contexts of several threads may overlap: they then disturb each other's
    speed, never their results, and what was set before is back when the last one closes.
    """
    return _NOTHING if _control() is None else _threads.changed(1)


def thread_count() -> int:
    """How many threads BLAS uses; 0 where it does not say."""
    control = _control()
    return 0 if control is None else control.read()


def _use_threads(count: int) -> None:
    control = _control()
    if control is not None:
        control.write(count)


def is_controllable() -> bool:
    """Whether the number of BLAS threads can be set."""
    return _control() is not None


_NOTHING = nullcontext()
# Not set back by forks: OpenBLAS starts threads when it is told how many, and a child may need none.
_threads = ProcessSetting(thread_count, _use_threads, forks_set_back=False)


@functools.cache
def _control() -> _Control | None:
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix, suffix in _SPELLINGS:
            signatures = {
                f"{prefix}openblas_get_num_threads{suffix}": "int(*)(void)",
                f"{prefix}openblas_set_num_threads{suffix}": "void(*)(int)",
            }
            try:
                return _Control(*(function(library, *names) for names in signatures.items()))
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
        found = {
            line.split(None, 5)[-1].strip() for line in maps.read_text().splitlines() if "openblas" in line
        }
        yield from sorted(found)
