"""Simplification drops what changes no number, and nothing else."""

from __future__ import annotations

import warnings
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from tests.vulkan_cases import assert_close
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import Constant, Graph, Node, TensorType, Value, dtypes
from vkml.ir.file_constant import OWNED_BYTES
from vkml.ir.graph import MadeConstant, ScaledConstant, scaled
from vkml.kernels import packed_weights
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.onnx import save_graph
from vkml.passes import specialise
from vkml.passes.simplify import remove_identities

Array = np.ndarray[Any, Any]

EXACT = [("Add", -0.0), ("Sub", 0.0), ("Mul", 1.0), ("Div", 1.0)]
INEXACT = [
    ("Add", 0.0),
    ("Sub", -0.0),
    ("Mul", -1.0),
    ("Mul", 0.0),
    ("Div", -1.0),
    ("Add", 1.0),
    ("Sub", 1.0),
]
"""x + 0 makes 0 of -0, as x - -0 does."""


def kept(op: str, *operands: Any, dtype: str = "float32") -> list[str]:
    """The operators left of one between two others; an operand of None is a value, others are constants."""
    sketch = Sketch("one")
    value = sketch.node("Abs", sketch.input("x", (2, 3), dtypes.from_numpy(np.dtype(dtype))))
    names = [value if o is None else sketch.constant(np.asarray(o, dtype)) for o in operands]
    graph = sketch.finish(sketch.node("Abs", sketch.node(op, *names)))
    return [node.op for node in remove_identities(specialise(prepare(graph), {"x": (2, 3)})).nodes][1:-1]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_arithmetic_that_keeps_every_number_is_dropped(dtype: str) -> None:
    for op, number in EXACT:
        assert kept(op, None, number, dtype=dtype) == [], (op, number)
        assert kept(op, None, [[number]], dtype=dtype) == [], (op, number)
        if op in ("Add", "Mul"):
            assert kept(op, number, None, dtype=dtype) == [], (op, number)
    for op, number in INEXACT:
        assert kept(op, None, number, dtype=dtype) == [op], (op, number)
    assert kept("Sub", 0.0, None, dtype=dtype) == ["Sub"]
    assert kept("Div", 1.0, None, dtype=dtype) == ["Div"]


def test_integers_have_one_zero() -> None:
    for op, number in (("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1)):
        assert kept(op, None, number, dtype="int32") == []
    assert kept("Add", None, 1, dtype="int32") == ["Add"]


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        (0.0, ("Add", 0.0), ["Add"]),
        (3.0, ("Add", 0.0), ["Add"]),
        (3.0, ("Sub", -0.0), ["Add"]),
        (-0.0, ("Add", 0.0), ["Add"]),
        (3.0, ("Mul", -1.0), ["Add", "Mul"]),
        (None, ("Add", 0.0), ["Abs", "Add"]),
    ],
)
def test_a_sum_is_never_minus_zero(first: float | None, second: tuple[str, float], left: list[str]) -> None:
    """Adding 0 once more changes no bit; behind what may be -0 it does."""
    sketch = Sketch("sums")
    value = sketch.input("x", (3,), dtypes.FLOAT32)
    if first is None:
        value = sketch.node("Abs", value)
    else:
        value = sketch.node("Add", value, sketch.constant(np.float32(first)))
    op, number = second
    graph = sketch.finish(sketch.node(op, value, sketch.constant(np.float32(number))))
    simple = remove_identities(specialise(prepare(graph), {"x": (3,)}))
    assert [node.op for node in simple.nodes] == left
    x = np.float32([-0.0, -3.0, 5.0])
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        [found] = session.run(None, {"x": x})
    before = np.abs(x) if first is None else x + np.float32(first)
    exact = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[op](before, np.float32(number))
    assert np.array_equal(found.view(np.uint32), exact.view(np.uint32))


def chosen(condition: Any) -> list[str]:
    """The operators left of a choice between a value of 2×3 and a number."""
    sketch = Sketch("one")
    value = sketch.node("Abs", sketch.input("x", (2, 3), dtypes.FLOAT32))
    made = sketch.node("Where", sketch.constant(np.asarray(condition)), value, sketch.constant(np.float32(0)))
    graph = sketch.finish(sketch.node("Abs", made))
    return [node.op for node in remove_identities(specialise(prepare(graph), {"x": (2, 3)})).nodes][1:-1]


