"""Language models that are trained, written once for the layers of vkml's `nn` and of PyTorch's."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def character_transformer(
    layers: Any, vocabulary: int, width: int = 128, depth: int = 4, heads: int = 4, length: int = 64
) -> Any:
    """Characters to scores of the next one, as a decoder: no character sees those behind it.

    Args:
        layers: vkml's or PyTorch's `nn`.
        vocabulary: how many characters there are.
        width: features.
        depth: layers.
        heads: of attention.
        length: characters that it sees.
    """

    class Model(layers.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = layers.Embedding(vocabulary, width)
            self.position = layers.Embedding(length, width)
            self.layers = layers.ModuleList(
                [
                    layers.TransformerEncoderLayer(
                        width, heads, 4 * width, 0.0, batch_first=True, norm_first=True
                    )
                    for _ in range(depth)
                ]
            )
            self.norm = layers.LayerNorm(width)
            self.head = layers.Linear(width, vocabulary)
            mask = layers.Transformer.generate_square_subsequent_mask(length)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens) + self.position.weight
            for layer in self.layers:
                x = layer(x, src_mask=self.mask, is_causal=True)
            return self.head(self.norm(x)).flatten(0, 1)

    return Model()


def adding(layers: Any, hidden: int = 32) -> Any:
    """An LSTM that adds two numbers of a sequence, those that are marked (Hochreiter, Schmidhuber, 1997)."""

    class Model(layers.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = layers.LSTM(2, hidden, batch_first=True)
            self.head = layers.Linear(hidden, 1)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    return Model()


@dataclass(frozen=True)
class Llama:
    """Sizes of a decoder like Llama's."""

    vocabulary: int
    width: int
    depth: int
    heads: int
    key_heads: int
    inside: int
    length: int
    theta: float = 100_000.0
    eps: float = 1e-5


SMOLLM2_135M = Llama(49152, 576, 30, 9, 3, 1536, 512)


def llama(layers: Any, sizes: Llama) -> Any:
    """Tokens to scores of the next one: rotated positions, shared keys, RMSNorm, SwiGLU, a tied head.

    Weights are scaled so that a random model's scores are: normal of deviation 0.02, of what is added to the
    stream by the root of twice the depth less.
    """
    package = importlib.import_module(layers.__name__.rpartition(".")[0])
    each = sizes.width // sizes.heads

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cos + package.cat([-second, first], -1) * sin

    class Attention(layers.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.q_proj = layers.Linear(sizes.width, sizes.heads * each, bias=False)
            self.k_proj = layers.Linear(sizes.width, sizes.key_heads * each, bias=False)
            self.v_proj = layers.Linear(sizes.width, sizes.key_heads * each, bias=False)
            self.o_proj = layers.Linear(sizes.heads * each, sizes.width, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            batch, length, _ = x.shape
            q = self.q_proj(x).view(batch, length, sizes.heads, each).transpose(1, 2)
            k = self.k_proj(x).view(batch, length, sizes.key_heads, each).transpose(1, 2)
            v = self.v_proj(x).view(batch, length, sizes.key_heads, each).transpose(1, 2)
            found = layers.functional.scaled_dot_product_attention(
                rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True, enable_gqa=True
            )
            return self.o_proj(found.transpose(1, 2).reshape(batch, length, sizes.width))

    class SwiGLU(layers.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj = layers.Linear(sizes.width, sizes.inside, bias=False)
            self.up_proj = layers.Linear(sizes.width, sizes.inside, bias=False)
            self.down_proj = layers.Linear(sizes.inside, sizes.width, bias=False)

        def forward(self, x: Any) -> Any:
            return self.down_proj(layers.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(layers.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.input_layernorm = layers.RMSNorm(sizes.width, sizes.eps)
            self.self_attn = Attention()
            self.post_attention_layernorm = layers.RMSNorm(sizes.width, sizes.eps)
            self.mlp = SwiGLU()

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Model(layers.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = layers.Embedding(sizes.vocabulary, sizes.width)
            self.layers = layers.ModuleList([Layer() for _ in range(sizes.depth)])
            self.norm = layers.RMSNorm(sizes.width, sizes.eps)
            self.lm_head = layers.Linear(sizes.width, sizes.vocabulary, bias=False)
            self.lm_head.weight = self.embed_tokens.weight
            turns = np.arange(sizes.length)[:, None] / sizes.theta ** (np.arange(0, each, 2) / each)
            angles = np.concatenate([turns, turns], -1)
            for name, values in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
                self.register_buffer(name, package.tensor(values.astype(np.float32)), persistent=False)
            for name, value in self.named_parameters():
                if value.ndim == 2:
                    ends = name.endswith(("o_proj.weight", "down_proj.weight"))
                    layers.init.normal_(value, std=0.02 / math.sqrt(2 * sizes.depth) if ends else 0.02)

        def forward(self, tokens: Any) -> Any:
            x = self.embed_tokens(tokens)
            cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
            for layer in self.layers:
                x = layer(x, cos, sin)
            return self.lm_head(self.norm(x)).flatten(0, 1)

    return Model()


def lora(layers: Any, sizes: Llama = SMOLLM2_135M, r: int = 8, alpha: float = 16) -> Any:
    """Such a decoder of which only adapters of its projections are learned.

    PyTorch has no adapters: its layers are given the same ones, with parameters of the same names.
    """
    model = llama(layers, sizes)
    if hasattr(layers, "lora"):
        return layers.lora.apply(model, r, alpha, targets=PROJECTIONS)

    class LoraLinear(layers.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(x) + self.lora_B(self.lora_A(x)) * (alpha / r)

    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        if name.rpartition(".")[2] in PROJECTIONS:
            module.__class__ = LoraLinear
            module.lora_A = layers.Linear(module.in_features, r, bias=False)
            module.lora_B = layers.Linear(r, module.out_features, bias=False)
            layers.init.zeros_(module.lora_B.weight)
    return model
