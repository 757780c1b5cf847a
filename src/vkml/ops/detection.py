"""Operators of object detection: NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOAT32, INT64
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import optional, present, require_dtype, require_rank, required

_NUMBERS = ((2, INT64, "max_output_boxes_per_class"), (3, FLOAT32, "iou_threshold"),
            (4, FLOAT32, "score_threshold"))  # fmt: skip


@operator()
class NonMaxSuppression(Operator):
    """The best boxes of each class that do not overlap a better one too much: (batch, class, box) each.

    Boxes of a class come by falling score, of equal scores the first one first.
    """

    inputs = (2, 5)
    attributes = {"center_point_box": 0}
    sizing_inputs = (0, 1, 2, 3, 4)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        boxes, scores = required(node, inputs, 0), required(node, inputs, 1)
        for found, what in ((boxes, "boxes"), (scores, "scores")):
            require_dtype(node, found, (FLOAT32,), what)
            require_rank(node, found, 3, 3, what)
        if boxes.dims[2] != 4 or boxes.dims[0] != scores.dims[0] or boxes.dims[1] != scores.dims[2]:
            raise ShapeError(
                f"{node.label}: boxes must be [batch, boxes, 4] and scores [batch, classes, boxes], their "
                f"shapes are {list(boxes.dims)} and {list(scores.dims)}"
            )
        known: list[Known | None] = [boxes, scores]
        for index, dtype, what in _NUMBERS:
            number: Known | None = optional(inputs, index)
            known.append(number)
            if number is None:
                continue
            require_dtype(node, number, (dtype,), what)
            if number.type.elements != 1:
                raise ShapeError(f"{node.label}: {what} must be one number, its shape is {list(number.dims)}")
        if any(found is not None and found.value is None for found in known):
            return [TensorType(INT64, (None, 3))]
        [selected] = self.evaluate(node, [None if found is None else found.value for found in known])
        return [TensorType(INT64, selected.shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        boxes, scores = present(inputs, 0), present(inputs, 1)
        most, overlap, least = (_number(inputs, index) for index, _, _ in _NUMBERS)
        threshold = np.float32(0 if overlap is None else overlap)
        if not 0 <= threshold <= 1:
            raise InvalidGraph(f"{node.label}: iou_threshold is {threshold}; it must lie between 0 and 1")
        corners = _corners(boxes, is_centred=bool(node.attributes["center_point_box"]))
        found = [np.zeros((0, 3), np.int64)]
        for batch, classes in enumerate(scores if most is not None and most > 0 else ()):
            for label, of_class in enumerate(classes):
                kept = _suppressed(corners[batch], of_class, int(most or 0), threshold, least)
                places = np.empty((len(kept), 3), np.int64)
                places[:, 0], places[:, 1], places[:, 2] = batch, label, kept
                found.append(places)
        return [np.concatenate(found)]


def _number(inputs: Sequence[Array | None], index: int) -> float | None:
    found: Array | None = optional(inputs, index)
    return None if found is None else found.reshape(()).item()


def _corners(boxes: Array, *, is_centred: bool) -> Array:
    """Least and greatest coordinates of boxes: [batch, boxes, (low, high), axis]."""
    pairs = boxes.reshape(*boxes.shape[:-1], 2, 2)
    if is_centred:
        half = pairs[..., 1, :] / np.float32(2)
        return np.stack([pairs[..., 0, :] - half, pairs[..., 0, :] + half], -2)
    return np.stack([pairs.min(-2), pairs.max(-2)], -2)


def _suppressed(
    corners: Array, scores: Array, most: int, threshold: np.float32, least: float | None
) -> list[int]:
    """The places of one class's boxes that stay, best first."""
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > np.float32(least)]
    areas = np.prod(corners[:, 1] - corners[:, 0], axis=-1, dtype=np.float32)
    kept: list[int] = []
    while order.size and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(corners[best, 0], corners[order, 0])
        sides = np.minimum(corners[best, 1], corners[order, 1]) - low
        common = np.where((sides > 0).all(-1), sides.prod(-1), np.float32(0))
        union = areas[best] + areas[order] - common
        has_area = (areas[best] > 0) & (areas[order] > 0) & (union > 0) & (common > 0)
        ratio = np.divide(common, union, out=np.zeros_like(common), where=has_area)
        order = order[~(has_area & (ratio > threshold))]
    return kept
