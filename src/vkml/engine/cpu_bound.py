"""Programs of the CPU in plans: made for certain sizes, kept for those that came last."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.memory import amount, free_memory
from vkml.cpu.pool import available_processors
from vkml.dataclasses import dataclass
from vkml.engine.recorded import BINDINGS_KEPT
from vkml.engine.turns import Turn
from vkml.errors import OutOfMemory
from vkml.ir import Node, TensorType
from vkml.ir.lowering import CannotLower
from vkml.ir.mapped_file import MappedFile
from vkml.ir.size import Size
from vkml.ir.size_terms import may_fall
from vkml.lowering.cpu import CpuProgram, Form
from vkml.lowering.vulkan import Piece

if TYPE_CHECKING:
    from vkml.lowering.native_step import NativeStep

Array = np.ndarray[Any, Any]
_CHECKED_KEPT = 64


def out_of_memory(error: MemoryError, where: str = "") -> OutOfMemory:
    """The error that says what NumPy's MemoryError does not: the device, what is free, what to do."""
    if isinstance(error, OutOfMemory):
        return error
    free = free_memory()
    left = "" if free is None else f"; {amount(free)} are free"
    return OutOfMemory(
        f"cpu: {where + ': ' if where else ''}{error or 'an allocation failed'}{left}; close other "
        "programs, use a smaller batch, or another machine"
    )


@dataclass(frozen=True)
class _CpuBinding:
    """A program of the CPU that is bound to certain sizes."""

    program: CpuProgram
    whole: NativeStep | None
    """The program where it is machine code from end to end."""


