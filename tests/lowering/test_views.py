"""Operators that move elements, on Vulkan: as views where strides can say it, as copies where not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vulkan_cases import Cases, Fixed

TYPES = ("float32", "float16", "int32", "int64", "uint8", "bool")


def ints(*values: int) -> Fixed:
    return Fixed(np.array(values, np.int64))


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_shapes(device_name: str, is_strided: bool) -> None:
    cases = Cases(91)
    for name in TYPES:
        x = cases.array(name, (2, 3, 4, 5))
        cases.add("Reshape", x, ints(6, -1))
        cases.add("Reshape", x, ints(0, 12, 5))
        cases.add("Flatten", x, axis=int(cases.random.integers(-4, 5)))
        cases.add("Transpose", x, perm=[int(a) for a in cases.random.permutation(4)])
        cases.add("Unsqueeze", x, ints(0, -1))
        cases.add("Squeeze", x[:1, :, :1], ints(0, 2))
        cases.add("Squeeze", x[:1, :, :1])
        cases.add("Expand", x[:, :1], ints(2, 1, 3, 1, 1))
    cases.add("Transpose", cases.array("float32", (3, 4)))
    cases.add("Reshape", cases.array("float32", ()), ints(1, 1))
    cases.add("Reshape", cases.array("float32", (1, 1)), Fixed(np.zeros(0, np.int64)))
    cases.add("Reshape", cases.array("float32", (0, 4)), ints(2, 0, 3), allowzero=1)
    cases.add("Expand", cases.array("float32", (0, 1)), ints(0, 5))
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_cuts(device_name: str, is_strided: bool) -> None:
    cases = Cases(92)
    for name in TYPES:
        x = cases.array(name, (4, 6, 5))
        cases.add("Slice", x, ints(1, -2), ints(10, -10), ints(0, 2), ints(1, -2))
        cases.add("Slice", x, ints(5), ints(-100), ints(1), ints(-1))
        cases.add("Slice", x, ints(3), ints(3), ints(1))
        cases.add("Split", x, ints(1, 0, 5), axis=1, outputs=3)
        cases.add("Split", x, outputs=2, num_outputs=2, axis=-1)
        cases.add("DepthToSpace", cases.array(name, (2, 8, 3, 2)), blocksize=2, mode="DCR")
        cases.add("DepthToSpace", cases.array(name, (2, 8, 3, 2)), blocksize=2, mode="CRD")
        cases.add("SpaceToDepth", cases.array(name, (2, 3, 4, 6)), blocksize=2)
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_larger_tensors(device_name: str, is_strided: bool) -> None:
    cases = Cases(93)
    for name in TYPES:
        x = cases.array(name, (3, 4, 5))
        for mode in ("constant", "edge", "reflect", "wrap"):
            for pads in ((1, 2, 0, 3, 0, 1), (-1, 0, 2, 1, -1, 0), (0, 9, 0, 0, 9, 0)):
                fill = None if mode != "constant" or pads[0] else cases.array(name, ())
                cases.add("Pad", x, ints(*pads), fill, mode=mode)
        cases.add("Tile", x, ints(2, 1, 3))
        cases.add("Tile", x, ints(1, 0, 3))
        cases.add("CenterCropPad", x, ints(5, 2), axes=(0, 2))
        for upper in (0, 1):
            cases.add("Trilu", x, ints(int(cases.random.integers(-4, 5))), upper=upper)
    cases.add("Pad", cases.array("float32", (3, 4)), ints(1, 1), Fixed(np.array(2.5, np.float32)), ints(1))
    cases.add("Pad", np.zeros((0, 3), np.float32), ints(1, 0, 1, 0), Fixed(np.array(7, np.float32)))
    cases.add("Pad", cases.array("float32", (1, 3)), ints(2, 0, 2, 0), mode="reflect")
    cases.add("Trilu", cases.array("float32", (3, 4)))
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_concatenations(device_name: str, is_strided: bool) -> None:
    cases = Cases(94)
    for name in TYPES:
        for axis in (0, 1, -1):
            shape = list(cases.shape(3, 2, 5))
            parts = []
            for size in (3, 0, 1, 4):
                shape[axis] = size
                parts.append(cases.array(name, shape))
            cases.add("Concat", *parts, axis=axis)
    cases.add("Concat", cases.array("float32", (3, 4)), axis=0)
    cases.check(device_name, is_strided=is_strided)
