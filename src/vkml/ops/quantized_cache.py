"""Keys and values that are kept as integers of 8 or 4 bits from call to call of an attention."""

from __future__ import annotations

import math

from vkml.errors import InvalidGraph, NotImplemented
from vkml.ir.dtypes import INT8, INT32, INT64, UINT8, DType
from vkml.ir.gradients import Emitter, T, converted, padded, reshaped, sliced, zeros
from vkml.ir.graph import Node
from vkml.ir.types import TensorType

_KINDS = ("NONE", "PER_TENSOR", "PER_CHANNEL")
_MIDDLE = 8
"""What stands for 0 in 4 bits, of which the even column has the lower half of a byte."""


def check_quantization(node: Node, what: str, has_scale: bool) -> None:
    """Raises `InvalidGraph` where attributes say nothing sensible of keys ("k") or values ("v").

    Args:
        node: with `k_quant_type`, `v_quant_type` and `kv_cache_bit_width`.
        what: is kept.
        has_scale: whether there is a scale of it.
    """
    kind, bits = node.attributes[f"{what}_quant_type"], node.attributes["kv_cache_bit_width"]
    if kind not in _KINDS:
        raise InvalidGraph(f"{node.label}: {what}_quant_type is one of {', '.join(_KINDS)}, not {kind!r}")
    if kind != "NONE" and bits not in (4, 8):
        raise InvalidGraph(f"{node.label}: kv_cache_bit_width is 4 or 8, not {bits}")
    if (kind != "NONE") != has_scale:
        there = "there" if has_scale else "not there"
        raise InvalidGraph(f"{node.label}: {what}_quant_type is {kind}, and {what}_scale is {there}")


def is_quantized(node: Node, what: str) -> bool:
    """Whether keys ("k") or values ("v") are kept as integers."""
    return bool(node.attributes[f"{what}_quant_type"] != "NONE")


def cache_dtype(node: Node, what: str, plain: DType) -> DType:
    """The element type of what is kept, `plain` where it is not quantised."""
    if not is_quantized(node, what):
        return plain
    return INT8 if node.attributes["kv_cache_bit_width"] == 8 else UINT8


def packed_columns(node: Node, what: str, columns: int) -> int:
    """How many elements of what is kept hold a head's columns."""
    if not is_quantized(node, what) or node.attributes["kv_cache_bit_width"] == 8:
        return columns
    if columns % 2:
        raise NotImplemented(f"{node.label}: {columns} columns of 4 bits are no whole bytes")
    return columns // 2


def scale_count(node: Node, what: str, columns: int) -> int:
    """How many scales there are for so many columns of all heads."""
    return columns if node.attributes[f"{what}_quant_type"] == "PER_CHANNEL" else 1


def with_room(build: Emitter[T], past: T | None, now: T, keys: int) -> T:
    """What was kept, or nothing, with room for all rows of a call behind so many keys.

    Args:
        build: the emitter.
        past: (batch, heads, places, columns), or None.
        now: what is to be kept of this call's rows.
        keys: that count in the end.
    """
    batch, heads, rows, columns = build.type_of(now).dims
    if past is None:
        return zeros(build, TensorType(build.type_of(now).dtype, (batch, heads, keys + rows, columns)))
    room = build.type_of(past).dims[2]
    return padded(build, past, (0, 0, 0, 0), (0, 0, max(room, keys) + rows - room, 0))


def quantized(build: Emitter[T], node: Node, x: T, scale: T) -> T:
    """Keys or values as they are kept: divided by their scales, rounded to even, bounded."""
    dtype, dims = build.type_of(x).dtype, build.type_of(x).dims
    steps = build.apply("Round", build.apply("Div", x, _aligned(build, scale, dims, dtype)))
    is_byte = node.attributes["kv_cache_bit_width"] == 8
    bounds = (-128, 127) if is_byte else (-_MIDDLE, _MIDDLE - 1)
    steps = build.apply("Clip", steps, *(build.constant(each, dtype) for each in bounds))
    if is_byte:
        return converted(build, steps, INT8)
    codes = converted(build, build.apply("Add", steps, build.constant(_MIDDLE, dtype)), INT32)
    pairs = reshaped(build, codes, (*dims[:-1], dims[-1] // 2, 2))
    even, odd = (sliced(build, pairs, 4, at, at + 1) for at in range(2))
    upper = build.apply("Mul", odd, build.constant(16, INT32))
    both = reshaped(build, build.apply("Add", even, upper), (*dims[:-1], dims[-1] // 2))
    return converted(build, both, UINT8)


def dequantized(build: Emitter[T], node: Node, codes: T, scale: T, like: T) -> T:
    """Keys or values of what is kept, in the type of `like`."""
    dtype, dims = build.type_of(like).dtype, build.type_of(codes).dims
    if node.attributes["kv_cache_bit_width"] == 8:
        steps = converted(build, codes, dtype)
    else:
        lower = build.apply("BitwiseAnd", codes, build.constant(15, UINT8))
        upper = build.apply("BitShift", codes, build.constant(4, UINT8), direction="RIGHT")
        axis = build.constant([-1], INT64)
        halves = [build.apply("Unsqueeze", converted(build, x, dtype), axis) for x in (lower, upper)]
        dims = (*dims[:-1], 2 * dims[-1])
        steps = reshaped(build, build.apply("Concat", *halves, axis=-1), dims)
        steps = build.apply("Sub", steps, build.constant(_MIDDLE, dtype))
    return build.apply("Mul", steps, _aligned(build, scale, dims, dtype))


def _aligned(build: Emitter[T], scale: T, dims: tuple[int, ...], dtype: DType) -> T:
    """Scales as they broadcast with (batch, heads, rows, columns)."""
    count = math.prod(build.type_of(scale).dims)
    shape = (1, 1, 1, 1) if count == 1 else (1, dims[1], 1, dims[3])
    return reshaped(build, converted(build, scale, dtype), shape)
