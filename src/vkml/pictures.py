"""Pictures as Pillow reads them, in the channels and the position in which they are wanted."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from vkml.errors import MissingPackage

Array = np.ndarray[Any, Any]
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Channels → Pillow's name for such images."""
ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""Of the names of files that hold pictures."""
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")
"""Pillow's names for grey images of 16 bits; older versions read such a .png as I."""
GREY_MODES = ("1", "L", "LA", "F", *SIXTEEN_BITS)
"""Pillow's names for pictures without colour."""
_ORIENTATION = 0x0112


def pillow() -> Any:
    """Pillow's module of images.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackage("reading pictures needs Pillow: pip install 'vkml[image]'") from error
    return Image


def upright(picture: Any) -> Any:
    """The picture as it is meant to be seen: cameras store it as the sensor lies, and its turn apart."""
    from PIL import ImageOps

    picture.load()  # so that what fails below is the EXIF data
    try:
        if picture.getexif().get(_ORIENTATION, 1) == 1:
            return picture  # and no copy
        return ImageOps.exif_transpose(picture)
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error, OSError):
        return picture  # unreadable EXIF data state no turn; viewers show such a picture as it is stored


def eight_bit_picture(picture: Any, channels: int) -> Any:
    """The picture in 1, 3 or 4 channels of 8 bits; where alpha is not asked for, black lies behind it."""
    image = pillow()
    if picture.mode == MODES[channels] and "transparency" not in picture.info:
        return picture
    if picture.mode == "F":
        raise ValueError("its values are floating-point numbers of no known range")
    has_alpha = "A" in picture.getbands() or "transparency" in picture.info
    picture = picture.convert("RGBA" if has_alpha else "RGB")
    if has_alpha and channels != 4:
        picture = image.alpha_composite(image.new("RGBA", picture.size, (0, 0, 0, 255)), picture)
    return picture.convert(MODES[channels])


def sixteen_bit_planes(picture: Any, channels: int) -> list[Any]:
    """A grey picture of 16 bits as one float plane a channel: Pillow's conversions cut such values at 255."""
    image = pillow()
    values = np.asarray(picture).astype(np.float32)
    if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
        raise ValueError("its values exceed 16 bits")
    is_clear = values == picture.info.get("transparency", -1)
    if channels == 4:
        alpha = np.where(is_clear, 0, 65535).astype(np.float32)
        return [*[image.fromarray(values)] * 3, image.fromarray(alpha)]
    return [image.fromarray(np.where(is_clear, 0, values).astype(np.float32))] * channels


def rgb(picture: Any) -> Any:
    """A picture of any mode, upright, in red, green and blue of 8 bits.

    Palettes are looked up, grey is all three, 16 bits are rounded to 8; black is behind what is transparent.

    Raises:
        ValueError: its values have no known range.
    """
    picture = upright(picture)
    if picture.mode not in SIXTEEN_BITS:
        return eight_bit_picture(picture, 3)
    plane = np.asarray(sixteen_bit_planes(picture, 1)[0])
    return pillow().fromarray(np.rint(plane * np.float32(255 / 65535)).astype(np.uint8)).convert("RGB")
