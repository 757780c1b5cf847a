"""Arguments of sessions and runs, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vkml.engine.options import SessionOptions, byte_count
from vkml.engine.placement import by_node_names, matches
from vkml.errors import InvalidArgument
from vkml.ir import Graph

if TYPE_CHECKING:
    from vkml.engine.devices import Choice


def checked_options(options: SessionOptions | None) -> SessionOptions:
    """The argument `sess_options`, checked."""
    if options is None:
        return SessionOptions()
    if not isinstance(options, SessionOptions):
        raise InvalidArgument(
            f"sess_options is a vkml.SessionOptions, not {options!r} ({type(options).__module__}."
            f"{type(options).__qualname__})"
        )
    return options


def assignments(
    placement: Mapping[str, str] | None, graph: Graph, choice: Choice
) -> tuple[tuple[tuple[str, str], ...], Graph]:
    """The argument `placement`, checked, and the graph with the names that it then goes by."""
    if placement is None:
        return (), graph
    if not isinstance(placement, Mapping):
        raise InvalidArgument(f"placement maps patterns of nodes' names to devices, not {placement!r}")
    known = [*(info.name for info in choice.gpus), "cpu"]
    for pattern, device in placement.items():
        if device not in known:
            raise InvalidArgument(
                f"placement: {pattern!r} is to run on {device!r}; the session's devices are {known}"
            )
        if not any(matches(node, str(pattern)) for node in graph.nodes):
            raise InvalidArgument(f"placement: no node and no output of a node has a name like {pattern!r}")
    return by_node_names([(str(pattern), device) for pattern, device in placement.items()], graph)


def memory_limits(given: Mapping[str, int | str] | None, choice: Choice) -> dict[str, int]:
    """The argument `memory_limit`, checked."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"memory_limit maps devices to bytes, not {given!r}")
    known = [info.name for info in choice.gpus]
    for device in given:
        if device not in known:
            raise InvalidArgument(f"memory_limit: the session has no device {device!r}; it has {known}")
    return {device: byte_count(f"memory_limit of {device}", limit) for device, limit in given.items()}


def check_run_options(options: Any) -> None:
    """Refuses what is no RunOptions: a second feed, say, that would be passed over in silence."""
    if type(options).__name__ != "RunOptions":
        raise InvalidArgument(f"run_options is onnxruntime's RunOptions or None, not {options!r}")
