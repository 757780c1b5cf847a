"""Numbers as Slang source text."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from vkml.ir.dtypes import BOOL, FLOAT64, DType

_LITERAL = re.compile(r"^\(?(?:float|double)?\(?(-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)[fFlL]?\)?\)?$")


def slang_float(value: float) -> str:
    """A float32 as Slang text that means exactly that number, infinities and NaN included."""
    number = np.float32(value)
    if not np.isfinite(number):
        return f"asfloat(0x{int(number.view(np.uint32)):08x}u)"
    text = repr(float(number))
    return f"({text})" if math.copysign(1.0, float(number)) < 0 else text


def slang_double(value: float) -> str:
    """A float64 as Slang text that means exactly that number."""
    bits = int(np.float64(value).view(np.uint64))
    if not math.isfinite(value):
        return f"asdouble(0x{bits & 0xFFFFFFFF:08x}u, 0x{bits >> 32:08x}u)"
    return f"({float(value)!r}L)"


def slang_literal(value: Any, dtype: DType) -> str:
    """A number as Slang text in the compute type of `dtype`."""
    if dtype == BOOL:
        return "true" if value else "false"
    if dtype == FLOAT64:
        return slang_double(float(value))
    if dtype.is_float:
        return slang_float(float(value))
    if dtype.bits <= 32:
        return f"int({int(value)})" if dtype.kind == "i" else f"uint(0x{int(value) & 0xFFFFFFFF:x}u)"
    kind = "int64_t" if dtype.kind == "i" else "uint64_t"
    return f"{kind}(0x{int(value) & 0xFFFFFFFFFFFFFFFF:x}ull)"


def literal_value(argument: str) -> float | None:
    """The number that a Slang operand spells out, or None where it is not a plain floating-point literal."""
    found = _LITERAL.match(argument.strip())
    return float(found.group(1)) if found else None