class CpuBound:
    """A run of nodes on the CPU.

    Where sizes are open, one program serves all of them and is bound to those at hand. What cannot stay open
    has a program for each set of sizes, of which those that came last are kept.

    Args:
        piece: the nodes.
        compile: makes the program for values of the open sizes, in the order of their symbols.
        opened: the program for all values; None: there is none.
        check: raises `OutOfMemory` where there is too little memory to run with such values.
        is_open: whether there are open sizes.
    """

    device = "cpu"
    most_at_once = 1
    _is_closed = False

    def __init__(
        self,
        piece: Piece,
        compile: Callable[[tuple[int, ...]], CpuProgram],
        opened: CpuProgram | None = None,
        check: Callable[[CpuProgram, tuple[int, ...]], None] | None = None,
        *,
        is_open: bool = False,
    ) -> None:
        self.inputs = piece.inputs
        self.outputs = piece.outputs
        self.piece = piece
        self.is_open = is_open
        self._compile, self._check = compile, check
        self.files: Sequence[MappedFile] = ()
        """What constants are read from: no program is bound to new sizes once one of them has changed."""
        self._opened = None if opened is None else self._binding(opened)
        self._bindings: OrderedDict[tuple[int, ...], _CpuBinding] = OrderedDict()
        self._latest: tuple[tuple[int, ...], _CpuBinding] | None = None
        self._checked: set[tuple[int, ...]] = set()
        """Powers of two up to which there is enough memory, or sizes for which there is."""
        types = () if opened is None else opened.types.values()
        dims = [dim for type_ in types for dim in type_.shape or ()]
        self._falls = any(isinstance(dim, Size) and may_fall(dim.terms) for dim in dims)
        """Whether something is larger where an open size is smaller."""
        if not is_open:
            self.bind(())
        program = self._opened.program if self._opened is not None else None
        if self._latest is not None:
            program = self._latest[1].program
        if program is not None:
            self.most_at_once = max(1, available_processors() // program.threads)

    def another(self) -> CpuBound:
        """The same nodes with memory of their own; code, tables and weights are the same."""
        if not self.is_open:
            program = self.bind(()).program
            return CpuBound(self.piece, lambda values: program.another(), None, self._check)
        opened = None if self._opened is None else self._opened.program.another()
        made = CpuBound(self.piece, self._compile, opened, self._check, is_open=True)
        made.files = self.files
        return made

    def _binding(self, program: CpuProgram) -> _CpuBinding:
        return _CpuBinding(program, program.whole(self.inputs, self.outputs))

    def bind(self, values: tuple[int, ...]) -> _CpuBinding:
        """The program for these values of the open sizes."""
        if self._latest is not None and self._latest[0] == values:
            return self._latest[1]
        made = self._bindings.get(values)
        if made is None:
            for file in self.files:
                file.check()
        if made is None and self._opened is not None:
            try:
                self._bind_opened(self._opened, values)
                made = self._opened
            except (CannotLower, struct.error):
                pass  # a number that no instruction can state, at these sizes
        if made is None:
            made = self._binding(self._compile(values))
        if made is not self._opened:
            self._bindings[values] = made
            self._bindings.move_to_end(values)
            while len(self._bindings) > BINDINGS_KEPT:
                self._bindings.popitem(last=False)
        self._latest = values, made
        return made

    def _bind_opened(self, opened: _CpuBinding, values: tuple[int, ...]) -> None:
        capacity = values if self._falls else tuple(1 << (value - 1).bit_length() for value in values)
        if capacity not in self._checked and self._check is not None:
            try:
                self._check(opened.program, capacity)
                if len(self._checked) >= _CHECKED_KEPT:
                    self._checked.clear()
                self._checked.add(capacity)
            except OutOfMemory:
                self._check(opened.program, values)
        self._latest = None  # whatever happens, it is not bound to those any more
        if opened.whole is not None:
            opened.whole.bind(values)
        else:
            opened.program.bind(values)

    # -- for people -----------------------------------------------------------------------------------------

    @property
    def forms(self) -> Sequence[tuple[Node, Form]]:
        """What the program bound last runs, and how."""
        return () if self._latest is None else self._latest[1].program.forms

    @property
    def types(self) -> Mapping[str, TensorType]:
        """Of the values of the program bound last."""
        if self._latest is None:
            return {}
        values, binding = self._latest
        return binding.program.types_for(values) if binding is self._opened else binding.program.types

    @property
    def arena_bytes(self) -> int:
        """Memory that machine code works in."""
        return 0 if self._latest is None else self._latest[1].program.arena_bytes

    @property
    def result_bytes(self) -> int:
        """The most that results take at a time while it runs, without what lies in the arenas."""
        return 0 if self._latest is None else self._latest[1].program.result_bytes(self.types)

    # -- running --------------------------------------------------------------------------------------------

    def run(
        self,
        feeds: Sequence[Array],
        values: tuple[int, ...] = (),
        profile: list[tuple[tuple[str, ...], float]] | None = None,
    ) -> list[Array]:
        """Runs it.

        Args:
            feeds: in the order of `inputs`.
            values: of the open sizes.
            profile: receives the time of every step.
        """
        try:
            binding = self.bind(values)
            if binding.whole is not None:
                return binding.whole.run(feeds, profile)
            made = binding.program.run(dict(zip(self.inputs, feeds, strict=True)), self.outputs, profile)
        except MemoryError as error:
            raise out_of_memory(error) from error
        return [made[name] for name in self.outputs]

    def direct(
        self,
        types: Sequence[TensorType],
        turn: Turn,
        values_of: Callable[[Sequence[tuple[int, ...]]], tuple[int, ...] | None],
    ) -> Callable[[Mapping[str, Any]], list[Array] | None] | None:
        """As `VulkanBound.direct`, where the program is machine code from end to end.

        Args:
            types: of the inputs.
            turn: taken while it runs.
            values_of: the values of the open sizes for inputs of certain shapes.
        """
        if self.is_open:
            return self._direct_open(types, turn, values_of)
        whole = self.bind(()).whole
        if whole is None:
            return None
        run = whole.run
        entries = tuple(
            (name, type_.dims, type_.dtype.storage) for name, type_ in zip(self.inputs, types, strict=True)
        )
        count = len(entries)

        def call(feed: Mapping[str, Any]) -> list[Array] | None:
            try:
                if len(feed) != count:
                    return None
                arrays = []
                for name, shape, dtype in entries:
                    array = feed[name]
                    if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                        return None
                    arrays.append(array)
            except Exception:
                return None
            if turn.is_taken:
                return None
            with turn.lock:
                if turn.is_taken or self._is_closed:
                    return None
                turn.is_taken = True
                try:
                    return run(arrays)
                except MemoryError as error:
                    raise out_of_memory(error) from error
                finally:
                    turn.is_taken = False

        return call

    def array_call(self, turn: Turn) -> Callable[..., list[Array] | None] | None:
        """As `VulkanBound.prepared` of arrays, where the program is machine code from end to end."""
        whole = None if self.is_open else self.bind(()).whole
        if whole is None:
            return None
        run = whole.run

        def call(arrays: Sequence[Array], into: Sequence[Array | None] | None = None) -> list[Array] | None:
            with turn.lock:
                if turn.is_taken or self._is_closed:
                    return None
                turn.is_taken = True
                try:
                    return run(arrays, None, into)
                except MemoryError as error:
                    raise out_of_memory(error) from error
                finally:
                    turn.is_taken = False

        return call

    def _direct_open(
        self,
        types: Sequence[TensorType],
        turn: Turn,
        values_of: Callable[[Sequence[tuple[int, ...]]], tuple[int, ...] | None],
    ) -> Callable[[Mapping[str, Any]], list[Array] | None] | None:
        if self._opened is None or self._opened.whole is None:
            return None
        entries = tuple((name, type_.dtype.storage) for name, type_ in zip(self.inputs, types, strict=True))
        count = len(entries)

        def call(feed: Mapping[str, Any]) -> list[Array] | None:
            try:
                if len(feed) != count:
                    return None
                arrays, shapes = [], []
                for name, dtype in entries:
                    array = feed[name]
                    if type(array) is not np.ndarray or array.dtype != dtype:
                        return None
                    arrays.append(array)
                    shapes.append(array.shape)
                values = values_of(shapes)
            except Exception:
                return None
            if values is None or turn.is_taken:
                return None
            with turn.lock:
                if turn.is_taken or self._is_closed:
                    return None
                turn.is_taken = True
                try:
                    return self.run(arrays, values)
                finally:
                    turn.is_taken = False

        return call

    def close(self) -> None:
        """Nothing is held outside of Python."""
        self._is_closed = True
