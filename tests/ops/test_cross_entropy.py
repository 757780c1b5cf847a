"""SoftmaxCrossEntropyLoss: reductions, weights, ignored labels, axes, wrong labels, near certainty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import check_operator, inferred_types
from tests.vulkan_cases import Cases
from vkml import tracing
from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError

RANDOM = np.random.default_rng(71)
OP = "SoftmaxCrossEntropyLoss"


def case(*shape: int, classes: int = 5, dtype: Any = np.float32) -> tuple[Any, Any]:
    """Scores and labels, of which some are ignored where -1 is."""
    scores = (RANDOM.standard_normal((shape[0], classes, *shape[1:])) * 3).astype(dtype)
    return scores, RANDOM.integers(0, classes, shape)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 2)])
@pytest.mark.parametrize("weighted", [False, True])
def test_reductions(shape: tuple[int, ...], reduction: str, weighted: bool) -> None:
    scores, labels = case(*shape)
    more = [RANDOM.random(5).astype(np.float32)] if weighted else []
    for ignored in (None, 2, -7):
        labels.flat[0] = 1 if ignored is None else ignored
        attributes = {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored})
        check_operator(
            OP, [scores, labels, *more], attributes, opset=13, outputs=2, against="onnx", rtol=1e-5, atol=1e-6
        )  # fmt: skip


def test_what_does_not_fit() -> None:
    scores, labels = case(4)
    with pytest.raises(ShapeError, match="labels must be"):
        inferred_types(OP, [scores, labels[:3]])
    with pytest.raises(ShapeError, match="weight"):
        inferred_types(OP, [scores, labels, np.ones(4, np.float32)])
    with pytest.raises(InvalidGraph, match="reduction"):
        tracing.apply(OP, tracing.value_of(scores), tracing.value_of(labels), reduction="all")


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_on_devices(device_name: str, is_strided: bool, index: Any) -> None:
    cases = Cases(72, opset=13)
    for name in ("float32", "float16"):
        for shape, classes in (((7,), 5), ((2, 3), 4), ((3,), 1), ((4,), 1000), ((2,), 9000), ((130,), 3)):
            scores, labels = case(*shape, classes=classes, dtype=name)
            labels = labels.astype(index)
            cases.add(OP, scores, labels, reduction="none")
            labels = labels.copy()
            labels.flat[-1] = -100
            cases.add(OP, scores, labels, reduction="none", ignore_index=-100)
    cases.check(device_name, is_strided=is_strided)


def test_near_certainty(device_name: str) -> None:
    """What is left of large numbers keeps its digits."""
    scores = np.array([[1033.129265, 1023.386765], [1022.129265, 1033.129265]], np.float32)
    cases = Cases(73, opset=13)
    cases.add(OP, scores, np.array([0, 1]), reduction="none", atol=2e-7)
    cases.check(device_name)


@pytest.mark.parametrize("label", [5, -1, 2**40])
def test_a_label_that_is_no_class(device_name: str, label: int) -> None:
    scores, labels = case(4)
    labels[2] = label
    loss = vkml.nn.functional.cross_entropy(
        vkml.tensor(scores, device=device_name), vkml.tensor(labels, device=device_name), reduction="none"
    )
    with pytest.raises(IndexOutOfRange):
        loss.numpy()


@pytest.mark.parametrize("label", [-1, 4])
def test_a_loss_of_logarithms_knows_no_other_class(label: int) -> None:
    from vkml.ir import Node
    from vkml.ir.operator import REGISTRY

    operator = REGISTRY["", "NegativeLogLikelihoodLoss"]
    attributes = {"reduction": "sum", "ignore_index": 2**40}
    node = Node("NegativeLogLikelihoodLoss", ("x", "t"), ("y",), attributes, "loss")
    logs = np.arange(8, dtype=np.float32).reshape(2, 4)
    [found] = operator.evaluate(node, [logs, np.array([3, 1], np.int32)])
    assert found == -(3 + 5)
    with pytest.raises(IndexOutOfRange):
        operator.evaluate(node, [logs, np.array([label, 1], np.int32)])
