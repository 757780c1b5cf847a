"""Drawings of boxes, lines and texts, written as SVG or, by Pillow, as PNG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from html import escape
from pathlib import Path

from vkml.cli.guard import UsageError
from vkml.cli.terminal import SPELLED, printable
from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument
from vkml.pictures import pillow

MOST_PIXELS = 100_000_000
"""Of a .png."""
FONT = "DejaVu Sans, Verdana, Arial, sans-serif"
CHARACTER = 0.62
"""Width of a character over its size, at most, of nearly all texts."""
_COLOURS = (
    "#8ecae6", "#ffb703", "#a7c957", "#f4a6a0", "#cdb4db", "#90dbc4", "#e9c46a", "#b8c0ff", "#d4a373",
    "#f9c6d7", "#bde0fe", "#ccd5ae",
)  # fmt: skip
"""Light enough for black texts on them."""


_SPELLED = str.maketrans(SPELLED)
"""Pillow's own font lacks these."""


@dataclass(frozen=True)
class Box:
    """A filled rectangle; `note` is what is shown when one points at it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    note: str = ""
    outline: str = "#555555"


@dataclass(frozen=True)
class Label:
    """A text; `y` is its base line, `x` its beginning, or its middle."""

    x: float
    y: float
    text: str
    size: float = 12
    is_centred: bool = False
    fill: str = "#111111"
    is_bold: bool = False


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    fill: str = "#888888"
    width: float = 1
    has_arrow: bool = False


@dataclass
class Drawing:
    """Shapes, in the order in which they are drawn, on white."""

    width: float
    height: float
    shapes: list[Box | Label | Line] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Writes a file, of the kind that its name's ending says.

        Raises:
            UsageError: the ending is neither .svg nor .png.
            MissingPackage: a .png needs Pillow.
        """
        check_drawing(path)
        if path.suffix.lower() == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        else:
            self._write_png(path)

    def svg(self) -> str:
        """The drawing as a document of its own."""
        width, height = f"{self.width:.0f}", f"{self.height:.0f}"
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" font-family="{FONT}">',
                '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
                'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#888888"/></marker></defs>',
                f'<rect width="{width}" height="{height}" fill="white"/>',
                *map(_element, self.shapes),
                "</svg>\n",
            ]
        )

    def _write_png(self, path: Path) -> None:
        if self.width * self.height > MOST_PIXELS:
            size = f"{self.width:.0f}×{self.height:.0f}"
            raise InvalidArgument(f"{path}: a picture of {size} pixels is too large; .svg has no such limit")
        image = pillow()
        from PIL import ImageDraw, ImageFont

        picture = image.new("RGB", (round(self.width), round(self.height)), "white")
        draw = ImageDraw.Draw(picture)
        for shape in self.shapes:
            if isinstance(shape, Box):
                corner = shape.x + max(shape.width, 1), shape.y + shape.height
                outline = shape.outline if shape.width > 2 else None
                draw.rectangle((shape.x, shape.y, *corner), fill=shape.fill, outline=outline)
            elif isinstance(shape, Line):
                draw.line(shape.points, fill=shape.fill, width=round(shape.width))
                if shape.has_arrow:
                    x, y = shape.points[-1]
                    draw.polygon([(x, y), (x - 3, y - 6), (x + 3, y - 6)], fill=shape.fill)
            else:
                font, anchor = ImageFont.load_default(shape.size), "ms" if shape.is_centred else "ls"
                text = printable(shape.text, keep="").translate(_SPELLED)
                draw.text((shape.x, shape.y), text, fill=shape.fill, font=font, anchor=anchor)
        picture.save(path)


def _element(shape: Box | Label | Line) -> str:
    if isinstance(shape, Box):
        place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{max(shape.width, 0.3):.2f}"'
        outline = f' stroke="{shape.outline}" stroke-width="0.5"' if shape.width > 2 else ""
        note = f"<title>{_text(shape.note)}</title>" if shape.note else ""
        return f'<rect {place} height="{shape.height:.1f}" fill="{shape.fill}"{outline}>{note}</rect>'
    if isinstance(shape, Label):
        style = ' text-anchor="middle"' if shape.is_centred else ""
        style += ' font-weight="bold"' if shape.is_bold else ""
        place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size:g}" fill="{shape.fill}"'
        return f"<text {place}{style}>{_text(shape.text)}</text>"
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
    arrow = ' marker-end="url(#arrow)"' if shape.has_arrow else ""
    stroke = f'fill="none" stroke="{shape.fill}" stroke-width="{shape.width:g}"'
    return f'<polyline points="{points}" {stroke}{arrow}/>'


def _text(text: str) -> str:
    """A text in a document: names may hold characters that XML has no place for."""
    return escape(printable(text))


def fitting(text: str, width: float, size: float) -> str:
    """A text cut to a width; "" where not even three characters would be left."""
    room = int(width / (size * CHARACTER))
    if len(text) <= room:
        return text
    return f"{text[: room - 1]}…" if room >= 3 else ""


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name; those that come first, of which there are a dozen, share theirs with few."""
    return {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(dict.fromkeys(names))}


def check_drawing(path: Path | None) -> None:
    """`UsageError` where a file's ending is no drawing's: before the work, not behind it."""
    if path is not None and path.suffix.lower() not in (".svg", ".png"):
        raise UsageError(f"{path}: drawings are written as .svg or .png")


def legend(
    fills: Mapping[str, str], x: float, y: float, width: float
) -> tuple[list[Box | Label | Line], float]:
    """Names beside their colours, from a place on, in rows of a width; and where they end."""
    shapes: list[Box | Label | Line] = []
    left = x
    for name, fill in fills.items():
        need = 24 + len(name) * 11 * CHARACTER
        if left > x and left + need > x + width:
            left, y = x, y + 18
        shapes += [Box(left, y, 10, 10, fill), Label(left + 14, y + 9, name, 11)]
        left += need
    return shapes, y + 18
