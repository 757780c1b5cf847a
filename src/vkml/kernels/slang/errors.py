"""What the compiler of kernels says when it leaves one to Slang's."""

from __future__ import annotations

from vkml.errors import CompileError


class Unsupported(CompileError):
    """Something of the language that this compiler does not know."""
