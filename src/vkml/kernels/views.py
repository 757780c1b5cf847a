"""Strided views of planned buffers: how Reshape, Transpose, Slice and Expand cost nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import field, replace
from enum import Enum

from vkml.dataclasses import dataclass
from vkml.ir import Constant, DType, TensorType
from vkml.ir.described import described
from vkml.ir.lazy import lazy
from vkml.ir.types import contiguous_strides

_serial = itertools.count()


class BufferKind(Enum):
    """Where a buffer's bytes live and who writes them."""

    INPUT = "input"  # written by the host before each run
    OUTPUT = "output"  # read by the host after each run
    CONSTANT = "constant"  # written once, at load
    ACTIVATION = "activation"  # between dispatches of one run
    STATUS = "status"  # the error word
    SIZES = "sizes"  # numbers computed from open sizes, written by the host when these are bound
    TABLE = "table"  # what a launch over several tensors reads of them, written by the host with its commands
    COUNTERS = "counters"  # zeros before the first run, and again when the launch that counts has ended
    POSITIONS = "positions"  # 0, 1, 2, … as int32, written once by the host


@dataclass(eq=False)
class Buffer:
    """A contiguous block of a plan's memory."""

    kind: BufferKind
    bytes: int
    name: str = ""
    constant: Constant | None = None
    host_only: bool = True
    """For OUTPUT: no kernel reads it, so it may live in host memory."""
    products: int = 0
    """By constant weights that read it, as far as the graph says: see `matrix_units.rule_of`."""
    serial: int = field(default_factory=_serial.__next__)

    @property
    def is_constant(self) -> bool:
        """Whether its bytes are known while a plan is made."""
        return self.kind is BufferKind.CONSTANT

    def __repr__(self) -> str:
        return f"Buffer({self.kind.value} {self.name!r} {self.bytes} B)"


@described
class View:
    """A strided window on a buffer; strides and offset count elements, a stride of 0 repeats."""

    buffer: Buffer
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @lazy
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    @lazy
    def elements(self) -> int:
        return math.prod(self.shape)

    @lazy
    def itemsize(self) -> int:
        return self.dtype.bytes_for(1)

    @property
    def is_contiguous(self) -> bool:
        expected = contiguous_strides(self.shape)
        return all(d == 1 or s == e for d, s, e in zip(self.shape, self.strides, expected, strict=True))

    @lazy
    def byte_offset(self) -> int:
        return self.offset * self.itemsize

    @lazy
    def byte_range(self) -> tuple[int, int]:
        """First byte touched and one past the last."""
        if self.elements == 0:
            return self.byte_offset, self.byte_offset
        low = high = self.offset
        for size, stride in zip(self.shape, self.strides, strict=True):
            if stride < 0:
                low += (size - 1) * stride
            else:
                high += (size - 1) * stride
        return low * self.itemsize, (high + 1) * self.itemsize

    @property
    def is_reversed(self) -> bool:
        """Whether some dimension runs backwards through memory."""
        return any(stride < 0 and size > 1 for size, stride in zip(self.shape, self.strides, strict=True))

    def forwards(self) -> tuple[View, int]:
        """The same elements with all dimensions forwards, and where among them this view's first one is."""
        above = sum(
            -stride * (size - 1) for size, stride in zip(self.shape, self.strides, strict=True) if stride < 0
        )
        strides = tuple(abs(stride) for stride in self.strides)
        return replace(self, strides=strides, offset=self.offset - above), above

    def on(self, buffer: Buffer) -> View:
        """The same window on another buffer, with what is known of this one already."""
        made = object.__new__(View)
        fields = made.__dict__
        fields.update(self.__dict__)
        fields["buffer"] = buffer
        return made

    def transpose(self, order: Sequence[int]) -> View:
        shape, strides = tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order)
        return View(self.buffer, self.dtype, shape, strides, self.offset)

    def expand(self, shape: Sequence[int]) -> View:
        """Broadcasts to `shape` (which must be reachable by NumPy's rules)."""
        lead = len(shape) - len(self.shape)
        if not lead and self.shape == shape:
            return self
        strides = [0] * lead
        for have, want, stride in zip(self.shape, shape[lead:], self.strides, strict=True):
            assert have == want or have == 1, (self.shape, shape)
            strides.append(stride if have == want else 0)
        return View(self.buffer, self.dtype, tuple(shape), tuple(strides), self.offset)

    def slice(self, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> View:
        offset = self.offset + sum(a * s for a, s in zip(starts, self.strides, strict=True))
        strides = tuple(s * step for s, step in zip(self.strides, steps, strict=True))
        return View(self.buffer, self.dtype, tuple(shape), strides, offset)

    def seen_as(self, dtype: DType) -> View:
        """The same bits as elements of another type that has as many."""
        return replace(self, dtype=dtype)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """The same elements in another shape, or None where strides cannot say it."""
        shape = tuple(shape)
        if math.prod(shape) == 0:
            return replace(self, shape=shape, strides=contiguous_strides(shape))
        # Merge the view's dimensions into maximal contiguous runs, then split the runs into the new shape.
        runs: list[tuple[int, int]] = []
        for size, stride in zip(self.shape, self.strides, strict=True):
            if size == 1:
                continue
            if runs and runs[-1][1] == size * stride:
                runs[-1] = (runs[-1][0] * size, stride)
            else:
                runs.append((size, stride))
        strides = [0] * len(shape)
        axis = len(shape) - 1
        for size, stride in reversed(runs):
            covered = 1
            while covered < size:
                if axis < 0:
                    return None
                if shape[axis] != 1:
                    strides[axis] = stride * covered
                    covered *= shape[axis]
                axis -= 1
            if covered != size:
                return None
        return View(self.buffer, self.dtype, shape, tuple(strides), self.offset)


def contiguous(buffer: Buffer, type_: TensorType, offset: int = 0) -> View:
    """The whole of a buffer as a row-major tensor."""
    return View(buffer, type_.dtype, type_.dims, type_.strides, offset)


def collapse(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Merges neighbouring dimensions that every operand walks as one; drops dimensions of size 1.

    Args:
        shape: the index space.
        strides: one sequence of strides an operand, each as long as `shape`.

    Returns:
        The smaller index space and the operands' strides over it (at least one dimension is left).
    """
    sizes: list[int] = []
    walks: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        steps = [s[axis] for s in strides]
        if sizes and all(walk[-1] == size * step for walk, step in zip(walks, steps, strict=True)):
            sizes[-1] *= size
            for walk, step in zip(walks, steps, strict=True):
                walk[-1] = step
        else:
            sizes.append(size)
            for walk, step in zip(walks, steps, strict=True):
                walk.append(step)
    if not sizes:
        sizes = [1]
        walks = [[0] for _ in strides]
    return tuple(sizes), tuple(tuple(walk) for walk in walks)
