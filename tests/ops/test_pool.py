"""Pools against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, random_array, run_operator
from vkml.cpu.native.executable import instruction_set
from vkml.errors import InvalidGraph, ShapeError


def _pool_case(seed: int, *, dilated: bool) -> tuple[np.ndarray, dict[str, Any]]:
    generator = np.random.default_rng(seed)

    def pick(low: int, high: int) -> int:
        return int(generator.integers(low, high + 1))

    rank = pick(1, 3)
    kernel = [pick(1, 4) for _ in range(rank)]
    dilations = [pick(1, 2) for _ in range(rank)] if dilated else [1] * rank
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    spatial = [extent + pick(0, 6) for extent in extents]
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [pick(1, 3) for _ in range(rank)],
        "ceil_mode": pick(0, 1),
    }
    if dilated:
        attributes["dilations"] = dilations
    auto = ["NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"][pick(0, 5)]
    if auto == "NOTSET":
        attributes["pads"] = [pick(0, kernel[i % rank] - 1) for i in range(2 * rank)]
    else:
        attributes["auto_pad"] = auto
        attributes["ceil_mode"] = 0
        # onnxruntime pads by negative amounts where a stride is above the kernel.
        attributes["strides"] = [min(s, k) for s, k in zip(attributes["strides"], kernel, strict=True)]
        if auto.startswith("SAME") and dilated:
            attributes["dilations"] = [1] * rank
    return random_array(generator, np.float32, (pick(1, 2), pick(1, 3), *spatial)), attributes


@pytest.mark.parametrize("seed", range(60))
def test_random_max_pool(seed: int) -> None:
    x, attributes = _pool_case(seed, dilated=True)
    check_operator("MaxPool", [x], attributes, opset=12)


@pytest.mark.parametrize("seed", range(40))
def test_random_max_pool_indices(seed: int) -> None:
    x, attributes = _pool_case(seed, dilated=seed % 2 == 0)
    attributes["storage_order"] = int(seed % 3 == 0)
    check_operator("MaxPool", [x], attributes, opset=12, outputs=2)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("count_include_pad", [0, 1])
def test_random_average_pool(seed: int, count_include_pad: int) -> None:
    x, attributes = _pool_case(seed, dilated=True)
    attributes["count_include_pad"] = count_include_pad
    check_operator("AveragePool", [x], attributes, opset=19, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("opset", [7, 10, 11])
def test_average_pool_of_older_opsets(seed: int, opset: int) -> None:
    x, attributes = _pool_case(seed, dilated=False)
    attributes["count_include_pad"] = seed % 2
    if opset < 10:
        del attributes["ceil_mode"]
    check_operator("AveragePool", [x], attributes, opset=opset, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_random_lp_pool(seed: int) -> None:
    x, attributes = _pool_case(seed, dilated=True)
    attributes["p"] = 1 + seed % 3
    check_operator("LpPool", [x], attributes, opset=18, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads"),
    [
        (2, 3, 2, (0, 0)),
        (1, 3, 3, (0, 0)),
        (3, 6, 5, (1, 1)),
        (2, 6, 3, (1, 1)),
        (1, 4, 2, (1, 0)),
        (1, 3, 2, (0, 0)),
    ],
)
def test_windows_larger_than_their_axis_count_with_ceil_mode(
    op: str, size: int, kernel: int, stride: int, pads: tuple[int, int], device_name: str
) -> None:
    """One window, or none where the division rounds up to that: ONNX's formula, and what onnxruntime does."""
    x = random_array(np.random.default_rng(0), np.float32, (2, 3, size, 5))
    attributes = {
        "kernel_shape": [kernel, 2], "strides": [stride, 2], "pads": [pads[0], 0, pads[1], 0], "ceil_mode": 1
    }  # fmt: skip
    [expected] = check_operator(op, [x], attributes, opset=22 if op == "LpPool" else 19, rtol=1e-5, atol=1e-5)
    assert expected.shape[2] == -(-(size + sum(pads) - kernel) // stride) + 1
    model = build_model(op, [x], attributes, opset=19).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name, precision="highest") as session:
        np.testing.assert_allclose(session.run(None, {"x0": x})[0], expected, rtol=1e-5, atol=1e-6)


def test_windows_so_large_that_less_than_none_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"a window of 6 .* is larger than spatial axis 0 of size 1"):
        inferred_types("MaxPool", [np.zeros((1, 1, 1))], {"kernel_shape": [6], "ceil_mode": 1})


