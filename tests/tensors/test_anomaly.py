"""`detect_anomaly`: operators and lines that NaN comes from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vkml
from vkml.autograd import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from vkml.errors import AnomalyFound, CaptureError

HERE = Path(__file__).name


def line_of(text: str) -> int:
    """The number of the line of this file that holds a mark."""
    lines = Path(__file__).read_text().splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def test_a_gradient_that_is_nan(device_name: str) -> None:
    x = vkml.tensor([0.0, 1.0], device=device_name, requires_grad=True)
    with detect_anomaly():
        h = x * 1
        y = h.sqrt()  # here
        loss = (y * 0).sum()
        with pytest.raises(
            AnomalyFound, match=rf"gradient of Sqrt is NaN.*{HERE}:{line_of('here')} in test_a"
        ):
            loss.backward()
    (x.sqrt() * 0).sum().backward()
    assert x.grad is not None and np.isnan(x.grad.numpy()).any()


def test_a_loss_that_is_nan(device_name: str) -> None:
    w = vkml.tensor([1.0, -1.0], device=device_name, requires_grad=True)
    with detect_anomaly():
        found = (w * 2).log()  # there
        with pytest.raises(
            AnomalyFound, match=rf"Log makes NaN \(recorded at .*{HERE}:{line_of('there')} in"
        ):
            found.sum().backward()
        with pytest.raises(AnomalyFound, match="Log makes NaN"):
            vkml.autograd.grad(found.sum(), w)


def test_inputs_that_are_nan() -> None:
    w = vkml.tensor([1.0, 2.0], requires_grad=True)
    with detect_anomaly(), pytest.raises(AnomalyFound, match="Mul makes NaN"):
        (w * vkml.tensor([1.0, float("nan")])).sum().backward()
    v = vkml.tensor([float("nan")], requires_grad=True)
    with detect_anomaly(), pytest.raises(AnomalyFound, match="Mul makes NaN, which is what it reads"):
        (v * 2).sum().backward()


def test_numbers_that_are_selected_away_are_no_anomaly() -> None:
    w = vkml.tensor([1.0, -1.0], requires_grad=True)
    with detect_anomaly():
        vkml.where(w > 0, w.log(), 0.0).sum().backward()


def test_it_is_switched() -> None:
    w = vkml.tensor([-1.0], requires_grad=True)
    assert not is_anomaly_enabled()
    with detect_anomaly(check_nan=False):
        assert is_anomaly_enabled()
        w.log().sum().backward()
    set_detect_anomaly(True)
    with pytest.raises(AnomalyFound):
        w.log().sum().backward()
    set_detect_anomaly(False)
    assert not is_anomaly_enabled()
    w.log().sum().backward()


def test_captures_cannot_be_looked_into() -> None:
    w = vkml.tensor([1.0], requires_grad=True)

    @vkml.jit
    def step(x: vkml.Tensor) -> vkml.Tensor:
        with detect_anomaly():
            loss = (w * x).sum()
            w.grad = None
            loss.backward()
            w.grad = None
            return loss.detach()

    step(vkml.ones(1))
    with pytest.raises(CaptureError, match="detect_anomaly"):
        step(vkml.ones(1))
