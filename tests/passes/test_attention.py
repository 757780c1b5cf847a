"""Attention is found as exporters write it, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkml
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, Known, Node, TensorType, Value, dtypes, find
from vkml.ir.operator import REGISTRY
from vkml.onnx import save_graph
from vkml.passes import expand_steps, fuse_attention, remove_dead, simplify, specialise
from vkml.passes.attention import Candidate

Array = npt.NDArray[Any]


def normal(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


class Heads(Sketch):
    """Queries, keys and values of two batches of three heads: 7 rows, 9 keys, 8 columns."""

    def __init__(self, dtype: Any = np.float32) -> None:
        super().__init__("attention")
        self.feed: dict[str, Array] = {}
        self.dtype = dtype
        self.q = self.given("q", normal(1, 2, 3, 7, 8).astype(dtype))
        self.k = self.given("k", normal(2, 2, 3, 9, 8).astype(dtype))
        self.v = self.given("v", normal(3, 2, 3, 9, 8).astype(dtype))

    def given(self, name: str, array: Array) -> str:
        self.feed[name] = array
        return self.input(name, array.shape, dtypes.from_numpy(array.dtype))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, self.dtype))

    def transposed(self) -> str:
        return self.node("Transpose", self.k, perm=(0, 1, 3, 2))

    def product(self) -> str:
        return self.node("MatMul", self.q, self.transposed())

    def mixed(self, scores: str, axis: int = -1) -> str:
        return self.node("MatMul", self.node("Softmax", scores, axis=axis), self.v)


def evaluate(graph: Graph, feed: Mapping[str, Array]) -> list[Array]:
    values: dict[str, Array] = {**feed, **{name: c.array for name, c in graph.constants.items()}}
    for node in graph.nodes:
        given = [values[name] if name else None for name in node.inputs]
        values.update(zip(node.outputs, find(node).evaluate(node, given), strict=False))
    return [values[value.name] for value in graph.outputs]


def everything(found: Sequence[Candidate]) -> set[str]:
    return {each.node.outputs[0] for each in found}


def specialised(sketch: Heads, *outputs: str) -> Graph:
    graph = specialise(prepare(sketch.finish(*outputs)), {n: a.shape for n, a in sketch.feed.items()})
    return remove_dead(simplify(remove_dead(graph)))


def fused(sketch: Heads, *outputs: str) -> list[Node]:
    """The attentions found; what they compute is what the nodes did."""
    graph = specialised(sketch, *outputs)
    after = fuse_attention(graph, everything)
    names = {*sketch.feed, *graph.constants}
    for node in after.nodes:
        assert names.issuperset(node.reads), "an order in which values are there before they are read"
        names.update(node.outputs)
    tolerance = 2e-5 if sketch.dtype == np.float32 else 4e-3
    for have, want in zip(evaluate(after, sketch.feed), evaluate(graph, sketch.feed), strict=True):
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance)
    made = [node for node in after.nodes if node.op == "Attention"]
    for node in made:  # types as they were
        known = [None if not name else Known(graph.types[name], None) for name in node.inputs]
        assert find(node).infer(node, known) == [graph.types[node.outputs[0]]]
    return made


def plain(s: Heads) -> str:
    return s.mixed(s.product())


def divided(s: Heads) -> str:
    return s.mixed(s.node("Div", s.product(), s.number(2.5)), axis=3)


def number_first(s: Heads) -> str:
    return s.mixed(s.node("Mul", s.number(0.4), s.product()))


def scaled_operands(s: Heads) -> str:
    """As scaled_dot_product_attention is exported."""
    q = s.node("Mul", s.q, s.number(0.6))
    return s.mixed(s.node("MatMul", q, s.node("Mul", s.transposed(), s.number(0.6))))


def scaled_twice(s: Heads) -> str:
    q = s.node("Div", s.q, s.number(2))
    return s.mixed(s.node("Mul", s.node("MatMul", q, s.transposed()), s.number(0.5)))


def added_mask(s: Heads) -> str:
    mask = s.given("mask", np.where(np.arange(9) < [[[[5]]], [[[9]]]], 0, -6e4).astype(s.dtype))
    return s.mixed(s.node("Add", s.node("Div", s.product(), s.number(3)), mask))


def mask_first(s: Heads) -> str:
    return s.mixed(s.node("Add", s.given("bias", normal(4, 3, 7, 9).astype(s.dtype)), s.product()))


def kept(s: Heads) -> str:
    mask = s.given("mask", normal(5, 2, 1, 7, 9) > -0.5)
    return s.mixed(s.node("Where", mask, s.product(), s.number(-1e4)))


def hidden(s: Heads) -> str:
    mask = s.given("mask", normal(5, 7, 9) > 0.5)
    return s.mixed(s.node("Where", mask, s.number(-np.inf), s.product()))


def generative(s: Heads) -> str:
    """As GPT-2 is exported: a slice of a constant triangle, and a mask that is added."""
    whole = s.constant(np.tri(16, 16, dtype=np.bool_).reshape(1, 1, 16, 16))
    for axis, (start, end) in ((2, (2, 9)), (3, (0, 9))):
        bounds = [s.constant(np.array([number], np.int64)) for number in (start, end, axis)]
        whole = s.node("Slice", whole, *bounds)
    scores = s.node("Where", whole, s.node("Div", s.product(), s.number(3)), s.number(-1e4))
    return s.mixed(s.node("Add", scores, s.given("mask", normal(4, 2, 1, 1, 9).astype(s.dtype))))


def converted(s: Heads) -> str:
    """float16 with the Softmax in float32."""
    scores = s.node("Cast", s.node("Mul", s.product(), s.number(0.3)), to=1)
    weights = s.node("Cast", s.node("Softmax", scores, axis=-1), to=10)
    return s.node("MatMul", weights, s.v)


def split_heads(s: Heads) -> str:
    """Keys that are split into heads and transposed at once."""
    x = s.given("x", normal(6, 2, 9, 24).astype(s.dtype))
    split = s.node("Reshape", x, s.constant(np.array([2, 9, 3, 8], np.int64)))
    scores = s.node("MatMul", s.q, s.node("Transpose", split, perm=(0, 2, 3, 1)))
    return s.mixed(scores)


def of_three_axes(s: Heads) -> str:
    q, k, v = (s.node("Reshape", x, s.constant(np.array([6, -1, 8], np.int64))) for x in (s.q, s.k, s.v))
    scores = s.node("MatMul", q, s.node("Transpose", k, perm=(0, 2, 1)))
    return s.node("MatMul", s.node("Softmax", scores, axis=2), v)


def cleared_weights(s: Heads, scores: str, zero: float = 0.0) -> tuple[str, str]:
    """Probabilities with a number in the place of NaN, and where that was."""
    weights = s.node("Softmax", scores, axis=-1)
    is_nan = s.node("IsNaN", weights)
    return s.node("Where", is_nan, s.number(zero), weights), is_nan


def cleared(s: Heads) -> str:
    """As PyTorch exports masks: a row that sees nothing weighs nothing."""
    mask = s.given("mask", normal(5, 2, 1, 7, 9) > 2.0)
    hidden = s.node("Where", mask, s.number(0.0), s.number(-np.inf))
    weights, _ = cleared_weights(s, s.node("Add", s.product(), hidden))
    return s.node("MatMul", weights, s.v)


FOUND: dict[str, tuple[Callable[[Heads], str], dict[str, Any]]] = {
    "plain": (plain, {"scale": 1.0}),
    "divided": (divided, {"scale": 0.4}),
    "number first": (number_first, {"scale": 0.4}),
    "scaled operands": (scaled_operands, {"scale": 0.36}),
    "scaled twice": (scaled_twice, {"scale": 0.25}),
    "added mask": (added_mask, {"scale": 1 / 3, "causal_offset": None}),
    "mask first": (mask_first, {}),
    "kept": (kept, {"fill": -1e4, "is_mask_hiding": 0}),
    "hidden": (hidden, {"fill": -np.inf, "is_mask_hiding": 1}),
    "generative": (generative, {"fill": -1e4, "causal_offset": None}),
    "split heads": (split_heads, {}),
    "three axes": (of_three_axes, {}),
    "cleared": (cleared, {"is_nan_zero": 1, "is_empty_zero": 0}),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    build, attributes = FOUND[name]
    sketch = Heads()
    [node] = fused(sketch, build(sketch))
    for key, value in attributes.items():
        assert node.attributes[key] == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize("build", [converted, plain, added_mask, kept])
def test_found_in_float16(build: Callable[[Heads], str]) -> None:
    sketch = Heads(np.float16)
    fused_nodes = fused(sketch, build(sketch))
    assert len(fused_nodes) == 1


TRIANGLE = np.tri(7, 9, 2, dtype=np.bool_)


@pytest.mark.parametrize(
    ("mask", "offset"),
    [
        (TRIANGLE, 2),
        (np.where(TRIANGLE, 0, -1e9).astype(np.float32), 2),
        (np.where(np.tri(7, 9), 0, -np.inf).astype(np.float32).reshape(1, 1, 7, 9), 0),
        (np.where(TRIANGLE, 0, -1e4).astype(np.float32), None),  # scores may come near to it
        (np.where(TRIANGLE, 0.5, -1e9).astype(np.float32), None),
        (np.where(TRIANGLE, 0, -1e9 * np.arange(1, 10)).astype(np.float32), None),
        (np.where(TRIANGLE | (np.arange(9) == 8), 0, -1e9).astype(np.float32), None),
        (np.tri(7, 9, -1, dtype=np.bool_), None),  # a row sees nothing
        (np.tri(7, 9, 8, dtype=np.bool_), None),  # nothing is hidden
        (np.tri(1, 9, 2, dtype=np.bool_), None),
        (np.broadcast_to(TRIANGLE, (2, 1, 7, 9)), None),
    ],
    ids=str,
)
def test_constant_triangles_are_causal(mask: Array, offset: int | None) -> None:
    sketch = Heads()
    held = sketch.constant(np.ascontiguousarray(mask))
    if mask.dtype == np.bool_:
        scores = sketch.node("Where", held, sketch.product(), sketch.number(-3e38))
    else:
        scores = sketch.node("Add", sketch.product(), held)
    [node] = fused(sketch, sketch.mixed(scores))
    assert node.attributes["causal_offset"] == offset
    if mask.dtype == np.bool_ and mask.all():  # which is no choice
        assert len(node.inputs) == 3
    else:
        assert len(node.inputs) == (3 if offset is not None else 4 if mask.dtype == np.bool_ else 5)


def test_triangles_in_float16_stay_masks() -> None:
    """Nobody looks there for NaN among the values that a row does not see."""
    sketch = Heads(np.float16)
    scores = sketch.node("Where", sketch.constant(TRIANGLE), sketch.product(), sketch.number(-np.inf))
    [node] = fused(sketch, sketch.mixed(scores))
    assert node.attributes["causal_offset"] is None


def scores_wanted(s: Heads) -> list[str]:
    scores = s.node("Div", s.product(), s.number(2))
    return [s.mixed(scores), scores]


def weights_wanted(s: Heads) -> list[str]:
    weights = s.node("Softmax", s.product(), axis=-1)
    return [s.node("MatMul", weights, s.v), weights]


def scores_read_twice(s: Heads) -> list[str]:
    scores = s.product()
    return [s.mixed(scores), s.node("Neg", scores)]


def weights_read_twice(s: Heads) -> list[str]:
    weights = s.node("Softmax", s.product(), axis=-1)
    return [s.node("Add", s.node("MatMul", weights, s.v), s.node("MatMul", weights, s.v))]


def other_axis(s: Heads) -> list[str]:
    return [s.mixed(s.product(), axis=2)]


def values_on_the_left(s: Heads) -> list[str]:
    weights = s.node("Softmax", s.product(), axis=-1)
    return [s.node("MatMul", s.given("w", normal(4, 2, 3, 5, 7)), weights)]


def something_between(s: Heads) -> list[str]:
    return [s.node("MatMul", s.node("Neg", s.node("Softmax", s.product(), axis=-1)), s.v)]


def negative_scale(s: Heads) -> list[str]:
    return [s.mixed(s.node("Mul", s.product(), s.number(-2)))]


def computed_scale(s: Heads) -> list[str]:
    return [s.mixed(s.node("Mul", s.product(), s.given("scale", np.float32(0.5).reshape(()))))]


def scale_of_a_head(s: Heads) -> list[str]:
    return [s.mixed(s.node("Mul", s.product(), s.constant(normal(4, 3, 1, 1))))]


def number_divided(s: Heads) -> list[str]:
    return [s.mixed(s.node("Div", s.number(2), s.node("Add", s.product(), s.number(100))))]


def scaled_after_the_mask(s: Heads) -> list[str]:
    masked = s.node("Add", s.product(), s.given("mask", normal(4, 7, 9)))
    return [s.mixed(s.node("Mul", masked, s.number(0.5)))]


def computed_fill(s: Heads) -> list[str]:
    mask = s.given("mask", normal(5, 7, 9) > 0)
    return [s.mixed(s.node("Where", mask, s.product(), s.given("fill", normal(6, 7, 9))))]


def no_softmax(s: Heads) -> list[str]:
    return [s.node("MatMul", s.node("LogSoftmax", s.product(), axis=-1), s.v)]


def cleared_with_another_number(s: Heads) -> list[str]:
    return [s.node("MatMul", cleared_weights(s, s.product(), 1.0)[0], s.v)]


def cleared_and_read(s: Heads) -> list[str]:
    weights, is_nan = cleared_weights(s, s.product())
    return [s.node("MatMul", weights, s.v), s.node("Not", is_nan)]


def nan_kept_alone(s: Heads) -> list[str]:
    weights = s.node("Softmax", s.product(), axis=-1)
    only = s.node("Where", s.node("IsNaN", weights), weights, s.number(0.0))
    return [s.node("MatMul", only, s.v)]


MISSED = (
    cleared_with_another_number,
    cleared_and_read,
    nan_kept_alone,
    scores_wanted,
    weights_wanted,
    scores_read_twice,
    weights_read_twice,
    other_axis,
    values_on_the_left,
    something_between,
    negative_scale,
    computed_scale,
    scale_of_a_head,
    number_divided,
    scaled_after_the_mask,
    computed_fill,
    no_softmax,
)


@pytest.mark.parametrize("build", MISSED)
def test_near_misses_stay_as_they_are(build: Callable[[Heads], list[str]]) -> None:
    sketch = Heads()
    assert fused(sketch, *build(sketch)) == []


def test_float16_is_not_cleared_by_the_kernel() -> None:
    """There infinities among the values are not looked for, which zeros make NaN of."""
    sketch = Heads(np.float16)
    assert not fused(sketch, cleared(sketch))


def test_masks_that_widen_scores_are_none() -> None:
    sketch = Heads()
    mask = sketch.given("mask", normal(4, 4, 1, 1, 1, 9))
    values = sketch.node(
        "MatMul", sketch.node("Softmax", sketch.node("Add", sketch.product(), mask)), sketch.v
    )
    assert fused(sketch, values) == []


def test_operands_scaled_for_others_too_are_taken_scaled() -> None:
    sketch = Heads()
    scaled = sketch.node("Mul", sketch.q, sketch.number(0.5))
    mixed = sketch.mixed(sketch.node("MatMul", scaled, sketch.transposed()))
    [node] = fused(sketch, mixed, sketch.node("Neg", scaled))
    assert node.attributes["scale"] == 1.0
    assert node.inputs[0] == "Mul_0:0"


def test_what_a_body_reads_is_wanted() -> None:
    """A branch that captures the scores needs them."""
    sketch = Heads()
    scores = sketch.product()
    graph = specialised(sketch, sketch.mixed(scores))
    branch = Graph((), (Value("out", graph.types[scores]),), (Node("Neg", (scores,), ("out",)),), {})
    reader = Node("If", ("q",), ("z",), {"then_branch": branch, "else_branch": branch})
    whole = replace(graph, nodes=(*graph.nodes, reader))
    assert "Attention" in [node.op for node in fuse_attention(graph, everything).nodes]
    assert "Attention" not in [node.op for node in fuse_attention(whole, everything).nodes]


def test_what_the_back_end_refuses_stays_as_it_is() -> None:
    sketch = Heads()
    graph = specialised(sketch, plain(sketch))
    assert [n.op for n in fuse_attention(graph, lambda found: ()).nodes] == [n.op for n in graph.nodes]
    asked: list[Candidate] = []

    def accepted(found: Any) -> list[str]:
        asked.extend(found)
        return []

    fuse_attention(graph, accepted)
    [candidate] = asked
    assert [node.op for node in candidate.members] == ["MatMul", "Softmax", "MatMul"]


def chained(count: int) -> Graph:
    """Products of normalised rows: each is the last of one attention and the first of another."""
    sketch = Sketch("chained")
    x = sketch.input("x", (20, 16))
    for number in range(count):
        x = sketch.node("Softmax", sketch.node("MatMul", x, sketch.constant(normal(number, 16, 16))))
    return sketch.finish(x)


def test_a_product_is_of_one_attention_alone() -> None:
    graph = remove_dead(simplify(specialise(prepare(chained(5)), {"x": (20, 16)})))
    merged = fuse_attention(graph, everything)
    assert [node.op for node in merged.nodes].count("Attention") == 2
    x = normal(9, 20, 16)
    for mine, exact in zip(evaluate(merged, {"x": x}), evaluate(graph, {"x": x}), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-5)


def test_the_cpu_computes_it_as_ever() -> None:
    sketch = Heads()
    feed = dict(sketch.feed)
    model = save_graph(sketch.finish(plain(sketch)))
    with vkml.InferenceSession(model, devices="cpu") as session:
        session.run(None, feed)
        assert all("Attention" not in step.operators for step in session.report().steps)


def test_float16_is_rounded_once(device_name: str) -> None:
    """Scores and probabilities stay float32: rounded in between, errors were four times as large."""
    sketch = Heads(np.float16)
    feed = {name: array * array.dtype.type(4 if name == "v" else 1.5) for name, array in sketch.feed.items()}
    model = save_graph(sketch.finish(scaled_operands(sketch)))
    with vkml.InferenceSession(model, devices=device_name) as session:
        [found] = session.run(None, feed)
    q, k, v = (feed[name].astype(np.float64) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) * float(np.float16(0.6)) ** 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_array_less(np.abs(found - exact), 0.51 * np.spacing(np.abs(found)).astype(np.float64))


@pytest.mark.parametrize(
    "attributes",
    [
        {"scale": 0.3},
        {"is_key_transposed": 1, "is_mask_hiding": 1, "fill": -3.0},
        {"causal_offset": 2},
        {"causal_offset": 0, "fill": -7.0, "is_fill_added": 1},
        {"group": 3, "softcap": 2.0, "is_empty_zero": 1},
        {"group": 3, "causal_offset": -2, "is_empty_zero": 1},
        {"is_nan_zero": 1},
    ],
)
def test_attention_that_no_kernel_takes_is_written_as_its_steps(attributes: dict[str, Any]) -> None:
    feed = {"q": normal(1, 2, 3, 5, 4), "k": normal(2, 2, 3, 6, 4), "v": normal(3, 2, 3, 6, 2)}
    if attributes.get("is_key_transposed"):
        feed["k"] = feed["k"].swapaxes(-1, -2)
    if attributes.get("group"):
        feed["k"], feed["v"] = feed["k"][:, :1], feed["v"][:, :1]
    if "causal_offset" not in attributes or attributes.get("group"):
        feed["mask"] = np.random.default_rng(4).random((5, 6)) < 0.7
        feed["mask"][2] = not attributes.get("is_nan_zero")
    feed["bias"] = normal(5, 3, 1, 6).astype(np.float16)
    names = [name if name in feed else "" for name in ("q", "k", "v", "mask", "bias")]
    operator = REGISTRY["vkml", "Attention"]
    node = Node(
        "Attention", tuple(names), ("y", "sums"), {**operator.attributes, **attributes}, "", "vkml", 1
    )
    types = {name: TensorType(dtypes.from_numpy(x.dtype), x.shape) for name, x in feed.items()}
    types |= {name: TensorType(dtypes.FLOAT32, (2, 3, 5, 2)) for name in ("y", "sums")}
    inputs = tuple(Value(name, types[name]) for name in feed)
    graph = Graph(inputs, tuple(Value(name, types[name]) for name in ("y", "sums")), (node,), {}, types)
    assert expand_steps(graph, lambda graph, nodes: {node.key for node in nodes}).nodes == (node,)
    steps = expand_steps(graph, lambda graph, nodes: ())
    assert "Attention" not in {node.op for node in steps.nodes}
    for found, expected in zip(evaluate(steps, feed), evaluate(graph, feed), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_gradients_alone_read_is_not_made_for_nobody() -> None:
    known = REGISTRY["vkml", "Attention"]
    node = Node("Attention", ("q", "k", "v"), ("y", "sums"), dict(known.attributes), "", "vkml", 1)
    types = {name: TensorType(dtypes.FLOAT32, (2, 3, 5, 4)) for name in ("q", "k", "v", "y")}
    types["sums"] = TensorType(dtypes.FLOAT32, (2, 3, 5, 2))
    inputs = tuple(Value(name, types[name]) for name in ("q", "k", "v"))
    both = Graph(inputs, tuple(Value(name, types[name]) for name in ("y", "sums")), (node,), {}, types)
    assert remove_dead(both) is both
    [kept] = remove_dead(replace(both, outputs=both.outputs[:1])).nodes
    assert kept.outputs == ("y",)
    [kept] = remove_dead(replace(both, outputs=both.outputs[1:])).nodes
    assert kept.outputs == ("y", "sums")
