"""Softmax and normalisations on Vulkan: axes, row lengths, strides, statistics."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vulkan_cases import Cases

FLOATS = ("float32", "float16")


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_softmax(device_name: str, is_strided: bool) -> None:
    cases = Cases(31)
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for name in FLOATS:
            for axis in (0, 1, -1):
                cases.add(
                    op, cases.array(name, cases.shape(3)), axis=axis, atol=1e-6 if name == "float32" else None
                )
    cases.add("Softmax", cases.array("float32", ()))
    cases.check(device_name, is_strided=is_strided)


def test_softmax_over_all_axes_from_one_on(device_name: str) -> None:
    """As opsets before 13 have it."""
    cases = Cases(36, opset=11)
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for axis in (0, 1, -1):
            cases.add(op, cases.array("float32", (2, 3, 4)), axis=axis, atol=1e-6)
    cases.check(device_name, is_strided=True)


def test_the_logarithm_of_near_certainty(device_name: str) -> None:
    """What is left of large numbers keeps its digits: they are subtracted from one another first."""
    cases = Cases(37)
    for top in (33.129265, 1033.129265):
        rows = np.array([[top, top - 9.7425], [top - 11, top]], np.float32)
        cases.add("LogSoftmax", rows, atol=2e-7)
        cases.add("LogSoftmax", rows, axis=0, atol=2e-7)
    cases.check(device_name)


@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 1000, 4097, 10000])
def test_softmax_of_long_rows(device_name: str, length: int) -> None:
    cases = Cases(32)
    cases.add("Softmax", cases.array("float32", (3, length)))
    cases.add("LogSoftmax", cases.array("float32", (3, length)))
    cases.check(device_name)


def test_softmax_of_special_values(device_name: str) -> None:
    cases = Cases(33)
    rows = np.array(
        [[1e4, 1, -1e4], [np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 0, 1], [-np.inf] * 3], np.float32
    )
    for op in ("Softmax", "LogSoftmax"):
        cases.add(op, rows)
    cases.add("Hardmax", rows[[0, 2, 3]])
    cases.add("Softmax", np.zeros((3, 0), np.float32))
    cases.check(device_name)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_row_normalisations(device_name: str, is_strided: bool) -> None:
    cases = Cases(34)
    for name in FLOATS:
        for axis in (-1, 1, 0):
            shape = cases.shape(3, 2, 9)
            tail = shape[axis:]
            x, scale, bias = (cases.array(name, given) for given in (shape, tail, tail))
            tolerance = 1e-5 if name == "float32" else 4e-3
            cases.add("LayerNormalization", x, scale, bias, axis=axis, atol=tolerance)
            cases.add("LayerNormalization", x, scale, axis=axis, epsilon=1e-2, atol=tolerance)
            cases.add("RMSNormalization", x, scale, axis=axis, atol=tolerance)
            cases.add("LayerNormalization", x, scale[..., :1], bias[..., :1], axis=axis, atol=tolerance)
    x, scale = cases.array("float32", (4, 3, 5)), cases.array("float32", (5,))
    cases.add("LayerNormalization", x, scale, outputs=3, atol=1e-5, may_fall_back=True)
    cases.add(
        "LayerNormalization",
        cases.array("float32", (7, 4096)) + 100,
        cases.array("float32", (4096,)),
        atol=2e-4,
    )
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_channel_normalisations(device_name: str, is_strided: bool) -> None:
    cases = Cases(35)
    for name in FLOATS:
        tolerance = 2e-5 if name == "float32" else 8e-3
        for rank in (3, 4, 5):
            shape = (2, 6, *cases.shape(rank - 2, 2, 6))
            x, scale, bias = (cases.array(name, given) for given in (shape, (6,), (6,)))
            mean, variance = cases.array(name, (6,)), np.abs(cases.array(name, (6,))) + np.array(0.1, name)
            cases.add("InstanceNormalization", x, scale, bias, atol=tolerance)
            cases.add("GroupNormalization", x, scale, bias, num_groups=3, atol=tolerance)
            cases.add("BatchNormalization", x, scale, bias, mean, variance, atol=tolerance)
        x = cases.array(name, (2, 4, 3, 3))
        cases.add("MeanVarianceNormalization", x, atol=tolerance)
        cases.add("MeanVarianceNormalization", x, axes=(1, 3), atol=tolerance)
        for size in (1, 3, 4):
            cases.add("LRN", x, size=size, alpha=0.1, beta=0.6, bias=1.5)
        for axis, p in ((-1, 2), (1, 1), (0, 2)):
            cases.add("LpNormalization", x, axis=axis, p=p)
        zero = x.copy()
        zero[0] = 0
        cases.add("LpNormalization", zero, axis=-1)
    x = cases.array("float32", (3, 4))
    vectors = [cases.array("float32", (4,)) for _ in range(3)]
    cases.add("BatchNormalization", x, *vectors, np.ones(4, np.float32))
    training = [cases.array("float32", (2, 3, 4)), *(np.ones(3, np.float32) for _ in range(4))]
    cases.add("BatchNormalization", *training, training_mode=1, outputs=3, atol=1e-5)
    for name, shape in (("float32", (5, 3)), ("float16", (2, 3, 4, 3)), ("float32", (2, 3, 2, 3, 2))):
        far = cases.array(name, shape) + np.array(10, name)
        vectors = [cases.array(name, (3,)) for _ in range(3)]
        tolerance = 2e-5 if name == "float32" else 2e-2
        for outputs in (1, 3):
            cases.add(
                "BatchNormalization", far, *vectors, np.ones(3, name), training_mode=1, momentum=0.3,
                outputs=outputs, atol=tolerance,
            )  # fmt: skip
    cases.check(device_name, is_strided=is_strided)
