"""Transformers: encoders and decoders of attention and two-layer perceptrons (Vaswani et al., 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from vkml.ir import DType
from vkml.nn import functional, init
from vkml.nn.attention import MultiheadAttention
from vkml.nn.containers import ModuleList
from vkml.nn.dropout import Dropout
from vkml.nn.linear import Linear
from vkml.nn.module import Module
from vkml.nn.normalization import LayerNorm
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.creation import full
from vkml.tensors.promotion import get_default_dtype

Activation = str | Callable[[Tensor], Tensor]


def _activation(given: Activation) -> Callable[[Tensor], Tensor]:
    if not isinstance(given, str):
        return given
    if given not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {given}")
    found: Callable[[Tensor], Tensor] = getattr(functional, given)
    return found


class _Layer(Module):
    """What layers of encoders and decoders have in common: the perceptron, and norms round what they add."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int, dropout: float, activation: Activation,
        layer_norm_eps: float, batch_first: bool, norm_first: bool, bias: bool, device: Any,
        dtype: DType | None, parts: int,
    ) -> None:  # fmt: skip
        super().__init__()
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        for name in ("self_attn", "multihead_attn")[: parts - 1]:
            module = MultiheadAttention(
                d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **placed
            )
            setattr(self, name, module)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **placed)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **placed)
        self.norm_first = norm_first
        for number in range(1, parts + 1):
            setattr(self, f"norm{number}", LayerNorm(d_model, layer_norm_eps, bias=bias, **placed))
        for number in range(1, parts + 1):
            setattr(self, f"dropout{number}", Dropout(dropout))
        self.activation = _activation(activation)

    def _around(self, x: Tensor, number: int, block: Callable[[Tensor], Tensor]) -> Tensor:
        """What a block adds to its input, which is normed before it or behind the sum."""
        norm = getattr(self, f"norm{number}")
        if self.norm_first:
            return op.add(x, block(norm(x)))
        made: Tensor = norm(op.add(x, block(x)))
        return made

    def _perceptron(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))  # type: ignore[no-any-return]


