"""Lowerings that are kept: nodes like one that was lowered get the same launches over their own operands."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.onnx
import vkml.ops
from vkml.engine.sketch import Sketch
from vkml.errors import IndexOutOfRange
from vkml.ir import Constant, Graph, Node, TensorType, Value, dtypes, find
from vkml.kernels import gemm
from vkml.kernels.views import BufferKind, View
from vkml.lowering import kept
from vkml.lowering.builder import Builder
from vkml.lowering.native_builder import NativeBuilder
from vkml.lowering.native_layout import Border, Layouts
from vkml.lowering.target import Target
from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]
FLOATS = TensorType(dtypes.FLOAT32, (4, 8))


def builders() -> list[Any]:
    from vkml.cpu.native.executable import InstructionSet

    return [
        pytest.param(lambda: VulkanBuilder(Target(frozenset({"int64"}))), id="vulkan"),
        pytest.param(lambda: NativeBuilder(InstructionSet.AVX2, 1, Layouts()), id="native"),
    ]


def values(build: Builder[Any], *names: str, type_: TensorType = FLOATS) -> list[View]:
    """Views of fresh buffers, one for each name: equal names are one value."""
    made = {name: build.buffer(BufferKind.INPUT, type_, name) for name in names}
    return [made[name] for name in names]


def counted(monkeypatch: pytest.MonkeyPatch, op: str) -> list[Node]:
    """Receives each node of an operator that is lowered by it."""
    operator, seen = find(Node(op, (), ())), list[Node]()
    real = operator.lower

    def lower(build: Any, node: Node, inputs: Any) -> Any:
        seen.append(node)
        return real(build, node, inputs)

    monkeypatch.setattr(operator, "lower", lower, raising=False)
    return seen


def softmax(name: str, axis: int = -1) -> Node:
    return Node("Softmax", (f"{name}.x",), (f"{name}.y",), {"axis": axis, "is_flattened": False}, name)


@pytest.mark.parametrize("new", builders())
def test_like_nodes_are_lowered_once(new: Callable[[], Builder[Any]], monkeypatch: Any) -> None:
    seen = counted(monkeypatch, "Softmax")
    for _ in range(2):
        build = new()
        for name in ("one", "two"):
            [x] = values(build, name)
            [y] = build.lower(softmax(name), (softmax(name),), [x], [FLOATS])
            assert y is not None
            launch = build.launches[-1]
            assert launch.reads[0].buffer is x.buffer
            assert launch.writes[0].buffer is y.buffer is build.buffers[-1]
            assert launch.nodes == (f"Softmax node '{name}'",)
        assert len(build.launches) == 2
    assert [node.name for node in seen] == ["one"]


@pytest.mark.parametrize("new", builders())
def test_asking_is_lowering(new: Callable[[], Builder[Any]], monkeypatch: Any) -> None:
    seen = counted(monkeypatch, "Softmax")
    build = new()
    assert build.refusal(softmax("asked"), values(build, "a"), [FLOATS]) is None
    build.lower(softmax("lowered"), (softmax("lowered"),), values(build, "b"), [FLOATS])
    assert [node.name for node in seen] == ["asked"]


@pytest.mark.parametrize("new", builders())
def test_refusals_are_kept(new: Callable[[], Builder[Any]], monkeypatch: Any) -> None:
    node = Node("NonZero", ("x",), ("y",), {})
    seen = counted(monkeypatch, "NonZero")
    reasons = []
    for _ in range(2):
        build = new()
        reasons.append(build.refusal(node, values(build, "x"), [TensorType(dtypes.INT64, (2, 3))]))
    assert reasons[0] and reasons[0] == reasons[1]
    assert build.makes in reasons[0]
    assert len(seen) == 1


def add(*inputs: str) -> Node:
    return Node("Add", inputs, ("z",), {})


@pytest.mark.parametrize("new", builders())
@pytest.mark.parametrize("other", ["strides", "offset", "same buffer", "shape", "destination"])
def test_what_lies_otherwise_is_lowered_anew(new: Callable[[], Builder[Any]], other: str) -> None:
    """A launch for one layout would read the wrong elements of another."""
    build = new()
    x, y = values(build, "x", "y")
    build.lower(add("x", "y"), (add("x", "y"),), [x, y], [FLOATS])
    before = sum(map(len, build._kept.values()))
    type_, node = FLOATS, add("p", "q")
    p, q = values(build, "p", "q")
    if other == "strides":
        [q] = values(build, "q", type_=TensorType(dtypes.FLOAT32, (8, 4)))
        q = q.transpose((1, 0))
    elif other == "offset":
        [q] = values(build, "q", type_=TensorType(dtypes.FLOAT32, (5, 8)))
        q = q.slice((1, 0), (1, 1), (4, 8))
    elif other == "same buffer":
        q = p
    elif other == "shape":
        p, q = values(build, "p", "q", type_=TensorType(dtypes.FLOAT32, (3, 8)))
        type_ = TensorType(dtypes.FLOAT32, (3, 8))
    else:
        whole = build.activation(TensorType(dtypes.FLOAT32, (4, 16)), "whole")
        build.set_destination("z", whole.slice((0, 8), (1, 1), (4, 8)))
    [made] = build.lower(node, (node,), [p, q], [type_])
    assert made is not None
    assert sum(map(len, build._kept.values())) == before + 1
    launch = build.launches[-1]
    assert [view.buffer for view in launch.reads[:2]] == [p.buffer, q.buffer]
    assert launch.writes[-1].buffer is made.buffer


def cumulative(axis: int, name: str = "") -> Graph:
    sketch = Sketch("cumulative")
    x = sketch.input("x", (3, 4))
    at = sketch.constant(np.array(axis, np.int64))
    return sketch.finish(sketch.node("CumSum", x, at, name=name, exclusive=0, reverse=0))


def run(graph: Graph, feed: dict[str, Array], device: str) -> Array:
    model = vkml.onnx.save_graph(graph)
    assert model is not None
    with vkml.InferenceSession(model, devices=device) as session:
        return np.asarray(session.run(None, feed)[0])


def test_contents_that_were_asked_for_count(device_name: str) -> None:
    """Two nodes that differ in nothing but the number in a constant."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for axis in (0, 1, 0):
        np.testing.assert_array_equal(run(cumulative(axis), {"x": x}, device_name), np.cumsum(x, axis))


