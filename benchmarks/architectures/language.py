"""Networks over tokens: an encoder, a decoder with a past, a recurrent tagger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Encoder(nn.Module):
    """As Hugging Face writes BERT: a mask of tokens, looked up by numbers of rows and columns."""

    def __init__(self, vocabulary: int = 2000, width: int = 256, heads: int = 4, blocks: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.kinds = nn.Embedding(2, width)
        self.positions = nn.Embedding(512, width)
        self.register_buffer("numbers", torch.arange(512)[None], persistent=False)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList([_EncoderBlock(width, heads) for _ in range(blocks)])
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens: Tensor, mask: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        batch, length = tokens.shape
        positions = self.positions(self.numbers[:, :length])
        x = self.norm(self.words(tokens) + self.kinds(kinds) + positions)
        rows = torch.arange(batch)[:, None, None, None]
        columns = torch.arange(length)[None, None, None, :]
        is_seen = mask.bool()[rows, columns].expand(batch, 1, length, length)
        for block in self.blocks:
            x = block(x, is_seen)
        return x, torch.tanh(self.pooler(x[:, 0]))


class _EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.inside, self.outside = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, is_seen: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=is_seen)
        x = self.first(x + self.output(mixed.transpose(1, 2).reshape(batch, length, width)))
        return self.second(x + self.outside(functional.gelu(self.inside(x))))


class _RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class _DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int, shared: int, inside: int) -> None:
        super().__init__()
        self.heads, self.shared, self.each = heads, shared, width // heads
        self.first, self.second = _RootMeanSquare(width), _RootMeanSquare(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, shared * self.each, bias=False)
        self.value = nn.Linear(width, shared * self.each, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inside, bias=False), nn.Linear(width, inside, bias=False)
        self.down = nn.Linear(inside, width, bias=False)

    def _repeated(self, x: Tensor) -> Tensor:
        batch, _, length, each = x.shape
        times = self.heads // self.shared
        x = x[:, :, None].expand(batch, self.shared, times, length, each)
        return x.reshape(batch, self.heads, length, each)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, width = x.shape
        normal = self.first(x)
        q = self.query(normal).view(batch, length, self.heads, self.each).transpose(1, 2)
        k = self.key(normal).view(batch, length, self.shared, self.each).transpose(1, 2)
        v = self.value(normal).view(batch, length, self.shared, self.each).transpose(1, 2)
        q, k = _turned(q, cos, sin), _turned(k, cos, sin)
        k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        scores = q @ self._repeated(k).transpose(2, 3) / math.sqrt(self.each) + mask
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
        mixed = (weights @ self._repeated(v)).transpose(1, 2).reshape(batch, length, width)
        x = x + self.output(mixed)
        normal = self.second(x)
        return x + self.down(functional.silu(self.gate(normal)) * self.up(normal)), k, v


class Decoder(nn.Module):
    """As Hugging Face writes Llama: shared keys, rotated positions, RMSNorm, SwiGLU, keys and values kept."""

    def __init__(
        self,
        vocabulary: int = 4000,
        width: int = 384,
        heads: int = 6,
        shared: int = 2,
        inside: int = 1024,
        blocks: int = 4,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([_DecoderBlock(width, heads, shared, inside) for _ in range(blocks)])
        self.norm = _RootMeanSquare(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        each = width // heads
        self.register_buffer("speeds", 1 / 10000 ** (torch.arange(0, each, 2) / each), persistent=False)

    def forward(self, tokens: Tensor, mask: Tensor, positions: Tensor, *past: Tensor) -> Sequence[Tensor]:
        batch, length = tokens.shape
        total = mask.shape[1]
        x = self.words(tokens)
        angles = (self.speeds[None, :, None].float() @ positions[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        least = torch.finfo(x.dtype).min
        rows = torch.arange(total - length, total)
        hidden = torch.full((length, total), least)
        hidden = hidden * (torch.arange(total) > rows[:, None])
        hidden = hidden[None, None].expand(batch, 1, length, total).clone()
        is_padding = (hidden + mask[:, None, None, :]) == 0
        hidden = hidden.masked_fill(is_padding, least)
        made: list[Tensor] = []
        for at, block in enumerate(self.blocks):
            x, key, value = block(x, cos, sin, hidden, (past[2 * at], past[2 * at + 1]))
            made += [key, value]
        return self.head(self.norm(x)), *made


class Tagger(nn.Module):
    """Words through a bidirectional LSTM and a GRU, and a class for each."""

    def __init__(
        self, vocabulary: int = 2000, width: int = 128, hidden: int = 128, classes: int = 20
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(2 * hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x, _ = self.gru(self.lstm(self.words(tokens))[0])
        scores = torch.log_softmax(self.head(x), -1)
        return scores, scores.argmax(-1)


def decoder_inputs(past: int, new: int, generator: torch.Generator, blocks: int = 4) -> tuple[Any, ...]:
    """Tokens, a mask, positions, and keys and values of the past."""
    tokens = torch.randint(0, 4000, (1, new), generator=generator)
    kept = [torch.randn(1, 2, past, 64, generator=generator) for _ in range(2 * blocks)]
    return tokens, torch.ones(1, past + new, dtype=torch.int64), torch.arange(past, past + new)[None], *kept
