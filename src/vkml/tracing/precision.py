"""How exactly products of float32 tensors are computed."""

from __future__ import annotations

from vkml.errors import InvalidArgument
from vkml.precisions import PRECISIONS

current = "high"


def set_float32_matmul_precision(precision: str) -> None:
    """States how exactly products of float32 tensors, and convolutions, are computed from now on.

    Args:
        precision: "highest" for all bits of float32; "high", the default, for errors no greater than those
            of TF32 on any operands, where there is a kernel for that, and all bits elsewhere; "medium",
            PyTorch's name for less, is computed as "high".
    """
    global current
    if precision not in PRECISIONS:
        raise InvalidArgument(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}")
    current = precision


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` stated."""
    return current
