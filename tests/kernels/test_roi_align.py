"""RoiAlign on Vulkan: modes, sampling by region, regions that reach beyond the image, and wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model
from tests.vulkan_cases import Cases

LARGEST = np.array([[0, 0, 9, 7], [-3, -2, 4, 30], [5, 5, 5, 5], [2.5, 1.25, 7.75, 6.5]], np.float32)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_regions(device_name: str, is_strided: bool) -> None:
    cases = Cases(81)
    images = np.array([1, 0, 1, 0])
    for mode in ("avg", "max"):
        for transform in ("half_pixel", "output_half_pixel"):
            for ratio, scale in ((0, 1.0), (2, 0.5)):
                cases.add(
                    "RoiAlign", cases.array("float32", (2, 3, 8, 10)), LARGEST, images, mode=mode,
                    coordinate_transformation_mode=transform, sampling_ratio=ratio, spatial_scale=scale,
                    output_height=2, output_width=3, rtol=1e-4, atol=1e-4,
                )  # fmt: skip
    half = cases.array("float16", (2, 3, 8, 10))
    cases.add("RoiAlign", half, LARGEST.astype(np.float16), images, rtol=4e-3, atol=4e-3)
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize(
    ("image", "corner"), [(2, 5.0), (-1, 5.0), (0, np.nan), (0, np.inf), (0, 1e7)], ids=str
)
def test_wrong_regions_are_reported(vulkan_device_name: str, image: int, corner: float) -> None:
    inputs = [np.ones((2, 1, 4, 4), np.float32), np.array([[0, 0, corner, 3]], np.float32), np.array([image])]
    model = build_model("RoiAlign", inputs, {}, opset=16).SerializeToString()
    with vkml.InferenceSession(model, devices=vulkan_device_name) as session, pytest.raises(vkml.Error):
        session.run(None, {f"x{at}": array for at, array in enumerate(inputs)})
