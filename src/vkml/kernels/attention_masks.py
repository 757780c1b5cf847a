"""What masks, biases and caps leave of an attention's scores, as a function of kernels."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from vkml.kernels.writer import KernelWriter, load_expression

if TYPE_CHECKING:
    from vkml.kernels.attention import Attention
    from vkml.kernels.views import View


def adjusted_function(
    writer: KernelWriter, given: Attention, *, is_causal: bool, has_slope: bool = False
) -> str:
    """The text of ``float adjusted(batch, head, row, key, score)``: a scaled score as exponentials want it.

    Args:
        writer: of the kernel, which defines QUERY_ROWS, KEY_ROWS and CAUSAL_OFFSET.
        given: the attention.
        is_causal: whether causality is part of it, not the kernel's own affair.
        has_slope: whether there is one more argument, which is 1 before and receives the derivative by the
            score: 0 where a number takes its place.
    """
    assert not (is_causal and has_slope), "what is added to hide a score leaves its derivative"
    coordinates = ("batch", "head", "row", "key")
    slope = ", inout float slope" if has_slope else ""
    # Rows and keys beyond the last are asked for, too.
    lines = [
        f"float adjusted(int batch, int head, int row, int key, float score{slope})",
        "{",
        "    row = min(row, QUERY_ROWS - 1);",
        "    key = min(key, KEY_ROWS - 1);",
    ]
    if given.softcap:
        cap = float_text(given.softcap)
        lines.append(f"    float bounded = hyperbolic_tangent(score / {cap});")
        lines.append(f"    score = bounded * {cap};")
        if has_slope:
            lines.append("    slope = 1 - bounded * bounded;")

    def element(view: View) -> str:
        return load_expression(writer.read(view), writer.offset(coordinates, view.strides), view.dtype)

    hidden = []
    if given.mask is not None:
        hidden.append(f"{'!' if given.keeps else ''}({element(given.mask)})")
    adds = False
    if is_causal and given.causal is not None:
        hidden.append("key > row + CAUSAL_OFFSET")
        adds = given.causal.adds
    if hidden:
        lines += [f"    if ({' || '.join(hidden)})", "    {"]
        lines.append(f"        score {'+' if adds else ''}= {float_text(given.fill)};")
        if has_slope:
            lines.append("        slope = 0;")
        lines.append("    }")
    if given.bias is not None:
        lines.append(f"    score += {element(given.bias)};")
    return "\n".join([*lines, "    return score;", "}"])


def float_text(value: float) -> str:
    """A number as Slang text that keeps all of its bits."""
    return f"asfloat({struct.unpack('<I', struct.pack('<f', value))[0]:#x}u)"
