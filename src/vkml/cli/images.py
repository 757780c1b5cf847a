"""Reads an image file into the shape and type that a model's input has."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.cli.guard import UsageError
from vkml.cli.sources import Source
from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument
from vkml.ir.dtypes import UINT8, DType
from vkml.pictures import MODES, SIXTEEN_BITS, eight_bit_picture, sixteen_bit_planes, upright

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Preparation:
    """What is done to pictures before a model sees them.

    Attributes:
        fit: how a picture of other proportions comes to the model's size: ``stretch`` changes them, ``crop``
            keeps the middle, ``pad`` puts black round it.
        edge: with ``crop``, the shorter edge in pixels before the middle is cut out; None: as short as fits.
        white: what the largest value becomes, before mean and deviation: 1, or 255 where models want that.
        mean: taken off each channel, in the model's order of channels.
        deviation: divides each channel after that.
        is_bgr: whether blue comes first.
    """

    fit: str = "stretch"
    edge: int | None = None
    white: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    is_bgr: bool = False


AS_IS = Preparation()


def parse_preparation(
    fit: str, edge: int | None, white: float, mean: str | None, deviation: str | None, is_bgr: bool
) -> Preparation:
    """The options of pictures: ``"0.485,0.456,0.406"`` and its like are numbers per channel.

    Raises:
        UsageError: one of them is wrong, or does not go with another one.
    """
    if edge is not None and fit != "crop":
        raise UsageError("--edge is the shorter edge before --fit crop cuts the middle out; give that, too")
    if not (math.isfinite(white) and white > 0):
        raise UsageError(f"--scale {white:g}: expected a number above 0, as a rule 1 or 255")
    return Preparation(
        fit, edge, white, _numbers(mean, "--mean", 0.0), _numbers(deviation, "--std", 1.0), is_bgr
    )


def _numbers(text: str | None, option: str, default: float) -> tuple[float, ...]:
    if text is None:
        return (default,)
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} {text}: expected numbers with commas between them") from None
    if not all(math.isfinite(number) for number in numbers):
        raise UsageError(f"{option} {text}: the numbers must be finite")
    if option == "--std" and 0.0 in numbers:
        raise UsageError(f"{option} {text}: a deviation of 0 cannot be divided by")
    return numbers


def read_image(
    source: Source, shape: Sequence[int | str | None], dtype: DType, what: str, preparation: Preparation
) -> Array:
    """One image without its batch dimension, converted to the input's size, channels and type.

    Args:
        source: What Pillow reads.
        shape: The input's shape: N,C,H,W or N,H,W,C, or either without N, or H,W. Sizes that are not fixed
            are the image's own.
        dtype: The input's element type: floats get 0..1 (scaled as `preparation` says), uint8 0..255.
        what: How messages call the input.
        preparation: What is done to it.

    Returns:
        C,H,W or H,W,C or H,W.
    """
    try:
        from PIL import Image
    except ImportError:
        raise InvalidArgument(f"{source}: reading images needs Pillow: pip install 'vkml[image]'") from None
    if not (dtype.is_float or dtype == UINT8) or not dtype.is_native:
        raise InvalidArgument(
            f"{source}: {what} has element type {dtype.name}; images become floats or uint8"
        )
    layout = _layout(shape, what, source)
    try:
        with warnings.catch_warnings(action="ignore"), source.open() as file, Image.open(file) as opened:
            picture = upright(opened)
            if picture.mode in SIXTEEN_BITS:
                planes, full = sixteen_bit_planes(picture, layout.channels), 65535
            else:
                planes, full = [eight_bit_picture(picture, layout.channels)], 255
    except Exception as problem:  # Pillow's readers raise all kinds of errors for damaged files
        raise InvalidArgument(f"{source} cannot be read as an image: {problem}") from None
    height, width = (fixed or own for fixed, own in zip(layout.size, picture.size[::-1], strict=True))
    pixels = np.concatenate(
        [_fitted(plane, (width, height), preparation).reshape(height, width, -1) for plane in planes], axis=2
    )
    if preparation.is_bgr and pixels.shape[2] >= 3:
        pixels = pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]
    unit = pixels.astype(np.float32) / np.float32(full)
    values: Array = (
        np.rint(unit * np.float32(255)).astype(np.uint8)
        if dtype == UINT8
        else _scaled(unit, preparation, source).astype(dtype.storage)
    )
    if layout.order == "HW":
        return values[:, :, 0]
    return np.ascontiguousarray(values.transpose(2, 0, 1)) if layout.order == "CHW" else values


def _fitted(plane: Any, size: tuple[int, int], preparation: Preparation) -> Array:
    """A picture's pixels at a size (width, height); what is put round it is 0."""
    from PIL import Image

    bilinear = Image.Resampling.BILINEAR
    ratios = [wanted / own for wanted, own in zip(size, plane.size, strict=True)]
    if (plane.size == size and preparation.edge is None) or preparation.fit == "stretch":
        return np.asarray(plane if plane.size == size else plane.resize(size, bilinear))
    if preparation.fit == "crop":
        ratio = max(ratios)
        if preparation.edge is not None:
            ratio = max(ratio, preparation.edge / min(plane.size))
        # The part of the picture that is kept, at once in its final size.
        left, top = ((own - wanted / ratio) / 2 for own, wanted in zip(plane.size, size, strict=True))
        box = (
            max(left, 0.0),
            max(top, 0.0),
            min(plane.width - left, plane.width),
            min(plane.height - top, plane.height),
        )
        return np.asarray(plane.resize(size, bilinear, box=box))
    inner = [
        max(1, min(wanted, round(own * min(ratios)))) for own, wanted in zip(plane.size, size, strict=True)
    ]
    left, top = ((wanted - own) // 2 for own, wanted in zip(inner, size, strict=True))
    small = np.asarray(plane.resize(tuple(inner), bilinear))
    whole = np.zeros((size[1], size[0], *small.shape[2:]), small.dtype)
    whole[top : top + inner[1], left : left + inner[0]] = small
    return whole


def _scaled(unit: Array, preparation: Preparation, source: Source) -> Array:
    channels = unit.shape[2]
    for numbers, option in ((preparation.mean, "--mean"), (preparation.deviation, "--std")):
        if len(numbers) not in (1, channels):
            raise UsageError(
                f"{option} has {len(numbers)} numbers; {source} becomes an image of {channels} channels"
            )
    mean, deviation = np.array(preparation.mean, np.float32), np.array(preparation.deviation, np.float32)
    scaled: Array = (unit * np.float32(preparation.white) - mean) / deviation
    return scaled


@dataclass(frozen=True)
class _Layout:
    order: str
    channels: int
    size: tuple[int | None, int | None]


def _layout(shape: Sequence[int | str | None], what: str, source: Source) -> _Layout:
    """Where channels, height and width are; channels first where both ends could be channels."""
    sizes = [each if isinstance(each, int) else None for each in shape]
    if len(sizes) == 2:
        return _Layout("HW", 1, (sizes[0], sizes[1]))
    if len(sizes) in (3, 4):
        first, middle, last = sizes[-3:]
        if first in MODES and first is not None:
            return _Layout("CHW", first, (middle, last))
        if last in MODES and last is not None:
            return _Layout("HWC", last, (first, middle))
    raise InvalidArgument(
        f"{source}: {what} has shape {list(shape)}, no image's: N,C,H,W or N,H,W,C with C 1, 3 or 4"
    )
