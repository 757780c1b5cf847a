"""Scaled dot product attention as a function of tensors."""

from __future__ import annotations

import math

import numpy as np

from vkml.ir import dtypes
from vkml.ir.size import is_number
from vkml.nn.functional.dropout import dropout
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import arange
from vkml.tracing import Traced, apply_all, constant


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(scale · Q Kᵀ, masked) V (Vaswani et al., 2017).

    It is one operation, which devices with matrix units run as one kernel that keeps no scores.

    Args:
        query: [..., rows, features].
        key: [..., keys, features].
        value: [..., keys, columns].
        attn_mask: broadcast to [..., rows, keys]: bools say which keys a row sees, floats are added to the
            scores. A row that sees none becomes 0.
        dropout_p: share of the weights that is dropped, whatever the mode of a module is.
        is_causal: whether a row sees the keys up to its own number; not beside a mask.
        scale: 1 / √features where it is left out.
        enable_gqa: whether several heads of queries share one of keys and values: the third axis from the
            end of the query is a multiple of theirs.

    Returns:
        [..., rows, columns].

    Raises:
        RuntimeError: types or shapes do not fit, or there are a mask and `is_causal`.
    """
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got "
            f"{query.dtype.numpy_name}, {key.dtype.numpy_name} and {value.dtype.numpy_name}"
        )
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise RuntimeError("scaled_dot_product_attention: queries, keys and values have at least two axes")
    if is_causal and attn_mask is not None:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
    if not 0 <= dropout_p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {dropout_p}")
    group = _group(query, key, value) if enable_gqa else 1
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    seen = None
    if attn_mask is not None and attn_mask.dtype == dtypes.BOOL:
        # Rows that see nothing see everything, and are 0 afterwards: nothing of theirs is NaN.
        seen = op.any(attn_mask, -1, keepdim=True)
        attn_mask = op.logical_or(attn_mask, op.logical_not(seen))
    elif attn_mask is not None:
        if not attn_mask.dtype.is_float:
            raise RuntimeError(f"attn_mask is of bools or floats, not of {attn_mask.dtype.numpy_name}")
        attn_mask = attn_mask.to(query.dtype)
    if dropout_p > 0:
        key, value = (op.repeat_interleave(x, group, -3) if group > 1 else x for x in (key, value))
        weights = attention_weights(query, key, attn_mask, is_causal, factor)
        found = op.matmul(dropout(weights, dropout_p), value)
    else:
        found = _fused(query, key, value, attn_mask, is_causal, factor, group)
    return found if seen is None else op.where(seen, found, 0.0)


def _group(query: Tensor, *shared: Tensor) -> int:
    """How many heads of queries share one of keys and values."""
    heads = {x.shape[-3] if x.ndim > 2 else 0 for x in shared}
    [count] = heads if len(heads) == 1 else [0]
    if query.ndim < 3 or not count or query.shape[-3] % count:
        shapes = " and ".join(str(list(x.shape)) for x in shared)
        raise RuntimeError(
            f"enable_gqa: {list(query.shape)} queries do not share the heads of {shapes} evenly"
        )
    return int(query.shape[-3] // count)


def _fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float, group: int
) -> Tensor:
    given: list[Traced | None] = [x.value for x in (query, key, value)]
    more = None if mask is None else mask.value
    attributes = {"scale": scale, "group": group, **({"causal_offset": 0} if is_causal else {})}
    is_mask = mask is not None and mask.dtype == dtypes.BOOL
    given += [more] if is_mask else [None, more]
    # The second output is for gradients: what nobody reads is not computed.
    return Tensor(apply_all("Attention", given, 2, "vkml", **attributes)[0])


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """What of each value a row gets, [..., rows, keys]; see `scaled_dot_product_attention`."""
    scores = op.mul(op.matmul(query, op.transpose(key, -2, -1)), scale)
    if is_causal:
        rows, keys = scores.shape[-2:]
        mask = Tensor(_triangle(rows, keys))
    if mask is not None and mask.dtype == dtypes.BOOL:
        scores = op.where(mask, scores, -math.inf)
    elif mask is not None:
        scores = op.add(scores, mask)
    return op.softmax(scores, -1)


def _triangle(rows: int, keys: int) -> Traced:
    if is_number(rows) and is_number(keys):
        return constant(np.tri(rows, keys, dtype=np.bool_), dtypes.BOOL)
    places = [arange(size) for size in (rows, keys)]
    return op.le(places[1], op.unsqueeze(places[0], 1)).value
