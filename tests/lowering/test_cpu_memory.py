"""What is alive at the same time while nodes run on the CPU."""

from __future__ import annotations

from vkml.ir import Node, TensorType, dtypes
from vkml.lowering.cpu_memory import peak_bytes

UNIT = TensorType(dtypes.FLOAT32, (1,))
"""4 bytes."""


def peak(nodes: list[Node], *kept: str, open_values: str = "") -> int:
    """In values of one unit."""
    names = {name for node in nodes for name in (*node.inputs, *node.outputs) if name}
    unknown = TensorType(dtypes.FLOAT32, ("n",))
    return peak_bytes(nodes, {name: unknown if name in open_values else UNIT for name in names}, kept) // 4


def test_a_chain_holds_two() -> None:
    nodes = [Node("Relu", (a,), (b,)) for a, b in zip("xabc", "abcd", strict=True)]
    assert peak(nodes, "d") == 2


def test_one_node_holds_its_results_and_not_its_inputs() -> None:
    assert peak([Node("Split", ("x",), ("a", "", "b"))], "a") == 2


def test_kept_values_stay() -> None:
    nodes = [Node("Relu", ("x",), (name,)) for name in "abcd"]
    assert peak(nodes, *"abcd") == 4
    assert peak(nodes, "d") == 1
    assert peak(nodes, "a", "d") == 2


def test_a_late_reader_keeps_a_value() -> None:
    nodes = [Node("Relu", (a,), (b,)) for a, b in zip("xabc", "abcd", strict=True)]
    assert peak([*nodes, Node("Add", ("a", "d"), ("e",))], "e") == 3


def test_views_are_free_and_hold_their_source() -> None:
    view = [
        Node("Relu", ("x",), ("a",)),
        Node("Reshape", ("a", "s"), ("b",)),
        Node("Flatten", ("b",), ("c",)),
    ]
    tail = [Node("Relu", ("x",), ("d",)), Node("Relu", ("d",), ("e",)), Node("Add", ("c", "e"), ("f",))]
    assert peak(view, "c") == 1
    assert peak([*view, *tail], "f") == 3
    assert peak([Node("Reshape", ("x", "s"), ("y",)), Node("Relu", ("y",), ("z",))], "y", "z") == 1


def test_nothing_is_known_of_open_sizes() -> None:
    assert (
        peak([Node("NonZero", ("x",), ("a",)), Node("Relu", ("x",), ("b",))], "a", "b", open_values="a") == 1
    )


def test_no_nodes() -> None:
    assert peak([]) == 0
