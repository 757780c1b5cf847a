"""A traced value: data, or what an operator is going to make of other traced values."""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from enum import Enum
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vkml.engine.device_array import DeviceArray, dtype_of, place_array
from vkml.errors import InvalidDevice
from vkml.ir import DType, Node, Operator, TensorType
from vkml.ir.size import is_deciding

if TYPE_CHECKING:
    from vkml.vulkan import Device

Array = np.ndarray[Any, Any]
MOST_ON_HOST = 64 << 20
"""Bytes of values that a device reads from the host once: larger ones would need as much more there."""
_serials = itertools.count()


def tensor_type(dtype: DType, shape: tuple[int, ...]) -> TensorType:
    """One object for all values of a type, where sizes are known."""
    return TensorType(dtype, shape) if is_deciding() else _known_type(dtype, shape)


@functools.lru_cache(maxsize=1 << 14)
def _known_type(dtype: DType, shape: tuple[int, ...]) -> TensorType:
    return TensorType(dtype, shape)


def next_serial() -> int:
    """A number greater than those of all applications that there are."""
    return next(_serials)


class Kind(Enum):
    """What is known of a value when it is recorded."""

    DATA = 0
    """Elements that differ from run to run."""
    CONSTANT = 1
    """Elements that belong to the structure: shapes, axes."""
    NUMBER = 2
    """A number of the program's text, the same in most runs."""

    __hash__ = object.__hash__  # Enum's own is a function of Python's


class Call:
    """A call of a function that is several applications here, and one operator with a gradient in PyTorch.

    Args:
        name: of the function.
    """

    __slots__ = ("name", "saved", "serial")

    def __init__(self, name: str) -> None:
        self.name = name
        self.serial = next_serial()
        """What it applies has a serial above it."""
        self.saved: list[tuple[str, TensorType, Version]] = []
        """What PyTorch keeps for its gradient: what it is called, its type and version. Not the value, which
        would stay, or refer to the call."""

    def save(self, label: str, value: Traced) -> None:
        """Notes that PyTorch keeps a value for the gradient."""
        self.saved.append((label, value.type, value.shared_version()))


class _Mode(threading.local):
    tracks = True
    finds_anomalies = False
    finds_nan = False
    captures = False
    infers = False
    call: Call | None = None


mode = _Mode()
"""Whether what this thread records keeps its history for gradients, whether these are looked through,
whether it is captured, to run again for other data, whether what it makes is for no gradients at all, and
the call that it is part of."""


@contextlib.contextmanager
def tracking(is_on: bool) -> Iterator[None]:
    """Has what is recorded in the context keep its history for gradients, or not."""
    before = mode.tracks
    mode.tracks = is_on
    try:
        yield
    finally:
        mode.tracks = before


Origin = tuple[CodeType, int]
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_is_own: dict[str, bool] = {}
"""By the name of a file: a code's own hash is computed anew each time."""
_FILES_KEPT = 1 << 14


