"""Element types: one array type each, and which numbers they have."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from vkml.ir import DType, dtypes, static


def test_every_type_has_an_array_type_of_its_own() -> None:
    for dtype in dtypes.ALL:
        assert dtypes.from_numpy(dtype.storage) is dtype
        assert dtypes.from_code(dtype.code) is dtype
        assert dtype.is_native == (dtype.storage.isbuiltin == 1)
        assert dtype.is_packed == (dtype.bits < 8)
        if dtype.kind != "s":
            assert dtype.storage.itemsize == dtype.bytes_for(1)
    assert dtypes.from_numpy(np.dtype(">i4")) is dtypes.INT32
    assert dtypes.from_numpy(np.dtype("U3")) is dtypes.STRING


@pytest.mark.parametrize(
    ("dtype", "on_host", "on_device"),
    [(dtypes.INT4, 15, 8), (dtypes.UINT2, 15, 4), (dtypes.FLOAT8E5M2, 15, 15), (dtypes.BFLOAT16, 30, 30)],
    ids=str,
)
def test_sizes_are_those_of_bits_on_devices_and_of_arrays_on_the_host(
    dtype: DType, on_host: int, on_device: int
) -> None:
    type_ = static(dtype, (3, 5))
    assert (type_.host_bytes, type_.bytes) == (on_host, on_device)
    assert np.zeros((3, 5), dtype.storage).nbytes == on_host


@pytest.mark.parametrize(
    ("dtype", "held", "lost"),
    [
        (dtypes.FLOAT32, [0.1, np.inf, np.nan, 2.0**100], [1e300, -1e39]),
        (dtypes.FLOAT16, [0.1, 65504], [70000]),
        (dtypes.BFLOAT16, [0.1, 1e38, np.nan, -np.inf], [1e300]),
        (dtypes.FLOAT8E4M3FN, [0.1, 448, np.nan], [np.inf, 1000]),
        (dtypes.FLOAT8E5M2, [0.1, np.inf, np.nan], [1e6]),
        (dtypes.FLOAT8E8M0, [1.5, np.nan, 2.0**-127], [0, -1, np.inf]),
        (dtypes.FLOAT4E2M1, [0.1, 6, -6], [7, np.nan, np.inf]),
        (dtypes.INT4, [-8, 7], [8, -9, 0.5, np.nan]),
        (dtypes.UINT2, [0, 3], [4, -1]),
        (dtypes.UINT64, [0, 2**53], [-1, 2.0**64]),
        (dtypes.BOOL, [0, 1], [2, -1, 0.5]),
    ],
    ids=str,
)
def test_which_numbers_a_type_has(dtype: DType, held: list[float], lost: list[float]) -> None:
    assert dtypes.can_hold(dtype, np.array(held))
    for number in lost:
        assert not dtypes.can_hold(dtype, np.array([held[-1], number], np.float64)), number
    assert dtypes.can_hold(dtype, np.zeros(0))


def test_bounds_of_integers() -> None:
    for dtype in dtypes.ALL:
        if dtype.is_integer:
            info = np.iinfo(dtype.storage) if dtype.is_native else ml_dtypes.iinfo(dtype.storage)
            assert dtypes.integer_bounds(dtype) == (info.min, info.max)
