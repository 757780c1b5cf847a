"""Kernels' source to SPIR-V, from the disk cache where it was compiled before."""

from __future__ import annotations

import functools
import hashlib
import threading
import weakref
from importlib import resources
from typing import TYPE_CHECKING

from vkml.errors import CompileError
from vkml.forks import renew_in_child
from vkml.vulkan import cache
from vkml.vulkan.spirv import keep_arithmetic, require_functions_of_doubles

if TYPE_CHECKING:
    from _thread import LockType


def compile_kernel(source: str, label: str = "kernel") -> bytes:
    """SPIR-V of a kernel.

    Args:
        source: complete; its entry point is ``main``.
        label: for messages.

    Raises:
        CompileError: the source has something that the compiler does not know.
    """
    digest = hashlib.sha256("\0".join((_compiler_version(), source)).encode()).hexdigest()
    name = f"spirv/{digest[:2]}/{digest}"
    found = cache.read(name)
    if found is not None:
        return found
    with _changed:
        turn = _turns.setdefault(digest, threading.Lock())
    # Kernels differ in their constants more than in their sources: who waits for a thread that compiles the
    # same source finds it in the cache.
    with turn:
        found = cache.read(name)
        if found is None:
            found = _compiled(source, label)
            cache.write(name, found)
        return found


def _compiled(source: str, label: str) -> bytes:
    # Here, for only who compiles needs it: no session on the CPU does, nor one that finds all in the cache.
    from vkml.kernels import slang

    try:
        # One at a time: threads would only take turns at the interpreter, and none of their kernels would be
        # with the driver before nearly all are done.
        with _compiler:
            module = slang.compile_kernel(source)
    except slang.Unsupported as problem:
        raise CompileError(
            f"vkml's compiler does not know {problem}, which its kernel {label} has. This is a bug in vkml: "
            "please report it with the model; device 'cpu' compiles no kernels"
        ) from None
    require_functions_of_doubles(module, label)
    return keep_arithmetic(module)


@functools.cache
def _compiler_version() -> str:
    """What the compiler is known by: its text, so that nothing of an older one is taken."""
    digest = hashlib.sha256()
    folder = resources.files("vkml.kernels").joinpath("slang")
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".py"):
            digest.update(file.read_bytes())
    digest.update(resources.files("vkml.vulkan").joinpath("spirv.py").read_bytes())
    return digest.hexdigest()


_compiler = threading.Lock()
"""Held while the compiler is at work."""
_changed = threading.Lock()
"""Guards what follows."""
_turns: weakref.WeakValueDictionary[str, LockType] = weakref.WeakValueDictionary()
"""Cache key → what a thread holds that compiles such a source, as long as any thread holds or wants it."""


def _renew() -> None:
    """In a forked child: nobody compiles."""
    global _compiler, _changed, _turns
    _compiler, _changed, _turns = threading.Lock(), threading.Lock(), weakref.WeakValueDictionary()


renew_in_child(_renew)
