"""Windows and mel filters against onnx's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, run_operator
from vkml.errors import InvalidGraph, ShapeError


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(op: str, periodic: int) -> None:
    for size, kind in ((10, TensorProto.FLOAT), (7, TensorProto.DOUBLE), (0, TensorProto.FLOAT)):
        attributes = {"periodic": periodic, "output_datatype": int(kind)}
        against = "onnx" if size else "onnxruntime"
        check_operator(op, [np.array(size, np.int64)], attributes, opset=17, against=against, atol=1e-6)


def test_a_window_of_one_element() -> None:
    """The middle of a symmetric one, the begin of a periodic one."""
    for periodic, expected in ((0, 1.0), (1, 0.0)):
        [found] = run_operator("HannWindow", [np.array(1)], {"periodic": periodic}, opset=17)
        assert found == pytest.approx([expected])


@pytest.mark.parametrize("numbers", [(8, 16, 8192, 0.0, 4096.0), (3, 33, 16000, 100.0, 7000.0)])
def test_mel_weights(numbers: tuple[Any, ...]) -> None:
    inputs = [np.array(n, np.int64 if at < 3 else np.float32) for at, n in enumerate(numbers)]
    check_operator("MelWeightMatrix", inputs, opset=17, against="onnx", atol=1e-6)


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match="negative"):
        inferred_types("HannWindow", [np.array(-1)], opset=17)
    with pytest.raises(InvalidGraph, match="output_datatype"):
        inferred_types("HannWindow", [np.array(3)], {"output_datatype": 8}, opset=17)
    numbers = [np.array(n, np.int64 if at < 3 else np.float32) for at, n in enumerate((3, 8, 100, 0, 60))]
    with pytest.raises(ShapeError, match=r"from 0\.0 to 60\.0 Hz"):
        inferred_types("MelWeightMatrix", numbers, opset=17)


def test_a_window_that_is_fed_its_size(device_name: str) -> None:
    """A constant of each plan: no device computes it, nothing falls back."""
    model = build_model("HannWindow", [np.array(5)], {}, opset=17).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name, strict=True) as session:
        for size in (5, 8):
            [found] = session.run(None, {"x0": np.array(size)})
            np.testing.assert_allclose(found, np.sin(np.pi * np.arange(size) / size) ** 2, atol=1e-6)
