"""Metrics against scikit-learn's, over batches of several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as reference

import vkml
from vkml.errors import InvalidArgument
from vkml.training import F1, MAE, MSE, R2, RMSE, Accuracy, Mean, Metric, Precision, Recall, TopK

Array = np.ndarray[Any, Any]
SIZES = (16, 16, 5, 1)


def observed(metric: Metric, outputs: Array, targets: Array, device: str, jit: bool = True) -> float:
    """The metric of outputs and targets in batches, some of them in captured steps."""

    def step(output: vkml.Tensor, target: vkml.Tensor) -> vkml.Tensor:
        metric.observe(output, target)
        return output.sum()

    act = vkml.jit(step, device=device) if jit else step
    start = 0
    with vkml.no_grad():
        for size in SIZES:
            output, target = outputs[start : start + size], targets[start : start + size]
            if not jit:
                output, target = vkml.tensor(output, device=device), vkml.tensor(target, device=device)
            act(output, target)
            start += size
    return metric.value()


def scores(classes: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, classes, sum(SIZES))
    outputs = rng.standard_normal((len(targets), classes)).astype(np.float32)
    outputs[np.arange(len(targets)), targets] += 1
    return outputs, targets


OF_CLASSES: dict[str, tuple[Callable[[], Metric], Callable[[Array, Array], float]]] = {
    "accuracy": (Accuracy, lambda o, t: reference.accuracy_score(t, o.argmax(1))),
    "top1": (lambda: TopK(1), lambda o, t: reference.accuracy_score(t, o.argmax(1))),
    "top3": (lambda: TopK(3), lambda o, t: reference.top_k_accuracy_score(t, o, k=3, labels=range(5))),
    "f1": (F1, lambda o, t: reference.f1_score(t, o.argmax(1), average="macro")),
    "micro": (
        lambda: F1(average="micro"),
        lambda o, t: reference.f1_score(t, o.argmax(1), average="micro"),
    ),
    "precision": (
        Precision,
        lambda o, t: reference.precision_score(t, o.argmax(1), average="macro", zero_division=0),
    ),
    "recall": (Recall, lambda o, t: reference.recall_score(t, o.argmax(1), average="macro")),
}


@pytest.mark.parametrize("name", OF_CLASSES)
def test_metrics_of_classes(device_name: str, name: str) -> None:
    make, wanted = OF_CLASSES[name]
    outputs, targets = scores(5)
    metric = make()
    for seed in (0, 1):  # the second time in sums that there are
        outputs, targets = scores(5, seed)
        metric.reset()
        assert observed(metric, outputs, targets, device_name) == pytest.approx(
            wanted(outputs, targets), abs=1e-6
        )


def test_one_column_is_the_second_of_two_classes(device_name: str) -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((sum(SIZES), 1)).astype(np.float32)
    targets = (logits[:, 0] + rng.standard_normal(len(logits)) > 0).astype(np.float32)
    found = (logits[:, 0] > 0).astype(int)
    for shaped in (targets, targets[:, None], targets.astype(np.int64)):
        assert observed(Accuracy(), logits, shaped, device_name) == pytest.approx((found == targets).mean())
    assert observed(F1(), logits, targets, device_name) == pytest.approx(reference.f1_score(targets, found))
    assert observed(Recall(), logits, targets, device_name) == pytest.approx(
        reference.recall_score(targets, found)
    )
    shares = 1 / (1 + np.exp(-logits))
    assert observed(Accuracy(threshold=0.5), shares, targets, device_name) == pytest.approx(
        (found == targets).mean()
    )


def test_probabilities_and_places_are_targets_too() -> None:
    outputs, targets = scores(4)
    shares = np.eye(4, dtype=np.float32)[targets] * 0.9 + 0.025
    wanted = reference.accuracy_score(targets, outputs.argmax(1))
    assert observed(Accuracy(), outputs, shares, "cpu") == pytest.approx(wanted)
    # [batch, classes, length], as the cross entropy of sequences has it.
    long = np.stack([outputs, outputs[::-1]], 2)
    assert observed(Accuracy(), long, np.stack([targets, targets[::-1]], 1), "cpu") == pytest.approx(wanted)


def test_classes_that_do_not_count() -> None:
    outputs, targets = scores(4)
    hidden = np.where(np.arange(len(targets)) % 3 == 0, -100, targets)
    shown = hidden >= 0
    for metric, wanted in (
        (Accuracy(), reference.accuracy_score(targets[shown], outputs[shown].argmax(1))),
        (TopK(2), reference.top_k_accuracy_score(targets[shown], outputs[shown], k=2, labels=range(4))),
        (F1(), reference.f1_score(targets[shown], outputs[shown].argmax(1), average="macro")),
    ):
        assert observed(metric, outputs, hidden, "cpu") == pytest.approx(wanted)


OF_NUMBERS: dict[str, tuple[type[Metric], Callable[[Array, Array], float]]] = {
    "mae": (MAE, lambda o, t: reference.mean_absolute_error(t, o)),
    "mse": (MSE, lambda o, t: reference.mean_squared_error(t, o)),
    "rmse": (RMSE, lambda o, t: math.sqrt(reference.mean_squared_error(t, o))),
    "r2": (R2, lambda o, t: reference.r2_score(t, o)),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_metrics_of_numbers(device_name: str, name: str) -> None:
    """Of a target far from 0, too."""
    make, wanted = OF_NUMBERS[name]
    rng = np.random.default_rng(5)
    targets = (1000 + rng.standard_normal((sum(SIZES), 1))).astype(np.float32)
    outputs = (targets + 0.3 * rng.standard_normal(targets.shape)).astype(np.float32)
    exact = wanted(outputs.astype(np.float64), targets.astype(np.float64))
    assert observed(make(), outputs, targets, device_name) == pytest.approx(exact, rel=1e-4)
    assert observed(make(), outputs, targets[:, 0], device_name) == pytest.approx(exact, rel=1e-4)


def test_sums_of_many_batches_stay_exact() -> None:
    """Sums of float32 alone would stop to grow: 0.1 is 2⁻²⁰ of 100,000."""
    metric = MAE()
    outputs = vkml.tensor(np.full((1, 1), 0.1, np.float32))
    metric.observe(outputs * 1e6, vkml.zeros(1, 1))
    for _ in range(3000):
        metric.observe(outputs, vkml.zeros(1, 1))
    assert metric.value() == pytest.approx((1e5 + 300) / 3001, rel=1e-7)


def test_counts_go_beyond_32_bits(device_name: str) -> None:
    """As those of an epoch of pictures whose pixels are classes."""

    class Pixels(Metric):
        def observe(self, output: Any, target: Any) -> None:
            self._count("all", target)

        def value(self) -> float:
            return float(self._read("all"))

    metric = Pixels("pixels")
    amount = vkml.tensor(2**30 - 1, dtype=vkml.int32, device=device_name)
    for _ in range(5):
        metric.observe(amount, amount)
    again = Pixels("again")
    again.load_state(metric.state(), device_name)
    assert metric.value() == again.value() == 5 * (2**30 - 1)


def test_functions_are_averaged_by_samples(device_name: str) -> None:
    def middle(output: vkml.Tensor, target: vkml.Tensor) -> vkml.Tensor:
        return (output[:, 0] - target).mean()

    outputs, targets = scores(2)
    metric = Mean(middle)
    assert metric.name == "middle"
    found = observed(metric, outputs, targets.astype(np.float32), device_name)
    assert found == pytest.approx((outputs[:, 0] - targets).mean(), abs=1e-6)
    with pytest.raises(InvalidArgument, match="one element"):
        observed(Mean(lambda output, target: output, "whole"), outputs, targets, device_name, jit=False)


def test_nothing_observed_is_nan() -> None:
    for metric in (Accuracy(), TopK(), F1(), MAE(), RMSE(), R2()):
        assert math.isnan(metric.value())


def test_too_few_classes() -> None:
    with pytest.raises(InvalidArgument, match="top5 needs 5 classes"):
        TopK().observe(vkml.zeros(2, 3), vkml.zeros(2, dtype=vkml.int64))
    with pytest.raises(InvalidArgument, match="1 or more"):
        TopK(0)
    with pytest.raises(InvalidArgument, match="average"):
        F1(average="all")
