"""The step of a kept lowering that enters a launch once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vkml.ir.size import Size
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.lowering.kept import Placed, Step

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder


def entered_again(dispatch: Dispatch, place: Callable[[View], Placed]) -> Step:
    """Enters the same launch over numbered buffers."""
    known: dict[int, int] = {}
    placed: list[Placed] = []
    words: list[int | Size] = []
    pointers: list[int] = []
    """Views by number, -1 for the status word."""

    def number(view: View) -> int:
        at = known.setdefault(id(view), len(placed))
        if at == len(placed):
            placed.append(place(view))
        return at

    for argument in dispatch.arguments:
        if isinstance(argument, View):
            pointers.append(number(argument))
        elif isinstance(argument, Buffer):
            assert argument.kind is BufferKind.STATUS
            pointers.append(-1)
        else:
            words.append(argument)
    reads, writes = tuple(map(number, dispatch.reads)), tuple(map(number, dispatch.writes))
    kernel, groups, views, tail = dispatch.kernel, dispatch.groups, tuple(placed), tuple(words)

    def step(build: VulkanBuilder, buffers: list[Buffer]) -> None:
        made = [view.on(buffers) for view in views]
        arguments = [made[at] if at >= 0 else build.status for at in pointers]
        build.enter(
            kernel,
            groups,
            (*arguments, *tail),
            tuple([made[at] for at in reads]),
            tuple([made[at] for at in writes]),
        )

    return step
