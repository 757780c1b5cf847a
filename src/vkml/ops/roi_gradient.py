"""The gradient of RoiAlign by its image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import NotDifferentiable, ShapeError
from vkml.ir.dtypes import FLOATS, INT64
from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Node
from vkml.ir.operator import INTS, REQUIRED, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.sampling import RoiAlign, region_samples, roi_align_geometry


@operator("RoiAlignGradient")
class RoiAlignGradient(Operator):
    """Spreads the gradients of regions' averages [R, C, *bins] over an image of shape ``image``.

    Behind these come the regions and the samples that they lie in. vkml makes it, no file does.
    """

    domain = "vkml"
    inputs = (3, 3)
    attributes = {**RoiAlign.attributes, "image": REQUIRED}
    attribute_types = {"image": INTS}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        cotangent, rois, batch = (required(node, inputs, at) for at in range(3))
        require_dtype(node, cotangent, FLOATS, "the output's gradient")
        require_dtype(node, rois, FLOATS, "rois")
        require_dtype(node, batch, (INT64,), "batch_indices")
        image = node.attributes["image"]
        geometry = roi_align_geometry(node, image, rois.dims, batch.dims)
        if cotangent.dims != (geometry.rois, geometry.channels, *geometry.output):
            raise ShapeError(
                f"{node.label}: a gradient {list(cotangent.dims)} is not one of {geometry.rois} regions with "
                f"{geometry.channels} channels and {list(geometry.output)} bins"
            )
        return [check_size(node, cotangent.dtype, image)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        cotangent, rois, batch = widened(present(inputs, 0)), present(inputs, 1), present(inputs, 2)
        geometry = roi_align_geometry(node, node.attributes["image"], rois.shape, batch.shape)
        boxes = widened(rois).astype(np.float64) * node.attributes["spatial_scale"]
        result = np.zeros(node.attributes["image"], cotangent.dtype)
        for sample, box, share in zip(batch, boxes, cotangent, strict=True):
            by_row, by_column = (
                _averages(samples, size, bins).astype(cotangent.dtype)
                for samples, size, bins in zip(
                    region_samples(node, box, geometry),
                    (geometry.height, geometry.width),
                    geometry.output,
                    strict=True,
                )
            )
            result[sample] += by_row.T @ share @ by_column
        return [result.astype(present(inputs, 0).dtype, copy=False)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        if needed[1]:
            raise NotDifferentiable("RoiAlign has no gradient by the regions, as in torchvision")
        attributes = {key: node.attributes[key] for key in RoiAlign.attributes}
        return [build.apply("RoiAlign", present(cotangents, 0), *inputs[1:], **attributes)]


def _averages(samples: tuple[Array, Array, Array, Array, int], size: int, bins: int) -> Array:
    """What each place of an axis contributes to each bin, [bins, size]."""
    low, high, part, inside, each = samples
    made = np.zeros((bins, size))
    if each:
        of_bin = np.repeat(np.arange(bins), each)
        np.add.at(made, (of_bin, low), (1 - part) * inside / each)
        np.add.at(made, (of_bin, high), part * inside / each)
    return made
