"""Learning curves as pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vkml.errors import InvalidArgument, NoSuchFile

_UNSHOWN = ("epoch", "lr", "seconds", "samples_per_second")
_COLOURS = ("#1f5fa8", "#d1600f")
"""Training's and validation's: apart for all kinds of colour vision, and in grey."""


def require_package() -> Any:
    """The package that draws.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "learning curves need the package 'matplotlib': pip install 'vkml[plot]'"
        ) from error
    return matplotlib


def draw_curves(rows: list[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Draws a panel for the loss and each metric: training's curve, and validation's in the same panel.

    Args:
        rows: of a history.
        path: of the picture, whose ending says of which type.

    Raises:
        ImportError: matplotlib is not installed.
        InvalidArgument: there are no rows, or no such type of picture.
        NoSuchFile: there is no such folder.
    """
    require_package()
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    place = Path(path)
    if not place.parent.is_dir():
        raise NoSuchFile(f"there is no folder {str(place.parent)!r} to draw {place.name!r} in")
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in _UNSHOWN]
    shown = list(dict.fromkeys(name.removeprefix("val_") for name in names))
    panels = [
        name
        for name in shown
        if any(isinstance(row.get(f"{v}{name}"), float) for row in rows for v in ("", "val_"))
    ]
    if not panels:
        raise InvalidArgument("there is no epoch to draw yet")
    # A figure of its own, without pyplot: no window system, no state of the process's.
    figure = Figure(
        figsize=(min(4.8 * len(panels), 14.4), 3.6 * -(-len(panels) // 3)), layout="constrained", dpi=120
    )
    grid = figure.subplots(-(-len(panels) // 3), min(len(panels), 3), squeeze=False)
    for axes, name in zip(grid.flat, panels, strict=False):
        for prefix, label, colour in (("", "training", _COLOURS[0]), ("val_", "validation", _COLOURS[1])):
            points = [
                (row["epoch"], row[prefix + name])
                for row in rows
                if isinstance(row.get(prefix + name), float)
            ]
            if points:
                style = {"marker": "o", "markersize": 4} if len(points) < 25 else {}
                axes.plot(*zip(*points, strict=True), label=label, color=colour, linewidth=1.6, **style)
        axes.set_title(name, loc="left", fontsize=11)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if len(axes.lines) > 1:
            axes.legend(frameon=False, fontsize=9)
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    try:
        figure.savefig(place)
    except ValueError as error:
        raise InvalidArgument(f"{str(place)!r} cannot be drawn: {error}") from None
