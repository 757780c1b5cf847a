"""What tensors look like in text, as PyTorch writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass

Array = np.ndarray[Any, Any]


@dataclass
class _Options:
    """How tensors are written, by the names that `set_printoptions` has.

    Attributes:
        precision: digits behind the point.
        threshold: elements beyond which only the ends of axes are written.
        edgeitems: how many at each end.
        linewidth: characters.
        sci_mode: whether powers of ten are written; by the numbers where None.
    """

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_options = _Options()
_PROFILES = {
    "default": _Options(),
    "short": _Options(precision=2, edgeitems=2),
    "full": _Options(threshold=math.inf),
}


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Changes how tensors are written, as `torch.set_printoptions`; what is left out stays as it is.

    Args:
        precision: digits behind the point; 4 at first.
        threshold: elements beyond which only the ends of axes are written; 1000 at first.
        edgeitems: how many at each end; 3 at first.
        linewidth: characters of a line; 80 at first.
        profile: "default", "short" or "full", in place of all that is not stated.
        sci_mode: whether powers of ten are written; where left out the numbers decide.
    """
    if profile is not None:
        if profile not in _PROFILES:
            raise ValueError(f"there is no profile {profile!r} (known: {', '.join(_PROFILES)})")
        vars(_options).update(vars(_PROFILES[profile]))
    stated = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    vars(_options).update({name: value for name, value in stated.items() if value is not None})
    _options.sci_mode = sci_mode


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
            if _options.sci_mode is not None:
                self.is_exponential = _options.sci_mode
            self.width = max(len(self._plain(one)) for one in flat[np.isfinite(flat) & (flat != 0)].tolist())

    def _plain(self, value: float) -> str:
        if self.is_exponential:
            return f"{value:.{_options.precision}e}"
        if self.is_whole:
            return f"{value:.0f}" + ("." if math.isfinite(value) else "")
        return f"{value:.{_options.precision}f}"

    def __call__(self, value: Any) -> str:
        return (str(value) if self.kind in "biu" else self._plain(float(value))).rjust(self.width)


def _ends(elements: Array) -> Array:
    """The elements that are written of a tensor of many."""
    for axis, size in enumerate(elements.shape):
        if size > 2 * _options.edgeitems:
            places = [*range(_options.edgeitems), *range(size - _options.edgeitems, size)]
            elements = np.take(elements, places, axis)
    return elements


def _written(elements: Array, indent: int, is_long: bool, form: _Format | _Complex) -> str:
    if not elements.ndim:
        return form(elements[()])
    is_cut = is_long and elements.shape[0] > 2 * _options.edgeitems
    if elements.ndim == 1:
        each = [form(one) for one in (elements[: _options.edgeitems] if is_cut else elements)]
        if is_cut:
            each += [" ...", *(form(one) for one in elements[-_options.edgeitems :])]
        a_line = max(1, (_options.linewidth - indent) // (form.width + 2))
        lines = [", ".join(each[at : at + a_line]) for at in range(0, len(each), a_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    rows = [*elements[: _options.edgeitems], *elements[-_options.edgeitems :]] if is_cut else [*elements]
    parts = [_written(row, indent + 1, is_long, form) for row in rows]
    if is_cut:
        parts.insert(_options.edgeitems, "...")
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
    is_long = elements.size > _options.threshold
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
        if length + len(note) + 2 > _options.linewidth:
            found += ",\n" + " " * indent + note
            length = indent + len(note)
        else:
            found += ", " + note
            length += len(note) + 2
    return found + ")"
