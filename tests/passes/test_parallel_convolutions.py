"""Sums of convolutions of one value are one convolution, where that gives the same and nobody reads parts."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from tests.comparing import assert_close
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, dtypes
from vkml.ir.file_constant import OWNED_BYTES
from vkml.ir.graph import MadeConstant
from vkml.lowering.builder import prepared_forms
from vkml.onnx import save_graph
from vkml.passes import specialise
from vkml.passes.simplify import simplify

Array = np.ndarray[Any, Any]
SHAPE = (2, 4, 9, 8)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


class Branches(Sketch):
    """Branches from one input, each with weights of its own."""

    def __init__(
        self, shape: Sequence[int | str] = SHAPE, dtype: str = "float32", *, channels_known: int = 0
    ) -> None:
        super().__init__("branches")
        self.dtype, self.channels = np.dtype(dtype), channels_known or int(shape[1])
        self.x = self.input("x", shape, dtypes.from_numpy(self.dtype))
        self.count = 0

    def held(self, array: Array) -> str:
        return self.constant(array.astype(self.dtype))

    def conv(
        self,
        *kernel: int,
        filters: int = 4,
        group: int = 1,
        bias: bool = True,
        of: str = "x",
        times: float = 1,
        **attributes: Any,
    ) -> str:
        self.count += 1
        weight = times * numbers(filters, self.channels // group, *kernel, seed=self.count)
        vectors = [self.held(numbers(filters, seed=self.count))] if bias else []
        return self.node("Conv", of, self.held(weight), *vectors, group=group, **attributes)

    def normalised(self, value: str, channels: int = 4) -> str:
        self.count += 1
        scale, shift, mean, variance = (numbers(channels, seed=self.count * 9 + at) for at in range(4))
        vectors = [self.held(array) for array in (scale, shift, mean, np.abs(variance) + 0.5)]
        return self.node("BatchNormalization", value, *vectors)

    def add(self, *values: str) -> str:
        total = values[0]
        for value in values[1:]:
            total = self.node("Add", total, value)
        return total


def left(graph: Graph) -> dict[str, int]:
    """How many nodes of each kind there are once simplified."""
    made = simplify(specialise(prepare(graph), {value.name: value.tensor.dims for value in graph.inputs}))
    return dict(Counter(node.op for node in made.nodes if node.op != "Identity"))


def check(graph: Graph, device: str, tolerance: float = 1e-5) -> None:
    """Fails unless vkml and onnxruntime without optimisation compute the same."""
    model = save_graph(graph)
    assert model is not None
    [value] = graph.inputs
    feeds = {"x": numbers(*value.tensor.dims, seed=77).astype(value.tensor.dtype.storage)}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with vkml.InferenceSession(model, devices=device, precision="highest") as ours:
        found = ours.run(None, feeds)
    for made, wanted in zip(found, theirs.run(None, feeds), strict=True):
        largest = float(np.abs(wanted).max())
        assert largest > 0
        assert_close(made, np.asarray(wanted), rtol=0, atol=tolerance * largest)


def test_branches_become_one(device_name: str) -> None:
    """3×3, 1×1 and a normalised input, in both orders of each sum, with and without biases."""
    b = Branches()
    wide = b.normalised(b.conv(3, 3, pads=[1, 1, 1, 1], bias=False))
    narrow = b.normalised(b.conv(1, 1, bias=False))
    graph = b.finish(b.node("Relu", b.add(b.add(narrow, wide), b.normalised("x"))))
    assert left(graph) == {"Conv": 1, "Relu": 1}
    check(graph, device_name)
    b = Branches()
    graph = b.finish(b.add(b.normalised("x"), b.conv(3, 3, pads=[1, 1, 1, 1], bias=False), b.conv(1, 1)))
    assert left(graph) == {"Conv": 1}
    check(graph, device_name)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_groups_normalise_their_own_channels(group: int, device_name: str) -> None:
    b = Branches()
    graph = b.finish(b.add(b.conv(3, 3, group=group, pads=[1, 1, 1, 1]), b.normalised("x")))
    assert left(graph) == {"Conv": 1}
    check(graph, device_name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"kernel": (5, 3), "pads": [2, 1, 2, 1]}, {"kernel": (3, 3), "pads": [1, 1, 1, 1]}),
        ({"kernel": (3, 3), "strides": [2, 2], "pads": [1, 1, 1, 1]}, {"kernel": (1, 1), "strides": [2, 2]}),
        ({"kernel": (3, 3), "dilations": [2, 3], "pads": [2, 3, 2, 3]}, {"kernel": (1, 1)}),
        (
            {"kernel": (5, 5), "dilations": [2, 2], "pads": [4, 4, 4, 4]},
            {"kernel": (3, 3), "dilations": [2, 2], "pads": [2, 2, 2, 2]},
        ),
        ({"kernel": (2, 2), "pads": [0, 0, 1, 1]}, {"kernel": (1, 1)}),
        ({"kernel": (2, 2), "pads": [1, 1, 0, 0]}, {"kernel": (1, 1)}),
        ({"kernel": (3, 3), "pads": [1, 1, 1, 1]}, {"kernel": (3, 3), "pads": [1, 1, 1, 1]}),
    ],
)
def test_a_kernel_within_another(one: dict[str, Any], other: dict[str, Any]) -> None:
    for swapped in (False, True):
        b = Branches()
        values = [b.conv(*given["kernel"], **{k: v for k, v in given.items() if k != "kernel"})
                  for given in (one, other)]  # fmt: skip
        graph = b.finish(b.add(*(reversed(values) if swapped else values)))
        assert left(graph) == {"Conv": 1}
        check(graph, "cpu")


def test_convolutions_of_one_and_three_axes(device_name: str) -> None:
    for shape, kernel in (((2, 4, 9), (3,)), ((1, 4, 5, 4, 3), (3, 3, 3))):
        b = Branches(shape)
        pads = [1] * (2 * len(kernel))
        graph = b.finish(b.add(b.conv(*kernel, pads=pads), b.conv(*(1 for _ in kernel)), b.normalised("x")))
        assert left(graph) == {"Conv": 1}
        check(graph, device_name)


def test_constants_go_into_the_bias(device_name: str) -> None:
    """One number, or one for each channel; not one for each column."""
    for shape in ((), (1,), (4, 1, 1), (1, 4, 1, 1), (1, 1, 1, 1)):
        b = Branches()
        graph = b.finish(b.node("Add", b.held(numbers(*shape)), b.conv(1, 1)))
        assert left(graph) == {"Conv": 1}, shape
        check(graph, device_name)
    for shape in ((4,), (1, 4), (1, 1, 4), (4, 4, 1, 1)):
        b = Branches((4, 4, 4, 4))
        graph = b.finish(b.node("Add", b.conv(1, 1), b.held(numbers(*shape))))
        assert left(graph) == {"Conv": 1, "Add": 1}, shape
        check(graph, device_name)


def test_a_large_weight_is_made_where_it_is_read(device_name: str) -> None:
    b = Branches((1, 64, 6, 6))
    values = [b.conv(3, 3, filters=64, pads=[1, 1, 1, 1]), b.conv(1, 1, filters=64), b.normalised("x", 64)]
    graph = b.finish(b.add(*values))
    made = simplify(specialise(prepare(graph), {"x": (1, 64, 6, 6)}))
    [conv] = [node for node in made.nodes if node.op == "Conv"]
    weight = made.constants[conv.inputs[1]]
    assert weight.type.bytes > OWNED_BYTES and isinstance(weight, MadeConstant)
    check(graph, device_name)


def refused(b: Branches, *values: str) -> None:
    """Asserts that a sum of branches stays one, and is right."""
    graph = b.finish(*values)
    assert left(graph)["Add"] == 1
    check(graph, "cpu", 1e-5 if b.dtype != np.float16 else 1e-2)


def test_what_somebody_else_reads_stays() -> None:
    b = Branches()
    wide, narrow = b.conv(3, 3, pads=[1, 1, 1, 1]), b.conv(1, 1)
    refused(b, b.add(wide, narrow), narrow)
    b = Branches()
    wide, narrow = b.conv(3, 3, pads=[1, 1, 1, 1]), b.conv(1, 1)
    refused(b, b.add(wide, narrow), b.node("Relu", wide))
    b = Branches()
    narrow = b.conv(1, 1)
    refused(b, b.add(narrow, narrow))


def test_what_reads_elsewhere_stays() -> None:
    """Another value, another stride, pixels that the larger kernel does not see, other groups."""
    b = Branches()
    refused(b, b.add(b.conv(3, 3, pads=[1, 1, 1, 1]), b.conv(1, 1, of=b.node("Abs", "x"))))
    b = Branches((1, 4, 3, 3))
    refused(b, b.add(b.conv(3, 3, strides=[2, 2], pads=[1, 1, 1, 1]), b.conv(2, 2)))
    b = Branches()
    refused(b, b.add(b.conv(3, 1, pads=[1, 0, 1, 0]), b.conv(1, 3, pads=[0, 1, 0, 1])))
    b = Branches()
    refused(b, b.add(b.conv(2, 2, pads=[1, 1, 0, 0]), b.conv(2, 2, pads=[0, 0, 1, 1])))
    b = Branches()
    other = b.conv(3, 3, dilations=[2, 2], pads=[2, 2, 2, 2])
    refused(b, b.add(b.conv(3, 3, pads=[1, 1, 1, 1]), other))
    b = Branches()
    refused(b, b.add(b.conv(3, 3, dilations=[2, 2], pads=[2, 2, 2, 2]), b.conv(2, 2, pads=[1, 1, 0, 0])))
    b = Branches()
    refused(b, b.add(b.conv(3, 3, pads=[1, 1, 1, 1]), b.conv(1, 1, group=4)))


def test_broadcast_sums_stay() -> None:
    b = Branches((1, 4, 3, 3))
    refused(b, b.add(b.conv(3, 3), b.conv(1, 1)))


def test_halves_stay() -> None:
    b = Branches(dtype="float16")
    refused(b, b.add(b.conv(3, 3, pads=[1, 1, 1, 1]), b.conv(1, 1)))


def test_sums_of_weights_that_overflow_stay() -> None:
    b = Branches()
    values = [b.conv(3, 3, pads=[1, 1, 1, 1], times=6e37), b.conv(1, 1, times=6e37)]
    assert left(b.finish(b.add(*values)))["Add"] == 1
    b = Branches()
    values = [b.conv(3, 3, pads=[1, 1, 1, 1]), b.conv(1, 1, times=float("nan"))]
    assert left(b.finish(b.add(*values)))["Add"] == 1


def test_all_plans_share_what_is_made() -> None:
    """Sums of weights, however large, are the same constants for every shape; so are kernels that are cut."""
    for side in (4, 64):
        b = Branches((1, side, "h", "h"), channels_known=side)
        wide = b.conv(3, 3, filters=side, pads=[1, 1, 1, 1])
        parts = wide, b.conv(1, 1, filters=side), b.normalised("x", side)
        far = b.conv(3, 3, filters=side, pads=[90] * 4, dilations=[90, 90])
        prepared = prepare(b.finish(b.add(*parts), b.node("Relu", far)))
        made = [simplify(specialise(prepared, {"x": (1, side, h, h)})) for h in (5, 7, 5)]
        weights = [
            [graph.constants[node.inputs[1]] for node in graph.nodes if node.op == "Conv"] for graph in made
        ]
        assert [len(each) for each in weights] == [2, 2, 2]
        assert weights[0] == weights[1] == weights[2]


@pytest.mark.parametrize("side", [4, 64])
def test_sums_go_with_their_plans(side: int) -> None:
    """Also where what is made of one holds a copy of it, as packed weights do."""
    b = Branches((1, side, 5, 5))
    prepared = prepare(b.finish(b.add(b.conv(3, 3, filters=side, pads=[1] * 4), b.conv(1, 1, filters=side))))
    made = simplify(specialise(prepared, {"x": (1, side, 5, 5)}))
    [conv] = [node for node in made.nodes if node.op == "Conv"]
    weight = made.constants[conv.inputs[1]]
    prepared_forms(weight)["packed"] = copy.copy(weight)
    seen = weakref.ref(weight)
    del made, weight
    gc.collect()
    assert seen() is None and len(prepared.nodes) > 1


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_thousand_branches(is_turned: bool) -> None:
    """Sums do not lie in one another, in whichever order they are added up."""
    b = Branches((1, 48, 4, 4))
    weight = b.held(numbers(48, 48, 3, 3) * np.float32(1e-3))
    total = b.node("Conv", "x", weight, pads=[1] * 4)
    for _ in range(1100):
        branch = b.node("Conv", "x", weight, pads=[1] * 4)
        total = b.node("Add", *((branch, total) if is_turned else (total, branch)))
    graph = b.finish(total)
    assert left(graph) == {"Conv": 1}
    x = numbers(1, 48, 4, 4)
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        [found] = session.run(None, {"x": x})
    single = Branches((1, 48, 4, 4))
    one = single.finish(
        single.node("Conv", "x", single.held(numbers(48, 48, 3, 3) * np.float32(1e-3)), pads=[1] * 4)
    )
    with vkml.InferenceSession(save_graph(one), devices="cpu") as session:
        [wanted] = session.run(None, {"x": x})
    np.testing.assert_allclose(found / 1101, wanted, atol=1e-4 * float(np.abs(wanted).max()))
