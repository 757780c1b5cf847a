"""Reads an image file into the shape and type that a model's input has."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vkml.cli.guard import UsageError
from vkml.errors import InvalidArgument
from vkml.ir.dtypes import UINT8, DType
from vkml.pictures import MODES, SIXTEEN_BITS, eight_bit_picture, sixteen_bit_planes, upright

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ImageScale:
    """What is done to the values 0..1 of each channel: subtract the mean, divide by the deviation."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)


AS_IS = ImageScale()


def parse_scale(mean: str | None, deviation: str | None) -> ImageScale:
    """``"0.485,0.456,0.406"`` and its like, from the options --mean and --std."""
    return ImageScale(_numbers(mean, "--mean", 0.0), _numbers(deviation, "--std", 1.0))


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
    path: Path, shape: Sequence[int | str | None], dtype: DType, what: str, scale: ImageScale
) -> Array:
    """One image without its batch dimension, converted to the input's size, channels and type.

    Args:
        path: A file that Pillow reads.
        shape: The input's shape: N,C,H,W or N,H,W,C, or either without N, or H,W. Sizes that are not fixed
            are the image's own.
        dtype: The input's element type: floats get 0..1 (then `scale`), integers 0..255.
        what: How messages call the input.
        scale: Mean and deviation.

    Returns:
        C,H,W or H,W,C or H,W.
    """
    try:
        from PIL import Image
    except ImportError:
        raise InvalidArgument(f"{path}: reading images needs Pillow: pip install 'vkml[image]'") from None
    if not (dtype.is_float or dtype == UINT8) or not dtype.is_native:
        raise InvalidArgument(f"{path}: {what} has element type {dtype.name}; images become floats or uint8")
    layout = _layout(shape, what, path)
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path) as opened:
            picture = upright(opened)
            if picture.mode in SIXTEEN_BITS:
                planes, full = sixteen_bit_planes(picture, layout.channels), 65535
            else:
                planes, full = [eight_bit_picture(picture, layout.channels)], 255
    except Exception as problem:  # Pillow's readers raise all kinds of errors for damaged files
        raise InvalidArgument(f"{path} cannot be read as an image: {problem}") from None
    height, width = (fixed or own for fixed, own in zip(layout.size, picture.size[::-1], strict=True))
    if picture.size != (width, height):
        planes = [plane.resize((width, height), Image.Resampling.BILINEAR) for plane in planes]
    pixels = np.concatenate([np.asarray(plane).reshape(height, width, -1) for plane in planes], axis=2)
    unit = pixels.astype(np.float32) / np.float32(full)
    values: Array = (
        np.rint(unit * np.float32(255)).astype(np.uint8)
        if dtype == UINT8
        else _scaled(unit, scale, path).astype(dtype.storage)
    )
    if layout.order == "HW":
        return values[:, :, 0]
    return np.ascontiguousarray(values.transpose(2, 0, 1)) if layout.order == "CHW" else values


def _scaled(unit: Array, scale: ImageScale, path: Path) -> Array:
    channels = unit.shape[2]
    for numbers, option in ((scale.mean, "--mean"), (scale.deviation, "--std")):
        if len(numbers) not in (1, channels):
            raise UsageError(
                f"{option} has {len(numbers)} numbers; {path} becomes an image of {channels} channels"
            )
    mean, deviation = np.array(scale.mean, np.float32), np.array(scale.deviation, np.float32)
    scaled: Array = (unit - mean) / deviation
    return scaled


@dataclass(frozen=True)
class _Layout:
    order: str
    channels: int
    size: tuple[int | None, int | None]


def _layout(shape: Sequence[int | str | None], what: str, path: Path) -> _Layout:
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
        f"{path}: {what} has shape {list(shape)}, no image's: N,C,H,W or N,H,W,C with C 1, 3 or 4"
    )
