"""What folding may take, keeps and lets go of."""

from __future__ import annotations

import numpy as np
import pytest

from vkml.engine.prepare import fold_constants, prepare
from vkml.engine.sketch import Sketch
from vkml.passes import folding, normalise, specialise

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
