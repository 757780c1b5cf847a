"""Random cases: the same for the same number, of every operator, and mostly such that they run."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import defs

import vkml
from tests.fuzz.case import PRESENTATIONS, Case, Run
from tests.fuzz.comparison import is_equal
from tests.fuzz.driver import run_case
from tests.fuzz.generate import random_case
from tests.fuzz.graphs import NEWEST, GraphBuilder, Skip
from tests.fuzz.mutate import mutated_case
from tests.fuzz.recipes import RECIPES
from tests.fuzz.tensors import BFLOAT16, NARROW, STRING, Fill, indices, random_tensor, values_of
from vkml.ir.operator import REGISTRY


@pytest.mark.parametrize("make", [random_case, mutated_case])
def test_a_number_means_one_case(make) -> None:
    first, again, other = make(3, 14), make(3, 14), make(3, 15)
    assert (first.model, first.runs) == (again.model, again.runs)
    assert all(np.all(is_equal(a, again.feeds[0][name])) for name, a in first.feeds[0].items())
    assert first.model != other.model


# Random graphs hold tensors alone: control flow and sequences are tried round them, in test_wrapped.py.
OF_ONNX = {schema.name for schema in defs.get_all_schemas_with_history() if not schema.domain}
MADE = {op for (domain, op), spec in REGISTRY.items() if not domain and not spec.stands_alone} & OF_ONNX


def test_every_operator_has_a_recipe() -> None:
    assert set(RECIPES) >= MADE


def _since(op: str) -> int:
    """The opset that an operator came with: cases are of opsets that onnxruntime reads."""
    history = [
        schema for schema in defs.get_all_schemas_with_history() if (schema.domain, schema.name) == ("", op)
    ]
    return min(schema.since_version for schema in history)


def test_every_operator_is_made_in_many_types_and_opsets() -> None:
    nodes: Counter[str] = Counter()
    opsets: Counter[int] = Counter()
    for index in range(1500):
        proto = random_case(1, index).proto()
        assert proto is not None
        nodes.update(node.op_type for node in proto.graph.node)
        opsets[proto.opset_import[0].version] += 1
    assert not {op for op in MADE - set(nodes) if _since(op) <= NEWEST}
    assert len(opsets) > 15


def test_most_cases_run() -> None:
    ran = sum(run_case(random_case(2, index), "cpu").refusal is None for index in range(120))
    assert ran > 90


def test_a_case_is_read_as_it_was_written(tmp_path) -> None:
    rng = np.random.default_rng(0)
    feed = {
        "text\x00 é/1": random_tensor(rng, STRING, (2, 3)),
        "half": random_tensor(rng, BFLOAT16, (3,), Fill("specials")),
        "narrow": random_tensor(rng, NARROW[0], (5,)),
        "": np.zeros((0, 4), np.float32),
        "scalar": np.array(3.5),
    }
    case = Case(b"bytes", (feed, {}), (Run(0), Run(1, "list")), False, "high", 3, True, "made up")
    case.save(tmp_path / "case")
    found = Case.load(tmp_path / "case.onnx")
    assert (found.model, found.runs, found.optimise) == (case.model, case.runs, case.optimise)
    assert (found.precision, found.threads) == ("high", 3)
    assert (found.is_mutated, found.origin) == (True, "made up")
    for name, array in feed.items():
        assert found.feeds[0][name].dtype == array.dtype and found.feeds[0][name].shape == array.shape
        assert np.all(is_equal(found.feeds[0][name], array))


@pytest.mark.parametrize("code", [BFLOAT16, *NARROW])
def test_values_come_back_from_bits_and_numbers(code: int) -> None:
    array = random_tensor(np.random.default_rng(1), code, (7,))
    if array.dtype.name.startswith(("int", "uint")):
        carried = array.astype(np.int8 if array.dtype.name.startswith("int") else np.uint8)
    else:
        carried = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    assert np.all(is_equal(values_of(carried, code), array))


def test_fills() -> None:
    rng = np.random.default_rng(2)
    found = random_tensor(rng, 7, (200,), indices(-3, 4))
    assert set(found.tolist()) == set(range(-3, 4))
    distinct = random_tensor(rng, 7, (10, 5), Fill("distinct", 2, 8))
    assert all(len(set(row)) == 5 and min(row) >= 2 and max(row) < 8 for row in distinct.tolist())


def test_a_recipe_that_gives_up_leaves_nothing_behind() -> None:
    build = GraphBuilder(np.random.default_rng(0), 17)

    def recipe(build: GraphBuilder, op: str) -> None:
        build.node("Relu", [build.input(1, (2, 3))])
        build.constant([1, 2])
        raise Skip("after all")

    assert not build.attempt(recipe, "nothing")
    assert not build.nodes and not build.values and not build.inputs and not build.constants


@pytest.mark.parametrize("way", PRESENTATIONS)
def test_every_way_of_handing_over_gives_the_same(way: str) -> None:
    case = random_case(4, 1, ["Neg", "Concat", "Transpose"])
    twice = Case(case.model, case.feeds[:1], (Run(0), Run(0, way), Run(0, way)))
    outcome = run_case(twice, "cpu")
    assert outcome.refusal is None and not outcome.findings
    first, *others = outcome.results
    assert not isinstance(first, vkml.Error)
    for other in others:
        assert not isinstance(other, vkml.Error)
        assert other and all(np.all(is_equal(array, first[name])) for name, array in other.items())
