"""Attention of several heads with its projections."""

from __future__ import annotations

import math
from typing import Any

from vkml.ir import DType, dtypes
from vkml.nn import init
from vkml.nn.functional import scaled_dot_product_attention
from vkml.nn.functional.attention import attention_weights
from vkml.nn.functional.dropout import dropout
from vkml.nn.linear import Linear
from vkml.nn.module import Module, Parameter
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import empty, full, zeros


class MultiheadAttention(Module):
    """Attention of several heads (Vaswani et al., 2017).

    Args:
        embed_dim: features of queries and results.
        num_heads: heads, each of which has an equal share of the features.
        dropout: share of the weights that is dropped in training.
        bias: whether projections have biases.
        add_bias_kv: whether a learned key and value are added behind the others.
        add_zero_attn: whether a key and value of zeros are added behind the others.
        kdim: features of keys; `embed_dim` where left out.
        vdim: features of values; `embed_dim` where left out.
        batch_first: whether sequences are [batch, steps, features] instead of [steps, batch, features].
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False, device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got {embed_dim} and {num_heads}"
            )
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim must be divisible by num_heads: {embed_dim} and {num_heads}")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn

        def made(*sizes: int) -> Parameter:
            return Parameter(empty(*sizes, device=device, dtype=dtype))

        self._is_joined = self.kdim == embed_dim and self.vdim == embed_dim
        sizes = {"q_proj_weight": embed_dim, "k_proj_weight": self.kdim, "v_proj_weight": self.vdim}
        for name, size in sizes.items():
            self.register_parameter(name, None if self._is_joined else made(embed_dim, size))
        self.register_parameter("in_proj_weight", made(3 * embed_dim, embed_dim) if self._is_joined else None)
        self.register_parameter("in_proj_bias", made(3 * embed_dim) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.bias_k = made(1, 1, embed_dim) if add_bias_kv else None
        self.bias_v = made(1, 1, embed_dim) if add_bias_kv else None
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """As PyTorch begins."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The result, and the weights where they are wanted.

        Args:
            query: [rows, batch, embed_dim], [batch, rows, embed_dim] where `batch_first`, or without a batch.
            key: [keys, batch, kdim], likewise.
            value: [keys, batch, vdim], likewise.
            key_padding_mask: [batch, keys]: true where a key does not count, or floats that are added.
            need_weights: whether weights are returned; without them no scores are kept.
            attn_mask: [rows, keys] or [batch * heads, rows, keys]: true where a row does not see a key, or
                floats that are added.
            average_attn_weights: whether weights are the mean of all heads'.
            is_causal: says that `attn_mask` is the causal one, which then need not be read.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        has_batch = self._check(query, key, value, key_padding_mask)
        if not has_batch:
            query, key, value = (op.unsqueeze(x, 0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else op.unsqueeze(key_padding_mask, 0)
        elif not self.batch_first:
            query, key, value = (op.transpose(x, 0, 1) for x in (query, key, value))
        q, k, v = self._projected(query, key, value)
        batch, rows = query.shape[:2]
        has_more = self.bias_k is not None or self.add_zero_attn
        is_causal = is_causal and key_padding_mask is None and not need_weights and not has_more
        if is_causal:
            attn_mask = None
        more = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                op.cat([x, op.expand(bias, batch, 1, self.embed_dim)], 1)
                for x, bias in ((k, self.bias_k), (v, self.bias_v))
            )
            more += 1
        if self.add_zero_attn:
            nothing = zeros(batch, 1, self.embed_dim, dtype=k.dtype, device=k.device)
            k, v = op.cat([k, nothing], 1), op.cat([v, nothing], 1)
            more += 1
        heads = [
            op.transpose(op.reshape(x, batch, x.shape[1], self.num_heads, self.head_dim), 1, 2)
            for x in (q, k, v)
        ]
        keeps = self._mask(attn_mask, key_padding_mask, (batch, rows, key.shape[1]), more, q.dtype)
        dropped = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            weights = attention_weights(heads[0], heads[1], keeps, False, 1 / math.sqrt(self.head_dim))
            if dropped:
                weights = dropout(weights, dropped, True)
            found = op.matmul(weights, heads[2])
        else:
            found = scaled_dot_product_attention(heads[0], heads[1], heads[2], keeps, dropped, is_causal)
        made = self.out_proj(op.reshape(op.transpose(found, 1, 2), batch, rows, self.embed_dim))
        if weights is not None and average_attn_weights:
            weights = op.mean(weights, 1)
        if not has_batch:
            return op.squeeze(made, 0), None if weights is None else op.squeeze(weights, 0)
        return (made if self.batch_first else op.transpose(made, 0, 1)), weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> bool:
        """Whether there is a batch."""
        if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
            raise AssertionError(
                "query should be unbatched 2D or batched 3D tensor, and key and value likewise, but received "
                f"{query.ndim}-D, {key.ndim}-D and {value.ndim}-D"
            )
        sizes = ((query, self.embed_dim, "query"), (key, self.kdim, "key"), (value, self.vdim, "value"))
        for x, size, what in sizes:
            if x.shape[-1] != size:
                raise AssertionError(f"{what} has {x.shape[-1]} features, expected {size}")
        if padding is not None and padding.ndim != query.ndim - 1:
            raise AssertionError(f"key_padding_mask has {padding.ndim} axes, expected {query.ndim - 1}")
        return query.ndim == 3

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        bias = self.in_proj_bias
        if self._is_joined and query is key and key is value:
            return list(op.chunk(op.linear(query, self.in_proj_weight, bias), 3, -1))
        if self._is_joined:
            weights = op.chunk(self.in_proj_weight, 3, 0)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = [None] * 3 if bias is None else op.chunk(bias, 3, 0)
        return [
            op.linear(x, weight, part)
            for x, weight, part in zip((query, key, value), weights, biases, strict=True)
        ]

    def _mask(
        self,
        mask: Tensor | None,
        padding: Tensor | None,
        sizes: tuple[int, int, int],
        more: int,
        dtype: DType,
    ) -> Tensor | None:
        """What is true where a row sees a key, or added to scores: [batch or 1, heads or 1, rows, keys]."""
        batch, rows, keys = sizes
        given: list[Tensor] = []
        if mask is not None:
            shapes = ((rows, keys), (batch * self.num_heads, rows, keys))
            if tuple(mask.shape) not in shapes:
                raise RuntimeError(
                    f"The shape of the attn_mask is {list(mask.shape)}, but should be {list(shapes[0])} or "
                    f"{list(shapes[1])}."
                )
            given.append(
                op.reshape(mask, *((1, 1) if mask.ndim == 2 else (batch, self.num_heads)), rows, keys)
            )
        if padding is not None:
            given.append(op.reshape(padding, batch, 1, 1, keys))
        if not given:
            return None
        if all(x.dtype == dtypes.BOOL for x in given):
            hidden = given[0] if len(given) == 1 else op.logical_or(*given)
            found = op.logical_not(hidden)
            beyond: bool | float = True
        else:
            found = op.add(*(_added(x, dtype) for x in given)) if len(given) > 1 else _added(given[0], dtype)
            beyond = 0.0
        if not more:
            return found
        pads = full((*found.shape[:-1], more), beyond, dtype=found.dtype, device=found.device)
        return op.cat([found, pads], -1)


def _added(mask: Tensor, dtype: DType) -> Tensor:
    """A mask as numbers that are added to scores."""
    if mask.dtype != dtypes.BOOL:
        return mask.to(dtype)
    nothing = zeros(1, dtype=dtype, device=mask.device)
    made: Tensor = op.where(mask, -math.inf, nothing)
    return made
