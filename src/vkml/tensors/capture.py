"""What a function that is captured reads and writes of tensors that there were before."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from vkml.dataclasses import dataclass
from vkml.errors import CaptureError
from vkml.ir.size import in_program
from vkml.tracing import Traced
from vkml.tracing.value import mode, next_serial, tensor_type

if TYPE_CHECKING:
    import numpy as np

    from vkml.tensors.tensor import Tensor
    from vkml.vulkan import Device


@dataclass(frozen=True)
class CapturedNumber:
    """A number of the program that each run of a capture reads anew.

    Attributes:
        leaf: what stands for it in what is recorded.
        read: the number now.
    """

    leaf: Traced
    read: Callable[[], float]


@dataclass(frozen=True)
class CapturedPart:
    """A part of an array of the host that each run of a capture cuts out anew, without copying it.

    Attributes:
        leaf: what stands for it in what is recorded, on the device that it is for.
        whole: what it is a part of: of an argument, or of a tensor that there was before.
        index: which part.
    """

    leaf: Traced
    whole: Traced
    index: tuple[slice, ...]


class Capture:
    """What a function that is captured reads and writes of tensors that there were before.

    Attributes:
        start: what is applied from now on has a serial above it.
        made: tensors that were made since, by identity.
        read: known tensors that there were before, and the values that they had.
        written: those that were written, by identity, and the values that they had.
        graded: tensors that were given gradients.
        numbers: of the program, that are read anew in each run.
        parts: of arrays, that are cut out anew in each run.
        indices: values whose elements may not be negative, and what says so.
        guards: say whether a run would still do what was captured; otherwise the function is captured anew.
        structures: likewise; otherwise the function runs as it is written once, as at first.
        modules: that were called, by identity.
        endings: called, by whoever left them there, when the function has returned and is still captured.
        restored: called when everything has the values of before.
    """

    def __init__(self) -> None:
        self.start = next_serial()
        self.made: dict[int, weakref.ref[Tensor]] = {}
        self.read: list[tuple[Tensor, Traced]] = []
        self.written: dict[int, tuple[Tensor, Traced]] = {}
        self.graded: dict[int, Tensor] = {}
        self.numbers: list[CapturedNumber] = []
        self.parts: dict[Any, CapturedPart] = {}
        self.indices: list[tuple[Traced, str]] = []
        self.guards: list[Callable[[], bool]] = []
        self.structures: list[Callable[[], bool]] = []
        self.modules: dict[int, weakref.ref[Any]] = {}
        self.endings: dict[int, Callable[[], None]] = {}
        self.restored: list[Callable[[], None]] = []

    def part(self, whole: Traced, index: tuple[slice, ...], device: Device | None) -> Traced:
        """A part of an array of the host, for a device, which nobody has to compute.

        Args:
            whole: known, of the CPU.
            index: which part.
            device: None for the CPU.
        """
        key = id(whole), id(device), *[(each.start, each.stop) for each in index]
        found = self.parts.get(key)
        if found is None:
            array = cast("np.ndarray[Any, Any]", whole.data)[index]
            leaf = Traced(tensor_type(whole.type.dtype, array.shape), device, array)
            found = self.parts[key] = CapturedPart(leaf, whole, index)
        return found.leaf

    def restore(self) -> None:
        """Gives what was written the values of before, and takes gradients away."""
        for tensor, before in self.written.values():
            tensor._restore(before)
        for tensor in self.graded.values():
            tensor.grad = None
        for act in self.restored:
            act()


class _Captures(threading.local):
    latest: Capture | None = None


captures = _Captures()


def is_capturing() -> bool:
    """Whether what this thread does with tensors is captured, and nothing is computed."""
    return captures.latest is not None


@contextlib.contextmanager
def capture() -> Iterator[Capture]:
    """Has this thread compute nothing and note what tensors are read and written.

    What runs within it is a program that takes sizes for numbers (`in_program`).

    Raises:
        CaptureError: within another capture.
    """
    if captures.latest is not None:
        raise CaptureError("a captured function cannot capture another one")
    found = captures.latest = Capture()
    mode.captures = True
    try:
        with in_program():
            yield found
    finally:
        captures.latest, mode.captures = None, False


@contextlib.contextmanager
def uncaptured() -> Iterator[None]:
    """What is made in it counts as there before a capture that is going on, whose runs go on from it."""
    latest, captures.latest, mode.captures = captures.latest, None, False
    try:
        yield
    finally:
        captures.latest, mode.captures = latest, latest is not None