def test_choices_that_are_known_are_dropped() -> None:
    assert chosen(np.ones((2, 3), bool)) == chosen(np.True_) == []
    assert chosen(np.array([True, False, True])) == ["Where"]
    assert chosen(np.False_) == ["Where"], "the number chosen is not of the result's shape"
    assert chosen(np.ones((4, 1, 1), bool)) == ["Where"], "the result has more axes"


def test_what_changes_the_shape_stays() -> None:
    assert kept("Mul", None, np.ones((2, 1, 1)), dtype="float32") == ["Mul"]


def test_an_output_that_is_a_nodes_value_is_made_by_that_node() -> None:
    """Also where others read the value, and where two outputs are the same one: the second is a copy."""
    value = TensorType(dtypes.FLOAT32, (2, 3))
    nodes = (
        Node("Relu", ("x",), ("r",)),
        Node("Identity", ("r",), ("first",)),
        Node("Abs", ("r",), ("last",)),
        Node("Identity", ("r",), ("second",)),
        Node("Identity", ("x",), ("given",)),
        Node("Identity", ("last",), ("again",)),
    )
    names = ("first", "second", "given", "last", "again")
    outputs = tuple(Value(name, value) for name in names)
    graph = specialise(prepare(Graph((Value("x", value),), outputs, nodes, {})), {"x": (2, 3)})
    made = remove_identities(graph)
    assert [(node.op, node.inputs, node.outputs) for node in made.nodes] == [
        ("Relu", ("x",), ("first",)),
        ("Abs", ("first",), ("last",)),
        ("Identity", ("first",), ("second",)),
        ("Identity", ("x",), ("given",)),
        ("Identity", ("last",), ("again",)),
    ]


SHAPE = (1, 3, 5, 5)
CHANNELS = 4


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).uniform(0.5, 1.5, shape).astype(np.float32)


def normalised(sketch: Sketch, value: str, name: str = "bn", **changed: Any) -> str:
    """A BatchNormalization; `changed` are vectors (scale, bias, mean, variance) and attributes."""
    vectors = [
        sketch.constant(changed.pop(key, numbers(CHANNELS, seed=at)), f"{name}_{key}")
        for at, key in enumerate(("scale", "bias", "mean", "variance"))
    ]
    return sketch.node("BatchNormalization", value, *vectors, name=name, **changed)


def convolved(sketch: Sketch, weight: str, *bias: str, name: str = "conv") -> str:
    return sketch.node("Conv", "x", weight, *bias, name=name)


def started(name: str = "folding") -> tuple[Sketch, str]:
    """A sketch of one input x and a weight that suits it."""
    sketch = Sketch(name)
    sketch.input("x", SHAPE)
    return sketch, sketch.constant(numbers(CHANNELS, 3, 2, 2), "w")


def operators(graph: Graph) -> list[str]:
    return [node.op for node in prepare(graph).nodes if node.op != "Identity"]


def same_as_reference(graph: Graph) -> None:
    """Fails unless vkml, which folds, and onnxruntime, which is told not to, compute the same."""
    model = save_graph(graph)
    assert model is not None
    feeds = {
        value.name: numbers(*value.type.dims, seed=9).astype(value.type.dtype.storage)
        for value in graph.inputs
    }
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ours = vkml.InferenceSession(model, devices="cpu")
    for made, wanted in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
        assert_close(made, np.asarray(wanted), rtol=1e-4, atol=1e-4)


def test_normalisation_is_folded_into_the_convolution() -> None:
    for bias in ((), (numbers(CHANNELS, seed=5),)):
        sketch, weight = started()
        constants = [sketch.constant(array, "b") for array in bias]
        graph = sketch.finish(normalised(sketch, convolved(sketch, weight, *constants)))
        assert operators(graph) == ["Conv"]
        same_as_reference(graph)


