"""NonMaxSuppression against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, run_operator
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import TensorType, dtypes, static

Array = np.ndarray[Any, Any]


def _inputs(seed: int, batch: int, classes: int, boxes: int, *, is_coarse: bool) -> list[Any]:
    """Boxes with corners in any order; coarse numbers make equal scores, empty and touching boxes."""
    rng = np.random.default_rng(seed)
    corners, scores = rng.random((batch, boxes, 4)) * 4, rng.random((batch, classes, boxes))
    if is_coarse:
        corners, scores = np.round(corners), np.round(scores, 1)
    return [corners.astype(np.float32), scores.astype(np.float32)]


@pytest.mark.parametrize("opset", [10, 11])
@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("is_coarse", [False, True])
@pytest.mark.parametrize(
    ("most", "overlap", "least"),
    [(3, 0.5, 0.3), (100, 0.2, None), (2, None, 0.5), (None, 0.5, None), (0, 0.5, 0.1), (7, 1.0, 0.0)],
)
def test_against_onnxruntime(
    opset: int, center: int, is_coarse: bool, most: int | None, overlap: float | None, least: float | None
) -> None:
    inputs = _inputs(opset + center, 2, 3, 40, is_coarse=is_coarse)
    inputs += [None if most is None else np.array([most], np.int64)]
    inputs += [None if number is None else np.array([number], np.float32) for number in (overlap, least)]
    while inputs[-1] is None:
        inputs.pop()
    check_operator("NonMaxSuppression", inputs, {"center_point_box": center}, opset=opset)


def test_no_boxes_and_no_classes() -> None:
    most = np.array(5, np.int64)
    for boxes, classes in ((0, 2), (3, 0)):
        [found] = run_operator("NonMaxSuppression", [*_inputs(1, 2, classes, boxes, is_coarse=False), most])
        assert found.shape == (0, 3) and found.dtype == np.int64


def test_size_is_open_until_all_inputs_are_known() -> None:
    boxes, scores = _inputs(3, 1, 2, 9, is_coarse=False)
    most = np.array(4, np.int64)
    open_size = inferred_types("NonMaxSuppression", [boxes, static(dtypes.FLOAT32, scores.shape), most])
    assert open_size == [TensorType(dtypes.INT64, (None, 3))]
    [known] = inferred_types("NonMaxSuppression", [boxes, scores, most])
    assert known.dims[0] == len(run_operator("NonMaxSuppression", [boxes, scores, most])[0])


def test_refusals() -> None:
    boxes, scores = _inputs(3, 1, 2, 9, is_coarse=False)
    with pytest.raises(ShapeError, match=r"\[1, 9, 4\] and \[1, 2, 8\]"):
        inferred_types("NonMaxSuppression", [boxes, scores[..., :8]])
    with pytest.raises(ShapeError, match="max_output_boxes_per_class must be one number"):
        inferred_types("NonMaxSuppression", [boxes, scores, np.array([1, 2])])
    with pytest.raises(InvalidGraph, match=r"iou_threshold is 1\.5"):
        run_operator("NonMaxSuppression", [boxes, scores, np.array(3), np.array(1.5, np.float32)])


def test_found_boxes_are_read_by_later_nodes(device_name: str) -> None:
    """The usual end of a detector: the boxes that were selected are gathered."""
    import onnx
    from onnx import TensorProto, helper

    boxes, scores = _inputs(5, 1, 1, 30, is_coarse=False)
    most, overlap = np.array([6], np.int64), np.array([0.3], np.float32)
    model = build_model("NonMaxSuppression", [boxes, scores, most, overlap], opset=13)
    last = onnx.numpy_helper.from_array(np.array([2], np.int64), "last")
    model.graph.initializer.append(last)
    model.graph.node.extend(
        [
            helper.make_node("Gather", ["y0", "last"], ["places"], axis=1),
            helper.make_node("Squeeze", ["x0"], ["flat"]),
            helper.make_node("GatherND", ["flat", "places"], ["chosen"]),
            helper.make_node("Relu", ["chosen"], ["end"]),
        ]
    )
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("end", TensorProto.FLOAT, ["n", 4]))
    feed = {"x0": boxes, "x1": scores, "x2": most, "x3": overlap}
    [selected] = run_operator("NonMaxSuppression", [boxes, scores, most, overlap])
    with vkml.InferenceSession(model.SerializeToString(), devices=device_name) as session:
        for shift in (0.0, 1.0):
            [found] = session.run(None, {**feed, "x0": boxes + np.float32(shift)})
            np.testing.assert_array_equal(found, boxes[0, selected[:, 2]] + np.float32(shift))
