"""What the compiler of kernels says of what it does not know."""

from __future__ import annotations

from vkml.errors import CompileError


class Unsupported(CompileError):
    """Something of the language that this compiler does not know."""
