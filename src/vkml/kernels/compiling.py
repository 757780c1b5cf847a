"""Kernels' source to SPIR-V, by vkml's own compiler or by Slang's."""

from __future__ import annotations

import functools
import hashlib
import os
from importlib import resources

from vkml.errors import CompileError, InvalidSetting
from vkml.kernels import slang
from vkml.kernels.compiler import NoCompiler, compile_slang, kept
from vkml.vulkan.spirv import keep_arithmetic, require_functions_of_doubles

_VARIABLE = "VKML_KERNEL_COMPILER"
_OWN, _SLANG = "vkml", "slang"


def compile_kernel(
    source: str, label: str = "kernel", sessions: int = 1, *, is_for_hardware: bool = False
) -> bytes:
    """SPIR-V of a kernel, from the disk cache where it was compiled before.

    vkml's own compiler makes it, in milliseconds, and Slang's where that one does not know something of the
    source; for hardware the other way round where there is a Slang compiler, until what both make has been
    measured there. The environment variable VKML_KERNEL_COMPILER, ``vkml`` or ``slang``, allows only one.

    Args:
        source: complete.
        label: for messages.
        sessions: how many threads may use Slang's compiler at once.
        is_for_hardware: whether the device is a GPU, not a program that stands for one.

    Raises:
        CompileError: neither takes the source, or there is no Slang compiler.
    """
    wanted = os.environ.get(_VARIABLE, "")
    if wanted not in ("", _OWN, _SLANG):
        raise InvalidSetting(f"{_VARIABLE} is {wanted!r}: it may be {_OWN} or {_SLANG}, or not set")
    if wanted == _SLANG:
        return compile_slang(source, label, sessions)
    if is_for_hardware and not wanted:
        try:
            return compile_slang(source, label, sessions)
        except NoCompiler:
            pass

    def make() -> bytes:
        module = slang.compile_kernel(source)
        require_functions_of_doubles(module, label)
        return keep_arithmetic(module)

    try:
        return kept((_own_version(), source), make)
    except slang.Unsupported as problem:
        reason = f"vkml's own compiler does not know {problem}, which the kernel {label} has"
        if wanted == _OWN:
            raise CompileError(reason) from None
        try:
            return compile_slang(source, label, sessions)
        except CompileError as error:
            raise CompileError(f"{error} ({reason})") from None


@functools.cache
def _own_version() -> str:
    """What the compiler of this package is known by: its text, so that nothing of an older one is taken."""
    digest = hashlib.sha256()
    folder = resources.files("vkml.kernels.slang")
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".py"):
            digest.update(file.read_bytes())
    digest.update(resources.files("vkml.vulkan").joinpath("spirv.py").read_bytes())
    return digest.hexdigest()
