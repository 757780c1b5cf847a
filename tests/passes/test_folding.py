"""What folding may take, keeps and lets go of."""

from __future__ import annotations

import numpy as np
import pytest

from vkml.engine.prepare import fold_constants, prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Node, dtypes
from vkml.passes import folding, normalise, remove_dead, specialise
from vkml.passes.segments import segments

KIB = 1024


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "FOLD_LIMIT", 64 * KIB)


def fill(sketch: Sketch, size: int) -> str:
    return sketch.node("ConstantOfShape", sketch.constant(np.array([size // 4])))


def ops(sketch: Sketch, *values: str) -> list[str]:
    """The operators that folding leaves, without the outputs' own."""
    graph = fold_constants(normalise(sketch.finish(*values)))
    return [node.op for node in graph.nodes if node.op != "Identity"]


def test_all_results_count_together() -> None:
    sketch = Sketch("fills")
    x = sketch.input("x", (1,))
    sums = [sketch.node("Add", x, fill(sketch, 24 * KIB)) for _ in range(4)]
    assert ops(sketch, *sums).count("ConstantOfShape") == 2


def test_what_is_dead_counts_no_more() -> None:
    sketch = Sketch("chain")
    x, value = sketch.input("x", (1,)), fill(sketch, 24 * KIB)
    for _ in range(20):
        value = sketch.node("Neg", value)
    assert ops(sketch, sketch.node("Add", x, value)) == ["Add"]


def test_views_count_once_and_hold_what_they_look_at() -> None:
    sketch = Sketch("views")
    x, base = sketch.input("x", (1,)), fill(sketch, 24 * KIB)
    shape = sketch.constant(np.array([2, -1]))
    views = [sketch.node("Reshape", base, shape) for _ in range(10)]
    other = fill(sketch, 24 * KIB)
    more = fill(sketch, 24 * KIB)
    sums = [sketch.node("Add", x, value) for value in (*views, other, more)]
    left = ops(sketch, *sums)
    assert "Reshape" not in left and left.count("ConstantOfShape") == 1


def test_small_results_fold_without_allowance() -> None:
    sketch = Sketch("small")
    x = sketch.input("x", (1,))
    large = [fill(sketch, 30 * KIB) for _ in range(3)]
    small = fill(sketch, KIB)
    left = ops(sketch, *(sketch.node("Add", x, value) for value in (*large, small)))
    assert left.count("ConstantOfShape") == 1


def test_constants_of_the_model_widen_the_allowance() -> None:
    sketch = Sketch("weights")
    x, weight = sketch.input("x", (1,)), sketch.constant(np.ones(40 * KIB, np.int8))
    wide = [sketch.node("Cast", weight, to=1) for _ in range(3)]
    assert ops(sketch, *(sketch.node("Add", x, value) for value in wide)).count("Cast") == 1


def test_plans_have_what_loading_left() -> None:
    sketch = Sketch("plans")
    x = sketch.input("x", ("n",))
    early = sketch.node("Concat", x, fill(sketch, 40 * KIB), axis=0)
    late = sketch.node("Add", x, sketch.node("ConstantOfShape", sketch.node("Shape", x)))
    prepared = prepare(sketch.finish(early, late))
    for size, count in ((23 * KIB // 4, 0), (25 * KIB // 4, 1)):
        nodes = specialise(prepared, {"x": (size,)}).nodes
        assert [node.op for node in nodes].count("ConstantOfShape") == count


def counted_ones(sketch: Sketch, shape: str, kind: str = "ConstantOfShape") -> str:
    """The numbers from 0 on as exporters write them: the places of as many ones as a shape has elements."""
    if kind == "Expand":
        ones = sketch.node("Expand", sketch.constant(np.ones(1, np.float32)), shape)
    elif kind == "EyeLike":
        side = sketch.node("Concat", shape, sketch.constant(np.array([1])), axis=0)
        like = sketch.node("ConstantOfShape", side)
        ones = sketch.node("Reshape", sketch.node("EyeLike", like), sketch.constant(np.array([-1])))
    else:
        ones = sketch.node("ConstantOfShape", shape)
        ones = sketch.node("Add", ones, sketch.constant(np.float32(1)))
    return sketch.node("Transpose", sketch.node("NonZero", ones), perm=[1, 0])


@pytest.mark.parametrize("kind", ["ConstantOfShape", "Expand", "EyeLike"])
@pytest.mark.parametrize("behind", ["fixed", "input's"])
def test_values_that_decide_sizes_fold_whatever_is_left(kind: str, behind: str) -> None:
    sketch = Sketch("places")
    x = sketch.input("x", ("n",))
    spent = sketch.node(
        "Add", sketch.node("Slice", x, *map(sketch.constant, ([0], [1]))), fill(sketch, 60 * KIB)
    )
    shape = sketch.node("Shape", x) if behind == "input's" else sketch.constant(np.array([20 * KIB]))
    places = counted_ones(sketch, shape, kind)
    graph = specialise(prepare(sketch.finish(spent, places)), {"x": (20 * KIB,)})
    count = 1 if kind == "EyeLike" else 20 * KIB
    assert [value.tensor.dims for value in graph.outputs] == [(15 * KIB,), (count, 1)]
    ops = [node.op for node in remove_dead(graph).nodes]
    assert "NonZero" not in ops and kind not in ops


def test_numbers_that_large_values_decide_are_known_whatever_is_left() -> None:
    """A Reshape's shape depends on the sum of a fill that is larger than all that may be folded."""
    sketch = Sketch("sum")
    x = sketch.input("x", (2, 2))
    reshaped = sketch.node("Reshape", x, summed(sketch, fill(sketch, 128 * KIB)))
    graph = specialise(prepare(sketch.finish(reshaped)), {"x": (2, 2)})
    assert graph.outputs[0].tensor.dims == (4,)


def test_what_only_sizes_needed_counts_no_more() -> None:
    """What each of many sums takes beyond what may be folded is let go of before the next."""
    sketch = Sketch("released")
    x = sketch.input("x", (4,))
    kept = sketch.node("Add", sketch.node("ReduceMax", x), fill(sketch, 48 * KIB))
    for _ in range(9):
        x = sketch.node("Reshape", x, summed(sketch, fill(sketch, 128 * KIB)))
    taken: list[int] = []
    graph = specialise(
        prepare(sketch.finish(kept, x)), {"x": (4,)}, check_memory=lambda node, size: taken.append(size)
    )
    left = [node.op for node in graph.nodes if node.op != "Identity"]
    assert left == ["ReduceMax", "Add", *["Reshape"] * 9]
    assert 0 < max(taken) < 300 * KIB
    assert graph.fold_allowance is not None and 16 * KIB <= graph.fold_allowance < 18 * KIB


def summed(sketch: Sketch, zeros: str) -> str:
    """The shape [4], of which many zeros are a term."""
    whole = sketch.node("Cast", sketch.node("ReduceSum", zeros, keepdims=0), to=7)
    return sketch.node("Add", whole, sketch.constant(np.array([4])))


def test_what_decides_no_size_waits_for_memory() -> None:
    """A fill that only a run reads stays a node, though another like it decides a size."""
    sketch = Sketch("both")
    x = sketch.input("x", (1,))
    places = counted_ones(sketch, sketch.constant(np.array([32 * KIB])))
    others = [sketch.node("Add", x, fill(sketch, 128 * KIB)) for _ in range(3)]
    graph = specialise(prepare(sketch.finish(places, *others)), {"x": (1,)})
    assert [node.op for node in graph.nodes].count("ConstantOfShape") == 3


def test_values_whose_sizes_alone_matter_decide_nothing() -> None:
    """A fill's shape, and the identity matrix of a fill's type, are known without the fill."""
    sketch = Sketch("like")
    x = sketch.input("x", (1,))
    zeros = sketch.node("Reshape", fill(sketch, 128 * KIB), sketch.constant(np.array([-1, 1])))
    wide = sketch.node("Expand", x, sketch.node("Shape", zeros))
    places = sketch.node("NonZero", sketch.node("EyeLike", zeros))
    made: list[str] = []
    graph = specialise(
        prepare(sketch.finish(sketch.node("Add", x, zeros), wide, places)),
        {"x": (1,)},
        check_memory=lambda node, size: made.append(node.op),
    )
    assert made == ["EyeLike"]
    assert [node.op for node in graph.nodes if node.op != "Identity"] == [
        "ConstantOfShape",
        "Reshape",
        "Expand",
        "Add",
    ]


def test_values_of_the_run_have_nothing_folded_for_them() -> None:
    """What data decides is not known before the run; what it is computed from may wait until then."""
    sketch = Sketch("data")
    x = sketch.input("x", (32 * KIB,))
    known = sketch.node("NonZero", sketch.node("Add", x, fill(sketch, 128 * KIB)))
    segment, _ = segments(prepare(sketch.finish(known)))
    graph = specialise(segment.graph, {"x": (32 * KIB,)}, check_memory=refuse)
    assert [node.op for node in graph.nodes] == ["ConstantOfShape", "Add", "NonZero"]


def test_values_that_no_planning_computes_have_nothing_folded_for_them() -> None:
    """An input that is a shape is known; what is computed from it besides shapes is the run's."""
    sketch = Sketch("given")
    x, count = sketch.input("x", (32 * KIB,)), sketch.input("count", (1,), dtypes.INT64)
    wide = sketch.node("Expand", count, sketch.constant(np.array([32 * KIB])))
    equal = sketch.node("Equal", sketch.node("Cast", fill(sketch, 128 * KIB), to=7), wide)
    prepared = prepare(sketch.finish(sketch.node("Reshape", x, count), sketch.node("NonZero", equal)))
    segment, _ = segments(prepared)
    shapes = {value.name: value.tensor.dims for value in segment.graph.inputs}
    given = {"count": np.array([-1])}
    assert segment.values == ("count",)
    graph = specialise(segment.graph, shapes, given, segment.arithmetic, refuse)
    assert {"ConstantOfShape", "Cast", "Equal", "NonZero"} <= {node.op for node in graph.nodes}


def refuse(node: Node, size: int) -> None:
    raise AssertionError(f"{node.label} is folded with {size} bytes")
