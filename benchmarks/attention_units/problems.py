"""The attentions that are measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """softmax(Q · Kᵀ / √head_size) · V for every head of every batch."""

    label: str
    heads: int
    queries: int
    keys: int
    head_size: int
    batch: int = 1
    group: int = 1
    """Heads of queries that share one of keys and values."""
    is_causal: bool = False
    causal_offset: int = 0
    """Causal, row r sees the keys up to r + causal_offset."""
    are_rows_outside: bool = False
    """Memory holds (batch, rows, heads, columns) instead of (batch, heads, rows, columns)."""

    @property
    def scale(self) -> float:
        return float(self.head_size**-0.5)

    @property
    def kv_heads(self) -> int:
        return self.heads // self.group

    @property
    def operations(self) -> int:
        """Of both products, without what no row sees."""
        seen = self.queries * self.keys
        if self.is_causal:
            seen = sum(min(max(row + self.causal_offset + 1, 0), self.keys) for row in range(self.queries))
        return 4 * self.batch * self.heads * seen * self.head_size

    def shape(self, rows: int, heads: int) -> tuple[int, int, int, int]:
        """Of a tensor in memory."""
        inner = (rows, heads) if self.are_rows_outside else (heads, rows)
        return (self.batch, *inner, self.head_size)

    def strides(self, rows: int, heads: int) -> tuple[int, int, int]:
        """Of batch, head and row, in elements."""
        size = self.head_size
        if self.are_rows_outside:
            return rows * heads * size, size, heads * size
        return rows * heads * size, rows * size, size


LARGE = Problem("16 × 4096 × 128", 16, 4096, 4096, 128)
SUITES: dict[str, tuple[Problem, ...]] = {
    "large": (
        LARGE,
        Problem("16 × 4096 × 64", 16, 4096, 4096, 64),
        Problem("16 × 4096 × 128, causal", 16, 4096, 4096, 128, is_causal=True),
        Problem("16 × 4096 × 64, causal", 16, 4096, 4096, 64, is_causal=True),
    ),
    "ragged": (
        Problem("16 × 4001 × 128, keys 4003", 16, 4001, 4003, 128),
        Problem("32 of 8 × 4096 × 128, causal", 32, 4096, 4096, 128, group=4, is_causal=True),
        Problem("16 × 4096 × 80", 16, 4096, 4096, 80),
        Problem("8 × 4096 × 256", 8, 4096, 4096, 256),
    ),
    "models": (
        Problem("bert b8 s512", 12, 512, 512, 64, batch=8, are_rows_outside=True),
        Problem("bert b1 s128", 12, 128, 128, 64, are_rows_outside=True),
        Problem("vit b1", 12, 197, 197, 64, are_rows_outside=True),
        Problem("gpt2 s256", 12, 256, 256, 64, is_causal=True, are_rows_outside=True),
    ),
}
