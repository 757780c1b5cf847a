"""DFT and STFT against onnx's reference, and their form in other operators against NumPy's transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, run_operator
from vkml.errors import ShapeError
from vkml.ir import Node, find
from vkml.ir.operator import normalise_attributes
from vkml.ops.stepwise import evaluate_steps

RANDOM = np.random.default_rng(17)
LOOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RANDOM.standard_normal(shape).astype(dtype)


def scalar(value: int, dtype: Any = np.int64) -> Any:
    return np.array(value, dtype)


CASES = [
    ([normal(2, 7, 3, 1)], {}),
    ([normal(2, 7, 6, 2), None, scalar(1)], {"inverse": 1}),
    ([normal(1, 9, 1), scalar(5, np.int32), scalar(-2)], {"onesided": 1}),
    ([normal(1, 6, 4, 1, dtype=np.float64), scalar(11), scalar(1)], {}),
    ([normal(3, 5, 2), None, scalar(1)], {"onesided": 1, "inverse": 1}),
    ([normal(3, 5, 2), scalar(9), scalar(1)], {"onesided": 1, "inverse": 1}),
    ([normal(2, 67, 1), None, scalar(1)], {}),
    ([normal(2, 134, 2), None, scalar(1)], {"inverse": 1}),
    ([normal(2, 360, 2), scalar(192), scalar(1)], {"onesided": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "attributes"), CASES)
def test_dft(inputs: Any, attributes: dict[str, Any]) -> None:
    check_operator("DFT", inputs, attributes, opset=20, against="onnx", **LOOSE)


@pytest.mark.parametrize(("inputs", "attributes"), CASES)
def test_dft_in_other_operators(inputs: Any, attributes: dict[str, Any]) -> None:
    expected = run_operator("DFT", inputs, attributes, opset=20)[0]
    names = tuple("" if array is None else f"x{at}" for at, array in enumerate(inputs))
    node = Node("DFT", names, ("y",), attributes, "a", version=20)
    node = Node("DFT", names, ("y",), normalise_attributes(node, find(node)), "a", version=20)
    [found] = evaluate_steps(node, inputs)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("attributes", [{}, {"axis": 2}, {"axis": 1, "inverse": 1}])
def test_dft_of_opset_17(attributes: dict[str, Any]) -> None:
    check_operator("DFT", [normal(2, 5, 6, 2)], attributes, opset=17, against="onnx", **LOOSE)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dft_of_16_bits_rounds_once(dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = normal(1, 12, 1).astype(kind)
    wide = run_operator("DFT", [x.astype(np.float32), None, scalar(1)], opset=20)[0]
    assert (run_operator("DFT", [x, None, scalar(1)], opset=20)[0] == wide.astype(kind)).all()


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ([normal(2, 3, 3)], "real"),
        ([normal(2, 3, 2), None, scalar(2)], "holds the parts"),
        ([normal(2, 3, 2), scalar(0)], "0 elements"),
        ([normal(2, 3, 2), None, scalar(7)], "outside"),
    ],
)
def test_dft_refuses(inputs: Any, match: str) -> None:
    with pytest.raises(ShapeError, match=match):
        inferred_types("DFT", inputs, opset=20)


WINDOW = np.hanning(16).astype(np.float32)


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        ([normal(2, 64, 1), scalar(8), WINDOW], {}),
        ([normal(1, 50, 2), scalar(7), WINDOW, scalar(16)], {"onesided": 0}),
        ([normal(1, 40, 1), scalar(9, np.int32), None, scalar(12, np.int32)], {}),
    ],
)
def test_stft(inputs: Any, attributes: dict[str, Any]) -> None:
    check_operator("STFT", inputs, attributes, opset=17, against="onnx", **LOOSE)


def test_stft_refuses_frames_longer_than_the_signal() -> None:
    with pytest.raises(ShapeError, match="frames of 16"):
        inferred_types("STFT", [normal(1, 10, 1), scalar(2), WINDOW], opset=17)


def test_transforms_run_on_a_device(vulkan_device_name: str) -> None:
    """Strict: nothing of them is the CPU's."""
    for op, inputs, opset in (
        ("DFT", [normal(2, 134, 2), None, scalar(1)], 20),
        ("STFT", [normal(2, 64, 1), scalar(8), WINDOW], 17),
    ):
        model = build_model(op, inputs, {}, opset=opset).SerializeToString()
        feed = {f"x{at}": array for at, array in enumerate(inputs) if array is not None}
        with vkml.InferenceSession(model, devices=vulkan_device_name, strict=True) as session:
            [found] = session.run(None, feed)
        [expected] = run_operator(op, inputs, opset=opset)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
