"""Einsum against onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from tests.ops.checking import check_operator, inferred_types, random_array
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph
from vkml.ir import dtypes
from vkml.onnx import save_graph


def _random(seed: int, *shape: int, dtype: object = np.float32) -> np.ndarray:
    return random_array(np.random.default_rng(seed), dtype, shape)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij, bjk -> bik", [(5, 2, 3), (5, 3, 4)]),
        ("...ij,...jk->...ik", [(5, 1, 2, 3), (6, 3, 4)]),
        ("...ij,jk", [(5, 2, 3), (3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("ij->ji", [(2, 3)]),
        ("ij", [(2, 3)]),
        ("ba", [(2, 3)]),
        ("i,i->", [(4,), (4,)]),
        ("i,j->ij", [(4,), (5,)]),
        ("bnd,hd->bhn", [(2, 3, 4), (5, 4)]),
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
        ("...->...", [(2, 3)]),
        (",->", [(), ()]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = [_random(index, *shape) for index, shape in enumerate(shapes)]
    check_operator("Einsum", inputs, {"equation": equation}, opset=12, rtol=1e-4, atol=1e-5, against="onnx")


@pytest.mark.parametrize("equation", ["ij,jk->iik", "i$->i", "ij->ix", "i,j,k->i"])
def test_einsum_refuses_malformed_equations(equation: str) -> None:
    with pytest.raises(InvalidGraph, match="equation"):
        inferred_types("Einsum", [np.zeros((2, 3), np.float32)] * 2, {"equation": equation})


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhid,bhjd->bhij", [(2, 3, 5, 8), (2, 3, 7, 8)]),
        ("ibnd,jbnd->bnij", [(5, 2, 3, 8), (7, 2, 3, 8)]),
        ("ibh,hnd->ibnd", [(5, 2, 16), (16, 4, 3)]),
        ("bnij,jbnd->ibnd", [(2, 3, 5, 7), (7, 2, 3, 8)]),
    ],
)
def test_contractions_are_machine_code_on_the_cpu(equation: str, shapes: list[tuple[int, ...]]) -> None:
    sketch = Sketch("contraction")
    names = [sketch.input(f"x{at}", shape) for at, shape in enumerate(shapes)]
    graph = sketch.finish(sketch.node("Einsum", *names, equation=equation))
    inputs = [_random(index, *shape) for index, shape in enumerate(shapes)]
    model = save_graph(graph)
    assert model is not None
    with vkml.InferenceSession(model, devices="cpu") as session:
        [found] = session.run(None, dict(zip(names, inputs, strict=True)))
        slow = [step.operators for step in session.report().steps if step.variant == "numpy"]
    assert not slow
    wanted = np.einsum(equation, *(each.astype(np.float64) for each in inputs))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["ij,ij->i", "ab,cd,bc->ad", "ii,ij->ij", "ij,k->k", "ij,ki->jk"])
def test_what_numpy_does_sooner_stays_numpys_on_the_cpu(equation: str) -> None:
    sketch = Sketch("sums")
    shapes = [(4, 4) if len(term) == 2 else (4,) for term in equation.partition("->")[0].split(",")]
    names = [sketch.input(f"x{at}", shape) for at, shape in enumerate(shapes)]
    model = save_graph(sketch.finish(sketch.node("Einsum", *names, equation=equation)))
    with vkml.InferenceSession(model, devices="cpu") as session:
        inputs = [_random(index, *shape) for index, shape in enumerate(shapes)]
        [found] = session.run(None, dict(zip(names, inputs, strict=True)))
        slow = [step.operators for step in session.report().steps if step.variant == "numpy"]
    assert bool(slow) == (equation != "ij,ki->jk")
    wanted = np.einsum(equation, *(each.astype(np.float64) for each in inputs))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["ij,k->k", "ij,i->", "ij,ik->i"])
def test_sums_of_halves_do_not_overflow_on_the_way(equation: str, device_name: str) -> None:
    sketch = Sketch("sums")
    terms = equation.partition("->")[0].split(",")
    shapes = [(400, 400) if len(term) == 2 else (400,) for term in terms]
    names = [sketch.input(f"x{at}", shape, dtypes.FLOAT16) for at, shape in enumerate(shapes)]
    model = save_graph(sketch.finish(sketch.node("Einsum", *names, equation=equation)))
    inputs = [np.ones(shapes[0], np.float16), np.full(shapes[1], 1e-4, np.float16)]
    with vkml.InferenceSession(model, devices=device_name) as session:
        [found] = session.run(None, dict(zip(names, inputs, strict=True)))
    wanted = np.einsum(equation, *(each.astype(np.float64) for each in inputs))
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2e-3)
