"""How many threads NumPy's BLAS uses: set for a while where the library is OpenBLAS, left alone elsewhere."""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vkml.cpu.functions import ffi, function
from vkml.process_settings import ProcessSetting

Array = np.ndarray[Any, Any]

_SPELLINGS = (
    ("scipy_", "64_", "int64_t"),
    ("scipy_", "", "int"),
    ("", "64_", "int64_t"),
    ("", "", "int"),
)
"""Prefix and suffix of OpenBLAS's names, and its integer: NumPy's wheels, SciPy's, distributions'."""


_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
_SGEMM = (
    "void(*)(int, int, int, {i} m, {i} n, {i} k, float alpha, const float *a, {i} lda, "
    "const float *b, {i} ldb, float beta, float *c, {i} ldc)"
)
_SGEMV = (
    "void(*)(int, int, {i} m, {i} n, float alpha, const float *a, {i} lda, "
    "const float *x, {i} incx, float beta, float *y, {i} incy)"
)


@dataclass(frozen=True)
class _Control:
    read: Callable[[], int]
    write: Callable[[int], None]
    sgemm: Callable[..., None]
    sgemv: Callable[..., None]


def borrowed_threads() -> AbstractContextManager[None]:
    """A context in which this package decides how many threads BLAS uses, one to begin with.

    The setting is process-wide. Contexts of several threads may overlap: they then disturb each other's
    speed, never their results, and what was set before is back when the last one closes.
    """
    return _NOTHING if _control() is None else _threads.changed(1)


def thread_count() -> int:
    """How many threads BLAS uses; 0 where it does not say."""
    control = _control()
    return 0 if control is None else control.read()


def use_threads(count: int) -> None:
    """Sets how many threads BLAS uses from now on; only inside `borrowed_threads`."""
    control = _control()
    if control is not None:
        control.write(count)


def is_controllable() -> bool:
    """Whether the number of BLAS threads can be set."""
    return _control() is not None


def can_multiply_unaligned() -> bool:
    """Whether `multiply` works: OpenBLAS is there, and the processor loads floats from any address."""
    return _control() is not None and platform.machine().lower() in ("x86_64", "amd64")


def multiply(a: Array, b: Array, out: Array) -> None:
    """a @ b into out, float32 matrices, where NumPy would copy `b`: it may begin at any address.

    Weights mapped from a model file begin wherever the file has them, three times in four not at a
    multiple of four bytes. NumPy hands only aligned arrays to BLAS.

    Args:
        a: [m, k], rows contiguous.
        b: [k, n], rows or columns contiguous.
        out: [m, n], rows contiguous.
    """
    control = _control()
    assert control is not None and a.dtype == b.dtype == out.dtype == np.float32
    (m, k), n = a.shape, b.shape[1]
    is_row_major = b.strides[1] == 4 or n == 1
    leading = max(b.strides[0 if is_row_major else 1] // 4, n if is_row_major else k)
    left, right, result = (_pointer(array) for array in (a, b, out))
    if m == 1:
        rows, columns = (k, n) if is_row_major else (n, k)
        form = _TRANSPOSED if is_row_major else _PLAIN
        control.sgemv(_ROW_MAJOR, form, rows, columns, 1.0, right, leading, left, 1, 0.0, result, 1)
        return
    form = _PLAIN if is_row_major else _TRANSPOSED
    step, pitch = max(a.strides[0] // 4, k), max(out.strides[0] // 4, n)
    control.sgemm(_ROW_MAJOR, _PLAIN, form, m, n, k, 1.0, left, step, right, leading, 0.0, result, pitch)


def _pointer(array: Array) -> Any:
    return ffi.cast("float *", array.ctypes.data)


_NOTHING = nullcontext()
# Not set back by forks: OpenBLAS starts threads when it is told how many, and a child may need none.
_threads = ProcessSetting(thread_count, use_threads, forks_set_back=False)


@functools.cache
def _control() -> _Control | None:
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix, suffix, integer in _SPELLINGS:
            signatures = {
                f"{prefix}openblas_get_num_threads{suffix}": "int(*)(void)",
                f"{prefix}openblas_set_num_threads{suffix}": "void(*)(int)",
                f"{prefix}cblas_sgemm{suffix}": _SGEMM.format(i=integer),
                f"{prefix}cblas_sgemv{suffix}": _SGEMV.format(i=integer),
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
