"""ImageDecoder: files of images as pixels, by Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph, RuntimeException
from vkml.ir.dtypes import UINT8
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, require_rank, required

_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


@operator()
class ImageDecoder(Operator):
    """The pixels of an image, [height, width, channels], nothing of what is none that Pillow can read."""

    sizing_inputs = (0,)
    attributes = {"pixel_format": "RGB"}

    def check(self, node: Node) -> None:
        if node.attributes["pixel_format"] not in _MODES:
            raise InvalidGraph(
                f"{node.label}: pixel_format must be one of {', '.join(_MODES)}, not "
                f"{node.attributes['pixel_format']!r}"
            )

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, (UINT8,), "the encoded image")
        require_rank(node, x, 1, 1, "the encoded image")
        if x.value is not None:
            return [TensorType(UINT8, self.evaluate(node, [x.value])[0].shape)]
        return [TensorType(UINT8, (None, None, None))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        try:
            from PIL import Image
        except ImportError:
            raise RuntimeException(
                f"{node.label}: decoding images takes Pillow: pip install pillow"
            ) from None
        wanted = node.attributes["pixel_format"]
        try:
            with Image.open(io.BytesIO(present(inputs, 0).tobytes())) as image:
                pixels = np.array(image.convert(_MODES[wanted]), np.uint8)
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
            return [np.zeros((0, 0, 0), np.uint8)]
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        return [np.ascontiguousarray(pixels[:, :, ::-1]) if wanted == "BGR" else pixels]
