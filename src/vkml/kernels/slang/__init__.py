"""A compiler of the part of Slang that kernels are written in, to SPIR-V: small, and loaded in no time.

It knows what kernels use of the language, and refuses the rest (`Unsupported`). It optimises little, for
drivers do that: names of what does not change are values, loops that are told to are unrolled, and what is
known is computed.
"""

from __future__ import annotations

from vkml.kernels.slang.compilation import Compilation
from vkml.kernels.slang.errors import Unsupported
from vkml.kernels.slang.parser import parse
from vkml.kernels.slang.tokens import tokens_of


def compile_kernel(source: str) -> bytes:
    """SPIR-V of a kernel's source, its entry point ``main``.

    Raises:
        Unsupported: something in the source is not known here.
    """
    return Compilation(parse(tokens_of(source))).finish()


__all__ = ["Unsupported", "compile_kernel"]