def origin() -> Origin | None:
    """The code outside of vkml that is being run, and how far it has come."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        own = _is_own.get(file)
        if own is None:
            if len(_is_own) >= _FILES_KEPT:
                _is_own.clear()
            own = _is_own[file] = file.startswith(_PACKAGE)
        if not own:
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


def place_of(origin: Origin | None) -> str:
    """A place in a program, and its line: ``a.py:12 in step: return x @ y``; empty where it is not known."""
    if origin is None:
        return ""
    code, at = origin
    lines = [line for start, end, line in code.co_lines() if start <= at < end and line is not None]
    line = lines[0] if lines else code.co_firstlineno
    text = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_filename}:{line} in {code.co_name}" + (f": {text}" if text else "")


class Version:
    """Elements that tensors share, until one of these changes them in place.

    A value is never overwritten, but PyTorch's would be: what was applied to it before is what PyTorch
    refuses gradients of, where they read it.
    """

    # No slots, no constructor: most are never written, and one that is not takes 60 ns to make.
    changed_from = 0
    """What was applied with a serial below it read the elements as they were before; 0: they are as ever."""
    origin: Origin | None = None
    """Where the program changed them."""
    latest: ClassVar[int] = 0
    """The greatest `changed_from` of all: what was applied from there on read nothing that was changed."""

    def change(self, start: int) -> None:
        """Notes that elements are changed in place.

        Args:
            start: what is applied for the change itself, to the elements of before, has no serial below it.
        """
        self.changed_from, self.origin = start, origin()
        Version.latest = max(Version.latest, start)


class Application:
    """An operator applied to values."""

    __slots__ = (
        "_kept", "_outputs", "call", "changed", "depth", "device", "inputs", "is_free", "node", "operator",
        "origin", "serial", "tracks", "types",
    )  # fmt: skip

    def __init__(
        self, node: Node, operator: Operator, inputs: tuple[Traced | None, ...], types: Sequence[TensorType]
    ) -> None:
        self.node = node
        """Normalised; one for all that do the same, its values' names stand for nothing."""
        self.operator = operator
        self.inputs = inputs
        self.types = types
        """Of the outputs."""
        self.serial = next_serial()
        """Greater than those of all that it reads."""
        self.device = device_of(inputs)
        self.tracks = False
        """Whether gradients flow through it."""
        self.origin = origin()
        """Where the program applied it."""
        self.depth = 1
        """Of what has to be computed before it is known."""
        self.is_free = True
        """Whether it is made of constants alone, so that it is computed wherever it is needed."""
        keeps = mode.tracks
        for value in inputs:
            if value is not None:
                if keeps and value.tracks:
                    self.tracks = True
                if value.data is None and value.application is not None:
                    self.depth = max(self.depth, value.application.depth + 1)
                if not value.is_free:
                    self.is_free = False
        self.call: Call | None = mode.call if self.tracks else None
        """That it is part of, if gradients flow through it."""
        self._outputs: list[weakref.ref[Traced] | None] = [None] * len(types)
        self._kept: tuple[Traced, ...] = ()
        self.changed: dict[int, Version] | None = None
        """Of outputs that were changed in place, whether they still live or not."""

    @classmethod
    def again(
        cls, node: Node, operator: Operator, inputs: tuple[Traced | None, ...], types: Sequence[TensorType],
        device: Device | None, is_free: bool, where: Origin | None,
    ) -> Application:  # fmt: skip
        """One that keeps no history and is like another one, of which what it would find out is known.

        Args:
            node: as of that one, like what follows.
            operator: likewise.
            inputs: its own.
            types: of its outputs.
            device: of its inputs.
            is_free: as that one is.
            where: the program applies it.
        """
        made = cls.__new__(cls)
        made.node, made.operator, made.inputs, made.types = node, operator, inputs, types
        made.serial = next_serial()
        made.device, made.is_free, made.origin = device, is_free, where
        made.tracks, made.depth = False, 1
        for value in inputs:
            if value is not None and value.data is None and value.application is not None:
                made.depth = max(made.depth, value.application.depth + 1)
        made._outputs, made._kept, made.changed, made.call = [None] * len(types), (), None, None
        return made

    @property
    def sources(self) -> tuple[Traced | None, ...]:
        """What its gradients flow to: the inputs, unless the program says otherwise."""
        return self.inputs

    def kept_outputs(self) -> tuple[Traced, ...]:
        """All of its outputs, which live as long as it does from now on."""
        self._kept = self._kept or tuple([self.output(at) for at in range(len(self.types))])
        return self._kept

    def known_output(self, at: int) -> Traced | None:
        """One of its outputs, where anything refers to it."""
        found = self._outputs[at]
        return found() if found is not None else None

    def output(self, at: int) -> Traced:
        """One of its outputs."""
        value = self.known_output(at)
        if value is None:
            value = Traced(self.types[at], self.device, None, self, at)
            value.tracks = self.tracks and value.type.dtype.is_inexact
            if self.changed is not None:
                value.version = self.changed.get(at)
            self._outputs[at] = weakref.ref(value)
        return value


class Joined(Application):
    """Values whose gradient the program states: computed, each is one that has been recorded.

    Args:
        operator: whose `vjp` gives the cotangents of `sources`; of nodes nothing is known to it.
        made: the values.
        sources: what gradients flow to.
    """

    __slots__ = ("_sources",)

    def __init__(self, operator: Operator, made: Sequence[Traced], sources: Sequence[Traced | None]) -> None:
        super().__init__(_joining(len(made)), operator, tuple(made), [value.type for value in made])
        self._sources = tuple(sources)
        self.tracks = mode.tracks and any(value is not None and value.tracks for value in sources)

    @property
    def sources(self) -> tuple[Traced | None, ...]:
        return self._sources

    def output(self, at: int) -> Traced:
        value = super().output(at)
        given = self.inputs[at]
        if value.data is None and given is not None and not mode.captures:
            value.data = given.data
        return value


@functools.cache
def _joining(count: int) -> Node:
    """One node for all that join so many values; for each, an Identity is computed."""
    names = [tuple(f"{side}{at}" for at in range(count)) for side in "xy"]
    return Node("Identity", names[0], names[1], {}, "joined")


