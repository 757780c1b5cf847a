"""Convolutions as part of what reads them: which chains are one group, and what a large GPU then launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.models import mnist_like, mobilenet_v2, resnet50
from tests.kernels import gpu_targets as units
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, Node
from vkml.kernels.spec import Dispatch
from vkml.lowering.vulkan import Piece, lower, refusals
from vkml.passes import fuse, fuse_links, specialise
from vkml.passes.fuse import members

GPU = replace(
    units.GPU, capabilities=units.GPU.capabilities | {"subgroup_shuffle"}, push_bytes=256, strict_fp32=False
)


def chain(*, also_output: bool = False, read_twice: bool = False, read_behind: bool = False) -> Graph:
    """Three convolutions with something pointwise behind the first two."""
    sketch = Sketch("chain")
    x = sketch.input("x", (1, 8, 6, 6))

    def weights(*shape: int) -> str:
        return sketch.constant(np.ones(shape, np.float32))

    made = sketch.node("Relu", sketch.node("Conv", x, weights(16, 8, 1, 1)))
    windows = sketch.node("Conv", made, weights(16, 1, 3, 3), pads=(1, 1, 1, 1), group=16)
    y = sketch.node("Conv", sketch.node("Tanh", windows), weights(16, 16, 1, 1))
    if read_behind:
        y = sketch.node("Add", y, made)
    results = [y]
    if also_output:
        results.append(made)
    if read_twice:
        results.append(sketch.node("ReduceMax", made))
    return sketch.finish(*results)


def linked(graph: Graph, *, is_taken: bool = True) -> list[list[str]]:
    """The operators of each node once chains are fused, where the back end takes them all or none."""
    graph = prepared(graph)
    found = fuse_links(
        graph, lambda node: "", lambda nodes: {node.key for node in nodes} if is_taken else set()
    )
    return operators(found)


def operators(graph: Graph) -> list[list[str]]:
    """Of each node, but for what names outputs."""
    return [[part.op for part in members(node) if part.op != "Identity"] for node in graph.nodes]


def prepared(graph: Graph) -> Graph:
    graph = prepare(graph)
    shapes = {each.name: tuple(int(size) for size in each.type.shape) for each in graph.inputs}
    return fuse(specialise(graph, shapes))


ALL = ["Conv", "Relu", "Conv", "Tanh", "Conv"]


def test_a_chain_is_one_group() -> None:
    assert linked(chain()) == [ALL]
    assert linked(chain(), is_taken=False) == [["Conv", "Relu"], ["Conv", "Tanh"], ["Conv"]]


def test_what_others_read_is_made() -> None:
    assert linked(chain(also_output=True)) == [["Conv", "Relu"], ALL[2:]]
    assert linked(chain(read_twice=True)) == [["Conv", "Relu"], ALL[2:], ["ReduceMax"]]
    assert linked(chain(read_behind=True)) == [["Conv", "Relu"], [*ALL[2:], "Add"]]


def test_devices_are_not_mixed() -> None:
    graph = prepared(chain())
    first = members(graph.nodes[0])[0]
    found = fuse_links(graph, lambda node: str(node is first), lambda nodes: {node.key for node in nodes})
    assert operators(found) == [["Conv", "Relu"], ALL[2:]]


def test_the_shorter_chain_is_asked_for_where_the_longer_is_refused() -> None:
    asked: list[list[int]] = []

    def accepted(nodes: Sequence[Node]) -> set[str]:
        asked.append([len(members(node)) for node in nodes])
        return {node.key for node in nodes if len(members(node)) < 6}

    graph = prepared(chain())
    found = fuse_links(graph, lambda node: "", accepted)
    assert asked == [[6], [4, 4]]
    assert operators(found) == [ALL[:4], ["Conv"]]


def launches_of(graph: Graph, *, strict_fp32: bool = False) -> list[Dispatch]:
    """What a large GPU is given for a model."""
    target = replace(GPU, strict_fp32=strict_fp32)
    graph = prepared(graph)

    def accepted(nodes: Sequence[Node]) -> set[str]:
        refused = refusals(nodes, graph.types, graph.constants, target)
        return {node.key for node in nodes} - refused.keys()

    graph = fuse_links(graph, lambda node: "", accepted)
    piece = Piece(graph.nodes, tuple(v.name for v in graph.inputs), tuple(v.name for v in graph.outputs))
    return lower(piece, graph.types, graph.constants, target).dispatches


@pytest.mark.parametrize("strict_fp32", [False, True])
def test_a_small_network_is_three_launches(strict_fp32: bool) -> None:
    """An H200 took 22.6 µs for the five that they were."""
    found = launches_of(mnist_like(), strict_fp32=strict_fp32)
    assert [each.kernel.label for each in found] == ["conv", "conv", "gemv"]
    assert found[0].operators[-1] == found[1].operators[-1] == "MaxPool"


def test_inverted_residuals_are_two_launches_each() -> None:
    labels = [each.kernel.label for each in launches_of(mobilenet_v2(1))]
    assert labels.count("separable") == 17 and "depthwise" not in labels
    assert labels[-2:] == ["channel_means", "gemv"]
    assert len(labels) <= 37


def test_many_images_are_launches_apart() -> None:
    """There each launch has enough to do, on matrix units, and what is between them is little beside it."""
    labels = {each.kernel.label for each in launches_of(resnet50(32))}
    assert "channel_means" not in labels
