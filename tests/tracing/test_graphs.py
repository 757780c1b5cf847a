"""Graphs that are recorded: branches, loops, scans, sequences, their values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import device_called, host, leaf, placed
from tests.control_models import evaluated, model
from vkml import tracing
from vkml.errors import RuntimeException
from vkml.onnx import load_graph
from vkml.passes import normalise
from vkml.tracing.graphs import GraphRecorder

Array = np.ndarray[Any, Any]
STEP = 1e-5


def recorded(source: bytes, feed: dict[str, Array], device: str = "cpu") -> tuple[list[Any], dict[str, Any]]:
    """Outputs as values, and the inputs, of which floats are leaves."""
    graph = normalise(load_graph(source))
    where = device_called(device)
    values = {name: (leaf if x.dtype.kind == "f" else placed)(x, where) for name, x in feed.items()}
    return GraphRecorder().run(graph, [values[value.name] for value in graph.inputs]), values


def check(text: str, feed: dict[str, Array], *, device: str = "cpu", opset: int = 18) -> None:
    """Compares values with the operators' own, and gradients with differences of these."""
    source = model(text, opset)
    made, values = recorded(source, feed)
    expected = evaluated(source, feed)
    tracing.evaluate(made)
    for value, right in zip(made, expected, strict=True):
        np.testing.assert_allclose(host(value), right, rtol=1e-12)
    random = np.random.default_rng(0)
    counted = [at for at, right in enumerate(expected) if right.dtype.kind == "f"]
    weights = [random.standard_normal(expected[at].shape) for at in counted]

    def total(moved: dict[str, Array]) -> float:
        results = evaluated(source, moved)
        return sum(float((results[at] * w).sum()) for at, w in zip(counted, weights, strict=True))

    by = [name for name, x in feed.items() if x.dtype.kind == "f"]
    found = tracing.gradients(
        [made[at] for at in counted], [placed(w, None) for w in weights], [values[name] for name in by]
    )
    tracing.evaluate([value for value in found if value is not None])
    for name, gradient in zip(by, found, strict=True):
        direction = random.standard_normal(feed[name].shape)
        moved = [total({**feed, name: feed[name] + sign * STEP * direction}) for sign in (1, -1)]
        right = (moved[0] - moved[1]) / (2 * STEP)
        mine = 0.0 if gradient is None else float((host(gradient) * direction).sum())
        assert abs(mine - right) <= 1e-6 * max(1.0, abs(right)), (name, mine, right)
    if device != "cpu":
        narrow = {name: x.astype(np.float32) if x.dtype.kind == "f" else x for name, x in feed.items()}
        there, given = recorded(model(text.replace("double", "float"), opset), narrow, device)
        where = device_called(device)
        other = tracing.gradients(
            [there[at] for at in counted],
            [placed(w.astype(np.float32), where) for w in weights],
            [given[name] for name in by],
        )
        known = [(a, b) for a, b in zip(other, found, strict=True) if a is not None and b is not None]
        tracing.evaluate([a for a, _ in known])
        for a, b in known:
            np.testing.assert_allclose(host(a), host(b), rtol=1e-4, atol=1e-5)


