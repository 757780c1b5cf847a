"""What a function of tensors computes, recorded: its applications, and where in a module each was made."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vkml.dataclasses import dataclass
from vkml.nn.module import Module
from vkml.tensors import Tensor
from vkml.tensors.capture import capture
from vkml.tracing import Traced
from vkml.tracing.value import next_serial, tracking


@dataclass
class Recording:
    """What a function computes.

    Attributes:
        states: elements of the parameters and buffers, by identity, and their names.
        scopes: of modules, as they were called.
    """

    states: dict[int, str]
    scopes: Scopes


class Scopes:
    """Which module each application was recorded in, by its serial number."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._names: list[str] = []
        self._within: list[str] = [""]

    def enter(self, name: str) -> None:
        """What is recorded from now on belongs to a module."""
        self._within.append(name)
        self._note()

    def leave(self) -> None:
        """What is recorded from now on belongs to the module around it."""
        self._within.pop()
        self._note()

    def _note(self) -> None:
        self._starts.append(next_serial())
        self._names.append(self._within[-1])

    def of(self, serial: int) -> str:
        """The name of the module; empty for the outermost one."""
        at = bisect.bisect_right(self._starts, serial)
        return self._names[at - 1] if at else ""


def record(
    module: Module | None, inputs: Sequence[Traced], call: Callable[[Sequence[Tensor]], Any],
    results: Callable[[Any], Sequence[tuple[str, Tensor]]],
) -> tuple[list[tuple[str, Traced]], Recording]:  # fmt: skip
    """Calls a function, in a capture, and puts all that it wrote back.

    Args:
        module: whose parameters are read, if it is one's.
        inputs: what stands for the arguments that are tensors.
        call: calls it with these.
        results: names the tensors among what it returns.

    Raises:
        CaptureError: it looks at elements.
    """
    scopes = Scopes()
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracking(False))
        if module is not None:
            stack.enter_context(_noted(module, scopes))
        seen = stack.enter_context(capture())
        try:
            states = {} if module is None else _states(module)
            made = call([Tensor(value) for value in inputs])
            found = [(name, tensor.value) for name, tensor in results(made)]
        finally:
            seen.restore()
    return found, Recording(states, scopes)


def _states(module: Module) -> dict[int, str]:
    named = [*module.named_buffers(), *module.named_parameters()]
    return {id(tensor.value): name for name, tensor in named}


@contextlib.contextmanager
def _noted(module: Module, scopes: Scopes) -> Iterator[None]:
    """Has calls of the modules within one be noted."""
    handles = []
    try:
        for name, inner in module.named_modules():
            if not name:
                continue

            def enter(_module: Module, _arguments: Any, name: str = name) -> None:
                scopes.enter(name)

            def leave(_module: Module, _arguments: Any, _made: Any) -> None:
                scopes.leave()

            handles.append(inner.register_forward_pre_hook(enter, prepend=True))
            handles.append(inner.register_forward_hook(leave, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
