"""How values of machine code lie in memory: borders, channels last, views as kernels see them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from vkml.cpu.native.expression import Access
from vkml.dataclasses import dataclass
from vkml.ir import DType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.windows import Windows
from vkml.kernels.views import Buffer, View
from vkml.lowering.native_body import ELEMENTS, require_element

Array = np.ndarray[Any, Any]
Argument = View | Buffer


@dataclass(frozen=True)
class Border:
    """Numbers round an image in memory, in rows above and below, columns left and right."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0
    fill: float = 0.0

    @classmethod
    def reached_by(cls, windows: Windows, fill: float = 0.0) -> Border:
        """What windows over one or two axes read outside of an image."""
        planar = windows.over(2)
        (top, left), (bottom, right) = planar.pads_begin, planar.reach_end
        return cls(max(0, top), max(0, bottom), max(0, left), max(0, right), fill)

    def covers(self, other: Border) -> bool:
        return (
            self.fill == other.fill
            and self.top >= other.top
            and self.bottom >= other.bottom
            and self.left >= other.left
            and self.right >= other.right
        )

    def joined(self, other: Border) -> Border:
        """The larger of both on every side; where the fills differ, that of the one with zeros."""
        if self.fill != other.fill and not (self.is_empty or other.is_empty):
            return self if self.fill == 0.0 else other
        return Border(
            max(self.top, other.top),
            max(self.bottom, other.bottom),
            max(self.left, other.left),
            max(self.right, other.right),
            other.fill if self.is_empty else self.fill,
        )

    @property
    def is_empty(self) -> bool:
        return not (self.top or self.bottom or self.left or self.right)


@dataclass(frozen=True)
class Layouts:
    """How values of a program are to lie in memory, decided before any node is lowered."""

    channels_last: frozenset[str] = frozenset()
    borders: Mapping[str, Border] = field(default_factory=dict)
    """What convolutions that read a value want round it."""


@dataclass(frozen=True)
class Bordered:
    """A buffer that holds an image with a border; the border is written once, before the first run."""

    inside: View
    """[images, channels, height, width]."""
    border: Border


def require_floats(*views: View) -> None:
    """Refuses what templates do not compute with; float16 they widen."""
    for view in views:
        if view.dtype not in (dtypes.FLOAT32, dtypes.FLOAT16):
            raise CannotLower(f"machine code for this operator computes with float32, not {view.dtype.name}")


def access_of(view: View) -> Access:
    require_element(view.type)
    return Access(view.strides, ELEMENTS[view.dtype])


@functools.cache
def is_stored(dtype: DType) -> bool:
    """Whether machine code can move elements of a type, computing apart: one each 1, 2, 4 or 8 bytes."""
    return dtype != dtypes.STRING and not dtype.is_packed and dtype.itemsize <= 8


def word_of(view: View) -> Access:
    """A view for copies: its elements as numbers without a meaning."""
    return Access(view.strides, f"uint{8 * view.itemsize}")


def lane_type(dtype: DType) -> DType:
    """The type of the 32 bits in which an epilogue computes elements of a type."""
    if dtype.bits > 32:
        raise CannotLower(f"an epilogue in machine code has lanes of 32 bits, too few for {dtype.name}")
    if dtype.is_float:
        return dtypes.FLOAT32
    return dtypes.UINT32 if dtype == dtypes.BOOL else dtypes.INT32


def is_narrow(view: View) -> bool:
    """Whether machine code reads and writes elements as lanes of 32 bits; not one that is for all lanes."""
    return view.itemsize < 4 and view.dtype in ELEMENTS and any(view.strides)


def seen_as_lanes(view: View) -> View:
    """4-byte elements as those kernels see them whose lanes are floats, mostly."""
    return replace(view, dtype=dtypes.FLOAT32)


def plane(x: View) -> View:
    """[images, channels, 1, height, width] without its depth."""
    return replace(x, shape=(*x.shape[:2], *x.shape[3:]), strides=(*x.strides[:2], *x.strides[3:]))


def places(view: View) -> View:
    """[images, channels, (height,) width] over (image, y, x, channel)."""
    if len(view.shape) == 3:
        n, c, w = view.shape
        return replace(
            view, shape=(n, 1, w, c), strides=(view.strides[0], 0, view.strides[2], view.strides[1])
        )
    return view.transpose((0, 2, 3, 1))