def numbers(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


IF = """
agraph (bool c, double[2,3] x, double[3] w) => (double[2,3] y) {
    y = If (c) <
        then_branch = g1 () => (double[2,3] y1) { s = Mul (x, w)  y1 = Tanh (s) },
        else_branch = g2 () => (double[2,3] y2) { y2 = Exp (x) }
    >
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_branches(condition: bool, device_name: str) -> None:
    check(IF, {"c": np.array(condition), "x": numbers(2, 3), "w": numbers(3)}, device=device_name)


LOOP = """
agraph (int64 n, bool c, double[3] h, double[3] w) => (double[3] last, double[trips, 3] all) {
    last, all = Loop (n, c, h) <
        body = b (int64 i, bool goes, double[3] x) => (bool on, double[3] made, double[3] seen) {
            on = Identity (goes)
            p = Mul (x, w)
            made = Sin (p)
            f = CastLike (i, p)
            seen = Mul (p, f)
        }
    >
}"""


@pytest.mark.parametrize("trips", [3, 1, 0])
def test_a_counted_loop_with_carried_captured_and_collected_values(trips: int, device_name: str) -> None:
    feed = {"n": np.array(trips), "c": np.array(True), "h": numbers(3), "w": numbers(3, seed=2)}
    check(LOOP, feed, device=device_name)


def test_a_loop_that_finds_its_end() -> None:
    text = """
    agraph (double[2] h, double w) => (double[2] last, int64 count) {
        none = Constant <value = int64 {1000}> ()
        yes = Constant <value = bool {1}> ()
        zero = Constant <value = int64 {0}> ()
        last, count = Loop (none, yes, h, zero) <
            body = b (int64 i, bool goes, double[2] x, int64 k) => (bool on, double[2] made, int64 more) {
                made = Mul (x, w)
                one = Constant <value = int64 {1}> ()
                more = Add (k, one)
                axes = Constant <value_ints = [0]> ()
                total = ReduceSumSquare <keepdims = 0> (made, axes)
                bound = Constant <value = double {100.0}> ()
                on = Less (total, bound)
            }
        >
    }"""
    check(text, {"h": np.array([0.3, -0.4]), "w": np.array(1.7)})


def test_a_branch_in_a_loop() -> None:
    text = """
    agraph (double[2] h, double[2] w) => (double[2] last) {
        n = Constant <value = int64 {4}> ()
        last = Loop (n, "", h) <
            body = b (int64 i, bool goes, double[2] x) => (bool on, double[2] made) {
                on = Constant <value = bool {1}> ()
                two = Constant <value = int64 {2}> ()
                odd = Mod (i, two)
                flag = Cast <to = 9> (odd)
                made = If (flag) <
                    then_branch = t () => (double[2] a) { a = Mul (x, w) },
                    else_branch = e () => (double[2] d) { d = Sin (x) }
                >
            }
        >
    }"""
    check(text, {"h": numbers(2), "w": numbers(2, seed=5)})


SCAN = """
agraph (double[2] h, double[4,2] x, double[2,4] z, double[2] w) => (double[2] last, double[2,4] all) {
    last, all = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [1, 0],
        scan_output_axes = [1], scan_output_directions = [1],
        body = b (double[2] s, double[2] a, double[2] c) => (double[2] made, double[2] seen) {
            p = Mul (s, w)
            q = Add (p, a)
            made = Tanh (q)
            seen = Mul (made, c)
        }> (h, x, z)
}"""


def test_a_scan(device_name: str) -> None:
    feed = {"h": numbers(2), "x": numbers(4, 2), "z": numbers(2, 4, seed=3), "w": numbers(2, seed=4)}
    check(SCAN, feed, device=device_name)


def test_second_order_through_a_loop() -> None:
    source = model(LOOP)
    feed = {"n": np.array(3), "c": np.array(True), "h": numbers(3), "w": numbers(3, seed=2)}

    def slope(h: Array) -> Array:
        made, values = recorded(source, {**feed, "h": h})
        [found] = tracing.gradients([made[0]], [placed(np.ones(3), None)], [values["w"]])
        assert found is not None
        [second] = tracing.gradients([found], [placed(np.ones(3), None)], [values["h"]])
        assert second is not None
        tracing.evaluate([found, second])
        return np.stack([host(found), host(second)])

    h, by = feed["h"], np.array([STEP, 0, 0])
    expected = (slope(h + by)[0].sum() - slope(h - by)[0].sum()) / (2 * STEP)
    np.testing.assert_allclose(slope(h)[1][0], expected, rtol=1e-6)


def test_shapes_that_are_computed() -> None:
    text = """
    agraph (double[2,6] x, int64[2] shape) => (double[a,b] y) {
        whole = Shape (x)
        k = Constant <value_ints = [1]> ()
        last = Gather (whole, k)
        three = Constant <value_ints = [3]> ()
        more = Concat <axis = 0> (last, three)
        wide = Constant <value_ints = [-1, 6]> ()
        r = Reshape (x, shape)
        t = Reshape (r, wide)
        y = Sin (t)
    }"""
    check(text, {"x": numbers(2, 6), "shape": np.array([3, 4])})


def test_unique_elements() -> None:
    text = """
    agraph (double[6] x) => (double[u] y, int64[u] first, int64[6] inverse, int64[u] counts) {
        y, first, inverse, counts = Unique <sorted = 1> (x)
    }"""
    x = numbers(6)
    source = model(text)
    made, values = recorded(source, {"x": x})
    w = np.arange(1.0, 7)
    [found] = tracing.gradients([made[0]], [placed(w, None)], [values["x"]])
    assert found is not None
    tracing.evaluate([*made, found])
    np.testing.assert_array_equal(host(made[0]), np.sort(x))
    np.testing.assert_array_equal(host(found), w[np.argsort(np.argsort(x))])


def test_rows_of_unique_elements_with_repetitions() -> None:
    text = "agraph (double[3,2] x) => (double[u,2] y) { y = Unique <axis = 0, sorted = 0> (x) }"
    x = np.array([[1.0, 2], [0, 1], [1, 2]])
    made, values = recorded(model(text), {"x": x})
    [found] = tracing.gradients([made[0]], [placed(np.array([[1.0, 2], [3, 4]]), None)], [values["x"]])
    assert found is not None
    tracing.evaluate([found])
    np.testing.assert_array_equal(host(found), [[1, 2], [3, 4], [0, 0]])  # it is the first that is taken


def test_sequences() -> None:
    text = """
    agraph (double[4,2] x, double[2] w) => (double[3,2] y, int64 n) {
        sizes = Constant <value_ints = [1, 3]> ()
        parts = SplitToSequence <axis = 0> (x, sizes)
        zero = Constant <value = int64 {0}> ()
        first = SequenceAt (parts, zero)
        scaled = Mul (first, w)
        more = SequenceInsert (parts, scaled)
        n = SequenceLength (more)
        shorter = SequenceErase (more, zero)
        whole = ConcatFromSequence <axis = 0> (shorter)
        axes = Constant <value_ints = [0]> ()
        start = Constant <value_ints = [1]> ()
        end = Constant <value_ints = [4]> ()
        y = Slice (whole, start, end, axes)
    }"""
    check(text, {"x": numbers(4, 2), "w": numbers(2, seed=9)})


def test_errors_name_the_node() -> None:
    with pytest.raises(RuntimeException, match=r"If node.*condition must be one element"):
        recorded(
            model(IF.replace("bool c", "bool[2] c")),
            {"c": np.array([True, False]), "x": numbers(2, 3), "w": numbers(3)},
        )
