"""Tables, units and JSON as the commands print them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cli.terminal import PrintableStream, printable
from vkml.ir.dtypes import from_numpy

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Array = np.ndarray[Any, Any]

PLAIN_WIDTH = 200
"""Columns where the output is no terminal: tables must not be cut to 80 there."""


def console(*, stderr: bool = False) -> Console:
    """A rich console for names as they come.

    It shows them as text, neither cuts tables in files and pipes nor hides that a pipe's reader went away.
    """
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text, keep=""), **options)

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    file: Any = stream.unescaped if isinstance(stream, PrintableStream) else stream
    return PlainConsole(file=file, width=width, highlight=False, emoji=False)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table; the columns named in `right` are flush right."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def show_table(out: Console, rows: Table, title: str = "") -> None:
    """Prints a table, its title on a line of its own (rich would fold it to the table's width)."""
    if title:
        out.print(title, style="bold", markup=False, soft_wrap=True)
    out.print(rows, markup=False)
    out.print()


def show_lines(out: Console, lines: Iterable[str]) -> None:
    """Prints lines that fit the console already, each as it is."""
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints one JSON document, the only thing on the standard output."""
    print(json.dumps(value, indent=2, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)


def plain(array: Array) -> Array:
    """The array in one of NumPy's own types: what others add (bfloat16, int4, …) in one that has its numbers.

    Files of other types are read back as bytes without a meaning.
    """
    dtype = from_numpy(array.dtype)
    if dtype.is_native:
        return array
    return array.astype(np.float32 if dtype.is_float else np.int8 if dtype.kind == "i" else np.uint8)