def test_a_large_folded_weight_is_made_where_it_is_read() -> None:
    """Each product is rounded once, and nobody keeps a copy."""
    sketch = Sketch("large")
    sketch.input("x", (1, 64, 5, 5))
    weight = numbers(CHANNELS, 64, 16, 16, seed=3)
    value = sketch.node(
        "Conv", "x", sketch.constant(weight, "w"), kernel_shape=(16, 16), auto_pad="SAME_UPPER"
    )
    graph = sketch.finish(normalised(sketch, value, epsilon=0.5))
    same_as_reference(graph)
    prepared = prepare(graph)
    [conv] = [node for node in prepared.nodes if node.op == "Conv"]
    folded = prepared.constants[conv.inputs[1]]
    scale, _, _, variance = (numbers(CHANNELS, seed=at).astype(np.float64) for at in range(4))
    factors = (scale / np.sqrt(variance + 0.5)).reshape(-1, 1, 1, 1)
    assert weight.nbytes > OWNED_BYTES and isinstance(folded, MadeConstant)
    np.testing.assert_array_equal(folded.array, (weight.astype(np.float64) * factors).astype(np.float32))
    read = weakref.ref(folded.array)
    assert read() is None
    assert isinstance(folded, ScaledConstant)
    largest = np.abs(folded.array).reshape(CHANNELS, -1).max(axis=0)
    np.testing.assert_allclose(folded.largest, largest, rtol=1e-6)


