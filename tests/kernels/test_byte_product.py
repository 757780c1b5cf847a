"""Products and convolutions of 8-bit integers on Vulkan: exact, whatever their types, sizes and places."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.vulkan_cases import Array, Cases, Fixed
from vkml.kernels import gemm

RANDOM = np.random.default_rng(93)
ONES = (1, 1, 1, 1)


def bytes_of(dtype: type, *shape: int) -> Array:
    bounds = np.iinfo(dtype)
    return RANDOM.integers(bounds.min, bounds.max + 1, shape).astype(dtype)


def products(cases: Cases, a_type: type, b_type: type) -> None:
    """Of words, of bytes that are gathered one by one or four at a time, of constants and of fed values."""
    for m, k, n in ((5, 16, 7), (3, 9, 8), (1, 20, 12), (6, 2, 1), (2, 36, 40)):
        a, b = bytes_of(a_type, m, k), bytes_of(b_type, k, n)
        cases.add("MatMulInteger", a, Fixed(b))
        cases.add("MatMulInteger", a, b)
    cases.add("MatMulInteger", bytes_of(a_type, 2, 3, 8), bytes_of(b_type, 2, 8, 4))
    cases.add("MatMulInteger", bytes_of(a_type, 8), Fixed(bytes_of(b_type, 3, 8, 4)))


def convolutions(cases: Cases, x_type: type, w_type: type) -> None:
    """Windows and pixels, of whole words of channels and others, in one group and in two."""
    for channels, group, kernel in ((8, 1, 3), (3, 1, 3), (8, 2, 3), (6, 2, 1), (128, 1, 2)):
        x, weight = (
            bytes_of(x_type, 2, channels, 6, 5),
            bytes_of(w_type, 4, channels // group, kernel, kernel),
        )
        cases.add("ConvInteger", x, Fixed(weight), group=group, pads=ONES if kernel > 1 else (0, 0, 0, 0))
    # Pixels that are read four at a time, and windows of one and of three axes.
    cases.add("ConvInteger", bytes_of(x_type, 2, 5, 4, 4), Fixed(bytes_of(w_type, 3, 5, 1, 1)))
    cases.add("ConvInteger", bytes_of(x_type, 1, 4, 9), Fixed(bytes_of(w_type, 2, 4, 3)), strides=[2])
    cases.add("ConvInteger", bytes_of(x_type, 1, 4, 3, 4, 4), Fixed(bytes_of(w_type, 2, 4, 2, 2, 2)))


@pytest.mark.parametrize("b_type", [np.int8, np.uint8])
@pytest.mark.parametrize("a_type", [np.int8, np.uint8])
@pytest.mark.parametrize("is_strided", [False, True], ids=["whole", "strided"])
def test_all_types(vulkan_device_name: str, a_type: type, b_type: type, is_strided: bool) -> None:
    cases = Cases()
    products(cases, a_type, b_type)
    convolutions(cases, a_type, b_type)
    cases.check(vulkan_device_name, is_strided=is_strided)


def test_zero_points(vulkan_device_name: str) -> None:
    """Whatever they are of: they are taken out of sums of the bytes' products."""
    cases = Cases()
    a, b = bytes_of(np.uint8, 2, 5, 8), bytes_of(np.int8, 8, 6)
    of_a, of_b = np.uint8(130), np.int8(-7)
    for zeros in ((of_a, of_b), (of_a, None), (None, of_b), (of_a, bytes_of(np.int8, 6))):
        cases.add(
            "MatMulInteger", a, Fixed(b), *(None if zero is None else np.asarray(zero) for zero in zeros)
        )
    cases.add("MatMulInteger", a, b, bytes_of(np.uint8, 2, 5, 1), bytes_of(np.int8, 1, 6))
    cases.add("MatMulInteger", a[0], b, bytes_of(np.uint8, 5), np.array([-3], np.int8))
    cases.add("MatMulInteger", a, b[:, 0], bytes_of(np.uint8, 2, 5, 1), np.asarray(of_b))
    cases.add("MatMulInteger", a[0, 0], b, np.asarray(of_a), bytes_of(np.int8, 6))
    cases.add("MatMulInteger", a[0, 0], b, np.asarray(of_a), bytes_of(np.int8, 1, 6))
    cases.add("MatMulInteger", a[0, 0], b[:, 0], np.array([9], np.uint8), np.asarray(of_b))
    # Sums of the rows of one number, which needs no memory.
    cases.add("MatMulInteger", Fixed(np.array([[8]], np.uint8)), b[:1, :1], None, np.asarray(of_b))
    x, weight = bytes_of(np.uint8, 1, 4, 5, 5), bytes_of(np.int8, 6, 4, 3, 3)
    small = Fixed((weight // 2).astype(np.int8))
    cases.add("ConvInteger", x, small, Fixed(np.asarray(of_a)), Fixed(np.asarray(of_b)), pads=ONES)
    cases.add("ConvInteger", x, small, np.asarray(of_a), auto_pad="SAME_UPPER", strides=(2, 2))
    cases.add("ConvInteger", x, Fixed(weight), np.asarray(of_a), bytes_of(np.int8, 6), pads=ONES)
    cases.add("ConvInteger", x, weight, Fixed(np.asarray(of_a)), pads=ONES)
    cases.add(
        "ConvInteger", x, Fixed(weight), np.asarray(of_a), Fixed(bytes_of(np.int8, 6)), dilations=(2, 1)
    )
    cases.check(vulkan_device_name, level=0)
    cases.check(vulkan_device_name)


@pytest.fixture
def forced() -> Iterator[None]:
    yield
    gemm.forced = None


@pytest.mark.parametrize("splits", [1, 3])
def test_ranges_of_k(vulkan_device_name: str, forced: None, splits: int) -> None:
    """Large sums, in the one tile that software drivers compile in time."""
    gemm.forced = (next(tile for tile in gemm.TILES if (tile.m, tile.n, tile.k) == (32, 32, 16)), splits)
    cases = Cases()
    cases.add("MatMulInteger", bytes_of(np.uint8, 40, 532), Fixed(bytes_of(np.int8, 532, 36)))
    weight = Fixed(bytes_of(np.int8, 40, 128, 3, 3))
    cases.add("ConvInteger", bytes_of(np.uint8, 1, 128, 5, 7), weight, pads=ONES)
    cases.check(vulkan_device_name)