class TransformerEncoderLayer(_Layer):
    """Self-attention and a perceptron.

    Args:
        d_model: features.
        nhead: heads.
        dim_feedforward: features within the perceptron.
        dropout: share that is dropped in training: of weights, within the perceptron, of what is added.
        activation: of the perceptron: "relu", "gelu" or a function of a tensor.
        layer_norm_eps: of the norms.
        batch_first: whether sequences are [batch, steps, features] instead of [steps, batch, features].
        norm_first: whether inputs of blocks are normed, instead of sums.
        bias: whether linear layers and norms have biases.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = functional.relu, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first,
            bias, device, dtype, 2,
        )  # fmt: skip

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """A sequence like `src`.

        Args:
            src: the sequence.
            src_mask: `attn_mask` of its attention.
            src_key_padding_mask: `key_padding_mask` of its attention.
            is_causal: says that `src_mask` is the causal one.
        """

        def attend(x: Tensor) -> Tensor:
            found = self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0]
            return self.dropout1(found)  # type: ignore[no-any-return]

        x = self._around(src, 1, attend)
        return self._around(x, 2, lambda x: self.dropout2(self._perceptron(x)))


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to what an encoder has made, and a perceptron.

    Arguments as for `TransformerEncoderLayer`.
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = functional.relu, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first,
            bias, device, dtype, 3,
        )  # fmt: skip

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """A sequence like `tgt`.

        Args:
            tgt: the sequence.
            memory: what the encoder has made.
            tgt_mask: `attn_mask` of the attention to itself.
            memory_mask: of that to the memory.
            tgt_key_padding_mask: `key_padding_mask` of the attention to itself.
            memory_key_padding_mask: of that to the memory.
            tgt_is_causal: says that `tgt_mask` is the causal one.
            memory_is_causal: says that `memory_mask` is.
        """

        def attend(x: Tensor) -> Tensor:
            found = self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]
            return self.dropout1(found)  # type: ignore[no-any-return]

        def look(x: Tensor) -> Tensor:
            found = self.multihead_attn(
                x, memory, memory, memory_key_padding_mask, False, memory_mask, is_causal=memory_is_causal
            )[0]
            return self.dropout2(found)  # type: ignore[no-any-return]

        x = self._around(self._around(tgt, 1, attend), 2, look)
        return self._around(x, 3, lambda x: self.dropout3(self._perceptron(x)))


class TransformerEncoder(Module):
    """Copies of an encoder's layer, one after the other.

    Args:
        encoder_layer: is copied.
        num_layers: how often.
        norm: applied to the result.
        enable_nested_tensor: is taken for PyTorch's sake; sequences stay padded.
        mask_check: likewise.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
        enable_nested_tensor: bool = True, mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = ModuleList([deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """A sequence like `src`; see `TransformerEncoderLayer`.

        Args:
            src: the sequence.
            mask: `attn_mask` of each layer's attention.
            src_key_padding_mask: `key_padding_mask` of it.
            is_causal: says that `mask` is the causal one.
        """
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, bool(is_causal))
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """Copies of a decoder's layer, one after the other.

    Args:
        decoder_layer: is copied.
        num_layers: how often.
        norm: applied to the result.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([deepcopy(decoder_layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """A sequence like `tgt`; arguments as of `TransformerDecoderLayer.forward`."""
        x = tgt
        for layer in self.layers:
            x = layer(
                x, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                bool(tgt_is_causal), memory_is_causal,
            )  # fmt: skip
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """An encoder and a decoder.

    Args:
        d_model: features.
        nhead: heads.
        num_encoder_layers: of the encoder.
        num_decoder_layers: of the decoder.
        dim_feedforward: features within perceptrons.
        dropout: share that is dropped in training.
        activation: of perceptrons.
        custom_encoder: instead of the encoder.
        custom_decoder: instead of the decoder.
        layer_norm_eps: of the norms.
        batch_first: whether the batch is the first axis.
        norm_first: whether inputs of blocks are normed, instead of sums.
        bias: whether linear layers and norms have biases.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = functional.relu,
        custom_encoder: Module | None = None, custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        stated: dict[str, Any] = {
            "dim_feedforward": dim_feedforward, "dropout": dropout, "activation": activation,
            "layer_norm_eps": layer_norm_eps, "batch_first": batch_first, "norm_first": norm_first,
            "bias": bias, **placed,
        }  # fmt: skip

        def norm() -> Module:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, **placed)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(d_model, nhead, **stated), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(d_model, nhead, **stated), num_decoder_layers, norm()
        )
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None, tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """A sequence like `tgt`.

        Args:
            src: the encoder's sequence.
            tgt: the decoder's.
            src_mask: see `TransformerEncoderLayer`.
            tgt_mask: see `TransformerDecoderLayer`, also of the others.
            memory_mask: of the decoder.
            src_key_padding_mask: of the encoder.
            tgt_key_padding_mask: of the decoder.
            memory_key_padding_mask: of the decoder.
            src_is_causal: of the encoder.
            tgt_is_causal: of the decoder.
            memory_is_causal: of the decoder.
        """
        batch = 0 if self.batch_first else 1
        if src.ndim != tgt.ndim or (src.ndim == 3 and src.shape[batch] != tgt.shape[batch]):
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(  # type: ignore[no-any-return]
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
            tgt_is_causal, memory_is_causal,
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: DType | None = None) -> Tensor:
        """What hides later steps: 0 on and below the diagonal, -∞ above, [sz, sz].

        Args:
            sz: steps.
            device: where it is; the CPU where left out.
            dtype: of its elements; None: the default type.
        """
        kind = dtype or get_default_dtype()
        return full((sz, sz), -math.inf, dtype=kind, device=device).triu(1)
