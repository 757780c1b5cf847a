"""What tensors look like in text, as PyTorch writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PRECISION = 4
MOST_ELEMENTS = 1000
"""Beyond these only the ends of axes are written."""
EDGE = 3
LINE = 80


class _Complex:
    """How complex numbers are written: both parts as wide as the widest."""

    def __init__(self, elements: Array) -> None:
        self.real, self.imag = _Format(elements.real), _Format(elements.imag)
        self.width = self.real.width + self.imag.width + 2

    def __call__(self, value: Any) -> str:
        imaginary = self.imag(value.imag).lstrip()
        sign = "" if imaginary.startswith("-") else "+"
        return f"{self.real(value.real)}{sign}{imaginary}j"


class _Format:
    """How the elements of an array are written: as wide as the widest, with a fraction where one has any."""

    def __init__(self, elements: Array) -> None:
        self.kind = elements.dtype.kind
        self.is_whole = self.is_exponential = False
        if self.kind in "biu":
            self.width = max((len(str(one)) for one in elements.reshape(-1).tolist()), default=1)
            return
        flat = elements.reshape(-1).astype(np.float64)
        numbers = np.abs(flat[np.isfinite(flat) & (flat != 0)])
        self.is_whole = bool((numbers == np.ceil(numbers)).all())
        self.width = 1
        if numbers.size:
            least, most = float(numbers.min()), float(numbers.max())
            with np.errstate(over="ignore"):
                is_wide = most / least > 1000 if least else True
            self.is_exponential = is_wide or most > 1e8 or (not self.is_whole and least < 1e-4)
            self.width = max(len(self._plain(one)) for one in flat[np.isfinite(flat) & (flat != 0)].tolist())

    def _plain(self, value: float) -> str:
        if self.is_exponential:
            return f"{value:.{PRECISION}e}"
        if self.is_whole:
            return f"{value:.0f}" + ("." if math.isfinite(value) else "")
        return f"{value:.{PRECISION}f}"

    def __call__(self, value: Any) -> str:
        return (str(value) if self.kind in "biu" else self._plain(float(value))).rjust(self.width)


def _ends(elements: Array) -> Array:
    """The elements that are written of a tensor of many."""
    for axis, size in enumerate(elements.shape):
        if size > 2 * EDGE:
            places = [*range(EDGE), *range(size - EDGE, size)]
            elements = np.take(elements, places, axis)
    return elements


def _written(elements: Array, indent: int, is_long: bool, form: _Format | _Complex) -> str:
    if not elements.ndim:
        return form(elements[()])
    is_cut = is_long and elements.shape[0] > 2 * EDGE
    if elements.ndim == 1:
        each = [form(one) for one in (elements[:EDGE] if is_cut else elements)]
        if is_cut:
            each += [" ...", *(form(one) for one in elements[-EDGE:])]
        a_line = max(1, (LINE - indent) // (form.width + 2))
        lines = [", ".join(each[at : at + a_line]) for at in range(0, len(each), a_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    rows = [*elements[:EDGE], *elements[-EDGE:]] if is_cut else [*elements]
    parts = [_written(row, indent + 1, is_long, form) for row in rows]
    if is_cut:
        parts.insert(EDGE, "...")
    return "[" + ("," + "\n" * (elements.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


def text_of(name: str, elements: Array, notes: Sequence[str]) -> str:
    """A tensor as a call of a function of a name.

    Args:
        name: "tensor".
        elements: all of them.
        notes: what stands behind them, as in ``"dtype=vkml.float64"``.
    """
    prefix = f"{name}("
    indent = len(prefix)
    is_long = elements.size > MOST_ELEMENTS
    widened = elements if elements.dtype.kind in "biufc" else elements.astype(np.float32)
    if not elements.size:
        body = "[]"
    else:
        shown = _ends(widened) if is_long else widened
        form = _Complex(shown) if shown.dtype.kind == "c" else _Format(shown)
        body = _written(widened, indent, is_long, form)
    found = prefix + body
    length = len(found) - found.rfind("\n") + 1
    for note in notes:
        if length + len(note) + 2 > LINE:
            found += ",\n" + " " * indent + note
            length = indent + len(note)
        else:
            found += ", " + note
            length += len(note) + 2
    return found + ")"
