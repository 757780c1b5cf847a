"""What became of a training, epoch by epoch."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vkml.errors import NoSuchFile

Row = dict[str, Any]


class History:
    """Rows of numbers, one an epoch.

    Attributes:
        epochs: the rows: ``"epoch"`` (from 1), ``"loss"``, metrics, ``"val_loss"`` and so on, ``"lr"``,
            ``"seconds"`` and ``"samples_per_second"``.
        stopped: why training ended before its last epoch, None where it did not.
        is_interrupted: whether Ctrl-C ended it.
        is_captured: whether steps were captured by `vkml.jit`.

    Example:
        >>> import numpy as np, vkml
        >>> x = np.linspace(-1, 1, 64, dtype=np.float32)[:, None]
        >>> history = vkml.fit(vkml.nn.Linear(1, 1), (x, 3 * x), "mse", "sgd", epochs=2, progress=False)
        >>> len(history), history["loss"][1] < history["loss"][0]
        (2, True)
    """

    def __init__(self, epochs: list[Row] | None = None) -> None:
        self.epochs: list[Row] = [] if epochs is None else epochs
        self.stopped: str | None = None
        self.is_interrupted = False
        self.is_captured = False

    def __len__(self) -> int:
        return len(self.epochs)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.epochs)

    def __getitem__(self, name: str) -> list[Any]:
        """A column by its name, None where a row has no such number."""
        if self.epochs and not any(name in row for row in self.epochs):
            raise KeyError(f"there is no column {name!r} (there are {', '.join(self.columns())})")
        return [row.get(name) for row in self.epochs]

    def __repr__(self) -> str:
        latest = f", {_shown(self.epochs[-1])}" if self.epochs else ""
        return f"History({len(self.epochs)} epochs{latest})"

    def columns(self) -> list[str]:
        """The names of all columns, in the order in which they came."""
        return list(dict.fromkeys(name for row in self.epochs for name in row))

    def best(self, name: str = "val_loss", mode: str | None = None) -> Row:
        """The row in which a column is best.

        Args:
            name: of the column.
            mode: "min" or "max"; by the name where left out, as `better` decides.

        Raises:
            KeyError: there is no such column.
        """
        rows = [row for row in self.epochs if row.get(name) == row.get(name) and row.get(name) is not None]
        if not rows:
            raise KeyError(f"no epoch has a number {name!r} (there are {', '.join(self.columns())})")
        return (max if is_greater_better(name, mode) else min)(rows, key=lambda row: row[name])

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows as a table with a line of names on top.

        Args:
            path: of the file, which is written anew.

        Raises:
            NoSuchFile: there is no such folder.
        """
        with opened_for_text(path) as file:
            table = csv.DictWriter(file, self.columns())
            table.writeheader()
            table.writerows(self.epochs)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws loss and metrics over the epochs, into a file of the type that its name ends with.

        Args:
            path: of the file, which is written anew.

        Raises:
            ImportError: the package `matplotlib` is not installed.
            NoSuchFile: there is no such folder.
        """
        from vkml.training.plotting import draw_curves

        draw_curves(self.epochs, path)


def _shown(row: Row) -> str:
    return ", ".join(f"{name}={value:.4g}" for name, value in row.items() if isinstance(value, float))


_GREATER = ("accuracy", "top", "f1", "precision", "recall", "r2", "auc")


def is_greater_better(name: str, mode: str | None = None) -> bool:
    """Whether a column improves by growing.

    Args:
        name: of the column.
        mode: "min" or "max" where that is stated; else accuracies and their like grow, and all else falls.

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in (None, "min", "max"):
        raise ValueError(f"mode is 'min', 'max' or None, not {mode!r}")
    if mode is not None:
        return mode == "max"
    return any(word in name.removeprefix("val_").lower() for word in _GREATER)


def opened_for_text(path: str | os.PathLike[str], mode: str = "w") -> Any:
    """A text file that is written.

    Raises:
        NoSuchFile: there is no such folder.
    """
    place = Path(path)
    if not place.parent.is_dir():
        raise NoSuchFile(f"there is no folder {str(place.parent)!r} to write {place.name!r} in")
    return open(place, mode, encoding="utf-8", newline="")
