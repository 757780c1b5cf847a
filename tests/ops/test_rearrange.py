"""Operators that reorder or mask elements, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, random_array, run_operator
from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError


def _array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return random_array(np.random.default_rng(0), dtype, shape)


def _list(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 10, -10, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 5), (5, 2), (0, 3)])
def test_trilu(upper: int, k: int | None, shape: tuple[int, ...]) -> None:
    x = _array(*shape)
    against = "onnxruntime" if k is None or abs(k) < 2**40 else "onnx"
    if against == "onnx":
        everything = (k < 0) == bool(upper)
        found = run_operator("Trilu", [x, np.array(k)], {"upper": upper}, opset=14)[0]
        np.testing.assert_array_equal(found, x if everything else np.zeros_like(x))
        return
    check_operator("Trilu", [x] if k is None else [x, np.array(k)], {"upper": upper}, opset=14)


@pytest.mark.parametrize("batch_axis", [0, 1])
def test_reverse_sequence(batch_axis: int) -> None:
    x = _array(4, 4, 3)
    attributes = {"batch_axis": batch_axis, "time_axis": 1 - batch_axis}
    check_operator("ReverseSequence", [x, _list(4, 1, 3, 2)], attributes, opset=10)
    with pytest.raises(IndexOutOfRange, match="sequence length 5 of sequence 2"):
        run_operator("ReverseSequence", [x, _list(4, 1, 5, 2)], attributes)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_depth_to_space(mode: str, block: int) -> None:
    x = _array(2, 2 * block**2, 3, 4)
    check_operator("DepthToSpace", [x], {"blocksize": block, "mode": mode}, opset=13)


def test_depth_to_space_of_opset_1() -> None:
    check_operator("DepthToSpace", [_array(1, 8, 2, 3)], {"blocksize": 2}, opset=1)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_space_to_depth(block: int) -> None:
    check_operator("SpaceToDepth", [_array(2, 3, 2 * block, 4 * block)], {"blocksize": block}, opset=13)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_in_either_order(mode: str, device_name: str) -> None:
    x, attributes = _array(2, 3, 4, 6), {"blocksize": 2, "mode": mode}
    [expected] = check_operator("SpaceToDepth", [x], attributes, opset=28, against="onnx")
    assert expected.shape == (2, 12, 2, 3)
    model = build_model("SpaceToDepth", [x], attributes, opset=28).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name) as session:
        np.testing.assert_array_equal(session.run(None, {"x0": x})[0], expected)
        assert not session.report().fallbacks


def test_block_errors() -> None:
    with pytest.raises(InvalidGraph, match="mode 'XYZ' is neither DCR nor CRD"):
        inferred_types("SpaceToDepth", [_array(1, 1, 2, 2)], {"blocksize": 2, "mode": "XYZ"})
    with pytest.raises(ShapeError, match="6 channels"):
        inferred_types("DepthToSpace", [_array(1, 6, 2, 2)], {"blocksize": 2})
    with pytest.raises(ShapeError, match="3×4"):
        inferred_types("SpaceToDepth", [_array(1, 1, 3, 4)], {"blocksize": 2})
    with pytest.raises(InvalidGraph, match="blocksize is 0"):
        inferred_types("SpaceToDepth", [_array(1, 1, 3, 4)], {"blocksize": 0})
    with pytest.raises(InvalidGraph, match="mode"):
        inferred_types("DepthToSpace", [_array(1, 4, 2, 2)], {"blocksize": 2, "mode": "XYZ"})


@pytest.mark.parametrize("k", [np.array("1", object), np.float32(1), np.array(True)])
def test_the_diagonal_of_trilu_is_an_integer(k: np.ndarray) -> None:
    with pytest.raises(InvalidGraph, match="k"):
        inferred_types("Trilu", [np.zeros((2, 2), np.float32), np.asarray(k)])
