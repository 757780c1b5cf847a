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
    """Numbers round an image in memory: rows above and below, columns left and right, planes beside it."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0
    fill: float = 0.0
    front: int = 0
    back: int = 0

    @classmethod
    def reached_by(cls, windows: Windows, fill: float = 0.0) -> Border:
        """What windows over up to three axes read outside of an image."""
        solid = windows.over(3)
        front, top, left = (max(0, size) for size in solid.pads_begin)
        back, bottom, right = (max(0, size) for size in solid.reach_end)
        return cls(top, bottom, left, right, fill, front, back)

    @property
    def begins(self) -> tuple[int, int, int]:
        """In front, above and left."""
        return self.front, self.top, self.left

    @property
    def ends(self) -> tuple[int, int, int]:
        """Behind, below and right."""
        return self.back, self.bottom, self.right

    def covers(self, other: Border) -> bool:
        pairs = zip((*self.begins, *self.ends), (*other.begins, *other.ends), strict=True)
        return self.fill == other.fill and all(mine >= theirs for mine, theirs in pairs)

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
            max(self.front, other.front),
            max(self.back, other.back),
        )

    @property
    def is_empty(self) -> bool:
        return not (any(self.begins) or any(self.ends))


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
    """[images, channels, (depth,) height, width]."""
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


def image_of(x: View, rank: int) -> View:
    """[images, channels, depth, height, width], without its depth of 1 where `rank` says two axes."""
    if rank == 3:
        return x
    return replace(x, shape=(*x.shape[:2], *x.shape[3:]), strides=(*x.strides[:2], *x.strides[3:]))


def places(view: View) -> View:
    """[images, channels, (depth, height,) width] over (image, (z,) y, x, channel)."""
    if len(view.shape) == 3:
        n, c, w = view.shape
        return replace(
            view, shape=(n, 1, w, c), strides=(view.strides[0], 0, view.strides[2], view.strides[1])
        )
    return view.transpose((0, *range(2, len(view.shape)), 1))