class Traced:
    """A tensor that is known, or will be when it is looked at.

    Args:
        type: static.
        device: where it is computed; None for the CPU.
        data: its elements, where they are known; an array though there is a device: they are on the host
            still, and go to the device when it reads them more than once.
        application: what makes it; None where its history does not matter.
        index: which of the outputs it is.
        kind: of data.
    """

    __slots__ = (
        "__weakref__", "application", "data", "device", "holders", "hooks", "index", "is_inferred", "is_leaf",
        "is_read", "is_released", "kind", "owner", "tracks", "type", "version", "views",
    )  # fmt: skip

    def __init__(
        self,
        type: TensorType,
        device: Device | None,
        data: Array | DeviceArray | None,
        application: Application | None = None,
        index: int = 0,
        kind: Kind = Kind.DATA,
    ) -> None:
        self.type = type
        self.device = device
        self.data = data
        self.application = application
        self.index = index
        self.kind = kind
        self.holders = 0
        """How many tensors of the program it is the value of: these are computed with what needs them."""
        self.views = 0
        """How many of these are views."""
        self.tracks = False
        """Whether gradients flow through it: its history is kept when it is known."""
        self.is_leaf = False
        """Whether gradients flow to it and end there, whatever it was made of."""
        self.is_inferred = False
        """Whether it was made in inference mode: no gradient may read it."""
        self.is_read = False
        """Whether a device has read it from the host."""
        self.is_released = False
        """Whether what it was made of is gone, so that gradients that come to it would be lost."""
        self.owner: weakref.ref[Any] | None = None
        """The tensor of the program that takes its gradient."""
        self.hooks: Any = None
        """What is called with its gradient, whether a tensor still has the value or not."""
        self.version: Version | None = None
        """Shared with what would have the same memory; None: with nothing, and nothing has changed it."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.type.dims

    def fed(self) -> Array | DeviceArray:
        """Its elements for a run: where they are, unless its device has read them before."""
        data = self.data
        assert data is not None
        if self.device is not None and not isinstance(data, DeviceArray):
            if self.is_read or self.is_leaf or data.nbytes > MOST_ON_HOST:
                data = self.data = place_array(data, self.device, "a tensor")
            self.is_read = True
        return data

    @property
    def is_free(self) -> bool:
        """Whether it is computed wherever it is needed: a constant, or made of nothing else."""
        if self.data is None and self.application is not None:
            return self.device is None and self.application.is_free
        return self.kind is not Kind.DATA

    def share(self, other: Traced) -> None:
        """Has its elements be those of another value: changed in place they are for both."""
        self.version = other.shared_version()

    def shared_version(self) -> Version:
        """Its version, of which others may know from now on."""
        version = self.version
        if version is None:
            version = self.version = Version()
        return version

    def change(self, start: int) -> None:
        """Notes that its tensor is given other elements in place; see `Version.change`.

        Not where another tensor, which is no view, has this very value, too: one of the two would have memory
        of its own.
        """
        if self.holders - self.views > 1:
            return
        version = self.shared_version()
        version.change(start)
        made = self.application
        if made is not None and made.tracks:
            made.changed = {**(made.changed or {}), self.index: version}

    def __repr__(self) -> str:
        made = "" if self.application is None else f" of {self.application.node.op}"
        return f"<{'known' if self.data is not None else 'traced'} {self.type}{made}>"


def value_of(data: Array | DeviceArray, device: Device | None = None) -> Traced:
    """A value whose elements are known; an array is not copied, and must not be written any more.

    Args:
        data: its elements.
        device: where it is, of an array: see `Traced`.
    """
    if isinstance(data, DeviceArray):
        device = data.device
    return Traced(tensor_type(dtype_of(data), tuple(data.shape)), device, data)


def device_of(values: Sequence[Traced | None]) -> Device | None:
    """Where what is made of these values is computed: where they are, but for single numbers of the host.

    What is made of constants alone is computed anywhere.

    Raises:
        InvalidDevice: on several devices.
    """
    found: Device | None = None
    is_settled = False
    for value in values:
        if value is None or value.is_free or (value.device is None and not value.type.shape):
            continue
        if not is_settled:
            found, is_settled = value.device, True
        elif value.device is not found:
            names = ["cpu" if device is None else device.info.name for device in (found, value.device)]
            raise InvalidDevice(
                f"the tensors are on {names[0]} and {names[1]}: move one with .to('{names[0]}')"
            )
    return found
