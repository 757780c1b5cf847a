"""Draws the figures of docs/benchmarks.md as a picture: ``python tools/draw_speed.py`` writes docs/speed.svg.

Two tables become bars, how many times as fast as ONNX Runtime vkml is, one bar a model. A test compares the
picture with the tables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "speed.svg"
WIDTH, ROW, BAR = 900, 20, 13
LABELS, BARS = 142, 190
"""Widths of the models' names, and of the longest bar."""
FASTER, SLOWER, RULE, TEXT = "#2f7d4f", "#b5651d", "#888888", "#222222"


@dataclass(frozen=True)
class Panel:
    """A table, and which of its columns are drawn."""

    title: str
    heading: str
    """The beginning of the heading that the table stands under."""
    time: str
    ratio: str
    unit: str


PANELS = (
    Panel(
        "NVIDIA H200, beside ONNX Runtime CUDA",
        "### 2026-11-22, later: convolutions on matrix units",
        "vkml `high`",
        "ORT CUDA ÷ vkml",
        "µs",
    ),
    Panel("Two CPU cores, beside ONNX Runtime", "## Two CPU cores", "vkml", "ratio", "ms"),
)


@dataclass(frozen=True)
class Row:
    """A model's figures."""

    model: str
    time: str
    """That vkml takes, as the table has it."""
    ratio: float
    """ONNX Runtime's time over vkml's."""


def read_table(page: str, panel: Panel) -> list[Row]:
    """The first table under a panel's heading.

    Raises:
        ValueError: there is no such heading, or no such columns under it.
    """
    _, found, rest = page.partition(f"\n{panel.heading}")
    if not found:
        raise ValueError(f"docs/benchmarks.md has no heading {panel.heading!r}")
    lines = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    rows = [_cells(line) for line in lines[0].splitlines()] if lines else [[]]
    if not {panel.time, panel.ratio} <= set(rows[0]):
        raise ValueError(f"under {panel.heading!r} are no columns {panel.time!r} and {panel.ratio!r}")
    time, ratio = rows[0].index(panel.time), rows[0].index(panel.ratio)
    return [Row(row[0], row[time], float(row[ratio])) for row in rows[2:]]


def _cells(line: str) -> list[str]:
    return [cell.strip(" *") for cell in line.strip().strip("|").split("|")]


def draw(page: str) -> str:
    """The picture, as SVG.

    Args:
        page: the text of docs/benchmarks.md.
    """
    tables = [read_table(page, panel) for panel in PANELS]
    scale = BARS / max(row.ratio for table in tables for row in table)
    height = (max(map(len, tables)) + 2) * ROW + 10
    parts = [
        part
        for number, (panel, table) in enumerate(zip(PANELS, tables, strict=True))
        for part in _panel(panel, table, number * WIDTH // len(PANELS), scale)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" font-family="sans-serif" font-size="12" fill="{TEXT}">',
            "<title>How many times as fast as ONNX Runtime vkml is</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _panel(panel: Panel, table: Sequence[Row], left: int, scale: float) -> list[str]:
    start, first = left + LABELS, 2 * ROW + 4
    one = start + scale
    parts = [
        _text(left + 10, 18, panel.title, ' font-weight="bold" font-size="13"'),
        f'<line x1="{one:.1f}" y1="{first - 6}" x2="{one:.1f}" y2="{first + len(table) * ROW}" '
        f'stroke="{RULE}" stroke-dasharray="4 3"/>',
        _text(one, first - 10, "as fast", ' text-anchor="middle" font-size="10"'),
    ]
    for number, row in enumerate(table):
        y, end = first + number * ROW, start + row.ratio * scale
        colour = FASTER if row.ratio >= 1 else SLOWER
        parts += [
            _text(start - 6, y + 11, row.model, ' text-anchor="end"'),
            f'<rect x="{start}" y="{y}" width="{end - start:.1f}" height="{BAR}" fill="{colour}"/>',
            _text(max(end, one) + 5, y + 11, f"{row.ratio:.2f} × ({row.time} {panel.unit})"),
        ]
    return parts


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}"{style}>{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw((DOCS / "benchmarks.md").read_text(encoding="utf-8")), encoding="utf-8")
