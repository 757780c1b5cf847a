"""Resize on Vulkan: modes, coordinate transformations, any axes."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

import vkml
from tests.vulkan_cases import Cases, Fixed
from vkml.engine.sketch import Sketch
from vkml.lowering.kept import forget_lowerings
from vkml.onnx import save_graph
from vkml.ops.image import COORDINATE_MODES, NEAREST_MODES


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_modes(device_name: str, is_strided: bool) -> None:
    cases = Cases(81)
    transformations = [mode for mode in COORDINATE_MODES if mode != "tf_crop_and_resize"]
    for index, transformation in enumerate(transformations):
        for mode in ("nearest", "linear", "cubic"):
            x = cases.array("float16" if index == 1 else "float32", (1, 2, *cases.shape(2, 3, 7)))
            scales = [1, 1, *(float(s) for s in cases.random.choice([0.5, 0.7, 1.0, 1.6, 2.0, 3.0], 2))]
            cases.add(
                "Resize",
                x,
                None,
                Fixed(np.array(scales, np.float32)),
                mode=mode,
                coordinate_transformation_mode=transformation,
                exclude_outside=int(mode == "cubic" and index % 2),
                antialias=int(mode == "linear" and index == 2),
                atol=2e-5 if index != 1 else 2e-3,
            )
    for nearest in NEAREST_MODES[:4]:
        sizes = Fixed(np.array([1, 2, 9, 4], np.int64))
        x = cases.array("int32", (1, 2, 5, 6))
        cases.add("Resize", x, None, None, sizes, mode="nearest", nearest_mode=nearest)
    cases.check(device_name, is_strided=is_strided)


def test_other_ranks_and_axes(device_name: str) -> None:
    cases = Cases(82)
    for rank in (1, 2, 3, 5):
        x = cases.array("float32", cases.shape(rank, 2, 5))
        scales = np.full(rank, 1.5, np.float32)
        cases.add("Resize", x, None, Fixed(scales), mode="linear", atol=2e-5)
    x = cases.array("float32", (2, 5, 6))
    cases.add(
        "Resize", x, None, None, Fixed(np.array([4, 9], np.int64)), mode="linear", axes=(0, 2), atol=2e-5
    )
    cases.add(
        "Resize",
        cases.array("uint8", (1, 4, 4)),
        None,
        Fixed(np.array([1, 2, 2], np.float32)),
        mode="nearest",
    )
    crop = Fixed(np.array([0, 0.2, 1, 0.8], np.float32))
    cases.add(
        "Resize",
        cases.array("float32", (3, 8)),
        crop,
        None,
        Fixed(np.array([3, 5], np.int64)),
        coordinate_transformation_mode="tf_crop_and_resize",
        may_fall_back=True,
    )
    cases.check(device_name)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_many_results(vulkan_device_name: str, is_strided: bool) -> None:
    """Threads with several results below one another, of which the last have fewer."""
    cases = Cases(85)
    for mode, dtype, shape, scales in (
        ("linear", "float32", (8, 16, 60, 64), (1, 1, 2, 2)),
        ("linear", "float32", (8, 16, 61, 63), (1, 1, 1.9, 2.1)),
        ("linear", "float16", (8, 16, 120, 64), (1, 1, 1, 2)),
        ("linear", "float32", (8, 16, 63, 129), (1, 1, 2, 1)),
        ("cubic", "float32", (4, 16, 41, 43), (1, 1, 3, 3)),
        ("nearest", "uint8", (8, 16, 61, 67), (1, 1, 2, 2)),
        ("linear", "float32", (8, 14, 40, 40), (1.5, 1, 2.5, 1.7)),
    ):
        cases.add(
            "Resize",
            cases.array(dtype, shape),
            None,
            Fixed(np.array(scales, np.float32)),
            mode=mode,
            atol={"float32": 2e-5, "float16": 2e-3}.get(dtype),
        )
    cases.check(vulkan_device_name, is_strided=is_strided)


@pytest.mark.parametrize(
    ("scales", "attributes", "is_pattern"),
    [
        ((1, 1, 2, 2), {"mode": "linear"}, True),
        ((1, 1, 2, 1), {"mode": "nearest"}, True),
        ((1, 1, 2, 2), {"mode": "cubic"}, True),
        ((1, 1, 1.5, 1), {"mode": "linear"}, False),
        ((1, 1, 2, 2), {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, False),
        ((1, 2, 2, 1), {"mode": "linear"}, False),
        ((1, 1, 1, 2), {"mode": "linear"}, False),
    ],
    ids=str,
)
def test_rows_that_are_alike_block_by_block(
    vulkan_device_name: str, scales: tuple[float, ...], attributes: dict[str, str], is_pattern: bool
) -> None:
    """Where each thread's rows are made of others in the same way, these are read once."""
    sketch = Sketch("resize")
    x = np.random.default_rng(87).standard_normal((4, 8, 61, 66), np.float32)
    given = sketch.input("x", x.shape), sketch.constant(np.zeros(0, np.float32))
    made = sketch.node("Resize", *given, sketch.constant(np.array(scales, np.float32)), **attributes)
    model = save_graph(sketch.finish(made))
    assert model is not None
    with patch("vkml.kernels.items.LEAST_THREADS", 1):
        forget_lowerings()
        with vkml.InferenceSession(model, devices=vulkan_device_name) as session:
            [found] = session.run(None, {"x": x})
            [step] = session.report().steps
        with vkml.InferenceSession(model, devices="cpu") as session:
            [wanted] = session.run(None, {"x": x})
    forget_lowerings()
    assert step.variant.startswith("a pattern") == is_pattern, step.variant
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)


def test_many_taps(vulkan_device_name: str) -> None:
    """Of more elements a result than loops are laid out for."""
    cases = Cases(86)
    for shape, scales in (((2, 60, 70), (1, 0.2, 0.15)), ((300,), (0.03,))):
        cases.add(
            "Resize",
            cases.array("float32", shape),
            None,
            Fixed(np.array(scales, np.float32)),
            mode="linear",
            antialias=1,
            atol=2e-5,
        )
    cases.check(vulkan_device_name)