@pytest.mark.parametrize("number", [2.0, -3.0])
def test_numbers_are_part_of_code(device_name: str, number: float) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for factor in (number, 7.0, number):
        sketch = Sketch("scaled")
        scaled = sketch.node("Mul", sketch.input("x", (3, 4)), sketch.constant(np.float32(factor)))
        np.testing.assert_array_equal(run(sketch.finish(scaled), {"x": x}, device_name), x * factor)


def convolution(seed: int, groups: int) -> tuple[Graph, Array]:
    random = np.random.default_rng(seed)
    weight = random.integers(-3, 4, (16, 16 // groups, 3, 3)).astype(np.float32)
    sketch = Sketch("convolution")
    y = sketch.node(
        "Conv", sketch.input("x", (1, 16, 8, 8)), sketch.constant(weight), pads=(1,) * 4, group=groups
    )
    return sketch.finish(sketch.node("Relu", y)), weight


@pytest.mark.parametrize("groups", [1, 16])
def test_layers_have_weights_of_their_own(device_name: str, groups: int) -> None:
    """Whole numbers: every way to compute them is exact, but for Winograd's."""
    x = np.random.default_rng(5).integers(-3, 4, (1, 16, 8, 8)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for seed in (1, 2, 1):
        graph, weight = convolution(seed, groups)
        wanted = np.zeros((1, 16, 8, 8), np.float32)
        for filter_ in range(16):
            for channel in range(16 // groups):
                source = channel if groups == 1 else filter_
                for row in range(3):
                    for column in range(3):
                        window = padded[0, source, row : row + 8, column : column + 8]
                        wanted[0, filter_] += weight[filter_, channel, row, column] * window
        found = run(graph, {"x": x}, device_name)
        np.testing.assert_allclose(found, np.maximum(wanted, 0), rtol=1e-5, atol=1e-3)


def test_bad_indices_name_the_node_that_has_them(device_name: str) -> None:
    for bad in ("first", "second"):
        sketch = Sketch("gathers")
        data = sketch.input("x", (5, 4))
        made = [
            sketch.node("Gather", data, sketch.input(name, (2,), dtypes.INT64), name=name, axis=0)
            for name in ("first", "second")
        ]
        model = vkml.onnx.save_graph(sketch.finish(*made))
        assert model is not None
        feed = {name: np.array([1, 9 if name == bad else 2]) for name in ("first", "second")}
        with (
            vkml.InferenceSession(model, devices=device_name) as session,
            pytest.raises(IndexOutOfRange, match=f"'{bad}'"),
        ):
            session.run(None, {"x": np.zeros((5, 4), np.float32), **feed})


def test_nothing_of_a_model_stays_alive(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of models that are closed would fill the memory, for lowerings are kept for longer."""
    alive: weakref.WeakSet[Constant] = weakref.WeakSet()
    real = Builder.constant

    def noted(self: Builder[Any], constant: Constant, name: str) -> View:
        if constant.type.bytes >= 1024:
            alive.add(constant)
        return real(self, constant, name)

    monkeypatch.setattr(Builder, "constant", noted)
    for groups in (1, 16):
        run(convolution(3, groups)[0], {"x": np.zeros((1, 16, 8, 8), np.float32)}, device_name)
    sketch = Sketch("product")
    product = sketch.node(
        "MatMul", sketch.input("x", (8, 64)), sketch.constant(np.ones((64, 32), np.float32))
    )
    run(sketch.finish(product), {"x": np.ones((8, 64), np.float32)}, device_name)
    gc.collect()
    assert any(kept._kept.values()), "nothing was kept"
    assert not list(alive)


def test_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FORMS_KEPT", 3)
    build = VulkanBuilder(Target(frozenset()))
    for size in range(2, 12):
        type_ = TensorType(dtypes.FLOAT32, (size, 2))
        build.lower(softmax("x"), (softmax("x"),), values(build, "x", type_=type_), [type_])
        assert len(build._kept) <= 3


def test_what_is_forced_is_lowered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests and tuning runs force tiles one after the other, of the same product."""
    product = Node("MatMul", ("a", "b"), ("y",), {}, "product")
    type_ = TensorType(dtypes.FLOAT32, (64, 64))
    found = []
    for forced in (*((tile, 1) for tile in gemm.TILES[:2]), None):
        monkeypatch.setattr(gemm, "forced", forced)
        build = VulkanBuilder(Target(frozenset()))
        build.lower(product, (product,), values(build, "a", "b", type_=type_), [type_])
        found.append(build.launches[-1].kernel.variant)
    assert len({*found}) == 3


IMAGE = TensorType(dtypes.FLOAT32, (1, 16, 8, 8))
ROUND = Border(1, 1, 1, 1)


def native(layouts: Layouts) -> NativeBuilder:
    from vkml.cpu.native.executable import InstructionSet

    return NativeBuilder(InstructionSet.AVX2, 1, layouts)


def test_values_lie_as_is_wished_for_them() -> None:
    build = native(Layouts(frozenset({"last", "bordered"}), {"bordered": ROUND}))
    for name in ("first", "last", "bordered", "last"):
        node = Node("Relu", ("x",), (name,), {})
        [made] = build.lower(node, (node,), values(build, "x", type_=IMAGE), [IMAGE])
        assert made is not None
        assert (made.strides[1] == 1) == (name != "first")
        assert (made.buffer in build.bordered) == (name == "bordered")


def test_a_border_is_relied_on_only_where_there_is_one() -> None:
    """The same strides, but nobody writes zeros round the image: it has to be copied."""
    build = native(Layouts())
    weight = np.ones((16, 16, 3, 3), np.float32)
    attributes = {"kernel_shape": (3, 3), "pads": (1,) * 4, "group": 1, "auto_pad": "NOTSET"}
    node = Node("Conv", ("x", "w"), ("y",), {**attributes, "strides": None, "dilations": None})
    launches = []
    for is_bordered in (True, False, True):
        image = build.channels_last(IMAGE, "x", ROUND)
        if not is_bordered:
            del build.bordered[image.buffer]
        mark = len(build.launches)
        operands = [image, build.constant(Constant(dtypes.FLOAT32, weight.shape, weight), "w")]
        build.lower(node, (node,), operands, [IMAGE])
        launches.append(len(build.launches) - mark)
    assert launches == [1, 2, 1]


def test_a_group_of_numbers_alone_reads_nothing(device_name: str) -> None:
    """Where folding leaves constants alone, a group may have none but numbers, which are its own."""
    body = Graph(
        (),
        (Value("y", FLOATS),),
        (Node("Add", ("one", "two"), ("y",), {}),),
        {name: Constant(dtypes.FLOAT32, (), np.float32(n)) for name, n in (("one", 1), ("two", 2))},
        {"y": FLOATS},
        name="Add",
    )
    build = native(Layouts()) if device_name == "cpu" else VulkanBuilder(Target(frozenset()))
    node = Node("Fused", (), ("z",), {"body": body}, domain="vkml")
    for _ in range(2):
        [made] = build.lower(node, body.nodes, [], [FLOATS])
        assert made is not None
        launch = build.launches[-1]
        assert launch.reads == ()
        assert [view.buffer for view in launch.writes] == [made.buffer]