def test_lp_pool_of_opset_1_has_a_float_power() -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    found = run_operator("LpPool", [x], {"kernel_shape": [2], "p": 2.0}, opset=1)[0]
    np.testing.assert_allclose(found[0, 0], np.sqrt([1, 5, 13]), rtol=1e-6)


@pytest.mark.parametrize("opset", [1, 8, 10, 12, 22])
def test_max_pool_opsets(opset: int) -> None:
    x = random_array(np.random.default_rng(0), np.float32, (1, 2, 7, 8))
    check_operator(
        "MaxPool", [x], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 0, 1]}, opset=opset
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float16, np.float64])
def test_max_pool_types(dtype: type) -> None:
    x = random_array(np.random.default_rng(0), dtype, (1, 2, 7, 8))
    check_operator("MaxPool", [x], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, opset=12)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 20, 11, 9), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((2, 5, 9), {"kernel_shape": (3,), "dilations": (2,), "pads": (2, 1)}),
        ((2, 35, 9, 8), {"kernel_shape": (2, 3), "ceil_mode": 1, "strides": (3, 2)}),
    ],
)
def test_maxima_of_bytes_are_machine_code(
    dtype: Any, shape: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    x = np.random.default_rng(0).integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    x[:, 0] = np.iinfo(dtype).min
    check_operator("MaxPool", [x], attributes, opset=12)
    model = build_model("MaxPool", [x], attributes, opset=12)
    with vkml.InferenceSession(model.SerializeToString(), devices="cpu") as session:
        session.run(None, {"x0": x})
        [step] = session.report().steps
    assert instruction_set() is None or step.variant != "numpy"


def test_max_pool_all_negative_infinity_keeps_valid_indices() -> None:
    x = np.full((1, 1, 3, 3), -np.inf, np.float32)
    values, indices = run_operator("MaxPool", [x], {"kernel_shape": [2, 2]}, outputs=2)
    assert np.isneginf(values).all()
    assert ((indices >= 0) & (indices < 9)).all()


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4), (1, 2, 3, 4, 5)])
def test_global_pools(op: str, shape: tuple[int, ...]) -> None:
    x = random_array(np.random.default_rng(0), np.float32, shape)
    check_operator(op, [x], opset=18, rtol=1e-5, atol=1e-5)


def test_large_windows_take_the_view_path() -> None:
    x = random_array(np.random.default_rng(0), np.float32, (1, 2, 20, 20))
    attributes = {"kernel_shape": [9, 9], "strides": [3, 3], "pads": [4, 4, 4, 4]}
    check_operator("MaxPool", [x], attributes)
    check_operator("AveragePool", [x], attributes, rtol=1e-4, atol=1e-5)


def test_global_average_of_float16_sums_in_float32() -> None:
    x = np.full((1, 1, 300, 300), 1.5, np.float16)
    assert run_operator("GlobalAveragePool", [x])[0].item() == 1.5


def test_empty_batch() -> None:
    x = np.zeros((0, 2, 5, 5), np.float32)
    assert run_operator("MaxPool", [x], {"kernel_shape": [2, 2]}, outputs=2)[1].shape == (0, 2, 4, 4)
    assert run_operator("GlobalMaxPool", [x])[0].shape == (0, 2, 1, 1)


def test_errors() -> None:
    x = np.zeros((1, 2, 5, 5), np.float32)
    with pytest.raises(ShapeError, match=r"kernel_shape \[3\].*\[1, 2, 5, 5\]"):
        inferred_types("MaxPool", [x], {"kernel_shape": [3]})
    with pytest.raises(ShapeError, match="padding makes"):
        huge = {"kernel_shape": [1, 1], "pads": [2**30] * 4, "strides": [2**30] * 2}
        inferred_types("MaxPool", [x], huge)
    with pytest.raises(ShapeError, match="padding makes"):
        inferred_types("MaxPool", [x[:0]], huge)
    with pytest.raises(ShapeError, match="window of 6"):
        inferred_types("MaxPool", [x], {"kernel_shape": [6, 1]})
    with pytest.raises(InvalidGraph, match="strides"):
        inferred_types("AveragePool", [x], {"kernel_shape": [1, 1], "strides": [1, -1]})
    with pytest.raises(InvalidGraph, match="p is 0"):
        inferred_types("LpPool", [x], {"kernel_shape": [1, 1], "p": 0})
    with pytest.raises(InvalidGraph, match="int32"):
        inferred_types("MaxPool", [x.astype(np.int32)], {"kernel_shape": [1, 1]})