def test_how_large_a_folded_weight_is_is_known_without_making_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As matrix units ask: the largest of all filters by each element of the others' axes, in any order."""
    numbers = np.random.default_rng(2)
    array = numbers.standard_normal((20, 6, 3, 3), np.float32)
    array[:, 2] *= 1e-3
    factors = numbers.standard_normal(20)
    source = Constant(dtypes.FLOAT32, array.shape, array)
    largest = np.abs(scaled(array, factors)).reshape(20, -1).max(axis=0)
    made = ScaledConstant(dtypes.FLOAT32, array.shape, source, factors, largest)
    plain = Constant(dtypes.FLOAT32, array.shape, scaled(array, factors))

    def view(constant: Constant, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
        return View(Buffer(BufferKind.CONSTANT, 0, "w", constant), dtypes.FLOAT32, shape, strides)

    ways = [((54, 20), (1, 54)), ((2, 9, 3, 20), (27, 1, 9, 54))]
    expected = [packed_weights.range_of(plain, view(plain, *way)) for way in ways]
    with monkeypatch.context() as patched:
        patched.setattr(MadeConstant, "array", None)
        assert [packed_weights.range_of(made, view(made, *way)) for way in ways] == expected
    # Some of the filters alone, and rows of another axis.
    for way in (((54, 10), (1, 54)), ((20, 54), (54, 1))):
        assert packed_weights.range_of(made, view(made, *way)) == packed_weights.range_of(
            plain, view(plain, *way)
        )


def test_folding_heeds_epsilon() -> None:
    sketch, weight = started()
    variance = np.full(CHANNELS, 1e-3, np.float32)
    value = normalised(sketch, convolved(sketch, weight), variance=variance, epsilon=0.5)
    graph = sketch.finish(value)
    assert operators(graph) == ["Conv"]
    same_as_reference(graph)


def test_names_made_by_folding_meet_no_value_of_the_model() -> None:
    sketch, weight = started()
    plain = sketch.finish(normalised(sketch, convolved(sketch, weight)))
    taken = sorted(prepare(plain).constants.keys() - plain.constants.keys())
    assert len(taken) == 2
    for is_input in (True, False):
        sketch, weight = started()
        for name in taken:
            if is_input:
                sketch.input(name, (CHANNELS,))
            else:
                sketch.constant(numbers(CHANNELS, seed=7), name)
        folded = normalised(sketch, convolved(sketch, weight))
        graph = sketch.finish(folded, *(sketch.node("Neg", name) for name in taken))
        assert "BatchNormalization" not in operators(graph)
        same_as_reference(graph)
    sketch, weight = started("taken by nodes")
    made = [sketch.node("Neg", "x", name=f"neg{at}") for at in range(2)]
    graph = sketch.finish(normalised(sketch, convolved(sketch, weight)), *made)
    names = dict(zip(made, taken, strict=True))
    nodes = tuple(
        replace(
            node,
            inputs=tuple(names.get(name, name) for name in node.inputs),
            outputs=tuple(names.get(name, name) for name in node.outputs),
        )
        for node in graph.nodes
    )
    same_as_reference(replace(graph, nodes=nodes))


def test_a_convolution_that_others_read_stays() -> None:
    sketch, weight = started("two normalisations")
    conv = convolved(sketch, weight)
    first = normalised(sketch, conv, "first")
    second = normalised(sketch, conv, "second", mean=numbers(CHANNELS, seed=6))
    graph = sketch.finish(first, second)
    assert operators(graph) == ["Conv", "BatchNormalization", "BatchNormalization"]
    same_as_reference(graph)

    sketch, weight = started("another reader")
    conv = convolved(sketch, weight)
    graph = sketch.finish(sketch.node("Relu", conv), normalised(sketch, conv))
    assert sorted(operators(graph)) == ["BatchNormalization", "Conv", "Relu"]
    same_as_reference(graph)

    sketch, weight = started("a graph output")
    graph = sketch.finish(normalised(sketch, convolved(sketch, weight)))
    named = replace(graph.outputs[0], name="conv:0")
    graph = replace(graph, outputs=(*graph.outputs, named))
    assert operators(graph) == ["Conv", "BatchNormalization"]
    same_as_reference(graph)


@pytest.mark.parametrize("statistics", [0, 2])
def test_a_normalisation_in_training_stays(statistics: int) -> None:
    """It goes by the batch's own mean and variance, whether or not anybody reads the running ones."""
    sketch, weight = started()
    graph = sketch.finish(normalised(sketch, convolved(sketch, weight), training_mode=1))
    extra = ("mean", "variance")[:statistics]
    vector = TensorType(dtypes.FLOAT32, (CHANNELS,))
    graph = replace(
        graph,
        nodes=tuple(
            replace(node, outputs=(*node.outputs, *extra)) if node.op == "BatchNormalization" else node
            for node in graph.nodes
        ),
        outputs=(*graph.outputs, *(Value(name, vector) for name in extra)),
    )
    assert operators(graph) == ["Conv", "BatchNormalization"]
    if statistics:  # else onnxruntime refuses it
        same_as_reference(graph)


def test_a_normalisation_with_results_that_it_has_not_is_refused() -> None:
    """Running statistics without training: not folded away, so that inference says what is wrong."""
    sketch, weight = started()
    graph = sketch.finish(normalised(sketch, convolved(sketch, weight)))
    nodes = tuple(
        replace(node, outputs=(*node.outputs, "mean", "variance"))
        if node.op == "BatchNormalization"
        else node
        for node in graph.nodes
    )
    with pytest.raises(InvalidGraph, match=r"'bn'.*training_mode=1 only"):
        specialise(prepare(replace(graph, nodes=nodes)), {"x": SHAPE})


def test_weights_of_two_convolutions_are_folded_apart() -> None:
    sketch, weight = started()
    bias = sketch.constant(numbers(CHANNELS, seed=5), "b")
    first = normalised(sketch, convolved(sketch, weight, bias, name="conv1"), "first")
    second = convolved(sketch, weight, bias, name="conv2")
    second = normalised(sketch, second, "second", variance=numbers(CHANNELS, seed=6) + 3)
    third = convolved(sketch, weight, bias, name="conv3")
    graph = sketch.finish(first, second, third)
    assert operators(graph) == ["Conv", "Conv", "Conv"]
    same_as_reference(graph)


@pytest.mark.parametrize("key", ["scale", "bias", "mean", "variance"])
@pytest.mark.parametrize("shape", [(), (1,), (CHANNELS - 1,), (CHANNELS + 1,), (CHANNELS, 1), (1, CHANNELS)])
def test_vectors_that_do_not_fit_are_refused(key: str, shape: tuple[int, ...]) -> None:
    sketch, weight = started()
    graph = sketch.finish(normalised(sketch, convolved(sketch, weight), **{key: numbers(*shape)}))
    with pytest.raises(ShapeError, match="'bn'"):
        specialise(prepare(graph), {"x": SHAPE})


@pytest.mark.parametrize("weight", [(), (4,), (4, 3), (1, 3, 2, 2), (4, 3, 2), (4, 1, 2, 2)])
def test_weights_that_do_not_fit_are_refused(weight: tuple[int, ...]) -> None:
    sketch, _ = started()
    graph = sketch.finish(normalised(sketch, convolved(sketch, sketch.constant(numbers(*weight)))))
    with pytest.raises(ShapeError):
        specialise(prepare(graph), {"x": SHAPE})


@pytest.mark.parametrize("shape", [(), (CHANNELS,), (CHANNELS, 3)])
def test_weights_without_a_kernel_are_left_to_inference(shape: tuple[int, ...]) -> None:
    sketch, _ = started()
    vectors = {key: numbers(*shape[:1]) for key in ("scale", "bias", "mean", "variance")}
    value = normalised(sketch, convolved(sketch, sketch.constant(numbers(*shape))), **vectors)
    assert operators(sketch.finish(value)) == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize("shape", [(), (1,), (CHANNELS + 1,), (CHANNELS, 1)])
def test_a_bias_of_the_convolution_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    sketch, weight = started()
    conv = convolved(sketch, weight, sketch.constant(numbers(*shape)))
    with pytest.raises(ShapeError, match="'conv'"):
        specialise(prepare(sketch.finish(normalised(sketch, conv))), {"x": SHAPE})


def test_a_grouped_convolution_is_folded() -> None:
    sketch = Sketch("groups")
    x, weight = sketch.input("x", (1, 2, 5, 5)), sketch.constant(numbers(CHANNELS, 1, 2, 2))
    graph = sketch.finish(normalised(sketch, sketch.node("Conv", x, weight, group=2)))
    assert operators(graph) == ["Conv"]
    same_as_reference(graph)


def test_vectors_of_another_type_stay_apart() -> None:
    """Legal since opset 15, and no statistics of float64 may turn results of float32 into float64 ones."""
    sketch, weight = started()
    wide = {key: numbers(CHANNELS, seed=3).astype(np.float64) for key in ("mean", "variance")}
    graph = sketch.finish(normalised(sketch, convolved(sketch, weight), **wide))
    assert operators(graph) == ["Conv", "BatchNormalization"]
    [result] = vkml.InferenceSession(save_graph(graph), devices="cpu").run(None, {"x": numbers(*SHAPE)})
    assert result.dtype == np.float32


def test_what_folding_would_overflow_stays_and_warns_nobody() -> None:
    sketch, _ = started()
    weight = sketch.constant(np.full((CHANNELS, 3, 2, 2), 1e30, np.float32), "large")
    scale = np.full(CHANNELS, 1e20, np.float32)
    graph = sketch.finish(normalised(sketch, convolved(sketch, weight), scale=scale))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert operators(graph) == ["Conv", "BatchNormalization"]
        session = vkml.InferenceSession(save_graph(graph), devices="cpu")
        [result] = session.run(None, {"x": np.full(SHAPE, 1e-20, np.float32)})
    assert np.isfinite(result).all() and (result > 1e29).all()


@pytest.mark.parametrize("element", [1e30, -1e30, np.inf, -np.inf, np.nan])
def test_one_element_that_folding_would_not_keep_finite(element: float) -> None:
    sketch, _ = started()
    values = np.ones((CHANNELS, 3, 2, 2), np.float32)
    values[-1, 1, 0, 1] = element
    scale = np.full(CHANNELS, 1e20, np.float32)
    graph = sketch.finish(normalised(sketch, convolved(sketch, sketch.constant(values, "one")), scale=scale))
    assert operators(graph) == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize("variance", [-1.0, 0.0, np.inf, np.nan])
def test_deviations_that_are_no_numbers_warn_nobody(variance: float) -> None:
    sketch, weight = started()
    vector = np.full(CHANNELS, variance, np.float32)
    graph = sketch.finish(normalised(sketch, convolved(sketch, weight), variance=vector, epsilon=0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same_as_reference(graph)


def test_an_absent_result_is_not_mistaken_for_another_nodes() -> None:
    """Both BatchNormalization and Dropout here have "" for their first result."""
    sketch, weight = started()
    graph = sketch.finish(normalised(sketch, convolved(sketch, weight)), sketch.node("Dropout", "x"))
    nodes = {node.op: node for node in graph.nodes}
    absent = replace(nodes["BatchNormalization"], outputs=("",))
    dropout = replace(nodes["Dropout"], outputs=("", "mask"))
    made = replace(
        graph,
        nodes=(nodes["Conv"], absent, dropout),
        outputs=(replace(graph.outputs[0], name="mask"),),
    )
    assert operators(made) == ["Dropout"]
