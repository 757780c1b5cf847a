"""GridSample, AffineGrid and RoiAlign against onnxruntime and onnx's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from vkml.errors import IndexOutOfRange, ShapeError
from vkml.ir import TensorType, dtypes, static

LOOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_grid_sample(mode: str, padding: str, aligned: int) -> None:
    generator = np.random.default_rng(0)
    x = random_array(generator, np.float32, (2, 3, 5, 7))
    grid = generator.uniform(-1.6, 1.6, (2, 4, 6, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    check_operator("GridSample", [x, grid], attributes, opset=20, **LOOSE)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_of_volumes(mode: str, padding: str) -> None:
    generator = np.random.default_rng(1)
    x = random_array(generator, np.float32, (1, 2, 4, 5, 3))
    grid = generator.uniform(-1.5, 1.5, (1, 2, 3, 4, 3)).astype(np.float32)
    check_operator("GridSample", [x, grid], {"mode": mode, "padding_mode": padding}, opset=20, **LOOSE)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_grid_sample_of_opset_16(mode: str) -> None:
    generator = np.random.default_rng(2)
    x = random_array(generator, np.float32, (1, 1, 4, 4))
    grid = generator.uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)
    check_operator("GridSample", [x, grid], {"mode": mode}, opset=16, **LOOSE)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_grid_sample_survives_absurd_coordinates(padding: str, value: float) -> None:
    x = np.ones((1, 1, 3, 3), np.float32)
    grid = np.full((1, 1, 1, 2), value, np.float32)
    for mode in ("linear", "nearest", "cubic"):
        found = run_operator("GridSample", [x, grid], {"mode": mode, "padding_mode": padding})[0]
        assert found.item() == pytest.approx(0 if padding == "zeros" else 1, abs=1e-3)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample_outside_reads_nothing_of_an_infinity_at_the_edge(mode: str) -> None:
    x = np.full((1, 1, 3, 3), np.inf, np.float32)
    grid = np.full((1, 1, 1, 2), 9, np.float32)
    assert run_operator("GridSample", [x, grid], {"mode": mode})[0].item() == 0


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_outside_read_nothing_of_an_infinity_at_the_edge(mode: str) -> None:
    x = np.zeros((1, 2, 3, 3), np.float32)
    x[..., -1, -1] = np.inf
    rois = np.array([[7, 7, 9, 9]], np.float32)
    found = check_operator("RoiAlign", [x, rois, np.array([0])], {"mode": mode}, opset=16)[0]
    assert not found.any()


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (1, 2, 2, 3, 4), (2, 1, 1, 5)])
def test_affine_grid(aligned: int, size: tuple[int, ...]) -> None:
    spatial = len(size) - 2
    theta = random_array(np.random.default_rng(3), np.float32, (size[0], spatial, spatial + 1), 1.0)
    inputs = [theta, np.array(size, np.int64)]
    if aligned and 1 in size[2:]:
        # onnx's reference puts a single aligned place at -1; the middle is what frameworks take.
        assert run_operator("AffineGrid", inputs, {"align_corners": 1})[0].shape == (
            *size[:1],
            *size[2:],
            spatial,
        )
        return
    check_operator("AffineGrid", inputs, {"align_corners": aligned}, opset=20, against="onnx", **LOOSE)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_roi_align(mode: str, ratio: int, coordinates: str) -> None:
    generator = np.random.default_rng(4)
    x = random_array(generator, np.float32, (2, 3, 10, 12))
    corners = generator.uniform(-2, 16, (5, 2))
    rois = np.concatenate([corners, corners + generator.uniform(1, 9, (5, 2))], axis=1).astype(np.float32)
    attributes = {
        "mode": mode,
        "sampling_ratio": ratio,
        "coordinate_transformation_mode": coordinates,
        "output_height": 3,
        "output_width": 4,
        "spatial_scale": 0.75,
    }
    batch = np.array([0, 1, 1, 0, 1], np.int64)
    check_operator("RoiAlign", [x, rois, batch], attributes, opset=16, **LOOSE)
    if coordinates == "output_half_pixel":
        del attributes["coordinate_transformation_mode"]
        check_operator("RoiAlign", [x, rois, batch], attributes, opset=10, **LOOSE)


def test_errors() -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    with pytest.raises(ShapeError, match="does not address an input"):
        inferred_types("GridSample", [x, np.zeros((1, 2, 2, 3), np.float32)])
    with pytest.raises(ShapeError, match="does not map"):
        inferred_types("AffineGrid", [np.zeros((1, 2, 2), np.float32), np.array([1, 1, 4, 4])])
    unknown = inferred_types("AffineGrid", [np.zeros((1, 2, 3), np.float32), static(dtypes.INT64, (4,))])
    assert unknown == [TensorType(dtypes.FLOAT32, (None,) * 4)]
    rois = np.array([[0, 0, 1, 1]], np.float32)
    with pytest.raises(IndexOutOfRange, match="batch index 1 of region 0"):
        run_operator("RoiAlign", [x, rois, np.array([1])])
    with pytest.raises(ShapeError, match="cannot be sampled"):
        run_operator("RoiAlign", [x, np.full_like(rois, np.inf), np.array([0])])


@pytest.mark.parametrize("ratio", [2**40, 2**63 - 1])
def test_more_samples_than_memory_holds_are_refused(ratio: int) -> None:
    inputs = [np.ones((1, 2, 4, 4), np.float32), np.float32([[0, 0, 2, 2]]), np.array([0])]
    with pytest.raises(ShapeError, match=r"takes \d+ bytes"):
        run_operator("RoiAlign", inputs, {"sampling_ratio": ratio}, opset=16)


@pytest.mark.parametrize("shape", [(1, 2, 0, 3), (1, 2, 3, 0)])
def test_an_image_without_places_cannot_be_sampled(shape: tuple[int, ...]) -> None:
    x, rois, batch = np.ones(shape, np.float32), np.float32([[0, 0, 2, 2]]), np.array([0])
    with pytest.raises(ShapeError, match="has nothing to sample"):
        inferred_types("RoiAlign", [x, rois, batch])
    with pytest.raises(ShapeError, match="has nothing to sample"):
        inferred_types("GridSample", [x, np.zeros((1, 1, 1, 2), np.float32)])
    [nothing] = run_operator("RoiAlign", [x, rois[:0], batch[:0]])
    assert nothing.shape == (0, 2, 1, 1)
