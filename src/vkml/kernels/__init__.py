"""Templates of Vulkan kernels, one module a family, each imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vkml.kernels import attention as attention
    from vkml.kernels import attention_gradients as attention_gradients
    from vkml.kernels import block_product as block_product
    from vkml.kernels import byte_product as byte_product
    from vkml.kernels import conv as conv
    from vkml.kernels import conv_transpose as conv_transpose
    from vkml.kernels import decode_attention as decode_attention
    from vkml.kernels import gather as gather
    from vkml.kernels import index as index
    from vkml.kernels import matmul as matmul
    from vkml.kernels import pad as pad
    from vkml.kernels import pointwise as pointwise
    from vkml.kernels import pool as pool
    from vkml.kernels import recurrent as recurrent
    from vkml.kernels import reduce as reduce
    from vkml.kernels import reduction as reduction
    from vkml.kernels import resize as resize
    from vkml.kernels import roi_align as roi_align
    from vkml.kernels import rows as rows
    from vkml.kernels import scan as scan
    from vkml.kernels import scatter as scatter
    from vkml.kernels import top_k as top_k


def __getattr__(name: str) -> ModuleType:
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as missing:
        if missing.name != f"{__name__}.{name}":
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
