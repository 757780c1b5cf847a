"""The most memory that results take while nodes run one after the other on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from vkml.ir import Node, TensorType, find


def peak_bytes(nodes: Sequence[Node], types: Mapping[str, TensorType], kept: Collection[str]) -> int:
    """Bytes of the results that are alive at the same time, at the worst moment.

    Inputs from outside and constants are there already, and a view takes nothing: it keeps what it looks at.

    Args:
        nodes: in the order in which they run.
        types: of all values; those whose sizes are not known before a run count nothing.
        kept: results that stay until the end.
    """
    source: dict[str, str] = {}
    """Value → the one whose memory it lies in."""
    last: dict[str, int] = {}
    """Values with memory of their own → where they are used last."""
    for at, node in enumerate(nodes):
        for name in node.reads:
            last[source.get(name, name)] = at
        is_view = find(node).is_view
        for name in node.outputs:
            source[name] = source.get(node.inputs[0], node.inputs[0]) if is_view else name
            last[source[name]] = at
    for name in kept:
        last[source.get(name, name)] = len(nodes)
    freed: list[int] = [0] * (len(nodes) + 1)
    alive = most = 0
    for at, node in enumerate(nodes):
        for name in node.outputs:
            type_ = types.get(name)
            if source[name] == name and type_ is not None and type_.is_static:
                alive += type_.host_bytes
                freed[last[name]] += type_.host_bytes
        most = max(most, alive)
        alive -= freed[at]
    return most
