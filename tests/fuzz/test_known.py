"""What is known of others excuses them where it says, and nobody elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from tests.fuzz import stages, trusted
from tests.fuzz.case import Case, Run
from tests.fuzz.known import ONNX, ORT, freedom
from tests.fuzz.oracle import Verdict, judge
from tests.fuzz.tensors import Array
from tests.fuzz.trusted import code_of
from vkml.ir import Node, find
from vkml.ir.operator import normalise_attributes


def verdict_of(nodes: Sequence[Any], feed: Mapping[str, Array], opset: int = 20) -> Verdict:
    """What the judge finds in nodes whose last output is the model's."""
    inputs = [
        helper.make_tensor_value_info(name, code_of(array), array.shape) for name, array in feed.items()
    ]
    names = [name for name in nodes[-1].output if name] if nodes else list(feed)
    outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    graph = helper.make_graph(list(nodes), "graph", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return judge(Case(proto.SerializeToString(), (dict(feed),), (Run(0),)), "cpu")


def excused(
    op: str, inputs: Sequence[Array | None], result: Array, source: str, opset: int = 20, **attributes: Any
) -> list[bool]:
    """Which elements of a result are not compared with those of another runtime."""
    names = tuple("" if array is None else f"x{place}" for place, array in enumerate(inputs))
    node = Node(op, names, ("y",), attributes, version=opset)
    node = replace(node, attributes=normalise_attributes(node, find(node)))
    found = freedom(node, list(inputs), result, source)
    return [bool(entry) for entry in np.broadcast_to(found, result.shape).reshape(-1)]


def test_halves_that_onnxruntime_tells_apart_are_asked_about_alone() -> None:
    """More equal halves than neighbouring ones could be taken for."""
    nodes = [
        helper.make_node("LpPool", ["x"], ["p"], kernel_shape=[1, 2], strides=[1, 2]),
        helper.make_node("Unique", ["p"], ["y", "places"], sorted=0),
    ]
    x = np.full((1, 1, 1, 32), 1000, np.float16)
    x[..., ::2] = np.arange(16)
    verdict = verdict_of(nodes, {"x": x})
    assert verdict.counts["onnxruntime ran"] == 1 and verdict.counts["onnxruntime differs"] == 2
    assert not verdict.findings, verdict.findings


def test_a_clip_of_0_is_one() -> None:
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal(shape) for name, shape in (("x", (2, 3, 4)), ("w", (1, 5, 4)))}
    feed["r"] = rng.standard_normal((1, 5, 5))
    rnn = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=5, clip=0.0)
    verdict = verdict_of([rnn], feed)
    assert verdict.counts["compared"] == 1 and not verdict.findings, verdict.findings
    inputs, result = list(feed.values()), np.zeros((2, 1, 3, 5))
    assert all(excused("RNN", inputs, result, ONNX, hidden_size=5, clip=0.0))
    assert not any(excused("RNN", inputs, result, ONNX, hidden_size=5))
    assert not any(excused("RNN", inputs, result, ORT, hidden_size=5, clip=0.0))


def test_onnxruntime_takes_exponentials_of_halves_in_double() -> None:
    x = np.float16([[10000, 3], [-10000, -9000], [600, 1]])
    reduce = helper.make_node("ReduceLogSumExp", ["x", "axes"], ["y"], keepdims=0)
    verdict = verdict_of([reduce], {"x": x, "axes": np.array([1])}, 18)
    assert verdict.counts["onnxruntime ran"] == 1 and not verdict.findings, verdict.findings
    result = np.float16([10000, -9000, 600])
    assert excused("ReduceLogSumExp", [x, np.array([1])], result, ORT, 18) == [True, True, False]
    wide = result.astype(np.float32)
    assert not any(excused("ReduceLogSumExp", [x.astype(np.float32), None], wide, ORT, 18))


@pytest.mark.parametrize("base", ["float32", "float64", "int64"])
@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_odd_exponents_that_doubles_lack_are_even_for_others(base: str, kind: str) -> None:
    x, exponents = np.array([-1, -1, 1, -1], base), np.array([2**53 + 1, 3, 2**53 + 1, 2**53 + 2], kind)
    verdict = verdict_of([helper.make_node("Pow", ["x", "e"], ["y"])], {"x": x, "e": exponents})
    assert verdict.counts["compared"] == 1 and not verdict.findings, verdict.findings
    assert excused("Pow", [x, exponents], x, ORT) == [True, False, False, False]
    is_widened = np.result_type(x, exponents) == np.float64
    assert excused("Pow", [x, exponents], x, ONNX) == [is_widened, False, False, False]
    brain = x.astype(ml_dtypes.bfloat16)  # for which and integers NumPy has no type
    assert len(excused("Pow", [brain, exponents], brain, ONNX)) == 4


def test_integers_that_doubles_lack_are_others_for_the_evaluator() -> None:
    x, exponents = np.array([2**53 + 1, 2**53 + 1, 3]), np.uint64([1, 0, 33])
    verdict = verdict_of([helper.make_node("Pow", ["x", "e"], ["y"])], {"x": x, "e": exponents})
    assert verdict.counts["operators compared"] == 1 and not verdict.findings, verdict.findings
    assert excused("Pow", [x, exponents], x, ONNX) == [True, False, False]
    assert not any(excused("Pow", [x, exponents.astype(np.int64)], x, ONNX))


def test_opsets_that_nobody_asks_for() -> None:
    """onnxruntime takes a model without nodes whatever its opset is."""
    verdict = verdict_of([], {"x": np.ones(3, np.float32)}, 0)
    assert verdict.counts["refused"] == verdict.counts["limits"] == 1
    assert not verdict.findings, verdict.findings


def test_nothing_is_left_to_repeat() -> None:
    pad = helper.make_node("Pad", ["x"], ["y"], mode="reflect", pads=[0, 1, 1, 0, -1, 0])
    verdict = verdict_of([pad], {"x": np.ones((0, 1, 1), np.float32)}, 9)
    assert verdict.counts["limits"] == 1 and not verdict.findings, verdict.findings


@pytest.mark.parametrize("opset", [7, 10])
def test_the_evaluator_knows_new_masks_only(opset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old ones have the type of the data; it is asked alone where onnxruntime crashes."""
    monkeypatch.setattr(stages, "skipped", {"onnxruntime"})
    monkeypatch.setattr(trusted, "skipped", stages.skipped)
    dropout = helper.make_node("Dropout", ["x"], ["y", "mask"])
    verdict = verdict_of([dropout], {"x": np.ones((2, 3), np.float32)}, opset)
    assert verdict.counts["operators compared"] == 2 and not verdict.findings, verdict.findings


def test_regions_that_no_mode_reads_are_none() -> None:
    """onnxruntime aligns the corners of whole sizes, which onnx's evaluator denies once it gets so far."""
    resize = helper.make_node(
        "Resize", ["x", "s", "s"], ["y"], coordinate_transformation_mode="align_corners", mode="cubic"
    )
    feed = {
        "x": np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4),
        "s": np.float32([1, 1, 0.8, 0.8]),
    }
    verdict = verdict_of([resize], feed, 19)
    assert verdict.counts["onnxruntime differs"] == 1 and not verdict.findings, verdict.findings
