"""Programs of the CPU in plans: made for certain sizes, kept for those that came last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.memory import amount, free_memory
from vkml.engine.programs import BINDINGS_KEPT
from vkml.engine.turns import Turn
from vkml.errors import OutOfMemory
from vkml.ir import Node, TensorType
from vkml.lowering.cpu import CpuProgram, Form
from vkml.lowering.vulkan import Piece

if TYPE_CHECKING:
    from vkml.lowering.native import NativeStep

Array = np.ndarray[Any, Any]


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
    """A program of the CPU for certain sizes."""

    program: CpuProgram
    whole: NativeStep | None
    """The program where it is machine code from end to end."""


class CpuBound:
    """A run of nodes on the CPU.

    A program of the CPU is made for certain sizes. Where some are open, those of the sizes that came last are
    kept, and others made when they come.

    Args:
        piece: the nodes.
        compile: makes the program for values of the open sizes, in the order of their symbols.
        is_open: whether there are any.
    """

    device = "cpu"
    _is_closed = False

    def __init__(
        self, piece: Piece, compile: Callable[[tuple[int, ...]], CpuProgram], *, is_open: bool = False
    ) -> None:
        self.inputs = piece.inputs
        self.outputs = piece.outputs
        self.piece = piece
        self.is_open = is_open
        self.forms: Sequence[tuple[Node, Form]] = ()
        self.types: Mapping[str, TensorType] = {}
        self.arena_bytes = self.result_bytes = 0
        self._compile = compile
        self._bindings: OrderedDict[tuple[int, ...], _CpuBinding] = OrderedDict()
        if not is_open:
            self.bind(())

    def bind(self, values: tuple[int, ...]) -> _CpuBinding:
        """The program for these values of the open sizes."""
        found = self._bindings.get(values)
        if found is not None:
            self._bindings.move_to_end(values)
            return found
        while len(self._bindings) >= BINDINGS_KEPT:
            self._bindings.popitem(last=False)
        program = self._compile(values)
        made = _CpuBinding(program, program.whole(self.inputs, self.outputs))
        self.forms, self.types, self.arena_bytes = program.forms, program.types, program.arena_bytes
        self.result_bytes = program.result_bytes
        self._bindings[values] = made
        return made

    def run(
        self,
        feeds: Sequence[Array],
        values: tuple[int, ...] = (),
        profile: list[tuple[str, float]] | None = None,
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
        self, types: Sequence[TensorType], turn: Turn
    ) -> Callable[[Mapping[str, Any]], list[Array] | None] | None:
        """As `VulkanBound.direct`, where the program is machine code from end to end.

        Args:
            types: of the inputs.
            turn: taken while it runs.
        """
        whole = None if self.is_open else self.bind(()).whole
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

    def close(self) -> None:
        """Nothing is held outside of Python."""
        self._is_closed = True
