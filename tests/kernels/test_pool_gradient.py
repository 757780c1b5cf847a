"""The gradient of windows' maxima: devices compute to the bit what the reference does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import device_called, host, placed
from vkml import tracing
from vkml.ir import dtypes
from vkml.ir.windows import Windows
from vkml.kernels import pool
from vkml.tracing import evaluation

RANDOM = np.random.default_rng(41)
Geometry = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]

# Image, kernel, strides, dilations, pads in front.
CASES: dict[str, Geometry] = {
    "several tiles along both axes": ((1, 2, 61, 90), (3, 3), (2, 2), (1, 1), (1, 1)),
    "several planes a tile, one too few": ((3, 21, 7, 7), (3, 2), (2, 1), (1, 1), (1, 0)),
    "dilation with a factor of the stride": ((1, 2, 23, 40), (3, 2), (2, 4), (4, 6), (3, 1)),
    "dilation without one": ((1, 2, 20, 33), (3, 4), (3, 2), (2, 3), (2, 3)),
    "gaps between windows": ((1, 2, 11, 40), (2, 1), (5, 3), (1, 1), (0, 0)),
    "windows of padding alone": ((1, 1, 5, 6), (2, 2), (1, 2), (1, 1), (3, 2)),
    "a line": ((2, 1, 1500), (5,), (3,), (1,), (2,)),
    "a volume": ((1, 2, 9, 13, 17), (2, 3, 2), (1, 2, 2), (1, 1, 2), (1, 0, 1)),
    "volumes of one tile": ((1, 4, 3, 5, 4), (2, 2, 3), (1, 1, 1), (1, 1, 1), (0, 0, 0)),
    "dense": ((1, 2, 9, 8), (6, 5), (1, 2), (1, 1), (3, 1)),
    "windows of many elements": ((1, 1, 40, 40), (20, 20), (10, 10), (1, 1), (4, 0)),
    "more than a workgroup has room for": ((1, 1, 2100), (1100,), (1,), (1,), (0,)),
    "four axes of many elements": (
        (1, 1, 5, 5, 4, 4),
        (5, 5, 4, 4),
        (2, 2, 2, 2),
        (1, 1, 1, 1),
        (1, 1, 1, 1),
    ),
    "four axes": ((1, 2, 3, 4, 3, 5), (2, 2, 1, 3), (1, 2, 1, 2), (1, 1, 1, 1), (1, 0, 0, 1)),
}


def taken(
    geometry: Geometry, kind: Any = np.float32, is_inside: bool = False
) -> tuple[Any, Any, dict[str, Any]]:
    """An image full of equal elements, what its windows have, and the operator's attributes.

    Args:
        geometry: as in `CASES`.
        kind: of elements.
        is_inside: whether windows end before the image does; all that begin before its end are there else.
    """
    shape, kernel, strides, dilations, pads = geometry
    counts = [
        (size + begin - ((taps - 1) * dilation if is_inside else 0) - 1) // stride + 1
        for size, taps, stride, dilation, begin in zip(shape[2:], *geometry[1:], strict=True)
    ]
    x = RANDOM.integers(0, 4, shape).astype(kind)
    cotangent = RANDOM.standard_normal((*shape[:2], *counts)).astype(kind)
    return x, cotangent, {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}


def check(cases: dict[str, tuple[Any, Any, dict[str, Any]]], device: str) -> None:
    """Computes all of them in one run, and compares."""
    made, wanted = {}, {}
    for name, (x, cotangent, attributes) in cases.items():
        operands = (placed(x, device_called(device)), placed(cotangent, device_called(device)))
        [value] = tracing.apply_all("MaxPoolGradient", operands, 1, "vkml", **attributes)
        assert value.application is not None
        [wanted[name]] = value.application.operator.evaluate(value.application.node, [x, cotangent])
        made[name] = value
    tracing.evaluate(list(made.values()))
    for name, value in made.items():
        np.testing.assert_array_equal(host(value), wanted[name], name)


def test_the_gradient_is_that_of_the_reference(device_name: str) -> None:
    cases = {
        f"{name}, {is_inside}": taken(geometry, is_inside=is_inside)
        for name, geometry in CASES.items()
        for is_inside in (False, True)
    }
    check(cases, device_name)


def test_other_floats(device_name: str) -> None:
    kinds = (np.float16, dtypes.BFLOAT16.storage, np.float64)
    check(
        {f"{name}, {kind}": taken(CASES[name], kind) for name in ("a volume", "a line") for kind in kinds},
        device_name,
    )


def test_what_is_not_finite(device_name: str) -> None:
    cases = {}
    for name in (
        "several tiles along both axes", "windows of padding alone", "a volume", "four axes", "dense",
    ):  # fmt: skip
        x, cotangent, attributes = taken(CASES[name])
        for value in (np.nan, np.inf, -np.inf):
            x[RANDOM.random(x.shape) < 0.2] = value
        cases[name] = x, cotangent, attributes
        cases[f"{name}, nothing above -inf"] = np.full_like(x, -np.inf), cotangent, attributes
    check(cases, device_name)


def test_it_is_one_launch(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    monkeypatch.setattr(evaluation, "_settings", {})
    monkeypatch.setattr(evaluation, "_announce", plans.append)
    check({"": taken(CASES["several tiles along both axes"])}, vulkan_device_name)
    [plan] = plans
    launched = [launch.kernel.label for bound in plan.programs for launch in bound.program.dispatches]
    assert launched == ["max_pool_gradient"] and not plan.fallbacks


def test_tiles_divide_the_work() -> None:
    def tile(spatial: tuple[int, ...], kernel: int, stride: int) -> Any:
        counts = tuple(size // stride for size in spatial)
        each = [(number,) * len(spatial) for number in (kernel, stride, 1, 1, 0)]
        return pool._tile_of_gradients(Windows(spatial, *each, counts).over(3))

    found = tile((112, 112), 3, 2)
    assert (found.sizes, found.counts, found.windows, found.planes) == ((1, 14, 56), (1, 8, 2), (1, 8, 29), 1)
    small = tile((4, 4), 3, 2)
    assert (small.sizes, small.planes) == ((1, 4, 4), 64)
    assert tile((3000,), 2000, 1) is None
