"""Gradients of resizing and of sampling at places that are data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check, normal
from vkml import tracing
from vkml.errors import NotDifferentiable, ShapeError

RANDOM = np.random.default_rng(35)


def sizes(*values: int) -> Any:
    return np.array(values, np.int64)


def scales(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("mode", "target", "attributes"),
    [
        ("nearest", sizes(2, 2, 8, 6), {}),
        ("nearest", sizes(2, 2, 3, 2), {}),
        ("nearest", scales(1, 1, 1.6, 2.5), {"coordinate_transformation_mode": "asymmetric"}),
        ("linear", sizes(2, 2, 7, 6), {}),
        ("linear", sizes(2, 2, 6, 5), {"coordinate_transformation_mode": "align_corners"}),
        ("linear", sizes(2, 2, 3, 2), {"antialias": 1}),
        ("cubic", sizes(2, 2, 7, 4), {}),
        ("cubic", sizes(2, 2, 3, 5), {"exclude_outside": 1, "cubic_coeff_a": -0.5}),
        ("cubic", sizes(2, 2, 2, 2), {"antialias": 1}),
    ],
)  # fmt: skip
def test_resize(mode: str, target: Any, attributes: dict[str, Any], device_name: str) -> None:
    is_size = target.dtype == np.int64
    inputs = [normal(RANDOM, 2, 2, 4, 3), None, *([None, target] if is_size else [target])]
    differences = device_name == "cpu"
    check("Resize", inputs, {**attributes, "mode": mode}, differences=differences, device=device_name)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_what_a_resize_reads_outside_gives_nothing(mode: str) -> None:
    region = np.array([0, 0, 0.4, -0.5, 1, 1, 1.3, 0.8], np.float64).astype(np.float32)
    attributes = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "mode": mode,
        "extrapolation_value": 7.0,
    }
    check("Resize", [normal(RANDOM, 1, 2, 4, 5), region, None, sizes(1, 2, 6, 5)], attributes)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_resize_as_torch_has_it(mode: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")

    coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
    attributes = {
        "mode": {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode),
        "coordinate_transformation_mode": coordinates, "nearest_mode": "floor",
    }  # fmt: skip
    check(
        "Resize", [normal(RANDOM, 1, 3, 3, 4), None, None, sizes(1, 3, 6, 8)], attributes,
        torch=lambda x, _: torch.nn.functional.interpolate(x, (6, 8), mode=mode),
        differences=False, device=device_name,
    )  # fmt: skip


def grid_of(spatial: tuple[int, ...], aligned: bool, *shape: int) -> Any:
    """Places inside and outside of an image, none near to an element or half way between two."""
    columns = []
    for size in reversed(spatial):
        place = RANDOM.integers(-2, size + 1, shape) + RANDOM.choice([0.3, 0.7], shape)
        columns.append(place * 2 / (size - 1) - 1 if aligned else (place * 2 + 1) / size - 1)
    return np.stack(columns, -1)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(mode: str, padding: str, aligned: int) -> None:
    torch = pytest.importorskip("torch")

    attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    x, grid = normal(RANDOM, 2, 2, 4, 5), grid_of((4, 5), bool(aligned), 2, 3, 2)
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    check(
        "GridSample", [x, grid], attributes,
        torch=lambda x, grid: torch.nn.functional.grid_sample(x, grid, name, padding, bool(aligned)),
        second_order=mode != "nearest" and padding == "zeros" and not aligned,
    )  # fmt: skip


def test_grid_sample_of_volumes_and_on_devices(device_name: str) -> None:
    x, grid = normal(RANDOM, 1, 2, 3, 4, 3), grid_of((3, 4, 3), False, 1, 2, 1, 2)
    check("GridSample", [x, grid], differences=device_name == "cpu", device=device_name)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (1, 2, 2, 3, 4)])
def test_affine_grid(shape: tuple[int, ...], aligned: int, device_name: str) -> None:
    torch = pytest.importorskip("torch")

    axes = len(shape) - 2
    check(
        "AffineGrid", [normal(RANDOM, shape[0], axes, axes + 1), sizes(*shape)], {"align_corners": aligned},
        torch=lambda theta, _: torch.nn.functional.affine_grid(theta, shape, align_corners=bool(aligned)),
        device=device_name,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align(mode: str, ratio: int) -> None:
    attributes = {
        "coordinate_transformation_mode": mode, "sampling_ratio": ratio, "output_height": 2,
        "output_width": 3, "spatial_scale": 0.5,
    }  # fmt: skip
    rois = np.array([[0, 0, 7, 9], [2, 3, 9, 6], [-3, 1, 5, 12]], np.float32)
    check("RoiAlign", [normal(RANDOM, 2, 2, 5, 6), rois, sizes(1, 0, 1)], attributes)


def test_what_roi_align_does_not_differentiate_is_said() -> None:
    def leaf(array: Any) -> tracing.Traced:
        value = tracing.value_of(array)
        value.tracks = value.is_leaf = True
        return value

    image, rois, batch = leaf(np.ones((1, 1, 4, 4))), leaf(np.ones((1, 4))), tracing.value_of(sizes(0))
    made = tracing.apply("RoiAlign", image, rois, batch)
    with pytest.raises(NotDifferentiable, match="no gradient by the regions"):
        tracing.gradients([made], [tracing.value_of(np.ones((1, 1, 1, 1)))], [rois])
    made = tracing.apply("RoiAlign", image, rois, batch, mode="max")
    with pytest.raises(NotDifferentiable, match="for mode 'avg' only"):
        tracing.gradients([made], [tracing.value_of(np.ones((1, 1, 1, 1)))], [image])


def test_gradients_of_other_shapes_are_refused() -> None:
    parts = [tracing.value_of(array) for array in (np.ones((1, 1, 2, 1)), np.ones((1, 4)), sizes(0))]
    with pytest.raises(ShapeError, match="is not one of 1 regions"):
        tracing.apply("RoiAlignGradient", *parts, domain="vkml", image=(1, 1, 4, 4))
