"""C functions of loaded libraries, called by cffi's core."""

from __future__ import annotations

import ctypes
from typing import Any

import _cffi_backend

ffi = _cffi_backend.FFI()
"""Reads C types itself. `cffi.FFI` would import a parser: that takes 20 ms, and a child forked while a thread
imports it for the first time waits for ever when it wants it, too."""


def function(library: ctypes.CDLL, name: str, signature: str) -> Any:
    """A library's function as a callable of a C signature such as ``int(*)(void)``.

    Raises:
        AttributeError: there is none of this name.
    """
    return ffi.cast(signature, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
