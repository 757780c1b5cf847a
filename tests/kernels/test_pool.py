"""Pooling on Vulkan: one to three spatial axes, strides, dilations, padding, ceil_mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.vulkan_cases import Cases


def geometry(cases: Cases, rank: int) -> dict[str, Any]:
    """Random attributes for windows over axes of 6 to 9."""
    rng = cases.random
    kernel = [int(k) for k in rng.integers(1, 4, rank)]
    made: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [int(s) for s in rng.integers(1, 4, rank)],
        "ceil_mode": int(rng.integers(0, 2)),
    }
    if rng.random() < 0.6:
        made["pads"] = [int(rng.integers(0, k)) for k in (*kernel, *kernel)]
        made["dilations"] = [int(d) for d in rng.integers(1, 3, rank)]
    else:
        made["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    return made


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_windows(device_name: str, rank: int, is_strided: bool) -> None:
    cases = Cases(40 + rank)
    for index in range(5):
        name = "float16" if index == 4 else "float32"
        x = cases.array(name, (2, 3, *cases.shape(rank, 6, 9)))
        cases.add("MaxPool", x, **geometry(cases, rank))
        for count in (0, 1):
            cases.add("AveragePool", x, count_include_pad=count, **geometry(cases, rank))
        cases.add("LpPool", x, p=int(cases.random.integers(1, 4)), **geometry(cases, rank))
    x = cases.array("float32", (2, 3, *cases.shape(rank, 6, 9)), special=True)
    cases.add("MaxPool", x, **geometry(cases, rank))
    for name in ("int8", "uint8"):
        cases.add("MaxPool", cases.array(name, (1, 2, *(7,) * rank)), **geometry(cases, rank))
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_global(device_name: str, is_strided: bool) -> None:
    cases = Cases(44)
    for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        for name in ("float32", "float16"):
            for rank in (0, 1, 2, 3, 4):
                x = cases.array(name, (2, 3, *cases.shape(rank, 1, 6)))
                cases.add(op, x, **({"p": 3} if op == "GlobalLpPool" and rank == 2 else {}))
    cases.add("GlobalMaxPool", cases.array("float32", (1, 2, 40, 50), special=True))
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_maxima_with_places(device_name: str, is_strided: bool) -> None:
    cases = Cases(46)
    for rank, name in ((1, "float32"), (2, "float16"), (2, "int8"), (3, "float32")):
        x = cases.array(name, (2, 3, *cases.shape(rank, 6, 9)), special=True)
        for order in (0, 1):
            cases.add("MaxPool", x, outputs=2, storage_order=order, **geometry(cases, rank))
    nothing = np.full((1, 1, 4, 4), -np.inf, np.float32)
    cases.add("MaxPool", nothing, outputs=2, kernel_shape=(2, 2), strides=(2, 2))
    cases.check(device_name, is_strided=is_strided)


def test_four_axes_fall_back_rightly(device_name: str) -> None:
    cases = Cases(45)
    cases.add("MaxPool", np.zeros((1, 1, 3, 3, 3, 3), np.float32), kernel_shape=(2,) * 4, may_fall_back=True)
    cases.add("MaxPool", np.zeros((0, 2, 6, 7), np.float32), kernel_shape=(2, 2))
    cases.check(device_name)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_greatest_elements_of_many_windows(vulkan_device_name: str, is_strided: bool) -> None:
    """Threads with several results below one another, of which the last have fewer; NaN and infinities."""
    cases = Cases(48)
    for name, shape, attributes in (
        ("float32", (8, 64, 56, 57), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("float32", (8, 64, 55, 83), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("float32", (4, 64, 61, 57), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("float32", (2, 64, 66, 64), {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [2, 0, 1, 3]}),
        ("float16", (8, 64, 47, 57), {"kernel_shape": [1, 3], "pads": [0, 0, 0, 2]}),
        ("uint8", (8, 64, 63, 61), {"kernel_shape": [3, 1], "pads": [1, 0, 1, 0]}),
        ("float32", (1, 40, 4, 70, 64), {"kernel_shape": [2, 3, 3], "pads": [1, 1, 1, 0, 1, 1]}),
    ):
        x = cases.array(name, shape)
        if np.dtype(name).kind == "f":
            for special in (np.nan, np.inf, -np.inf, 0.0, -0.0):
                x[cases.random.random(shape) < 0.01] = special
            x[0, 0] = -np.inf
        cases.add("MaxPool", x, **attributes)
    cases.check(vulkan_device_name, is_strided=is_strided)


def test_greatest_elements_of_large_windows(vulkan_device_name: str) -> None:
    """Of more elements than loops are laid out for."""
    cases = Cases(49)
    for rank, kernel in ((2, [9, 11]), (1, [70]), (3, [3, 5, 14])):
        x = cases.array("float32", (2, 3, *(size + 7 for size in kernel)), special=True)
        cases.add("MaxPool", x, kernel_shape=kernel, pads=[1] * (2 * rank), strides=[2] * rank)
    cases.check(vulkan_device_name)
