"""A compiler of the part of Slang that kernels are written in, to SPIR-V: small, and loaded in no time.

It knows what kernels use of the language, and refuses the rest (`Unsupported`). It optimises little, for
drivers do that: names of what does not change are values, loops that are told to are unrolled, and what is
known is computed.
"""

from __future__ import annotations

import math

from vkml.kernels.slang.compilation import Compilation
from vkml.kernels.slang.errors import Unsupported
from vkml.kernels.slang.parser import parse
from vkml.kernels.slang.phases import bytes_of, has_records, name_of
from vkml.kernels.slang.tokens import tokens_of
from vkml.kernels.source_marks import PHASE


def compile_kernel(source: str) -> bytes:
    """SPIR-V of a kernel's source, its entry point ``main``.

    Raises:
        Unsupported: something in the source is not known here.
    """
    program, *phases = [parse(tokens_of(each)) for each in source.split(PHASE)]
    return Compilation(program, phases).finish()


def workgroup_of(source: str) -> tuple[int, list[tuple[str | None, int]]]:
    """The threads of a kernel's workgroups, and the type and bytes of each variable that one shares.

    The type is None where it has structs, which are those of one source: phases have none of these in common.

    Raises:
        Unsupported: something in the source is not known here.
    """
    compilation = Compilation(parse(tokens_of(source)))
    shared = [
        (None if has_records(type_) else name_of(type_), bytes_of(type_))
        for type_ in compilation.shared_types
    ]
    return math.prod(compilation.workgroup), shared


__all__ = ["PHASE", "Unsupported", "compile_kernel", "workgroup_of"]
